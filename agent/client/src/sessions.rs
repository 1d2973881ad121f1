//! The other end of the auditor's socket for MCP sessions: what interceptors and the command line call.

use super::{places::Places, ready};
use nix::unistd::Pid;
use ringfence_session::journal;
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{MAX_OFFERED, McpReply, McpRequest},
};
use std::{
    fs, io,
    os::{fd::AsFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long a message may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The same where somebody asks, or hands over a journal: what is asked for may come after much that is stored first.
const ANSWER: Duration = Duration::from_secs(30);
/// How long an auditor that was just started may take to listen. One that cannot run ends before.
const STARTING: Duration = Duration::from_secs(15);
/// How long one that is ending may take to let go of its socket and its database.
const ENDING: Duration = Duration::from_secs(10);
/// Between the first two tries to find its successor; each pause is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// Why the auditor cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be reached or started.
    #[error("cannot reach the auditor of {}; run `ringfence auditor --user --db FILE` to see why", db.display())]
    Reach {
        /// The database.
        db: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It cannot run, because its database cannot be used.
    #[error(transparent)]
    Database(#[from] ready::Error),
    /// The conversation failed.
    #[error("talking to the auditor failed")]
    Talk(#[from] FrameError),
    /// It said no; its reason is complete.
    #[error("{0}")]
    Refused(String),
}

/// Connects to the daemon's auditor where it serves this user; else to the one of the database.
///
/// # Errors
/// [`Error::Reach`].
pub fn connect(places: &Places, port: u16) -> Result<Conn, Error> {
    match connect_daemon(places) {
        Some(conn) => Ok(conn),
        None => connect_own(places, port),
    }
}

/// Connects to the daemon's auditor. `None`: a database was named, or nobody answers (to us).
pub fn connect_daemon(places: &Places) -> Option<Conn> {
    Conn::connect(places.daemon.as_ref()?, LIMIT).ok()
}

/// Connects to the auditor of a database; starts one where none runs. `port` is what it tries for its dashboard.
///
/// # Errors
/// [`Error::Reach`].
pub fn connect_own(places: &Places, port: u16) -> Result<Conn, Error> {
    let reach = |source| match ready::check(&places.db) {
        Err(why) => Error::Database(why),
        Ok(()) => Error::Reach { db: places.db.clone(), source },
    };
    let socket = places.socket().map_err(reach)?;
    match Conn::connect(&socket, LIMIT) {
        Ok(conn) => return Ok(conn),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {}
        Err(error) => return Err(reach(error)),
    }
    let mut auditor = start_auditor(places, port).map_err(reach)?;
    let until = Instant::now() + STARTING;
    let outcome = loop {
        match Conn::connect(&socket, LIMIT) {
            Ok(conn) => break Ok(conn),
            Err(error) if Instant::now() >= until => break Err(error),
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
        match auditor.try_wait() {
            Ok(Some(status)) if !status.success() => {
                break Err(io::Error::other("it ended as soon as it was started"));
            }
            // Another has the database: it is about to listen, or about to end, and then somebody must follow it.
            Ok(Some(_)) => {
                forget(&auditor);
                thread::sleep(Duration::from_millis(20));
                auditor = start_auditor(places, port).map_err(reach)?;
            }
            Ok(None) | Err(_) => {}
        }
    };
    // Reaped when it ends, which may be long after the session.
    thread::spawn(move || {
        let _ = auditor.wait();
        forget(&auditor);
    });
    outcome.map_err(reach)
}

/// Asks one question. A question about what is on record comes after the journals that are not.
///
/// # Errors
/// [`Error`].
pub fn ask(places: &Places, request: &McpRequest) -> Result<McpReply, Error> {
    let about_records = matches!(
        request,
        McpRequest::Calls { .. }
            | McpRequest::Call { .. }
            | McpRequest::Sessions { .. }
            | McpRequest::Stderr { after: ..=0, .. }
            | McpRequest::Stats
            | McpRequest::Table { after: ..=0, .. }
    );
    if about_records {
        // Without it the answer is still true of what is on record.
        let _ = offer_journals(places, || connect(places, DEFAULT_PORT));
    }
    let once = || {
        let mut conn = connect(places, DEFAULT_PORT)?.within(ANSWER);
        conn.send(request)?;
        reply(&mut conn)
    };
    // A decision is not made twice.
    if matches!(request, McpRequest::Decide { .. } | McpRequest::ApproveFor { .. }) {
        once()
    } else {
        again(ENDING, once)
    }
}

/// Does it again while the auditor hangs up, for `most`: one that is ending may still accept, and how long it takes to end is
/// the machine's matter.
pub fn again<T>(most: Duration, work: impl Fn() -> Result<T, Error>) -> Result<T, Error> {
    let until = Instant::now() + most;
    let mut pause = FIRST_PAUSE;
    loop {
        match work() {
            Err(Error::Talk(FrameError::Closed | FrameError::Cut { .. })) if Instant::now() < until => {
                thread::sleep(pause);
            }
            outcome => return outcome,
        }
        pause *= 2;
    }
}

fn reply(conn: &mut Conn) -> Result<McpReply, Error> {
    match conn.receive::<McpReply>()? {
        McpReply::Failed(failure) => Err(Error::Refused(failure.error)),
        reply => Ok(reply),
    }
}

/// Offers the journals whose interceptors are gone, and sends those that the auditor misses: of sessions that ended while
/// nobody served, or that were killed.
///
/// # Errors
/// [`Error`]; what was taken before it stays.
pub fn offer_journals(places: &Places, connect: impl Fn() -> Result<Conn, Error>) -> Result<(), Error> {
    // What was taken is not wanted again.
    again(ENDING, || offer_all(places, &connect))
}

fn offer_all(places: &Places, connect: &impl Fn() -> Result<Conn, Error>) -> Result<(), Error> {
    for part in places.journals().chunks(MAX_OFFERED) {
        let mut conn = connect()?.within(ANSWER);
        conn.send(&McpRequest::Offer {
            sessions: part.iter().map(|(session, _)| session.clone()).collect(),
        })?;
        let McpReply::Wanted { sessions, removed } = reply(&mut conn)? else { continue };
        // The daemon's auditor cannot delete in a user's directory what its retention removed: its checkpoint is there.
        for (_, path) in part.iter().filter(|(session, _)| removed.contains(session)) {
            if journal::abandoned(path).is_some() {
                let _ = fs::remove_file(path);
            }
        }
        for (session, path) in part.iter().filter(|(session, _)| sessions.contains(session)) {
            let Some(file) = journal::abandoned(path) else { continue };
            let journal = path.display().to_string();
            let mut conn = connect()?.within(ANSWER);
            let request = McpRequest::Journal { session: session.clone(), journal };
            conn.send_with_descriptors(&request, &[file.as_fd()])?;
            match reply(&mut conn) {
                // One that is not whole does not keep back the others; the auditor has said why in its log.
                Ok(_) | Err(Error::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The dashboard's port where nobody names one.
pub const DEFAULT_PORT: u16 = 8080;

/// Process ids of what this process has started and outlives it: auditors, and what [`spare`] was told.
static STARTED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Variables that auditors are started without.
static WITHHELD: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts auditors without a variable of this process's environment from now on: it has a secret, or says where one is, and an auditor
/// outlives whoever starts it.
pub fn withhold(variable: &str) {
    WITHHELD.lock().unwrap_or_else(PoisonError::into_inner).push(variable.to_owned());
}

/// One that was reaped: its number may be somebody else's by now.
fn forget(auditor: &Child) {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    started.retain(|pid| u32::try_from(pid.as_raw()) != Ok(auditor.id()));
}

/// A child of this process's that outlives it, as an auditor does. It is not to be waited for.
pub fn spare(child: &Child) {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    started.extend(i32::try_from(child.id()).map(Pid::from_raw));
}

/// Calls `work` with the auditors that this process has started, and what else outlives it: whatever it ends, not them. No other
/// auditor is started meanwhile.
pub fn sparing(work: impl FnOnce(&[Pid])) {
    work(&STARTED.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Starts an auditor for this user and database. It ends by itself when another has the database already.
fn start_auditor(places: &Places, port: u16) -> io::Result<Child> {
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(std::env::current_exe()?);
    for variable in WITHHELD.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        command.env_remove(variable);
    }
    let auditor = command
        .args(["auditor", "--user", "--port", &port.to_string(), "--db"])
        .arg(&places.db)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .current_dir("/")
        .spawn()?;
    started.extend(i32::try_from(auditor.id()).map(Pid::from_raw));
    Ok(auditor)
}
