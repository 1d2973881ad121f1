//! Reads the event streams of Gemini's API.

use crate::{
    message::{Block, Kind, ToolCall, raw},
    provider::{Answer, Decode, Piece, Usage, arguments, measure, reported_error, sse::Event},
    rpc::{INTERNAL, RpcError},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Most tool calls of an answer.
const MAX_CALLS: usize = 1000;
/// A block with the signatures of tool calls: the provider wants them back as it gave them.
pub(super) const SIGNATURES: &str = "gemini_thinking";

/// Tokens, from an answer or an event of one. What was thought is written by the model, and what its own tools read is read.
pub(super) fn usage(answer: &Value) -> Option<Usage> {
    let reported = answer.get("usageMetadata").filter(|reported| reported.is_object())?;
    let number = |key: &str| reported.get(key).and_then(Value::as_u64).unwrap_or(0);
    let cached = number("cachedContentTokenCount");
    let read = number("promptTokenCount").saturating_sub(cached);
    Some(Usage {
        input_tokens: read.saturating_add(number("toolUsePromptTokenCount")),
        output_tokens: number("candidatesTokenCount").saturating_add(number("thoughtsTokenCount")),
        cache_read_tokens: cached,
        cache_write_tokens: 0,
    })
}

/// Bytes of what an event says of the model's words, in all its candidates.
pub(super) fn text_bytes(event: &Value) -> usize {
    let candidates = event.get("candidates").and_then(Value::as_array).into_iter().flatten();
    let parts = candidates.filter_map(|candidate| candidate.pointer("/content/parts")?.as_array()).flatten();
    let said = parts.filter_map(Value::as_object).flatten();
    // A signature is nothing that the model said.
    said.filter(|(key, _)| *key != "thoughtSignature").map(|(_, value)| measure::text_bytes(value)).sum()
}

/// Why an answer ended, as it says itself: its first candidate, or the prompt for which there is none.
pub(super) fn stop_reason(answer: &Value) -> Option<&str> {
    let reasons = ["/candidates/0/finishReason", "/promptFeedback/blockReason"];
    let mut said = reasons.iter().filter_map(|place| answer.pointer(place)?.as_str());
    said.find(|reason| !reason.is_empty())
}

/// The signatures in a block of [`SIGNATURES`], by the numbers of their calls.
pub(super) fn signatures(block: &Block) -> BTreeMap<usize, String> {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(default)]
        signatures: BTreeMap<usize, String>,
    }
    let fields: Result<Fields, _> = serde_json::from_str(block.raw().get());
    fields.map(|fields| fields.signatures).unwrap_or_default()
}

/// A tool call. It comes in one piece.
#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
    signature: Option<String>,
}

/// An answer as it grows.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    said: String,
    calls: Vec<Call>,
    stop_reason: Option<String>,
    usage: Option<Usage>,
}

impl Decode for Decoder {
    fn held(&self) -> usize {
        let of = |call: &Call| {
            let signature = call.signature.as_ref().map_or(0, String::capacity);
            size_of::<Call>()
                + call.id.capacity()
                + call.name.capacity()
                + call.arguments.capacity()
                + signature
        };
        self.said.capacity() + self.calls.iter().map(of).sum::<usize>()
    }

    fn reported_usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_done(&self) -> bool {
        // No event is the last one: the end of the stream is the answer's.
        false
    }

    fn may_end(&self) -> bool {
        self.stop_reason.is_some()
    }

    fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        let body: Value =
            serde_json::from_str(&event.data).map_err(|_| strange("an event that is none of its API"))?;
        if body.get("error").is_some_and(|error| !error.is_null()) {
            return Err(reported_error(&body).unwrap_or_else(|| strange("an error without a message")));
        }
        self.usage = usage(&body).or(self.usage);
        let candidates = body.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // Others are answers that nobody asked for.
        let is_first = |candidate: &&Value| candidate.get("index").and_then(Value::as_u64).unwrap_or(0) == 0;
        for candidate in candidates.iter().filter(is_first) {
            let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
            let parts = parts.map_or(&[][..], Vec::as_slice);
            for part in parts {
                self.part(part, pieces)?;
            }
            let reason = candidate.get("finishReason").and_then(Value::as_str);
            match reason.filter(|reason| !reason.is_empty()) {
                Some(reason) => self.stop_reason = Some(reason.to_owned()),
                // It goes on.
                None if !parts.is_empty() => self.stop_reason = None,
                None => {}
            }
        }
        if candidates.is_empty()
            && self.stop_reason.is_none()
            && let Some(reason) = stop_reason(&body)
        {
            self.stop_reason = Some(reason.to_owned());
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Answer, RpcError> {
        let Self { said, calls, stop_reason, usage } = *self;
        let reason = stop_reason
            .ok_or_else(|| RpcError::new(INTERNAL, "the provider's stream ended without a finish reason"))?;
        let stop_reason = match reason.as_str() {
            "STOP" if !calls.is_empty() => "tool_use".to_owned(),
            "STOP" => "end_turn".to_owned(),
            "MAX_TOKENS" => "max_tokens".to_owned(),
            "SAFETY" | "RECITATION" | "BLOCKLIST" | "PROHIBITED_CONTENT" | "SPII" | "IMAGE_SAFETY" => {
                "refusal".to_owned()
            }
            other => other.to_lowercase(),
        };
        let mut content = if said.is_empty() { Vec::new() } else { vec![Block::text(&said)] };
        let (mut tool_calls, mut signatures) = (Vec::new(), BTreeMap::new());
        // An answer that stopped for another reason may have cut a call off.
        for (at, call) in calls.into_iter().filter(|_| stop_reason == "tool_use").enumerate() {
            let input = arguments(&call.name, &call.arguments)?;
            signatures.extend(call.signature.map(|signature| (at, signature)));
            tool_calls.push(ToolCall { id: call.id, name: call.name, input });
        }
        if !signatures.is_empty() {
            let block = raw(&json!({ "type": SIGNATURES, "signatures": signatures }));
            content.extend(Block::parse(block).ok());
        }
        Ok(Answer { stop_reason, content, tool_calls, usage })
    }
}

impl Decoder {
    fn part(&mut self, part: &Value, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let is_thought = part.get("thought").and_then(Value::as_bool).unwrap_or(false);
        let said = part.get("text").and_then(Value::as_str).filter(|said| !said.is_empty() && !is_thought);
        if let Some(said) = said {
            self.said.push_str(said);
            pieces.push_back(Piece::Text(said.to_owned()));
        }
        let Some(call) = part.get("functionCall").filter(|call| !call.is_null()) else { return Ok(()) };
        let text = |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        let name = text(call, "name").filter(|name| !name.is_empty());
        let name =
            name.ok_or_else(|| RpcError::new(INTERNAL, "the provider sent a tool call without a name"))?;
        if self.calls.len() >= MAX_CALLS {
            let why = format!("the provider sent more than {MAX_CALLS} tool calls");
            return Err(RpcError::new(INTERNAL, why));
        }
        let arguments = call.get("args").filter(|args| !args.is_null());
        let arguments = arguments.map_or_else(|| "{}".to_owned(), Value::to_string);
        let id = text(call, "id").unwrap_or_default();
        pieces.push_back(Piece::ToolStart { id: id.clone(), name: name.clone() });
        pieces.push_back(Piece::ToolInput { call: self.calls.len(), text: arguments.clone() });
        let signature = text(part, "thoughtSignature");
        self.calls.push(Call { id, name, arguments, signature });
        Ok(())
    }
}

/// Whether a block is between us and this provider alone.
pub(in crate::provider) fn is_own(block: &Block) -> bool {
    matches!(block.kind(), Kind::Other(kind) if kind == SIGNATURES)
}
