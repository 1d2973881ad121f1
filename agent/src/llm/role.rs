//! The worker as a role of its own: one agent's, started by the core, under its own user id.
//!
//! It takes its configuration, its credentials and its listening socket from the core, confines itself, and serves until
//! the core says stop or is gone.

use super::{
    access::{Access, Issued},
    confine,
    home::{HTTP_LOG, HTTP_TOKEN},
    host::Host,
    http::{self, Books, Endpoint, LastWords, Loopback, Room},
    registry::AgentConfig,
    report,
    secret::{self, Source},
    status::WorkerStatus,
    worker::{self, Ready, Worker},
};
use crate::core::lock::{Lock, LockError};
use ringfence_wire::{
    agent::{AgentCounts, For, MAX_ORDER, Start, ToWorker},
    conn::Conn,
    frame::FrameError,
    trace::Said,
};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::PathBuf,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// How long the core may take for each of its first messages.
const BRIEF: Duration = Duration::from_secs(10);
/// How long the worker of an earlier core may take to leave the log alone.
const HANDOVER: Duration = Duration::from_secs(10);
/// How often the core is told what the worker does.
const TELL: Duration = Duration::from_millis(500);

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Not started by the daemon.
    #[error(
        "`ringfence llm-worker` is started by the daemon, with its link as standard input; use `ringfence daemon` or `ringfence start`"
    )]
    NotFromDaemon(#[source] Option<io::Error>),
    /// The core's first messages.
    #[error("the daemon's first messages cannot be understood; do both have the same version?")]
    Brief(#[source] FrameError),
    /// The configuration.
    #[error("the daemon's configuration cannot be understood; do both have the same version?")]
    Config(#[source] serde_json::Error),
    /// Descriptors that are missing or too many.
    #[error("the daemon's first messages do not fit their descriptors")]
    Descriptors,
    /// A credential.
    #[error("a credential cannot be read")]
    Secret(#[source] secret::Error),
    /// Another worker writes the log.
    #[error("the conversation is another worker's")]
    Lock(#[source] LockError),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// Credentials, the log.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The HTTP endpoint on loopback.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The runtime.
    #[error("the system refuses what is needed to start")]
    Io(#[source] io::Error),
}

/// Runs the role over standard input.
///
/// # Errors
/// [`Error`].
pub(crate) fn run() -> Result<(), Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let core = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(own)?);
    if rustix::net::sockopt::socket_acceptconn(&core).ok() != Some(false) {
        return Err(Error::NotFromDaemon(None));
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let Brief { config, dir, listener, http, loopback } = briefed(&core)?;
    let _lock = lock(&dir.join(".lock"))?;
    // Names come from resolv.conf and the like: read where Landlock lets it.
    confine::enter(&dir)?;
    core.set_nonblocking(true).map_err(own)?;
    for listener in [&listener].into_iter().chain(&http) {
        listener.set_nonblocking(true).map_err(own)?;
    }
    let ready = Ready::at(&config, dir.join("log/conversation.ndjson"), dir.join("state/mcp-pins.json"))?;
    let shared = ready.shared();
    let worker = Worker::prepare(ready)?;
    let token = dir.join("state").join(HTTP_TOKEN);
    if loopback.is_none() {
        // Of a worker before this one: whoever has the port now is not to be shown it.
        let _ = std::fs::remove_file(&token);
    }
    let books = Books {
        meter: worker.meter(),
        status: worker.status(),
        log: dir.join("log").join(HTTP_LOG),
        room: Room::default().share(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let ended = runtime.block_on(async {
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        let core = tokio::net::UnixStream::from_std(core).map_err(Error::Io)?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(Error::Io)?;
        let host = Host::new(core, stop.clone(), gone.clone());
        // What a worker before this one left under way is over.
        host.report(&Said::Began { moment: report::now() });
        let status = worker.status().subscribe();
        let (_never, replacements) = mpsc::channel(1);
        let telling = host.clone();
        tokio::spawn(async move {
            loop {
                let counts = counts(&status.borrow());
                telling.status(counts);
                tokio::time::sleep(TELL).await;
            }
        });
        let loopback = loopback.map(|tcp| Loopback::handed(tcp, &token)).transpose()?;
        let endpoint = http.map(tokio::net::UnixListener::from_std).transpose().map_err(Error::Io)?;
        let endpoint = endpoint.map(|listener| {
            let access = Access::new(&config, host.clone(), Arc::<Issued>::default());
            Endpoint::handed((listener, loopback), Arc::new(access), shared, books)
        });
        let last_words = endpoint.as_ref().map(Endpoint::last_words);
        host.ready();
        let serving = async {
            let stopping = stop.clone();
            let calls = async {
                stopping.cancelled().await;
                if let Some(endpoint) = endpoint {
                    endpoint.stop().await;
                }
            };
            let turns = async {
                worker.with_host(host).run(listener, replacements, stop.clone()).await;
                // If it ended by itself, so does everything.
                stop.cancel();
            };
            tokio::join!(turns, calls);
        };
        tokio::select! {
            () = serving => {}
            // Nobody could answer for a peer any more, and another core starts another worker.
            () = gone.cancelled() => left_alone(&config.name, last_words).await,
        }
        Ok(())
    });
    // Threads that wait for a disk or a name end with the process.
    runtime.shutdown_background();
    ended
}

/// The daemon is gone. What calls under way cost is not forgotten.
async fn left_alone(agent: &str, calls: Option<LastWords>) {
    tracing::info!("agent {agent}: the daemon is gone, and so is its worker");
    if let Some(calls) = calls {
        calls.spoken().await;
    }
}

fn counts(status: &WorkerStatus) -> AgentCounts {
    AgentCounts {
        runtime: status.runtime,
        busy: status.busy,
        waiting: status.waiting as u64,
        turns: status.turns,
        failed: status.failed,
        input_tokens: status.input_tokens,
        output_tokens: status.output_tokens,
        ..AgentCounts::default()
    }
}

/// What a worker is started with.
struct Brief {
    config: AgentConfig,
    dir: PathBuf,
    listener: UnixListener,
    /// The HTTP endpoint's.
    http: Option<UnixListener>,
    loopback: Option<TcpListener>,
}

/// Takes what the core gives a new worker.
fn briefed(core: &UnixStream) -> Result<Brief, Error> {
    let mut conn = Conn::new(core.try_clone().map_err(|e| Error::NotFromDaemon(Some(e)))?, BRIEF, MAX_ORDER);
    let mut next = || conn.receive_with_descriptors().map_err(Error::Brief);
    let (ToWorker::Start(Start { config, dir, credentials, http, loopback }), sockets) = next()? else {
        return Err(Error::Descriptors);
    };
    if sockets.len() != 1 + usize::from(http) + usize::from(loopback) || (loopback && !http) {
        return Err(Error::Descriptors);
    }
    let mut sockets = sockets.into_iter();
    let listener = sockets.next().ok_or(Error::Descriptors)?.into();
    let http = sockets.next().map(UnixListener::from);
    let loopback = sockets.next().map(TcpListener::from);
    let mut config: AgentConfig = serde_json::from_str(config.get()).map_err(Error::Config)?;
    for of in credentials {
        let (ToWorker::Credential, descriptors) = next()? else { return Err(Error::Descriptors) };
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| Error::Descriptors)?;
        let source = Some(Source::Value(secret::handed(descriptor).map_err(Error::Secret)?));
        match of {
            For::Llm => config.llm.api_key = source,
            For::Mcp(name) => {
                let mcp = config.mcp.iter_mut().find(|mcp| mcp.name == name);
                mcp.ok_or(Error::Descriptors)?.auth_token = source;
            }
        }
    }
    // What is received next is the tokio side's to wait for.
    core.set_read_timeout(None).map_err(|e| Error::NotFromDaemon(Some(e)))?;
    Ok(Brief { config, dir, listener, http, loopback })
}

/// Locks the log, so that two workers never write one conversation.
fn lock(path: &std::path::Path) -> Result<Lock, Error> {
    let until = Instant::now() + HANDOVER;
    loop {
        match Lock::take(path) {
            Err(LockError::Held { .. }) if Instant::now() < until => thread::sleep(Duration::from_millis(50)),
            taken => return taken.map_err(Error::Lock),
        }
    }
}
