//! Anthropic's Messages.
//!
//! <https://platform.claude.com/docs/en/api/messages> and `build-with-claude/streaming`, `prompt-caching` beside it.

use super::{
    Answer, Around, Piece, Usage, arguments,
    measure::{fields_weight, weight},
    sse::Event,
    told,
};
use crate::{
    message::{Block, Image, Kind, Message, Role, ToolCall},
    rpc::{INTERNAL, RpcError, Tool},
};
use ringfence_policy::agents::config::Llm;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};

/// Most blocks of an answer.
const MAX_BLOCKS: usize = 1000;

const MARK: &str = r#""cache_control":{"type":"ephemeral"}"#;

/// Encodes a group: one message, or the results of one answer's tool calls.
pub(super) fn encode(group: &[Message], mark: bool) -> Vec<u8> {
    let (role, mut blocks) = match group {
        [] => return Vec::new(),
        [message] if message.role == Role::Assistant => ("assistant", said(message)),
        [message] if message.role == Role::User => {
            ("user", message.content.iter().filter_map(block).collect())
        }
        results => ("user", results.iter().map(result).collect::<Vec<_>>()),
    };
    // The provider refuses a message that says nothing.
    let Some(last) = blocks.last_mut() else { return Vec::new() };
    // A mark on the model's own blocks would be one on its thinking, which cannot have any.
    if mark && role == "user" && last.ends_with('}') && !last.contains("\"cache_control\"") {
        last.truncate(last.len() - 1);
        last.push_str(&format!(",{MARK}}}"));
    }
    format!(r#"{{"role":"{role}","content":[{}]}}"#, blocks.join(",")).into_bytes()
}

fn said(message: &Message) -> Vec<String> {
    let in_place: Vec<&str> = message
        .content
        .iter()
        .filter_map(|b| if let Kind::ToolUse(id) = b.kind() { Some(id.as_str()) } else { None })
        .collect();
    let calls = message.tool_calls.iter().filter(|call| !in_place.contains(&call.id.as_str()));
    message.content.iter().filter_map(block).chain(calls.map(tool_use)).collect()
}

fn tool_use(call: &ToolCall) -> String {
    #[derive(Serialize)]
    struct ToolUse<'a> {
        r#type: &'a str,
        id: &'a str,
        name: &'a str,
        input: &'a RawValue,
    }
    text(&ToolUse { r#type: "tool_use", id: &call.id, name: &call.name, input: &call.input })
}

/// None for an empty text, which the provider refuses.
fn block(block: &Block) -> Option<String> {
    match block.kind() {
        Kind::Text(text) if text.is_empty() => None,
        Kind::Image(Image::Data { media_type, data }) => {
            let source = json!({ "type": "base64", "media_type": media_type, "data": data });
            Some(json!({ "type": "image", "source": source }).to_string())
        }
        Kind::Image(Image::Url(url)) => {
            Some(json!({ "type": "image", "source": { "type": "url", "url": url } }).to_string())
        }
        _ => Some(block.raw().get().to_owned()),
    }
}

fn result(message: &Message) -> String {
    let id = text(&message.tool_call_id);
    let content: Vec<String> = message.content.iter().filter_map(block).collect();
    let content =
        if content.is_empty() { String::new() } else { format!(r#","content":[{}]"#, content.join(",")) };
    let error = if message.is_error { r#","is_error":true"# } else { "" };
    format!(r#"{{"type":"tool_result","tool_use_id":{id}{content}{error}}}"#)
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What stands around the messages.
pub(super) fn around(llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> Around {
    #[derive(Serialize)]
    struct OneTool<'a> {
        name: &'a str,
        description: &'a str,
        input_schema: &'a RawValue,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<Value>,
    }
    let ephemeral = || json!({ "type": "ephemeral" });
    let mut head: Map<String, Value> = llm.options.clone();
    head.insert("model".into(), json!(llm.model));
    head.insert("max_tokens".into(), json!(llm.max_tokens));
    head.insert("stream".into(), json!(true));
    if let Some(system) = system.filter(|s| !s.is_empty()) {
        let mut block = json!({ "type": "text", "text": system });
        if llm.prompt_cache {
            block["cache_control"] = ephemeral();
        }
        head.insert("system".into(), json!([block]));
    }
    let mut before = text(&head);
    before.pop();
    if !tools.is_empty() {
        // The provider's cache holds tools, system and messages in this order: a mark on system covers the tools.
        let unmarked = system.is_none_or(str::is_empty) && llm.prompt_cache;
        let listed: Vec<OneTool<'_>> = tools
            .iter()
            .enumerate()
            .map(|(i, tool)| OneTool {
                name: &tool.name,
                description: &tool.description,
                input_schema: &tool.parameters,
                cache_control: (unmarked && i + 1 == tools.len()).then(ephemeral),
            })
            .collect();
        before += &format!(",\"tools\":{}", text(&listed));
    }
    before += ",\"messages\":[";
    Around { before: before.into(), behind: "]}".into() }
}

/// Tokens, from an answer's `usage`.
pub(super) fn usage(told: &Value) -> Option<Usage> {
    let mut decoder = Decoder::default();
    decoder.count(told.is_object().then_some(told));
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
pub struct Decoder {
    blocks: Vec<Growing>,
    calls: usize,
    stop_reason: Option<String>,
    usage: Option<Usage>,
    done: bool,
    /// Bytes of the blocks, roughly: what replaces something counts beside it.
    held: usize,
}

impl Decoder {
    pub(super) fn held(&self) -> usize {
        self.held
    }

    pub(super) fn told(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        if event.name == "error" {
            let body = serde_json::from_str(&event.data).unwrap_or_else(|_| json!({ "error": event.data }));
            return Err(told(&body).unwrap_or_else(|| strange("an error without a message")));
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
                return Err(told(&body).unwrap_or_else(|| strange("an error without a message")));
            }
            // `ping`, `content_block_stop`, and what is yet to come.
            _ => {}
        }
        Ok(())
    }

    /// Counts are totals so far: a later one replaces an earlier.
    fn count(&mut self, usage: Option<&Value>) {
        let Some(told) = usage else { return };
        let usage = self.usage.get_or_insert_default();
        let number = |key: &str, to: &mut u64| *to = told.get(key).and_then(Value::as_u64).unwrap_or(*to);
        number("input_tokens", &mut usage.input_tokens);
        number("output_tokens", &mut usage.output_tokens);
        number("cache_read_input_tokens", &mut usage.cache_read_tokens);
        number("cache_creation_input_tokens", &mut usage.cache_write_tokens);
    }

    pub(super) fn finish(self) -> Result<Answer, RpcError> {
        let stop_reason = self
            .stop_reason
            .ok_or_else(|| RpcError::new(INTERNAL, "the provider's stream ended without a stop reason"))?;
        let (mut content, mut tool_calls) = (Vec::new(), Vec::new());
        // Where something follows a call, its place matters: it stays in the content as well.
        let last_said = self.blocks.iter().rposition(|block| block.call.is_none());
        for (i, mut block) in self.blocks.into_iter().enumerate() {
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
            content.push(parse(&text(&block.fields))?);
        }
        Ok(Answer { stop_reason, content, tool_calls, usage: self.usage })
    }
}

fn parse(json: &str) -> Result<Block, RpcError> {
    serde_json::from_str(json)
        .map_err(|e| RpcError::new(INTERNAL, format!("the provider sent a block that is none: {e}")))
}

/// A tool call as a block among others.
pub(super) fn in_place(call: &ToolCall) -> Result<Block, RpcError> {
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
