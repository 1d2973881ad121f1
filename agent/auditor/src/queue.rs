//! The queue between the link and the store writer: bounded by what its items hold, not by their number.
//!
//! The core sends a record as soon as there is one, so most batches are small, and a transaction may take as long as a
//! busy disk likes. What waits meanwhile has to fit into the next transaction: with room for so many batches alone, an
//! auditor on a busy host stores a few records for each transaction and falls behind for good.

use ringfence_store::Incoming;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, RecvTimeoutError, TryRecvError},
    },
    time::Duration,
};

/// Bytes that wait, about: of frames, and of what decoding makes of them. Twice what the core leaves unacknowledged, so that
/// in a backlog it is the core that waits, with its records in the kernel's rings. One item more is taken.
const MOST: usize = 16 << 20;
/// What an item takes beside its frame, bytes.
const ITEM: usize = 128;
/// What a decoded record takes beside its bytes.
const DECODED: usize = 512;

/// What the link hands over.
#[derive(Debug)]
pub(crate) enum Item {
    /// The core's session, and the boot.
    Hello {
        /// Random name.
        session: String,
        /// Boot id.
        boot: String,
    },
    /// Things to write, and the number of the core's batch they came in, if they did.
    Batch {
        /// The batch's number.
        sequence: Option<u64>,
        /// The things.
        incoming: Vec<Incoming>,
    },
    /// Everything asked for by this token came before.
    Flushed(u64),
}

/// Why an item was not taken.
#[derive(Debug)]
pub(crate) enum NotSent {
    /// There is no room. The item comes back.
    Full(Item),
    /// Nobody takes items any more.
    Closed,
}

/// Bytes of an item, and the account that they are on while it waits.
type Weight = (usize, Arc<AtomicUsize>);

/// The link's end, or one that is [beside](Sender::beside) it. One thread at a time sends on each.
#[derive(Debug)]
pub(crate) struct Sender {
    items: mpsc::Sender<(Item, Weight)>,
    held: Arc<AtomicUsize>,
    most: usize,
}

/// The store writer's end.
#[derive(Debug)]
pub(crate) struct Receiver {
    items: mpsc::Receiver<(Item, Weight)>,
}

/// An empty queue.
pub(crate) fn queue() -> (Sender, Receiver) {
    let (sender, receiver) = mpsc::channel();
    (Sender { items: sender, held: Arc::default(), most: MOST }, Receiver { items: receiver })
}

impl Sender {
    /// Another end, with room for so many bytes of its own: what waits of it takes none from this one.
    pub(crate) fn beside(&self, most: usize) -> Self {
        Self { items: self.items.clone(), held: Arc::default(), most }
    }

    /// Hands over an item that was made of a frame of so many bytes.
    ///
    /// # Errors
    /// [`NotSent`].
    pub(crate) fn send(&self, item: Item, frame: usize) -> Result<(), NotSent> {
        // Only this end adds, so there is no more after this look than is seen in it.
        if self.held.load(Ordering::Acquire) >= self.most {
            return Err(NotSent::Full(item));
        }
        let decoded = match &item {
            Item::Batch { incoming, .. } => incoming.len(),
            Item::Hello { .. } | Item::Flushed(_) => 0,
        };
        let weight = frame.saturating_add(ITEM + decoded * DECODED);
        self.held.fetch_add(weight, Ordering::AcqRel);
        self.items.send((item, (weight, Arc::clone(&self.held)))).map_err(|_| NotSent::Closed)
    }
}

impl Receiver {
    /// The next item, if one comes within `most`.
    ///
    /// # Errors
    /// As [`mpsc::Receiver::recv_timeout`].
    pub(crate) fn recv_timeout(&self, most: Duration) -> Result<Item, RecvTimeoutError> {
        self.items.recv_timeout(most).map(|taken| self.taken(taken))
    }

    /// The next item, if there is one.
    ///
    /// # Errors
    /// As [`mpsc::Receiver::try_recv`].
    pub(crate) fn try_recv(&self) -> Result<Item, TryRecvError> {
        self.items.try_recv().map(|taken| self.taken(taken))
    }

    fn taken(&self, (item, (weight, held)): (Item, Weight)) -> Item {
        held.fetch_sub(weight, Ordering::AcqRel);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_batches_wait_in_thousands_and_large_ones_do_not() {
        let (sender, receiver) = queue();
        for token in 0..20_000 {
            sender.send(Item::Flushed(token), 100).expect("there is room");
        }
        for token in 0..20_000 {
            assert!(matches!(receiver.try_recv(), Ok(Item::Flushed(same)) if same == token));
        }
        let large = (0..100).take_while(|&token| sender.send(Item::Flushed(token), 1 << 20).is_ok()).count();
        assert!((15..=17).contains(&large), "{large}");
        assert!(matches!(sender.send(Item::Flushed(7), 1), Err(NotSent::Full(Item::Flushed(7)))));
        receiver.try_recv().expect("an item");
        sender.send(Item::Flushed(8), 1).expect("there is room again");
        let beside = sender.beside(1000);
        beside.send(Item::Flushed(1), 1000).expect("room of its own");
        assert!(matches!(beside.send(Item::Flushed(2), 1), Err(NotSent::Full(_))));
        while receiver.try_recv().is_ok() {}
        beside.send(Item::Flushed(2), 1000).expect("there is room again");
        sender.send(Item::Flushed(8), 1).expect("and none was taken from here");
        drop(receiver);
        assert!(matches!(sender.send(Item::Flushed(9), 1), Err(NotSent::Closed | NotSent::Full(_))));
    }
}
