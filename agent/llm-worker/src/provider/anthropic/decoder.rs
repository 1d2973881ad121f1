//! Reads Anthropic's event streams.

use super::tool_use;
use crate::{
    message::{Block, ToolCall},
    provider::{
        Answer, Decode, Piece, Usage, arguments, json_text,
        measure::{fields_weight, weight},
        reported_error,
        sse::Event,
    },
    rpc::{INTERNAL, RpcError},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;

/// Most blocks of an answer.
const MAX_BLOCKS: usize = 1000;

/// Tokens, from an answer's `usage`.
pub(super) fn usage(reported: &Value) -> Option<Usage> {
    let mut decoder = Decoder::default();
    decoder.count(reported.is_object().then_some(reported));
    decoder.usage
}

#[derive(Deserialize)]
struct Chunk {
    r#type: String,
    #[serde(default)]
    index: usize,
    message: Option<Value>,
    content_block: Option<Map<String, Value>>,
    delta: Option<Map<String, Value>>,
    usage: Option<Value>,
}

/// A block as it grows.
#[derive(Debug)]
struct Growing {
    /// Which of the answer's tool calls it is, if it is one.
    call: Option<usize>,
    fields: Map<String, Value>,
    /// Pieces of a tool call's arguments.
    input: String,
}

/// An answer as it grows.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    blocks: Vec<Growing>,
    calls: usize,
    stop_reason: Option<String>,
    usage: Option<Usage>,
    done: bool,
    /// Bytes of the blocks, roughly: what replaces something counts beside it.
    held: usize,
}

impl Decode for Decoder {
    fn held(&self) -> usize {
        self.held
    }

    fn reported_usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        if event.name == "error" {
            let body = serde_json::from_str(&event.data).unwrap_or_else(|_| json!({ "error": event.data }));
            return Err(reported_error(&body).unwrap_or_else(|| strange("an error without a message")));
        }
        let chunk: Chunk =
            serde_json::from_str(&event.data).map_err(|_| strange("an event that is none of its API"))?;
        match chunk.r#type.as_str() {
            "message_start" => {
                self.count(chunk.message.as_ref().and_then(|m| m.get("usage")));
            }
            "content_block_start" => {
                let fields = chunk.content_block.ok_or_else(|| strange("a block without its content"))?;
                if chunk.index != self.blocks.len() || chunk.index >= MAX_BLOCKS {
                    return Err(strange("blocks out of order"));
                }
                let is_call = start(&fields, pieces).ok_or_else(|| strange("a tool call without a name"))?;
                let call = is_call.then_some(self.calls);
                self.calls += usize::from(is_call);
                self.held += size_of::<Growing>() + fields_weight(&fields);
                self.blocks.push(Growing { call, fields, input: String::new() });
            }
            "content_block_delta" => {
                let delta = chunk.delta.ok_or_else(|| strange("a delta without its content"))?;
                let block = self.blocks.get_mut(chunk.index).ok_or_else(|| strange("a delta of no block"))?;
                self.held += delta.values().map(weight).sum::<usize>();
                grow(block, &delta, pieces);
            }
            "message_delta" => {
                let delta = chunk.delta.unwrap_or_default();
                if let Some(reason) = delta.get("stop_reason").and_then(Value::as_str) {
                    self.stop_reason = Some(reason.to_owned());
                }
                self.count(chunk.usage.as_ref());
            }
            "message_stop" => self.done = true,
            "error" => {
                let body = serde_json::from_str(&event.data).unwrap_or_default();
                return Err(reported_error(&body).unwrap_or_else(|| strange("an error without a message")));
            }
            // `ping`, `content_block_stop`, and what is yet to come.
            _ => {}
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Answer, RpcError> {
        let Self { blocks, stop_reason, usage, .. } = *self;
        let stop_reason = stop_reason
            .ok_or_else(|| RpcError::new(INTERNAL, "the provider's stream ended without a stop reason"))?;
        let (mut content, mut tool_calls) = (Vec::new(), Vec::new());
        // Where something follows a call, its place matters: it stays in the content as well.
        let last_said = blocks.iter().rposition(|block| block.call.is_none());
        for (i, mut block) in blocks.into_iter().enumerate() {
            if block.call.is_some() {
                // An answer that stopped for another reason than to call tools may have cut this one off.
                if stop_reason != "tool_use" {
                    continue;
                }
                let call = tool_call(&block)?;
                if last_said.is_some_and(|last| i < last) {
                    content.push(in_place(&call)?);
                }
                tool_calls.push(call);
                continue;
            }
            if !block.input.is_empty() {
                let input = serde_json::from_str(&block.input).unwrap_or(Value::String(block.input));
                block.fields.insert("input".into(), input);
            }
            content.push(parse(&json_text(&block.fields))?);
        }
        Ok(Answer { stop_reason, content, tool_calls, usage })
    }
}

impl Decoder {
    /// Counts are totals so far: a later one replaces an earlier.
    fn count(&mut self, usage: Option<&Value>) {
        let Some(reported) = usage else { return };
        let usage = self.usage.get_or_insert_default();
        let number = |key: &str, to: &mut u64| *to = reported.get(key).and_then(Value::as_u64).unwrap_or(*to);
        number("input_tokens", &mut usage.input_tokens);
        number("output_tokens", &mut usage.output_tokens);
        number("cache_read_input_tokens", &mut usage.cache_read_tokens);
        number("cache_creation_input_tokens", &mut usage.cache_write_tokens);
    }
}

fn parse(json: &str) -> Result<Block, RpcError> {
    serde_json::from_str(json)
        .map_err(|e| RpcError::new(INTERNAL, format!("the provider sent a block that is none: {e}")))
}

/// A tool call as a block among others.
pub(crate) fn in_place(call: &ToolCall) -> Result<Block, RpcError> {
    parse(&tool_use(call))
}

fn tool_call(block: &Growing) -> Result<ToolCall, RpcError> {
    let field = |key: &str| block.fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let name = field("name");
    // A compatible server may give all of it at once.
    let whole = block.fields.get("input").filter(|input| input.is_object() && block.input.is_empty());
    let input = match whole {
        Some(input) => arguments(&name, &input.to_string()),
        None => arguments(&name, &block.input),
    }?;
    Ok(ToolCall { id: field("id"), name, input })
}

/// Whether it is a tool call; none: one that lacks what makes it one.
fn start(fields: &Map<String, Value>, pieces: &mut VecDeque<Piece>) -> Option<bool> {
    let field = |key: &str| fields.get(key).and_then(Value::as_str);
    match field("type") {
        Some("tool_use") => {
            let (id, name) = (field("id").unwrap_or_default(), field("name").filter(|s| !s.is_empty())?);
            pieces.push_back(Piece::ToolStart { id: id.to_owned(), name: name.to_owned() });
            return Some(true);
        }
        Some("text") => {
            let first = field("text").filter(|text| !text.is_empty());
            pieces.extend(first.map(|text| Piece::Text(text.to_owned())));
        }
        _ => {}
    }
    Some(false)
}

/// A delta named `x_delta` adds to a field; what we do not know is taken in by the same rule where it can be.
fn grow(block: &mut Growing, delta: &Map<String, Value>, pieces: &mut VecDeque<Piece>) {
    for (key, value) in delta.iter().filter(|(key, _)| *key != "type") {
        match (key.as_str(), value) {
            ("partial_json", Value::String(piece)) => {
                block.input.push_str(piece);
                if let Some(call) = block.call
                    && !piece.is_empty()
                {
                    pieces.push_back(Piece::ToolInput { call, text: piece.clone() });
                }
            }
            // A call that began under a name keeps it: somebody may have been told.
            _ if block.call.is_some() => {}
            ("citation", citation) => {
                let citations = block.fields.entry("citations").or_insert_with(|| json!([]));
                match citations.as_array_mut() {
                    Some(citations) => citations.push(citation.clone()),
                    None => *citations = json!([citation]),
                }
            }
            (key, Value::String(piece)) => {
                match block.fields.get_mut(key) {
                    Some(Value::String(text)) => text.push_str(piece),
                    _ => drop(block.fields.insert(key.to_owned(), json!(piece))),
                }
                if key == "text" && !piece.is_empty() {
                    pieces.push_back(Piece::Text(piece.clone()));
                }
            }
            (key, other) => drop(block.fields.insert(key.to_owned(), other.clone())),
        }
    }
}
