//! How many bytes of requests are held at a time: of one agent, and of all agents that one process serves.
//!
//! Each request has a bound of its own, and there are many connections; under the daemon a worker has 1 GiB of memory, and
//! `ringfence start` serves all agents in one process. While a request is looked at there are up to three copies of it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// Most bytes of all agents' requests.
const ALL: usize = 192 << 20;
/// Most bytes of one agent's: it leaves room for a few of the others'.
const ONE: usize = 128 << 20;

/// Why a request has no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The agent's own.
    #[error(
        "the requests that this agent has sent and that are not passed on yet have {ONE} bytes together, which is the most; try again"
    )]
    One,
    /// Everybody's.
    #[error(
        "the requests that all agents have sent and that are not passed on yet have {ALL} bytes together, which is the most; try again"
    )]
    All,
}

#[derive(Debug)]
struct Pot {
    held: AtomicUsize,
    most: usize,
}

impl Pot {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { held: AtomicUsize::new(0), most })
    }

    fn take(&self, bytes: usize) -> bool {
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a process has.
#[derive(Debug)]
pub(crate) struct Room(Arc<Pot>);

impl Default for Room {
    fn default() -> Self {
        Self(Pot::new(ALL))
    }
}

impl Room {
    /// An agent's part. Its copies are the same part.
    pub(crate) fn share(&self) -> Share {
        Share { all: Arc::clone(&self.0), one: Pot::new(ONE) }
    }
}

/// What an agent has.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    all: Arc<Pot>,
    one: Arc<Pot>,
}

impl Share {
    /// For a request of which nothing is there yet.
    pub(super) fn hold(&self) -> Held {
        Held { share: self.clone(), bytes: 0 }
    }
}

/// What a request has taken; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    share: Share,
    bytes: usize,
}

impl Held {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Full`]: what was taken before is still held.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        if !self.share.one.take(bytes) {
            return Err(Full::One);
        }
        if !self.share.all.take(bytes) {
            self.share.one.give(bytes);
            return Err(Full::All);
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Keeps so many bytes at most.
    pub(super) fn shrink(&mut self, to: usize) {
        let less = self.bytes.saturating_sub(to);
        self.share.one.give(less);
        self.share.all.give(less);
        self.bytes -= less;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_agent_leaves_room_and_all_have_a_bound() {
        let room = Room::default();
        let (greedy, other) = (room.share(), room.share());
        let mut held = greedy.hold();
        held.grow(ONE).unwrap();
        assert_eq!(greedy.clone().hold().grow(1), Err(Full::One));
        let mut rest = other.hold();
        rest.grow(ALL - ONE).unwrap();
        assert_eq!(rest.grow(1), Err(Full::All));
        assert_eq!(rest.grow(usize::MAX), Err(Full::One));
        held.shrink(ONE - 2);
        // A refusal took nothing.
        rest.grow(2).unwrap();
        assert_eq!(rest.grow(1), Err(Full::All));
        held.shrink(ONE);
        drop((held, rest));
        for pot in [&room.0, &greedy.one, &other.one] {
            assert_eq!(pot.held.load(Ordering::Relaxed), 0);
        }
    }
}
