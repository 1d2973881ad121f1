//! On which processor the bench and what it starts run.

use anyhow::{Context, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// This thread, and whatever it starts meanwhile, on one processor until this is dropped. What it started stays there.
#[derive(Debug)]
pub(super) struct OneProcessor {
    before: CpuSet,
}

impl OneProcessor {
    /// The last of those that this thread may run on: the first one has most of a machine's interrupts.
    pub(super) fn take() -> Result<Self> {
        let before = sched_getaffinity(None).context("cannot see on which processors this may run")?;
        let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| before.is_set(*cpu)).context("none")?;
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one).context("cannot stay on one processor")?;
        Ok(Self { before })
    }
}

impl Drop for OneProcessor {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::OneProcessor;
    use rustix::thread::sched_getaffinity;

    #[test]
    fn one_processor_until_the_end() {
        let count = || sched_getaffinity(None).expect("affinity").count();
        let before = count();
        let one = OneProcessor::take().expect("allowed");
        assert_eq!(count(), 1);
        drop(one);
        assert_eq!(count(), before);
    }
}
