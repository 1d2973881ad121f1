//! Whose turn it is with the one writer of sessions.
//!
//! The lock behind it is had in the order in which it was asked for. That order is one of links, and a user has many: so
//! users queue here, each with one thread, and whoever comes waits for users, not for links.

use parking_lot::{FairMutex, FairMutexGuard};
use ringfence_base::{
    precedence::First,
    quota::{Lane, Lanes, Owners},
};
use ringfence_store::SessionWriter;
use std::{
    ops::{Deref, DerefMut},
    time::{Duration, Instant},
};

/// A turn, or the wait for one, that is longer than this is logged: whoever waits for an answer has noticed it.
const LONG: Duration = Duration::from_secs(5);

/// The one writer of sessions.
#[derive(Debug)]
pub struct SharedWriter {
    writer: FairMutex<SessionWriter>,
    lanes: Lanes,
}

impl SharedWriter {
    pub(super) fn new(writer: SessionWriter, owners: Owners) -> Self {
        Self { writer: FairMutex::new(writer), lanes: Lanes::new(owners) }
    }

    /// The writer, for something of this user's: after what that user's others had asked for before. `None`: whoever asks has no
    /// place here any more, as `still` says.
    pub fn lock(&self, uid: u32, still: impl Fn() -> bool) -> Option<Turn<'_>> {
        Some(self.lock_in(self.wait(uid, still)?))
    }

    /// Waits for this user's lane, as [`Self::lock`] does before it waits for the writer.
    pub fn wait(&self, uid: u32, still: impl Fn() -> bool) -> Option<Lane> {
        self.lanes.wait(uid, still)
    }

    /// A place in the queue for this user's lane: for a task, which holds no thread while it waits for its user's others.
    pub fn queue(&self, uid: u32) -> Lane {
        self.lanes.queue(uid)
    }

    /// The writer, for whoever has its user's lane: no user has more than one thread that waits here.
    pub(crate) fn lock_in(&self, lane: Lane) -> Turn<'_> {
        debug_assert!(lane.is_first(), "a place in the queue is not the lane");
        self.turn(Some(lane))
    }

    /// The writer, for what is nobody's.
    pub(super) fn ours(&self) -> Turn<'_> {
        self.turn(None)
    }

    fn turn(&self, lane: Option<Lane>) -> Turn<'_> {
        let (first, asked) = (First::begin(), Instant::now());
        let writer = self.writer.lock();
        let waited = asked.elapsed();
        if waited > LONG {
            tracing::warn!("the writer of sessions was waited for {:.1} s", waited.as_secs_f32());
        }
        Turn { begun: Instant::now(), writer, _first: first, _lane: lane }
    }
}

/// A turn: a user's, or ours.
#[derive(Debug)]
pub struct Turn<'a> {
    begun: Instant,
    // Given back before the lane: the user's next goes to the end of the queue of all.
    writer: FairMutexGuard<'a, SessionWriter>,
    _first: First,
    _lane: Option<Lane>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let took = self.begun.elapsed();
        if took > LONG {
            tracing::warn!("somebody had the writer of sessions for {:.1} s", took.as_secs_f32());
        }
    }
}

impl Deref for Turn<'_> {
    type Target = SessionWriter;

    fn deref(&self) -> &SessionWriter {
        &self.writer
    }
}

impl DerefMut for Turn<'_> {
    fn deref_mut(&mut self) -> &mut SessionWriter {
        &mut self.writer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
        thread,
        time::Duration,
    };

    #[test]
    fn whoever_writes_waits_for_users_and_not_for_their_links() {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let owners = Owners::parse("5:100:10\n", |name| name.parse().ok());
        let writer = Arc::new(SharedWriter::new(writer, owners));
        let (over, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let many: Vec<_> = (0..12)
            .map(|link| {
                let (writer, over, turns) = (Arc::clone(&writer), Arc::clone(&over), Arc::clone(&turns));
                thread::spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let _turn = writer.lock([5, 100][link % 2], || true).expect("it is wanted");
                        turns.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(10));
                    }
                })
            })
            .collect();
        while turns.load(Ordering::SeqCst) < 3 {
            thread::yield_now();
        }
        let mut waited_for: Vec<usize> = (0..15)
            .map(|_| {
                let before = turns.load(Ordering::SeqCst);
                let _turn = writer.lock(6, || true).expect("it is wanted");
                turns.load(Ordering::SeqCst) - before
            })
            .collect();
        over.store(true, Ordering::SeqCst);
        waited_for.sort_unstable();
        // The one that has it, and on a busy machine those that had it between the number's reading and the queue: that is chance
        // each time, where in the order of links it would be eleven every time.
        assert!(waited_for[3] <= 2, "{waited_for:?} of twelve");
        many.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
