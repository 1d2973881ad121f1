//! One agent's thread: starts its worker, answers it, starts it again after a pause that grows, and gives it up for the
//! time being when it ends again and again.

use super::{
    plan::Plan,
    requests::WorkerRequests,
    sockets::{self, Sockets, Wanted},
    store::Store,
};
use crate::{enforcer::Enforcer, server::Server};
use ringfence_base::{error::chain, loopback, paths::Paths};
use ringfence_supervise::{
    tools_line::ToolsLines,
    worker::{self as worker_process, MOST_CRASHES, Restarts, WorkerSetup},
};
use ringfence_wire::{
    agent::{AgentCounts, Supervisor},
    conn::Conn,
    frame::FrameError,
    mcp::McpRequest,
    status::{AgentProcess, AgentState},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long the auditor's socket may take to take a worker's line.
const LINE_TIME: Duration = Duration::from_secs(2);

/// See the module.
#[derive(Debug)]
pub(super) struct WorkerSupervisor {
    pub(super) name: String,
    paths: Paths,
    store: Arc<Store>,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug)]
struct Inner {
    plan: Plan,
    /// The plan is another than the worker was started with, or it is to be tried again.
    renewed: bool,
    stop: bool,
    /// Another daemon is to have its sockets.
    leaves_sockets: bool,
    /// It was stopped by hand, and rests until somebody wants it back.
    halted: bool,
    over: bool,
    state: AgentState,
    pid: Option<u32>,
    uid: Option<u32>,
    /// Since the daemon started.
    restarted: u64,
    restarts: Restarts,
    /// What the worker says of why it cannot serve.
    complaint: Option<String>,
    last_exit: Option<String>,
    error: Option<String>,
    /// Why it is served without the port that its profile wants.
    missing_port: Option<String>,
    counts: AgentCounts,
    /// The core's end of the worker's socket, to tell it to stop.
    worker: Option<UnixStream>,
    /// The worker itself, to end it.
    handle: Option<OwnedFd>,
    /// The worker's lines to the auditor.
    tools_lines: ToolsLines,
}

impl WorkerSupervisor {
    pub(super) fn new(paths: &Paths, plan: Plan, store: Arc<Store>) -> Self {
        let inner = Inner {
            renewed: false,
            stop: false,
            leaves_sockets: false,
            halted: false,
            over: false,
            state: AgentState::Starting,
            pid: None,
            uid: None,
            restarted: 0,
            restarts: Restarts::default(),
            complaint: None,
            last_exit: None,
            error: None,
            missing_port: None,
            counts: AgentCounts::default(),
            worker: None,
            handle: None,
            tools_lines: ToolsLines::default(),
            plan,
        };
        let name = inner.plan.config.name.clone();
        Self { name, paths: paths.clone(), store, inner: Mutex::new(inner), changed: Condvar::new() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The agent's profile was read again. Where it changed, the worker ends what it does and another starts; one that was
    /// given up is tried again in any case.
    pub(super) fn replace(&self, plan: Plan) {
        let mut inner = self.inner();
        inner.error = None;
        if inner.halted {
            inner.plan = plan;
            return;
        }
        let is_down =
            matches!(inner.state, AgentState::Quarantined | AgentState::Failed | AgentState::Stopped);
        // Whoever has the port that it wants may keep it for ever: its worker is not ended for another try in vain.
        let is_port_free = inner.missing_port.is_some()
            && plan.loopback().is_some_and(|port| loopback::listen(port).is_ok());
        if inner.plan == plan && !is_down && !is_port_free {
            return;
        }
        inner.plan = plan;
        inner.renewed = true;
        inner.restarts = Restarts::default();
        inner.tell_to_stop(&self.name);
        self.changed.notify_all();
    }

    /// The agent's profile is wrong now.
    pub(super) fn set_error(&self, error: String) {
        self.inner().error = Some(error);
    }

    /// The worker is to end, and none is started before [`Self::resume`] and the next [`Self::replace`].
    pub(super) fn halt(&self) {
        let mut inner = self.inner();
        (inner.halted, inner.renewed) = (true, true);
        inner.tell_to_stop(&self.name);
        self.changed.notify_all();
    }

    /// Whoever stopped it by hand wants it back.
    pub(super) fn resume(&self) {
        self.inner().halted = false;
    }

    /// The worker is to end, for good.
    pub(super) fn stop(&self) {
        let mut inner = self.inner();
        inner.stop = true;
        inner.tell_to_stop(&self.name);
        self.changed.notify_all();
    }

    /// The same, because the daemon ends. Where the service manager has them, its sockets are left to the next one.
    pub(super) fn stop_leaving_sockets(&self) {
        self.inner().leaves_sockets = true;
        self.stop();
    }

    /// The worker that is to end is not to take its time.
    pub(super) fn kill(&self) {
        let inner = self.inner();
        if let Some(handle) = &inner.handle
            && let Err(error) = pidfd_send_signal(handle, Signal::KILL)
        {
            tracing::debug!("agent {}: its worker cannot be killed: {error}", self.name);
        }
    }

    /// Whether it has, and its sockets are gone or left.
    pub(super) fn is_over(&self) -> bool {
        self.inner().over
    }

    /// Waits until it has, but no longer than `until`.
    pub(super) fn wait_until_over(&self, until: Instant) {
        let left = until.saturating_duration_since(Instant::now());
        drop(self.changed.wait_timeout_while(self.inner(), left, |inner| !inner.over));
    }

    pub(super) fn status(&self) -> AgentProcess {
        let inner = self.inner();
        let llm = &inner.plan.config.llm;
        AgentProcess {
            name: self.name.clone(),
            state: inner.state.clone(),
            pid: inner.pid,
            uid: inner.uid,
            socket: sockets::paths_of(&self.paths, &self.name).0.display().to_string(),
            model: Some(format!("{}/{}", llm.provider.name(), llm.model)),
            restarts: inner.restarted,
            last_exit: inner.last_exit.clone(),
            error: inner.error.clone().or_else(|| inner.missing_port.clone()),
            counts: inner.counts,
        }
    }

    /// What the worker counted.
    pub(super) fn set_counts(&self, counts: AgentCounts) {
        self.inner().counts = counts;
    }

    /// The worker serves its socket.
    pub(super) fn set_ready(&self) {
        self.inner().state = AgentState::Running;
    }

    /// The worker cannot do what it was told.
    pub(super) fn set_complaint(&self, why: &str) {
        self.inner().complaint = Some(worker_process::printable_reason(why));
    }

    /// A line to the auditor for the worker, of this user's agent. The one of before ends: a worker has one, so that no worker takes
    /// the places of others there.
    ///
    /// # Errors
    /// In words.
    pub(super) fn tools_line(&self, owner: u32) -> Result<UnixStream, String> {
        self.inner().tools_lines.make_room()?;
        let request = McpRequest::AgentTools { agent: self.name.clone(), owner: Some(owner) };
        let connect = || {
            let mut conn = Conn::connect(&self.paths.mcp_socket(), LINE_TIME).map_err(FrameError::from_io)?;
            conn.send(&request)?;
            let line = conn.into_stream();
            self.inner().tools_lines.give(&line).map_err(FrameError::from_io)?;
            Ok::<_, FrameError>(line)
        };
        connect().map_err(|error| format!("the auditor cannot be reached: {}", chain(&error)))
    }

    /// Runs until [`Self::stop`].
    pub(super) fn run<E: Enforcer>(&self, server: &Server<E>) {
        let mut sockets = None;
        while let Some(plan) = self.next_plan() {
            let halted = self.inner().halted;
            if halted {
                sockets = None;
                self.wait_until_resumed(self.inner());
                continue;
            }
            let since = Instant::now();
            let ended = self.run_worker(server, &plan, &mut sockets);
            let mut inner = self.inner();
            (inner.pid, inner.worker, inner.handle) = (None, None, None);
            inner.tools_lines = ToolsLines::default();
            inner.counts.worker.runtime = false;
            inner.counts.worker.busy = false;
            if inner.stop || inner.renewed {
                continue;
            }
            inner.restarted += 1;
            let (Ok(why) | Err(why)) = &ended;
            let complaint = inner.complaint.take().map_or_else(String::new, |why| format!(": {why}"));
            let why = format!("{why}{complaint}");
            inner.last_exit = Some(why.clone());
            if let Some(pause) = inner.restarts.ended(since.elapsed()) {
                tracing::error!("agent {}: {why}; its worker is started again in {pause:?}", self.name);
                inner.state = AgentState::Waiting;
                self.pause(inner, Some(pause));
                continue;
            }
            tracing::error!(
                "agent {}: {why}; that was {MOST_CRASHES} times in a row, and it is not started again until profiles are read again (SIGHUP)",
                self.name
            );
            inner.state = if ended.is_ok() { AgentState::Quarantined } else { AgentState::Failed };
            // Who connects is to hear that nobody is there.
            sockets = None;
            sockets::unbind(&self.paths, &self.name);
            self.pause(inner, None);
        }
        let leaves_sockets = self.inner().leaves_sockets && self.store.keeps();
        if !sockets.is_some_and(|sockets| leaves_sockets && sockets.leave()) {
            sockets::unbind(&self.paths, &self.name);
        }
        self.inner().over = true;
        self.changed.notify_all();
    }

    /// The plan to start a worker with; `None`: no more.
    fn next_plan(&self) -> Option<Plan> {
        let mut inner = self.inner();
        inner.renewed = false;
        inner.complaint = None;
        inner.state = AgentState::Starting;
        (!inner.stop).then(|| inner.plan.clone())
    }

    /// Waits until somebody wants the agent back that was stopped by hand.
    fn wait_until_resumed(&self, mut inner: MutexGuard<'_, Inner>) {
        tracing::info!("agent {}: stopped by hand; SIGHUP starts it again", self.name);
        sockets::unbind(&self.paths, &self.name);
        inner.state = AgentState::Stopped;
        (inner.restarts, inner.last_exit) = (Restarts::default(), None);
        self.pause(inner, None);
    }

    /// Waits, until something is to be done or for a time.
    fn pause(&self, inner: MutexGuard<'_, Inner>, time: Option<Duration>) {
        let is_idle = |inner: &mut Inner| !inner.stop && !inner.renewed;
        match time {
            None => drop(self.changed.wait_while(inner, is_idle)),
            Some(time) => drop(self.changed.wait_timeout_while(inner, time, is_idle)),
        }
    }

    /// One worker, from its start to its end: how it ended, or why there was none.
    fn run_worker<E: Enforcer>(
        &self,
        server: &Server<E>,
        plan: &Plan,
        sockets: &mut Option<Sockets>,
    ) -> Result<String, String> {
        let (dir, uid) = sockets::worker_dir(&self.paths, &self.name).map_err(|error| chain(&error))?;
        let wanted = Wanted { owner: plan.owner(), http: plan.config.http.is_some(), port: plan.loopback() };
        if sockets.as_ref().is_none_or(|bound| !bound.matches(wanted)) {
            let bound = Sockets::bind(&self.paths, &self.name, wanted, sockets.take(), &self.store);
            // What of them was there is closed: nobody is to wait for it.
            let bound = bound.inspect_err(|_| sockets::unbind(&self.paths, &self.name));
            *sockets = Some(bound.map_err(|error| chain(&error))?);
        }
        let Some(sockets) = sockets.as_ref() else { return Err("there is no socket".to_owned()) };
        let missing_port = sockets.missing_port().map(|why| {
            format!("{why}; the agent is served without it, and it is tried again when the profiles are read again (SIGHUP)")
        });
        if let Some(why) = &missing_port {
            tracing::error!("agent {}: {why}", self.name);
        }
        self.inner().missing_port = missing_port;
        let config = worker_process::as_json(&plan.config)?;
        let credentials = plan
            .credentials()
            .into_iter()
            .map(|(of, source)| source.open().map(|fd| (of, fd)))
            .collect::<Result<_, _>>()
            .map_err(|error| format!("a credential cannot be had: {}", chain(&error)))?;
        let process = worker_process::spawn::<&str, &str>(Some(uid), [])
            .map_err(|error| format!("its worker cannot be started: {error}"))?;
        let pid = process.pid();
        tracing::info!("agent {}: worker started, pid {pid}, user {uid}", self.name);
        let by = Supervisor::Core { dir };
        let (listeners, endpoint) = (sockets.each(), sockets.has_http());
        let requests = WorkerRequests { server, plan, supervisor: self, uid };
        worker_process::supervise(
            process,
            WorkerSetup { config, by, credentials, listeners, endpoint },
            |link| {
                let mut inner = self.inner();
                (inner.pid, inner.uid) = (Some(pid), Some(uid));
                inner.worker = link.try_clone().ok();
                // It is ours to wait for, and was not: the number is its own.
                inner.handle = i32::try_from(pid)
                    .ok()
                    .and_then(Pid::from_raw)
                    .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
                // Told before there was somebody to tell.
                if inner.stop || inner.renewed {
                    inner.tell_to_stop(&self.name);
                }
            },
            |conn, said, descriptors| requests.answer(conn, said, descriptors),
            || {
                let inner = self.inner();
                inner.stop || inner.renewed
            },
        )
    }
}

impl Inner {
    fn tell_to_stop(&self, name: &str) {
        self.worker.as_ref().inspect(|worker| worker_process::send_stop(worker, name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::plan::tests::config;
    use ringfence_supervise::worker::SETUP_TIMEOUT;
    use ringfence_wire::agent::{MAX_ORDER, ToWorker};
    use std::io::{ErrorKind, Write};

    #[test]
    fn a_worker_that_does_not_read_holds_up_nobody_who_stops_it_or_asks_how_it_fares() {
        let nowhere = || "/nonexistent".into();
        let paths = Paths { runtime: nowhere(), state: nowhere(), config: nowhere(), pins: nowhere() };
        let store = Store::new(None, Vec::new());
        let supervisor = WorkerSupervisor::new(&paths, Plan::new(config()), store);
        let (mut ours, worker) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("a flag");
        let filled = loop {
            if let Err(error) = ours.write(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(filled.kind(), ErrorKind::WouldBlock);
        ours.set_nonblocking(false).expect("a flag");
        supervisor.inner().worker = Some(ours);
        let begun = Instant::now();
        supervisor.halt();
        assert_eq!(supervisor.status().state, AgentState::Starting);
        supervisor.stop();
        assert!(begun.elapsed() < SETUP_TIMEOUT / 2, "{:?}", begun.elapsed());
        // The control: one that reads is told.
        let (ours, told) = UnixStream::pair().expect("a pair");
        supervisor.inner().worker = Some(ours);
        supervisor.stop();
        let order = Conn::new(told, SETUP_TIMEOUT, MAX_ORDER).receive::<ToWorker>().expect("an order");
        assert!(matches!(order, ToWorker::Stop));
        drop(worker);
    }

    #[test]
    fn a_worker_s_line_is_about_its_own_agent_and_the_one_before_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let nowhere = || "/nonexistent".into();
        let paths =
            Paths { runtime: dir.path().to_owned(), state: nowhere(), config: nowhere(), pins: nowhere() };
        let plan = Plan::new(config());
        let name = plan.config.name.clone();
        let supervisor = WorkerSupervisor::new(&paths, plan, Store::new(None, Vec::new()));
        assert!(supervisor.tools_line(7).expect_err("nobody is there").contains("cannot be reached"));
        let auditor = std::os::unix::net::UnixListener::bind(paths.mcp_socket()).expect("a socket");
        let line = || {
            let given = supervisor.tools_line(7).expect("a line");
            let taken = auditor.accept().expect("a connection").0;
            let mut conn = Conn::new(taken, SETUP_TIMEOUT, MAX_ORDER);
            let said = conn.receive::<McpRequest>().expect("a request");
            assert_eq!(said, McpRequest::AgentTools { agent: name.clone(), owner: Some(7) });
            (given, conn)
        };
        let (_first, mut first) = line();
        let (_second, second) = line();
        assert!(matches!(first.receive::<McpRequest>(), Err(FrameError::Closed)));
        second.stream().set_nonblocking(true).expect("a flag");
        let still = std::io::Read::read(&mut second.stream(), &mut [0]).expect_err("nothing yet");
        assert_eq!(still.kind(), ErrorKind::WouldBlock, "the control");
    }
}
