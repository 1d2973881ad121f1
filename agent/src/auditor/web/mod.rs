//! The dashboard's server: REST, WebSocket and the page itself, on loopback, for whoever holds the token.
//!
//! One thread with a small runtime. What touches the store or an interceptor's link runs beside it, on at most four
//! threads, so that neither a slow disk nor a slow peer holds the others up.

mod api;
mod assets;
mod gate;
mod live;
mod rules;

use super::mcp::sessions::Sessions;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    io,
    net::TcpListener,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};
use tokio::{
    runtime::{self, Runtime},
    sync::Semaphore,
    time,
};

/// Connections at once; more wait in the listener's queue.
const MOST_CONNECTIONS: usize = 128;
/// How long a client may take to send a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 16 << 10;

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The listening socket.
    #[error("the dashboard's socket cannot be used")]
    Listen(#[source] io::Error),
    /// No thread or no event queue.
    #[error("the dashboard's thread cannot be started")]
    Start(#[source] io::Error),
}

/// What the handlers share.
#[derive(Debug)]
struct Dashboard {
    sessions: Arc<Sessions>,
    /// The user's rules; `None` where users have files of their own, which only their interceptors can read.
    rules: Option<PathBuf>,
    port: u16,
    live: live::News,
}

/// What the dashboard's thread waits with. A process that will be confined makes it before: it takes descriptors that a
/// sandbox refuses (tokio's signals, where any part of the program uses them, have a socket pair).
///
/// # Errors
/// [`Error::Start`].
pub(crate) fn runtime() -> Result<Runtime, Error> {
    runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(4)
        .thread_name("web-store")
        .build()
        .map_err(Error::Start)
}

/// Begins to serve on a socket of loopback that listens and does not block; its port is in [`Sessions::port`] then.
///
/// # Errors
/// [`Error`].
pub(crate) fn start(
    sessions: &Arc<Sessions>,
    runtime: Runtime,
    listener: TcpListener,
    rules: Option<PathBuf>,
) -> Result<(), Error> {
    let got = listener.local_addr().map_err(Error::Listen)?.port();
    let live = live::start(sessions).map_err(Error::Start)?;
    let dashboard = Arc::new(Dashboard { sessions: Arc::clone(sessions), rules, port: got, live });
    let of_thread = Arc::clone(sessions);
    let accept = move || {
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
    let router = api::router(dashboard);
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            // Out of descriptors: it passes.
            time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let _permit = permit;
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(LONGEST_HEAD)
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
            if let Err(error) = served {
                tracing::debug!("a connection to the dashboard ended: {error}");
            }
        });
    }
}
