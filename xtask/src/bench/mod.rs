//! `bench`: what enforcement costs, measured where the figures are exact or at least comparable.

mod kernel;
mod launch;

use anyhow::Result;
use std::process::ExitCode;

/// Measures what enforcement costs.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Kernel(kernel::Args),
    Launch(launch::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Kernel(args) => kernel::run(args),
        What::Launch(args) => launch::run(args),
    }
}
