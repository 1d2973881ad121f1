//! One question at a time for each user, so that forty questions of one are not before the first of another.

use super::Owners;
use std::{
    collections::HashSet,
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::Instant,
};

/// A lane for each user; its clones are the same lanes.
#[derive(Debug, Clone)]
pub(crate) struct Lanes {
    taken: Arc<(Mutex<HashSet<u32>>, Condvar)>,
    owners: Owners,
}

impl Lanes {
    /// All free.
    pub(crate) fn new(owners: Owners) -> Self {
        Self { taken: Arc::default(), owners }
    }

    /// Waits for the lane of a user, which subordinate ids share. `None`: it was taken until `deadline`.
    pub(crate) fn enter(&self, uid: u32, deadline: Instant) -> Option<Lane> {
        let owner = self.owners.of(uid);
        let (taken, freed) = &*self.taken;
        let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        while !taken.insert(owner) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            taken = freed.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Some(Lane { lanes: self.clone(), owner })
    }
}

/// A user's lane; free again when dropped.
#[derive(Debug)]
pub(crate) struct Lane {
    lanes: Lanes,
    owner: u32,
}

impl Drop for Lane {
    fn drop(&mut self) {
        let (taken, freed) = &*self.lanes.taken;
        taken.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.owner);
        freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Duration};

    #[test]
    fn a_user_s_second_question_waits_and_another_s_does_not() {
        let lanes = Lanes::new(Owners::parse("5:100:10\n", |name| name.parse().ok()));
        let now = Instant::now();
        let first = lanes.enter(5, now).unwrap();
        assert!(lanes.enter(5, now).is_none() && lanes.enter(101, now).is_none(), "one lane for both ids");
        assert!(lanes.enter(6, now).is_some() && lanes.enter(0, now).is_some());
        let waits = thread::spawn({
            let lanes = lanes.clone();
            move || lanes.enter(5, Instant::now() + Duration::from_secs(60)).is_some()
        });
        drop(first);
        assert!(waits.join().unwrap());
    }
}
