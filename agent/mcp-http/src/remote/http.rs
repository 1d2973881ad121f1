//! Requests to one remote server: one address, one set of credentials.

use super::{
    failure::Failure,
    secrets::{self, Needle},
};
use reqwest::{
    Client, Method, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use ringfence_credentials::Secret;
use ringfence_http::client::within_origin;
use std::time::Duration;
use url::Url;

/// How long a connection may take to come about.
const CONNECT_TIME: Duration = Duration::from_secs(20);
/// How long a server may say nothing at all: calls may take long, and servers keep connections open by comments.
pub(super) const QUIET: Duration = Duration::from_secs(3600);

/// The header with a session's id.
pub(super) const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The header with the protocol's version.
pub(super) const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The header that says where to resume a stream.
const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// TLS.
    #[error("cannot set up HTTPS")]
    Client(#[source] reqwest::Error),
    /// A credential with bytes that no header has.
    #[error("the credential for {0} does not fit into a header")]
    Header(String),
}

/// One remote server.
pub(super) struct Server {
    client: Client,
    url: Url,
    /// What goes with every request.
    fixed: HeaderMap,
    /// What must not come back from it.
    pub(super) secrets: Vec<Needle>,
}

/// What a message is sent with beside the credentials.
#[derive(Debug, Clone, Default)]
pub(super) struct Context {
    /// The session's id.
    pub(super) session: Option<HeaderValue>,
    /// The protocol's version.
    pub(super) version: Option<HeaderValue>,
}

impl Server {
    /// For this address, with these credentials.
    pub(super) fn new(url: Url, headers: Vec<(String, Secret)>) -> Result<Self, Error> {
        let mut fixed = HeaderMap::new();
        let secrets = secrets::of(&url, &headers);
        for (name, secret) in headers {
            let value = HeaderValue::from_str(secret.expose());
            let (Ok(mut value), Ok(of)) = (value, HeaderName::from_bytes(name.as_bytes())) else {
                return Err(Error::Header(name));
            };
            value.set_sensitive(true);
            fixed.insert(of, value);
        }
        Ok(Self { client: client(&url)?, url, fixed, secrets })
    }

    /// Sends a message.
    pub(super) async fn post(
        &self,
        body: Vec<u8>,
        context: &Context,
        headers: &[(String, String)],
    ) -> Result<Response, Failure> {
        let mut map = self.headers(context, "application/json, text/event-stream");
        map.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in headers {
            let pair = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value));
            if let (Ok(name), Ok(value)) = pair {
                map.insert(name, value);
            }
        }
        self.send(Method::POST, map, Some(body)).await
    }

    /// Asks for the stream of what the server says unasked, or for one that broke off at `last`.
    pub(super) async fn listen(&self, context: &Context, last: Option<&str>) -> Result<Response, Failure> {
        let mut map = self.headers(context, "text/event-stream");
        if let Some(last) = last.and_then(|last| HeaderValue::from_str(last).ok()) {
            map.insert(LAST_EVENT, last);
        }
        self.send(Method::GET, map, None).await
    }

    /// Ends a session.
    pub(super) async fn delete(&self, context: &Context) -> Result<StatusCode, Failure> {
        let map = self.headers(context, "application/json, text/event-stream");
        Ok(self.send(Method::DELETE, map, None).await?.status())
    }

    fn headers(&self, context: &Context, accept: &'static str) -> HeaderMap {
        let mut map = self.fixed.clone();
        map.insert(ACCEPT, HeaderValue::from_static(accept));
        if let Some(session) = &context.session {
            map.insert(SESSION, session.clone());
        }
        if let Some(version) = &context.version {
            map.insert(VERSION, version.clone());
        }
        map
    }

    async fn send(&self, method: Method, map: HeaderMap, body: Option<Vec<u8>>) -> Result<Response, Failure> {
        let mut request = self.client.request(method, self.url.clone()).headers(map);
        if let Some(body) = body {
            request = request.body(body);
        }
        match tokio::time::timeout(QUIET, request.send()).await {
            Ok(sent) => sent.map_err(Failure::before),
            Err(_) => Err(Failure::Cut(silent())),
        }
    }
}

/// What is said of a server that says nothing.
pub(super) fn silent() -> String {
    format!("nothing came for {} minutes", QUIET.as_secs() / 60)
}

/// The media type of an answer, without its parameters.
pub(super) fn kind(response: &Response) -> String {
    let value =
        response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .chars()
        .take(100)
        .collect::<String>()
        .to_ascii_lowercase()
}

/// The client.
fn client(url: &Url) -> Result<Client, Error> {
    // Whoever came first has set it: there is one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder();
    if url.scheme() == "http" {
        // A proxy, which the environment may name, would get all of it in the clear. For https it only passes bytes on.
        builder = builder.no_proxy();
    }
    builder
        .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_user_timeout(None)
        .redirect(within_origin())
        .http1_only()
        .build()
        .map_err(Error::Client)
}
