//! `ringfence mcp`: MCP servers behind the interceptor, and what is on record of their sessions.

mod exceptions;
mod intercept;
mod inventory;
mod listen;
mod login;
mod pin;
mod remote;
mod rules;
mod sessions;
mod stored_rules;
mod wrap;

pub(crate) use intercept::{GuardArgs, guard};
pub(crate) use login::{keeper as login_keeper, oauth};
pub(crate) use remote::serve as remote;
pub(crate) use rules::RulesArgs;
pub(crate) use sessions::{CallsArgs, SessionsArgs, StatsArgs};

use anyhow::Context as _;
use std::process::ExitCode;

/// Runs an MCP server behind the interceptor, and shows what is on record.
///
/// `ringfence mcp -- SERVER` runs a stdio server, `ringfence mcp --url URL` speaks to a remote one; it records, judges and forwards
/// every message. The subcommands put it before a client's servers, log in to remote ones, show the record and work on the rules. See also `ringfence approvals` and `ringfence audit`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(subcommand_value_name = "SUBCOMMAND")]
#[command(after_help = "Examples:
  ringfence mcp wrap ~/.config/Claude/claude_desktop_config.json
  ringfence mcp calls --risk 60
  ringfence mcp inventory
  ringfence mcp rules check ~/.config/ringfence/rules.yaml

In an MCP client's configuration:
  \"command\": \"ringfence\",
  \"args\": [\"mcp\", \"--server-name\", \"github\", \"--\", \"npx\", \"-y\", \"@modelcontextprotocol/server-github\"]

The same, with the server under a profile:
  \"args\": [\"mcp\", \"--profile\", \"coder\", \"--\", \"npx\", \"-y\", \"@modelcontextprotocol/server-github\"]

A remote server:
  \"args\": [\"mcp\", \"--url\", \"https://mcp.example.com/mcp\", \"--token-file\", \"/home/me/.config/example.token\"]")]
pub(crate) struct Args {
    // First: what is read of the subcommand is gone from what was matched.
    #[command(flatten)]
    server: Server,
    #[command(subcommand)]
    command: Option<Command>,
}

/// The server's arguments, where no subcommand stands in their place. By hand: clap finds no group of arguments optional that has
/// groups of its own.
#[derive(Debug)]
struct Server(Option<Box<intercept::ServerArgs>>);

impl clap::FromArgMatches for Server {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        Self::from_arg_matches_mut(&mut matches.clone())
    }

    fn from_arg_matches_mut(matches: &mut clap::ArgMatches) -> Result<Self, clap::Error> {
        if matches.subcommand_name().is_some() {
            return Ok(Self(None));
        }
        intercept::ServerArgs::from_arg_matches_mut(matches).map(|args| Self(Some(Box::new(args))))
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Server {
    fn augment_args(command: clap::Command) -> clap::Command {
        intercept::ServerArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        intercept::ServerArgs::augment_args_for_update(command)
    }
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Wrap(wrap::WrapArgs),
    Login(login::LoginArgs),
    Logins(login::LoginsArgs),
    Logout(login::LogoutArgs),
    Sessions(SessionsArgs),
    Calls(CallsArgs),
    Stats(StatsArgs),
    Inventory(inventory::InventoryArgs),
    Pin(pin::PinArgs),
    Rules(RulesArgs),
}

impl From<Command> for Args {
    fn from(command: Command) -> Self {
        Self { command: Some(command), server: Server(None) }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => {
            let server = args.server.0.as_deref();
            intercept::run(
                server
                    .context("no server is named: `ringfence mcp -- SERVER`, or `ringfence mcp --url URL`")?,
            )
        }
        Some(Command::Wrap(args)) => wrap::run(args),
        Some(Command::Login(args)) => login::login(args),
        Some(Command::Logins(args)) => login::logins(args),
        Some(Command::Logout(args)) => login::logout(args),
        Some(Command::Sessions(args)) => sessions::sessions(args),
        Some(Command::Calls(args)) => sessions::calls(args),
        Some(Command::Stats(args)) => sessions::stats(args),
        Some(Command::Inventory(args)) => inventory::inventory(args),
        Some(Command::Pin(args)) => pin::pin(args),
        Some(Command::Rules(args)) => rules::run(args),
    }
}
