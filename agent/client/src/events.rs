//! The other end of the query socket: what the command line asks.

use ringfence_base::client::{self, ClientError};
use ringfence_wire::{
    conn::Conn,
    frame::{FrameError, MAX_FRAME},
    message::{AuditorStatus, QueryReply, QueryRequest},
};
use std::{path::Path, time::Duration};

/// How long an answer may take; live events take as long as they take.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a trace may take, which is one answer and has up to forty thousand events: two hundred intents, their calls, and
/// what the kernel saw of each.
const TRACE_LIMIT: Duration = Duration::from_secs(120);
const LIVE_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// One request and its answers.
#[derive(Debug)]
pub struct Client {
    conn: Conn,
}

impl Client {
    /// Connects and asks.
    ///
    /// # Errors
    /// `NoDaemon` where nobody listens on `socket`; `Talk` if the request cannot be sent.
    pub fn ask(socket: &Path, request: &QueryRequest) -> Result<Self, ClientError> {
        let mut conn = client::connect(socket, "everybody may")?;
        conn.send(request).map_err(ClientError::Talk)?;
        let limit = match request {
            QueryRequest::Events(query) if query.follow => LIVE_LIMIT,
            QueryRequest::Trace(_) => TRACE_LIMIT,
            _ => LIMIT,
        };
        let stream = conn.stream().try_clone();
        let stream = stream.map_err(|source| ClientError::Connect { path: socket.to_owned(), source })?;
        Ok(Self { conn: Conn::new(stream, limit, MAX_FRAME) })
    }

    /// The next answer; `None`: the auditor closed the connection.
    ///
    /// # Errors
    /// `Refused` with the auditor's reason; `Talk` if the connection broke.
    pub fn next_reply(&mut self) -> Result<Option<QueryReply>, ClientError> {
        match self.conn.receive() {
            Ok(QueryReply::Failed(failure)) => Err(ClientError::Refused(failure.error)),
            Ok(reply) => Ok(Some(reply)),
            Err(FrameError::Closed) => Ok(None),
            Err(error) => Err(ClientError::Talk(error)),
        }
    }
}

/// The auditor's own state, for `ringfence status`.
///
/// # Errors
/// As [`Client::ask`] and [`Client::next`]; `Silent` where no answer comes, of which `say` tells early.
pub fn status(socket: &Path, say: impl FnOnce()) -> Result<AuditorStatus, ClientError> {
    let conn = client::or_say(socket, "everybody may", say, |conn| {
        conn.send(&QueryRequest::Status).map_err(ClientError::Talk)
    })?;
    match (Client { conn }).next_reply().map_err(|error| client::silent(error, socket))? {
        Some(QueryReply::Status(status)) => Ok(status),
        _ => Err(unexpected()),
    }
}

/// The error for an answer to another question.
pub fn unexpected() -> ClientError {
    ClientError::Refused(
        "the auditor gave no answer; is it of the same version? `ringfence status` tells".into(),
    )
}
