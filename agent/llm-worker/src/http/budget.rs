//! How many bytes of an agent's requests and of its whole answers are held at a time; and how many of its calls are under way.
//!
//! Each request and each answer has a bound of its own, and there are many connections; a worker has 1 GiB of memory. While a
//! request or an answer is looked at there are a few copies of it. Requests and answers have each their own room: who reads no
//! answers does not keep others from asking.
//! An answer that streams takes room for what is kept of it, which is little unless its provider means harm.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::watch;

/// Most bytes of requests, and of answers.
const MOST: usize = 128 << 20;

/// Most calls of one agent that are under way. A client that hangs up ends none, so its connections do not bound them.
const CALLS: usize = 64;

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Until the provider has them.
    Requests,
    /// Until the client has them; of those that stream, what is kept.
    Answers,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests that are not passed on yet",
            Self::Answers => "answers that are under way or not read yet",
        })
    }
}

/// Why there is no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("this agent's {0} have {MOST} bytes together, which is the most; try again")]
pub(super) struct Full(Kind);

/// What an agent has. Its copies are the same room.
#[derive(Debug, Clone)]
pub struct ByteBudget {
    pub(super) requests: Pool,
    pub(super) answers: Pool,
    pub(super) calls: Calls,
}

impl Default for ByteBudget {
    fn default() -> Self {
        let pool = |what| Pool { what, held: Arc::default() };
        Self {
            requests: pool(Kind::Requests),
            answers: pool(Kind::Answers),
            calls: Calls(watch::Sender::new(0)),
        }
    }
}

/// An agent's calls that are under way.
#[derive(Debug, Clone)]
pub(super) struct Calls(watch::Sender<usize>);

impl Calls {
    /// One more.
    ///
    /// # Errors
    /// There are as many as may be.
    pub(super) fn begin(&self) -> Result<UnderWay, TooMany> {
        let fits = |calls: &mut usize| {
            let fits = *calls < CALLS;
            *calls += usize::from(fits);
            fits
        };
        if self.0.send_if_modified(fits) { Ok(UnderWay(self.0.clone())) } else { Err(TooMany) }
    }

    /// Waits until none is.
    pub(super) async fn over(&self) {
        let _ = self.0.subscribe().wait_for(|calls| *calls == 0).await;
    }
}

/// Why a call cannot be made now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{CALLS} calls of this agent are under way, which is the most; try again")]
pub(super) struct TooMany;

/// A call that is under way, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay(watch::Sender<usize>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls -= 1);
    }
}

/// What an agent has of one kind.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    what: Kind,
    held: Arc<AtomicUsize>,
}

impl Pool {
    /// For a body of which nothing is there yet.
    pub(super) fn reserve(&self) -> Reservation {
        Reservation { pool: self.clone(), bytes: 0 }
    }
}

/// What a body has taken; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    pool: Pool,
    bytes: usize,
}

impl Reservation {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Full`]: what was taken before is still held.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let more = |held: usize| held.checked_add(bytes).filter(|sum| *sum <= MOST);
        let Pool { what, held } = &self.pool;
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map_err(|_| Full(*what))?;
        self.bytes += bytes;
        Ok(())
    }

    /// Has so many bytes from now on.
    ///
    /// # Errors
    /// [`Full`]: it has what it had.
    pub(super) fn fit(&mut self, to: usize) -> Result<(), Full> {
        self.grow(to.saturating_sub(self.bytes))?;
        self.shrink(to);
        Ok(())
    }

    /// Keeps so many bytes at most.
    pub(super) fn shrink(&mut self, to: usize) {
        let less = self.bytes.saturating_sub(to);
        self.pool.held.fetch_sub(less, Ordering::Relaxed);
        self.bytes -= less;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Bytes on their way to somebody who may be slow. What is theirs, their room, goes when nobody has them any more.
#[derive(Debug)]
pub(super) struct BudgetedBytes<T = Reservation> {
    bytes: Vec<u8>,
    _theirs: T,
}

impl<T> BudgetedBytes<T> {
    pub(super) fn new(bytes: Vec<u8>, theirs: T) -> Self {
        Self { bytes, _theirs: theirs }
    }
}

impl<T> AsRef<[u8]> for BudgetedBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn bodies_have_a_bound_together() {
        for what in [Kind::Requests, Kind::Answers] {
            let budget = ByteBudget::default();
            let pool = if what == Kind::Requests { &budget.requests } else { &budget.answers };
            let mut held = pool.reserve();
            held.grow(MOST - 1).unwrap();
            let mut rest = pool.clone().reserve();
            assert_eq!(rest.grow(2), Err(Full(what)));
            assert_eq!(rest.grow(usize::MAX), Err(Full(what)));
            held.fit(MOST - 2).unwrap();
            assert_eq!(held.fit(MOST + 1), Err(Full(what)));
            held.fit(MOST - 1).unwrap();
            // A refusal took nothing.
            rest.grow(1).unwrap();
            assert_eq!(rest.grow(1), Err(Full(what)));
            held.shrink(MOST - 3);
            rest.grow(2).unwrap();
            assert_eq!(rest.grow(1), Err(Full(what)));
            drop((held, rest));
            assert_eq!(pool.held.load(Ordering::Relaxed), 0);
        }
    }

    #[test]
    fn answers_that_nobody_reads_leave_requests_their_room() {
        let budget = ByteBudget::default();
        let mut answer = budget.answers.reserve();
        answer.grow(MOST).unwrap();
        budget.requests.reserve().grow(MOST).unwrap();
        // What is on its way is held until the last of its copies is gone.
        let sent = Bytes::from_owner(BudgetedBytes::new(vec![1, 2, 3], answer));
        let rest = sent.slice(2..);
        drop(sent);
        assert_eq!(budget.answers.reserve().grow(1), Err(Full(Kind::Answers)));
        drop(rest);
        budget.answers.reserve().grow(MOST).unwrap();
    }

    #[tokio::test]
    async fn calls_under_way_have_a_bound_and_an_end_that_can_be_waited_for() {
        let budget = ByteBudget::default();
        let mut calls: Vec<_> = (0..CALLS).map(|_| budget.clone().calls.begin().unwrap()).collect();
        assert_eq!(budget.calls.begin().unwrap_err(), TooMany);
        drop(calls.pop());
        calls.push(budget.calls.begin().unwrap());
        let over = tokio::spawn({
            let calls = budget.calls.clone();
            async move { calls.over().await }
        });
        drop(calls.split_off(1));
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        drop(calls);
        over.await.unwrap();
        budget.calls.over().await;
    }
}
