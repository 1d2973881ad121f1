//! `bench classify`: how often the classifier of MCP tool calls is right, and what a call costs it.

use crate::{build, paths::target};
use anyhow::{Context, Result, bail};
use std::process::{Command, ExitCode};

/// Asks the classifier about its labelled corpus (agent/session/corpus), and times it.
///
/// Prints for each part, and apart for those that it was not tuned on, how often the operation and the risk's band are
/// right, what was taken for what, each call that is wrong, and each deletion with a score under 31; then what a call
/// costs, and hostile ones. Ends with an error where a deletion would pass unseen.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench classify > table.md")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    build::example("ringfence-session", "classify", &["test-support"], "release")?;
    let status = Command::new(target().join("release/examples/classify"))
        .status()
        .context("cannot start the example of ringfence-session")?;
    if !status.success() {
        bail!("the classifier lets deletions pass unseen: they are above");
    }
    Ok(ExitCode::SUCCESS)
}
