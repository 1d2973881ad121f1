//! `bench`: what enforcement, interception and the LLM workers cost, measured where the figures are exact or at least comparable.

mod figures;
mod kernel;
mod launch;
mod llm;
mod mcp;
mod shims;
mod tools;

use anyhow::Result;
use std::process::ExitCode;

/// Measures what enforcement, interception and the LLM workers cost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Kernel(kernel::Args),
    Launch(launch::Args),
    Llm(llm::Args),
    Mcp(mcp::Args),
    Tools(tools::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Kernel(args) => kernel::run(args),
        What::Launch(args) => launch::run(args),
        What::Llm(args) => llm::run(args),
        What::Mcp(args) => mcp::run(args),
        What::Tools(args) => tools::run(args),
    }
}
