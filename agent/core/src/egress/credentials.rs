//! One container's process with credentials: a thread that starts it, hands it what was handed over, links it with the container's
//! egress worker, and starts it again after a pause that grows. Without it the worker refuses what is for its hosts.
//!
//! Nothing secret is read here, and nothing that agents or servers say. Of what the process says a number is read, a sentence for the
//! operator, and once the certificate of its authority, before it was linked with anybody.

mod bundle;
mod secrets;
mod session;

pub(crate) use bundle::{Bundle, Bundles, FILE};
pub(crate) use secrets::{Bounds, Handed, Lease, NotKept, Sealed};

use super::{EgressError, blocks::Block, retry::Pauses, supervisor::Supervisor, worker::Spawn};
use nix::sys::eventfd::EventFd;
use ringfence_base::error::chain;
use ringfence_supervise::worker::Restarts;
use ringfence_wire::{
    credentials::{CredentialsStart, HostCredential, SecretFor},
    frame::FrameError,
    status::AgentState,
};
use rustix::process::{
    Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, pidfd_open, pidfd_send_signal, prlimit,
};
use session::Session;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long it may take until other rules are in force.
pub(super) const RULES_TIME: Duration = Duration::from_secs(10);
/// How long it may take to end.
const STOP_TIME: Duration = Duration::from_secs(2);
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
    /// The version of the rules that the process judges by; none where nobody is linked with one yet.
    in_force: Option<u64>,
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
            in_force: None,
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

    /// Waits until the process judges by the rules that [`Self::replace`] was told last, or is none. At `until` it is killed, to be
    /// started again with those: nothing that it or its link does has earlier ones stay.
    pub(super) fn in_force_by(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        let waits = |inner: &mut Inner| inner.in_force.is_some_and(|version| version != inner.version);
        let waited = self.changed.wait_timeout_while(self.inner(), left, waits);
        let (mut inner, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if waits(&mut inner) {
            let container = &self.kept.container;
            tracing::error!(
                "container {container}: its process with credentials keeps to earlier rules; it is killed"
            );
            inner.complaint = Some("it did not put other rules in force".to_owned());
            drop(inner);
            self.kill();
        }
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
            (inner.handle, inner.in_force, inner.is_linked) = (None, None, false);
            self.changed.notify_all();
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
        let Some(handle) = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            // Nobody could end it where this thread is held up.
            let exit = process.kill();
            return Ended::Wrongly(format!("its process with credentials cannot be watched ({exit})"));
        };
        self.inner().handle = Some(handle);
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
