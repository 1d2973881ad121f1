//! What it takes to tie a process to a tool call, in a guest: executed instructions from the runtime's request to its
//! answer, through the worker and the core.

use super::Bench;
use crate::bench::figures;
use crate::paths::workspace;
use crate::report::say;
use crate::setup::Series;
use crate::vm::{self, Added, Job, Ringfence};
use anyhow::{Result, bail};
use std::time::Duration;

/// Where the guest finds the script and, beside it, the binary that is measured.
const GUEST_DIR: &str = "/opt/vm-tests/bench";

pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    say("tags: in a guest whose nanoseconds are executed instructions");
    let mut job = Job::new(Series::V6_12, &["python3", &format!("{GUEST_DIR}/llm_tag.py")]);
    job.icount = true;
    job.ringfence = Ringfence::Installed;
    job.added.push(Added { host: workspace().join("vm-tests/bench"), guest: GUEST_DIR.into() });
    let binary = format!("{GUEST_DIR}/ringfence").into();
    job.added.push(Added { host: bench.ringfence.to_owned(), guest: binary });
    let mut figures = Vec::new();
    let status = vm::lines(&job, Duration::from_secs(900), |line| figures.extend(figure(line)))?;
    if status != 0 || figures.is_empty() {
        bail!("the guest's script ended with status {status}; what it said is above");
    }
    // A thousand million instructions a second is slow for a processor of today.
    let row = "tag, request to answer, ms at one instruction a nanosecond";
    bench.table.add(row, "worker", figures::median(figures.iter().copied()) / 1e6);
    bench.table.aim(row, "worker", "at most 0.3");
    Ok(())
}

fn figure(line: &str) -> Option<f64> {
    line.strip_prefix("tag ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::figure;

    #[test]
    fn only_figures_are_figures() {
        assert_eq!(figure("tag 214000"), Some(214_000.0));
        assert_eq!(figure("tag"), None);
        assert_eq!(figure("the daemon is ready"), None);
    }
}
