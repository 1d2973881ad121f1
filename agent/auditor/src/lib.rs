//! The auditor role: decodes records, stores them, answers questions. Unprivileged.
//!
//! | thread | does |
//! |---|---|
//! | link | reads the core's socket, decodes, names rules; passes events on through a bounded queue |
//! | store | owns the store: writes in batches, retries, deletes what is old |
//! | query | accepts on the query socket; one more thread for each connection that says something, bounded |
//! | mcp | the same on the socket of MCP sessions: interceptors' links, questions |
//! | web | the dashboard, on the listening socket that the core made |
//!
//! | file | what |
//! |---|---|
//! | `link`, `queue`, `store_writer` | from the core's socket to the store: decode, queue, write in batches |
//! | `accept` | whoever connects, until there is something to read; the threads of connections |
//! | `query`, `trace` | the query socket; the trace of an agent |
//! | `mcp/` | MCP sessions: journals in, rows out, approvals, and the events that belong to a call |
//! | `web/`, `metrics` | the dashboard's server; `/metrics` |
//! | `verify` | checks journals, ledger, database and stored heads against each other |
//! | `user` | the auditor of one user and database, where no daemon runs |
//! | `shared`, `journald`, `sandbox` | what the threads share; notices for the journal; what the auditor may do |
//! | `error` | why the auditor ended |
//!
//! It ends when the core closes the link, or when it can no longer ask about peers, after it has stored what arrived.
//! It ignores the signals that would end it sooner.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod accept;
mod error;
mod journald;
mod link;
mod mcp;
mod metrics;
mod query;
mod queue;
mod sandbox;
mod shared;
mod store_writer;
mod trace;
pub mod user;
pub mod verify;
pub mod web;

pub use error::Error;
pub use ringfence_store::{MCP_TABLES, Retention, mcp_schema_sql};

use journald::Journald;
use mcp::{
    peers::{CoreChannel, PeerResolver},
    sessions::{Serving, Sessions},
    upkeep::Upkeep,
};
use nix::{
    fcntl::{Flock, FlockArg},
    sys::{
        signal::{SigSet, Signal},
        socket::{getsockopt, sockopt::AcceptConn},
    },
};
use query::Queries;
use ringfence_base::{closing, precedence, quota::Owners};
use ringfence_store as store;
use ringfence_wire::{
    audit::{Handoff, PassedFd},
    conn::Conn,
    message::MAX_REQUEST,
    packets::Packets,
};
use shared::Shared;
use std::{
    fs::File,
    io,
    net::{Shutdown, TcpListener},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use store_writer::StoreWriter;

/// How long the core may take for its first message.
const HANDOFF_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a new auditor waits for the one before it to store its last events.
const LOCK_LIMIT: Duration = Duration::from_secs(15);

/// Runs the role over standard input (the core) and standard output (the listening query socket). The other sockets are
/// the core's first message. `retention` bounds events and sessions alike.
///
/// # Errors
/// [`Error`].
pub fn run(state: &Path, retention: Retention) -> Result<(), Error> {
    // The thread of the core that starts it goes first.
    precedence::usual();
    let (core, listener) = inherited()?;
    // The core's end closes when it ends; systemd's SIGTERM to the whole cgroup must not lose what is under way. A
    // write over the file size limit is an error to deal with, as a full disk is.
    let ignored = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGXFSZ]);
    ignored.thread_block().map_err(|e| Error::NotFromDaemon(Some(e.into())))?;
    // What the auditor writes is nobody else's to read, whatever the mode of its directory.
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    let handoff = receive_handoff(&core)?;
    let _lock = lock(state)?;
    // Before the sandbox, which makes no socket: the host's journal is spoken to by one.
    let host_journal = Journald::of_host().connected();
    let web = web::prepare()?;
    sandbox::enter(state)?;
    closing::prepare();
    let answers = core.try_clone().map_err(|e| Error::NotFromDaemon(Some(e)))?;
    answers.set_write_timeout(Some(Duration::from_secs(1))).map_err(|e| Error::NotFromDaemon(Some(e)))?;
    let shared = Arc::new(Shared::new(answers));
    let db = state.join(store::FILE);
    let writer = StoreWriter::open(db.clone(), Arc::clone(&shared), retention)?;
    let spawn = |name: &str| thread::Builder::new().name(name.to_owned());
    let owners = Owners::default();
    let is_cut_off = Arc::new(AtomicBool::new(false));
    let peers = match handoff.peers {
        Some(line) => {
            // There is a new line with a new auditor only. This one ends as if the core had closed its socket: what came is
            // stored, and the core, which sees the end of it, starts another.
            let (core, is_cut_off) = (core.try_clone().map_err(Error::Thread)?, Arc::clone(&is_cut_off));
            let lost = move || {
                is_cut_off.store(true, Ordering::SeqCst);
                let _ = core.shutdown(Shutdown::Read);
            };
            PeerResolver::Core(CoreChannel::start(line, owners.clone(), lost).map_err(Error::Thread)?)
        }
        None => PeerResolver::Nobody,
    };
    let session_bytes = retention.session_bytes;
    let serving = Serving::Everybody { peers, shared: Arc::clone(&shared), owners, session_bytes };
    let sessions = Arc::new(Sessions::new(db.clone(), serving));
    // Journals are the users' own files: what is beyond the bounds is removed from the database alone.
    let upkeep = Upkeep::new(Arc::clone(&sessions), retention, None).with_journald(host_journal);
    spawn("upkeep")
        .spawn({
            let shared = Arc::clone(&shared);
            move || keep_up(upkeep, &shared)
        })
        .map_err(Error::Thread)?;
    if let Some(dashboard) = handoff.dashboard {
        web::start(&sessions, web, dashboard)?;
    }

    let (sender, items) = queue::queue();
    let writer = spawn("store")
        .spawn(move || {
            precedence::first();
            writer.run(&items)
        })
        .map_err(Error::Thread)?;
    accept::start(listener, Arc::new(Queries::new(&db, &shared, &sessions))).map_err(Error::Thread)?;
    if let Some(listener) = handoff.mcp {
        accept::start(listener, sessions).map_err(Error::Thread)?;
    }

    precedence::first();
    let linked = link::run(core, &shared, &sender);
    shared.close();
    drop(sender);
    let whole = writer.join().unwrap_or(false);
    linked?;
    match whole {
        false => Err(Error::Lost),
        true if is_cut_off.load(Ordering::SeqCst) => Err(Error::CutOff),
        true => Ok(()),
    }
}

/// The sockets the core gave: a connected one as standard input, a listening one as standard output.
fn inherited() -> Result<(UnixStream, UnixListener), Error> {
    let own = |fd: io::Result<OwnedFd>| fd.map_err(|e| Error::NotFromDaemon(Some(e)));
    let core = own(io::stdin().as_fd().try_clone_to_owned())?;
    let listener = own(io::stdout().as_fd().try_clone_to_owned())?;
    let listening = |fd: &OwnedFd| getsockopt(fd, AcceptConn).ok();
    if listening(&core) != Some(false) || listening(&listener) != Some(true) {
        return Err(Error::NotFromDaemon(None));
    }
    let (core, listener) = (UnixStream::from(core), UnixListener::from(listener));
    // Whatever the core left it in: threads wait on it.
    core.set_nonblocking(false).map_err(|e| Error::NotFromDaemon(Some(e)))?;
    Ok((core, listener))
}

/// Looks after the sessions until the core is gone.
fn keep_up(mut upkeep: Upkeep, shared: &Shared) {
    while !shared.progress().closed {
        thread::sleep(Duration::from_millis(200));
        upkeep.look(Instant::now());
    }
    upkeep.finish();
}

/// The sockets that the core gave beside its first message.
#[derive(Default)]
struct PassedSockets {
    mcp: Option<UnixListener>,
    dashboard: Option<TcpListener>,
    peers: Option<Packets>,
}

fn receive_handoff(core: &UnixStream) -> Result<PassedSockets, Error> {
    let own = |error| Error::NotFromDaemon(Some(error));
    let mut conn = Conn::new(core.try_clone().map_err(own)?, HANDOFF_TIMEOUT, MAX_REQUEST);
    let (Handoff { fds }, descriptors) =
        conn.receive_with_descriptors().map_err(|error| own(io::Error::other(error)))?;
    core.set_read_timeout(None).map_err(own)?;
    if fds.len() != descriptors.len() {
        return Err(own(io::Error::other("the first message does not fit its descriptors")));
    }
    let mut passed = PassedSockets::default();
    for (fd, descriptor) in fds.into_iter().zip(descriptors) {
        match fd {
            PassedFd::Mcp => passed.mcp = Some(UnixListener::from(descriptor)),
            PassedFd::Dashboard => passed.dashboard = Some(TcpListener::from(descriptor)),
            PassedFd::Peers => passed.peers = Some(Packets::new(descriptor)),
        }
    }
    Ok(passed)
}

/// Locks the state directory, so that two auditors never write one database.
fn lock(state: &Path) -> Result<Flock<File>, Error> {
    let path = state.join("audit.lock");
    let uid = nix::unistd::geteuid().as_raw();
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|source| Error::State { path: state.to_owned(), uid, source })?;
    let until = Instant::now() + LOCK_LIMIT;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, errno)) if errno != nix::errno::Errno::EWOULDBLOCK => {
                return Err(Error::State { path: state.to_owned(), uid, source: errno.into() });
            }
            Err(_) if Instant::now() > until => return Err(Error::Busy { path: state.to_owned() }),
            Err((back, _)) => {
                file = back;
                thread::sleep(Duration::from_millis(50));
            }
        }
    }
}
