//! What the kernel does for the gate: a tool's processes are started from a thread that has put the grant on itself.
//!
//! Landlock domains and system call filters belong to threads and are inherited by what a thread starts, so that nothing
//! has to be done between fork and exec, and the cost is the thread's, once. Where eBPF holds the grant (`enroll`) the
//! thread adds the list of calls that no agent needs, and no Landlock: eBPF is exact, and leaves events.

use ringfence_base::platform;
use ringfence_grant::{Grant, Scope};
use ringfence_launch::{
    confine::{ConfineError, Confinement},
    plan::{self, Enforcers, Held},
};
use ringfence_policy::{Axis, CompileContext, CompileErrors, Mode, Partial, Profile, Seccomp};
use ringfence_sandbox::{caps, host, landlock, seccomp};
use ringfence_tools::spawn::{self, Child, Enforcement, Enforcer, ProcessSpec, Running, Spawner};
use std::{
    env, io,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
};

/// Starts that wait for the thread.
const WAITING: usize = 64;

/// Why tools cannot be held by the kernel. They do not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The grant, as the kernel would have it.
    #[error("the kernel cannot hold this grant: {0}")]
    Compile(CompileErrors),
    /// Landlock's ruleset.
    #[error(transparent)]
    Landlock(#[from] landlock::Error),
    /// A filter's text.
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    /// Putting them in force.
    #[error(transparent)]
    Confine(#[from] ConfineError),
    /// As above, by what the launcher shares.
    #[error(transparent)]
    Launch(#[from] ringfence_launch::Error),
    /// No thread.
    #[error("cannot start the thread that starts tools")]
    Thread(#[source] io::Error),
    /// The thread ended.
    #[error("the thread that starts tools ended")]
    Ended,
}

/// One start, and where its outcome goes.
struct Job {
    spec: ProcessSpec,
    outcome: SyncSender<io::Result<Child>>,
}

/// Starts processes under the session's grant.
pub struct HostSpawner {
    session: Grant,
    enforcement: Enforcement,
    queue: SyncSender<Job>,
    /// For the file tools, which run in this process.
    landlock: Option<landlock::Prepared>,
}

/// What the thread puts on itself.
struct Restrictions {
    landlock: Option<landlock::Prepared>,
    policies: Vec<seccomp::Policy>,
}

impl HostSpawner {
    /// Prepares everything and starts the thread. With `by_ebpf` everything that this process starts is governed
    /// already. Also returns what is held by what, for people.
    ///
    /// # Errors
    /// [`Error`]; nothing may be started then.
    pub fn new(
        profile: &Profile,
        session: &Grant,
        workdir: &Path,
        by_ebpf: bool,
    ) -> Result<(Self, Vec<String>), Error> {
        let context = CompileContext::new(Path::new("/"), Some(workdir.to_owned()));
        let policy = profile.compile(&context).map_err(Error::Compile)?;
        let home = env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let homes: Vec<&Path> = home.as_deref().into_iter().chain([workdir]).collect();
        let enforcers = Enforcers {
            landlock_abi: host::landlock_abi(),
            seccomp: host::seccomp(),
            open_unix: profile.kernel.accept_partial.contains(&Partial::Unix),
            proxy: None,
        };
        let plan = plan::without_ebpf(&policy, &homes, enforcers);
        let audit = profile.mode == Mode::Audit;
        let prepare = || plan.landlock.prepare(enforcers.landlock_abi);
        let landlock = if enforcers.landlock_abi > 0 && !audit { prepare()? } else { None };
        let mut restrictions = Restrictions { landlock: None, policies: Vec::new() };
        if !audit && enforcers.seccomp {
            restrictions.policies = own_policies(&profile.kernel.seccomp)?;
        }
        if !audit && !by_ebpf {
            restrictions.landlock =
                landlock.as_ref().map(landlock::Prepared::try_clone).transpose().map_err(Error::Thread)?;
            if enforcers.seccomp {
                let no_domain = landlock.is_none().then_some(seccomp::When::NoDomain);
                let no_udp = (session.net != Scope::All).then_some(seccomp::When::NoUdp);
                let applies: Vec<_> = plan.seccomp.iter().copied().chain(no_domain).chain(no_udp).collect();
                restrictions.policies.insert(0, seccomp::Policy::fallback_list(&applies)?);
            }
        }
        let enforcer = |axis: Axis, unrestricted: bool| match (unrestricted, by_ebpf) {
            (true, _) => Enforcer::None,
            _ if audit => Enforcer::Gate,
            (_, true) => Enforcer::Kernel,
            _ if plan
                .parts
                .iter()
                .filter(|held| held.part.axis() == Some(axis))
                .all(Held::holds_the_grant) =>
            {
                Enforcer::Kernel
            }
            _ => Enforcer::Gate,
        };
        let enforcement = Enforcement {
            exec: enforcer(Axis::Exec, session.exec == Scope::All),
            fs_read: enforcer(Axis::FsRead, session.fs_read == Scope::All),
            fs_write: enforcer(Axis::FsWrite, session.fs_write == Scope::All),
            net: enforcer(Axis::Net, session.net == Scope::All),
        };
        let lines =
            if by_ebpf { vec!["every axis: held by eBPF".into()] } else { lines(&plan.parts, &plan.closed) };
        let queue = start(restrictions)?;
        Ok((Self { session: session.clone(), enforcement, queue, landlock }, lines))
    }
}

fn lines(parts: &[Held], closed: &[String]) -> Vec<String> {
    parts.iter().map(ToString::to_string).chain(closed.iter().cloned()).collect()
}

/// The calls that no agent needs, always; and what the profile adds.
fn own_policies(wanted: &Seccomp) -> Result<Vec<seccomp::Policy>, seccomp::Error> {
    match wanted {
        Seccomp::Default | Seccomp::Off => seccomp::Policy::default_lists(),
        Seccomp::Strict => seccomp::Policy::strict_lists(),
        Seccomp::File(path) => {
            let kernel = platform::version(&host::release()).unwrap_or_default();
            let conditions = seccomp::Conditions { kernel, capabilities: caps::effective() };
            let file = seccomp::Policy::from_oci(path, &conditions)?;
            Ok(seccomp::Policy::default_lists()?.into_iter().chain([file]).collect())
        }
    }
}

/// Starts the thread, and waits until it is confined.
fn start(restrictions: Restrictions) -> Result<SyncSender<Job>, Error> {
    let (queue, jobs) = sync_channel(WAITING);
    let (ready, is_ready) = sync_channel(1);
    let work = move || {
        let confined = confine(restrictions);
        let holds = confined.is_ok();
        if ready.send(confined).is_ok() && holds {
            serve(&jobs);
        }
    };
    thread::Builder::new().name("starter".into()).spawn(work).map_err(Error::Thread)?;
    is_ready.recv().map_err(|_| Error::Ended)??;
    Ok(queue)
}

fn confine(Restrictions { landlock, policies }: Restrictions) -> Result<(), Error> {
    let mut confinement = Confinement::default();
    confinement.landlock = landlock;
    confinement.add_seccomp(&policies)?;
    caps::retain_in_this_thread(caps::TOOLS).map_err(ConfineError::from)?;
    Ok(confinement.enforce()?)
}

/// Held while a process is being started.
static STARTING: Mutex<()> = Mutex::new(());

/// As long as this is held, no process is started. One that is being started is waited for.
pub(crate) fn hold_starts() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(jobs: &Receiver<Job>) {
    for Job { spec, outcome } in jobs {
        let starting = hold_starts();
        let started = spawn::start(spec);
        drop(starting);
        // Whoever asked waits for it.
        let _ = outcome.send(started);
    }
}

impl Spawner for HostSpawner {
    fn spawn(&self, _: &Grant, spec: ProcessSpec) -> io::Result<Box<dyn Running>> {
        let (outcome, started) = sync_channel(1);
        let ended = || io::Error::other("the thread that starts tools ended");
        self.queue.send(Job { spec, outcome }).map_err(|_| ended())?;
        Ok(Box::new(started.recv().map_err(|_| ended())??))
    }

    fn within(&self, _: &Grant, work: &mut (dyn FnMut() + Send)) -> io::Result<()> {
        let Some(landlock) = &self.landlock else {
            work();
            return Ok(());
        };
        let landlock = landlock.try_clone()?;
        thread::scope(|scope| {
            let confined = move || landlock.enforce().map(|()| work()).map_err(io::Error::other);
            let thread = thread::Builder::new().name("files".into()).spawn_scoped(scope, confined)?;
            thread.join().map_err(|_| io::Error::other("the tool ended in a panic"))?
        })
    }

    /// What holds the session's grant; an axis of which a call has less is the gate's.
    fn enforcement(&self, grant: &Grant) -> Enforcement {
        let by_gate = Enforcement::by_gate(grant);
        let one = |same: bool, session: Enforcer, gate: Enforcer| if same { session } else { gate };
        Enforcement {
            exec: one(grant.exec == self.session.exec, self.enforcement.exec, by_gate.exec),
            fs_read: one(grant.fs_read == self.session.fs_read, self.enforcement.fs_read, by_gate.fs_read),
            fs_write: one(
                grant.fs_write == self.session.fs_write,
                self.enforcement.fs_write,
                by_gate.fs_write,
            ),
            net: one(grant.net == self.session.net, self.enforcement.net, by_gate.net),
        }
    }
}
