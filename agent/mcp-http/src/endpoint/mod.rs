//! The other way round: an endpoint on loopback for clients that speak streamable HTTP. Each of their sessions is one
//! `ringfence mcp` of its own, so that it is recorded, judged and held as any other.
//!
//! | file | what |
//! |---|---|
//! | `gate` | who may ask: whoever has the secret, and no page of a browser. Pure |
//! | `request` | what a request is, by its headers and its body. Pure |
//! | `routes` | what is answered to which request |
//! | `sessions` | the sessions there are, and when they end |
//! | `session` | one of them: which message goes to which stream |
//! | `replay` | the events of a stream, kept for a client that lost its connection. Pure |
//! | `body` | a stream of events as the body of an answer |
//! | `child` | the process behind a session |

mod body;
mod child;
pub mod gate;
pub mod replay;
pub mod request;
mod routes;
mod session;
mod sessions;

use gate::Gate;
use ringfence_base::quota::{Bounds, Owners, Permits};
use ringfence_http::{self as serving, Limits, Standing};
use sessions::Sessions;
use std::{ffi::OsString, io, net::TcpListener, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

/// Connections at once that have shown the secret, and that have not.
const BOUNDS: Bounds = Bounds { all: 256, each: 256, unknown: 64 };
/// What a connection may take. A client may think about what it read.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(30),
    longest_head: 64 << 10,
    stalled: Duration::from_secs(60),
    stranger: Duration::from_secs(10),
    requests: 16,
};
/// All who have the secret are one user to the permits.
const CALLER: u32 = 1;
/// How long requests that are under way may take when the endpoint ends.
const DRAIN: Duration = Duration::from_secs(3);

/// Why it does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listening socket, the event loop.
    #[error("the endpoint cannot be served")]
    Io(#[source] io::Error),
}

/// What an endpoint is to do.
#[derive(Debug)]
pub struct Endpoint {
    /// What clients show.
    pub secret: String,
    /// What is started for each session: this program, as `ringfence mcp` with these arguments. It speaks MCP over standard input
    /// and output.
    pub program: OsString,
    /// What stands behind `mcp`.
    pub arguments: Vec<OsString>,
    /// Longest message, in bytes.
    pub max_line: usize,
    /// How long a session may do nothing.
    pub idle: Duration,
}

/// Serves until SIGINT, SIGTERM or SIGHUP; ends all sessions then.
///
/// # Errors
/// [`Error`].
pub fn serve(listener: TcpListener, endpoint: Endpoint) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let served = runtime.block_on(accept(listener, endpoint));
    runtime.shutdown_background();
    served.map_err(Error::Io)
}

async fn accept(listener: TcpListener, endpoint: Endpoint) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    listener.set_nonblocking(true)?;
    let gate = Gate::new(listener.local_addr()?, endpoint.secret.clone());
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let sessions = Arc::new(Sessions::new(endpoint));
    let router = routes::router(Arc::new(gate), Arc::clone(&sessions));
    let permits = Permits::within(BOUNDS, Owners::default());
    let mut ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal);
    let ended = async {
        let waits = ends.iter_mut().filter_map(|signal| signal.as_mut().ok());
        let mut waits: Vec<_> = waits.map(|signal| Box::pin(signal.recv())).collect();
        std::future::poll_fn(|context| {
            let is_any = waits.iter_mut().any(|wait| wait.as_mut().poll(context).is_ready());
            if is_any { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        })
        .await;
    };
    let stop = CancellationToken::new();
    let looks = tokio::spawn({
        let sessions = Arc::clone(&sessions);
        async move { sessions.end_idle().await }
    });
    let serves = async {
        loop {
            let (stream, peer) = serving::accept(|| listener.accept()).await;
            let _ = stream.set_nodelay(true);
            let Some(standing) = Standing::of_stranger(&permits, Some(peer)) else { continue };
            let (router, stop) = (router.clone(), stop.clone());
            tokio::spawn(async move {
                // How a connection ends is its client's business.
                let _ = serving::connection(stream, standing, router, LIMITS, stop).await;
            });
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        () = ended => {}
        () = serves => {}
    }
    looks.abort();
    stop.cancel();
    sessions.end_all();
    // Each child ends its server, and says goodbye to the auditor.
    let _ = tokio::time::timeout(DRAIN, sessions.all_ended()).await;
    Ok(())
}
