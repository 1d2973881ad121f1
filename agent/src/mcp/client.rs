//! The other end of the auditor's socket for MCP sessions: what interceptors and the command line call.

use super::state::Places;
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{McpReply, McpRequest},
};
use std::{
    io,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a message may take.
const LIMIT: Duration = Duration::from_secs(5);
/// How long an auditor that was just started may take to listen.
const STARTING: Duration = Duration::from_secs(5);

/// Why the auditor cannot be asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// It cannot be reached or started.
    #[error("cannot reach the auditor of {}; run `ringfence auditor --user --db FILE` to see why", db.display())]
    Reach {
        /// The database.
        db: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The conversation failed.
    #[error("talking to the auditor failed")]
    Talk(#[from] FrameError),
    /// It said no; its reason is complete.
    #[error("{0}")]
    Refused(String),
}

/// Connects to the auditor of a database; starts one where none runs. `port` is what it tries for its dashboard.
///
/// # Errors
/// [`Error::Reach`].
pub(crate) fn connect(places: &Places, port: u16) -> Result<Conn, Error> {
    let reach = |source| Error::Reach { db: places.db.clone(), source };
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
        // One that succeeds at once leaves the database to another, which is about to listen.
        if let Ok(Some(status)) = auditor.try_wait()
            && !status.success()
        {
            break Err(io::Error::other("it ended as soon as it was started"));
        }
    };
    // Reaped when it ends, which may be long after the session.
    thread::spawn(move || auditor.wait());
    outcome.map_err(reach)
}

/// Asks one question.
///
/// # Errors
/// [`Error`].
pub(crate) fn ask(places: &Places, request: &McpRequest) -> Result<McpReply, Error> {
    let mut conn = connect(places, DEFAULT_PORT)?;
    conn.send(request)?;
    match conn.receive::<McpReply>()? {
        McpReply::Failed(failure) => Err(Error::Refused(failure.error)),
        reply => Ok(reply),
    }
}

/// The dashboard's port where nobody names one.
pub(crate) const DEFAULT_PORT: u16 = 8080;

/// Starts an auditor for this user and database. It ends by itself when another has the database already.
fn start_auditor(places: &Places, port: u16) -> io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(["auditor", "--user", "--port", &port.to_string(), "--db"])
        .arg(&places.db)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .current_dir("/")
        .spawn()
}
