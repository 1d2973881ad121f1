//! `bench kernel`: executed guest instructions of an operation, bare and under each enforcer, in one boot.

use crate::paths::workspace;
use crate::setup::Series;
use crate::vm::{Added, Job, Ringfence};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::process::ExitCode;

/// Where the guest finds the script and, beside it, the workload.
const GUEST_DIR: &str = "/opt/vm-tests/bench";
/// The condition that the others are compared with.
const BARE: &str = "bare";

/// Counts the executed instructions of opening a file, connecting a socket and starting a program.
///
/// Under `--icount` a guest nanosecond is an executed instruction, so the counts are exact and repeat to a fraction of a
/// per cent on any machine. Prints a Markdown table: each condition's cost above bare.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask bench kernel > table.md")]
pub(crate) struct Args {
    /// The kernel to boot.
    #[arg(long, value_name = "K", default_value = "6.12")]
    kernel: Series,
}

/// One line of the guest: `condition workload ns`.
#[derive(Debug, PartialEq)]
struct Figure {
    condition: String,
    workload: String,
    count: f64,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let mut job = Job::new(args.kernel, &["bash", &format!("{GUEST_DIR}/kernel.sh")]);
    job.ringfence = Ringfence::Installed;
    job.added.push(Added { host: workspace().join("vm-tests/bench"), guest: GUEST_DIR.into() });
    let figures = super::counted(job, GUEST_DIR, figure)?;
    print!("{}", table(&figures)?);
    Ok(ExitCode::SUCCESS)
}

fn figure(line: &str) -> Option<Figure> {
    let mut words = line.split_whitespace();
    let (condition, workload, count) = (words.next()?, words.next()?, words.next()?.parse().ok()?);
    words.next().is_none().then(|| Figure {
        condition: condition.to_owned(),
        workload: workload.to_owned(),
        count,
    })
}

/// A row for each condition, a column for each workload, both in the order in which they came.
fn table(figures: &[Figure]) -> Result<String> {
    let (mut conditions, mut workloads) = (Vec::new(), Vec::new());
    for figure in figures {
        if !conditions.contains(&&figure.condition) {
            conditions.push(&figure.condition);
        }
        if !workloads.contains(&&figure.workload) {
            workloads.push(&figure.workload);
        }
    }
    let count = |condition: &str, workload: &str| {
        figures.iter().find(|one| one.condition == condition && one.workload == workload).map(|one| one.count)
    };
    let mut text = String::from("| |");
    workloads.iter().try_for_each(|workload| write!(text, " {workload} |"))?;
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(workloads.len()));
    text.push('\n');
    for condition in conditions {
        write!(text, "| {condition} |")?;
        for workload in &workloads {
            let here = count(condition, workload)
                .with_context(|| format!("no figure for {condition} {workload}"))?;
            let bare = count(BARE, workload).with_context(|| format!("no figure for {BARE} {workload}"))?;
            if condition == BARE {
                write!(text, " {here:.0} |")?;
            } else {
                write!(text, " {:+.0} |", here - bare)?;
            }
        }
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{figure, table};

    #[test]
    fn lines_become_a_table_of_differences() {
        let lines =
            ["bare open 5752.2", "bare connect 900", "governed-10 open 6713.4", "governed-10 connect 1000"];
        let figures: Vec<_> = lines.iter().filter_map(|line| figure(line)).collect();
        let expected =
            "| | open | connect |\n|---|---:|---:|\n| bare | 5752 | 900 |\n| governed-10 | +961 | +100 |\n";
        assert_eq!(table(&figures).unwrap(), expected);
        assert!(table(&figures[..3]).is_err(), "a missing figure is an error");
        assert_eq!(figure("loading the profile ..."), None);
    }
}
