//! The worker as a role of its own: one agent's, started by its supervisor: by the core, under its own user id, or by the
//! service of one user (`user`), as that user.
//!
//! It takes its configuration, its credentials and its listening socket from the supervisor, confines itself, and serves until
//! the supervisor says stop or is gone.

use super::{
    access::{Access, Issued},
    confine,
    core_client::CoreClient,
    credentials::Credentials,
    http::{self, Accounting, ByteBudget, CallShutdown, KeyRenewal},
    mcp::line::Host,
    report,
    service::{Order, OrderAssembler, WorkerService},
    worker::{self, Ready, Worker},
};
use nix::sys::{
    signal::{SigSet, Signal},
    socket::{getsockopt, sockopt},
    stat::{Mode, umask},
};
use ringfence_base::lock::{Lock, LockError};
use ringfence_base::{error::chain, paths::HTTP_TOKEN, precedence};
use ringfence_credentials as secret;
use ringfence_policy::agents::{
    home::{CONVERSATION, HTTP_LOG, LOCK, PINS},
    registry::AgentConfig,
};
use ringfence_wire::{
    agent::{MAX_ORDER, Start, Supervisor, ToCore, ToWorker, WorkerCounts},
    conn::Conn,
    frame::FrameError,
    trace::AgentEvent,
};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// How long the supervisor may take for each of its first messages.
const START_TIME: Duration = Duration::from_secs(10);
/// How long the worker of an earlier supervisor may take to leave the log alone.
const HANDOVER: Duration = Duration::from_secs(10);
/// How often the core is told what the worker does.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// Why a worker does not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by a supervisor.
    #[error(
        "`ringfence llm-worker` is started by the daemon or by `ringfence agent start`, with its link as standard input; use one of those"
    )]
    NotFromDaemon(#[source] Option<io::Error>),
    /// The supervisor's first messages.
    #[error("cannot parse the first messages; do the worker and its supervisor have the same version?")]
    Startup(#[source] FrameError),
    /// The configuration.
    #[error("cannot parse the configuration; do the worker and its supervisor have the same version?")]
    Config(#[source] serde_json::Error),
    /// Descriptors that are missing or too many.
    #[error("the first messages do not fit their descriptors")]
    Descriptors,
    /// A credential.
    #[error("cannot read a credential")]
    Secret(#[source] secret::Error),
    /// Another worker writes the log.
    #[error("another worker holds the conversation")]
    Lock(#[source] LockError),
    /// The sandbox.
    #[error(transparent)]
    Confine(#[from] confine::Error),
    /// Credentials, the log.
    #[error(transparent)]
    Worker(#[from] worker::Error),
    /// The HTTP endpoint.
    #[error(transparent)]
    Http(#[from] http::Error),
    /// The runtime.
    #[error("cannot set up sockets, signals or the event loop")]
    Io(#[source] io::Error),
}

/// Runs the role over standard input.
///
/// # Errors
/// [`Error`].
pub fn run() -> Result<(), Error> {
    precedence::not_core();
    let own = |error| Error::NotFromDaemon(Some(error));
    let supervisor = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().map_err(own)?);
    if getsockopt(&supervisor, sockopt::AcceptConn) != Ok(false) {
        return Err(Error::NotFromDaemon(None));
    }
    umask(Mode::from_bits_truncate(0o077));
    confine::hide()?;
    serve(&supervisor).inspect_err(|error| {
        // Its user asks the supervisor how the agent fares, and does not look for what is on standard error.
        let sent = supervisor.try_clone().and_then(|stream| {
            stream.set_nonblocking(false)?;
            let failed = ToCore::Failed(chain(error));
            Conn::new(stream, START_TIME, MAX_ORDER).send(&failed).map_err(io::Error::other)
        });
        if let Err(why) = sent {
            tracing::debug!("it cannot be told why this worker ends: {why}");
        }
    })
}

fn serve(supervisor: &UnixStream) -> Result<(), Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let Startup { config, credentials, by, listener, http, loopback } = receive_start(supervisor)?;
    let files = Files::of(&by);
    let is_core = matches!(by, Supervisor::Core { .. });
    if !is_core {
        // A terminal's Ctrl-C, and what the service manager ends a service with, reach all processes: when this one ends is
        // the service's to say.
        let signals = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
        signals.thread_block().map_err(|errno| Error::Io(errno.into()))?;
    }
    let _lock = lock(&files.lock)?;
    // Names come from resolv.conf and the like: read where Landlock lets it.
    confine::enter(&files.dirs)?;
    let socket = supervisor.try_clone().map_err(own)?;
    socket.set_nonblocking(true).map_err(own)?;
    listener.set_nonblocking(true).map_err(own)?;
    let pins = (files.pins, Host::default());
    let ready = Ready::new(&config, &credentials, files.log.clone(), pins.clone())?;
    let shared = ready.shared();
    let worker = Worker::prepare(ready)?;
    if loopback.is_none() {
        // Of a worker before this one: whoever has the port now is not to be shown it.
        let _ = std::fs::remove_file(&files.token);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Io)?;
    let ended = runtime.block_on(async {
        let (stop, gone) = (CancellationToken::new(), CancellationToken::new());
        let socket = tokio::net::UnixStream::from_std(socket).map_err(Error::Io)?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(Error::Io)?;
        let (host, orders) = link(socket, is_core, worker.status().subscribe(), (&stop, &gone));
        let _ = pins.1.set(host.clone());
        // What a worker before this one left under way is over.
        host.report(&AgentEvent::Began { moment: report::now() });
        let (replacements, replaced) = mpsc::channel(4);
        let accounting = Accounting {
            meter: worker.meter(),
            status: worker.status(),
            log: files.log.with_file_name(HTTP_LOG),
            budget: ByteBudget::default(),
            renewal: Arc::new(KeyRenewal::new(host.clone())),
            cut: CancellationToken::new(),
        };
        let shutdown = accounting.shutdown();
        let mut service = WorkerService {
            host: host.clone(),
            files: (files.log, pins),
            replacements,
            access: is_core.then(|| Arc::new(Access::new(&config, host.clone(), Arc::<Issued>::default()))),
            shared,
            accounting,
            token: files.token,
            endpoint: None,
            outstanding: Arc::default(),
            workdir: config.workdir.clone(),
        };
        service.listen(http.map(|unix| (unix, loopback))).await?;
        host.ready();
        let reports = host.clone();
        let serving = async {
            let turns = async {
                worker.with_host(host).run(listener, replaced, stop.clone()).await;
                // If it ended by itself, so does everything.
                stop.cancel();
            };
            tokio::join!(turns, service.run(orders, stop.clone()));
        };
        tokio::select! {
            () = serving => {}
            // Nobody could answer for a peer any more, and another supervisor starts another worker.
            () = gone.cancelled() => supervisor_gone(&config.name, is_core, shutdown).await,
        }
        reports.flush().await;
        Ok(())
    });
    // Threads that wait for a disk or a name end with the process.
    runtime.shutdown_background();
    ended
}

/// The link to the supervisor, and what a user's service orders. The core is told now and then what the worker does, such a
/// service when it asks.
fn link(
    socket: tokio::net::UnixStream,
    is_core: bool,
    status: watch::Receiver<WorkerCounts>,
    (stop, gone): (&CancellationToken, &CancellationToken),
) -> (CoreClient, mpsc::Receiver<Order>) {
    let (orders_in, orders) = mpsc::channel(8);
    let (counts, mut asked) = mpsc::channel(8);
    let (stop, gone) = (stop.clone(), gone.clone());
    let host = match is_core {
        true => CoreClient::new(socket, stop, gone),
        false => CoreClient::of_user(socket, OrderAssembler::new(orders_in, counts), stop, gone),
    };
    let reporting = host.clone();
    tokio::spawn(async move {
        loop {
            if is_core {
                tokio::time::sleep(STATUS_INTERVAL).await;
            } else if asked.recv().await.is_none() {
                return;
            }
            let counts = *status.borrow();
            reporting.status(counts);
        }
    });
    (host, orders)
}

/// The supervisor is gone. What calls under way cost is not forgotten.
async fn supervisor_gone(agent: &str, is_core: bool, calls: CallShutdown) {
    let who = if is_core { "the daemon" } else { "the user's service" };
    tracing::info!("agent {agent}: {who} is gone, and so is its worker");
    calls.complete().await;
}

/// Where a worker keeps what is its own.
struct Files {
    /// The directories that all of it is in.
    dirs: Vec<PathBuf>,
    /// The conversation's log.
    log: PathBuf,
    /// The pins of MCP tools.
    pins: PathBuf,
    /// The token of the HTTP endpoint on loopback.
    token: PathBuf,
    /// Held by the one worker that writes them.
    lock: PathBuf,
}

impl Files {
    fn of(by: &Supervisor) -> Self {
        let (dirs, logs, state, lock) = match by {
            Supervisor::Core { dir } => {
                (vec![dir.clone()], dir.join("log"), dir.join("state"), dir.join(LOCK))
            }
            Supervisor::User { logs, state } => {
                (vec![logs.clone(), state.clone()], logs.clone(), state.clone(), state.join(LOCK))
            }
        };
        Self {
            dirs,
            log: logs.join(CONVERSATION),
            pins: state.join(PINS),
            token: state.join(HTTP_TOKEN),
            lock,
        }
    }
}

/// What a worker is started with.
struct Startup {
    config: AgentConfig,
    credentials: Credentials,
    by: Supervisor,
    listener: UnixListener,
    /// The HTTP endpoint's.
    http: Option<UnixListener>,
    loopback: Option<TcpListener>,
}

/// Takes what the supervisor gives a new worker.
fn receive_start(supervisor: &UnixStream) -> Result<Startup, Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let mut conn = Conn::new(supervisor.try_clone().map_err(own)?, START_TIME, MAX_ORDER);
    let mut next = || conn.receive_with_descriptors().map_err(Error::Startup);
    let (ToWorker::Start(Start { config, by, credentials: wanted, http, loopback }), sockets) = next()?
    else {
        return Err(Error::Descriptors);
    };
    if sockets.len() != 1 + usize::from(http) + usize::from(loopback) || (loopback && !http) {
        return Err(Error::Descriptors);
    }
    let mut sockets = sockets.into_iter();
    let listener = sockets.next().ok_or(Error::Descriptors)?.into();
    let http = sockets.next().map(UnixListener::from);
    let loopback = sockets.next().map(TcpListener::from);
    let config: AgentConfig = serde_json::from_str(config.get()).map_err(Error::Config)?;
    let mut credentials = Credentials::default();
    for of in wanted {
        let (ToWorker::Credential, descriptors) = next()? else { return Err(Error::Descriptors) };
        let [descriptor] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| Error::Descriptors)?;
        if !credentials.take(&config, of, descriptor).map_err(Error::Secret)? {
            return Err(Error::Descriptors);
        }
    }
    // What is received next is the tokio side's to wait for.
    supervisor.set_read_timeout(None).map_err(own)?;
    Ok(Startup { config, credentials, by, listener, http, loopback })
}

/// Locks the log, so that two workers never write one conversation.
fn lock(path: &Path) -> Result<Lock, Error> {
    let until = Instant::now() + HANDOVER;
    loop {
        match Lock::take(path) {
            Err(LockError::Held { .. }) if Instant::now() < until => thread::sleep(Duration::from_millis(50)),
            taken => return taken.map_err(Error::Lock),
        }
    }
}
