//! What `ringfence agent start` can be asked over its control socket, and the client that asks.

use ringfence_policy::agents::home::Home;
use ringfence_wire::{
    agent::WorkerCounts,
    frame::{FrameError, read_message, write_message},
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

/// Most bytes of a request.
pub const MAX_REQUEST: usize = 4096;
/// Most bytes of a reply.
const MAX_REPLY: usize = 4 << 20;
/// How long a reply may take: an agent that is stopped finishes what it does.
const PATIENCE: Duration = Duration::from_secs(30);

/// A request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "method", rename_all = "snake_case")]
pub enum ControlRequest {
    /// What runs.
    Status,
    /// Stop one agent.
    StopAgent {
        /// Its name.
        name: String,
    },
    /// Stop everything.
    Stop,
}

/// A reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum ControlReply {
    /// What runs.
    Status(UserStatus),
    /// It is done.
    Done,
    /// It is not done.
    Failed {
        /// Why.
        message: String,
    },
}

/// What `ringfence agent start` is doing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserStatus {
    /// Its version.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// Since when it runs, milliseconds since 1970.
    pub since_ms: u64,
    /// Where the profiles are.
    pub profiles: PathBuf,
    /// What was wrong when the registry was read last.
    pub error: Option<String>,
    /// The agents, by name.
    pub agents: Vec<AgentStatus>,
}

/// One agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// Its name.
    pub name: String,
    /// Whether it runs, and why not.
    pub state: AgentState,
    /// What is wrong with its profile; while it runs, the one before is in force.
    pub error: Option<String>,
    /// The provider's protocol and the model.
    pub model: Option<String>,
    /// Whether a `[grant]` governs its container.
    pub governed: bool,
    /// Its socket.
    pub socket: PathBuf,
    /// Its worker's process.
    pub pid: Option<u32>,
    /// What its worker does.
    pub worker: Option<WorkerCounts>,
}

/// Whether an agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    /// Its worker reads its log, or waits for another one's end.
    Starting,
    /// Its socket is served.
    Running,
    /// Its worker ended, and is started again soon.
    Waiting,
    /// It finishes what it does, and ends.
    Draining,
    /// It was stopped by hand.
    Stopped,
    /// It cannot be started.
    Failed,
}

impl AgentState {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Why `ringfence agent start` could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens.
    #[error("no `ringfence agent start` runs for this user (socket {}): start one, or `ringfence agent init`", .0.display())]
    NotRunning(PathBuf),
    /// The socket.
    #[error("{} cannot be used", .0.display())]
    Socket(PathBuf, #[source] io::Error),
    /// The conversation broke.
    #[error("`ringfence agent start` did not answer")]
    Frame(#[source] FrameError),
    /// It said no.
    #[error("{0}")]
    Refused(String),
    /// It said something else.
    #[error("`ringfence agent start` answered something else than was asked")]
    Strange,
}

/// Asks the user's `ringfence agent start`.
///
/// # Errors
/// [`Error`].
pub fn ask(home: &Home, request: &ControlRequest) -> Result<ControlReply, Error> {
    let path = home.control();
    let mut stream = connect(&path)?;
    let io = |e| Error::Socket(path.clone(), e);
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    write_message(&mut stream, request).map_err(Error::Frame)?;
    match read_message(&mut stream, MAX_REPLY).map_err(Error::Frame)? {
        ControlReply::Failed { message } => Err(Error::Refused(message)),
        reply => Ok(reply),
    }
}

/// What the user's `ringfence agent start` is doing.
///
/// # Errors
/// [`Error`].
pub fn status(home: &Home) -> Result<UserStatus, Error> {
    match ask(home, &ControlRequest::Status)? {
        ControlReply::Status(status) => Ok(status),
        _ => Err(Error::Strange),
    }
}

fn connect(path: &Path) -> Result<UnixStream, Error> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Error::NotRunning(path.to_owned()),
        _ => Error::Socket(path.to_owned(), error),
    })
}
