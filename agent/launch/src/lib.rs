//! The launcher: puts a command in a container and stands in for it until it ends.
//!
//! | file | step |
//! |---|---|
//! | `identity`, `environment`, `command` | who runs what, with which environment |
//! | `plan` | what Landlock and seccomp enforce where eBPF does not |
//! | `proxy` | how hosts are reached by name there: the run's own worker; what it refused |
//! | `proxy_connect` | a client of that proxy for programs that know none, such as ssh |
//! | `credentials` | what the profile has put into requests: read, sealed, and kept from the command |
//! | `child` | the child's life before exec |
//! | `confine` | the filters and rules that the child puts on itself |
//! | `cgroup` | a cgroup, where one may be made |
//! | `request` | what to run, and how |
//! | `started` | the command, until it ends |
//! | `report`, `error` | what the launcher says about enforcement; why it did not run the command |
//!
//! The command's process group and terminal, its signals and its exit status are `ringfence-process` (`job`, `wait`).
//!
//! The launcher forks the child first and stops it on a socket; the core tags it by its pidfd; then the child confines
//! itself and calls exec, which begins its container. Any earlier failure ends the child: it never runs half confined.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod cgroup;
mod child;
mod command;
pub mod confine;
pub mod credentials;
mod environment;
mod error;
mod identity;
pub mod plan;
mod proxy;
pub mod proxy_connect;
mod report;
mod request;
mod started;

pub use environment::Variable;
pub use error::Error;
pub use request::{Endpoint, Request, Say, Tie};
pub use started::{NotRun, Started};

use cgroup::Cgroup;
use child::{READY, go};
use command::Command;
use confine::Confinement;
use credentials::Credentials;
use environment::Environment;
use identity::Identity;
use nix::{sys::signal::Signal, unistd};
use plan::{Enforcers, Plan};
use proxy::{Port, Proxy};
use report::{Holding, partial};
use ringfence_base::error::chain;
use ringfence_base::{
    client::{self, ClientError},
    paths::Paths,
    platform,
};
use ringfence_policy::{self as profile, CompileContext, Dirs, LandlockUse, Mode, Partial, Profile, Seccomp};
use ringfence_process::job::Job;
use ringfence_process::job::Streams;
use ringfence_process::spawn::{self, Child};
use ringfence_process::wait;
use ringfence_sandbox::{caps, host, seccomp};
use ringfence_wire::{message::Reporting, status::Mode as EnrolledMode};
use std::{
    cell::Cell,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
};

pub use command::{NOT_EXECUTABLE, NOT_FOUND};
/// Exit status where the launcher failed and the command did not run.
pub use ringfence_process::spawn::FAILED;

/// What is said where names are closed that a proxy could reach.
const BY_NAMES: &str =
    "`--accept-partial names` has them reached through a proxy of the run, and says what that leaves open";

/// The profile that is used when none is named.
const DEFAULT_PROFILE: &str = "shell";

/// Runs the command; its exit status as a shell has it: 128+n after signal n, 126 if it cannot be executed, 127 if it
/// is not found, [`FAILED`] if its confinement failed.
///
/// # Errors
/// [`Error`]: the command was not run.
pub fn run(request: &Request) -> Result<u8, Error> {
    start(request, Streams::Own)?.wait(|| {})
}

/// Takes the line on which the core takes reports about the run's container, with what it takes there, and the
/// container's public id.
pub type TakeLine<'a> = &'a dyn Fn((UnixStream, Reporting), &str);

/// Starts the command in its container and lets it go.
///
/// # Errors
/// [`Error`]: the command was not run.
pub fn start(request: &Request, streams: Streams) -> Result<Started, Error> {
    start_reporting(request, streams, None)
}

/// As [`start`]. Where the core holds the command and takes reports about its container, `take_line` has the line for them before
/// the command runs.
///
/// # Errors
/// [`Error`]: the command was not run.
pub fn start_reporting(
    request: &Request,
    streams: Streams,
    take_line: Option<TakeLine<'_>>,
) -> Result<Started, Error> {
    let release = host::release();
    if let Some(sentence) = platform::refusal(std::env::consts::OS, std::env::consts::ARCH, &release) {
        return Err(Error::Platform(sentence));
    }
    let dirs = Dirs::from_env();
    let profile = match &request.loaded {
        Some(loaded) => Profile::clone(loaded),
        None => load_profile(request.profile.as_deref(), &dirs)?,
    };
    let identity = request.user.as_deref().map(Identity::named).transpose()?;
    let profile = match &identity {
        Some(identity) => profile.at_home(profile::home::of(identity.uid.as_raw()).as_deref()),
        None => profile,
    };
    let profile = match &request.endpoint {
        Some(Endpoint { address, tie, .. }) => {
            let mut granted = profile;
            granted.grant_endpoint(*address);
            if let Some(tie) = tie {
                granted.grant_tie(&tie.name, Some(&tie.program));
            }
            granted
        }
        None => profile,
    };
    let workdir = workdir(request.workdir.as_deref())?;
    let (environment, unset) = if request.whole_environment {
        (Environment::whole(std::env::vars_os()), Vec::new())
    } else {
        Environment::build(std::env::vars_os(), &request.variables, identity.as_ref())
    };
    for name in unset {
        eprintln!("ringfence: --env {name}: not set here, so not passed on");
    }
    let named = if request.whole_environment { &[][..] } else { &request.variables };
    let (environment, kept) = environment.without_credentials(&profile, named);
    for name in kept {
        eprintln!(
            "ringfence: --env {name}: not passed on: the profile has this credential put into requests outside of the container"
        );
    }
    let command = Command::new(&request.words, &environment).ok_or(Error::Command)?;
    let audit = request.audit || profile.mode == Mode::Audit;

    let core = Core::find(&Paths::from_env())?;
    let launch = Launch {
        request,
        profile: &profile,
        workdir: &workdir,
        environment: &environment,
        identity,
        audit,
        take_line,
        proxy: Cell::new(None),
        is_proxied: false,
        credentials: None,
    };
    let (confinement, plan) = match &core {
        Core::There(_) => {
            let confinement = launch.beside_ebpf()?;
            // Before there is a child, which would have copies.
            let credentials = credentials::read(&profile, &dirs, &workdir)?;
            let launch = Launch { credentials, ..launch };
            return launch.start(&core, (confinement, None), &command, streams, &dirs);
        }
        Core::Away(why) => {
            let (confinement, plan, proxy) = launch.without_ebpf(why)?;
            if let Some(proxy) = proxy {
                let environment = environment.clone().led(proxy.variables(), named);
                let launch = Launch {
                    environment: &environment,
                    proxy: Cell::new(Some(proxy)),
                    is_proxied: true,
                    ..launch
                };
                return launch.start(&core, (confinement, Some(plan)), &command, streams, &dirs);
            }
            (confinement, Some(plan))
        }
    };
    launch.start(&core, (confinement, plan), &command, streams, &dirs)
}

/// Whether eBPF can hold the command.
enum Core {
    /// Its enrolment socket answers.
    There(PathBuf),
    /// It does not, or not to us; why.
    Away(String),
}

impl Core {
    /// Whether somebody listens. A daemon that then refuses is an error, never a reason to fall back.
    fn find(paths: &Paths) -> Result<Self, Error> {
        let socket = paths.enroll_socket();
        match client::probe(&socket) {
            Ok(()) => Ok(Core::There(socket)),
            Err(error) if error.is_no_daemon() || matches!(error, ClientError::NotPermitted { .. }) => {
                Ok(Core::Away(error.to_string()))
            }
            Err(error) => Err(Error::Enroll(error)),
        }
    }
}

/// One start of a command.
struct Launch<'a> {
    request: &'a Request,
    profile: &'a Profile,
    workdir: &'a Path,
    environment: &'a Environment,
    identity: Option<Identity>,
    audit: bool,
    take_line: Option<TakeLine<'a>>,
    /// Until the command has started.
    proxy: Cell<Option<Proxy>>,
    is_proxied: bool,
    /// What the core is handed.
    credentials: Option<Credentials>,
}

impl Launch<'_> {
    /// What the child adds where eBPF holds every axis.
    fn beside_ebpf(&self) -> Result<Confinement, Error> {
        let mut confinement = Confinement::with_capabilities(self.profile.kernel.capabilities);
        confinement.add_seccomp(&self.seccomp_policies()?)?;
        if self.profile.kernel.landlock == LandlockUse::Always {
            let mut policy = self.compile()?;
            if !self.profile.credentials.is_empty() {
                // Which directory there it is the core says once it has the child.
                policy.grant_read(&Paths::from_env().bundles(), "net.credentials");
            }
            let rules = plan::landlock_rules(&policy, &self.homes());
            confinement.landlock = rules.prepare(host::landlock_abi())?;
        }
        Ok(confinement)
    }

    /// What the child does where eBPF does not hold, if that is enough.
    fn without_ebpf(&self, why: &str) -> Result<(Confinement, Plan, Option<Proxy>), Error> {
        if self.audit {
            return Err(Error::AuditWithoutEbpf { why: why.into() });
        }
        let policy = self.compile()?;
        let kernel = &self.profile.kernel;
        let landlock_abi = if kernel.landlock == LandlockUse::Off { 0 } else { host::landlock_abi() };
        let accepted: Vec<Partial> =
            self.request.accepted.iter().chain(&kernel.accept_partial).copied().collect();
        let mut enforcers = Enforcers {
            landlock_abi,
            seccomp: kernel.seccomp != Seccomp::Off && host::seccomp(),
            open_unix: accepted.contains(&Partial::Unix),
            proxy: None,
        };
        let has_credentials = !self.profile.credentials.is_empty();
        let may_proxy = self.request.by_proxy && !policy.names.rules.is_empty() && enforcers.hold_a_proxy();
        // Whoever accepts the network alone accepted, before there was a proxy, that no name is reached, and nothing is opened for that.
        let is_closed = accepted.contains(&Partial::Net) && !accepted.contains(&Partial::Names);
        let is_proxied = may_proxy && !is_closed;
        let port = is_proxied.then(Port::open).transpose();
        let port = port.map_err(|error| Error::Proxy(format!("no port of loopback can be had: {error}")))?;
        enforcers.proxy = port.as_ref().map(Port::number);
        let mut plan = plan::without_ebpf(&policy, &self.homes(), enforcers);
        let home = plan::home(&policy, self.workdir, &self.all_homes());
        plan.parts.extend(home.clone());
        if may_proxy && is_closed {
            plan.closed.push(BY_NAMES.to_owned());
        }
        if has_credentials && !accepted.contains(&Partial::Net) {
            let hosts: Vec<&str> =
                self.profile.credentials.iter().map(|one| one.rules.host.as_str()).collect();
            let (profile, why, accept) = (self.profile.name.clone(), why.into(), with_net(plan.needed()));
            return Err(Error::NoDaemonForCredentials { profile, hosts: hosts.join(", "), why, accept });
        }
        if let Some(names) = plan.names.clone().filter(|_| !accepted.contains(&Partial::Net)) {
            let (profile, why, accept) = (self.profile.name.clone(), why.into(), plan.needed());
            return Err(Error::Names { profile, names, why, accept });
        }
        if plan.refused(&accepted).next().is_some() {
            let closed = (is_proxied && !accepted.contains(&Partial::Names)).then(|| {
                let mut closed =
                    plan::without_ebpf(&policy, &self.homes(), Enforcers { proxy: None, ..enforcers });
                closed.parts.extend(home);
                closed.needed()
            });
            let plan = (&plan, closed.as_deref());
            return Err(Error::Partial(partial(&self.profile.name, why, plan, &accepted)));
        }
        let mut confinement = Confinement::with_capabilities(self.profile.kernel.capabilities);
        if landlock_abi > 0 {
            confinement.landlock = plan.landlock.prepare(landlock_abi)?;
        }
        if enforcers.seccomp {
            let no_domain = confinement.landlock.is_none().then_some(seccomp::When::NoDomain);
            let applies: Vec<_> = plan.seccomp.iter().copied().chain(no_domain).collect();
            confinement.add_seccomp(&[seccomp::Policy::fallback_list(&applies)?])?;
            confinement.add_seccomp(&self.seccomp_policies()?)?;
        }
        let proxy = port.map(|port| Proxy::start(port, self.profile, policy.names, self.peer())).transpose();
        Ok((confinement, plan, proxy.map_err(Error::Proxy)?))
    }

    /// Whose the connections of the command are; `None`: it may become any user.
    fn peer(&self) -> Option<u32> {
        let uid = self.identity.as_ref().map_or_else(unistd::geteuid, |identity| identity.uid);
        let allowed = caps::effective_within(self.profile.kernel.capabilities.bits());
        (!uid.is_root() || !allowed.contains(&::caps::Capability::CAP_SETUID)).then(|| uid.as_raw())
    }

    /// Where a name at any depth is looked for: the home and the working directory.
    fn homes(&self) -> Vec<&Path> {
        let home = self.environment.value("HOME").map(Path::new).filter(|home| home.is_absolute());
        home.into_iter().chain([self.workdir]).collect()
    }

    /// Every directory that may be the home of who runs the command: the environment's word, and the user database's.
    fn all_homes(&self) -> Vec<PathBuf> {
        let user = match &self.identity {
            Some(identity) => Some(identity.home.clone()),
            None => unistd::User::from_uid(unistd::getuid()).ok().flatten().map(|user| user.dir),
        };
        let named = self.environment.value("HOME").map(PathBuf::from);
        let absolute = user.into_iter().chain(named).filter(|home| home.is_absolute());
        absolute.map(|home| home.canonicalize().unwrap_or(home)).collect()
    }

    fn compile(&self) -> Result<profile::compiled::CompiledPolicy, Error> {
        let context = CompileContext {
            audit_override: self.request.audit,
            ..CompileContext::new(Path::new("/"), Some(self.workdir.to_owned()))
        };
        self.profile.compile(&context).map_err(Error::Compile)
    }

    /// The profile's own filters, in the order in which they are loaded.
    fn seccomp_policies(&self) -> Result<Vec<seccomp::Policy>, Error> {
        let policies = match &self.profile.kernel.seccomp {
            Seccomp::Off => Vec::new(),
            Seccomp::Default => seccomp::Policy::default_lists()?,
            Seccomp::Strict => seccomp::Policy::strict_lists()?,
            Seccomp::File(path) => {
                let capabilities = match &self.identity {
                    Some(identity) if !identity.uid.is_root() => Default::default(),
                    _ => caps::effective_within(self.profile.kernel.capabilities.bits()),
                };
                let kernel = platform::version(&host::release()).unwrap_or_default();
                vec![seccomp::Policy::from_oci(path, &seccomp::Conditions { kernel, capabilities })?]
            }
        };
        for notice in policies.iter().flat_map(|policy| &policy.notices) {
            eprintln!("ringfence: {notice}");
        }
        Ok(policies)
    }

    /// Forks, enrols, lets the child go.
    fn start(
        &self,
        core: &Core,
        (confinement, plan): (Confinement, Option<Plan>),
        command: &Command,
        streams: Streams,
        dirs: &Dirs,
    ) -> Result<Started, Error> {
        let missing = confinement.missing().to_vec();
        let (ours, theirs) = UnixStream::pair().map_err(Error::Handshake)?;
        let ours = Cell::new(Some(ours));
        wait::reset_sigchld()?;
        let signals = wait::Signals::block()?;
        let job = Job::new(&streams);
        let cgroup = Cgroup::make(&format!("{}-{}", cgroup::plain(&self.profile.name), std::process::id()));
        tracing::debug!(?cgroup, "cgroup of the container");
        let cgroup = cgroup.ok();
        let child = spawn::spawn(cgroup.as_ref().map(AsFd::as_fd), || {
            // The child's copy of the launcher's end: without it, the death of the launcher ends the conversation.
            drop(ours.take());
            self.in_child(theirs, (&signals, &job), confinement, streams, command)
        });
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                cgroup.into_iter().for_each(Cgroup::leave);
                return Err(error.into());
            }
        };

        // The child says when it has become the user; its end of the socket closes if it could not.
        let mut ready = [0];
        let mut ours = ours.into_inner().ok_or_else(|| Error::Handshake(io::ErrorKind::BrokenPipe.into()))?;
        let early = match ours.read_exact(&mut ready) {
            Ok(()) if ready == [READY] => None,
            Ok(()) => Some(ready.to_vec()),
            Err(_) => Some(Vec::new()),
        };
        if early.is_some() {
            let (profile, enforcement) = (self.profile.name.clone(), String::new());
            let (container, lines) = (None, Vec::new());
            let socket = ours;
            return Ok(Started {
                child,
                job,
                signals,
                cgroup,
                socket,
                early,
                proxy: None,
                profile,
                container,
                enforcement,
                lines,
            });
        }
        let (container, confine, bundle) = match core {
            Core::There(socket) => match self.enroll(socket, &child, dirs) {
                Ok(enrolled) => {
                    (Some(enrolled.container), enrolled.mode != EnrolledMode::Audit, enrolled.bundle)
                }
                Err(error) => {
                    drop(ours);
                    let _ = nix::sys::signal::kill(child.pid(), Signal::SIGKILL);
                    let _ = signals.wait(&child, Some(&job));
                    cgroup.into_iter().for_each(Cgroup::leave);
                    return Err(error);
                }
            },
            Core::Away(_) => (None, true, None),
        };
        let holding = match (&container, &plan) {
            (Some(container), _) => Some(Holding::Kernel { container, audit: !confine }),
            (None, plan) => plan.as_ref().map(Holding::Others),
        };
        let said = holding
            .map(|holding| (holding.enforcement(), report::lines(&self.profile.name, &holding, &missing)));
        let (enforcement, lines) = said.unwrap_or_default();
        let closed = lines.len().saturating_sub(1);
        let said = match self.request.say {
            Say::Nothing => 0,
            Say::Closed => closed,
            Say::All => lines.len(),
        };
        // What enforces is the first of them.
        for line in lines.iter().skip(lines.len() - said) {
            eprintln!("ringfence: {line}");
        }
        job.begin(&child);
        // A child that is gone already is found by waiting for it.
        let _ = ours.write_all(&go(confine, bundle.as_deref()));
        let (socket, profile) = (ours, self.profile.name.clone());
        let mut proxy = self.proxy.take();
        proxy.as_mut().into_iter().for_each(Proxy::watch);
        Ok(Started {
            child,
            job,
            signals,
            cgroup,
            socket,
            early,
            proxy,
            profile,
            container,
            enforcement,
            lines,
        })
    }

    fn enroll(
        &self,
        socket: &Path,
        child: &Child,
        dirs: &Dirs,
    ) -> Result<ringfence_wire::message::Enrolled, Error> {
        // By name where the core finds the same file by it; else by path, which the core takes from root alone.
        let file = self.profile.file.to_string_lossy();
        let profile = if self.profile.is_by_name(dirs) { self.profile.name.as_str() } else { file.as_ref() };
        let (workdir, audit) = (Some(self.workdir), self.request.audit);
        let endpoint = self.request.endpoint.as_ref().map(|Endpoint { address, listener, tie }| {
            let tie = tie.as_ref().map(|tie| (tie.name.as_str(), tie.listener.as_fd()));
            client::EndpointSockets { address: *address, listener: listener.as_fd(), tie }
        });
        let beside = client::Beside {
            endpoint,
            credentials: self.credentials.as_ref().map_or(&[], |credentials| &credentials.sealed),
            trusted: self.credentials.as_ref().map(|credentials| credentials.trusted.as_fd()),
        };
        // Its programs would trust nobody.
        let is_whole = |enrolled: &ringfence_wire::message::Enrolled| {
            if self.credentials.is_some() && enrolled.bundle.is_none() {
                Err(Error::OldDaemon)
            } else {
                Ok(())
            }
        };
        let Some(take_line) = self.take_line else {
            let enrolled = client::enroll(socket, child.as_fd(), profile, workdir, audit, beside);
            let enrolled = enrolled.map_err(Error::Enroll)?;
            return is_whole(&enrolled).map(|()| enrolled);
        };
        let (enrolled, line) =
            client::enroll_reporting(socket, child.as_fd(), profile, workdir, audit, beside)
                .map_err(Error::Enroll)?;
        is_whole(&enrolled)?;
        match line {
            Ok(line) => take_line(line, &enrolled.container),
            // A daemon of before there were lines, or too many: the container holds all the same.
            Err(error) => tracing::debug!("nothing is reported of this run: {}", chain(&error)),
        }
        Ok(enrolled)
    }
}

/// All that has to be accepted, the network among it.
fn with_net(needed: String) -> String {
    let net = Partial::Net.name();
    match needed.split(',').any(|part| part == net) {
        true => needed,
        false if needed.is_empty() => net.to_owned(),
        false => format!("{needed},{net}"),
    }
}

fn load_profile(name: Option<&str>, dirs: &Dirs) -> Result<Profile, Error> {
    if name.is_none() && !dirs.names().iter().any(|known| known == DEFAULT_PROFILE) {
        return Err(Error::NoProfile(dirs.names()));
    }
    profile::load(name.unwrap_or(DEFAULT_PROFILE), dirs).map_err(Error::Profile)
}

fn workdir(named: Option<&Path>) -> Result<PathBuf, Error> {
    let path = named.unwrap_or(Path::new("."));
    let error = |source| Error::Workdir { path: path.to_owned(), source };
    let path = path.canonicalize().map_err(error)?;
    if path.is_dir() { Ok(path) } else { Err(error(io::Error::from(io::ErrorKind::NotADirectory))) }
}
