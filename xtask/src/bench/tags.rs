//! `bench tags`: what it takes to tag a tool call's process before the tool runs, and to tie a shell, counted in a guest.

use crate::guest;
use crate::paths::workspace;
use crate::setup::Series;
use crate::vm::{Added, Job};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::process::ExitCode;

/// Where the guest finds the script, what it shares with the VM tests, and the workload.
const GUEST_DIR: &str = "/opt/vm-tests";
/// What the tag is compared with: a program started and ended, in the same boot.
const SPAWN: &str = "spawn";

/// Counts the executed instructions between a tool call's process being there and the runtime's knowing that it is tagged; and
/// those by which the shell of a coding agent's call is tied to it.
///
/// The runtime, a worker and the core as they ship, in a guest where a nanosecond is an executed instruction, whoever
/// executes it. Beside it, in the same boot, the start and end of a program, which anybody can time on their own machine.
/// Prints a Markdown table.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench tags > table.md")]
pub(crate) struct Args {
    /// The kernel to boot.
    #[arg(long, value_name = "K", default_value = "6.12")]
    kernel: Series,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let script = format!("{GUEST_DIR}/bench/tags.py");
    let mut job = Job::new(args.kernel, &["python3", &script]);
    job.as_it_ships = true;
    for folder in ["bench", "cases", "lib"] {
        let host = workspace().join("vm-tests").join(folder);
        job.added.push(Added { host, guest: format!("{GUEST_DIR}/{folder}").into() });
    }
    let runtime = guest::runtime()?;
    job.added.push(Added { host: runtime, guest: format!("{GUEST_DIR}/bin/ringfence-runtime").into() });
    let figures = super::counted(job, &format!("{GUEST_DIR}/bench"), figure)?;
    print!("{}", table(&figures)?);
    Ok(ExitCode::SUCCESS)
}

/// One line of the guest: `name instructions`.
fn figure(line: &str) -> Option<(String, f64)> {
    let (name, count) = line.split_once(' ')?;
    Some((name.replace('_', " "), count.trim().parse().ok()?))
}

/// A row for each figure, beside what share of a spawn it is.
fn table(figures: &[(String, f64)]) -> Result<String> {
    let spawn =
        figures.iter().find(|(name, _)| name == SPAWN).context("no figure of a spawn to compare with")?.1;
    let mut text = String::from("| | instructions | to a spawn |\n|---|---:|---:|\n");
    for (name, count) in figures {
        writeln!(text, "| {name} | {count:.0} | {:.2} |", count / spawn)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{figure, table};

    #[test]
    fn figures_stand_beside_their_share_of_a_spawn() {
        let figures: Vec<_> = ["spawn 1000", "tag 250", "the_call's_process 50", "# of 50 tags"]
            .into_iter()
            .filter_map(figure)
            .collect();
        let expected = "| | instructions | to a spawn |\n|---|---:|---:|\n| spawn | 1000 | 1.00 |\n\
                        | tag | 250 | 0.25 |\n| the call's process | 50 | 0.05 |\n";
        assert_eq!(table(&figures).unwrap(), expected);
        assert!(table(&figures[1..]).is_err(), "nothing to compare with");
    }
}
