//! HTTP with those whom nobody trusts.
//!
//! Serves whoever connects: how long a connection may take for each step, and for how long it may stay without
//! saying who it is.
//!
//! A port of loopback is everybody's to connect to. Until a connection has shown a token it is a stranger's: there are so
//! many of those, the oldest goes for the next, and each goes after a while, whatever it sends or does not read. What was
//! shown a token counts against its user's share.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

#[cfg(feature = "client")]
pub mod client;
pub mod own;
pub mod sse;
pub mod turns;

use axum::{Router, body::Body, http::Request};
use hyper::{body::Incoming, service::Service as _, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use ringfence_base::quota::{Permit, Permits};
use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time,
};
use tokio_io_timeout::TimeoutWriter;
use tokio_util::sync::CancellationToken;

/// How long until a connection that could not be accepted is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// The next connection. Where none can be accepted, the process is out of descriptors most likely, and they come back.
pub async fn accept<S, F>(mut next: impl FnMut() -> F) -> S
where
    F: Future<Output = io::Result<S>>,
{
    loop {
        match next().await {
            Ok(connection) => return connection,
            Err(error) => tracing::warn!("accepting a connection: {error}"),
        }
        time::sleep(RETRY).await;
    }
}

/// What a connection may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How long a request's head may take, and a connection without a request last.
    pub head: Duration,
    /// Bytes of a request's head.
    pub longest_head: usize,
    /// How long a client may take nothing of what is there for it.
    pub stalled: Duration,
    /// How long a stranger may stay.
    pub stranger: Duration,
    /// How many requests of a stranger are answered, on one connection.
    pub requests: usize,
}

/// Whose a connection is; among each of its requests' extensions.
#[derive(Debug)]
pub struct Standing {
    permit: Permit,
    known: AtomicBool,
    requests: AtomicUsize,
    peer: Option<SocketAddr>,
    close: CancellationToken,
}

impl Standing {
    /// A new connection's, from this address if it has one; `None` where no strangers are served.
    pub fn of_stranger(permits: &Permits, peer: Option<SocketAddr>) -> Option<Arc<Self>> {
        let close = CancellationToken::new();
        let end = close.clone();
        let permit = permits.take_unknown(move || end.cancel())?;
        let (known, requests) = (AtomicBool::new(false), AtomicUsize::new(0));
        Some(Arc::new(Self { permit, known, requests, peer, close }))
    }

    /// Where it comes from.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// It is this user's. False: this user has too many, or it had to go.
    #[must_use = "without the permit there is no bound"]
    pub fn identify(&self, uid: u32) -> bool {
        let known = self.permit.identify(uid);
        self.known.fetch_or(known, Ordering::SeqCst);
        known
    }

    /// Resolves when it has to go for others.
    pub async fn evicted(&self) {
        self.close.cancelled().await;
    }

    fn is_known(&self) -> bool {
        self.known.load(Ordering::SeqCst)
    }
}

/// Why a connection ended that could have gone on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// By what was sent, or not read in time.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// For another one.
    #[error("it was closed to make room for others")]
    Evicted,
    /// It did not show a token.
    #[error("it did not authenticate in time")]
    Stranger,
}

/// Serves one connection to its end; after `stop`, what is under way.
///
/// # Errors
/// [`Error`].
pub async fn connection<S>(
    stream: S,
    standing: Arc<Standing>,
    router: Router,
    limits: Limits,
    stop: CancellationToken,
) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(limits.stalled));
    let router = TowerToHyperService::new(router);
    let extended = Arc::clone(&standing);
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        if !extended.is_known() && extended.requests.fetch_add(1, Ordering::Relaxed) >= limits.requests {
            extended.close.cancel();
        }
        request.extensions_mut().insert(Arc::clone(&extended));
        router.call(request)
    });
    let mut serving = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_buf_size(limits.longest_head)
            .serve_connection(TokioIo::new(Box::pin(stream)), service)
            .with_upgrades()
    );
    let mut patience = std::pin::pin!(time::sleep(limits.stranger));
    let (mut is_due, mut is_stopping) = (false, false);
    loop {
        tokio::select! {
            // First: there may always be something to serve.
            biased;
            () = standing.close.cancelled() => return Err(Error::Evicted),
            served = serving.as_mut() => return served.map_err(Error::Http),
            () = patience.as_mut(), if !is_due => {
                is_due = true;
                if !standing.is_known() {
                    return Err(Error::Stranger);
                }
            }
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                serving.as_mut().graceful_shutdown();
            }
        }
    }
}
