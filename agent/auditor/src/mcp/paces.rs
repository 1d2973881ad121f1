//! How fast people are asked about connections: what is governed may start any number of containers within its own, each with an
//! egress worker, so that it is counted by the outermost of them.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a question takes on average, and so much sooner where few came before: twice what one worker of ours asks.
const EACH: Duration = Duration::from_secs(2);
const BURST: Duration = Duration::from_secs(64);

/// By outermost container, of which no two on a host have one id, whoever runs within: when all that were asked would have come at the average. None: not lately.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<HashMap<String, Instant>>);

impl Paces {
    /// Whether a person may be asked once more, which counts.
    pub(super) fn take(&self, outermost: &str, now: Instant) -> bool {
        let mut paces = self.lock();
        paces.retain(|_, paced| *paced > now);
        let paced = paces.get(outermost).copied().unwrap_or(now) + EACH;
        let may = paced <= now + BURST;
        if may {
            paces.insert(outermost.to_owned(), paced);
        }
        may
    }

    /// Nobody was asked after all.
    pub(super) fn give_back(&self, outermost: &str) {
        if let Some(paced) = self.lock().get_mut(outermost) {
            *paced = paced.checked_sub(EACH).unwrap_or(*paced);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_asked_at_once_and_then_one_in_two_seconds_however_many_containers_there_are_within() {
        let (paces, now) = (Paces::default(), Instant::now());
        let taken = |outermost: &str, now| (0..100).filter(|_| paces.take(outermost, now)).count();
        assert_eq!(taken("0123456789ab", now), 32);
        assert_eq!(taken("0123456789ab", now + Duration::from_secs(10)), 5);
        assert_eq!(taken("00000000000b", now), 32, "another");
        paces.give_back("00000000000b");
        assert_eq!(taken("00000000000b", now), 1);
        taken("00000000000c", now + Duration::from_secs(1000));
        assert_eq!(paces.lock().len(), 1, "who asked long ago is forgotten");
    }
}
