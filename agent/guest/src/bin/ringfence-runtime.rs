//! The command line of `ringfence-runtime`.

use clap::{Parser, Subcommand};
use ringfence_guest::{bridge, hook, runtime, tie};
use std::{env, process::ExitCode};

/// Drives an agent in a container: waits for messages, asks the daemon for turns, runs the tools.
///
/// It has no key and does not know the model. What it needs comes over one unix socket that the host mounts here.
#[derive(Debug, Parser)]
#[command(
    name = "ringfence-runtime",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
        ringfence-runtime --system-prompt /etc/agent/prompt.md --tools bash,read_file,edit_file \\\n      \
            --socket /run/ringfence/agent.sock\n  \
        ringfence-runtime bridge --socket /run/ringfence/http.sock --port 8080"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    runtime: Option<runtime::Args>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bridge(bridge::Args),
    Hook(hook::Args),
    Tie(tie::Args),
}

/// Whether somebody asks what `tie` is.
fn wants_help() -> bool {
    env::args_os().skip(2).any(|argument| argument == "--help" || argument == "-h")
}

fn main() -> ExitCode {
    // Before anything that can fail, or say something: it stands before a tool's command.
    let mut arguments = env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == ringfence_wire::tie::COMMAND) && !wants_help() {
        let _ = ringfence_guest::close_to_others();
        tie::run(arguments);
        return ExitCode::SUCCESS;
    }
    if let Err(error) = ringfence_guest::close_to_others() {
        eprintln!("ringfence-runtime: cannot keep its memory from other processes: {error}");
        return ExitCode::FAILURE;
    }
    match Cli::parse() {
        Cli { command: Some(Command::Bridge(args)), .. } => bridge::run(&args),
        // Asked for its help, which clap has given.
        Cli { command: Some(Command::Tie(_)), .. } => ExitCode::SUCCESS,
        Cli { command: Some(Command::Hook(args)), .. } => hook::run(&args),
        Cli { runtime: Some(args), .. } => runtime::run(&args),
        // clap asks for one of the two.
        Cli { .. } => ExitCode::from(2),
    }
}
