//! What is said with one process: what it is handed, its links, its rules.

use super::{Broken, Credentials, RULES_TIME, Sealed};
use crate::pace::Pace;
use ringfence_supervise::worker::printable_reason;
use ringfence_wire::{
    conn::Conn,
    credentials::{
        CredentialsStart, FromCredentials, HostCredential, MAX_ANSWER, MAX_AUTHORITY, MAX_ORDER, SecretFor,
        ToCredentials,
    },
    frame::FrameError,
    status::AgentState,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::PoisonError,
    time::{Duration, Instant},
};

/// How long a message may take once it has begun.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long the process may take until it is ready.
const START_TIME: Duration = Duration::from_secs(20);
/// The pause before another link, where the one of before was not for another worker.
const LINK_PAUSE: Duration = Duration::from_secs(1);
/// How long nothing of what it says is logged once something was.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Messages that are read at once, and in a second from then on.
const BURST: u32 = 64;
const PER_SECOND: u32 = 64;

/// What is said with one process.
pub(super) struct Session<'a> {
    of: &'a Credentials,
    conn: Conn,
    heard: Conn,
    /// The version of the rules that it was told last, and the hosts whose credentials it has.
    told: u64,
    has: Vec<HostCredential>,
    is_ready: bool,
    /// When it has to have said that it is, or that rules are in force.
    due: Option<Instant>,
    /// The worker that it is linked with, and the link.
    linked: Option<(u64, u64)>,
    /// Not before then is there another.
    link_due: Instant,
    logged: Option<Instant>,
    pace: Pace,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        of: &'a Credentials,
        link: &UnixStream,
        told: u64,
        has: Vec<HostCredential>,
    ) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            of,
            conn: Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_ORDER),
            // Ends, and what is told in a reload, wait for this thread: whatever is sent beside a message.
            heard: Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_ANSWER).lingering_for_nobody(),
            told,
            has,
            is_ready: false,
            due: Some(now + START_TIME),
            linked: None,
            link_due: now,
            logged: None,
            pace: Pace::new(BURST, PER_SECOND, now),
        })
    }

    /// Hands over, tells and hears, until it is told to stop.
    pub(super) fn run(mut self, start: CredentialsStart) -> Result<(), Broken> {
        self.hand_over(start)?;
        loop {
            if self.tell()? {
                return Ok(());
            }
            let (said, woken) = self.wait()?;
            if woken {
                let _ = self.of.wake.read();
            }
            if said {
                std::thread::sleep(self.pace.step(Instant::now()));
                let (said, descriptors) = self.heard.receive_with_descriptors::<FromCredentials>()?;
                self.note(said, descriptors)?;
            }
            // Whatever else it says meanwhile.
            if self.due.is_some_and(|due| due <= Instant::now()) {
                return Err(Broken::Wrong(match self.is_ready {
                    true => "does not put other rules in force",
                    false => "was not ready in time",
                }));
            }
        }
    }

    fn hand_over(&mut self, start: CredentialsStart) -> Result<(), FrameError> {
        let authority = {
            let inner = self.of.inner();
            let copy = inner.authority.as_ref().map(|kept| kept.as_fd().try_clone_to_owned());
            copy.transpose().map_err(FrameError::Io)?
        };
        let beside: Vec<_> = authority.iter().map(AsFd::as_fd).collect();
        self.conn.send_with_descriptors(&ToCredentials::Start(start), &beside)?;
        for (of, secret) in &self.of.kept.secrets {
            if self.has.iter().any(|host| of.is_of(host)) {
                self.conn.send_with_descriptors(&ToCredentials::Secret(of.clone()), &[secret.as_fd()])?;
            }
        }
        Ok(())
    }

    /// Tells what changed. Whether that is the end.
    fn tell(&mut self) -> Result<bool, Broken> {
        let inner = self.of.inner();
        if inner.stop {
            drop(inner);
            self.conn.send(&ToCredentials::Stop)?;
            return Ok(true);
        }
        if !self.is_ready {
            return Ok(false);
        }
        if inner.version != self.told {
            let (id, hosts) = (inner.version, self.of.had(&inner.hosts));
            drop(inner);
            let is_had = |host: &HostCredential| self.has.iter().any(|had| SecretFor::from(had).is_of(host));
            if !hosts.iter().all(is_had) {
                // It was taken away, and forgotten there.
                return Err(Broken::Renewed);
            }
            self.has.retain(|had| hosts.iter().any(|host| SecretFor::from(had).is_of(host)));
            self.told = id;
            self.due = Some(Instant::now() + RULES_TIME);
            self.conn.send(&ToCredentials::Rules { id, hosts })?;
        } else {
            drop(inner);
        }
        self.link()?;
        Ok(false)
    }

    /// Links it with the worker, where that is another or the link is gone.
    fn link(&mut self) -> Result<(), Broken> {
        let worker = self.of.worker.session();
        if let Some((session, id)) = self.linked {
            let is_gone = worker != Some(session) || self.of.worker.lost_link() == Some(id);
            if !is_gone {
                if self.of.worker.has_link(id) && !self.of.inner().is_linked {
                    self.of.inner().is_linked = true;
                    self.of.changed.notify_all();
                }
                return Ok(());
            }
            self.linked = None;
            self.of.inner().is_linked = false;
        }
        let Some(session) = worker.filter(|_| self.link_due <= Instant::now()) else { return Ok(()) };
        let (ours, theirs) = UnixStream::pair().map_err(|error| Broken::Link(FrameError::Io(error)))?;
        let id = {
            let mut inner = self.of.inner();
            inner.last_link += 1;
            inner.last_link
        };
        self.conn.send_with_descriptors(&ToCredentials::Link { id }, &[ours.as_fd()])?;
        self.of.worker.give_link(session, id, theirs.into());
        (self.linked, self.link_due) = (Some((session, id)), Instant::now() + LINK_PAUSE);
        Ok(())
    }

    fn wait(&self) -> Result<(bool, bool), FrameError> {
        let is_missing = self.is_ready && self.linked.is_none() && self.of.worker.session().is_some();
        let until = [self.due, is_missing.then_some(self.link_due)].into_iter().flatten().min();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut polled =
            [PollFd::new(self.conn.stream(), PollFlags::IN), PollFd::new(&*self.of.wake, PollFlags::IN)];
        match poll(&mut polled, left.as_ref()) {
            Ok(_) => {
                let [said, woken] = polled.map(|fd| !fd.revents().is_empty());
                Ok((said, woken))
            }
            Err(Errno::INTR) => Ok((false, false)),
            Err(errno) => Err(FrameError::from_io(errno.into())),
        }
    }

    fn note(&mut self, said: FromCredentials, descriptors: Vec<OwnedFd>) -> Result<(), Broken> {
        match said {
            FromCredentials::Complaint(why) => {
                let why = printable_reason(&why);
                if self.may_log() {
                    let container = &self.of.kept.container;
                    tracing::warn!("container {container}: its process with credentials says: {why}");
                }
                self.of.inner().complaint = Some(why);
            }
            FromCredentials::Ready { certificate } if !self.is_ready => {
                let [key] = <[OwnedFd; 1]>::try_from(descriptors)
                    .map_err(|_| Broken::Wrong("is ready without the key of its authority"))?;
                let key = Sealed::new(key, MAX_AUTHORITY, None)
                    .map_err(|_| Broken::Wrong("gives no key that could be kept"))?;
                let bundle = self.of.kept.bundle.lock().unwrap_or_else(PoisonError::into_inner);
                bundle.write(&certificate).map_err(Broken::Bundle)?;
                drop(bundle);
                (self.is_ready, self.due) = (true, None);
                let mut inner = self.of.inner();
                inner.authority = Some(key);
                inner.in_force = Some(self.told);
                inner.state = AgentState::Running;
                drop(inner);
                self.of.changed.notify_all();
            }
            FromCredentials::Ready { .. } => return Err(Broken::Wrong("is ready twice")),
            FromCredentials::InForce { id } => {
                if id == self.told {
                    self.due = None;
                    self.of.inner().in_force = Some(id);
                    self.of.changed.notify_all();
                }
            }
            FromCredentials::LinkEnded { id } => {
                if self.linked.is_some_and(|(_, linked)| linked == id) {
                    self.linked = None;
                    self.of.inner().is_linked = false;
                }
            }
        }
        Ok(())
    }

    /// Whether something may be logged: a process that was taken over could say something else each time.
    fn may_log(&mut self) -> bool {
        let may = self.logged.is_none_or(|at| at.elapsed() >= LOG_PAUSE);
        if may {
            self.logged = Some(Instant::now());
        }
        may
    }
}
