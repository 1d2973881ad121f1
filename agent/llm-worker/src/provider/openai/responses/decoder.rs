//! Reads the event streams of OpenAI's Responses.

use crate::{
    http::tool_calls::is_clients,
    message::Block,
    provider::{Answer, Decode, Piece, Usage, reported_error, sse::Event},
    rpc::{INTERNAL, RpcError},
};
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Tokens, from an answer's `usage`.
pub(super) fn usage(reported: &Value) -> Option<Usage> {
    let number = |pointer: &str| reported.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let cached = number("/input_tokens_details/cached_tokens");
    reported.is_object().then(|| Usage {
        input_tokens: number("/input_tokens").saturating_sub(cached),
        output_tokens: number("/output_tokens"),
        cache_read_tokens: cached,
        cache_write_tokens: 0,
    })
}

/// Why an answer ended, as it says itself.
pub(super) fn stop_reason(answer: &Value) -> Option<String> {
    let reason = answer.pointer("/incomplete_details/reason").or(answer.get("status"));
    reason.and_then(Value::as_str).map(str::to_owned)
}

/// An answer as it grows. Its tool calls are the endpoint's to read.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    said: String,
    has_refused: bool,
    has_called: bool,
    stop_reason: Option<String>,
    usage: Option<Usage>,
    done: bool,
}

impl Decode for Decoder {
    fn held(&self) -> usize {
        self.said.capacity()
    }

    fn reported_usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        // Some servers end as the older form does. It says nothing of how the answer ended.
        if event.data.trim() == "[DONE]" {
            return Ok(());
        }
        let body: Value =
            serde_json::from_str(&event.data).map_err(|_| strange("an event that is none of its API"))?;
        let says = body.get("type").and_then(Value::as_str).unwrap_or_default();
        let response = body.get("response").unwrap_or(&Value::Null);
        match says {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.has_refused |= says == "response.refusal.delta";
                let said = body.get("delta").and_then(Value::as_str).unwrap_or_default();
                self.said.push_str(said);
                pieces.push_back(Piece::Text(said.to_owned()));
            }
            "response.output_item.done" => {
                self.has_called |= body.get("item").is_some_and(is_clients);
            }
            "response.completed" | "response.incomplete" => {
                self.usage = response.get("usage").and_then(usage).or(self.usage);
                self.stop_reason = stop_reason(response);
                self.done = true;
            }
            "response.failed" => {
                return Err(reported_error(response)
                    .unwrap_or_else(|| strange("an answer that failed without a reason")));
            }
            "error" | "" => {
                // Its fields stand in an object of their own, or by themselves.
                let own = json!({ "error": { "code": body.get("code"), "message": body.get("message") } });
                let error = reported_error(&body).or_else(|| reported_error(&own));
                return Err(error.unwrap_or_else(|| strange("an error without a message")));
            }
            _ => {}
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Answer, RpcError> {
        let Self { said, has_refused, has_called, stop_reason, usage, .. } = *self;
        let stop_reason = match stop_reason.as_deref() {
            None | Some("completed") if has_called => "tool_use",
            None | Some("completed") if has_refused => "refusal",
            None | Some("completed") => "end_turn",
            Some("max_output_tokens") => "max_tokens",
            Some(other) => other,
        }
        .to_owned();
        let content = if said.is_empty() { Vec::new() } else { vec![Block::text(&said)] };
        Ok(Answer { stop_reason, content, tool_calls: Vec::new(), usage })
    }
}
