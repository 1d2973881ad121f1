//! OpenAI's Chat Completions, which compatible servers speak too.
//!
//! <https://platform.openai.com/docs/api-reference/chat> and `chat-streaming` beside it. Only what the conversation needs
//! is asked for: compatible servers know less.

use super::{Answer, Around, Piece, Usage, arguments, sse::Event, told};
use crate::{
    message::{Block, Image, Kind, Message, Role, ToolCall, raw},
    rpc::{INTERNAL, RpcError, Tool},
};
use ringfence_policy::agents::config::Llm;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};

/// Most tool calls of an answer.
const MAX_CALLS: usize = 1000;
/// How a tool's failure is said: the protocol has no field for it.
const FAILED: &str = "[the tool failed]";

/// Encodes a group: one message, or the results of one answer's tool calls.
pub(super) fn encode(group: &[Message]) -> Vec<u8> {
    let mut all: Vec<String> = Vec::new();
    // A tool's message holds text only; its images come behind the results, as from the user.
    let mut images: Vec<String> = Vec::new();
    for message in group {
        match message.role {
            Role::User => all.push(format!(r#"{{"role":"user","content":{}}}"#, content(&message.content))),
            Role::Assistant => all.extend(assistant(message)),
            Role::Tool => {
                let (shown, said): (Vec<&Block>, Vec<&Block>) =
                    message.content.iter().partition(|b| matches!(b.kind(), Kind::Image(_)));
                let failed = message.is_error.then(|| text_part(FAILED));
                let mut parts: Vec<String> =
                    failed.into_iter().chain(said.iter().map(|b| said_part(b))).collect();
                let id = text(&message.tool_call_id);
                if !shown.is_empty() {
                    parts.push(text_part("[images of this result follow]"));
                    images.push(text_part(&format!(
                        "Images of the result of tool call {}:",
                        message.tool_call_id.as_deref().unwrap_or_default()
                    )));
                    images.extend(shown.iter().filter_map(|b| part(b)));
                }
                let content = match (message.is_error, said.as_slice(), shown.is_empty()) {
                    (false, [one], true) if matches!(one.kind(), Kind::Text(_)) => content(&message.content),
                    _ if parts.is_empty() => "\"\"".to_owned(),
                    _ => format!("[{}]", parts.join(",")),
                };
                all.push(format!(r#"{{"role":"tool","tool_call_id":{id},"content":{content}}}"#));
            }
        }
    }
    if !images.is_empty() {
        all.push(format!(r#"{{"role":"user","content":[{}]}}"#, images.join(",")));
    }
    all.join(",").into_bytes()
}

/// One text is a string: the form that every server knows.
fn content(blocks: &[Block]) -> String {
    if let [one] = blocks
        && let Kind::Text(said) = one.kind()
    {
        return text(said);
    }
    format!("[{}]", blocks.iter().filter_map(part).collect::<Vec<_>>().join(","))
}

fn part(block: &Block) -> Option<String> {
    let image = |url: &str| json!({ "type": "image_url", "image_url": { "url": url } }).to_string();
    match block.kind() {
        Kind::Text(text) => Some(text_part(text)),
        Kind::Image(Image::Url(url)) => Some(image(url)),
        Kind::Image(Image::Data { media_type, data }) => {
            Some(image(&format!("data:{media_type};base64,{data}")))
        }
        Kind::Other(kind) if kind.contains("thinking") => None,
        Kind::ToolUse(_) => None,
        Kind::Other(_) => Some(block.raw().get().to_owned()),
    }
}

/// In a tool's result, what is no text is given as its JSON.
fn said_part(block: &Block) -> String {
    match block.kind() {
        Kind::Text(text) => text_part(text),
        _ => text_part(block.raw().get()),
    }
}

fn text_part(said: &str) -> String {
    json!({ "type": "text", "text": said }).to_string()
}

/// None for a message that says nothing.
fn assistant(message: &Message) -> Option<String> {
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        arguments: &'a str,
    }
    #[derive(Serialize)]
    struct Call<'a> {
        id: &'a str,
        r#type: &'a str,
        function: Function<'a>,
    }
    let said: String = message
        .content
        .iter()
        .filter_map(|b| if let Kind::Text(text) = b.kind() { Some(text.as_str()) } else { None })
        .collect();
    if said.is_empty() && message.tool_calls.is_empty() {
        return None;
    }
    let content = if said.is_empty() { "null".to_owned() } else { text(&said) };
    let calls: Vec<Call<'_>> = message
        .tool_calls
        .iter()
        .map(|call| Call {
            id: &call.id,
            r#type: "function",
            function: Function { name: &call.name, arguments: call.input.get() },
        })
        .collect();
    let calls = if calls.is_empty() { String::new() } else { format!(r#","tool_calls":{}"#, text(&calls)) };
    Some(format!(r#"{{"role":"assistant","content":{content}{calls}}}"#))
}

fn text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// What stands around the messages.
pub(super) fn around(llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> Around {
    #[derive(Serialize)]
    struct Function<'a> {
        name: &'a str,
        description: &'a str,
        parameters: &'a RawValue,
    }
    #[derive(Serialize)]
    struct OneTool<'a> {
        r#type: &'a str,
        function: Function<'a>,
    }
    let mut head: Map<String, Value> = llm.options.clone();
    head.insert("model".into(), json!(llm.model));
    // OpenAI replaced the older name, which compatible servers still have.
    let most = if llm.base_url.is_some() { "max_tokens" } else { "max_completion_tokens" };
    head.insert(most.into(), json!(llm.max_tokens));
    head.insert("stream".into(), json!(true));
    head.insert("stream_options".into(), json!({ "include_usage": true }));
    let mut before = text(&head);
    before.pop();
    if !tools.is_empty() {
        let listed: Vec<OneTool<'_>> = tools
            .iter()
            .map(|tool| OneTool {
                r#type: "function",
                function: Function {
                    name: &tool.name,
                    description: &tool.description,
                    parameters: &tool.parameters,
                },
            })
            .collect();
        before += &format!(",\"tools\":{}", text(&listed));
    }
    before += ",\"messages\":[";
    if let Some(system) = system.filter(|s| !s.is_empty()) {
        before += &format!(r#"{{"role":"system","content":{}}},"#, text(&system));
    }
    Around { before: before.into(), behind: "]}".into() }
}

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
pub(super) fn usage(told: &Value) -> Option<Usage> {
    let mut decoder = Decoder::default();
    decoder.count(told);
    decoder.usage
}

/// An answer as it grows.
#[derive(Debug, Default)]
pub struct Decoder {
    said: String,
    refused: bool,
    calls: Vec<Call>,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    done: bool,
}

impl Decoder {
    pub(super) fn held(&self) -> usize {
        let of = |call: &Call| {
            size_of::<Call>() + call.id.capacity() + call.name.capacity() + call.arguments.capacity()
        };
        self.said.capacity() + self.calls.iter().map(of).sum::<usize>()
    }

    pub(super) fn told(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn is_done(&self) -> bool {
        self.done
    }

    pub(super) fn event(&mut self, event: &Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        let strange = |what: &str| RpcError::new(INTERNAL, format!("the provider sent {what}"));
        if event.data.trim() == "[DONE]" {
            self.done = true;
            return Ok(());
        }
        let body: Value =
            serde_json::from_str(&event.data).map_err(|_| strange("an event that is none of its API"))?;
        if event.name == "error" || body.get("error").is_some_and(|error| !error.is_null()) {
            return Err(told(&body).unwrap_or_else(|| strange("an error without a message")));
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

    fn count(&mut self, told: &Value) {
        let number = |pointer: &str| told.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        if !told.is_object() {
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

    pub(super) fn finish(self) -> Result<Answer, RpcError> {
        let reason = self
            .finish_reason
            .ok_or_else(|| RpcError::new(INTERNAL, "the provider's stream ended without a finish reason"))?;
        let stop_reason = match reason.as_str() {
            // Some servers say `stop` where they call tools.
            "stop" | "tool_calls" | "function_call" if !self.calls.is_empty() => "tool_use",
            "stop" | "tool_calls" | "function_call" if self.refused => "refusal",
            "stop" | "tool_calls" | "function_call" => "end_turn",
            "length" => "max_tokens",
            other => other,
        }
        .to_owned();
        let mut tool_calls = Vec::new();
        // An answer that stopped for another reason may have cut a call off.
        for call in self.calls.into_iter().filter(|_| stop_reason == "tool_use") {
            let input = match call.is_custom {
                // What has no form for it, the runtime and another provider, takes it as an object.
                true => raw(&json!({ "input": call.arguments })),
                false => arguments(&call.name, &call.arguments)?,
            };
            tool_calls.push(ToolCall { id: call.id, name: call.name, input });
        }
        let content = if self.said.is_empty() { Vec::new() } else { vec![Block::text(&self.said)] };
        Ok(Answer { stop_reason, content, tool_calls, usage: self.usage })
    }
}

#[cfg(test)]
mod tests;
