//! Requests to one remote server: one address, one set of credentials.

use super::{
    failure::Failure,
    login::Login,
    secrets::{self, Needle},
};
use crate::{
    config::Config,
    oauth::challenge::{Challenge, is_plain},
};
use bytes::Bytes;
use reqwest::{
    Client, Method, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, WWW_AUTHENTICATE},
};
use ringfence_credentials::Secret;
use ringfence_http::client::within_origin;
use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};
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
    secrets: Secrets,
    /// Whose token goes with it, where no other credential does.
    login: Option<Login>,
    /// No other credential does.
    is_open: bool,
    /// How a user logs in to it, with more options.
    command: Box<dyn Fn(&str) -> String + Send + Sync>,
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
        let secrets = Secrets::of(&url, headers.clone());
        for (name, secret) in headers {
            let value = HeaderValue::from_str(secret.expose());
            let (Ok(mut value), Ok(of)) = (value, HeaderName::from_bytes(name.as_bytes())) else {
                return Err(Error::Header(name));
            };
            value.set_sensitive(true);
            fixed.insert(of, value);
        }
        Ok(Self {
            client: client(&url)?,
            url,
            fixed,
            secrets,
            login: None,
            is_open: false,
            command: Box::new(str::to_owned),
        })
    }

    /// The same with a login.
    pub(super) fn with(self, login: Option<Login>, config: &Config) -> Self {
        let (is_open, config) = (config.has_no_credential(), config.clone());
        Self { login, is_open, command: Box::new(move |more| config.login_command(more)), ..self }
    }

    /// What must not come back from it.
    pub(super) fn secrets(&self) -> Arc<Vec<Needle>> {
        self.secrets.now()
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

    /// Ends a session. With the token that is at hand: this process ends soon, and no renewal is begun for this.
    pub(super) async fn delete(&self, context: &Context) -> Result<StatusCode, Failure> {
        let map = self.headers(context, "application/json, text/event-stream");
        let sent = match &self.login {
            Some(login) => self.send_with(&login.at_hand(), (Method::DELETE, map, None)).await?,
            None => self.send_once(Method::DELETE, map, None).await?,
        };
        Ok(sent.status())
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

    /// With the login's token, where there is one: with another, once, where the server refuses that.
    async fn send(&self, method: Method, map: HeaderMap, body: Option<Vec<u8>>) -> Result<Response, Failure> {
        let body = body.map(Bytes::from);
        let Some(login) = &self.login else {
            let response = self.send_once(method, map, body).await?;
            return self.let_in(response);
        };
        let (token, number) = login.token().await.map_err(Failure::Login)?;
        let first = self.send_with(&token, (method.clone(), map.clone(), body.clone())).await?;
        if first.status() != StatusCode::UNAUTHORIZED {
            return self.let_in(first);
        }
        let (token, _) = match login.other_than(number).await {
            Ok(token) => token,
            Err(why) => return Err(Failure::Unrenewed(first.status(), why)),
        };
        self.let_in(self.send_with(&token, (method, map, body)).await?)
    }

    async fn send_with(
        &self,
        token: &Secret,
        (method, mut map, body): (Method, HeaderMap, Option<Bytes>),
    ) -> Result<Response, Failure> {
        self.secrets.add(&self.url, token);
        let mut value = HeaderValue::from_str(token.bearer())
            .map_err(|_| Failure::Login("its token does not fit into a header".to_owned()))?;
        value.set_sensitive(true);
        map.insert(AUTHORIZATION, value);
        self.send_once(method, map, body).await
    }

    async fn send_once(
        &self,
        method: Method,
        map: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Response, Failure> {
        let mut request = self.client.request(method, self.url.clone()).headers(map);
        if let Some(body) = body {
            request = request.body(body);
        }
        match tokio::time::timeout(QUIET, request.send()).await {
            Ok(sent) => sent.map_err(Failure::before),
            Err(_) => Err(Failure::Cut(silent())),
        }
    }

    /// An answer, unless it says that a login is wanted, or one that allows more.
    fn let_in(&self, response: Response) -> Result<Response, Failure> {
        let challenge = || {
            let values = response.headers().get_all(WWW_AUTHENTICATE);
            Challenge::of(values.iter().filter_map(|value| value.to_str().ok())).unwrap_or_default()
        };
        match response.status() {
            status @ StatusCode::UNAUTHORIZED if self.is_open => {
                Err(Failure::Refused(status, wanted(&(self.command)(""), self.login.is_some())))
            }
            status @ StatusCode::FORBIDDEN if self.login.is_some() => {
                let challenge = challenge();
                let is_little = challenge.error.as_deref() == Some("insufficient_scope");
                let what =
                    is_little.then(|| more(&self.command, challenge.scope.as_deref().unwrap_or_default()));
                what.map_or(Ok(response), |what| Err(Failure::Refused(status, what)))
            }
            _ => Ok(response),
        }
    }
}

/// What to do about a server that wants a login.
fn wanted(login: &str, is_renewed: bool) -> String {
    if is_renewed {
        return format!(
            "it refuses the login, which was renewed only now; log in again with {login}, and reconnect"
        );
    }
    format!(
        "it wants a credential. If it has a login in the browser (OAuth), log in with {login}; otherwise give a token with --token-env, --token-file or --header. Then reconnect"
    )
}

/// What to do about a login that does not allow something. What the server names is shown if a shell takes it as it is.
fn more(command: impl Fn(&str) -> String, scopes: &[String]) -> String {
    let shown: Vec<String> = scopes
        .iter()
        .filter(|scope| is_plain(scope))
        .take(20)
        .map(|scope| format!(" --scope {scope}"))
        .collect();
    let which = if shown.len() == scopes.len() && !shown.is_empty() {
        String::new()
    } else {
        " --scope SCOPE, with the scope that its documentation names".to_owned()
    };
    format!(
        "the login does not allow this (insufficient_scope); log in again with {}{which}, and reconnect",
        command(&shown.concat()),
    )
}

/// What must not come back from a server. It grows with each token of a session, and forgets the oldest of many.
struct Secrets {
    headers: Vec<(String, Secret)>,
    now: RwLock<(Vec<Secret>, Arc<Vec<Needle>>)>,
}

/// Tokens of a login that are looked for: the last ones.
const TOKENS: usize = 16;

impl Secrets {
    fn of(url: &Url, headers: Vec<(String, Secret)>) -> Self {
        let needles = Arc::new(secrets::of(url, &headers));
        Self { headers, now: RwLock::new((Vec::new(), needles)) }
    }

    fn now(&self) -> Arc<Vec<Needle>> {
        Arc::clone(&self.now.read().unwrap_or_else(PoisonError::into_inner).1)
    }

    fn add(&self, url: &Url, token: &Secret) {
        let is_known = |tokens: &[Secret]| tokens.contains(token);
        if is_known(&self.now.read().unwrap_or_else(PoisonError::into_inner).0) {
            return;
        }
        let mut now = self.now.write().unwrap_or_else(PoisonError::into_inner);
        if now.0.len() >= TOKENS {
            now.0.remove(0);
        }
        now.0.push(token.clone());
        let tokens = now.0.iter().map(|token| ("authorization".to_owned(), token.clone()));
        now.1 = Arc::new(secrets::of(url, &self.headers.iter().cloned().chain(tokens).collect::<Vec<_>>()));
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
