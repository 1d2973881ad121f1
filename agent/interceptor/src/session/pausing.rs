//! Calls that wait for a person: decided, cancelled, too late, or dropped because the client is gone.

use super::{Decision, GRACE, Report, Session, lock};
use crate::answer::{self, StopReason};
use ringfence_base::clock::{now_micros as now, since_boot};
use ringfence_session::{journal::Entry, line::Id};
use ringfence_wire::{
    approvals::Fingerprint,
    tool_call::{Outcome, Recorded},
};
use std::{
    io::{self, Write},
    sync::atomic::Ordering,
};

impl<S: Write, C: Write> Session<S, C> {
    /// The client will send nothing more: calls that wait are dropped, the server's stdin is closed.
    pub(crate) fn client_done(&self) {
        let waiting = lock(&self.held).drop_all();
        for call in waiting {
            self.record_or_warn(&decided(call, Outcome::Ended, None));
        }
        lock(&self.server).take();
    }

    /// Decides a paused call. `false` where it does not wait (any more): a decision counts once.
    ///
    /// # Errors
    /// Those of writing to the server or the client.
    pub fn decide(&self, call: &str, decision: &Decision) -> io::Result<bool> {
        let Some(mut held) = lock(&self.held).remove(call) else { return Ok(false) };
        if let Decision::Approved(by) = decision
            && let Some(why) = self.pins.held_now(&held.call.tool)
        {
            // Whoever approved it took it for a call of what was pinned when it came.
            let text = format!(
                "the call {call} is refused though {by} approved it: meanwhile its tool is held: {why}"
            );
            self.record_or_warn(&Entry::Note { at: now(), text });
            self.record_or_warn(&decided(call.to_owned(), Outcome::Denied, None));
            self.report(Report::Released(call.to_owned()));
            held.call.held = Some(why);
            let answer = answer::stopped(&held.call, &StopReason::Blocked);
            return self.to_client(answer.as_bytes()).map(|()| true);
        }
        let (outcome, by) = match decision {
            Decision::Approved(by) => (Outcome::Approved, Some(by.clone())),
            Decision::Denied(by) => (Outcome::Denied, Some(by.clone())),
            Decision::Timeout => (Outcome::Timeout, None),
            Decision::NoApprover => (Outcome::Denied, None),
        };
        let recorded = self.record(&decided(call.to_owned(), outcome, by));
        self.report(Report::Released(call.to_owned()));
        let error = recorded.err().map(|error| error.to_string());
        let why = match (decision, &error) {
            (Decision::Approved(_), Some(error)) if !self.options.allow_unrecorded => {
                StopReason::Unrecorded(error)
            }
            (Decision::Approved(_), _) => {
                if error.is_some() {
                    self.gap.store(true, Ordering::Relaxed);
                }
                lock(&self.outstanding).add(&held.call.id);
                return self.to_server(&held.line).map(|()| true);
            }
            (Decision::Denied(by), _) => StopReason::Denied(by),
            (Decision::Timeout, _) => StopReason::Timeout(self.options.approval_timeout.as_secs()),
            (Decision::NoApprover, _) => StopReason::NoApprover,
        };
        self.to_client(answer::stopped(&held.call, &why).as_bytes()).map(|()| true)
    }

    /// Calls that have waited for their whole time, and progress for those that still wait and gave a token.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub fn tick(&self) -> io::Result<()> {
        let limit = self.options.approval_timeout;
        let (mut late, mut progress) = (Vec::new(), Vec::new());
        for (call, held) in lock(&self.held).iter() {
            let waited = held.since.elapsed();
            if waited >= limit + GRACE {
                late.push(call.clone());
            } else if let Some(token) = &held.token {
                progress.push(answer::progress(token, waited.as_secs(), limit.as_secs()));
            }
        }
        for text in progress {
            self.to_client(text.as_bytes())?;
        }
        late.iter().try_for_each(|call| self.decide(call, &Decision::Timeout).map(drop))
    }

    /// How many requests the server has and did not answer, and how many calls wait for approval.
    pub(crate) fn open_calls(&self) -> (u64, u64) {
        let held = lock(&self.held).iter().count();
        (lock(&self.outstanding).count(), held as u64)
    }

    /// Ids of the calls that wait.
    pub fn waiting(&self) -> Vec<String> {
        lock(&self.held).iter().map(|(call, _)| call.clone()).collect()
    }

    /// Until when a call that waits may be decided; microseconds since 1970.
    pub fn until(&self, call: &str) -> Option<i64> {
        lock(&self.held).get(call).map(|held| held.until)
    }

    /// What tells that a call that comes later is the same as one that waits.
    pub fn fingerprint(&self, call: &str) -> Option<Fingerprint> {
        lock(&self.held).get(call).and_then(|held| held.fingerprint.clone())
    }

    /// A cancellation of calls that still wait: they are dropped, and the server receives neither.
    pub(super) fn cancel_held(&self, params: Option<&str>) -> bool {
        let Some(id) = cancelled_id(params) else { return false };
        // A client may have given one id to several.
        let dropped: Vec<String> = {
            let mut held = lock(&self.held);
            held.of(&id).into_iter().filter(|call| held.remove(call).is_some()).collect()
        };
        for call in &dropped {
            self.record_or_warn(&decided(call.clone(), Outcome::Cancelled, None));
            self.report(Report::Released(call.clone()));
        }
        !dropped.is_empty()
    }
}

/// The request that a notification cancels.
pub(super) fn cancelled_id(params: Option<&str>) -> Option<Id> {
    #[derive(serde::Deserialize)]
    struct Cancelled {
        #[serde(rename = "requestId")]
        request_id: Box<serde_json::value::RawValue>,
    }
    let cancelled: Cancelled = serde_json::from_str(params?).ok()?;
    Id::parse(cancelled.request_id.get())
}

/// What became of a call that waited.
pub(super) fn decided(call: String, outcome: Outcome, by: Option<String>) -> Entry {
    Entry::Decision { call, at: now(), boot: since_boot(), outcome: Recorded::Known(outcome), by }
}
