//! Bytes of a client that are judged before they go on.
//!
//! They are taken out of its socket first. What waits there may still be changed by whoever sent it: sendfile(2) and splice(2) hand
//! over pages of a file, and no copy of them. So the bytes that are judged are the bytes that are sent, and none is read twice.
//!
//! That is memory, which clients fill: there are so many places, a connection has one for as long as something of its client's is
//! judged in part, and others wait for one. Connections that rest have none.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Connections that may hold bytes at once, where there is memory for them.
const PLACES: usize = 768;
/// Bytes that one of them takes: it may also have a part of a ClientHello and of an answer's head kept.
const EACH: u64 = (MOST + (32 << 10) + (128 << 10)) as u64;
/// Bytes of a client that are held: more than any head that is let through, also a ClientHello in records of one byte.
pub(crate) const MOST: usize = 128 << 10;
/// Bytes that there is room for at first.
const FEW: usize = 2048;

/// How many of these a worker has that may have so many bytes of memory: together they take no more than half of it.
pub(crate) fn places(memory: u64) -> usize {
    usize::try_from(memory / 2 / EACH).unwrap_or(PLACES).clamp(1, PLACES)
}

/// See the module.
pub(crate) struct Held<'a> {
    places: &'a Semaphore,
    place: Option<SemaphorePermit<'a>>,
    bytes: Vec<u8>,
    /// Of them, so many went on.
    gone: usize,
}

impl<'a> Held<'a> {
    /// Nothing, and no place.
    pub(crate) fn new(places: &'a Semaphore) -> Self {
        Self { places, place: None, bytes: Vec::new(), gone: 0 }
    }

    /// What came and did not go on yet.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(self.gone..).unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// How many more may be held.
    pub(crate) fn room(&self) -> usize {
        MOST.saturating_sub(self.len())
    }

    /// Waits for a place, unless there is one already.
    pub(crate) async fn take_place(&mut self) {
        if self.place.is_none() {
            // They are never closed.
            self.place = self.places.acquire().await.ok();
        }
    }

    /// Holds more, as far as there is [room](Self::room).
    pub(crate) fn add(&mut self, more: &[u8]) {
        self.bytes.drain(..self.gone.min(self.bytes.len()));
        self.gone = 0;
        let length = self.bytes.len() + more.len();
        if length > self.bytes.capacity() {
            // No more than is counted on, as a vector would that doubles by itself.
            let room = length.next_power_of_two().clamp(FEW, MOST.max(length));
            self.bytes.reserve_exact(room.saturating_sub(self.bytes.len()));
        }
        self.bytes.extend_from_slice(more);
    }

    /// So many went on.
    pub(crate) fn forward(&mut self, count: usize) {
        self.gone = (self.gone + count).min(self.bytes.len());
    }

    /// Gives the place back, and the memory, where nothing is held.
    pub(crate) fn rest(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
            self.gone = 0;
            self.place = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_have_less_memory_holds_less() {
        assert_eq!(places(512 << 20), PLACES);
        let few = places(64 << 20) as u64;
        assert!(few > 64 && few * EACH <= 32 << 20, "{few}");
        assert_eq!(places(0), 1);
    }

    #[tokio::test]
    async fn what_goes_on_is_what_came_and_no_more_is_kept_than_is_counted_on() {
        let places = Semaphore::new(1);
        let mut held = Held::new(&places);
        held.take_place().await;
        held.add(b"GET / ");
        held.add(b"HTTP");
        held.forward(4);
        assert_eq!(held.bytes(), b"/ HTTP");
        held.add(b"/1.1");
        assert_eq!(held.bytes(), b"/ HTTP/1.1");
        held.rest();
        assert_eq!((held.len(), places.available_permits()), (10, 0), "it rests when it is empty");
        while held.room() > 0 {
            let more = vec![b'x'; held.room().min(5000)];
            held.add(&more);
        }
        assert_eq!((held.len(), held.bytes.capacity()), (MOST, MOST));
        held.forward(MOST);
        held.rest();
        assert_eq!((held.bytes.capacity(), places.available_permits()), (0, 1));
    }
}
