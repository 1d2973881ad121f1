//! The admin and enrolment sockets: who may speak, one thread for each connection, one request for each; over one that enrolled
//! a container, what its run reports may follow (`run_line`).

use super::{
    agents::Agents,
    egress::{self, credentials::Handed},
    enforcer::Enforcer,
    enroll::{self, Asked, Compiled, EnrollError, Request, Surroundings},
    privileges::Privileges,
    quota::{CONNECTIONS, CONNECTIONS_PER_UID, QuotaError},
    run_line::{self, LINES, LINES_PER_UID, LineError},
    running::{self, Target},
    state::{State, TaskContext},
    status::About,
};
use nix::sys::eventfd::EventFd;
use ringfence_base::closing::discard;
use ringfence_base::error::chain;
use ringfence_base::quota::{Bounds, Owners, Permit, Permits, Refusals};
use ringfence_bpf::{Membership, TaskError, unpin_all};
use ringfence_policy::home;
use ringfence_process::peer::{Peer, PeerError, Process};
use ringfence_wire::{
    audit::AgentReport,
    conn::Conn,
    ending::drain,
    frame::FrameError,
    message::{
        AdminRequest, Detached, EnrollRequest, Enrolled, Failure, MAX_REQUEST, Reloaded, Reply, Stopping,
    },
    status::Status,
};
use serde::Serialize;
use std::{
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Component, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long a peer has to send its request, and to take the answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How long one that is turned away has to take the answer.
const BRIEF: Duration = Duration::from_millis(100);
/// Most bytes of a profile's name or path.
const MAX_PROFILE: usize = 4096;

/// Which socket a connection came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketKind {
    /// Root's.
    Admin,
    /// The group's.
    Enroll,
}

/// What the connections' threads share with the main one.
#[derive(Debug)]
pub struct Server<E> {
    state: Mutex<State<E>>,
    about: About,
    pins: PathBuf,
    connections: Permits,
    pub(crate) lines: Permits,
    refusals: Refusals,
    detached: EventFd,
    agents: Agents,
    owners: Owners,
}

impl<E: Enforcer> Server<E> {
    /// A server over the core's state. `detached` is written when everything was detached and the daemon shall end.
    pub fn new(state: State<E>, about: About, pins: PathBuf, detached: EventFd, agents: Agents) -> Arc<Self> {
        let owners = state.owners.clone();
        Arc::new(Self {
            state: Mutex::new(state),
            about,
            pins,
            connections: Permits::within(Bounds::of(CONNECTIONS, CONNECTIONS_PER_UID), owners.clone()),
            lines: Permits::within(Bounds::of(LINES, LINES_PER_UID), owners.clone()),
            refusals: Refusals::new(owners.clone()),
            detached,
            agents,
            owners,
        })
    }

    /// The state. A thread that panicked while it held the lock left nothing half done that a sweep does not find.
    pub fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whose subordinate user ids are.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// The agents' workers.
    pub fn agents(&self) -> &Agents {
        &self.agents
    }

    /// Tells the auditor something about an agent. False: it takes too little, and a report is dropped.
    pub fn report(&self, report: &AgentReport) -> bool {
        let link = self.state().link.clone();
        link.report(report)
    }

    /// Readable when everything was detached.
    pub fn detached(&self) -> &EventFd {
        &self.detached
    }

    /// Serves a connection in a thread of its own; returns at once.
    pub fn serve(self: &Arc<Self>, stream: UnixStream, socket: SocketKind) {
        // A copy of the listener's flags may have come with it; a deadline needs a blocking socket.
        if stream.set_nonblocking(false).is_err() {
            return;
        }
        let peer = match Peer::of(&stream) {
            Ok(peer) => peer,
            // What it sent may be there all the same.
            Err(PeerError::Gone) => return discard(stream),
            Err(error) => return turn_away(stream, &chain(&error)),
        };
        // What was left out of users who ask for nothing any more.
        self.refusals.log_suppressed(Instant::now(), false);
        let Ok(spare) = stream.try_clone() else { return discard(stream) };
        let end = move || drop(spare.shutdown(std::net::Shutdown::Both));
        let Some(permit) = self.connections.take(peer.uid, end) else {
            let error = QuotaError::Connections { uid: peer.uid };
            self.refusals.warn(peer.uid, || {
                format!("process {} of user {} was turned away: {error}", peer.pid, peer.uid)
            });
            return turn_away(stream, &error.to_string());
        };
        let (server, spare) = (self.clone(), stream.try_clone());
        let thread = thread::Builder::new().name("connection".into()).spawn(move || {
            let (mut conn, mut permit) = (Conn::new(stream, LIMIT, MAX_REQUEST), permit);
            let done = match socket {
                SocketKind::Admin => server.admin(&mut conn, &peer, &permit),
                SocketKind::Enroll => match server.enroll(&mut conn, &peer, &permit) {
                    Ok(Some(enrolled)) => server.line(&mut conn, &peer, &enrolled, &mut permit),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = done {
                tracing::debug!("process {} of user {}: {}", peer.pid, peer.uid, chain(&error));
            }
            // The thread that accepts may have the last descriptor of it, if another connection takes its place.
            drain(conn.stream());
            drop(permit);
        });
        if let (Err(error), Ok(stream)) = (thread, spare) {
            turn_away(stream, &format!("the daemon cannot start a thread: {error}"));
        }
    }

    /// Answers a request to enrol. `None`: nothing was enrolled.
    fn enroll(&self, conn: &mut Conn, peer: &Peer, permit: &Permit) -> Result<Option<Enrolled>, FrameError> {
        let (bounds, owner) = {
            let state = self.state();
            (state.opener.bounds.clone(), state.owners.of(peer.uid))
        };
        let mut handed = Handed::default();
        let until = Instant::now() + LIMIT;
        let (request, descriptors) = loop {
            let (request, descriptors) = conn.receive_with_descriptors::<EnrollRequest>()?;
            let taken = match request {
                EnrollRequest::Credential { of } => handed.secret(of, descriptors, &bounds, owner),
                EnrollRequest::Trusted => handed.trusted(descriptors, &bounds, owner),
                request => break (request, descriptors),
            };
            if let Err(error) = taken {
                conn.send(&reply::<Enrolled>(Err(error.message())))?;
                return Ok(None);
            }
            if Instant::now() > until {
                return Err(FrameError::TimedOut);
            }
        };
        if !permit.busy() {
            return Err(FrameError::Closed);
        }
        let EnrollRequest::Enroll { profile, workdir, audit } = request else {
            return run_line::refuse(conn, &LineError::NotEnrolled).map(|()| None);
        };
        let enrolled = request_of(profile, workdir, audit, peer.uid)
            .and_then(|request| {
                self.enroll_child(conn.stream().as_fd(), peer, request, (descriptors, handed))
            })
            .map_err(|error| self.state().named(error));
        if let Err(error) = &enrolled {
            self.refusals.warn(peer.uid, || {
                format!(
                    "process {} of user {} was refused an enrolment: {}",
                    peer.pid,
                    peer.uid,
                    error.message()
                )
            });
        }
        conn.send(&reply(enrolled.as_ref().map_err(EnrollError::message)))?;
        Ok(enrolled.ok())
    }

    /// Serves the line of whoever has just enrolled a container here and asks for it; most only hang up. From here on the
    /// connection counts as a line, so that none keeps another from enrolling.
    fn line(
        &self,
        conn: &mut Conn,
        peer: &Peer,
        enrolled: &Enrolled,
        permit: &mut Permit,
    ) -> Result<(), FrameError> {
        let stream = conn.stream().try_clone().map_err(FrameError::from_io)?;
        let spare = stream.try_clone().map_err(FrameError::from_io)?;
        let end = move || drop(spare.shutdown(std::net::Shutdown::Both));
        // Without one it ends as it did before there were lines.
        let Some(line) = self.lines.take(peer.uid, end) else { return Ok(()) };
        *permit = line;
        let EnrollRequest::Report = conn.receive::<EnrollRequest>()? else { return Err(FrameError::Closed) };
        if !permit.busy() {
            return Err(FrameError::Closed);
        }
        match self.line_of(conn, peer, enrolled) {
            Ok(whose) => {
                self.serve_line(&mut run_line::narrowed(Conn::new(stream, LIMIT, MAX_REQUEST)), &whose)
            }
            Err(error) => run_line::refuse(conn, &error),
        }
    }

    fn enroll_child(
        &self,
        connection: BorrowedFd<'_>,
        peer: &Peer,
        mut request: Request,
        (mut descriptors, handed): (Vec<OwnedFd>, Handed),
    ) -> Result<Enrolled, EnrollError> {
        let Asked { endpoint, tie, .. } = Asked::parse(&request.asked)?;
        if let Some(name) = tie {
            enroll::check_tie(descriptors.pop().ok_or(EnrollError::Tie)?, name)?;
        }
        if let Some(address) = endpoint {
            enroll::check_listener(descriptors.pop().ok_or(EnrollError::Endpoint)?, address)?;
        }
        let [child] =
            <[OwnedFd; 1]>::try_from(descriptors).map_err(|all| EnrollError::Descriptors(all.len()))?;
        let process = Process::of(child.as_fd())?;
        enroll::check_child(peer, &process)?;
        if peer.uid != 0 {
            let asker = Privileges::of(peer.pidfd.as_fd())?;
            Privileges::of(child.as_fd())?.check(process.pid, &asker)?;
            // Who gains no privileges any more keeps its user, who was looked at before.
            enroll::check_child(peer, &Process::of(child.as_fd())?)?;
        }
        // The user that the command runs as, which is who asks unless root asked for another.
        request.home = home::of(process.uids[0]);
        let (inside, outer, dirs) = {
            let state = self.state();
            state.check_quota(peer.uid)?;
            let of_peer = state.kernel.belongs(connection, peer.pidfd.as_fd())?;
            let of_child = state.kernel.lookup(child.as_fd())?;
            let inside = enroll::container_of((peer.pid, of_peer), (process.pid, of_child))?;
            let outer = inside.map_or_else(|| Ok(Vec::new()), |inside| state.enclosing(inside))?;
            (inside, outer, state.dirs.clone())
        };
        let (root, host_root) = enroll::root_of(process.pid)?;
        let mounts = enroll::mounts_of(process.pid)?;
        // Still the child: its root was read by pid.
        Process::of(child.as_fd())?;
        let past = if host_root { self.state().link_targets(peer.uid) } else { None };
        if let Some(inside) = inside {
            self.state().check_root(inside, &root)?;
        }
        let surroundings = Surroundings {
            outer: &outer,
            root: root.as_fd(),
            mounts: Some(&mounts),
            dirs: &dirs,
            history: None,
            past: past.as_deref(),
        };
        let mut compiled = enroll::compile(&request, surroundings)?;
        if inside.is_some() && !compiled.credentials.is_empty() {
            return Err(EnrollError::NestedCredentials(compiled.name));
        }
        self.state().grant_bundles(&mut compiled.policy, None, &outer);
        self.serve_names(&mut compiled, child.as_fd(), peer, (handed, root.as_fd()))?;
        self.state().enroll(&request, compiled, TaskContext { inside, outer, root, host_root, mounts }, child)
    }

    fn admin(&self, conn: &mut Conn, peer: &Peer, permit: &Permit) -> Result<(), FrameError> {
        let (request, descriptors) = conn.receive_with_descriptors::<AdminRequest>()?;
        if !permit.busy() {
            return Err(FrameError::Closed);
        }
        if let Err(reason) = self.is_admin(conn.stream().as_fd(), peer) {
            return conn.send(&Reply::<()>::Failed(Failure::new(reason)));
        }
        match request {
            AdminRequest::Status => {
                let status = self.state().status(&self.about);
                let mut agents = self.agents.status();
                let link = self.state().link.clone();
                for agent in &mut agents {
                    agent.counts.lost_reports += link.lost_reports(&agent.name);
                }
                conn.send(&Reply::<Status>::Ok(Status { agents, ..status }))
            }
            AdminRequest::Reload => conn.send(&Reply::<Reloaded>::Ok(self.state().reload())),
            AdminRequest::StopAgent { name } => {
                let told = self.agents.halt(&name).map(|()| Stopping {});
                conn.send(&told.map_or_else(|why| Reply::Failed(Failure::new(why)), Reply::Ok))
            }
            AdminRequest::Detach => {
                let detached = self.detach();
                let done = detached.is_ok();
                let sent = conn.send(&reply(detached));
                if done {
                    // It can only fail by being full: then it was written before.
                    let _ = self.detached.write(1);
                }
                sent
            }
            AdminRequest::EnrollPid { profile } => {
                let target = <[OwnedFd; 1]>::try_from(descriptors)
                    .map(|[process]| Target::Tree(process))
                    .map_err(|all| EnrollError::Descriptors(all.len()));
                conn.send(&self.enroll_running(target, profile, peer))
            }
            AdminRequest::EnrollCgroup { path, profile } => {
                conn.send(&self.enroll_running(Target::cgroup(&path), profile, peer))
            }
        }
    }

    fn enroll_running(
        &self,
        target: Result<Target, EnrollError>,
        profile: String,
        peer: &Peer,
    ) -> Reply<Enrolled> {
        reply(self.enroll_target(target, profile, peer).map_err(|error| self.state().named(error).message()))
    }

    fn enroll_target(
        &self,
        target: Result<Target, EnrollError>,
        profile: String,
        peer: &Peer,
    ) -> Result<Enrolled, EnrollError> {
        let (target, mut request) = (target?, request_of(profile, None, false, peer.uid)?);
        let auditor = self.state().link.status().pid;
        // Before anything is frozen: it might be ourselves.
        let found = target.processes()?;
        running::check(&found, auditor)?;
        // That takes long, and nobody is to stand still for it.
        let served = {
            let first = found.first().ok_or(PeerError::Gone)?.as_fd();
            let (mut compiled, context) = self.compile_running(&mut request, first, peer)?;
            self.serve_names(&mut compiled, first, peer, (Handed::default(), context.root.as_fd()))?;
            compiled.names
        };
        let _held = target.hold();
        let processes = target.processes()?;
        running::check(&processes, auditor)?;
        let calls = self.state().kernel.unknown_calls();
        running::check_filters(&processes, &calls)?;
        let mut first = None;
        for process in processes {
            // All or nobody, as far as that can be told beforehand.
            if let Some(Membership { container, next }) = self.state().kernel.lookup(process.as_fd())?
                && let Some(id) = container.or(next)
            {
                return Err(TaskError::Governed(id).into());
            }
            first.get_or_insert(process);
        }
        let first = first.ok_or(PeerError::Gone)?;
        // Again: what was read before may have been anybody's doing since.
        let (mut compiled, context) = self.compile_running(&mut request, first.as_fd(), peer)?;
        egress::serve_held(&mut compiled, first.as_fd(), served)?;
        self.state().enroll_running(&request, compiled, context, &target, &first)
    }

    /// The policy of processes that run already, by what the first of them sees.
    fn compile_running(
        &self,
        request: &mut Request,
        first: BorrowedFd<'_>,
        peer: &Peer,
    ) -> Result<(Compiled, TaskContext), EnrollError> {
        let Process { pid, uids, .. } = Process::of(first)?;
        request.home = home::of(uids[0]);
        let (root, host_root) = enroll::root_of(pid)?;
        let mounts = enroll::mounts_of(pid)?;
        Process::of(first)?;
        let (dirs, past) = {
            let state = self.state();
            (state.dirs.clone(), if host_root { state.link_targets(peer.uid) } else { None })
        };
        let surroundings = Surroundings {
            outer: &[],
            root: root.as_fd(),
            mounts: Some(&mounts),
            dirs: &dirs,
            history: None,
            past: past.as_deref(),
        };
        let compiled = enroll::compile(request, surroundings)?;
        if !compiled.credentials.is_empty() {
            return Err(EnrollError::RunningCredentials(compiled.name));
        }
        Ok((compiled, TaskContext { inside: None, outer: Vec::new(), root, host_root, mounts }))
    }

    fn is_admin(&self, connection: BorrowedFd<'_>, peer: &Peer) -> Result<(), String> {
        if peer.uid != 0 {
            return Err("only root may ask this".into());
        }
        match self.state().kernel.belongs(connection, peer.pidfd.as_fd()) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err("a process in a container may not ask this".into()),
            Err(error) => Err(format!("cannot tell whether you are in a container: {}", chain(&error))),
        }
    }

    fn detach(&self) -> Result<Detached, String> {
        let mut state = self.state();
        let live = state.live();
        if !live.is_empty() {
            let list = live.join(", ");
            return Err(format!(
                "{} containers run and would be left without enforcement: {list}; end them first (`ringfence status` shows them)",
                live.len()
            ));
        }
        state.closed = true;
        let removed = unpin_all(&self.pins).map_err(|error| {
            format!("not everything could be detached: {}; stop the daemon and try again", chain(&error))
        })?;
        Ok(Detached { removed })
    }
}

/// Checks what is in a request, before anything is done with it.
fn request_of(
    profile: String,
    workdir: Option<String>,
    audit: bool,
    uid: u32,
) -> Result<Request, EnrollError> {
    let is_grant = profile.starts_with(enroll::GRANT);
    let most = if is_grant { MAX_REQUEST } else { MAX_PROFILE };
    if profile.is_empty() || profile.len() > most || profile.contains('\0') {
        return Err(EnrollError::BadName);
    }
    let Asked { profile: name, .. } = Asked::parse(&profile)?;
    if !is_grant && (name.contains('/') || name.ends_with(".toml")) && !name.starts_with('/') {
        return Err(EnrollError::RelativePath(name.to_owned()));
    }
    let workdir = workdir.map(PathBuf::from);
    if let Some(dir) = &workdir {
        let plain = dir.is_absolute() && !dir.components().any(|part| part == Component::ParentDir);
        if !plain || dir.as_os_str().len() > MAX_PROFILE {
            return Err(EnrollError::BadWorkdir(dir.clone()));
        }
    }
    Ok(Request { asked: profile, workdir, audit, uid, home: None })
}

fn reply<T: Serialize>(result: Result<T, String>) -> Reply<T> {
    match result {
        Ok(value) => Reply::Ok(value),
        Err(error) => Reply::Failed(Failure::new(error)),
    }
}

fn turn_away(stream: UnixStream, reason: &str) {
    if let Ok(answers) = stream.try_clone() {
        let _ = Conn::new(answers, BRIEF, MAX_REQUEST).send(&Reply::<()>::Failed(Failure::new(reason)));
    }
    discard(stream);
}

#[cfg(test)]
pub(crate) mod tests;
