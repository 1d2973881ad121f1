//! `http = true`: the provider's own HTTP API for unmodified SDKs, on a unix socket and, if asked, on loopback.
//!
//! The profile's key, model and headers go in, the client's stay out; what the provider answers is passed on as it comes,
//! errors included. Each call of the model is limited, counted and logged as a turn is. The conversation is the client's own: none of
//! it is kept here.
//!
//! | file | what |
//! |---|---|
//! | `gate` | who may call on loopback |
//! | `call`, `active_call` | one call from its request to its record |
//! | `request/` | a client's request as the provider is sent it |
//! | `transfer`, `relay/` | an answer's way to the client; what of it is passed on, without credentials |
//! | `tool_calls/`, `input`, `strict_json` | the tool calls in an answer that any client could find |
//! | `renewal` | another credential where the provider refused one |
//! | `session` | which session a client says it is in |
//! | `denials/` | what the model is told that its calls were denied |
//! | `intents` | what a client's calls tell the trace |
//! | `budget`, `record` | bytes and calls at a time; the log of calls |

mod active_call;
mod budget;
mod call;
pub(crate) mod denials;
pub mod gate;
mod input;
pub(crate) mod intents;
pub mod record;
pub mod relay;
mod renewal;
pub mod request;
mod session;
pub(crate) mod strict_json;
pub(crate) mod tool_calls;
mod transfer;

use super::{access::Access, limits, redact::Redactor, report::Reporter, upstream::Provider};
use axum::{Router, extract::Request, http::HeaderValue};
pub use budget::ByteBudget;
use budget::Calls;
use gate::Gate;
use intents::IntentTracker;
pub(crate) use renewal::KeyRenewal;
use ringfence_base::quota::{Bounds, Owners, Permits};
use ringfence_base::sockets as serve;
use ringfence_files::Access as FileAccess;
use ringfence_http::{self as serving, Limits, Standing};
use ringfence_policy::agents::registry::AgentConfig;
use ringfence_wire::agent::WorkerCounts;
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    sync::{oneshot, watch},
    task::{JoinHandle, JoinSet},
};
use tokio_util::sync::CancellationToken;

/// Connections at a time at each of its doors: of those who may call, and of strangers. A client that opens many at once
/// is a stranger until its requests are read.
const BOUNDS: Bounds = Bounds { all: 256, each: 256, unknown: 256 };
/// What a connection may take. A client that streams may think about what it read.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(10),
    longest_head: 32 << 10,
    stalled: Duration::from_secs(60),
    stranger: Duration::from_secs(10),
    requests: 16,
};
/// All who may call an endpoint are one user to its permits: one agent has each endpoint for itself.
const CALLER: u32 = 1;
/// How often intents of clients that went silent are looked for.
const LOOK: Duration = Duration::from_secs(10);
/// How long a call under way may take when the agent is to stop, and then to write down what there is of it. Whoever stops
/// a worker gives it a little more than both.
const DRAIN: Duration = Duration::from_secs(18);
const RECORD_TIME: Duration = Duration::from_secs(2);

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The unix socket.
    #[error("cannot create the HTTP socket")]
    Socket(#[source] serve::Error),
    /// Loopback.
    #[error("http_port {0} cannot be listened on")]
    Port(u16, #[source] io::Error),
    /// The endpoint's token.
    #[error("{} cannot be used for the token of the HTTP endpoint", .0.display())]
    Token(PathBuf, #[source] io::Error),
    /// Sockets and the event loop.
    #[error("the HTTP sockets cannot be used")]
    Io(#[source] io::Error),
}

/// What calls need of an agent's configuration.
#[derive(Clone)]
pub struct Shared {
    /// The agent's configuration.
    pub config: Arc<AgentConfig>,
    /// Where requests go.
    pub provider: Arc<Provider>,
    /// What takes credentials out of what goes to clients and into the record.
    pub redactor: Arc<Redactor>,
}

/// What calls share.
struct State {
    shared: watch::Receiver<Shared>,
    meter: limits::Shared,
    status: watch::Sender<WorkerCounts>,
    log: PathBuf,
    budget: ByteBudget,
    renewal: Arc<KeyRenewal>,
    /// Tells the trace, see [`State::intents`].
    tracker: IntentTracker,
    /// Ends with the agent.
    stop: CancellationToken,
    /// Ends the calls that are still under way.
    cut: CancellationToken,
}

impl State {
    /// Tells the trace, where there is one: under the core, and in a run whose container the core took in.
    fn intents(&self) -> Option<&IntentTracker> {
        Some(&self.tracker).filter(|tracker| tracker.is_heard())
    }
}

/// What calls are counted by, and where they are written down. Of one agent, whatever endpoints it has one after another.
#[derive(Clone)]
pub(crate) struct Accounting {
    /// What the agent uses.
    pub(crate) meter: limits::Shared,
    /// What its worker does.
    pub status: watch::Sender<WorkerCounts>,
    /// The log of calls.
    pub log: PathBuf,
    /// How many bytes of requests and answers it may hold.
    pub budget: ByteBudget,
    /// Where another credential comes from.
    pub(crate) renewal: Arc<KeyRenewal>,
    /// Ends the calls that are under way.
    pub cut: CancellationToken,
}

impl Accounting {
    /// What ends its calls at once, also those of an endpoint that was closed.
    pub(crate) fn shutdown(&self) -> CallShutdown {
        CallShutdown { cut: self.cut.clone(), calls: self.budget.calls.clone() }
    }
}

/// An agent's endpoint, being served.
pub(crate) struct Endpoint {
    shared: watch::Sender<Shared>,
    stop: CancellationToken,
    /// Resolves when the sockets are free.
    closed: oneshot::Receiver<()>,
    task: JoinHandle<()>,
}

impl Endpoint {
    /// Serves sockets that the supervisor bound. On the unix socket the core is asked who calls, where there is one (`access`),
    /// else its mode says; on loopback a token says so. `reporter` tells the trace.
    pub(crate) fn start(
        (unix, loopback): (UnixListener, Option<Loopback>),
        (access, reporter): (Option<Arc<Access>>, Reporter),
        shared: Shared,
        accounting: Accounting,
    ) -> Self {
        let Accounting { meter, status, log, budget, renewal, cut } = accounting;
        let (shared, current) = watch::channel(shared);
        let stop = CancellationToken::new();
        // Its own calls end with it; those of another endpoint do not.
        let (stopping, cut) = (stop.clone(), cut.child_token());
        let last = CallShutdown { cut: cut.clone(), calls: budget.calls.clone() };
        let state = Arc::new(State {
            shared: current,
            meter,
            status,
            log,
            budget,
            renewal,
            tracker: IntentTracker::new(reporter),
            stop: stopping,
            cut,
        });
        tokio::spawn(give_up_silent(Arc::clone(&state)));
        let (freed, closed) = oneshot::channel();
        let task = tokio::spawn(async move {
            let judge = |stream, standing| judged(stream, standing, Arc::clone(&state), access.clone());
            let on_unix = accept(|| unix_stream(&unix), judge, &state.stop);
            let mut connections = Vec::new();
            match &loopback {
                None => connections.push(on_unix.await),
                Some(Loopback { tcp, gate, .. }) => {
                    let gated = router(Arc::clone(&state), Some(Arc::clone(gate)));
                    let gated = move |stream, _| std::future::ready((stream, gated.clone()));
                    let on_tcp = accept(|| tcp_stream(tcp), gated, &state.stop);
                    let (first, second) = tokio::join!(on_unix, on_tcp);
                    connections.extend([first, second]);
                }
            }
            drop((unix, loopback));
            let _ = freed.send(());
            let drained = async {
                for connections in &mut connections {
                    while connections.join_next().await.is_some() {}
                }
                // Nobody may wait for a call any more, and it costs and is on record all the same.
                state.budget.calls.over().await;
            };
            if tokio::time::timeout(DRAIN, drained).await.is_err() {
                last.complete().await;
            }
        });
        Self { shared, stop, closed, task }
    }

    /// A new configuration: from the next call on.
    pub(crate) fn replace(&self, shared: Shared) {
        self.shared.send_replace(shared);
    }

    /// Waits until the sockets are free; calls under way go on.
    pub(crate) async fn close(self) {
        self.stop.cancel();
        let _ = self.closed.await;
    }

    /// Lets calls under way finish, within [`DRAIN`]; what there is of the others is written down.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

/// Ends the calls of an endpoint that are under way.
#[derive(Clone)]
pub(crate) struct CallShutdown {
    cut: CancellationToken,
    calls: Calls,
}

impl CallShutdown {
    /// Ends them, and waits until what there is of them is written down.
    pub(crate) async fn complete(&self) {
        self.cut.cancel();
        let _ = tokio::time::timeout(RECORD_TIME, self.calls.over()).await;
    }
}

/// Looks now and then for what clients left unfinished.
async fn give_up_silent(state: Arc<State>) {
    let mut looks = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = state.stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let shared = state.shared.borrow().clone();
        if let Some(intents) = state.intents() {
            intents.give_up_silent(shared.config.llm.runtime_timeout, &shared.redactor);
        }
    }
}

fn router(state: Arc<State>, gate: Option<Arc<Gate>>) -> Router {
    Router::new().fallback(move |request: Request| {
        let (state, gate) = (Arc::clone(&state), gate.clone());
        async move {
            let mut response = call::answer(&state, gate.as_deref(), request).await;
            response.headers_mut().insert("cache-control", HeaderValue::from_static("no-store"));
            response
        }
    })
}

/// What answers a connection over the unix socket: the API, or a refusal of whoever may not call it.
async fn judged(
    stream: UnixStream,
    standing: Arc<Standing>,
    state: Arc<State>,
    access: Option<Arc<Access>>,
) -> (UnixStream, Router) {
    let refused = match access {
        None => None,
        Some(access) => access.of(&stream).await.may_call().err(),
    };
    let router = match refused {
        // Who may not is a stranger for as long as it stays.
        None => {
            // Too many: each of its requests asks again, and is refused.
            let _ = standing.identify(CALLER);
            router(state, None)
        }
        Some(error) => Router::new().fallback(move |request: Request| {
            let (shared, why) = (state.shared.borrow().clone(), error.message.clone());
            async move { call::refuse_unread(&shared, 403, &why, request).await }
        }),
    };
    (stream, router)
}

async fn unix_stream(listener: &UnixListener) -> io::Result<UnixStream> {
    listener.accept().await.map(|(stream, _)| stream)
}

async fn tcp_stream(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Serves connections until `stop`; gives those that have not ended by then.
async fn accept<S, F, G>(
    mut next: impl FnMut() -> F,
    judge: impl Fn(S, Arc<Standing>) -> G,
    stop: &CancellationToken,
) -> JoinSet<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<S>>,
    G: Future<Output = (S, Router)> + Send + 'static,
{
    let permits = Permits::within(BOUNDS, Owners::default());
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            stream = serving::accept(&mut next) => stream,
        };
        let Some(standing) = Standing::of_stranger(&permits, None) else { continue };
        let judged = judge(stream, Arc::clone(&standing));
        let stop = stop.clone();
        connections.spawn(async move {
            let judged = tokio::select! {
                judged = judged => Some(judged),
                // It had to go for others, before it was known whose it is.
                () = standing.evicted() => None,
            };
            let Some((stream, router)) = judged else { return };
            if let Err(error) = serving::connection(stream, standing, router, LIMITS, stop).await {
                tracing::debug!("a connection to an HTTP endpoint ended: {error}");
            }
        });
        tokio::task::yield_now().await;
    }
    connections
}

/// A port of loopback, where everybody on the host can connect: whoever has the token may call.
pub struct Loopback {
    tcp: TcpListener,
    gate: Arc<Gate>,
    _token: TokenFile,
}

impl Loopback {
    /// One that listens: it gets a token of its own.
    ///
    /// # Errors
    /// [`Error`].
    pub fn listen(tcp: std::net::TcpListener, token: &Path) -> Result<Self, Error> {
        let address = tcp.local_addr().map_err(Error::Io)?;
        let port = address.port();
        tcp.set_nonblocking(true).map_err(|e| Error::Port(port, e))?;
        let tcp = TcpListener::from_std(tcp).map_err(|e| Error::Port(port, e))?;
        // Last: there is no token for what nobody listens on.
        let token = TokenFile::mint(token)?;
        Ok(Self { tcp, gate: Arc::new(Gate::new(address, token.value.clone())), _token: token })
    }
}

/// The file with the token of one listener. Each listener has another one, so that what somebody collected who had the port
/// in between is good for nothing; the file goes with the listener.
struct TokenFile {
    path: PathBuf,
    value: String,
}

impl TokenFile {
    fn mint(path: &Path) -> Result<Self, Error> {
        let value = format!("ringfence-{}{}", uuid::Uuid::new_v4().simple(), uuid::Uuid::new_v4().simple());
        let io = |e| Error::Token(path.to_owned(), e);
        let dir = path.parent().ok_or_else(|| io(io::ErrorKind::InvalidInput.into()))?;
        let dir = serve::private_dir(dir).map_err(Error::Socket)?;
        dir.replace(
            path.file_name().unwrap_or_default(),
            format!("{value}\n").as_bytes(),
            FileAccess::Mode(0o600),
        )
        .map_err(io)?;
        Ok(Self { path: path.to_owned(), value })
    }
}

impl Drop for TokenFile {
    fn drop(&mut self) {
        // Not that of a listener which came after this one.
        if fs::read_to_string(&self.path).is_ok_and(|text| text.trim() == self.value) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests;
