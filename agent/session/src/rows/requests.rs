//! Requests of one session that wait for their answers, by the ids that client and server gave them. Pure.

use super::tasks::TaskRequest;
use crate::{
    journal::{Direction, sha256},
    line::Id,
};
use std::collections::HashMap;

/// Requests without an answer that are remembered per session; older ones are taken as never answered.
const MOST_PENDING: usize = 65_536;

/// How many of the oldest go at once when those are too many: each of them is looked at for that.
const FORGOTTEN: usize = MOST_PENDING / 16;

/// Calls of one id that are remembered; the others are taken as never answered.
const MOST_SAME: usize = 64;

/// Longest id of a request, and longest name of a question, that is remembered as it is, bytes; of another one the hash is: it
/// is kept for as long as nobody answers.
pub(super) const LONGEST_ID: usize = 256;

/// A request that was not answered yet.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) call: Option<String>,
    /// A question to the client's model: its name.
    pub(super) question: Option<String>,
    pub(super) at: i64,
    /// What it asks of a task.
    pub(super) task: Option<TaskRequest>,
    /// The client cancelled it.
    pub(super) is_cancelled: bool,
    /// Calls that have the same id and were not answered when this came: their names, and when they came.
    pub(super) same: Vec<(String, i64)>,
    /// Answers to this id that are still to come, before the last.
    more: u32,
}

impl Pending {
    pub(super) fn new(call: Option<String>, question: Option<String>, at: i64) -> Self {
        Self { call, question, at, task: None, is_cancelled: false, same: Vec::new(), more: 0 }
    }
}

/// What an answer is to.
pub(super) enum Answered {
    Nothing,
    /// One of several requests of one id.
    Unclear,
    /// The last of them, or the only one.
    Last(Pending),
}

/// The requests of one session.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// By the direction they went.
    pub(super) in_flight: HashMap<(Direction, Id), Pending>,
    /// Calls that wait for a decision: not in flight until approved.
    paused: HashMap<String, (Id, i64)>,
}

impl Requests {
    /// A call waits for a decision. One that has none for so long that this many others wait has no answer either.
    pub(super) fn pause(&mut self, call: String, id: &Id, at: i64) {
        if self.paused.len() < MOST_PENDING {
            self.paused.insert(call, (remembered(id.clone()), at));
        }
    }

    /// A call waits no longer: it is in flight, if it was approved.
    pub(super) fn decide(&mut self, call: &str, approved: bool) {
        if let Some((id, at)) = self.paused.remove(call)
            && approved
        {
            self.add(Direction::ClientToServer, id, Pending::new(Some(call.to_owned()), None, at));
        }
    }

    /// Puts a request into flight; whether its id was in flight already.
    pub(super) fn add(&mut self, direction: Direction, id: Id, mut pending: Pending) -> bool {
        if self.in_flight.len() >= MOST_PENDING {
            let mut times: Vec<i64> = self.in_flight.values().map(|pending| pending.at).collect();
            let (_, last, _) = times.select_nth_unstable(FORGOTTEN);
            let last = *last;
            let mut goes = FORGOTTEN;
            self.in_flight.retain(|_, pending| {
                let is_old = pending.at <= last && goes > 0;
                goes -= usize::from(is_old);
                !is_old
            });
        }
        let key = (direction, remembered(id));
        let Some(earlier) = self.in_flight.remove(&key) else {
            self.in_flight.insert(key, pending);
            return false;
        };
        pending.same = earlier.same;
        pending.same.extend(earlier.call.map(|call| (call, earlier.at)));
        let too_many = pending.same.len().saturating_sub(MOST_SAME);
        pending.same.drain(..too_many);
        pending.more = earlier.more.saturating_add(1);
        self.in_flight.insert(key, pending);
        true
    }

    /// The client cancels a request of its own: the call, if the server has it, and it is the only one of its id. Once.
    pub(super) fn cancel(&mut self, id: Id) -> Option<String> {
        let pending = self.in_flight.get_mut(&(Direction::ClientToServer, remembered(id)))?;
        if pending.is_cancelled || pending.more > 0 || !pending.same.is_empty() {
            return None;
        }
        pending.is_cancelled = true;
        pending.call.clone()
    }

    /// Takes the request that an answer is to, by the direction that the request went.
    pub(super) fn answer(&mut self, direction: Direction, id: Id) -> Answered {
        let key = (direction, remembered(id));
        match self.in_flight.get_mut(&key) {
            Some(Pending { more: more @ 1.., .. }) => {
                *more -= 1;
                Answered::Unclear
            }
            _ => self.in_flight.remove(&key).map_or(Answered::Nothing, Answered::Last),
        }
    }
}

/// An id as it is remembered.
fn remembered(id: Id) -> Id {
    match id {
        Id::String(text) if text.len() > LONGEST_ID => Id::String(sha256(text.as_bytes())),
        Id::Number(text) if text.len() > LONGEST_ID => Id::Number(sha256(text.as_bytes())),
        id => id,
    }
}
