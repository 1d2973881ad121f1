//! Ringfence: puts each AI-agent container under one profile that the kernel enforces and audits.
//!
//! This file asks whether Ringfence can run here at all; `cli/` parses the command line and dispatches.

// Where nobody reads standard output any more (`| head`), `println!` panics: `cli::output::print` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout))]
// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod install;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!(
        "ringfence: Ringfence enforces with Linux's own LSM hooks and cannot run on {}",
        std::env::consts::OS
    );
    ExitCode::from(1)
}
