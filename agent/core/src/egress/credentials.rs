//! One container's process with credentials: a thread that starts it, hands it what was handed over, links it with the container's
//! egress worker, and starts it again after a pause that grows. Without it the worker refuses what is for its hosts.
//!
//! Nothing secret is read here, and nothing that agents or servers say. Of what the process says a number is read, a sentence for the
//! operator, and once the certificate of its authority, before it was linked with anybody.

mod bundle;
mod secrets;

pub(crate) use bundle::{Bundle, Bundles, FILE};
pub(crate) use secrets::{Bounds, Handed, Lease, NotKept, Sealed};

use super::{EgressError, blocks::Block, retry::Pauses, supervisor::Supervisor, worker::Spawn};
use crate::pace::Pace;
use nix::sys::eventfd::EventFd;
use ringfence_base::error::chain;
use ringfence_supervise::worker::{Restarts, printable_reason};
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
    process::{Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, prlimit},
};
use std::{
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a message may take once it has begun.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// How long the process may take until it is ready.
const START_TIME: Duration = Duration::from_secs(20);
/// How long it may take until other rules are in force.
const RULES_TIME: Duration = Duration::from_secs(10);
/// How long it may take to end.
const STOP_TIME: Duration = Duration::from_secs(2);
/// The pause before another link, where the one of before was not for another worker.
const LINK_PAUSE: Duration = Duration::from_secs(1);
/// How long nothing of what it says is logged once something was.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Messages that are read at once, and in a second from then on.
const BURST: u32 = 64;
const PER_SECOND: u32 = 64;
/// Bytes of memory that the process of a user's container may write to: more than all the connections that it takes need.
const MEMORY: u64 = 128 << 20;

/// What does not change while the container has its credentials.
pub(super) struct Kept {
    /// The container's public id.
    pub(super) container: String,
    /// Its profile's name.
    pub(super) profile: String,
    /// The user that the process runs as, and nobody else.
    pub(super) uid: u32,
    /// Of which that user id is.
    pub(super) _block: Arc<Block>,
    /// Whether the container is root's.
    pub(super) is_root_s: bool,
    /// Starts processes.
    pub(super) spawn: Spawn,
    /// How long is waited before another one.
    pub(super) pauses: Pauses,
    /// All that were handed over.
    pub(super) secrets: Vec<(SecretFor, Sealed)>,
    /// Where its programs find the authority.
    pub(super) bundle: Arc<Mutex<Bundle>>,
    /// One of those that its user may have.
    pub(super) _lease: Lease,
}

/// See the module.
pub(super) struct Credentials {
    kept: Kept,
    /// Who hands connections over.
    worker: Arc<Supervisor>,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Written where the process is to be told something, or the worker is another.
    wake: Arc<EventFd>,
}

struct Inner {
    hosts: Vec<HostCredential>,
    /// Rises with each change of them.
    version: u64,
    stop: bool,
    over: bool,
    state: AgentState,
    /// The process itself, to end it.
    handle: Option<OwnedFd>,
    /// The worker was told of its link.
    is_linked: bool,
    /// The authority's key, unread: it is the same for every process.
    authority: Option<Sealed>,
    last_link: u64,
    restarts: Restarts,
    complaint: Option<String>,
    last_exit: Option<String>,
}

/// How a process ended, in words.
enum Ended {
    /// In order: it is to be another, at once.
    Renewed,
    Wrongly(String),
}

/// Why nothing more can be said with a process.
enum Broken {
    Link(FrameError),
    /// In words.
    Wrong(&'static str),
    Bundle(io::Error),
    /// Another one is to have credentials that this one has not.
    Renewed,
}

impl From<FrameError> for Broken {
    fn from(error: FrameError) -> Self {
        Self::Link(error)
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("container", &self.kept.container).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Of a container whose worker has a supervisor already.
    pub(super) fn new(kept: Kept, worker: Arc<Supervisor>, hosts: Vec<HostCredential>) -> io::Result<Self> {
        let wake = Arc::new(super::supervisor::event()?);
        worker.tell(&wake);
        let inner = Inner {
            hosts,
            version: 0,
            stop: false,
            over: false,
            state: AgentState::Starting,
            handle: None,
            is_linked: false,
            authority: None,
            last_link: 0,
            restarts: Restarts::default(),
            complaint: None,
            last_exit: None,
        };
        Ok(Self { kept, worker, inner: Mutex::new(inner), changed: Condvar::new(), wake })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only fail by being full: then it was written before.
        let _ = self.wake.write(1);
        self.changed.notify_all();
    }

    /// The rules from now on. Which of the hosts have no credential here: the container has to be started again for those.
    pub(super) fn replace(&self, hosts: &[HostCredential]) {
        let mut inner = self.inner();
        if inner.hosts != hosts {
            inner.hosts = hosts.to_vec();
            inner.version += 1;
        }
        drop(inner);
        self.wake();
    }

    /// Those of these hosts of which no credential was handed over.
    pub(super) fn lacks(&self, hosts: &[HostCredential]) -> Vec<SecretFor> {
        let has = |host: &HostCredential| self.kept.secrets.iter().any(|(of, _)| of.is_of(host));
        hosts.iter().filter(|host| !has(host)).map(SecretFor::from).collect()
    }

    /// It is to end, for good.
    pub(super) fn stop(&self) {
        self.inner().stop = true;
        self.wake();
    }

    /// At once.
    pub(super) fn kill(&self) {
        if let Some(handle) = &self.inner().handle
            && let Err(error) = pidfd_send_signal(handle, Signal::KILL)
        {
            tracing::debug!("container {}: its process with credentials: {error}", self.kept.container);
        }
    }

    /// Whether it has ended for good, waiting until `until` for it.
    pub(super) fn is_over_by(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.inner(), left, |inner| !inner.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    /// Waits until the first process is ready, its authority is where programs look for it, and the worker hands connections over.
    ///
    /// # Errors
    /// It ended instead, or is not there in time, in words.
    pub(super) fn wait_until_ready(&self, within: Duration) -> Result<(), EgressError> {
        let waits = |inner: &mut Inner| {
            inner.state == AgentState::Starting || inner.state == AgentState::Running && !inner.is_linked
        };
        let waited = self.changed.wait_timeout_while(self.inner(), within, waits);
        let (inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if inner.state == AgentState::Running && inner.is_linked {
            return Ok(());
        }
        let why = inner.last_exit.clone().or_else(|| inner.complaint.clone());
        Err(EgressError::Credentials(
            why.unwrap_or_else(|| format!("it was not ready within {} s", within.as_secs())),
        ))
    }

    /// What is wrong with it, if anything is.
    pub(super) fn trouble(&self) -> Option<String> {
        let inner = self.inner();
        if inner.state == AgentState::Running && inner.is_linked {
            return inner.complaint.clone();
        }
        let why = inner.complaint.clone().or_else(|| inner.last_exit.clone());
        let why = why.unwrap_or_else(|| "it is being started".to_owned());
        Some(format!(
            "requests to hosts with credentials are refused, as the process that has them is {}: {why}",
            inner.state
        ))
    }

    /// Runs until [`Self::stop`].
    pub(super) fn run(&self) {
        let container = &self.kept.container;
        loop {
            {
                let mut inner = self.inner();
                if inner.stop {
                    break;
                }
                (inner.state, inner.complaint, inner.is_linked) = (AgentState::Starting, None, false);
            }
            let since = Instant::now();
            let ended = self.run_process();
            let mut inner = self.inner();
            (inner.handle, inner.is_linked) = (None, false);
            if inner.stop {
                break;
            }
            let why = match ended {
                Ended::Renewed => continue,
                Ended::Wrongly(why) => why,
            };
            let complaint = inner.complaint.take().map_or_else(String::new, |why| format!(": {why}"));
            let (state, pause) = match inner.restarts.ended(since.elapsed()) {
                Some(pause) => (AgentState::Waiting, pause),
                None => (AgentState::Quarantined, self.kept.pauses.given_up),
            };
            let why = why + &complaint;
            tracing::error!("container {container}: {why}; it is started again in {pause:?}");
            (inner.state, inner.last_exit) = (state, Some(why));
            self.changed.notify_all();
            drop(self.changed.wait_timeout_while(inner, pause, |inner| !inner.stop));
        }
        let mut inner = self.inner();
        (inner.over, inner.state) = (true, AgentState::Stopped);
        drop(inner);
        self.changed.notify_all();
    }

    /// One process, from its start to its end.
    fn run_process(&self) -> Ended {
        let Kept { container, uid, .. } = &self.kept;
        // What is in force without any of them needs no process.
        let (version, start) = self.start();
        if start.hosts.is_empty() {
            let same = |inner: &mut Inner| !inner.stop && inner.version == version;
            drop(self.changed.wait_while(self.inner(), same));
            return Ended::Renewed;
        }
        let process = match (self.kept.spawn)(*uid) {
            Ok(process) => process,
            Err(error) => {
                return Ended::Wrongly(format!("its process with credentials cannot be started: {error}"));
            }
        };
        let pid = i32::try_from(process.pid()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| !self.kept.is_root_s)
            && let Err(errno) = limit(pid)
        {
            let exit = process.kill();
            return Ended::Wrongly(format!(
                "its process with credentials cannot be limited: {errno} ({exit})"
            ));
        }
        // It is ours to wait for, and was not: the number is its own.
        self.inner().handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        tracing::info!(
            "container {container}: process with credentials started, pid {}, user {uid}",
            process.pid()
        );
        let said = Session::new(self, process.socket(), version, start.hosts.clone());
        let broken =
            said.map_err(|error| Broken::Link(FrameError::Io(error))).and_then(|session| session.run(start));
        let is_to_end = self.inner().stop;
        match broken {
            Ok(()) if is_to_end => Ended::Wrongly(process.finish(STOP_TIME)),
            Err(Broken::Renewed) => {
                process.kill();
                Ended::Renewed
            }
            Ok(()) | Err(Broken::Link(FrameError::Closed)) => {
                Ended::Wrongly(format!("its process with credentials ended: {}", process.kill()))
            }
            Err(Broken::Link(error)) => Ended::Wrongly(format!(
                "its process with credentials broke off: {} ({})",
                chain(&error),
                process.kill()
            )),
            Err(Broken::Wrong(what)) => {
                Ended::Wrongly(format!("its process with credentials {what} ({})", process.kill()))
            }
            Err(Broken::Bundle(error)) => Ended::Wrongly(format!(
                "the certificates that its programs trust cannot be written: {error} ({})",
                process.kill()
            )),
        }
    }

    /// Those of which a credential was handed over.
    fn had(&self, hosts: &[HostCredential]) -> Vec<HostCredential> {
        let has = |host: &&HostCredential| self.kept.secrets.iter().any(|(of, _)| of.is_of(host));
        hosts.iter().filter(has).cloned().collect()
    }

    /// What a process is started with: the hosts of which there is a credential.
    fn start(&self) -> (u64, CredentialsStart) {
        let inner = self.inner();
        let hosts = self.had(&inner.hosts);
        let (container, profile) = (self.kept.container.clone(), self.kept.profile.clone());
        (inner.version, CredentialsStart { container, profile, hosts })
    }
}

/// Limits what the process of a user's container may have, before it is told anything.
fn limit(pid: Pid) -> rustix::io::Result<()> {
    let most = getrlimit(Resource::Data).maximum.map_or(MEMORY, |ours| ours.min(MEMORY));
    prlimit(Some(pid), Resource::Data, Rlimit { current: Some(most), maximum: Some(most) }).map(drop)
}

/// What is said with one process.
struct Session<'a> {
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
    fn new(of: &'a Credentials, link: &UnixStream, told: u64, has: Vec<HostCredential>) -> io::Result<Self> {
        let now = Instant::now();
        Ok(Self {
            of,
            conn: Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_ORDER),
            heard: Conn::new(link.try_clone()?, MESSAGE_TIME, MAX_ANSWER),
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
    fn run(mut self, start: CredentialsStart) -> Result<(), Broken> {
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
                inner.state = AgentState::Running;
                drop(inner);
                self.of.changed.notify_all();
            }
            FromCredentials::Ready { .. } => return Err(Broken::Wrong("is ready twice")),
            FromCredentials::InForce { id } => {
                if id == self.told {
                    self.due = None;
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
