//! The dashboard's server: REST, WebSocket and the page itself, on loopback, for whoever holds the token.
//!
//! One thread with a small runtime. What touches the store runs beside it, on threads that users take turns at: one
//! question of each, so that neither a slow disk nor a slow question holds the others up.

mod api;
mod approvals;
mod assets;
mod dashboard;
mod feed;
mod gate;
pub mod headers;
mod live;
pub mod params;
mod refusal;
mod rule_changes;
pub mod rule_form;
mod rules;
mod tools;
mod work;

use super::mcp::sessions::Sessions;
use dashboard::Dashboard;
use ringfence_base::{
    precedence,
    quota::{Bounds, Permits},
    socket_owners::SocketOwners,
};
use ringfence_http::{
    self as serving, Limits, Standing,
    turns::{Threads, Turns},
};
use std::{
    io,
    net::TcpListener,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};
use tokio::{
    runtime::{self, Runtime},
    task,
};
use tokio_util::sync::CancellationToken;

/// Connections at once that have shown a token: of all users but root, and of one.
const MOST_CONNECTIONS: usize = 256;
const CONNECTIONS_EACH: usize = 32;
/// And that have not.
const MOST_STRANGERS: usize = 128;
/// Threads for what may block, of all users but root. Root's are beside them: whatever users ask and decide, it finds one.
const THREADS: Threads = Threads { questions: 40, decisions: 10, changes: 16, news: 6 };
/// What a connection may take.
const LIMITS: Limits = Limits {
    head: Duration::from_secs(10),
    longest_head: 16 << 10,
    stalled: Duration::from_secs(10),
    stranger: Duration::from_secs(10),
    // The page's own files, twice.
    requests: 64,
};

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The listening socket.
    #[error("the dashboard's socket cannot be used")]
    Listen(#[source] io::Error),
    /// No thread or no event queue.
    #[error("the dashboard's thread cannot be started")]
    Start(#[source] io::Error),
}

/// What the dashboard works with that a process has to make before it is confined.
#[derive(Debug)]
pub struct Prepared {
    runtime: Runtime,
    owners: SocketOwners,
}

/// What the dashboard's thread waits with. A process that will be confined makes it before: it takes descriptors that a
/// sandbox refuses (tokio's signals, where any part of the program uses them, have a socket pair).
///
/// # Errors
/// [`Error::Start`].
pub fn prepare() -> Result<Prepared, Error> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(THREADS.with_root_s())
        .thread_name("web-store")
        .on_thread_start(precedence::usual)
        .build()
        .map_err(Error::Start)?;
    Ok(Prepared { runtime, owners: SocketOwners::open() })
}

/// Begins to serve on a socket of loopback that listens and does not block; its port is in [`Sessions::port`] then.
///
/// # Errors
/// [`Error`].
pub fn start(
    sessions: &Arc<Sessions>,
    Prepared { runtime, owners }: Prepared,
    listener: TcpListener,
) -> Result<(), Error> {
    let got = listener.local_addr().map_err(Error::Listen)?.port();
    let turns = Turns::new(THREADS, sessions.owners.clone());
    let feed = feed::start(sessions).map_err(Error::Start)?;
    let dashboard = Arc::new(Dashboard { sessions: Arc::clone(sessions), port: got, feed, turns, owners });
    let of_thread = Arc::clone(sessions);
    let accept = move || {
        // One thread for all pages, and for all who connect and show no token.
        precedence::first();
        let ended = runtime.block_on(serve(&listener, dashboard));
        // While the port is still ours: no link with a token leads to whoever has it next.
        of_thread.port.store(0, Ordering::SeqCst);
        if let Err(error) = ended {
            tracing::error!("the dashboard has ended: {error}");
        }
    };
    sessions.port.store(got, Ordering::SeqCst);
    thread::Builder::new().name("web".into()).spawn(accept).map(drop).map_err(|error| {
        sessions.port.store(0, Ordering::SeqCst);
        Error::Start(error)
    })
}

async fn serve(listener: &TcpListener, dashboard: Arc<Dashboard>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
    let bounds = Bounds { all: MOST_CONNECTIONS, each: CONNECTIONS_EACH, unknown: MOST_STRANGERS };
    let permits = Permits::within(bounds, dashboard.sessions.owners.clone());
    let router = api::router(Arc::clone(&dashboard));
    loop {
        let (stream, peer) = serving::accept(|| listener.accept()).await;
        let Some(standing) = Standing::of_stranger(&permits, Some(peer)) else { continue };
        let (router, dashboard) = (router.clone(), Arc::clone(&dashboard));
        tokio::spawn(async move {
            let stop = CancellationToken::new();
            match serving::connection(stream, standing, router, LIMITS, stop).await {
                Ok(()) => {}
                Err(error @ serving::Error::Evicted) => {
                    dashboard.log_refusal(Some(peer), "a connection to the dashboard", &error);
                }
                Err(error) => tracing::debug!("a connection to the dashboard ended: {error}"),
            }
        });
        // Whoever has shown a token already is to be known before the next comes.
        task::yield_now().await;
    }
}
