//! When something is tried again that failed for a reason of the host's: after a pause that grows.

use std::time::{Duration, Instant};

/// How long is waited. What fails may be for want of what comes back by itself (memory, descriptors, ports, a task that lives), so
/// nothing is given up for good.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pauses {
    /// The first pause.
    pub(crate) first: Duration,
    /// No pause is longer.
    pub(crate) longest: Duration,
    /// The pause after a worker has ended so often in a row that there is something wrong with it.
    pub(crate) given_up: Duration,
}

/// Those of a daemon.
pub(crate) const PAUSES: Pauses = Pauses {
    first: Duration::from_secs(5),
    longest: Duration::from_secs(300),
    given_up: Duration::from_secs(300),
};

/// When it is tried again.
#[derive(Debug)]
pub struct Retry {
    pub(super) at: Instant,
    pub(super) pause: Duration,
    longest: Duration,
}

impl Retry {
    /// It failed now, for the first time.
    pub(super) fn new(pauses: Pauses, now: Instant) -> Self {
        Self { at: now + pauses.first, pause: pauses.first, longest: pauses.longest }
    }

    /// It failed once more.
    pub(super) fn failed(&mut self, now: Instant) {
        self.pause = (self.pause * 2).min(self.longest);
        self.at = now + self.pause;
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.at
    }

    /// Whole seconds until then, rounded up.
    pub(super) fn seconds(&self, now: Instant) -> u64 {
        seconds_until(self.at, now)
    }
}

/// Whole seconds from `now` until `at`, rounded up.
pub(super) fn seconds_until(at: Instant, now: Instant) -> u64 {
    at.saturating_duration_since(now).as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_from_5_s_to_5_minutes() {
        let mut now = Instant::now();
        let mut retry = Retry::new(PAUSES, now);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            assert!(!retry.is_due(now));
            pauses.push(retry.seconds(now));
            now = retry.at;
            assert!(retry.is_due(now));
            retry.failed(now);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300, 300]);
        assert_eq!(seconds_until(now, now + Duration::from_secs(1)), 0);
    }
}
