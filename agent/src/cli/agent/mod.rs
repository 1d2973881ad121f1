//! `ringfence agent`: this user's LLM agents, and for root the daemon's.

mod list;
mod logs;
mod owner;
mod pin;
mod send;
mod service;
mod show;

pub(crate) use list::table;
pub(crate) use logs::{LogsArgs, logs};
pub(crate) use pin::amiss;
pub(crate) use send::{Args as SendArgs, run as send};
pub(crate) use service::{InitArgs, StartArgs, StopArgs, init, start, stop};
pub(crate) use show::{ShowArgs, show};

use crate::{llm::home::Home, profile};
use anyhow::{Context, bail};
use std::process::ExitCode;

/// Shows, checks and talks to agents: this user's, which `ringfence start` serves, and for root the daemon's. Where both have
/// one of a name, it is the user's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence agent ls
  ringfence agent check reviewer
  ringfence agent logs reviewer --follow
  ringfence agent send reviewer 'What is in src?'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the agents, and what each is doing.
    #[command(after_help = "Example:\n  ringfence agent ls --json | jq '.agents[] | {name, state}'")]
    Ls {
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    Show(ShowArgs),
    Logs(LogsArgs),
    Send(SendArgs),
    /// Stops one agent: it finishes what it does, then its socket is gone. SIGHUP to `ringfence start` or to the daemon
    /// (`systemctl reload ringfence`) starts it again.
    #[command(after_help = "Example:\n  ringfence agent stop reviewer")]
    Stop {
        /// The agent.
        name: String,
    },
    /// Reads an agent's profile and its credentials, and says everything that is wrong with them.
    #[command(
        after_help = "Exits with 0 if all is right, with 1 otherwise.\n\nExample:\n  ringfence agent check reviewer"
    )]
    Check {
        /// The agent.
        name: String,
    },
    Pin(pin::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Ls { json } => list::list(*json),
        Command::Show(args) => show(args),
        Command::Logs(args) => logs(args),
        Command::Send(args) => send(args),
        Command::Stop { name } => service::stop_one(name),
        Command::Check { name } => show::check(name),
        Command::Pin(args) => pin::run(args),
    }
}

/// The user's directories.
fn home() -> anyhow::Result<Home> {
    Home::from_env().context("the home directory is not known; set HOME")
}

/// An agent's name: not a path that leads elsewhere.
fn name(text: &str) -> anyhow::Result<&str> {
    if profile::is_name(text) {
        return Ok(text);
    }
    bail!("{text:?} is not an agent's name: letters, digits, `-`, `_` and `.`, not beginning with `.`")
}
