//! The shim's side of the socket: may this tool run, and what becomes of long output?

use nix::{
    sys::socket::{getsockopt, sockopt::PeerCredentials},
    unistd::geteuid,
};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    runner::{Answer, Ask, Done, Request, SOCKET, Shape},
};
use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Names another socket than the usual.
pub(super) const SOCKET_VARIABLE: &str = "RINGFENCE_TOOLRUNNER_SOCKET";

/// How long the daemon may take for an answer. A tool does not wait longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why there is no permission.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Nobody there.
    #[error("nobody answers on {path}")]
    Connect {
        path: String,
        #[source]
        source: io::Error,
    },
    /// Somebody there who is neither root nor this user: what it says would decide where files are written.
    #[error("user {uid} answers on {path}, who is not the one to ask")]
    Stranger { path: String, uid: u32 },
    /// No answer, or none that can be understood.
    #[error("no answer on {path}")]
    Frame {
        path: String,
        #[source]
        source: FrameError,
    },
    /// The daemon refuses.
    #[error("{message}")]
    Refused { message: String, status: u8 },
}

/// Where the daemon listens.
pub(super) fn socket() -> PathBuf {
    std::env::var_os(SOCKET_VARIABLE)
        .filter(|path| !path.is_empty())
        .map_or_else(|| SOCKET.into(), PathBuf::from)
}

/// A run that the daemon knows of. It is over for the daemon when this is dropped and the process ends.
#[derive(Debug)]
pub(super) struct Permission {
    conn: Conn,
    pub(super) shape: Shape,
}

/// Asks the daemon for permission to run.
pub(super) fn ask(socket: &Path, ask: Ask) -> Result<Permission, Error> {
    let path = || socket.display().to_string();
    let mut conn =
        Conn::connect(socket, PATIENCE).map_err(|source| Error::Connect { path: path(), source })?;
    let peer = getsockopt(&conn, PeerCredentials)
        .map_err(|error| Error::Connect { path: path(), source: error.into() })?;
    if ![0, geteuid().as_raw()].contains(&peer.uid()) {
        return Err(Error::Stranger { path: path(), uid: peer.uid() });
    }
    let answer = conn.send(&Request::Ask(ask)).and_then(|()| conn.receive());
    match answer.map_err(|source| Error::Frame { path: path(), source })? {
        Answer::Go { shape, .. } => Ok(Permission { conn, shape }),
        Answer::Refused { message, status } => Err(Error::Refused { message, status }),
    }
}

impl Permission {
    /// Reports how the tool ended. Whether anybody receives it changes nothing.
    pub(super) fn done(mut self, done: Done) {
        let _ = self.conn.send(&Request::Done(done));
    }
}
