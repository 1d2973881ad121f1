//! What is said with one worker.

use super::{Attached, Served, Supervisor};
use crate::pace::Pace;
use ringfence_base::error::chain;
use ringfence_supervise::{tools_line::ToolsLines, worker::printable_reason};
use ringfence_wire::{
    conn::Conn,
    egress::{EgressLine, EgressStart, Flow, FromEgress, MAX_ORDER, MAX_QUESTION, ToEgress},
    frame::FrameError,
    mcp::McpRequest,
    status::AgentState,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// How long a message to or from a worker may take once it has begun.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long the auditor's socket may take to take a line: connections wait meanwhile.
const LINE_TIME: Duration = Duration::from_millis(250);
/// When a line is tried again that could not be had.
const LINE_PAUSE: Duration = Duration::from_secs(2);
/// How long nothing of what a worker says is logged once something was; the last of it is in `ringfence status`.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Messages of a worker's that are read at once, and in a second from then on.
const BURST: u32 = 4096;
/// See [`BURST`].
const PER_SECOND: u32 = 4096;

/// What is said with one worker.
pub(super) struct Session<'a> {
    of: &'a Supervisor,
    conn: Conn,
    /// The same, to hear the worker: a question is short, and an order may be long.
    heard: Conn,
    /// The version of the names that it was told last.
    told: u64,
    lines: ToolsLines,
    /// When it is to be given a line next.
    line_due: Option<Instant>,
    /// When something of what it says was logged last.
    logged: Option<Instant>,
    pace: Pace,
}

impl<'a> Session<'a> {
    pub(super) fn new(of: &'a Supervisor, link: &UnixStream) -> io::Result<Self> {
        let now = Instant::now();
        let conn = Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_ORDER);
        let heard = Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_QUESTION);
        let (pace, lines) = (Pace::new(BURST, PER_SECOND, now), ToolsLines::default());
        Ok(Self { of, conn, heard, told: 0, lines, line_due: Some(now), logged: None, pace })
    }

    /// Hands over, tells and hears, until the worker is told to stop.
    pub(super) fn run(mut self) -> Result<(), FrameError> {
        self.start()?;
        loop {
            if self.tell()? {
                return Ok(());
            }
            self.give_line()?;
            let (said, woken) = self.wait()?;
            if woken {
                let _ = self.of.wake.read();
            }
            if said {
                let said = self.heard.receive()?;
                self.note(said)?;
                std::thread::sleep(self.pace.step(Instant::now()));
            }
        }
    }

    fn start(&mut self) -> Result<(), FrameError> {
        let Served { container, profile, block, .. } = &self.of.served;
        let (names, audit, listeners, uploads) = {
            let inner = self.of.inner();
            self.told = inner.version;
            (inner.names.clone(), inner.audit, Arc::clone(&inner.listeners), inner.uploads.all())
        };
        let start = EgressStart {
            container: container.clone(),
            profile: profile.clone(),
            block: block.net(),
            names,
            audit,
            v6: listeners.dns6.is_some(),
            host_network: listeners.are_here(),
            uploads,
        };
        self.conn.send_with_descriptors(&ToEgress::Start(start), &listeners.each())
    }

    /// Tells what changed. Whether that is the end.
    fn tell(&mut self) -> Result<bool, FrameError> {
        let mut inner = self.of.inner();
        if inner.stop {
            drop(inner);
            self.conn.send(&ToEgress::Stop)?;
            return Ok(true);
        }
        if let Some((id, link)) = inner.link.next.take() {
            drop(inner);
            self.conn.send_with_descriptors(&ToEgress::Credentials { id }, &[link.as_fd()])?;
            inner = self.of.inner();
            inner.link.told = Some(id);
            inner.link.is_changed();
        }
        if inner.version != self.told {
            self.told = inner.version;
            let policy = ToEgress::Policy { names: inner.names.clone(), audit: inner.audit };
            drop(inner);
            self.conn.send(&policy)?;
        }
        Ok(false)
    }

    /// Gives it a line to the auditor, if it is time. The one of before ends: a worker has one.
    fn give_line(&mut self) -> Result<(), FrameError> {
        if self.line_due.is_none_or(|due| due > Instant::now()) {
            return Ok(());
        }
        let Some(Attached { line, .. }) = self.of.inner().attached.clone() else { return Ok(()) };
        match self.connect(line) {
            Ok(line) => {
                self.line_due = None;
                self.conn.send_with_descriptors(&ToEgress::Line, &[line.as_fd()])
            }
            Err(why) => {
                tracing::debug!("container {}: no line to the auditor: {why}", self.of.served.container);
                self.line_due = Some(Instant::now() + LINE_PAUSE);
                Ok(())
            }
        }
    }

    /// Nothing that goes over it is read here.
    fn connect(&mut self, line: EgressLine) -> Result<UnixStream, String> {
        self.lines.make_room()?;
        let connect = || {
            let mut conn = Conn::connect(&self.of.served.auditor, LINE_TIME).map_err(FrameError::from_io)?;
            conn.send(&McpRequest::Egress(line))?;
            let line = conn.into_stream();
            self.lines.give(&line).map_err(FrameError::from_io)?;
            Ok::<_, FrameError>(line)
        };
        connect().map_err(|error| chain(&error))
    }

    /// Waits until the worker says something, or is to be told something: which of both.
    fn wait(&self) -> Result<(bool, bool), FrameError> {
        let is_attached = self.of.inner().attached.is_some();
        let left =
            self.line_due.filter(|_| is_attached).map(|due| due.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled =
            [PollFd::new(self.conn.stream(), PollFlags::IN), PollFd::new(&self.of.wake, PollFlags::IN)];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => {
                let [said, woken] = polled.map(|fd| !fd.revents().is_empty());
                Ok((said, woken))
            }
            Err(Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(FrameError::from_io(errno.into())),
        }
    }

    fn note(&mut self, said: FromEgress) -> Result<(), FrameError> {
        match said {
            FromEgress::Ready => {
                self.of.inner().state = AgentState::Running;
                self.of.changed.notify_all();
            }
            FromEgress::WhoIs { id, port } => {
                let flow = self.whose(port);
                self.conn.send(&ToEgress::Flow { id, flow })?;
            }
            FromEgress::Complaint(why) => {
                let why = printable_reason(&why);
                if self.may_log() {
                    tracing::warn!("container {}: its egress worker says: {why}", self.of.served.container);
                }
                self.of.inner().complaint = Some(why);
            }
            FromEgress::Over(what) => {
                let mut inner = self.of.inner();
                inner.complaint.take_if(|complaint| *complaint == printable_reason(&what));
            }
            FromEgress::Counts(counts) => self.of.inner().counts = counts,
            FromEgress::Uploads(said) => self.of.inner().uploads.heard(said),
            FromEgress::Line => {
                self.line_due = Some(Instant::now());
            }
            FromEgress::LinkEnded { id } => {
                let mut inner = self.of.inner();
                inner.link.lost = Some(id);
                inner.link.is_changed();
            }
        }
        Ok(())
    }

    fn whose(&mut self, port: u16) -> Option<Flow> {
        let Attached { id, flows, .. } = self.of.inner().attached.clone()?;
        flows.take(id, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).unwrap_or_else(|error| {
            if self.may_log() {
                let container = &self.of.served.container;
                tracing::error!(
                    "container {container}: whose a connection is cannot be told: {error}; it is closed"
                );
            }
            None
        })
    }

    /// Whether something may be logged: a worker that was taken over could say something else each time.
    fn may_log(&mut self) -> bool {
        let may = self.logged.is_none_or(|at| at.elapsed() >= LOG_PAUSE);
        if may {
            self.logged = Some(Instant::now());
        }
        may
    }
}
