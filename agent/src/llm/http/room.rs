//! How many bytes of requests and of whole answers are held at a time, of one agent, and of all agents that one process
//! serves; and how many calls of an agent are under way.
//!
//! Each request and each answer has a bound of its own, and there are many connections; under the daemon a worker has 1 GiB
//! of memory, and `ringfence start` serves all agents in one process. While a request or an answer is looked at there are a
//! few copies of it. Requests and answers have each their own room: who reads no answers does not keep others from asking.
//! An answer that streams takes room for what is kept of it, which is little unless its provider means harm.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::sync::watch;

/// Most bytes of all agents' requests, and of their answers.
const ALL: usize = 192 << 20;
/// Most bytes of one agent's: it leaves room for a few of the others'.
const ONE: usize = 128 << 20;

/// Most calls of one agent that are under way. A client that hangs up ends none, so its connections do not bound them.
const CALLS: usize = 64;

/// What is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// Until the provider has them.
    Requests,
    /// Until the client has them; of those that stream, what is kept.
    Answers,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Requests => "requests that are not passed on yet",
            Self::Answers => "answers that are under way or not read yet",
        })
    }
}

/// Why there is no room for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    /// The agent's own.
    #[error("this agent's {0} have {ONE} bytes together, which is the most; try again")]
    One(What),
    /// Everybody's.
    #[error("the {0}, of all agents, have {ALL} bytes together, which is the most; try again")]
    All(What),
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
pub(crate) struct Room {
    requests: Arc<Pot>,
    answers: Arc<Pot>,
}

impl Default for Room {
    fn default() -> Self {
        Self { requests: Pot::new(ALL), answers: Pot::new(ALL) }
    }
}

impl Room {
    /// An agent's part. Its copies are the same part.
    pub(crate) fn share(&self) -> Share {
        let part = |what, all: &Arc<Pot>| Part { what, all: Arc::clone(all), one: Pot::new(ONE) };
        Share {
            requests: part(What::Requests, &self.requests),
            answers: part(What::Answers, &self.answers),
            calls: Calls(watch::Sender::new(0)),
        }
    }
}

/// What an agent has.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub(super) requests: Part,
    pub(super) answers: Part,
    pub(super) calls: Calls,
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
pub(super) struct Part {
    what: What,
    all: Arc<Pot>,
    one: Arc<Pot>,
}

impl Part {
    /// For a body of which nothing is there yet.
    pub(super) fn hold(&self) -> Held {
        Held { part: self.clone(), bytes: 0 }
    }
}

/// What a body has taken; given back when this is dropped.
#[derive(Debug)]
pub(super) struct Held {
    part: Part,
    bytes: usize,
}

impl Held {
    /// Takes so many bytes more.
    ///
    /// # Errors
    /// [`Full`]: what was taken before is still held.
    pub(super) fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let Part { what, all, one } = &self.part;
        if !one.take(bytes) {
            return Err(Full::One(*what));
        }
        if !all.take(bytes) {
            one.give(bytes);
            return Err(Full::All(*what));
        }
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
        self.part.one.give(less);
        self.part.all.give(less);
        self.bytes -= less;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

/// Bytes on their way to somebody who may be slow. What is theirs, their room, goes when nobody has them any more.
#[derive(Debug)]
pub(super) struct Kept<T = Held> {
    bytes: Vec<u8>,
    _theirs: T,
}

impl<T> Kept<T> {
    pub(super) fn new(bytes: Vec<u8>, theirs: T) -> Self {
        Self { bytes, _theirs: theirs }
    }
}

impl<T> AsRef<[u8]> for Kept<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn one_agent_leaves_room_and_all_have_a_bound() {
        for what in [What::Requests, What::Answers] {
            let room = Room::default();
            let part = |share: Share| if what == What::Requests { share.requests } else { share.answers };
            let (greedy, other) = (part(room.share()), part(room.share()));
            let mut held = greedy.hold();
            held.grow(ONE).unwrap();
            assert_eq!(greedy.clone().hold().grow(1), Err(Full::One(what)));
            let mut rest = other.hold();
            rest.grow(ALL - ONE).unwrap();
            assert_eq!(rest.grow(1), Err(Full::All(what)));
            assert_eq!(rest.grow(usize::MAX), Err(Full::One(what)));
            held.fit(ONE - 2).unwrap();
            assert_eq!(held.fit(ONE + 1), Err(Full::One(what)));
            // A refusal took nothing.
            rest.grow(2).unwrap();
            assert_eq!(rest.grow(1), Err(Full::All(what)));
            held.shrink(ONE);
            drop((held, rest));
            for pot in [&room.requests, &room.answers, &greedy.one, &other.one] {
                assert_eq!(pot.held.load(Ordering::Relaxed), 0);
            }
        }
    }

    #[test]
    fn answers_that_nobody_reads_leave_requests_their_room() {
        let share = Room::default().share();
        let mut answer = share.answers.hold();
        answer.grow(ONE).unwrap();
        share.requests.hold().grow(ONE).unwrap();
        // What is on its way is held until the last of its copies is gone.
        let sent = Bytes::from_owner(Kept::new(vec![1, 2, 3], answer));
        let rest = sent.slice(2..);
        drop(sent);
        assert_eq!(share.answers.hold().grow(1), Err(Full::One(What::Answers)));
        drop(rest);
        share.answers.hold().grow(ONE).unwrap();
    }

    #[tokio::test]
    async fn calls_under_way_have_a_bound_and_an_end_that_can_be_waited_for() {
        let share = Room::default().share();
        let mut calls: Vec<_> = (0..CALLS).map(|_| share.clone().calls.begin().unwrap()).collect();
        assert_eq!(share.calls.begin().unwrap_err(), TooMany);
        drop(calls.pop());
        calls.push(share.calls.begin().unwrap());
        let over = tokio::spawn({
            let calls = share.calls.clone();
            async move { calls.over().await }
        });
        drop(calls.split_off(1));
        tokio::task::yield_now().await;
        assert!(!over.is_finished());
        drop(calls);
        over.await.unwrap();
        share.calls.over().await;
    }
}
