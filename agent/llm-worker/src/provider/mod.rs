//! Providers: what they are sent, what they answer, as one model whatever their protocol. Pure: one file for each
//! provider, which implements [`Protocol`] for turns, and one for each of its APIs at the HTTP endpoint, which implements
//! [`Endpoint`]; `upstream` makes the request and reads the stream.

mod anthropic;
mod endpoint;
mod gemini;
mod measure;
mod openai;
pub mod schema;
pub mod sse;

use super::{
    credentials::Scheme,
    message::{Block, Kind, Message, ToolCall},
    rpc::{INTERNAL, RpcError, Tool},
};
use bytes::Bytes;
pub use endpoint::Wire;
pub(crate) use endpoint::{Endpoint, endpoint};
pub(crate) use gemini::position;
use reqwest::header::HeaderName;
use ringfence_policy::agents::config::{Llm, ProviderKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json, value::RawValue};
use std::{collections::VecDeque, sync::Arc};

/// How answers are read: those of turns and those of the HTTP endpoint alike.
pub(crate) trait Answers: Sync {
    /// Of an answer that begins.
    fn decoder(&self) -> Box<dyn Decode>;

    /// Bytes of what an event says of the model's words, whatever they are of: text, thinking, a tool's input, an answer
    /// beside the first. A call is charged by them where its provider does not report what it cost, so they do not depend on
    /// whether anything else of the event is understood.
    fn text_bytes(&self, event: &Value) -> usize;
}

/// Everything of turns that differs from one provider to another. What a limit or a check depends on has no default: a
/// provider that needs none says so.
pub(crate) trait Protocol: Answers {
    /// Where the service that the key is for is unless the profile says otherwise.
    fn address(&self, llm: &Llm) -> &'static str;

    /// What follows that address for an answer.
    fn path(&self, llm: &Llm) -> String;

    /// The header that carries a key, and how; and a feature that the request must have then.
    fn key_header(&self, llm: &Llm, key: &str) -> KeyHeader;

    /// The header that carries the id of the key's account, where the service wants it: in lower case.
    fn account_header(&self, _: &Llm) -> Option<&'static str> {
        None
    }

    /// Further headers of each request.
    fn headers(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// What the names of the headers begin with that a client's request has for it, and that go on with the request: what a
    /// body means can depend on them.
    fn client_headers(&self, _: &Llm) -> Option<&'static str> {
        None
    }

    /// The names of further such headers, in lower case.
    fn more_client_headers(&self, _: &Llm) -> &'static [&'static str] {
        &[]
    }

    /// What a client's request may have behind its path for it.
    fn client_query(&self) -> Option<&'static str> {
        None
    }

    /// Whether its cache remembers up to where a request says so.
    fn marks_cache(&self) -> bool {
        false
    }

    /// Encodes a group, one message or the results of one answer's tool calls, as [`encode`].
    fn encode(&self, group: &[Message], mark: bool) -> Vec<u8>;

    /// What stands around the messages: made anew only when system or tools change.
    fn request_template(&self, llm: &Llm, system: Option<&str>, tools: &[Arc<Tool>]) -> RequestTemplate;
}

/// How a key is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyHeader {
    /// The header that carries it.
    pub(crate) name: HeaderName,
    /// How it does.
    pub(crate) scheme: Scheme,
    /// A header beside it.
    pub(crate) beside: Option<(&'static str, &'static str)>,
}

/// The provider's own file.
pub(crate) fn protocol(kind: ProviderKind) -> &'static dyn Protocol {
    match kind {
        ProviderKind::Anthropic => &anthropic::Messages,
        ProviderKind::OpenAi => &openai::ChatCompletions,
        ProviderKind::Gemini => &gemini::GenerateContent,
    }
}

/// Reads an answer's events.
pub trait Decode: Send + Sync {
    /// Takes an event in; adds what it says.
    ///
    /// # Errors
    /// The provider's own error, or an event that is none of its API.
    fn event(&mut self, event: &sse::Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError>;

    /// Tokens, as far as the provider has reported them.
    fn reported_usage(&self) -> Option<Usage>;

    /// Bytes that it holds of the answer.
    fn held(&self) -> usize;

    /// Whether the answer is whole, whatever may follow.
    fn is_done(&self) -> bool;

    /// Whether it is whole if nothing follows, because the end of a stream is the answer's.
    fn may_end(&self) -> bool {
        self.is_done()
    }

    /// The whole answer.
    ///
    /// # Errors
    /// Arguments of a tool call that are no JSON object.
    fn finish(self: Box<Self>) -> Result<Answer, RpcError>;
}

/// Of an answer that begins.
pub fn decoder(kind: ProviderKind) -> Box<dyn Decode> {
    protocol(kind).decoder()
}

/// Encoded messages, joined by commas: the form in which a conversation keeps them. `mark`: let the provider's cache
/// remember up to here.
pub fn encode(kind: ProviderKind, group: &[Message], mark: bool) -> Vec<u8> {
    protocol(kind).encode(group, mark)
}

/// Tokens of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Read, what the cache gave not included.
    pub input_tokens: u64,
    /// Written by the model.
    pub output_tokens: u64,
    /// Read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Written to the provider's cache.
    pub cache_write_tokens: u64,
}

impl Usage {
    /// All kinds together.
    pub fn tokens(&self) -> u64 {
        let kinds = [self.output_tokens, self.cache_read_tokens, self.cache_write_tokens];
        kinds.into_iter().fold(self.input_tokens, u64::saturating_add)
    }
}

impl std::ops::AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        // A provider may say anything.
        for (sum, more) in [
            (&mut self.input_tokens, other.input_tokens),
            (&mut self.output_tokens, other.output_tokens),
            (&mut self.cache_read_tokens, other.cache_read_tokens),
            (&mut self.cache_write_tokens, other.cache_write_tokens),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Bytes of text to a token, roughly: what providers say of English. Other languages have fewer.
const TOKEN: usize = 4;

/// Tokens that a call has at least which is sent so many bytes.
pub fn least(sent: usize) -> u64 {
    (sent / TOKEN) as u64
}

/// What a call is counted with that ended before its provider reported all of its usage: as far as it was reported, and for
/// the rest by the bytes that were sent and the bytes of the model's words. Hanging up does not make it free.
pub(crate) fn cut_off(reported: Option<Usage>, sent: usize, text: usize) -> Usage {
    let mut usage = reported.unwrap_or_default();
    if usage.tokens() == usage.output_tokens {
        usage.input_tokens = least(sent);
    }
    usage.output_tokens = usage.output_tokens.max((text / TOKEN) as u64);
    usage
}

/// A piece of an answer as it streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text.
    Text(String),
    /// A tool's call begins. Calls are counted in the order in which they do, which is that of [`Answer::tool_calls`].
    ToolStart {
        /// The provider's id, whatever that is: it may be none, or another call's.
        id: String,
        /// The tool.
        name: String,
    },
    /// Of a call's arguments.
    ToolInput {
        /// Which call, counted from 0.
        call: usize,
        /// The next piece of JSON.
        text: String,
    },
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Why the model stopped.
    pub stop_reason: String,
    /// What it said.
    pub content: Vec<Block>,
    /// The tools that it wants called.
    pub tool_calls: Vec<ToolCall>,
    /// What it cost, where the provider says so.
    pub usage: Option<Usage>,
}

impl Answer {
    /// Names the calls anew, wherever they stand in the answer: the first by the first of `ids`, and so on.
    ///
    /// # Errors
    /// There are calls, and not as many as ids: it is not known which is which.
    pub fn name(&mut self, ids: &[&str]) -> Result<(), RpcError> {
        // An answer that was cut off may have begun calls that are none.
        if !self.tool_calls.is_empty() && self.tool_calls.len() != ids.len() {
            return Err(RpcError::new(INTERNAL, "the provider's answer has other tool calls than it began"));
        }
        for (call, id) in self.tool_calls.iter_mut().zip(ids) {
            (*id).clone_into(&mut call.id);
        }
        // Those whose place among other blocks matters stand there, too, and none is left out before the last of them.
        let mut calls = self.tool_calls.iter();
        for block in self.content.iter_mut().filter(|block| matches!(block.kind(), Kind::ToolUse(_))) {
            let call = calls.next().ok_or_else(|| {
                RpcError::new(INTERNAL, "the provider's answer has a tool call that it did not begin")
            })?;
            *block = anthropic::in_place(call)?;
        }
        Ok(())
    }
}

/// What stands before and behind the messages in a request.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestTemplate {
    /// What stands before the messages.
    pub(crate) before: Bytes,
    /// What stands behind them.
    pub(crate) after: Bytes,
}

/// An object of an answer as a block.
fn block_of(fields: Map<String, Value>) -> Option<Block> {
    serde_json::from_value(Value::Object(fields)).ok()
}

fn json_text(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The error in a provider's JSON, at the status that its type stands for.
pub(crate) fn reported_error(body: &Value) -> Option<RpcError> {
    let error = body.get("error")?;
    let kind = ["type", "code", "status"].iter().find_map(|key| error.get(key)?.as_str());
    let message = error.get("message").and_then(Value::as_str).or(error.as_str()).or(kind)?;
    let code = error.get("code").and_then(Value::as_i64).or_else(|| {
        Some(match kind? {
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "billing_error" => 402,
            "permission_error" => 403,
            "not_found_error" => 404,
            "request_too_large" => 413,
            "rate_limit_error" | "rate_limit_exceeded" => 429,
            "api_error" | "server_error" => 500,
            "timeout_error" => 504,
            "overloaded_error" => 529,
            _ => return None,
        })
    });
    let data = kind.map(|kind| json!({ "type": kind }));
    Some(RpcError { code: code.unwrap_or(INTERNAL), message: message.to_owned(), data })
}

/// A tool call's arguments, of which a stream gave the pieces. None at all is an empty object.
fn arguments(tool: &str, text: &str) -> Result<Box<RawValue>, RpcError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let wrong = |why: &str| {
        RpcError::new(
            INTERNAL,
            format!("the provider called the tool {tool:?} with arguments that are {why}"),
        )
    };
    let map: Map<String, Value> = serde_json::from_str(text)
        .map_err(|e| wrong(if e.is_data() { "no JSON object" } else { "no JSON" }))?;
    drop(map);
    let call = format!("{{\"id\":\"\",\"name\":\"\",\"input\":{text}}}");
    serde_json::from_str::<ToolCall>(&call).map(|call| call.input).map_err(|_| wrong("no JSON"))
}

#[cfg(test)]
mod tests;
