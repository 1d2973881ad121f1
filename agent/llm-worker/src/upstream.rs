//! Requests to a provider, and its answers as they stream.

use super::{
    credentials::{self, Scheme},
    history::Pieces,
    http::request::head::PassedHead,
    provider::{
        Answer, Decode, KeyHeader, Piece, Protocol, RequestTemplate, Usage, protocol, reported_error, sse,
    },
    rpc::{INTERNAL, RpcError, Tool},
};
use bytes::Bytes;
use reqwest::{
    Client, Response, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER},
};
use ringfence_base::error::root;
use ringfence_credentials::{self as secret, Secret};
use ringfence_policy::agents::config::{Llm, ProviderKind};
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

/// Why a provider cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No key.
    #[error("cannot read the API key")]
    Secret(#[source] secret::Error),
    /// The HTTP client.
    #[error("cannot create the HTTP client")]
    Client(#[source] reqwest::Error),
    /// The key does not fit into a header.
    #[error("the API key cannot be sent in a header")]
    Header,
    /// The base URL leads nowhere.
    #[error("the base URL is invalid")]
    Url,
}

/// An agent's provider.
pub struct Provider {
    protocol: &'static dyn Protocol,
    client: Client,
    /// Where its API is.
    base: String,
    /// Where turns ask for answers.
    url: Url,
    headers: HeaderMap,
    llm: Llm,
}

impl Provider {
    /// Makes the client. `account`: the id of the account that the key is of, where the provider wants it. Blocks: certificates
    /// are read.
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(llm: &Llm, key: Option<&Secret>, account: Option<&Secret>) -> Result<Self, Error> {
        let protocol = protocol(llm.provider);
        let base = llm.base_url.as_ref().map_or(protocol.address(llm), |url| url.as_str());
        let base = base.trim_end_matches('/').to_owned();
        let url = Url::parse(&format!("{base}/{}", protocol.path(llm))).map_err(|_| Error::Url)?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        for (name, value) in protocol.headers() {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        if let Some(key) = key {
            let KeyHeader { name, scheme, beside } = protocol.key_header(llm, key.expose());
            headers.insert(name, credentials::header(key, scheme).map_err(|_| Error::Header)?);
            headers.extend(
                beside.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))),
            );
        }
        if let (Some(name), Some(account)) = (protocol.account_header(llm), account) {
            let account = credentials::header(account, Scheme::Bare).map_err(|_| Error::Header)?;
            headers.insert(HeaderName::from_static(name), account);
        }
        Ok(Self { protocol, client: client()?, base, url, headers, llm: llm.clone() })
    }

    /// Which protocol.
    pub fn kind(&self) -> ProviderKind {
        self.llm.provider
    }

    /// Whether another sends the same key.
    pub(crate) fn has_key_of(&self, other: &Self) -> bool {
        self.headers == other.headers
    }

    /// Whether a request says up to where the provider's cache is to remember it.
    pub fn marks_cache(&self) -> bool {
        self.protocol.marks_cache() && self.llm.prompt_cache
    }

    /// What stands around the messages: made anew only when system or tools change.
    pub(crate) fn request_template(&self, system: Option<&str>, tools: &[Arc<Tool>]) -> RequestTemplate {
        self.protocol.request_template(&self.llm, system, tools)
    }

    /// Sends a client's request on, whose answer is the client's as it is. `path`: behind the API's address; `head`: what goes on
    /// of the client's own.
    ///
    /// # Errors
    /// The provider cannot be reached.
    pub async fn forward(&self, path: &str, head: PassedHead, body: Bytes) -> Result<Response, RpcError> {
        let mut url = Url::parse(&format!("{}/{path}", self.base))
            .map_err(|_| RpcError::new(INTERNAL, "the base URL is invalid"))?;
        url.set_query(head.query);
        let mut headers = self.headers.clone();
        headers.insert(ACCEPT, HeaderValue::from_static("*/*"));
        head.add_to(&mut headers);
        let request = self.client.post(url).headers(headers).body(body);
        let response = timeout(self.llm.timeout, request.send()).await.map_err(|_| silent())?;
        response.map_err(|error| unreachable(&error))
    }

    /// Asks for an answer.
    ///
    /// # Errors
    /// The provider's own error with its status, or -32603.
    pub async fn ask(&self, body: Pieces) -> Result<Stream, RpcError> {
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
            let reported = serde_json::from_slice::<Value>(&body).ok().as_ref().and_then(reported_error);
            return Err(reported.unwrap_or_else(|| RpcError::new(INTERNAL, what)));
        }
        Ok(Stream {
            response: Some(response),
            events: sse::Events::default(),
            waiting: VecDeque::new(),
            decoder: self.protocol.decoder(),
            failed: None,
            timeout: self.llm.timeout,
            read: 0,
            protocol: self.protocol,
            text_bytes: 0,
        })
    }
}

pub(crate) fn client() -> Result<Client, Error> {
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    let client = builder().build().map_err(Error::Client)?;
    Ok(CLIENT.get_or_init(|| client).clone())
}

/// One that asks this address alone. What goes to loopback in the clear goes by no proxy, which the environment may name.
pub(crate) fn client_for(url: &str) -> Result<Client, Error> {
    if url.starts_with("http:") { builder().no_proxy().build().map_err(Error::Client) } else { client() }
}

fn builder() -> reqwest::ClientBuilder {
    // Whoever came first has set it: there is one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        // The library would give up a connection after 30 s without an acknowledgement; how long is the profile's to say.
        .tcp_user_timeout(None)
        .pool_idle_timeout(Duration::from_secs(50))
        // A credential goes where the profile says, and nowhere else.
        .redirect(reqwest::redirect::Policy::none())
        .http1_only()
}

/// An answer that streams.
pub struct Stream {
    response: Option<Response>,
    events: sse::Events,
    waiting: VecDeque<Piece>,
    decoder: Box<dyn Decode>,
    /// What is told once the pieces before it are.
    failed: Option<RpcError>,
    timeout: Duration,
    read: usize,
    protocol: &'static dyn Protocol,
    /// Bytes of the model's words.
    text_bytes: usize,
}

impl Stream {
    /// The next piece; none: the answer is whole.
    ///
    /// # Errors
    /// The provider's own error, or -32603: a stream without its final event is never an answer.
    pub async fn next(&mut self) -> Result<Option<Piece>, RpcError> {
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
            let Some(chunk) = chunk.map_err(|error| broken(&error))? else {
                return if self.decoder.may_end() { Ok(None) } else { Err(cut()) };
            };
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
                self.text_bytes += match serde_json::from_str(&event.data) {
                    Ok(event) => self.protocol.text_bytes(&event),
                    // The end, or what nobody reads.
                    Err(_) if self.decoder.is_done() || event.data.trim() == "[DONE]" => 0,
                    Err(_) => event.data.len(),
                };
                if !self.decoder.is_done() && self.failed.is_none() {
                    self.failed = self.decoder.event(&event, &mut self.waiting).err();
                }
            }
            if let (Err(error), None, false) = (fed, &self.failed, self.decoder.is_done()) {
                self.failed = Some(RpcError::new(INTERNAL, format!("the provider sent {error}")));
            }
        }
    }

    /// Tokens, as far as the provider has reported them.
    pub fn reported_usage(&self) -> Option<Usage> {
        self.decoder.reported_usage()
    }

    /// Bytes of the model's words so far, also of those that are in no [`Piece`].
    pub fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// The whole answer, once [`Self::next`] said so.
    ///
    /// # Errors
    /// Arguments of a tool call that are no JSON object.
    pub fn finish(self) -> Result<Answer, RpcError> {
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
    RpcError::new(INTERNAL, format!("{what}: {}", cause(error)))
}

fn broken(error: &reqwest::Error) -> RpcError {
    RpcError::new(INTERNAL, format!("the provider's stream broke: {}", cause(error)))
}

fn cause(error: &reqwest::Error) -> String {
    error.source().map_or_else(|| "no reason given".to_owned(), |source| root(source).to_string())
}

/// The first bytes of a body, at most 64 KiB.
pub(crate) async fn beginning(mut response: Response) -> Vec<u8> {
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
    let reported = body.as_ref().and_then(reported_error);
    let reason = status.canonical_reason().unwrap_or("no reason given").to_owned();
    let mut error = reported.unwrap_or_else(|| RpcError::new(0, reason));
    error.code = i64::from(status.as_u16());
    if let Some(after) = after {
        let number = after.parse::<u64>().ok().map(Value::from);
        let data = error.data.get_or_insert_with(|| json!({}));
        data["retry_after"] = number.unwrap_or_else(|| Value::from(after));
    }
    error
}

impl From<Pieces> for reqwest::Body {
    fn from(pieces: Pieces) -> Self {
        match pieces.in_one() {
            Ok(bytes) => bytes.into(),
            Err(pieces) => Self::wrap(pieces),
        }
    }
}
