//! Refusals in the log: the first of them in full, and how many more there were.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most lines in a while.
const MOST: u32 = 20;
const WHILE: Duration = Duration::from_secs(10);

/// Counts what is refused at one door.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    since: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Refusals {
    /// Writes a warning, unless there were too many: then it is counted, and the next line says how many were.
    pub(crate) fn warn(&self, what: impl FnOnce() -> String) {
        match self.admit(Instant::now()) {
            None => {}
            Some(0) => tracing::warn!("{}", what()),
            Some(left_out) => tracing::warn!("{} ({left_out} more refusals before this)", what()),
        }
    }

    /// Whether one may be written, and how many were left out since the last.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counted.since.is_none_or(|since| now.saturating_duration_since(since) >= WHILE) {
            (counted.since, counted.written) = (Some(now), 0);
        }
        if counted.written >= MOST {
            counted.left_out += 1;
            return None;
        }
        counted.written += 1;
        Some(std::mem::take(&mut counted.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let written = (0..1000).filter(|_| refusals.admit(now).is_some()).count();
        assert_eq!(written, MOST as usize);
        assert_eq!(refusals.admit(now + WHILE), Some(980));
        assert_eq!(refusals.admit(now + WHILE), Some(0));
    }
}
