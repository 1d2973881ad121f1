//! Memory that a connection takes of the worker by what its client and its server say.
//!
//! A worker has so much memory, and ends where it takes more. So what is kept of a connection is counted before it is kept:
//!
//! - Each connection has a little of its own ([`OWN`]), which an ordinary ClientHello or head fits into. Nobody else can take that
//!   away, so it may be used for as long as the connection lasts: while a name is looked up, while a server does not read or answer.
//! - What needs more borrows it of what all connections of the container share, and waits where there is none. Nobody has any of
//!   that for longer than [`LONGEST`]: then the connection ends, be it for its client, its server or a name that is slow. So there
//!   is no state in which it could be kept for ever.
//!
//! What is not looked at takes no memory: it stays in the kernel until it can go on (`flow.rs`).

use crate::refusal::Refusal;
use ringfence_wire::egress::EgressCause;
use std::{cell::Cell, time::Duration};
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, timeout_at},
};

/// Bytes that each connection has of its own.
pub(crate) const OWN: usize = 7 << 10;
/// Bytes of a server that are looked at at once, and are on their way to a client that may not read them.
pub(crate) const HEARD: usize = 1 << 10;
/// What is borrowed at once.
const UNIT: usize = 1 << 10;
/// Least that there is to be borrowed: more than one connection ever needs.
const LEAST: usize = 512 << 10;
/// How long a connection may have borrowed: a client has 30 s for its head, and the rest is for its server to be found, and to read.
const LONGEST: Duration = Duration::from_secs(60);

/// How many connections there may be in a worker that may have so many bytes of memory: their own takes no more than a quarter.
pub(crate) fn most_connections(memory: u64) -> u64 {
    memory / 4 / (OWN + HEARD) as u64
}

/// What they may borrow, in units: no more than another quarter.
pub(crate) fn pool(memory: u64) -> Semaphore {
    let bytes = usize::try_from(memory / 4).unwrap_or(usize::MAX).max(LEAST);
    Semaphore::new((bytes / UNIT).min(Semaphore::MAX_PERMITS))
}

/// What one connection has.
pub(crate) struct Share<'a> {
    pool: &'a Semaphore,
    /// Bytes.
    used: Cell<usize>,
    /// Units.
    borrowed: Cell<u32>,
    /// Since when it has borrowed any.
    since: Cell<Option<Instant>>,
    /// Whether what asked last waits for others to give back what they borrowed, or did until it gave up.
    is_starved: Cell<bool>,
    /// `since` has.
    changed: Notify,
}

impl<'a> Share<'a> {
    pub(crate) fn new(pool: &'a Semaphore) -> Self {
        Self {
            pool,
            used: Cell::new(0),
            borrowed: Cell::new(0),
            since: Cell::new(None),
            is_starved: Cell::new(false),
            changed: Notify::new(),
        }
    }

    /// Why a client is refused that was not whole within some time: it may be that nobody had memory for what it says.
    pub(crate) fn late(&self, what: &str, patience: Duration) -> Refusal {
        let patience = patience.as_secs();
        match self.is_starved.get() {
            true => {
                let reason = format!(
                    "{what}: it needs more than {} kB, and other connections of the container had borrowed all that there is, for \
                     {patience} s",
                    OWN >> 10
                );
                Refusal::new(EgressCause::Full, &reason)
            }
            false => Refusal::new(EgressCause::Malformed, &format!("{what} within {patience} s")),
        }
    }

    /// Waits until it has had borrowed memory for as long as it may: why it ends.
    pub(crate) async fn overdue(&self) -> Refusal {
        loop {
            let changed = self.changed.notified();
            let Some(since) = self.since.get() else {
                changed.await;
                continue;
            };
            if timeout_at(since + LONGEST, changed).await.is_err() && self.since.get() == Some(since) {
                let reason = format!(
                    "what was said had more than {} kB, and was not passed on within {} s: its client goes no further, nobody \
                     approves it, or its server is not found, does not read or does not answer",
                    OWN >> 10,
                    LONGEST.as_secs()
                );
                return Refusal::new(EgressCause::Full, &reason);
            }
        }
    }

    /// Whether so many bytes more may be had at once, without borrowing any.
    fn has(&self, more: usize) -> bool {
        units(self.used.get().saturating_add(more)) <= self.borrowed.get()
    }

    /// Has so many bytes more, once they are to be had.
    async fn take(&self, more: usize) {
        while !self.has(more) {
            let lacks = units(self.used.get().saturating_add(more)).saturating_sub(self.borrowed.get());
            self.is_starved.set(true);
            // The pool is never closed.
            let Ok(permit) = self.pool.acquire_many(lacks).await else { return };
            self.is_starved.set(false);
            permit.forget();
            self.borrow(self.borrowed.get().saturating_add(lacks));
        }
        self.used.set(self.used.get().saturating_add(more));
    }

    fn give_back(&self, bytes: usize) {
        self.used.set(self.used.get().saturating_sub(bytes));
        let needed = units(self.used.get());
        let spare = self.borrowed.get().saturating_sub(needed);
        if spare > 0 {
            self.pool.add_permits(spare as usize);
            self.borrow(needed);
        }
    }

    fn borrow(&self, units: u32) {
        if (self.borrowed.replace(units) == 0) != (units == 0) {
            self.since.set((units > 0).then(Instant::now));
            self.changed.notify_one();
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.pool.add_permits(self.borrowed.get() as usize);
    }
}

/// What has to be borrowed, where so many bytes are used.
fn units(used: usize) -> u32 {
    u32::try_from(used.saturating_sub(OWN).div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// What is counted for one buffer of a connection, or for several that grow together.
pub(crate) struct Portion<'a> {
    share: &'a Share<'a>,
    bytes: Cell<usize>,
}

impl<'a> Portion<'a> {
    pub(crate) fn new(share: &'a Share<'a>) -> Self {
        Self { share, bytes: Cell::new(0) }
    }

    /// Whether it could grow to so many bytes without borrowing.
    pub(crate) fn has(&self, bytes: usize) -> bool {
        self.share.has(bytes.saturating_sub(self.bytes.get()))
    }

    /// Waits until there may be so many bytes in all.
    pub(crate) async fn grow(&self, bytes: usize) {
        self.share.is_starved.set(false);
        let more = bytes.saturating_sub(self.bytes.get());
        if more > 0 {
            self.share.take(more).await;
            self.bytes.set(self.bytes.get().saturating_add(more));
        }
    }

    /// There are no more than so many bytes now.
    pub(crate) fn shrink(&self, bytes: usize) {
        let spare = self.bytes.get().saturating_sub(bytes);
        self.bytes.set(self.bytes.get().saturating_sub(spare));
        self.share.give_back(spare);
    }
}

impl Drop for Portion<'_> {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{future::Future, pin::pin, task::Context};

    /// Whether something is over that is polled once.
    fn is_over(future: impl Future) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        pin!(future).poll(&mut context).is_ready()
    }

    #[test]
    fn who_may_have_less_memory_keeps_less() {
        for memory in [512 << 20, 64 << 20] {
            let own = most_connections(memory) * (OWN + HEARD) as u64;
            let borrowed = (pool(memory).available_permits() * UNIT) as u64;
            assert!(own + borrowed <= memory / 2, "{memory}: {own} {borrowed}");
            assert!(most_connections(memory) > 1000 && borrowed > 8 << 20, "{memory}");
        }
        assert_eq!(pool(0).available_permits() * UNIT, LEAST);
    }

    #[test]
    fn what_fits_into_its_own_waits_for_nobody() {
        let pool = Semaphore::new(2);
        let (greedy, modest) = (Share::new(&pool), Share::new(&pool));
        let (much, little) = (Portion::new(&greedy), Portion::new(&modest));
        assert!(is_over(much.grow(OWN + 2 * UNIT)));
        assert!(is_over(little.grow(OWN)) && little.has(OWN) && !little.has(OWN + 1));
        assert!(!is_over(little.grow(OWN + 1)), "there is none to be borrowed");
        assert_eq!(modest.late("x", LONGEST).cause, EgressCause::Full);
        much.shrink(OWN + UNIT);
        assert!(is_over(little.grow(OWN + 1)), "as soon as there is");
        assert_eq!(modest.late("x", LONGEST), Refusal::new(EgressCause::Malformed, "x within 60 s"));
        assert_eq!(pool.available_permits(), 0);
        drop(much);
        assert_eq!(pool.available_permits(), 1);
        little.shrink(OWN);
        assert_eq!((pool.available_permits(), modest.since.get()), (2, None));
        assert!(is_over(little.grow(OWN + 2 * UNIT)));
        drop(little);
        assert_eq!(pool.available_permits(), 2);
    }

    #[test]
    fn both_directions_together_have_no_more_than_is_borrowed() {
        let pool = Semaphore::new(3);
        let share = Share::new(&pool);
        let (up, down, other) = (Portion::new(&share), Portion::new(&share), Share::new(&pool));
        assert!(is_over(Portion::new(&other).grow(OWN + UNIT)), "and given back");
        let taken = Portion::new(&other);
        assert!(is_over(taken.grow(OWN + 2 * UNIT)));
        {
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut waits = pin!(up.grow(OWN + 2 * UNIT));
            assert!(waits.as_mut().poll(&mut context).is_pending());
            // Meanwhile the other direction takes all that is the connection's own.
            assert!(is_over(down.grow(OWN)));
            drop(taken);
            assert!(waits.as_mut().poll(&mut context).is_pending(), "it needs more than it asked for");
        }
        assert_eq!((up.bytes.get(), share.used.get(), pool.available_permits()), (0, OWN, 1));
        assert!(is_over(up.grow(UNIT)), "what it has borrowed already is not asked for again");
        drop(up);
        drop(down);
        assert_eq!((share.used.get(), pool.available_permits()), (0, 3));
    }

    #[tokio::test]
    async fn what_is_borrowed_has_its_time() {
        let pool = Semaphore::new(2);
        let share = Share::new(&pool);
        let portion = Portion::new(&share);
        portion.grow(OWN + 1).await;
        let begun = Instant::now().checked_sub(LONGEST).unwrap();
        share.since.set(Some(begun));
        let Refusal { cause, reason, .. } = share.overdue().await;
        assert_eq!(cause, EgressCause::Full);
        assert!(reason.contains("7 kB") && reason.contains("60 s"), "{reason}");
        portion.grow(OWN + UNIT + 1).await;
        assert_eq!(share.since.get(), Some(begun), "more of it does not begin another time");
        portion.shrink(OWN);
        assert!(!is_over(share.overdue()), "the control");
    }
}
