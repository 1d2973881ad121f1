//! The dashboard's server: REST, WebSocket and the page itself, on loopback, for whoever holds the token.
//!
//! One thread with a small runtime. What touches the store or an interceptor's link runs beside it, on at most four
//! threads, so that neither a slow disk nor a slow peer holds the others up.

mod api;
mod assets;
mod gate;
mod live;
mod rules;

use super::mcp::server::Sessions;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};
use tokio::{runtime, sync::Semaphore, time};

/// Ports that are tried after one that is taken, before any free one is.
const NEXT: u16 = 20;
/// Connections at once; more wait in the listener's queue.
const MOST_CONNECTIONS: usize = 128;
/// How long a client may take to send a request's head.
const HEAD: Duration = Duration::from_secs(10);
/// Bytes of a request's head.
const LONGEST_HEAD: usize = 16 << 10;

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No port.
    #[error("the dashboard can listen on no port of 127.0.0.1")]
    Listen(#[source] io::Error),
    /// No thread or no event queue.
    #[error("the dashboard's thread cannot be started")]
    Start(#[source] io::Error),
}

/// What the handlers share.
#[derive(Debug)]
struct Dashboard {
    sessions: Arc<Sessions>,
    /// The user's rules.
    rules: PathBuf,
    port: u16,
    live: live::News,
}

/// Begins to serve; the port is in [`Sessions::port`] then. A port that is taken is exchanged for the next free one.
///
/// # Errors
/// [`Error`].
pub(crate) fn start(sessions: &Arc<Sessions>, port: u16, rules: PathBuf) -> Result<(), Error> {
    let listener = bind(port).map_err(Error::Listen)?;
    let got = listener.local_addr().map_err(Error::Listen)?.port();
    if port != 0 && got != port {
        tracing::warn!("port {port} is taken; the dashboard is on port {got}");
    }
    listener.set_nonblocking(true).map_err(Error::Listen)?;
    let live = live::start(sessions).map_err(Error::Start)?;
    let dashboard = Arc::new(Dashboard { sessions: Arc::clone(sessions), rules, port: got, live });
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_name("web-store")
        .build()
        .map_err(Error::Start)?;
    let accept = move || {
        if let Err(error) = runtime.block_on(serve(listener, dashboard)) {
            tracing::error!("the dashboard has ended: {error}");
        }
    };
    thread::Builder::new().name("web".into()).spawn(accept).map_err(Error::Start)?;
    sessions.port.store(got, Ordering::SeqCst);
    Ok(())
}

fn bind(port: u16) -> io::Result<TcpListener> {
    let listen = |port| TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    if port == 0 {
        return listen(0);
    }
    let ports = (port..=port.saturating_add(NEXT)).chain([0]);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for port in ports {
        match listen(port) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn serve(listener: TcpListener, dashboard: Arc<Dashboard>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
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
