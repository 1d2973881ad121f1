//! Providers: what they are sent, what they answer, as one model whatever their protocol.
//!
//! Encoding and decoding are pure, one file for each provider; this file makes the request and reads the stream.

mod anthropic;
mod openai;
pub(super) mod sse;

use super::{
    history::Pieces,
    message::{Block, Message, ToolCall},
    registry::{Llm, ProviderKind},
    rpc::{INTERNAL, RpcError, Tool},
    secret::{self, Secret},
};
use bytes::Bytes;
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    error::Error as _,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::timeout;

/// One for the process: its certificates are read and its idle connections kept once, not for each agent. What tells
/// agents apart, key and address, is in each request.
static CLIENT: OnceLock<Client> = OnceLock::new();
/// How long a connection may take to come about.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Most bytes of an error's body that are read.
const MAX_ERROR: usize = 64 << 10;
/// Most bytes of one answer.
const MAX_ANSWER: usize = 64 << 20;
/// What may follow an answer's end before its connection is used again.
const REST: Duration = Duration::from_secs(1);

/// Tokens of one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    /// Read, what the cache gave not included.
    pub(super) input_tokens: u64,
    /// Written by the model.
    pub(super) output_tokens: u64,
    /// Read from the provider's cache.
    pub(super) cache_read_tokens: u64,
    /// Written to the provider's cache.
    pub(super) cache_write_tokens: u64,
}

impl Usage {
    /// All kinds together.
    pub(super) fn tokens(&self) -> u64 {
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

/// A piece of an answer as it streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// Text.
    Text(String),
    /// A tool's call begins.
    ToolStart {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
    },
    /// Of the last call's arguments.
    ToolInput(String),
}

/// A whole answer.
#[derive(Debug, Clone)]
pub(super) struct Answer {
    /// Why the model stopped.
    pub(super) stop_reason: String,
    /// What it said.
    pub(super) content: Vec<Block>,
    /// The tools that it wants called.
    pub(super) tool_calls: Vec<ToolCall>,
    /// What it cost, where the provider says so.
    pub(super) usage: Option<Usage>,
}

/// Why a provider cannot be set up.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No key.
    #[error("the API key cannot be had")]
    Secret(#[source] secret::Error),
    /// The HTTP client.
    #[error("the HTTP client cannot be made")]
    Client(#[source] reqwest::Error),
    /// The key does not fit into a header.
    #[error("the API key cannot be sent in a header")]
    Header,
    /// The base URL leads nowhere.
    #[error("the base URL cannot be extended")]
    Url,
}

/// Encoded messages, joined by commas: the form in which a conversation keeps them. `mark`: let the provider's cache
/// remember up to here.
pub(super) fn encode(kind: ProviderKind, group: &[Message], mark: bool) -> Vec<u8> {
    match kind {
        ProviderKind::Anthropic => anthropic::encode(group, mark),
        ProviderKind::OpenAi => openai::encode(group),
    }
}

/// An agent's provider.
pub(super) struct Provider {
    kind: ProviderKind,
    client: Client,
    url: Url,
    headers: HeaderMap,
    llm: Llm,
    key: Option<Secret>,
}

/// What stands before and behind the messages in a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Around {
    pub(super) before: Bytes,
    pub(super) behind: Bytes,
}

impl Provider {
    /// Reads the key and makes the client. Blocks: a key may come from a command.
    ///
    /// # Errors
    /// [`Error`].
    pub(super) fn new(llm: &Llm) -> Result<Self, Error> {
        let key = llm.api_key.as_ref().map(secret::Source::read).transpose().map_err(Error::Secret)?;
        let (base, path) = match llm.provider {
            ProviderKind::Anthropic => ("https://api.anthropic.com", "v1/messages"),
            ProviderKind::OpenAi => ("https://api.openai.com/v1", "chat/completions"),
        };
        let base = llm.base_url.as_ref().map_or(base, |url| url.as_str()).trim_end_matches('/');
        let url = Url::parse(&format!("{base}/{path}")).map_err(|_| Error::Url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if llm.provider == ProviderKind::Anthropic {
            headers.insert("anthropic-version", HeaderValue::from_static(anthropic::VERSION));
        }
        if let Some(key) = &key {
            let (name, value) = match llm.provider {
                ProviderKind::Anthropic => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
                ProviderKind::OpenAi => (reqwest::header::AUTHORIZATION, format!("Bearer {}", key.expose())),
            };
            let value = zeroize::Zeroizing::new(value);
            let mut value = HeaderValue::from_str(&value).map_err(|_| Error::Header)?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(Self { kind: llm.provider, client: client()?, url, headers, llm: llm.clone(), key })
    }

    /// The key, for taking it out of answers.
    pub(super) fn key(&self) -> Option<&Secret> {
        self.key.as_ref()
    }

    /// Which protocol.
    pub(super) fn kind(&self) -> ProviderKind {
        self.kind
    }

    /// Whether the provider's cache wants to be told up to where.
    pub(super) fn marks(&self) -> bool {
        self.kind == ProviderKind::Anthropic && self.llm.prompt_cache
    }

    /// What stands around the messages: made anew only when system or tools change.
    pub(super) fn around(&self, system: Option<&str>, tools: &[Arc<Tool>]) -> Around {
        match self.kind {
            ProviderKind::Anthropic => anthropic::around(&self.llm, system, tools),
            ProviderKind::OpenAi => openai::around(&self.llm, system, tools),
        }
    }

    /// Sends a client's request on, whose answer is the client's as it is. `suffix`: behind the address of answers.
    ///
    /// # Errors
    /// The provider cannot be reached.
    pub(super) async fn forward(&self, suffix: Option<&str>, body: Bytes) -> Result<Response, RpcError> {
        let mut url = self.url.clone();
        if let Some(suffix) = suffix {
            url.set_path(&format!("{}{suffix}", self.url.path()));
        }
        let mut headers = self.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        let request = self.client.post(url).headers(headers).body(body);
        let response = timeout(self.llm.timeout, request.send()).await.map_err(|_| silent())?;
        response.map_err(|error| unreachable(&error))
    }

    /// Asks for an answer.
    ///
    /// # Errors
    /// The provider's own error with its status, or -32603.
    pub(super) async fn ask(&self, body: Pieces) -> Result<Stream, RpcError> {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        let response = timeout(self.llm.timeout, request.send()).await.map_err(|_| silent())?;
        let response = response.map_err(|error| unreachable(&error))?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let kind = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            let what = format!("the provider answered with {kind:?}, not with an event stream");
            let body = beginning(response).await;
            let told = serde_json::from_slice::<Value>(&body).ok().as_ref().and_then(told);
            return Err(told.unwrap_or_else(|| RpcError::new(INTERNAL, what)));
        }
        let decoder = Decoder::new(self.kind);
        Ok(Stream {
            response: Some(response),
            events: sse::Events::default(),
            waiting: VecDeque::new(),
            decoder,
            failed: None,
            timeout: self.llm.timeout,
            read: 0,
        })
    }
}

fn client() -> Result<Client, Error> {
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    // Whoever came first has set it: there is one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::builder()
        .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .pool_idle_timeout(Duration::from_secs(50))
        // A credential goes where the profile says, and nowhere else.
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
        .build()
        .map_err(Error::Client)?;
    Ok(CLIENT.get_or_init(|| client).clone())
}

/// Reads an answer's events.
pub(in crate::llm) enum Decoder {
    /// Messages.
    Anthropic(anthropic::Decoder),
    /// Chat Completions.
    OpenAi(openai::Decoder),
}

/// Tokens, as a provider's `usage` has them.
pub(super) fn usage(kind: ProviderKind, told: &Value) -> Option<Usage> {
    match kind {
        ProviderKind::Anthropic => anthropic::usage(told),
        ProviderKind::OpenAi => openai::usage(told),
    }
}

impl Decoder {
    /// Of an answer that begins.
    pub(super) fn new(kind: ProviderKind) -> Self {
        match kind {
            ProviderKind::Anthropic => Self::Anthropic(anthropic::Decoder::default()),
            ProviderKind::OpenAi => Self::OpenAi(openai::Decoder::default()),
        }
    }

    /// Takes an event in; adds what it says.
    ///
    /// # Errors
    /// The provider's own error, or an event that is none of its API.
    pub(super) fn event(&mut self, event: &sse::Event, pieces: &mut VecDeque<Piece>) -> Result<(), RpcError> {
        match self {
            Self::Anthropic(decoder) => decoder.event(event, pieces),
            Self::OpenAi(decoder) => decoder.event(event, pieces),
        }
    }

    /// Whether the answer is whole.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Anthropic(decoder) => decoder.is_done(),
            Self::OpenAi(decoder) => decoder.is_done(),
        }
    }

    /// The whole answer.
    ///
    /// # Errors
    /// Arguments of a tool call that are no JSON object.
    pub(super) fn finish(self) -> Result<Answer, RpcError> {
        match self {
            Self::Anthropic(decoder) => decoder.finish(),
            Self::OpenAi(decoder) => decoder.finish(),
        }
    }
}

/// An answer that streams.
pub(super) struct Stream {
    response: Option<Response>,
    events: sse::Events,
    waiting: VecDeque<Piece>,
    decoder: Decoder,
    /// What is told once the pieces before it are.
    failed: Option<RpcError>,
    timeout: Duration,
    read: usize,
}

impl Stream {
    /// The next piece; none: the answer is whole.
    ///
    /// # Errors
    /// The provider's own error, or -32603: a stream without its final event is never an answer.
    pub(super) async fn next(&mut self) -> Result<Option<Piece>, RpcError> {
        loop {
            if let Some(piece) = self.waiting.pop_front() {
                return Ok(Some(piece));
            }
            if let Some(error) = self.failed.take() {
                return Err(error);
            }
            if self.decoder.is_done() {
                self.response.take().map(|rest| tokio::spawn(drain(rest)));
                return Ok(None);
            }
            let Some(response) = &mut self.response else { return Err(cut()) };
            let chunk = timeout(self.timeout, response.chunk()).await.map_err(|_| silent())?;
            let chunk = chunk.map_err(|error| broken(&error))?.ok_or_else(cut)?;
            self.read += chunk.len();
            if self.read > MAX_ANSWER {
                return Err(RpcError::new(
                    INTERNAL,
                    format!("the provider's answer has more than {MAX_ANSWER} bytes"),
                ));
            }
            let mut events = Vec::new();
            let fed = self.events.feed(&chunk, |event| events.push(event));
            for event in events {
                if !self.decoder.is_done() && self.failed.is_none() {
                    self.failed = self.decoder.event(&event, &mut self.waiting).err();
                }
            }
            if let (Err(error), None, false) = (fed, &self.failed, self.decoder.is_done()) {
                self.failed = Some(RpcError::new(INTERNAL, format!("the provider sent {error}")));
            }
        }
    }

    /// The whole answer, once [`Self::next`] said so.
    ///
    /// # Errors
    /// Arguments of a tool call that are no JSON object.
    pub(super) fn finish(self) -> Result<Answer, RpcError> {
        self.decoder.finish()
    }
}

/// Reads what follows the final event, so that the connection can be used again.
async fn drain(mut response: Response) {
    let rest = async { while let Ok(Some(_)) = response.chunk().await {} };
    let _ = tokio::time::timeout(REST, rest).await;
}

fn cut() -> RpcError {
    RpcError::new(INTERNAL, "the provider's stream ended before its final event")
}

fn silent() -> RpcError {
    RpcError::new(INTERNAL, "the provider was silent for too long")
}

/// Errors of the HTTP client without the address: the agent does not know who its provider is.
fn unreachable(error: &reqwest::Error) -> RpcError {
    let what = if error.is_timeout() {
        "the provider did not answer in time"
    } else {
        "the provider cannot be reached"
    };
    RpcError::new(INTERNAL, format!("{what}: {}", root(error)))
}

fn broken(error: &reqwest::Error) -> RpcError {
    RpcError::new(INTERNAL, format!("the provider's stream broke: {}", root(error)))
}

fn root(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = match error.source() {
        Some(source) => source,
        None => return "no reason given".to_owned(),
    };
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

async fn beginning(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(chunk)) = response.chunk().await {
            body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - body.len())]);
            if body.len() >= MAX_ERROR {
                return;
            }
        }
    };
    let _ = tokio::time::timeout(Duration::from_secs(5), read).await;
    body
}

/// An HTTP error as it is: its status is the code, its message the message.
async fn refusal(response: Response) -> RpcError {
    let status = response.status();
    let after = response.headers().get(RETRY_AFTER).and_then(|v| v.to_str().ok()).map(str::to_owned);
    let body = beginning(response).await;
    let body: Option<Value> = serde_json::from_slice(&body).ok().or_else(|| {
        let text = String::from_utf8_lossy(&body).trim().chars().take(2000).collect::<String>();
        (!text.is_empty()).then(|| json!({ "error": { "message": text } }))
    });
    let told = body.as_ref().and_then(told);
    let reason = status.canonical_reason().unwrap_or("no reason given").to_owned();
    let mut error = told.unwrap_or_else(|| RpcError::new(0, reason));
    error.code = i64::from(status.as_u16());
    if let Some(after) = after {
        let number = after.parse::<u64>().ok().map(Value::from);
        let data = error.data.get_or_insert_with(|| json!({}));
        data["retry_after"] = number.unwrap_or_else(|| Value::from(after));
    }
    error
}

/// The error in a provider's JSON, at the status that its type stands for.
fn told(body: &Value) -> Option<RpcError> {
    let error = body.get("error")?;
    let kind = error.get("type").and_then(Value::as_str).or(error.get("code").and_then(Value::as_str));
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
fn arguments(tool: &str, text: &str) -> Result<Box<serde_json::value::RawValue>, RpcError> {
    let text = if text.trim().is_empty() { "{}" } else { text };
    let wrong = |why: &str| {
        RpcError::new(
            INTERNAL,
            format!("the provider called the tool {tool:?} with arguments that are {why}"),
        )
    };
    let map: serde_json::Map<String, Value> = serde_json::from_str(text)
        .map_err(|e| wrong(if e.is_data() { "no JSON object" } else { "no JSON" }))?;
    drop(map);
    let call = format!("{{\"id\":\"\",\"name\":\"\",\"input\":{text}}}");
    serde_json::from_str::<ToolCall>(&call).map(|call| call.input).map_err(|_| wrong("no JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Values as a provider's events have them, and as they should not.
    fn value() -> impl Strategy<Value = Value> {
        let word = prop::sample::select(vec![
            "text",
            "tool_use",
            "thinking",
            "message_start",
            "content_block_start",
            "content_block_delta",
            "message_delta",
            "message_stop",
            "error",
            "text_delta",
            "input_json_delta",
            "end_turn",
            "{",
            "}",
            "[DONE]",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-2i64..3).prop_map(Value::from),
            word.prop_map(Value::from),
        ];
        let key = prop::sample::select(vec![
            "type",
            "index",
            "delta",
            "content_block",
            "message",
            "usage",
            "error",
            "text",
            "id",
            "name",
            "input",
            "partial_json",
            "stop_reason",
            "choices",
            "content",
            "tool_calls",
            "function",
            "arguments",
            "finish_reason",
            "citation",
            "code",
        ]);
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((key.clone(), inner), 0..6)
                    .prop_map(|fields| fields.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_event_panics_a_decoder(events in prop::collection::vec((any::<bool>(), value()), 0..8)) {
            for mut decoder in [Decoder::Anthropic(Default::default()), Decoder::OpenAi(Default::default())] {
                let mut pieces = VecDeque::new();
                for (is_error, data) in &events {
                    let name = if *is_error { "error" } else { "" };
                    let event = sse::Event { name: name.to_owned(), data: data.to_string() };
                    let _ = decoder.event(&event, &mut pieces);
                }
                let answer = match decoder {
                    Decoder::Anthropic(decoder) => decoder.finish(),
                    Decoder::OpenAi(decoder) => decoder.finish(),
                };
                // Whatever came of it can be logged, sent on and sent back.
                if let Ok(Answer { content, tool_calls, .. }) = answer {
                    let message = Message {
                        role: super::super::message::Role::Assistant,
                        content,
                        tool_calls,
                        tool_call_id: None,
                        is_error: false,
                    };
                    let line = serde_json::to_string(&message).unwrap();
                    prop_assert!(!line.contains('\n'));
                    serde_json::from_str::<Message>(&line).unwrap();
                    for kind in [ProviderKind::Anthropic, ProviderKind::OpenAi] {
                        let sent = encode(kind, std::slice::from_ref(&message), true);
                        let whole = [b"[".as_slice(), &sent, b"]"].concat();
                        serde_json::from_slice::<Value>(&whole).unwrap();
                    }
                }
            }
        }
    }
}
