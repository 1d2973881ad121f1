//! `bench`: what enforcement and interception cost, measured where the figures are exact or at least comparable.

mod kernel;
mod launch;
mod mcp;

use anyhow::Result;
use std::process::ExitCode;

/// Measures what enforcement and interception cost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Kernel(kernel::Args),
    Launch(launch::Args),
    Mcp(mcp::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Kernel(args) => kernel::run(args),
        What::Launch(args) => launch::run(args),
        What::Mcp(args) => mcp::run(args),
    }
}
