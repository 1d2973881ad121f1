//! `ringfence events`: what the kernel saw, why it decided so, and which agent and tool call it belongs to.

mod calls;
mod list;
mod trace;
mod why;

pub(crate) use trace::TraceArgs;
pub(crate) use why::WhyArgs;

use calls::CallsArgs;
use list::ListArgs;
use std::process::ExitCode;

/// Shows what confined processes did and which hosts they reached, and why.
///
/// Without a subcommand it lists events, as `ringfence events list` does. You see the events of your own containers; root sees
/// all.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "Examples:
  ringfence events --denied --since 10m
  ringfence events --follow --container 3fa9c1d20b7e
  ringfence events --json --since today | jq -r 'select(.op == \"connect\") | .addr'
  ringfence events --name '*.pypi.org'
  ringfence events why last
  ringfence events trace coder
  ringfence events calls

Columns: time, container/profile, verdict, operation, path or address, executable, rule, number (for `ringfence events why`).")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    list: ListArgs,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    List(ListArgs),
    Why(WhyArgs),
    Trace(TraceArgs),
    Calls(CallsArgs),
}

impl From<Command> for Args {
    fn from(command: Command) -> Self {
        Self { command: Some(command), list: ListArgs::default() }
    }
}

impl Args {
    /// The subcommand, the default one included.
    pub(super) fn command(self) -> Command {
        self.command.unwrap_or(Command::List(self.list))
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command() {
        Command::List(args) => list::list(&args),
        Command::Why(args) => why::why(&args),
        Command::Trace(args) => trace::trace(&args),
        Command::Calls(args) => calls::calls(&args),
    }
}
