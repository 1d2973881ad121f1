//! One container's egress worker: a thread that starts it, answers it, and starts it again after a pause that grows; after a long
//! one where it ends again and again. What fails for want of something that the host has not (a process, a port, a descriptor) is no
//! fault of the worker's, and tried again as well. Without a worker the container reaches no name: its connections wait in the
//! listening socket, which is ours, or are refused.
//!
//! A worker reads what containers and servers say, and may be subverted. Of what it says numbers are read here, and a sentence for
//! the operator; it is heard at its pace, and whatever it does holds up this thread alone.

mod session;

use super::{
    EgressError,
    listeners::Listeners,
    retry::{Retry, seconds_until},
    uploads::{Uploads, last_said},
    worker::{Attached, Served, limit},
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ringfence_base::error::chain;
use ringfence_supervise::worker::{MOST_CRASHES, Restarts};
use ringfence_wire::{
    egress::{EgressCounts, Names},
    frame::FrameError,
    status::{AgentState, EgressProcess},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use session::Session;
use std::{
    io,
    os::fd::OwnedFd,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long a worker may take to end when it is told to.
const STOP_TIME: Duration = Duration::from_secs(5);

/// How a worker's time ended, in words.
enum Ended {
    /// By the worker's own doing.
    Worker(String),
    /// It never began, for a reason of the host's.
    Host(String),
}

/// See the module.
pub(super) struct Supervisor {
    pub(super) served: Served,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Written where the worker is to be told something.
    wake: EventFd,
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Supervisor").field("container", &self.served.container).finish_non_exhaustive()
    }
}

struct Inner {
    attached: Option<Attached>,
    /// The sockets that the next worker is given.
    listeners: Arc<Listeners>,
    /// Those that the kernel sends connections to: nobody else has their ports as long as it does.
    redirected: Option<Arc<Listeners>>,
    names: Names,
    audit: bool,
    /// Rises with each change of the two.
    version: u64,
    stop: bool,
    over: bool,
    state: AgentState,
    pid: Option<u32>,
    /// The worker itself, to end it.
    handle: Option<OwnedFd>,
    restarted: u64,
    restarts: Restarts,
    /// When the next worker is started, while none is.
    next: Option<Instant>,
    /// It is to be tried at once.
    renewed: bool,
    complaint: Option<String>,
    last_exit: Option<String>,
    counts: EgressCounts,
    uploads: Uploads,
    /// The number of the worker that runs, and of the last one.
    session: Option<u64>,
    last_session: u64,
    link: Link,
}

/// The worker's way to the process with the container's credentials, where there are any.
#[derive(Default)]
struct Link {
    /// Written where the worker is another, was told of its link, or has lost it.
    changed: Option<Arc<EventFd>>,
    /// What it is to be told of next.
    next: Option<(u64, OwnedFd)>,
    /// What it was told of last.
    told: Option<u64>,
    /// What it has lost.
    lost: Option<u64>,
}

impl Link {
    fn is_changed(&self) {
        if let Some(changed) = &self.changed {
            // It can only fail by being full: then it was written before.
            let _ = changed.write(1);
        }
    }
}

/// An event descriptor that nobody waits to write.
pub(super) fn event() -> io::Result<EventFd> {
    Ok(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?)
}

impl Inner {
    /// Whether the kernel sends connections to the sockets that are served. Before the container is in it, it sends none.
    fn is_redirected(&self) -> bool {
        let same = |known: &Arc<Listeners>| Arc::ptr_eq(known, &self.listeners);
        self.attached.is_none() || self.redirected.as_ref().is_some_and(same)
    }
}

impl Supervisor {
    pub(super) fn new(served: Served, listeners: Listeners, names: Names, audit: bool) -> io::Result<Self> {
        let mut uploads = Uploads::default();
        uploads.expect(&names);
        let inner = Inner {
            attached: None,
            listeners: Arc::new(listeners),
            redirected: None,
            names,
            audit,
            version: 0,
            stop: false,
            over: false,
            state: AgentState::Starting,
            pid: None,
            handle: None,
            restarted: 0,
            restarts: Restarts::default(),
            next: None,
            renewed: false,
            complaint: None,
            last_exit: None,
            counts: EgressCounts::default(),
            uploads,
            session: None,
            last_session: 0,
            link: Link::default(),
        };
        Ok(Self { served, inner: Mutex::new(inner), changed: Condvar::new(), wake: event()? })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // It can only fail by being full: then it was written before.
        let _ = self.wake.write(1);
        self.changed.notify_all();
    }

    /// The container is in the kernel, which knows these sockets.
    pub(super) fn attach(&self, attached: Attached, listeners: Arc<Listeners>) {
        let mut inner = self.inner();
        (inner.attached, inner.redirected) = (Some(attached), Some(listeners));
        drop(inner);
        self.wake();
    }

    /// The sockets that are served, or are to be.
    pub(super) fn listeners(&self) -> Arc<Listeners> {
        Arc::clone(&self.inner().listeners)
    }

    /// The same, if the kernel knows others.
    pub(super) fn renewed(&self) -> Option<Arc<Listeners>> {
        let inner = self.inner();
        (!inner.is_redirected()).then(|| Arc::clone(&inner.listeners))
    }

    /// The kernel knows these.
    pub(super) fn redirected(&self, listeners: Arc<Listeners>) {
        self.inner().redirected = Some(listeners);
        self.wake();
    }

    /// Has this be written where there is something new to be known of the worker's link.
    pub(super) fn tell(&self, changed: &Arc<EventFd>) {
        self.inner().link.changed = Some(Arc::clone(changed));
    }

    /// The number of the worker that runs: no other has the same.
    pub(super) fn session(&self) -> Option<u64> {
        self.inner().session
    }

    /// Gives this worker a link, if it still runs.
    pub(super) fn give_link(&self, session: u64, id: u64, link: OwnedFd) {
        let mut inner = self.inner();
        if inner.session == Some(session) {
            inner.link.next = Some((id, link));
        }
        drop(inner);
        self.wake();
    }

    /// Whether the worker that runs was told of this link. What it asks from then on it asks behind that.
    pub(super) fn has_link(&self, id: u64) -> bool {
        self.inner().link.told == Some(id)
    }

    /// The link that the worker said last it has lost.
    pub(super) fn lost_link(&self) -> Option<u64> {
        self.inner().link.lost
    }

    /// Other names, or the same: a worker that waits to be tried again is tried at once in any case.
    pub(super) fn replace(&self, names: &Names, audit: bool) {
        let mut inner = self.inner();
        if inner.names != *names || inner.audit != audit {
            (inner.names, inner.audit) = (names.clone(), audit);
            inner.uploads.expect(names);
            inner.version += 1;
        }
        if matches!(inner.state, AgentState::Quarantined | AgentState::Failed) {
            (inner.restarts, inner.renewed) = (Restarts::default(), true);
        }
        drop(inner);
        self.wake();
    }

    /// The worker is to end, for good. Nobody waits for it here.
    pub(super) fn stop(&self) {
        self.inner().stop = true;
        self.wake();
    }

    /// The worker that is to end is not to take its time.
    pub(super) fn kill(&self) {
        if let Some(handle) = &self.inner().handle
            && let Err(error) = pidfd_send_signal(handle, Signal::KILL)
        {
            tracing::debug!(
                "container {}: its egress worker cannot be killed: {error}",
                self.served.container
            );
        }
    }

    /// Whether it has ended for good, waiting until `until` for it.
    pub(super) fn is_over_by(&self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        let waited = self.changed.wait_timeout_while(self.inner(), left, |inner| !inner.over);
        waited.unwrap_or_else(PoisonError::into_inner).0.over
    }

    /// Waits until the first worker serves.
    ///
    /// # Errors
    /// It ended instead, or says nothing, in words.
    pub(super) fn wait_until_ready(&self, within: Duration) -> Result<(), EgressError> {
        let waits = |inner: &mut Inner| inner.state == AgentState::Starting;
        let waited = self.changed.wait_timeout_while(self.inner(), within, waits);
        let (inner, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if inner.state == AgentState::Running {
            return Ok(());
        }
        let why = inner.last_exit.clone().or_else(|| inner.complaint.clone());
        let why = why.unwrap_or_else(|| match timeout.timed_out() {
            true => format!("it was not ready within {} s", within.as_secs()),
            false => "it did not start".to_owned(),
        });
        Err(EgressError::Worker(why))
    }

    pub(super) fn status(&self) -> EgressProcess {
        let inner = self.inner();
        EgressProcess {
            state: inner.state.clone(),
            block: self.served.block.net().to_string(),
            pid: inner.pid,
            uid: self.served.block.uid(),
            restarts: inner.restarted,
            last_exit: inner.last_exit.clone(),
            error: inner.complaint.clone(),
            retry_s: inner.next.map(|next| seconds_until(next, Instant::now())),
            counts: inner.counts,
        }
    }

    /// Other sockets in the place of those that a worker had and left without being told to: it may have been taken over, and
    /// have done to them what no other worker could undo.
    fn renew(&self, used: &mut bool) -> Result<(), String> {
        if !*used {
            return Ok(());
        }
        let listeners = self.listeners().again().map_err(|error| chain(&error))?;
        self.inner().listeners = Arc::new(listeners);
        *used = false;
        Ok(())
    }

    /// Has the sockets that a worker is to be given be new and known to the kernel. False: it is to end instead.
    fn prepare(&self, used: &mut bool) -> Result<bool, String> {
        self.renew(used)?;
        let waits = |inner: &mut Inner| !inner.stop && !inner.is_redirected();
        let inner = self.changed.wait_while(self.inner(), waits).unwrap_or_else(PoisonError::into_inner);
        *used = true;
        Ok(!inner.stop)
    }

    /// Runs until [`Self::stop`].
    pub(super) fn run(&self) {
        let container = &self.served.container;
        let (mut used, mut host) = (false, None::<Retry>);
        loop {
            {
                let mut inner = self.inner();
                if inner.stop {
                    break;
                }
                (inner.state, inner.complaint) = (AgentState::Starting, None);
                (inner.next, inner.renewed) = (None, false);
            }
            let prepared = self.prepare(&mut used);
            let since = Instant::now();
            let ended = match prepared {
                Ok(true) => self.run_worker(),
                Ok(false) => break,
                Err(why) => Ended::Host(why),
            };
            if !self.inner().stop
                && let Err(why) = self.renew(&mut used)
            {
                // It is tried again before the next worker.
                tracing::error!("container {container}: {why}");
            }
            let mut inner = self.inner();
            (inner.pid, inner.handle, inner.counts.open) = (None, None, 0);
            if inner.stop {
                break;
            }
            let complaint = inner.complaint.take().map_or_else(String::new, |why| format!(": {why}"));
            let now = Instant::now();
            let (state, pause, why) = match ended {
                Ended::Worker(why) => {
                    host = None;
                    match inner.restarts.ended(since.elapsed()) {
                        Some(pause) => (AgentState::Waiting, pause, why + &complaint),
                        None => {
                            let often =
                                format!("{why}{complaint}; that was {MOST_CRASHES} times in a row or more");
                            (AgentState::Quarantined, self.served.pauses.given_up, often)
                        }
                    }
                }
                Ended::Host(why) => {
                    match &mut host {
                        Some(retry) => retry.failed(now),
                        None => host = Some(Retry::new(self.served.pauses, now)),
                    }
                    let pause = host.as_ref().map_or(Duration::ZERO, |retry| retry.pause);
                    (AgentState::Failed, pause, why)
                }
            };
            tracing::error!("container {container}: {why}; its egress worker is started again in {pause:?}");
            (inner.state, inner.next, inner.last_exit) = (state, Some(now + pause), Some(why));
            inner.restarted += 1;
            self.changed.notify_all();
            let idle = |inner: &mut Inner| !inner.stop && !inner.renewed;
            drop(self.changed.wait_timeout_while(inner, pause, idle));
        }
        let mut inner = self.inner();
        (inner.over, inner.state) = (true, AgentState::Stopped);
        drop(inner);
        self.changed.notify_all();
    }

    /// One worker, from its start to its end.
    fn run_worker(&self) -> Ended {
        let (container, uid) = (&self.served.container, self.served.block.uid());
        let process = match (self.served.spawn)(uid) {
            Ok(process) => process,
            Err(error) => return Ended::Host(format!("its egress worker cannot be started: {error}")),
        };
        let pid = process.pid();
        if !self.served.block.is_root_s()
            && let Err(errno) = limit(pid)
        {
            return Ended::Host(format!("its egress worker cannot be limited: {errno} ({})", process.kill()));
        }
        let both = Session::new(self, process.socket()).and_then(|session| {
            // What it says at last is read when it is no more.
            Ok((session, process.socket().try_clone()?))
        });
        let (session, last) = match both {
            Ok(both) => both,
            Err(error) => {
                let exit = process.kill();
                return Ended::Host(format!("its egress worker cannot be talked to: {error} ({exit})"));
            }
        };
        tracing::info!("container {container}: egress worker started, pid {pid}, user {uid}");
        {
            let mut inner = self.inner();
            inner.pid = Some(pid);
            inner.last_session += 1;
            inner.session = Some(inner.last_session);
            (inner.link.next, inner.link.told, inner.link.lost) = (None, None, None);
            inner.link.is_changed();
            // It is ours to wait for, and was not: the number is its own.
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            inner.handle = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        }
        let broken = session.run().err().filter(|error| !matches!(error, FrameError::Closed));
        {
            let mut inner = self.inner();
            inner.session = None;
            inner.link.is_changed();
        }
        let is_to_end = self.inner().stop;
        let exit = match broken {
            None if is_to_end => process.finish(STOP_TIME),
            _ => process.kill(),
        };
        self.inner().uploads.heard(last_said(last));
        Ended::Worker(match broken {
            None => format!("its egress worker ended: {exit}"),
            Some(error) => format!("its egress worker broke off: {} ({exit})", chain(&error)),
        })
    }
}
