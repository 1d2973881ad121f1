//! `bench redact`: which secrets go, what is taken for one, and what the redactor costs where nothing is found.

use crate::paths::workspace;
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// Measures the redactor by its corpus, and where nothing is found.
///
/// Prints for the secrets of agent/redact/corpus how many go, of those that were written when the rules were done for
/// themselves; for the look-alikes how many were taken for secrets; and the time for texts of a megabyte in which is none.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench redact --wrong 2> wrong.txt")]
pub(crate) struct Args {
    /// Also print, to standard error, every text that went wrong
    #[arg(long)]
    wrong: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let mut measure = Command::new(cargo);
    measure.args(["run", "--release", "--quiet", "-p", "ringfence-redact", "--example", "measure", "--"]);
    measure.args(args.wrong.then_some("--wrong")).current_dir(workspace());
    let status = measure.status().context("cannot run cargo")?;
    if !status.success() {
        bail!("the measurement ended with {status}");
    }
    Ok(ExitCode::SUCCESS)
}
