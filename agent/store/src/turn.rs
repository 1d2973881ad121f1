//! Whose turn it is to write the database.
//!
//! The writers of kernel events and of sessions have a connection each. SQLite lets one write at a time, and has
//! the other try again after a pause, in which the first may have begun anew: whoever has much to write would keep the other
//! out until it gives up. So they wait here, in the order in which they came. Other processes only read.

use parking_lot::{FairMutex, FairMutexGuard};
use ringfence_base::precedence::First;

/// A process writes one database, or a few in tests, which do not mind.
static WRITING: FairMutex<()> = FairMutex::new(());

/// A turn. Everybody else waits for its thread, which goes first for as long.
#[derive(Debug)]
pub(crate) struct Turn {
    // Given up before the thread steps back.
    _writing: FairMutexGuard<'static, ()>,
    _first: First,
}

/// Waits for the turn, which ends with what is given. One is taken at a time: a second of the same thread never comes.
pub(crate) fn wait() -> Turn {
    let first = First::begin();
    Turn { _writing: WRITING.lock(), _first: first }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        thread,
    };

    #[test]
    fn who_writes_all_the_time_lets_others_write() {
        let (over, turns) = (AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|scope| {
            scope.spawn(|| {
                // No pause between two writes.
                while !over.load(Ordering::Relaxed) {
                    let _turn = wait();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
            while turns.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            for _ in 0..100 {
                let _turn = wait();
            }
            over.store(true, Ordering::Relaxed);
        });
    }
}
