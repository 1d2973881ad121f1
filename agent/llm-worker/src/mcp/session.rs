//! One session with one server: streamable HTTP in both of the protocol's eras, or the HTTP+SSE of 2024.

use super::{
    result,
    sse::{self, Sse},
};
use crate::{
    credentials::{self, Scheme},
    message::raw,
    remote::RemoteResult,
    rpc::Tool,
};
use reqwest::{
    Client,
    header::{AUTHORIZATION, HeaderValue},
};
use ringfence_base::error::root;
use ringfence_credentials::Secret;
use ringfence_http::client::within_origin;
use ringfence_policy::agents::registry::Mcp;
use rmcp::{
    ClientHandler, ClientLifecycleMode,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest,
        Implementation, JsonObject, PaginatedRequestParams, ProtocolVersion, ServerResult,
    },
    service::{
        ClientCacheConfig, ClientInitializeError, NotificationContext, PeerRequestOptions, RoleClient,
        RunningService, ServiceError, serve_client_with_lifecycle,
    },
    transport::{
        DynamicTransportError, StreamableHttpClientTransport,
        streamable_http_client::{StreamableHttpClientTransportConfig, StreamableHttpError},
    },
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// How long a connection may take to come about.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// How long a server may take to introduce itself: the client waits ten seconds for a server that does not know the newer
/// way of asking, then asks in the older.
const START_TIME: Duration = Duration::from_secs(30);
/// How long a page of tools may take.
const LIST_TIME: Duration = Duration::from_secs(30);
/// How long a call may take.
const CALL_TIME: Duration = Duration::from_secs(600);
/// Most bytes of one event from a server.
const MAX_EVENT: usize = 16 << 20;
/// Most tools of a server.
const MAX_TOOLS: usize = 1000;
/// Most pages of its list.
const MAX_PAGES: usize = 100;
/// Most bytes of all its descriptions and schemas.
const MAX_DESCRIBED: usize = 4 << 20;
/// A list is good for at least so long, whatever a server says of it.
const FRESH: Duration = Duration::from_secs(60);
/// Most characters of an error that is told.
const MAX_ERROR_CHARS: usize = 300;

/// The client for all servers of an agent.
pub(super) fn http_client() -> Result<Client, reqwest::Error> {
    // Whoever came first has set it: there is one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        // The library would give up a connection after 30 s without an acknowledgement; how long is the profile's to say.
        .tcp_user_timeout(None)
        .redirect(within_origin())
        .http1_only()
        .build()
}

/// Why something could not be done.
#[derive(Debug)]
pub(super) enum Failure {
    /// The connection is gone; another may do.
    Dropped(String),
    /// Trying again would not help.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Dropped(why) | Self::Refused(why)) = self;
        f.write_str(why)
    }
}

/// What the server may ask of us: nothing. What it may tell us: that its tools have changed.
struct Handler {
    changed: Arc<AtomicBool>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("ringfence", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Relaxed);
    }
}

/// A session that has been established.
pub(super) struct Session {
    service: RunningService<RoleClient, Handler>,
    is_old: bool,
    changed: Arc<AtomicBool>,
    /// When the list of tools is to be asked for again, where the server says so.
    until: Mutex<Option<Instant>>,
}

impl Session {
    /// Connects: by streamable HTTP, and if that comes to nothing by the old transport; `old_first` where that was what
    /// worked before.
    pub(super) async fn connect(
        client: &Client,
        server: &Mcp,
        token: Option<&Secret>,
        old_first: bool,
    ) -> Result<Self, String> {
        let token = token.map(|token| credentials::header(token, Scheme::Bearer)).transpose();
        let token = token.map_err(|_| "the token cannot be sent in a header".to_owned())?;
        let token = token.as_ref();
        if old_first && let Ok(session) = within(Self::old(client, server, token)).await {
            return Ok(session);
        }
        let refused = match within(Self::streamable(client, server, token)).await {
            Ok(session) => return Ok(session),
            Err(Failure::Refused(why)) => return Err(why),
            Err(Failure::Dropped(why)) => why,
        };
        within(Self::old(client, server, token)).await.map_err(|old| {
            format!(
                "it cannot be connected to by streamable HTTP ({refused}) nor by the older HTTP+SSE ({old})"
            )
        })
    }

    async fn streamable(client: &Client, server: &Mcp, token: Option<&HeaderValue>) -> Result<Self, Failure> {
        // The library's own way to give it a token copies that for each request.
        let headers: HashMap<_, _> = token.map(|token| (AUTHORIZATION, token.clone())).into_iter().collect();
        let config = StreamableHttpClientTransportConfig::with_uri(server.url.as_str())
            .max_sse_event_size(MAX_EVENT)
            .custom_headers(headers);
        let transport = StreamableHttpClientTransport::with_client(client.clone(), config);
        let lifecycle = ClientLifecycleMode::Auto {
            preferred_versions: vec![ProtocolVersion::V_2026_07_28],
            legacy_version: None,
        };
        let changed = Arc::new(AtomicBool::new(false));
        let handler = Handler { changed: Arc::clone(&changed) };
        let service = serve_client_with_lifecycle(handler, transport, lifecycle).await;
        Ok(Self::new(service.map_err(|error| connect_failure(&error))?, changed, false).await)
    }

    async fn old(client: &Client, server: &Mcp, token: Option<&HeaderValue>) -> Result<Self, Failure> {
        let transport = Sse::connect(client.clone(), &server.url, token.cloned()).await;
        let transport = transport.map_err(|error| Failure::Dropped(describe(&error)))?;
        let changed = Arc::new(AtomicBool::new(false));
        let handler = Handler { changed: Arc::clone(&changed) };
        let service = serve_client_with_lifecycle(handler, transport, ClientLifecycleMode::Initialize).await;
        Ok(Self::new(service.map_err(|error| connect_failure(&error))?, changed, true).await)
    }

    async fn new(
        service: RunningService<RoleClient, Handler>,
        changed: Arc<AtomicBool>,
        is_old: bool,
    ) -> Self {
        // The pins must see what the server says now.
        service.peer().set_response_cache_config(ClientCacheConfig::disabled()).await;
        Self { service, is_old, changed, until: Mutex::new(None) }
    }

    /// Whether it is the old transport's.
    pub(super) fn is_old(&self) -> bool {
        self.is_old
    }

    /// Whether it has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.service.is_closed() || self.service.peer().is_transport_closed()
    }

    /// Whether the list of tools may have changed.
    pub(super) fn is_stale(&self) -> bool {
        let until = *self.until.lock().unwrap_or_else(PoisonError::into_inner);
        self.changed.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until)
    }

    /// All of its tools.
    pub(super) async fn list(&self) -> Result<Vec<Tool>, Failure> {
        self.changed.store(false, Ordering::Relaxed);
        let (mut tools, mut described, mut cursor) = (Vec::new(), 0, None);
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor.take());
            let page = timed(LIST_TIME, "list its tools", self.service.peer().list_tools(Some(page))).await?;
            *self.until.lock().unwrap_or_else(PoisonError::into_inner) = page
                .ttl_ms
                .map(|ttl| Instant::now() + Duration::from_millis(ttl).max(FRESH).min(FRESH * 1440));
            for tool in page.tools {
                let whole = raw(&tool);
                described += whole.get().len();
                let tool = Tool {
                    name: tool.name.into_owned(),
                    description: tool.description.unwrap_or_default().into_owned(),
                    parameters: raw(&*tool.input_schema),
                    whole: Some(whole),
                };
                tools.push(tool);
            }
            if tools.len() > MAX_TOOLS {
                return Err(Failure::Refused(format!("it lists more than {MAX_TOOLS} tools")));
            }
            if described > MAX_DESCRIBED {
                return Err(Failure::Refused(format!(
                    "the descriptions of its tools have more than {MAX_DESCRIBED} bytes"
                )));
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(Failure::Refused(format!("its list of tools has more than {MAX_PAGES} pages")))
    }

    /// Calls a tool. Whoever stops waiting cancels the call.
    pub(super) async fn call(&self, tool: &str, arguments: JsonObject) -> Result<RemoteResult, Failure> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let peer = self.service.peer();
        let answer = async {
            let handle = peer.send_request_with_option(request, PeerRequestOptions::no_options()).await?;
            let mut abandoned = Abandoned { session: self, id: Some(handle.id.clone()) };
            let answer = handle.await_response().await;
            abandoned.id = None;
            answer
        };
        match timed(CALL_TIME, "run the tool", answer).await? {
            ServerResult::CallToolResult(done) => {
                let content = serde_json::to_value(&done.content).unwrap_or_default();
                Ok(result::from(&content, done.structured_content.as_ref(), done.is_error == Some(true)))
            }
            // With a block of a kind that the library does not know, for one.
            ServerResult::CustomResult(other) => result::raw(&other.0)
                .ok_or_else(|| Failure::Refused("it answered with something that is no result".to_owned())),
            ServerResult::InputRequiredResult(_) => Err(Failure::Refused(
                "the tool asks its user for something, and there is nobody to be asked".to_owned(),
            )),
            _ => Err(Failure::Refused("it answered with something that is no result of a tool".to_owned())),
        }
    }
}

/// Tells the server of a call that nobody waits for any more.
struct Abandoned<'s> {
    session: &'s Session,
    id: Option<rmcp::model::RequestId>,
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let peer = self.session.service.peer().clone();
        let cancelled = rmcp::model::CancelledNotificationParam::new(Some(id), None);
        // Where the event loop is ending, so is the connection.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _ = tokio::time::timeout(CONNECT_TIME, peer.notify_cancelled(cancelled)).await;
        });
    }
}

async fn within<T>(start: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Err(Failure::Dropped(format!("it did not introduce itself within {START_TIME:?}")));
    tokio::time::timeout(START_TIME, start).await.unwrap_or_else(|_| late())
}

async fn timed<T>(
    time: Duration,
    what: &str,
    work: impl Future<Output = Result<T, ServiceError>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(time, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(failure(&error)),
        Err(_) => Err(Failure::Refused(format!("it did not {what} within {time:?}"))),
    }
}

fn failure(error: &ServiceError) -> Failure {
    match error {
        ServiceError::McpError(error) => {
            Failure::Refused(format!("{} (code {})", cut(&error.message), error.code.0))
        }
        ServiceError::TransportClosed => Failure::Dropped("the connection ended".to_owned()),
        ServiceError::TransportSend(error) => transport(error),
        ServiceError::UnexpectedResponse => {
            Failure::Refused("it answered with something that was not asked for".to_owned())
        }
        other => Failure::Refused(describe(other)),
    }
}

/// A dropped connection can be made anew; what a server refuses stays refused.
fn transport(error: &DynamicTransportError) -> Failure {
    if let Some(error) = error.error.downcast_ref::<sse::Error>() {
        return match error {
            sse::Error::Status(_) => Failure::Refused(describe(error)),
            _ => Failure::Dropped(describe(error)),
        };
    }
    type Streamable = StreamableHttpError<reqwest::Error>;
    match error.error.downcast_ref::<Streamable>() {
        Some(Streamable::Client(error)) => Failure::Dropped(describe(error)),
        Some(Streamable::HttpStatus(error)) => Failure::Refused(describe(error)),
        Some(Streamable::AuthRequired(_)) => Failure::Refused("it refuses the token (401)".to_owned()),
        Some(Streamable::InsufficientScope(_)) => {
            Failure::Refused("the token is not good enough for it (403)".to_owned())
        }
        Some(
            error @ (Streamable::UnexpectedServerResponse(_)
            | Streamable::UnexpectedContentType(_)
            | Streamable::ResponseBodyTooLarge { .. }
            | Streamable::Deserialize(_)),
        ) => Failure::Refused(describe(error)),
        _ => Failure::Dropped(describe(error.error.as_ref())),
    }
}

/// [`Failure::Dropped`] where another transport may do.
fn connect_failure(error: &ClientInitializeError) -> Failure {
    if error.is_authorization_required() {
        return Failure::Refused("it refuses the token (401)".to_owned());
    }
    let why = match error {
        ClientInitializeError::TransportError { error, .. } => transport(error).to_string(),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => connect_failure(fallback).to_string(),
        ClientInitializeError::JsonRpcError(error) => {
            format!("{} (code {})", cut(&error.message), error.code.0)
        }
        other => describe(other),
    };
    Failure::Dropped(why)
}

/// What is at the root of an error, without the address: the agent is told of it.
fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let cause = root(error);
    if let Some(error) = cause.downcast_ref::<reqwest::Error>() {
        let what = if error.is_timeout() { "no answer in time" } else { "the HTTP request failed" };
        return error.status().map_or_else(|| what.to_owned(), |status| format!("HTTP {status}"));
    }
    cut(&cause.to_string())
}

fn cut(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(MAX_ERROR_CHARS) {
        Some((at, _)) => format!("{}...", &line[..at]),
        None => line,
    }
}
