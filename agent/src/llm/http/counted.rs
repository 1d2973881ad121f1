//! What a call comes to: counted, told to the trace, written down.

use super::{
    State,
    follow::Part,
    record::{self, Call},
    relay::Outcome,
    room::Held,
};
use crate::llm::{http::Shared, provider::cut_off};
use jiff::Timestamp;
use std::{sync::Arc, time::Instant};

/// A call that is under way: counted and recorded when it ends.
pub(super) struct Counted {
    pub(super) state: Arc<State>,
    pub(super) shared: Shared,
    pub(super) call: Call,
    pub(super) started: Instant,
    /// Bytes of the request; 0: it costs nothing.
    pub(super) sent: usize,
    /// What it is part of for the trace.
    pub(super) part: Option<Part>,
    /// When the client saw each tool call begin, in their order: ns since boot.
    pub(super) began: Vec<u64>,
    pub(super) held: Held,
}

impl Counted {
    /// Counts what an answer cost that is no whole one.
    pub(super) fn charge(&self, status: u16, outcome: &mut Outcome) {
        if status < 400 && self.sent > 0 && outcome.error.is_some() {
            outcome.usage = Some(cut_off(outcome.usage, self.sent, outcome.said));
        }
    }

    pub(super) async fn end(mut self, status: u16, mut outcome: Outcome) {
        outcome.error = outcome.error.map(|error| self.shared.redactor.text(&error).into_owned());
        let redactor = &self.shared.redactor;
        outcome.content = outcome.content.into_iter().map(|block| redactor.block(block)).collect();
        for call in &mut outcome.tool_calls {
            call.input = redactor.json(std::mem::take(&mut call.input));
            call.name = redactor.text(&call.name).into_owned();
        }
        let usage = outcome.usage.unwrap_or_default();
        self.state.meter.lock().used(&usage, Timestamp::now());
        self.state.status.send_modify(|counts| {
            counts.turns += 1;
            counts.http_calls += 1;
            counts.failed += u64::from(status >= 400 || outcome.error.is_some());
            counts.input_tokens = counts.input_tokens.saturating_add(usage.input_tokens);
            counts.output_tokens = counts.output_tokens.saturating_add(usage.output_tokens);
            counts.cache_read_tokens = counts.cache_read_tokens.saturating_add(usage.cache_read_tokens);
            counts.cache_write_tokens = counts.cache_write_tokens.saturating_add(usage.cache_write_tokens);
        });
        if let (Some(follow), Some(part)) = (&self.state.follow, self.part.take()) {
            let failed = (status >= 400).then(|| format!("the provider answered with status {status}"));
            let error = outcome.error.as_deref().or(failed.as_deref());
            follow.answered(part, &outcome.tool_calls, &self.began, error, redactor).await;
        }
        record::write(&self.state.log, &self.call, status, self.started.elapsed(), &outcome).await;
    }
}
