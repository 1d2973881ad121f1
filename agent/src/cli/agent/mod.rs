//! `ringfence agent`: this user's LLM agents, and for root the daemon's.

mod kits;
mod list;
mod logs;
mod owner;
mod pin;
mod send;
mod service;
mod show;

pub(crate) use list::table;
pub(crate) use logs::LogsArgs;
pub(crate) use pin::problems;
pub(crate) use send::SendArgs;
pub(crate) use service::{InitArgs, StartArgs, StopAllArgs};
pub(crate) use show::ShowArgs;

use anyhow::{Context, bail};
use ringfence_policy::{self as profile, agents::home::Home};
use std::process::ExitCode;

/// Runs LLM agents, and talks to them.
///
/// The agents are this user's, which `ringfence agent start` serves; for root they are the daemon's, too. If both have an agent
/// of the same name, the commands act on the user's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence agent start
  ringfence agent list
  ringfence agent check reviewer
  ringfence agent logs reviewer --follow
  ringfence agent send reviewer 'What is in src?'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Start(service::StartArgs),
    Init(service::InitArgs),
    Stop(service::StopArgs),
    #[command(alias = "ls")]
    List(list::ListArgs),
    Show(ShowArgs),
    Logs(LogsArgs),
    Send(SendArgs),
    Check(show::CheckArgs),
    Kits(kits::KitsArgs),
    Pin(pin::PinArgs),
}

impl From<Command> for Args {
    fn from(command: Command) -> Self {
        Self { command }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Start(args) => service::start(args),
        Command::Init(args) => service::init(args),
        Command::Stop(args) => service::stop(args),
        Command::List(args) => list::list(args),
        Command::Show(args) => show::show(args),
        Command::Logs(args) => logs::logs(args),
        Command::Send(args) => send::send(args),
        Command::Check(args) => show::check(args),
        Command::Kits(args) => kits::kits(args),
        Command::Pin(args) => pin::pin(args),
    }
}

/// The user's directories.
fn home() -> anyhow::Result<Home> {
    Home::from_env().context("the home directory is not known; set HOME")
}

/// Checks that a name is an agent's, so that it cannot be a path to another directory.
fn name(text: &str) -> anyhow::Result<&str> {
    if profile::is_name(text) {
        return Ok(text);
    }
    bail!("{text:?} is not an agent's name: letters, digits, `-`, `_` and `.`, not beginning with `.`")
}
