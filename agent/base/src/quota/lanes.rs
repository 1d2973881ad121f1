//! One at a time for each user, so that forty questions of one are not before the first of another.

use super::Owners;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How soon whoever waits sees that it need not wait any longer.
const SLICE: Duration = Duration::from_millis(250);

/// A lane for each user; its clones are the same lanes.
#[derive(Debug, Clone)]
pub struct Lanes {
    queues: Arc<Mutex<HashMap<u32, Arc<Queue>>>>,
    owners: Owners,
}

/// Who is in a lane, first, and who waits for it, in the order in which they came. Each user's has its own lock: those who wait
/// wake up again and again, and hundreds of them would keep another user from a lock of all.
#[derive(Debug, Default)]
struct Queue(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    lanes: VecDeque<Arc<Condvar>>,
    /// The last one left it: whoever comes begins another.
    is_over: bool,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lanes {
    /// All free.
    pub fn new(owners: Owners) -> Self {
        Self { queues: Arc::default(), owners }
    }

    /// Waits for the lane of a user, which subordinate ids share, for as long as `still` says that whoever asks has a place
    /// here: who has none would wait as one of any number. `None`: it has none any more, or the lane was not free before
    /// `deadline`.
    pub fn enter(&self, uid: u32, deadline: Instant, still: impl Fn() -> bool) -> Option<Lane> {
        self.enter_before(uid, Some(deadline), still)
    }

    /// The same, however long it takes. `None`: whoever asks has no place here any more.
    pub fn wait(&self, uid: u32, still: impl Fn() -> bool) -> Option<Lane> {
        self.enter_before(uid, None, still)
    }

    /// A place in the queue for the lane of a user, for whoever does not have a thread to wait with: it is the lane as soon as
    /// [`Lane::is_first`] says so. Dropped before, it is taken out of the queue.
    pub fn queue(&self, uid: u32) -> Lane {
        let owner = self.owners.of(uid);
        let first = Arc::new(Condvar::new());
        loop {
            let queue = Arc::clone(self.lock().entry(owner).or_default());
            // Without the lock of all, which others would wait for.
            let mut waiting = queue.lock();
            if !waiting.is_over {
                waiting.lanes.push_back(Arc::clone(&first));
                drop(waiting);
                return Lane { lanes: self.clone(), owner, queue, first };
            }
            drop(waiting);
            self.remove(owner, &queue);
        }
    }

    /// Takes out a queue that is over, unless another one is in its place.
    fn remove(&self, owner: u32, queue: &Arc<Queue>) {
        let mut queues = self.lock();
        if queues.get(&owner).is_some_and(|other| Arc::ptr_eq(other, queue)) {
            queues.remove(&owner);
        }
    }

    fn enter_before(&self, uid: u32, deadline: Option<Instant>, still: impl Fn() -> bool) -> Option<Lane> {
        let lane = self.queue(uid);
        let mut waiting = lane.queue.lock();
        while !lane.is_front(&waiting) {
            let left = deadline.map_or(SLICE, |deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_zero() || !still() {
                // Before the lane goes out of the queue, which it locks for that.
                drop(waiting);
                drop(lane);
                return None;
            }
            let waited = lane.first.wait_timeout(waiting, left.min(SLICE));
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(waiting);
        Some(lane)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A user's lane, or a place in the queue for it; free again when dropped.
#[derive(Debug)]
pub struct Lane {
    lanes: Lanes,
    owner: u32,
    queue: Arc<Queue>,
    first: Arc<Condvar>,
}

impl Lane {
    /// Whether it is the lane by now, and not a place in the queue.
    pub fn is_first(&self) -> bool {
        self.is_front(&self.queue.lock())
    }

    fn is_front(&self, waiting: &Waiting) -> bool {
        waiting.lanes.front().is_some_and(|front| Arc::ptr_eq(front, &self.first))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.lanes.retain(|waits| !Arc::ptr_eq(waits, &self.first));
        if let Some(next) = waiting.lanes.front() {
            next.notify_one();
            return;
        }
        waiting.is_over = true;
        drop(waiting);
        self.lanes.remove(self.owner, &self.queue);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_user_s_second_question_waits_and_another_s_does_not() {
        let lanes = Lanes::new(Owners::parse("5:100:10\n", |name| name.parse().ok()));
        let now = Instant::now();
        let enter = |uid| lanes.enter(uid, now, || true);
        let first = enter(5).unwrap();
        assert!(enter(5).is_none() && enter(101).is_none(), "one lane for both ids");
        assert!(enter(6).is_some() && enter(0).is_some());
        let waits = thread::spawn({
            let lanes = lanes.clone();
            move || lanes.enter(5, Instant::now() + LONG, || true).is_some()
        });
        drop(first);
        assert!(waits.join().unwrap());
        assert!(lanes.lock().is_empty(), "nothing is left of who is gone");
    }

    #[test]
    fn who_has_no_place_any_more_waits_no_longer_and_holds_nobody_up() {
        let lanes = Lanes::new(Owners::default());
        let first = lanes.wait(5, || true).unwrap();
        let has_place = Arc::new(AtomicBool::new(true));
        let wait = |still: Arc<AtomicBool>| {
            let lanes = lanes.clone();
            thread::spawn(move || lanes.wait(5, || still.load(Ordering::SeqCst)).is_some())
        };
        let queued = |many| {
            while lanes.lock()[&5].lock().lanes.len() != many {
                thread::yield_now();
            }
        };
        let second = wait(Arc::clone(&has_place));
        queued(2);
        let third = wait(Arc::new(AtomicBool::new(true)));
        queued(3);
        has_place.store(false, Ordering::SeqCst);
        assert!(!second.join().unwrap(), "it gives up, though nobody left the lane");
        queued(2);
        drop(first);
        assert!(third.join().unwrap(), "the control: who has its place gets the lane");
    }

    #[test]
    fn nobody_waits_for_the_lock_of_another_user_s_queue() {
        let lanes = Lanes::new(Owners::default());
        let first = lanes.wait(5, || true).unwrap();
        // As somebody has it who waits there, and whose thread has no processor.
        let theirs = first.queue.lock();
        let come = |uid| {
            let lanes = lanes.clone();
            thread::spawn(move || lanes.enter(uid, Instant::now(), || true).is_some())
        };
        let second = come(5);
        assert!(come(6).join().unwrap());
        assert!(!second.is_finished(), "the control: that user's own");
        drop(theirs);
        assert!(!second.join().unwrap());
        drop(first);
        assert!(lanes.lock().is_empty());
    }

    #[test]
    fn a_queue_that_is_left_while_somebody_comes_is_the_same_queue() {
        let lanes = Lanes::new(Owners::default());
        let inside = Arc::new(Mutex::new(0));
        let all: Vec<_> = (0..4)
            .map(|_| {
                let (lanes, inside) = (lanes.clone(), Arc::clone(&inside));
                thread::spawn(move || {
                    for _ in 0..2000 {
                        let _lane = lanes.wait(5, || true).unwrap();
                        *inside.try_lock().expect("one at a time") += 1;
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*inside.lock().unwrap(), 8000);
        assert!(lanes.lock().is_empty());
    }

    #[test]
    fn a_place_in_the_queue_becomes_the_lane_and_is_given_up_when_it_is_dropped() {
        let lanes = Lanes::new(Owners::default());
        let first = lanes.wait(5, || true).unwrap();
        let (second, third) = (lanes.queue(5), lanes.queue(5));
        assert!(first.is_first() && !second.is_first() && !third.is_first() && lanes.queue(6).is_first());
        drop(second);
        assert!(!third.is_first());
        drop(first);
        assert!(third.is_first() && lanes.enter(5, Instant::now(), || true).is_none());
        drop(third);
        assert!(lanes.enter(5, Instant::now(), || true).is_some() && lanes.lock().is_empty());
    }

    #[test]
    fn a_lane_is_had_in_the_order_in_which_it_was_asked_for() {
        let lanes = Lanes::new(Owners::default());
        let first = lanes.wait(5, || true).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let all: Vec<_> = (0..8)
            .map(|number| {
                let (waits, order) = (lanes.clone(), Arc::clone(&order));
                let thread = thread::spawn(move || {
                    let _lane = waits.wait(5, || true);
                    order.lock().unwrap().push(number);
                });
                while lanes.lock()[&5].lock().lanes.len() != number + 2 {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(first);
        all.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }
}
