//! `bench truth`: whether the record says of each event which tool call it is of.

use crate::{report::say, vm, vm_test};
use anyhow::{Result, bail};
use std::{process::ExitCode, time::Duration};

/// How long the guest may be silent: an agent takes minutes for all that it is asked.
const SILENCE: Duration = Duration::from_secs(40 * 60);

/// Runs real coding agents against a scripted model in a guest, and compares the record with what is known.
///
/// Each command of the corpus (tests/agents/truth.mjs) tries what is denied, in a way from which it is known which call it is of.
/// Prints for each agent how many of those events are on record as `exact`, `matched`, `sole`, `ambiguous` and `none`, how many name a
/// wrong call, and how many are missing; and whose those are that are not `exact`. Ends with an error where one is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench truth --agents claude,codex > table.md")]
pub(crate) struct Args {
    /// Which agents, with commas between; `runtime` is Ringfence's own
    #[arg(long, value_name = "NAMES", default_value = "claude,codex,gemini,opencode,runtime")]
    agents: String,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let job = vm_test::truth(&args.agents)?;
    let status = vm::lines(&job, SILENCE, say)?;
    if status != 0 {
        bail!(
            "the guest ended with status {status}: an event has a wrong call, or an agent did not run; what it said is above"
        );
    }
    Ok(ExitCode::SUCCESS)
}
