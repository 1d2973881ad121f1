//! Ringfence: puts each AI-agent container under one profile that the kernel enforces and audits.
//!
//! This file asks whether Ringfence can run here at all; `cli/` parses the command line and dispatches.

// Where nobody reads standard output any more (`| head`), `println!` panics: `cli::output::print` does not.
#![cfg_attr(not(test), deny(clippy::print_stdout))]
// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

#[cfg(target_os = "linux")]
mod auditor;
#[cfg(target_os = "linux")]
mod cli;
#[cfg(target_os = "linux")]
mod core;
#[cfg(all(test, target_os = "linux"))]
mod corpus;
#[cfg(target_os = "linux")]
mod install;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(all(test, target_os = "linux"))]
mod laws;
#[cfg(target_os = "linux")]
mod leash;
#[cfg(target_os = "linux")]
mod llm;
#[cfg(target_os = "linux")]
mod loopback;
#[cfg(target_os = "linux")]
mod mcp;
#[cfg(target_os = "linux")]
mod misplaced;
mod platform;
#[cfg(target_os = "linux")]
mod precedence;
#[cfg(target_os = "linux")]
mod profile;
#[cfg(target_os = "linux")]
mod quota;
#[cfg(target_os = "linux")]
mod serving;
#[cfg(target_os = "linux")]
mod supervised;
#[cfg(target_os = "linux")]
mod worker_process;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    cli::main()
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!(
        "ringfence: {}",
        platform::refusal(std::env::consts::OS, std::env::consts::ARCH, "").unwrap_or_default()
    );
    ExitCode::from(1)
}
