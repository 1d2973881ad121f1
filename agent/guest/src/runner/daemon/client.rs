//! One connection: bytes until they are a request, then what its protocol wants.

use super::work::Work;
use nix::{
    errno::Errno,
    sys::socket::{
        getsockopt,
        sockopt::{PeerCredentials, PeerPidfd},
    },
};
use ringfence_wire::{
    ending::drain_all,
    rights,
    runner::{self, Answer, Ask, Done, Line, MAX_REQUEST, Protocol, Request, RequestError, term},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::RecvFlags,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    io::{self, Write},
    net::Shutdown,
    os::{fd::OwnedFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

/// How long a request may take from the connection to its last byte.
const REQUEST: Duration = Duration::from_secs(5);

/// How long an answer may take to be read.
const ANSWER: Duration = Duration::from_secs(10);

/// Most bytes that are thrown away of what a client sends after it was answered, so that it comes to read the answer.
const MOST_IGNORED: usize = 16 << 20;

/// A connection.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) stream: UnixStream,
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) state: State,
    got: Vec<u8>,
    deadline: Option<Instant>,
}

/// What a connection is at.
#[derive(Debug)]
pub(super) enum State {
    /// The request is on its way.
    Asking,
    /// A shim may go on. It reports how its tool ended, or goes away as it becomes the tool: either is looked at when
    /// its process has ended, so that becoming the tool wakes nobody.
    Permitted { run: u64 },
    /// Its v1 tool runs.
    Working(Box<Work>),
    /// The answer is on its way; the first bytes of it are gone.
    Answering { answer: Vec<u8>, gone: usize },
    /// Answered; what still comes is thrown away.
    Ignoring { count: usize },
    /// Over.
    Closed,
}

/// Why there is no process to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoPidfd {
    /// It has ended, and somebody else has its connection.
    Ended,
    /// It cannot be determined.
    Unknown,
}

/// What a client wants now.
#[derive(Debug)]
pub(super) enum ClientEvent {
    /// Nothing, or not yet.
    Nothing,
    /// A v1 request.
    Run(Line),
    /// A shim's question.
    AskPermission(Ask),
    /// It hung up while its v1 tool runs.
    Gone,
    /// Something that is no request: in which protocol, and why.
    Bad(Protocol, RequestError),
}

impl Client {
    /// # Errors
    /// The system does not tell whose it is.
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let peer = getsockopt(&stream, PeerCredentials)?;
        let deadline = Some(Instant::now() + REQUEST);
        Ok(Self { stream, pid: peer.pid(), uid: peer.uid(), state: State::Asking, got: Vec::new(), deadline })
    }

    /// The process that connected. Its number may be another's by now, which Linux tells from 6.5 on.
    ///
    /// # Errors
    /// It has ended, or nothing can be watched here.
    pub(super) fn process(&self) -> Result<OwnedFd, NoPidfd> {
        // 0: a process of another PID namespace.
        let pid = Pid::from_raw(self.pid).ok_or(NoPidfd::Unknown)?;
        match getsockopt(&self.stream, PeerPidfd) {
            Ok(process) => Ok(process),
            Err(Errno::ENOPROTOOPT | Errno::EOPNOTSUPP) => {
                pidfd_open(pid, PidfdFlags::empty()).map_err(|_| NoPidfd::Unknown)
            }
            Err(_) => Err(NoPidfd::Ended),
        }
    }

    /// Whether it is the shim of this run, and has not become the tool: that closes its connection, and nothing else needs to be
    /// known of the process, which this daemon may not be let look into.
    pub(super) fn stands_in(&self, run: u64) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(self.state, State::Permitted { run: its } if its == run)
            && poll(&mut [PollFd::new(&self.stream, PollFlags::empty())], Some(&now)) == Ok(0)
    }

    /// It has no tool: the request or the answer is on its way, or nothing is.
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.state, State::Asking | State::Answering { .. } | State::Ignoring { .. })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Working(work) => work.deadline(),
            _ => self.deadline,
        }
    }

    /// What of the connection to wait for; `None`: nothing, not even that it hangs up.
    pub(super) fn events(&self) -> Option<PollFlags> {
        match self.state {
            State::Asking | State::Ignoring { .. } => Some(PollFlags::IN),
            State::Answering { .. } => Some(PollFlags::OUT),
            // poll reports a hang-up without being asked for it.
            State::Working(_) | State::Closed => Some(PollFlags::empty()),
            State::Permitted { .. } => None,
        }
    }

    /// Something happened on the connection.
    pub(super) fn ready(&mut self, what: PollFlags) -> ClientEvent {
        match &mut self.state {
            State::Asking => self.read_request(),
            State::Answering { .. } => {
                self.write();
                ClientEvent::Nothing
            }
            State::Ignoring { .. } => {
                self.ignore();
                ClientEvent::Nothing
            }
            State::Working(_) if what.intersects(PollFlags::HUP | PollFlags::ERR) => ClientEvent::Gone,
            State::Working(_) | State::Permitted { .. } | State::Closed => ClientEvent::Nothing,
        }
    }

    /// It goes, and what it sent that nobody asked for holds up nobody.
    pub(super) fn end(&self) {
        drain_all(&self.stream);
    }

    /// Time is up.
    pub(super) fn check_deadline(&mut self, now: Instant) -> ClientEvent {
        if self.deadline.is_none_or(|deadline| now < deadline) {
            return ClientEvent::Nothing;
        }
        match self.state {
            State::Asking => self.bad(RequestError::Half("the rest of it did not come within 5 s")),
            State::Answering { .. } | State::Ignoring { .. } => {
                self.state = State::Closed;
                ClientEvent::Nothing
            }
            State::Permitted { .. } | State::Working(_) | State::Closed => ClientEvent::Nothing,
        }
    }

    fn read_request(&mut self) -> ClientEvent {
        let is_open = match self.read() {
            Ok(is_open) => is_open,
            Err(_) => {
                self.state = State::Closed;
                return ClientEvent::Nothing;
            }
        };
        let Some(first) = self.got.first() else {
            if !is_open {
                self.state = State::Closed;
            }
            return ClientEvent::Nothing;
        };
        let wish = match Protocol::of(*first) {
            Protocol::V1 => runner::line(&self.got).map(|line| line.map(ClientEvent::Run)),
            Protocol::V2 => match runner::message::<Request>(&self.got) {
                Ok(Some((Request::Ask(ask), taken))) => {
                    self.got.drain(..taken);
                    Ok(Some(ClientEvent::AskPermission(ask)))
                }
                Ok(Some((Request::Done(_), _))) => Err(RequestError::Half("`done` before `ask`")),
                Ok(None) => Ok(None),
                Err(error) => Err(error),
            },
        };
        match wish {
            Ok(Some(wish)) => wish,
            Ok(None) if is_open => ClientEvent::Nothing,
            Ok(None) => self.bad(RequestError::Half("the connection ended before it did")),
            Err(error) => self.bad(error),
        }
    }

    fn bad(&self, error: RequestError) -> ClientEvent {
        let protocol = self.got.first().map_or(Protocol::V1, |first| Protocol::of(*first));
        ClientEvent::Bad(protocol, error)
    }

    /// What a shim whose process has ended reported about its tool's end; nothing, where it became the tool.
    pub(super) fn take_report(&mut self) -> Option<Done> {
        self.state = State::Closed;
        self.read().ok()?;
        match runner::message::<Request>(&self.got) {
            Ok(Some((Request::Done(done), _))) => Some(done),
            _ => None,
        }
    }

    /// Reads what is there, as far as a request may be long. Whether more may come.
    fn read(&mut self) -> io::Result<bool> {
        let mut chunk = [0; 4096];
        while self.got.len() <= MAX_REQUEST + ringfence_wire::frame::HEADER {
            match receive(&self.stream, &mut chunk) {
                Ok(0) => return Ok(false),
                Ok(count) => self.got.extend_from_slice(chunk.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// The tool may run; the shim gets the answer.
    pub(super) fn go(&mut self, run: u64, answer: &Answer) {
        self.deadline = None;
        // The first bytes on this connection, and few: they find room.
        self.state = match frame(answer).map(|bytes| self.stream.write_all(&bytes)) {
            Some(Ok(())) => State::Permitted { run },
            _ => State::Closed,
        };
    }

    /// Answers a v1 request, or refuses it with the reason; then the connection ends.
    pub(super) fn answer(&mut self, answer: Vec<u8>) {
        self.got = Vec::new();
        self.deadline = Some(Instant::now() + ANSWER);
        self.state = State::Answering { answer, gone: 0 };
        self.write();
    }

    /// Refuses, in the request's protocol.
    pub(super) fn refuse(&mut self, protocol: Protocol, status: u8, message: &str) {
        let refused = Answer::Refused { message: message.to_owned(), status };
        let answer = match protocol {
            Protocol::V1 => Some(refusal(status.into(), message)),
            Protocol::V2 => frame(&refused),
        };
        self.answer(answer.unwrap_or_default());
    }

    fn write(&mut self) {
        let State::Answering { answer, gone } = &mut self.state else { return };
        while let Some(rest) = answer.get(*gone..).filter(|rest| !rest.is_empty()) {
            match self.stream.write(rest) {
                Ok(count) => *gone += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.state = State::Closed;
                    return;
                }
            }
        }
        self.state = match self.stream.shutdown(Shutdown::Write) {
            Ok(()) => State::Ignoring { count: 0 },
            Err(_) => State::Closed,
        };
        self.ignore();
    }

    /// A client that still sends would never come to its answer if the connection broke now.
    fn ignore(&mut self) {
        let State::Ignoring { count } = &mut self.state else { return };
        let mut chunk = [0; 4096];
        while *count < MOST_IGNORED {
            match receive(&self.stream, &mut chunk) {
                Ok(0) => break,
                Ok(length) => *count += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.state = State::Closed;
    }
}

/// Reads. Descriptors are not asked for: what is beside the bytes is closed here, where that takes no time.
fn receive(stream: &UnixStream, into: &mut [u8]) -> io::Result<usize> {
    Ok(rights::receive_all(stream, into, RecvFlags::empty())?.bytes)
}

/// A v1 answer in place of a tool's.
pub(super) fn refusal(status: i32, message: &str) -> Vec<u8> {
    term(b"", format!("ringfence-toolrunner: {message}\n").as_bytes(), status)
}

fn frame(answer: &Answer) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    ringfence_wire::frame::write_message(&mut bytes, answer).ok()?;
    Some(bytes)
}
