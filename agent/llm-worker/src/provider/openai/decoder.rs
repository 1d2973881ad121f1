//! Reads the event streams of OpenAI and of compatible servers.

use crate::{
    message::{Block, ToolCall, raw},
    provider::{Answer, Decode, Piece, Usage, arguments, reported_error, sse::Event},
    rpc::{INTERNAL, RpcError},
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::VecDeque;

/// Most tool calls of an answer.
const MAX_CALLS: usize = 1000;

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    content: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallDelta>>,
}

#[derive(Deserialize)]
struct CallDelta {
    index: Option<usize>,
    id: Option<String>,
    function: Option<FunctionDelta>,
    custom: Option<CustomDelta>,
}

#[derive(Deserialize, Default)]
struct FunctionDelta {
    name: Option<String>,
    /// A string; some servers give the object itself.
    arguments: Option<Value>,
}

/// Of a tool whose input is a text, not JSON.
#[derive(Deserialize)]
struct CustomDelta {
    name: Option<String>,
    input: Option<String>,
}

/// A tool call as it grows.
#[derive(Debug)]
struct Call {
    index: usize,
    id: String,
    name: String,
    arguments: String,
    /// They are a text.
    is_custom: bool,
}

/// Tokens, from an answer's `usage`.
pub(super) fn usage(reported: &Value) -> Option<Usage> {
    let mut decoder = Decoder::default();
    decoder.count(reported);
    decoder.usage
}

/// An answer as it grows.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    said: String,
    refused: bool,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    done: bool,
}

impl Decode for Decoder {
    fn held(&self) -> usize {
        let of = |call: &Call| {
            size_of::<Call>() + call.id.capacity() + call.name.capacity() + call.arguments.capacity()
        };
        self.said.capacity() + self.calls.iter().map(of).sum::<usize>()
    }

    fn reported_usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        if event.data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let body: Value =
            serde_json::from_str(&event.data).map_err(|_| strange("an event that is none of its API"))?;
        if event.name == "error" || body.get("error").is_some_and(|error| !error.is_null()) {
            return Err(reported_error(&body).unwrap_or_else(|| strange("an error without a message")));
        }
        let chunk: Chunk =
            serde_json::from_value(body).map_err(|_| strange("an event that is none of its API"))?;
        if let Some(usage) = &chunk.usage {
            self.count(usage);
        }
        // Others are answers that nobody asked for.
        for choice in chunk.choices.into_iter().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta, pieces)?;
            }
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Answer, RpcError> {
        let Self { said, refused, calls, finish_reason, usage, .. } = *self;
        let reason = finish_reason
            .ok_or_else(|| RpcError::new(INTERNAL, "the provider's stream ended without a finish reason"))?;
        let stop_reason = match reason.as_str() {
            // Some servers say `stop` where they call tools.
            "stop" | "tool_calls" | "function_call" if !calls.is_empty() => "tool_use",
            "stop" | "tool_calls" | "function_call" if refused => "refusal",
            "stop" | "tool_calls" | "function_call" => "end_turn",
            "length" => "max_tokens",
            other => other,
        }
        .to_owned();
        let mut tool_calls = Vec::new();
        // An answer that stopped for another reason may have cut a call off.
        for call in calls.into_iter().filter(|_| stop_reason == "tool_use") {
            let input = match call.is_custom {
                // What has no form for it, the runtime and another provider, takes it as an object.
                true => raw(&json!({ "input": call.arguments })),
                false => arguments(&call.name, &call.arguments)?,
            };
            tool_calls.push(ToolCall { id: call.id, name: call.name, input });
        }
        let content = if said.is_empty() { Vec::new() } else { vec![Block::text(&said)] };
        Ok(Answer { stop_reason, content, tool_calls, usage })
    }
}

impl Decoder {
    fn delta(&mut self, delta: Delta, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        self.refused |= delta.refusal.is_some();
        for said in [delta.content, delta.refusal].into_iter().flatten().filter(|said| !said.is_empty()) {
            self.said.push_str(&said);
            pieces.push_back(Piece::Text(said));
        }
        for piece in delta.tool_calls.into_iter().flatten() {
            self.call(piece, pieces)?;
        }
        Ok(())
    }

    fn call(&mut self, piece: CallDelta, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let (is_custom, function) = match (piece.function, piece.custom) {
            (None, Some(CustomDelta { name, input })) => {
                (true, FunctionDelta { name, arguments: input.map(Value::String) })
            }
            (function, _) => (false, function.unwrap_or_default()),
        };
        let id = piece.id.filter(|id| !id.is_empty());
        let index = piece.index.unwrap_or_else(|| match self.calls.last() {
            // Without an index, an id or name begins a call.
            Some(last) if id.is_none() && function.name.is_none() => last.index,
            Some(last) => last.index + 1,
            None => 0,
        });
        // Some servers give every call the same index, each with an id of its own.
        let known = self
            .calls
            .iter()
            .rposition(|c| c.index == index)
            .filter(|at| self.calls.get(*at).is_some_and(|c| id.as_ref().is_none_or(|id| *id == c.id)));
        let at = match known {
            Some(at) => at,
            None => {
                let name =
                    function.name.clone().filter(|name| !name.is_empty()).ok_or_else(|| {
                        RpcError::new(INTERNAL, "the provider sent a tool call without a name")
                    })?;
                if self.calls.len() >= MAX_CALLS {
                    return Err(RpcError::new(
                        INTERNAL,
                        format!("the provider sent more than {MAX_CALLS} tool calls"),
                    ));
                }
                let id = id.unwrap_or_default();
                pieces.push_back(Piece::ToolStart { id: id.clone(), name: name.clone() });
                self.calls.push(Call { index, id, name, arguments: String::new(), is_custom });
                self.calls.len() - 1
            }
        };
        let arguments = match function.arguments {
            Some(Value::String(piece)) => piece,
            Some(Value::Null) | None => String::new(),
            Some(whole) => whole.to_string(),
        };
        if let Some(call) = self.calls.get_mut(at)
            && !arguments.is_empty()
        {
            call.arguments.push_str(&arguments);
            // Pieces are those of a JSON object.
            if !call.is_custom {
                pieces.push_back(Piece::ToolInput { call: at, text: arguments });
            }
        }
        Ok(())
    }

    fn count(&mut self, reported: &Value) {
        let number = |pointer: &str| reported.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        if !reported.is_object() {
            return;
        }
        let cached = number("/prompt_tokens_details/cached_tokens");
        self.usage = Some(Usage {
            input_tokens: number("/prompt_tokens").saturating_sub(cached),
            output_tokens: number("/completion_tokens"),
            cache_read_tokens: cached,
            cache_write_tokens: 0,
        });
    }
}

#[cfg(test)]
mod tests;
