//! How long a client may be kept waiting for what its calls were denied. Pure.
//!
//! The auditor answers once it has what the kernel recorded before. Where a container is denied something all the time that can be
//! never: then little is waited, and seldom, until an answer comes in time once more.

use std::time::{Duration, Instant};

/// How long all that is asked for a request may take. It takes half a second on an emulated processor, and a loaded host has its
/// turns.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same once that was not enough.
const LESS: Duration = Duration::from_secs(1);
/// How long nothing is asked after the first time that it was not, and at most: each time in a row it is twice as long.
const FIRST: Duration = Duration::from_secs(5);
const LONGEST: Duration = Duration::from_secs(300);

/// Whether answers came in time lately.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Nothing is asked until then.
    until: Option<Instant>,
    /// How often in a row none came.
    failures: u32,
}

impl Rest {
    /// How long a request may wait that comes now. `None`: nothing is asked.
    pub(super) fn patience(&self, now: Instant) -> Option<Duration> {
        let is_over = self.until.is_none_or(|until| until <= now);
        is_over.then_some(if self.failures == 0 { PATIENCE } else { LESS })
    }

    /// No answer came in time. Of several who waited at once it counts once.
    pub(super) fn failed(&mut self, now: Instant) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        let rest = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        (self.until, self.failures) = (Some(now + rest), self.failures.saturating_add(1));
    }

    /// One did.
    pub(super) fn answered(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_no_answer_little_is_waited_and_ever_more_seldom() {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        assert_eq!(rest.patience(now), Some(PATIENCE));
        let mut rests = Vec::new();
        for _ in 0..100 {
            rest.failed(now);
            rest.failed(now);
            assert_eq!(rest.patience(now), None);
            let until = rest.until.unwrap();
            assert_eq!(rest.patience(until - Duration::from_millis(1)), None);
            assert_eq!(rest.patience(until), Some(LESS));
            rests.push((until - now).as_secs());
            now = until;
        }
        assert!(
            rests.starts_with(&[5, 10, 20, 40, 80, 160, 300, 300]) && rests.iter().all(|rest| *rest <= 300)
        );
        rest.answered();
        assert_eq!(rest.patience(now), Some(PATIENCE));
        rest.failed(now);
        assert_eq!(rest.until, Some(now + FIRST), "from the beginning");
    }
}
