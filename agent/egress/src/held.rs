//! Bytes of a client that are judged before they go on.
//!
//! They are taken out of its socket first. What waits there may still be changed by whoever sent it: sendfile(2) and splice(2) hand
//! over pages of a file, and no copy of them. So the bytes that are judged are the bytes that are sent, and none is read twice.
//!
//! That is memory, which clients fill: it is counted ([`crate::share`]), and so is what a check keeps beside it, which grows by the
//! same bytes. Connections that rest have none.

use crate::share::{Portion, Share};

/// Bytes of a client that are held: more than any head that is let through, also a ClientHello in records of one byte.
pub(crate) const MOST: usize = 128 << 10;
/// Bytes that are taken at once. With as many beside them they are what a connection has of its own; and no more than these are left
/// where a head ends within them.
const AT_ONCE: usize = 3584;
/// So few are no worth a call, where more are there.
const FEW: usize = 64;
/// Bytes by which what is held grows.
const STEP: usize = 512;

/// See the module.
pub(crate) struct Held<'a> {
    portion: Portion<'a>,
    bytes: Vec<u8>,
    /// Of them, so many went on.
    gone: usize,
}

impl<'a> Held<'a> {
    /// Nothing.
    pub(crate) fn new(share: &'a Share<'a>) -> Self {
        Self { portion: Portion::new(share), bytes: Vec::new(), gone: 0 }
    }

    /// The same, of the memory of another share, once that has as much.
    pub(crate) async fn of<'b>(mut self, share: &'b Share<'b>) -> Held<'b> {
        self.settle(0);
        let portion = Portion::new(share);
        portion.grow(self.bytes.capacity()).await;
        Held { portion, bytes: self.bytes, gone: self.gone }
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

    /// Waits until more may be [added](Self::add), where so many are there: how many, at least one. `beside`: the bytes of memory that
    /// the check has once it is fed so many more.
    pub(crate) async fn make_room(&mut self, there: usize, beside: impl Fn(usize) -> usize) -> usize {
        let wanted = there.min(self.room()).clamp(1, AT_ONCE);
        let takes = |more| self.capacity_with(more).saturating_add(beside(more));
        // Rather a few than none until others give back what they borrowed.
        let fits = |more: &usize| self.portion.has(takes(*more));
        let few = std::iter::successors(Some(wanted), |more| Some(more / 2).filter(|more| *more >= FEW));
        let more = few.into_iter().find(fits).unwrap_or(wanted);
        self.portion.grow(takes(more)).await;
        more
    }

    /// Bytes of memory, once so many more are added.
    fn capacity_with(&self, more: usize) -> usize {
        self.len().saturating_add(more).next_multiple_of(STEP).max(self.bytes.capacity())
    }

    /// Holds more, for which there is [room](Self::make_room).
    pub(crate) fn add(&mut self, more: &[u8]) {
        self.bytes.drain(..self.gone.min(self.bytes.len()));
        self.gone = 0;
        let capacity = self.capacity_with(more.len());
        self.bytes.reserve_exact(capacity.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(more);
    }

    /// So many went on.
    pub(crate) fn forward(&mut self, count: usize) {
        self.gone = (self.gone + count).min(self.bytes.len());
    }

    /// So many are taken out, and others come in their place. Where those are more, there is [room](Self::make_room) for them: what was
    /// counted as `beside`.
    pub(crate) fn replace(&mut self, count: usize, with: &[u8]) {
        let end = (self.gone + count).min(self.bytes.len());
        self.gone = 0;
        self.bytes.reserve_exact(with.len().saturating_sub(end));
        self.bytes.splice(..end, with.iter().copied());
    }

    /// Gives back what is needed no more. `beside`: the bytes of memory that the check has.
    pub(crate) fn settle(&mut self, beside: usize) {
        let needed = self.len().next_multiple_of(STEP);
        if needed < self.bytes.capacity() {
            self.bytes.drain(..self.gone.min(self.bytes.len()));
            self.gone = 0;
            self.bytes.shrink_to(needed);
        }
        self.portion.shrink(self.bytes.capacity().saturating_add(beside));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::OWN;
    use tokio::sync::Semaphore;

    async fn take(held: &mut Held<'_>, bytes: &[u8]) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let count = held.make_room(rest.len(), |_| 0).await;
            held.add(&rest[..count]);
            rest = &rest[count..];
        }
    }

    #[tokio::test]
    async fn what_goes_on_is_what_came_and_no_more_is_kept_than_is_counted() {
        let pool = Semaphore::new(128);
        let share = Share::new(&pool);
        let mut held = Held::new(&share);
        take(&mut held, b"GET / ").await;
        take(&mut held, b"HTTP").await;
        held.forward(4);
        assert_eq!(held.bytes(), b"/ HTTP");
        held.settle(0);
        take(&mut held, b"/1.1").await;
        assert_eq!(held.bytes(), b"/ HTTP/1.1");
        while held.room() > 0 {
            let more = vec![b'x'; held.room().min(5000)];
            take(&mut held, &more).await;
        }
        assert_eq!((held.len(), held.bytes.capacity()), (MOST, MOST));
        assert_eq!(128 - pool.available_permits(), (MOST - OWN) >> 10);
        held.forward(MOST - 10_000);
        held.settle(0);
        assert_eq!((held.len(), held.bytes.capacity()), (10_000, 10_240));
        assert_eq!(128 - pool.available_permits(), 3);
        held.forward(10_000);
        held.settle(0);
        assert_eq!((held.bytes.capacity(), pool.available_permits()), (0, 128));
    }

    #[tokio::test]
    async fn what_was_said_to_a_proxy_is_taken_out_or_replaced_and_the_rest_is_the_connection_s() {
        let (asking, pool) = (Semaphore::new(64), Semaphore::new(64));
        let (asks, share) = (Share::new(&asking), Share::new(&pool));
        let mut held = Held::new(&asks);
        take(&mut held, b"CONNECT early").await;
        held.forward(3);
        held.replace(5, b"* ");
        assert_eq!(held.bytes(), b"* early");
        take(&mut held, &vec![b'x'; 20_000]).await;
        held.forward(7);
        let most = held.bytes.capacity();
        assert_eq!(held.make_room(1, |_| 600).await, 1);
        let longer = vec![b'y'; most + 500 - 20_000];
        held.replace(0, &longer);
        assert!((most + 500..=most + 600).contains(&held.bytes.capacity()), "{}", held.bytes.capacity());
        assert!(held.bytes.capacity() <= OWN + ((64 - asking.available_permits()) << 10), "that is counted");
        held.replace(longer.len(), b"");
        let held = held.of(&share).await;
        assert_eq!((asking.available_permits(), held.len()), (64, 20_000));
        assert_eq!(64 - pool.available_permits(), (20_480 - OWN).div_ceil(1 << 10));
        // There may be none.
        let none = Semaphore::new(0);
        let other = Share::new(&none);
        assert!(tokio::time::timeout(std::time::Duration::ZERO, held.of(&other)).await.is_err());
        assert_eq!(pool.available_permits(), 64);
    }

    #[tokio::test]
    async fn a_few_are_taken_before_any_are_borrowed() {
        let pool = Semaphore::new(0);
        let share = Share::new(&pool);
        let mut held = Held::new(&share);
        // As many beside them.
        let mut beside = 0;
        loop {
            let next = |more: usize| (beside + more).next_multiple_of(512);
            let room = held.make_room(100_000, next);
            let Ok(count) = tokio::time::timeout(std::time::Duration::ZERO, room).await else { break };
            assert!((1..=AT_ONCE).contains(&count));
            held.add(&vec![7; count]);
            beside += count;
        }
        assert_eq!((held.len(), held.bytes.capacity()), (OWN / 2, OWN / 2));
    }
}
