//! `ringfence daemon`, from start to stop: takes the lock, loads or adopts, drops privileges, opens the sockets, waits.
//!
//! A step that fails ends the start with an error that says what to do; what was in force before stays in force.

use super::{
    agents::{Agents, Store},
    auditor_role::{AUDIT_USER, AuditorRole},
    containers::{Registry, RegistryError, random_hex},
    egress::Opener,
    enforcer::Enforcer,
    link::{Handle, Link},
    notify::Notifier,
    peer_resolver,
    server::{Server, SocketKind},
    state::State,
    status::About,
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        resource::{Resource, getrlimit, setrlimit},
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        stat::{Mode, umask},
        time::TimeSpec,
    },
    unistd::{Gid, Group, User, geteuid},
};
use ringfence_base::{clock, closing, loopback, precedence};
use ringfence_base::{
    error::chain,
    lock::{Lock, LockError},
    paths::Paths,
    watch::Watch,
};
use ringfence_bpf::{self as kernel, ContainerId, Kernel, LoadError};
use ringfence_files::Dir;
use ringfence_policy::Dirs;
use ringfence_sandbox::caps;
use std::{
    cell::Cell,
    fs, io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The group whose members may use the enrolment socket.
pub const GROUP: &str = "ringfence";

/// How often counters and profiles' files are looked at and containers without a task are ended.
const TICK: Duration = Duration::from_secs(1);
/// How long files must be left alone before profiles are read again, and how long that can be put off.
const QUIET: Duration = Duration::from_millis(200);
const PUT_OFF: Duration = Duration::from_secs(2);

/// Why the daemon cannot start.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// Not root.
    #[error("the daemon loads programs into the kernel and needs root; start it with sudo or systemd")]
    NotRoot,
    /// The auditor has nobody to be.
    #[error("there is no user `{AUDIT_USER}`, whom the auditor runs as; `ringfence install` makes it")]
    NoUser,
    /// A file or directory of ours cannot be used.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A system call that does not fail on a healthy host.
    #[error("cannot {what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another daemon.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The kernel's side.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The containers' records.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// Privileges.
    #[error("cannot give up privileges")]
    Caps(#[from] caps::Error),
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> DaemonError {
    let path = path.to_owned();
    move |source| DaemonError::File { what, path, source }
}

fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> DaemonError {
    move |source| DaemonError::System { what, source: source.into() }
}

/// The sockets.
struct Sockets {
    admin: UnixListener,
    enroll: UnixListener,
    query: UnixListener,
    mcp: UnixListener,
}

/// Runs until SIGTERM, SIGINT or a detach. Enforcement goes on after all but the last. `port` is what the dashboard has
/// on loopback, if it is free; `handed` what the service manager handed over.
///
/// # Errors
/// [`DaemonError`], before anything was changed for containers that run.
pub fn run(paths: &Paths, port: u16, handed: Vec<(String, OwnedFd)>) -> Result<(), DaemonError> {
    if !geteuid().is_root() {
        return Err(DaemonError::NotRoot);
    }
    let since = clock::now_micros();
    precedence::core();
    umask(Mode::from_bits_truncate(0o077));
    make_dir(&paths.runtime, 0o755)?;
    let _lock = Lock::take(&paths.runtime.join("daemon.lock"))?;
    let user = User::from_name(AUDIT_USER).map_err(system("look up users"))?.ok_or(DaemonError::NoUser)?;
    make_state_dir(&paths.state, &user)?;
    raise_file_limit();
    let signals = block_signals()?;

    let (kernel, rings) = Kernel::load_or_adopt(&paths.pins)?;
    let about = About::new(kernel.coverage(), since);
    log_loaded(&kernel, &about);

    let boot = boot_id()?;
    let session = random_hex::<8>().map_err(system("read random bytes"))?;
    let (registry, damaged) = Registry::open(&paths.containers(), &boot)?;
    for error in &damaged {
        tracing::error!("{}", chain(error));
    }
    let sockets = open_sockets(paths)?;
    let dashboard = listen_for_dashboard(port);
    let handle = Handle::new().map_err(system("make an event descriptor"))?;
    let detached = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(system("make an event descriptor"))?;

    // From here on with few capabilities; threads come after, since dropping is a thread's.
    caps::retain(caps::CORE)?;
    caps::doze(caps::ENTERING)?;
    caps::not_dumpable()?;
    closing::prepare();

    let query = sockets.query.try_clone().map_err(system("duplicate the query socket"))?;
    let mcp = sockets.mcp.try_clone().map_err(system("duplicate the socket of MCP sessions"))?;
    let (peers, auditors) = sync_channel(4);
    let auditor = AuditorRole { user, state: paths.state.clone(), query, mcp, dashboard, peers };
    let link = Link::new(handle.clone(), rings, auditor, session, boot.clone());
    let opener = Opener::new(paths);
    let mut state = State::adopt(kernel, registry, handle.clone(), opener, Dirs::system(), boot);
    state.adopt_names();
    // Before they are read, so that a change right after that is seen.
    let mut watch = Watch::default();
    watch.look(&state.profile_dirs());
    state.reload();
    let server =
        Server::new(state, about, paths.pins.clone(), detached, Agents::new(Store::from_env(handed)));
    let linking = thread::Builder::new()
        .name("records".into())
        .spawn(move || {
            precedence::first();
            link.run();
        })
        .map_err(system("start a thread"))?;

    thread::Builder::new()
        .name("peers".into())
        .spawn({
            let server = Arc::clone(&server);
            move || peer_resolver::serve(&server, &auditors)
        })
        .map_err(system("start a thread"))?;

    server.agents().reload(&server, paths, &Dirs::system());
    let wishes = start_reloader(&server, paths)?;
    let mut notifier = Notifier::from_env();
    notifier.ready();
    tracing::info!("ready; sockets in {}", paths.runtime.display());
    let why = Loop {
        server: &server,
        sockets: &sockets,
        signals: &signals,
        watch,
        wishes,
        notifier: &mut notifier,
    }
    .run();
    notifier.stopping();
    let is_signalled = from_then_on(|| is_to_end(&signals));
    server.agents().stop(matches!(why, Stop::Signal(_)), &is_signalled);
    server.state().stop_names(&is_signalled);
    for path in [paths.admin_socket(), paths.enroll_socket(), paths.query_socket(), paths.mcp_socket()] {
        let _ = fs::remove_file(path);
    }
    // Not closed before the process ends: whoever waits in their queues may have sent what takes long to close.
    std::mem::forget(sockets);
    handle.stop();
    if !is_linked_to_end(&linking, is_signalled) {
        tracing::info!(
            "stopping at once: the auditor ends by itself; what it did not store it reads from journals and the kernel again"
        );
    } else if linking.join().is_err() {
        tracing::error!("the thread that copies records had failed; records wait in the kernel");
    }
    match why {
        Stop::Signal(signal) => {
            tracing::info!("stopped by {signal}; containers stay enforced, and a new daemon adopts them");
        }
        Stop::Detached => tracing::info!("everything was detached; nothing is enforced any more"),
    }
    Ok(())
}

fn log_loaded(kernel: &Kernel, about: &About) {
    let coverage = kernel.coverage();
    let how = if coverage.adopted { "adopted what an earlier daemon loaded" } else { "programs loaded" };
    tracing::info!(
        "{how}: {} hooks; held by the kernel: {}",
        coverage.attached.len(),
        about.held().join(", ")
    );
    for hook in &coverage.missing {
        tracing::warn!("this kernel has no hook {}: {}", hook.name, hook.without);
    }
    if !coverage.unknown.is_empty() {
        tracing::warn!(
            "this kernel has hooks and system calls that this version does not know ({}); `ringfence doctor` says what \
             becomes of them",
            [coverage.unknown.hooks.join(", "), coverage.unknown.calls.join(", ")].join("; ")
        );
    }
}

/// Reads profiles again in a thread of its own, however often that is wished for: between two times it leaves the state
/// to others for as long as it had it, so that nobody who wants to enrol a task waits for ever.
fn start_reloader<E: Enforcer>(
    server: &Arc<Server<E>>,
    paths: &Paths,
) -> Result<SyncSender<&'static str>, DaemonError> {
    let (sender, wishes) = sync_channel(1);
    let (server, paths) = (server.clone(), paths.clone());
    let run = move || {
        let mut notifier = Notifier::from_env();
        while let Ok(why) = wishes.recv() {
            tracing::info!("reading profiles again: {why}");
            let began = Instant::now();
            notifier.reloading();
            server.state().reload();
            server.agents().reload(&server, &paths, &Dirs::system());
            notifier.ready();
            thread::sleep(QUIET.max(began.elapsed()));
        }
    };
    thread::Builder::new().name("profiles".into()).spawn(run).map_err(system("start a thread"))?;
    Ok(sender)
}

/// How long an end may take before it is explained, and how often it is looked at.
const SILENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(20);

/// Waits until the thread that copies records has ended, and with it the auditor. False: another signal came first.
fn is_linked_to_end(linking: &thread::JoinHandle<()>, is_signalled: impl Fn() -> bool) -> bool {
    let (begun, mut is_said) = (Instant::now(), false);
    while !linking.is_finished() {
        if !is_said && begun.elapsed() >= SILENCE {
            is_said = true;
            tracing::info!("waiting for the auditor to store what it has; a second signal ends this at once");
        }
        if is_signalled() {
            return false;
        }
        thread::sleep(LOOK);
    }
    true
}

/// What is true from the first time on that `asked` says so: one signal cuts off all that is still waited for.
fn from_then_on(asked: impl Fn() -> bool) -> impl Fn() -> bool {
    let is_so = Cell::new(false);
    move || {
        is_so.set(is_so.get() || asked());
        is_so.get()
    }
}

/// Whether a signal came that ends the daemon.
fn is_to_end(signals: &SignalFd) -> bool {
    let mut ends = false;
    while let Ok(Some(info)) = signals.read_signal() {
        ends |= !matches!(Signal::try_from(info.ssi_signo as i32), Ok(Signal::SIGHUP));
    }
    ends
}

/// Why the daemon ends.
enum Stop {
    Signal(Signal),
    Detached,
}

/// The main thread's loop.
struct Loop<'a, E> {
    server: &'a Arc<Server<E>>,
    sockets: &'a Sockets,
    signals: &'a SignalFd,
    watch: Watch,
    wishes: SyncSender<&'static str>,
    notifier: &'a mut Notifier,
}

impl<E: Enforcer> Loop<'_, E> {
    fn run(mut self) -> Stop {
        let mut tick = Instant::now();
        let mut changed: Option<(Instant, Instant)> = None;
        loop {
            if tick <= Instant::now() {
                tick = Instant::now() + TICK;
                self.server.state().sweep();
                if changed.is_none() && self.have_profiles_changed() {
                    changed = Some((Instant::now(), Instant::now()));
                }
                self.notifier.alive();
            }
            if let Some((first, last)) = changed
                && last.elapsed() >= QUIET
            {
                // Somebody may still be writing.
                if first.elapsed() < PUT_OFF && self.have_profiles_changed() {
                    changed = Some((first, Instant::now()));
                } else {
                    changed = None;
                    self.reload("a profile's file changed");
                }
            }
            let wait = match changed {
                Some(_) => QUIET,
                None => tick.saturating_duration_since(Instant::now()),
            };
            let [signal, admin, enroll, detached] = self.wait(wait);
            if detached {
                return Stop::Detached;
            }
            if signal {
                while let Ok(Some(info)) = self.signals.read_signal() {
                    match Signal::try_from(info.ssi_signo as i32) {
                        Ok(Signal::SIGHUP) => {
                            self.server.agents().resume_halted();
                            self.reload("SIGHUP");
                        }
                        Ok(signal) => return Stop::Signal(signal),
                        Err(_) => {}
                    }
                }
            }
            for (readable, listener, socket) in [
                (admin, &self.sockets.admin, SocketKind::Admin),
                (enroll, &self.sockets.enroll, SocketKind::Enroll),
            ] {
                if readable {
                    self.accept(listener, socket);
                }
            }
        }
    }

    /// Waits until something is readable, in the order of the result.
    fn wait(&self, wait: Duration) -> [bool; 4] {
        let (admin, enroll) = (self.sockets.admin.as_fd(), self.sockets.enroll.as_fd());
        let mut polled = [self.signals.as_fd(), admin, enroll, self.server.detached().as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        match ppoll(&mut polled, Some(TimeSpec::from_duration(wait)), None) {
            Ok(_) => polled.map(|fd| fd.any() != Some(false)),
            Err(error) => {
                if error != Errno::EINTR {
                    tracing::error!("poll failed: {}", io::Error::from(error));
                    thread::sleep(Duration::from_millis(100));
                }
                [false; 4]
            }
        }
    }

    fn have_profiles_changed(&mut self) -> bool {
        let dirs = self.server.state().profile_dirs();
        self.watch.look(&dirs)
    }

    fn reload(&self, why: &'static str) {
        // Full: one is due already, and will see this change, too.
        let _ = self.wishes.try_send(why);
    }

    fn accept(&self, listener: &UnixListener, socket: SocketKind) {
        match listener.accept() {
            Ok((stream, _)) => self.server.serve(stream, socket),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // No descriptors left, most likely: the connection waits, and so do we, rather than spin.
                tracing::error!("cannot accept a connection: {error}");
                thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// This boot's name: containers and their ids end with it.
fn boot_id() -> Result<String, DaemonError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    Ok(fs::read_to_string(path).map_err(file("read", path))?.trim().to_owned())
}

fn make_dir(path: &Path, mode: u32) -> Result<(), DaemonError> {
    let dir = Dir::make_trusted(path, mode).map_err(file("make", path))?;
    dir.require_own().map_err(file("use", path))?;
    dir.set_mode(mode).map_err(file("set the mode of", path))
}

/// The auditor's directory, its own and nobody else's.
fn make_state_dir(path: &Path, user: &User) -> Result<(), DaemonError> {
    let dir = Dir::make_trusted(path, 0o700).map_err(file("make", path))?;
    dir.set_mode(0o700).map_err(file("set the mode of", path))?;
    if dir.meta().map_err(file("read", path))?.uid == user.uid.as_raw() {
        return Ok(());
    }
    dir.set_owner(user.uid.as_raw(), user.gid.as_raw()).map_err(file("chown", path))
}

fn open_sockets(paths: &Paths) -> Result<Sockets, DaemonError> {
    let group = Group::from_name(GROUP).map_err(system("look up groups"))?.map(|group| group.gid);
    if group.is_none() {
        tracing::warn!(
            "there is no group `{GROUP}`: only root can start containers; `ringfence install` makes it"
        );
    }
    Ok(Sockets {
        admin: listen(&paths.admin_socket(), 0o600, None)?,
        enroll: listen(&paths.enroll_socket(), if group.is_some() { 0o660 } else { 0o600 }, group)?,
        query: listen(&paths.query_socket(), 0o666, None)?,
        // Everybody may have sessions on record; who sees and decides what is the auditor's to know, by the uid.
        mcp: listen(&paths.mcp_socket(), 0o666, None)?,
    })
}

/// The dashboard's socket. Without one everything else works, and `ringfence dashboard` says that there is none.
fn listen_for_dashboard(port: u16) -> Option<TcpListener> {
    let bound = loopback::bind(port).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?.port(), listener))
    });
    match bound {
        Ok((got, listener)) => {
            if port != 0 && got != port {
                tracing::warn!("port {port} is taken; the dashboard is on port {got}");
            }
            Some(listener)
        }
        Err(error) => {
            tracing::error!("there is no dashboard: no port of 127.0.0.1 can be had: {error}");
            None
        }
    }
}

/// A listening socket; one that an earlier daemon left is replaced: we have the lock.
fn listen(path: &Path, mode: u32, group: Option<Gid>) -> Result<UnixListener, DaemonError> {
    let (dir, name) = Dir::of(path).map_err(file("listen on", path))?;
    dir.remove(&name).map_err(file("replace", path))?;
    // The umask keeps everybody out until the mode is set.
    let (listener, socket) = dir.bind(&name).map_err(file("listen on", path))?;
    if let Some(group) = group {
        socket.set_owner(geteuid().as_raw(), group.as_raw()).map_err(file("chown", path))?;
    }
    socket.set_mode(mode).map_err(file("set the mode of", path))?;
    listener.set_nonblocking(true).map_err(system("make a socket non-blocking"))?;
    Ok(listener)
}

/// Signals come by a descriptor; children get an empty mask again from the standard library.
fn block_signals() -> Result<SignalFd, DaemonError> {
    let mask = SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP]);
    mask.thread_block().map_err(system("block signals"))?;
    SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(system("receive signals"))
}

/// Two descriptors for each container; the usual soft limit is 1024.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard.min(65_536), hard));
    if let Err(error) = raised {
        tracing::warn!("cannot raise the limit of open files: {error}");
    }
}

/// Detaches and unpins everything where no daemon runs, if no container does.
///
/// # Errors
/// If a daemon runs, a container runs, or something cannot be removed.
pub fn detach_without_daemon(paths: &Paths) -> Result<Result<u32, Vec<String>>, DaemonError> {
    if !geteuid().is_root() {
        return Err(DaemonError::NotRoot);
    }
    if !paths.pins.exists() {
        return Ok(Ok(0));
    }
    make_dir(&paths.runtime, 0o755)?;
    let _lock = Lock::take(&paths.runtime.join("daemon.lock"))?;
    let (kernel, rings) = Kernel::load_or_adopt(&paths.pins)?;
    let running = kernel
        .containers()
        .into_iter()
        .filter(|id| kernel.counters(*id).map_or(true, |counters| counters.tasks > 0));
    let (registry, _) = Registry::open(&paths.containers(), &boot_id()?)?;
    let label =
        |id: ContainerId| registry.by_kernel_id(id.raw()).map_or(id.to_string(), |c| c.record.label());
    let running: Vec<String> = running.map(label).collect();
    if !running.is_empty() {
        return Ok(Err(running));
    }
    drop((kernel, rings));
    Ok(Ok(kernel::unpin_all(&paths.pins).map_err(LoadError::from)?))
}

#[cfg(test)]
mod tests {
    use super::{Cell, from_then_on};

    #[test]
    fn one_signal_cuts_off_all_that_is_waited_for() {
        // As a descriptor of signals: each is read once.
        let signals = Cell::new(0);
        let is_signalled = from_then_on(|| signals.replace(0) > 0);
        assert!(!is_signalled() && !is_signalled());
        signals.set(1);
        assert!(is_signalled(), "the agents");
        assert!(is_signalled(), "and the auditor, for which nobody signals again");
    }
}
