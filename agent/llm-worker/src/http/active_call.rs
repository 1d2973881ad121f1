//! What a call comes to: counted, told to the trace, written down.

use super::{
    State,
    budget::{Reservation, UnderWay},
    call::MAX_REQUEST,
    denials::Conversation,
    intents::RequestPart,
    record::{self, Call, Unrecorded},
    relay::Outcome,
};
use crate::{
    http::Shared,
    limits::Reserved,
    message::ToolCall,
    provider::{Wire, cut_off},
    report,
    status::count_turn,
};
use jiff::Timestamp;
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// A call that is under way: counted and recorded when it ends.
pub(super) struct ActiveCall {
    pub(super) state: Arc<State>,
    pub(super) shared: Shared,
    pub(super) call: Call,
    pub(super) started: Instant,
    /// Bytes of the request; 0: it costs nothing.
    pub(super) sent: usize,
    /// What it is part of for the trace.
    pub(super) part: Option<RequestPart>,
    /// What its conversation is known by.
    pub(super) conversation: Conversation,
    /// When the client saw each tool call begin, in their order: ns since boot.
    pub(super) began: Vec<u64>,
    /// Which of them the trace was told of.
    pub(super) reported: BTreeSet<usize>,
    pub(super) held: Reservation,
    /// What it costs at least.
    pub(super) reserved: Option<Reserved>,
    pub(super) _under_way: UnderWay,
}

impl ActiveCall {
    /// The request with what the kernel denied the calls whose results it has, as far as that is known, or becomes known: what only
    /// counts tokens asks nobody.
    pub(super) async fn explain(&mut self, wire: Wire, body: Vec<u8>) -> Vec<u8> {
        let Some(intents) = self.state.intents() else { return body };
        let closed = self.part.as_ref().map_or(&[][..], |part| &part.closed);
        let fresh = intents.denials.ask(closed, &self.shared.redactor).await;
        let Some(explained) = intents.denials.added((wire, self.conversation), &body, fresh) else {
            return body;
        };
        // The provider would take none of it.
        if explained.len() > MAX_REQUEST {
            return body;
        }
        // Without room for it the model hears of it later, or never.
        if self.held.grow(explained.len().saturating_sub(body.len())).is_err() {
            return body;
        }
        if self.sent > 0 {
            self.sent = explained.len();
        }
        explained
    }

    /// Counts what an answer cost that is no whole one, or whose provider did not say.
    pub(super) fn charge(&self, status: u16, outcome: &mut Outcome) {
        let is_told = outcome.usage.is_some() || !(200..300).contains(&status);
        if status < 400 && self.sent > 0 && (outcome.error.is_some() || !is_told) {
            outcome.usage = Some(cut_off(outcome.usage, self.sent, outcome.text_bytes));
        }
    }

    /// Tells the trace of calls that are whole, each with its place among all that have a name. The client is not to have
    /// their ends before: it may run them at once, and nobody knows when the answer ends, or whether it does here. A worker that
    /// is to stop does not wait for that: it has little time, and the line on disk is still to come.
    pub(super) async fn report(&mut self, calls: impl IntoIterator<Item = (usize, ToolCall)>) {
        let (Some(intents), Some(part)) = (self.state.intents(), &mut self.part) else { return };
        for (place, mut call) in calls {
            if !self.reported.insert(place) {
                continue;
            }
            self.shared.redactor.call(&mut call);
            let moment = self.began.get(place).copied().unwrap_or_else(report::now);
            intents.called(part, (&call, moment), &self.shared.redactor, &self.state.cut).await;
        }
    }

    /// The answer is over. What is left of it is on record before this returns.
    ///
    /// # Errors
    /// It is not: then the client is not to have its end.
    pub(super) async fn end(mut self, status: u16, mut outcome: Outcome) -> Result<(), Unrecorded> {
        outcome.error = outcome.error.map(|error| self.shared.redactor.text(&error).into_owned());
        let redactor = Arc::clone(&self.shared.redactor);
        outcome.content = outcome.content.into_iter().map(|block| redactor.block(block)).collect();
        outcome.tool_calls.iter_mut().for_each(|call| redactor.call(call));
        let usage = outcome.usage.unwrap_or_default();
        self.state.meter.lock().used(&usage, Timestamp::now());
        drop(self.reserved.take());
        self.report(outcome.tool_calls.iter().cloned().enumerate()).await;
        if let (Some(intents), Some(part)) = (self.state.intents(), self.part.take()) {
            let failed = (status >= 400).then(|| format!("the provider answered with status {status}"));
            let error = outcome.error.as_deref().or(failed.as_deref());
            intents.answered(part, error, &redactor);
        }
        let took = self.started.elapsed();
        let written = record::write(&self.state.log, &self.call, status, took, &outcome).await;
        self.state.status.send_modify(|counts| {
            let has_failed = status >= 400 || outcome.error.is_some() || written.is_err();
            // One that only counts tokens is no turn, and its provider says nothing of a cost.
            if self.sent > 0 || usage.tokens() > 0 {
                count_turn(counts, has_failed, usage);
            }
            counts.http_calls += 1;
        });
        written
    }
}
