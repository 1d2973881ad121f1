//! The command line of `ringfence-toolrunner`, and of every shim that is a link to it.

use clap::{Parser, Subcommand};
use ringfence_guest::runner::{daemon, exec, install, shim};
use std::process::ExitCode;

/// Serves the tools of a container: limits, a log of each run, and output that is bounded where it leaves the run.
///
/// A link to this binary with another name is a shim: it asks the daemon and then becomes the tool of that name, the next
/// in PATH, or runs it where its output has to be cut.
#[derive(Debug, Parser)]
#[command(
    name = "ringfence-toolrunner",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  \
        ringfence-toolrunner install-shims /app/shims\n  \
        ringfence-toolrunner &                                 serve, at /tmp/tool_runner.sock\n  \
        ringfence-toolrunner --max-lines 50 --keep both &\n  \
        ringfence-toolrunner exec -- bash -c 'cat large_file'  all of it around one command\n\n\
        For shims: RINGFENCE_STRICT=1 fails where the daemon is away, RINGFENCE_TRUNCATE=off|end|each is\n\
        stronger than what the daemon says, RINGFENCE_TOOLRUNNER_SOCKET is where the daemon is."
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    daemon: daemon::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    InstallShims(install::Args),
    Exec(exec::Args),
}

fn main() -> ExitCode {
    if let Err(error) = ringfence_guest::close_to_others() {
        eprintln!("ringfence-toolrunner: cannot keep its memory from other processes: {error}");
        return ExitCode::FAILURE;
    }
    if let Some(tool) = shim::name() {
        return ExitCode::from(shim::run(&tool));
    }
    let cli = Cli::parse();
    match &cli.command {
        Some(Command::InstallShims(args)) => install::run(args),
        Some(Command::Exec(args)) => ExitCode::from(exec::run(args)),
        None => daemon::run(&cli.daemon),
    }
}
