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

/// By user and outermost container: when all that were asked would have come at the average. None: not lately.
#[derive(Debug, Default)]
pub(super) struct Paces(Mutex<HashMap<(u32, String), Instant>>);

impl Paces {
    /// Whether a person may be asked once more, which counts.
    pub(super) fn take(&self, uid: u32, outermost: &str, now: Instant) -> bool {
        let mut paces = self.lock();
        paces.retain(|_, paced| *paced > now);
        let place = (uid, outermost.to_owned());
        let paced = paces.get(&place).copied().unwrap_or(now) + EACH;
        let may = paced <= now + BURST;
        if may {
            paces.insert(place, paced);
        }
        may
    }

    /// Nobody was asked after all.
    pub(super) fn give_back(&self, uid: u32, outermost: &str) {
        if let Some(paced) = self.lock().get_mut(&(uid, outermost.to_owned())) {
            *paced = paced.checked_sub(EACH).unwrap_or(*paced);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, String), Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_asked_at_once_and_then_one_in_two_seconds_however_many_containers_there_are_within() {
        let (paces, now) = (Paces::default(), Instant::now());
        let taken = |outermost: &str, now| (0..100).filter(|_| paces.take(7, outermost, now)).count();
        assert_eq!(taken("0123456789ab", now), 32);
        assert_eq!(taken("0123456789ab", now + Duration::from_secs(10)), 5);
        assert_eq!(taken("00000000000b", now), 32, "another");
        paces.give_back(7, "00000000000b");
        assert_eq!(taken("00000000000b", now), 1);
        taken("00000000000c", now + Duration::from_secs(1000));
        assert_eq!(paces.lock().len(), 1, "who asked long ago is forgotten");
    }
}
