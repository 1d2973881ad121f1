//! Workers of `ringfence start` that ended by themselves, and which of them are not started again.

use crate::worker_process::{MOST_CRASHES, WELL};
use std::{collections::BTreeMap, time::Duration};

// An agent that panics must leave the others alone, whose tasks run in the same process.
const _: () = assert!(cfg!(panic = "unwind"), "`ringfence start` needs panics that unwind");

/// How often in a row each agent's worker ended by itself; the limits are those of the daemon's workers.
#[derive(Debug, Default)]
pub(super) struct Crashes {
    in_a_row: BTreeMap<String, u32>,
}

impl Crashes {
    /// Notes that a worker ended after a life of `lived`. True: that was once too often, and it is given up.
    pub(super) fn note(&mut self, name: &str, lived: Duration) -> bool {
        let count = self.in_a_row.entry(name.to_owned()).or_default();
        *count = if lived >= WELL { 1 } else { *count + 1 };
        *count >= MOST_CRASHES
    }

    /// Whether it was given up.
    pub(super) fn gave_up(&self, name: &str) -> bool {
        self.in_a_row.get(name).is_some_and(|count| *count >= MOST_CRASHES)
    }

    /// All are tried again.
    pub(super) fn forgive(&mut self) {
        self.in_a_row.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_does_not_live_is_given_up_until_it_is_forgiven_and_the_others_are_not() {
        let mut crashes = Crashes::default();
        let short = Duration::from_secs(1);
        let said: Vec<bool> = (0..MOST_CRASHES).map(|_| crashes.note("a", short)).collect();
        assert_eq!(said.iter().filter(|gave_up| **gave_up).count(), 1, "{said:?}");
        assert!(said.ends_with(&[true]) && crashes.gave_up("a"));
        assert!(!crashes.note("b", short) && !crashes.gave_up("b"));
        crashes.forgive();
        assert!(!crashes.gave_up("a") && !crashes.note("a", short));
    }

    #[test]
    fn a_crash_now_and_then_is_no_row() {
        let mut crashes = Crashes::default();
        assert!((0..100).all(|_| !crashes.note("a", WELL)));
    }
}
