//! The connection to the daemon.

use super::message::{self, Answer, Call, Incoming, RpcError, Tag, Turn};
use ringfence_wire::{conn::Conn, frame::FrameError};
use serde_json::{Value, json, value::RawValue};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    time::Duration,
};

/// How long a message may take from its first byte to its last.
const MESSAGE: Duration = Duration::from_secs(30);

/// Why a connection is of no use, or of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// Nobody there, or not for us.
    #[error("cannot connect to {path}")]
    Connect {
        path: String,
        #[source]
        source: io::Error,
    },
    /// The other side, or the system, ended it.
    #[error("the connection to the daemon failed")]
    Frame(#[source] FrameError),
    /// The other side does not speak the protocol: an error message would not be understood.
    #[error("the connection to the daemon was given up")]
    Protocol(#[source] message::Error),
    /// A turn that no frame holds.
    #[error("a turn is larger than a message may be")]
    TooLong,
    /// The daemon was sent the limit of rounds and goes on requesting tools.
    #[error("the model goes on calling tools after the limit of rounds")]
    Endless,
}

/// A connection that registered as the agent's runtime.
#[derive(Debug)]
pub(super) struct Link {
    conn: Conn,
    next: u64,
}

impl Link {
    /// Connects and registers. There is no answer to that: a refusal comes as an error, or as the end.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let conn = Conn::connect(path, MESSAGE)
            .map_err(|source| Error::Connect { path: path.display().to_string(), source })?;
        let mut link = Self { conn, next: 1 };
        link.send(&Call::<Value>::new(None, "register", json!({"role": "runtime"})))?;
        Ok(link)
    }

    /// For poll.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.conn.as_fd()
    }

    /// Receives the message whose first bytes are there.
    pub(super) fn receive(&mut self) -> Result<Incoming, Error> {
        let frame: Box<RawValue> = self.conn.receive().map_err(Error::Frame)?;
        message::parse(frame.get().as_bytes()).map_err(Error::Protocol)
    }

    /// Sends a turn; returns its id.
    pub(super) fn turn(&mut self, turn: &Turn<'_>) -> Result<u64, Error> {
        let id = self.next;
        self.next += 1;
        self.send(&Call::new(Some(id), "turn", turn))?;
        Ok(id)
    }

    /// Asks for a process to be tagged for a call; returns the request's id.
    pub(super) fn tag(&mut self, process: BorrowedFd<'_>, call: &str) -> Result<u64, Error> {
        let id = self.next;
        self.next += 1;
        let request = Call::new(Some(id), "tag", Tag { call });
        self.conn.send_with_descriptors(&request, &[process]).map_err(Error::Frame)?;
        Ok(id)
    }

    fn send<P: serde::Serialize>(&mut self, call: &Call<'_, P>) -> Result<(), Error> {
        self.conn.send(call).map_err(|error| match error {
            FrameError::TooLong { .. } => Error::TooLong,
            error => Error::Frame(error),
        })
    }
}

/// What a turn came to.
pub(super) fn answer(result: Result<Box<RawValue>, RpcError>) -> Result<Result<Answer, RpcError>, Error> {
    match result {
        Ok(result) => message::parse_answer(&result).map(Ok).map_err(Error::Protocol),
        Err(failure) => Ok(Err(failure)),
    }
}
