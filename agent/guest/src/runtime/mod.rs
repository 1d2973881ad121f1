//! The runtime: the agent's loop in the container.
//!
//! | what | file |
//! |---|---|
//! | flags | `args` |
//! | messages of the socket protocol, as JSON | `message` |
//! | the connection: register, send a turn, wait for messages | `link` |
//! | the loop: message, turn, tools, turn, until the model is done | `session` |
//! | one round of tool calls, in parallel | `round` |
//! | one call's process: forked, held, tagged, let go, watched, ended | `call` |
//! | what runs in that process: the shell, or a file tool | `supervisor`, `work` |
//! | a process and all that descends from it | `tree` |
//! | the place where a call's process gets its tag | `tag` |
//!
//! One thread: every call is a process, so that the kernel can tell one call's work from another's, a call that never
//! ends can be ended, and forking is safe.

mod args;
mod call;
mod link;
pub mod message;
mod round;
mod session;
mod supervisor;
mod tag;
pub(crate) mod tree;
mod work;

pub use args::Args;

use ringfence_base::error::chain;
use std::{io::Write, process::ExitCode};

/// Runs until SIGTERM or SIGINT.
pub fn run(args: &Args) -> ExitCode {
    let outcome = args
        .load()
        .map_err(|error| error.to_string())
        .and_then(|settings| session::run(&settings).map_err(|error| chain(&error)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error}"));
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error. Never a message's or a tool's text.
fn say(line: std::fmt::Arguments<'_>) {
    // A log that nobody reads any more is no reason to stop.
    let _ = writeln!(std::io::stderr(), "ringfence-runtime: {line}");
}
