//! Enrolment: who may put which task under which profile. Everything here is decided before the task is tagged; after
//! any error it is not governed, and its launcher must not let it exec.

mod error;

pub use error::EnrollError;

use super::{containers::Outer, egress::Prepared};
use ringfence_bpf::{ContainerId, Membership, TaskError};
use ringfence_files::Others;
use ringfence_grant::Grant;
use ringfence_policy::{
    self as profile, AxisRules, Compilation, CompileContext, Dirs, KernelOptions, Mode, Profile,
    compiled::CompiledPolicy,
    fixed::{Fixed, History},
    home,
    mounts::{self, Mount},
};
use ringfence_process::peer::{Peer, Process};
use ringfence_wire::{credentials::HostCredential, message::ENDPOINT, tie};
use rustix::fs::{AtFlags, Mode as FileMode, OFlags, StatxFlags, open, statx};
use std::{
    ffi::OsString,
    io,
    net::{SocketAddr, SocketAddrV4},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::{Path, PathBuf},
};

/// A request, checked as to who asks and for whom.
#[derive(Debug)]
pub struct Request {
    /// The profile as it was asked for: a name or an absolute path.
    pub asked: String,
    /// What `${WORKDIR}` stands for.
    pub workdir: Option<PathBuf>,
    /// Audit mode, whatever the profile says.
    pub audit: bool,
    /// Who asks.
    pub uid: u32,
    /// What `${HOME}` stands for: the home of the user that the command runs as.
    pub home: Option<PathBuf>,
}

/// A profile, compiled for one container.
#[derive(Debug)]
pub struct Compiled {
    /// Name of the profile.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
    /// The policy.
    pub policy: CompiledPolicy,
    /// What the launcher set from the same profile.
    pub options: KernelOptions,
    /// Where its paths lead, for the container's life.
    pub fixed: Fixed,
    /// Those that the container may turn into links.
    pub own: Fixed,
    /// What leads elsewhere than it did.
    pub moved: Vec<String>,
    /// The files that the profile is made of.
    pub sources: Vec<PathBuf>,
    /// What serves the names that it grants, once that is there.
    pub names: Option<Prepared>,
    /// What the profile itself has put into requests: not what the containers around it have.
    pub credentials: Vec<HostCredential>,
    /// Whoever enrols may not use the daemon's network, neither now nor by a later change of the profile.
    pub(crate) elsewhere: bool,
}

/// What a profile is compiled into.
#[derive(Debug, Clone, Copy)]
pub struct Surroundings<'a> {
    /// The containers around it, outermost first.
    pub outer: &'a [Outer],
    /// The container's root directory.
    pub root: BorrowedFd<'a>,
    /// What is mounted there.
    pub mounts: Option<&'a [Mount]>,
    /// Where profiles are.
    pub dirs: &'a Dirs,
    /// The container's, if it runs already.
    pub history: Option<&'a History>,
    /// Where paths led that earlier containers could turn into links.
    pub past: Option<&'a Fixed>,
}

/// Checks that `child` is a fresh child of the peer, and of its user.
pub(crate) fn check_child(peer: &Peer, child: &Process) -> Result<(), EnrollError> {
    if child.parent != peer.pid {
        return Err(EnrollError::NotChild { child: child.pid, peer: peer.pid });
    }
    if child.threads != 1 {
        return Err(EnrollError::Threads { child: child.pid, threads: child.threads });
    }
    if peer.uid != 0 && child.uids.iter().any(|uid| *uid != peer.uid) {
        return Err(EnrollError::OtherUser { child: child.pid, uid: peer.uid });
    }
    Ok(())
}

/// Where an enrolment takes place, from what the kernel says of the two: `None` on the host, else the container that
/// both are in. A child is born into its parent's container, so any other combination is somebody's trick.
pub fn container_of(
    peer: (u32, Option<Membership>),
    child: (u32, Option<Membership>),
) -> Result<Option<ContainerId>, EnrollError> {
    match (peer.1, child.1) {
        (None, None) => Ok(None),
        (
            Some(Membership { container: Some(a), .. }),
            Some(Membership { container: Some(b), next: None }),
        ) if a == b => Ok(Some(a)),
        (None, Some(Membership { container, next })) if let Some(id) = container.or(next) => {
            Err(TaskError::Governed(id).into())
        }
        _ => Err(EnrollError::OtherContainer { child: child.0, peer: peer.0 }),
    }
}

/// What a request for a grant begins with, in place of a profile's name; its JSON follows.
pub const GRANT: &str = "grant:";

/// What is asked for: a profile, and what is granted beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked<'a> {
    /// An address of loopback.
    pub(crate) endpoint: Option<SocketAddr>,
    /// The name of an abstract unix socket.
    pub(crate) tie: Option<&'a str>,
    /// The profile.
    pub(crate) profile: &'a str,
}

impl<'a> Asked<'a> {
    /// Takes a request's text apart.
    pub(crate) fn parse(asked: &'a str) -> Result<Self, EnrollError> {
        let Some(rest) = asked.strip_prefix(ENDPOINT) else {
            return Ok(Self { endpoint: None, tie: None, profile: asked });
        };
        // Of loopback's four numbers and a port: no other colon.
        let mut parts = rest.splitn(3, ':');
        let (Some(host), Some(port), Some(rest)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(EnrollError::Endpoint);
        };
        let address: SocketAddrV4 = format!("{host}:{port}").parse().map_err(|_| EnrollError::Endpoint)?;
        // No profile's name begins so, and no path.
        let (tie, profile) = match rest.strip_prefix('@').map(|rest| rest.split_once(':')) {
            None => (None, rest),
            Some(Some((name, profile))) if tie::is_name(name) => (Some(name), profile),
            Some(_) => return Err(EnrollError::Tie),
        };
        Ok(Self { endpoint: Some(address.into()), tie, profile })
    }
}

/// The program beside the daemon's own that speaks on the socket of a run's ties, where it is nobody's but root's: what a container
/// may start for that is not its user's to say.
fn tie_program() -> Option<PathBuf> {
    tie_program_in(std::env::current_exe().ok()?.parent()?)
}

fn tie_program_in(dir: &Path) -> Option<PathBuf> {
    let program = dir.join(tie::PROGRAM);
    let is_roots =
        program.is_file() && ringfence_files::is_roots(&program, Others::AddNames).unwrap_or(false);
    is_roots.then_some(program)
}

/// Checks that a socket listens at an address of loopback: whoever asks for the address has to have it.
pub(crate) fn check_listener(listener: impl AsFd, address: SocketAddr) -> Result<(), EnrollError> {
    use rustix::net::{getsockname, ipproto, sockopt};
    let listener = listener.as_fd();
    let own = (|| {
        let is_tcp = sockopt::socket_protocol(listener)? == Some(ipproto::TCP);
        let listens = is_tcp && sockopt::socket_acceptconn(listener)?;
        Ok::<_, rustix::io::Errno>(
            listens.then_some(SocketAddr::try_from(getsockname(listener)?).ok()).flatten(),
        )
    })();
    match own {
        Ok(Some(own)) if own == address && own.ip().is_loopback() => Ok(()),
        _ => Err(EnrollError::Endpoint),
    }
}

/// Checks that a socket is a listening abstract unix socket of this name, as [`check_listener`] does.
pub(crate) fn check_tie(socket: impl AsFd, name: &str) -> Result<(), EnrollError> {
    use rustix::net::{SocketAddrUnix, SocketType, getsockname, sockopt};
    let socket = socket.as_fd();
    let own = (|| {
        let is_stream = sockopt::socket_type(socket)? == SocketType::STREAM;
        let listens = is_stream && sockopt::socket_acceptconn(socket)?;
        Ok::<_, rustix::io::Errno>(
            listens.then_some(SocketAddrUnix::try_from(getsockname(socket)?).ok()).flatten(),
        )
    })();
    match own {
        Ok(Some(own)) if own.abstract_name() == Some(name.as_bytes()) => Ok(()),
        _ => Err(EnrollError::Tie),
    }
}

/// Loads the profile that a user asked for, if that user may have it. Anyone may have any grant: it only takes away, and
/// its container bears no profile's name.
pub fn load(asked: &str, uid: u32, dirs: &Dirs) -> Result<Profile, EnrollError> {
    if let Some(json) = asked.strip_prefix(GRANT) {
        let grant: Grant = serde_json::from_str(json).map_err(EnrollError::Grant)?;
        return profile::of_grant(&grant).map_err(EnrollError::Load);
    }
    let Asked { endpoint, tie, profile: asked } = Asked::parse(asked)?;
    if uid != 0 && (asked.contains('/') || asked.ends_with(".toml")) {
        return Err(EnrollError::PathNotRoot(asked.to_owned(), dirs.system.clone()));
    }
    let mut profile = profile::load(asked, dirs).map_err(EnrollError::Load)?;
    if let Some(address) = endpoint {
        if profile.kit.is_none() {
            return Err(EnrollError::NoKit(profile.name));
        }
        profile.grant_endpoint(address);
        if let Some(name) = tie {
            profile.grant_tie(name, tie_program().as_deref());
        }
    }
    if uid != 0
        && let Some(open) = profile.sources.iter().find(|source| !source.root_only)
    {
        return Err(EnrollError::NotRoots { name: profile.name.clone(), file: open.file.clone() });
    }
    Ok(profile)
}

/// Compiles a request's profile for a container, inside the containers around it.
pub fn compile(request: &Request, surroundings: Surroundings<'_>) -> Result<Compiled, EnrollError> {
    let tokens = home::of(request.uid);
    let profile = load(&request.asked, request.uid, surroundings.dirs)?
        .at_home(request.home.as_deref())
        .with_tokens_of(tokens.as_deref());
    if request.audit && request.uid != 0 && profile.mode != Mode::Audit {
        return Err(EnrollError::AuditNotRoot(profile.name));
    }
    // A magic link: the very directory behind the descriptor, whatever happened to its process since.
    let root = PathBuf::from(format!("/proc/self/fd/{}", surroundings.root.as_raw_fd()));
    let one = |profile: &Profile, workdir: &Option<PathBuf>, audit, history, past| {
        check_sources(profile, surroundings.mounts, history)?;
        let context = CompileContext {
            audit_override: audit,
            mounts: surroundings.mounts,
            history,
            past,
            ..CompileContext::new(&root, workdir.clone())
        };
        profile.compile_whole(&context).map_err(EnrollError::Compile)
    };
    let Compilation { mut policy, mut moved, fixed, own, .. } =
        one(&profile, &request.workdir, request.audit, surroundings.history, surroundings.past)?;
    for outer in surroundings.outer.iter().rev() {
        let home = outer.home.as_deref();
        let its = load(&outer.asked, 0, surroundings.dirs)?.at_home(home).with_tokens_of(home);
        let its = one(&its, &outer.workdir, outer.audit, Some(&outer.history), None)?;
        // In audit mode only if every container around it is: the meet sees to that.
        policy = profile::meet_policies(&policy, &its.policy);
        moved.extend(its.moved);
    }
    let credentials = profile.credentials.into_iter().map(|one| one.rules).collect();
    let sources = profile.sources.into_iter().map(|source| source.file).collect();
    let options = profile.kernel;
    Ok(Compiled {
        name: profile.name,
        file: profile.file,
        policy,
        options,
        fixed,
        own,
        moved,
        sources,
        names: None,
        credentials,
        elsewhere: false,
    })
}

/// A policy never comes from what its container can write. What it is made of is closed to it from its first policy on;
/// so what it could have written is a file that came later, or one by another name.
fn check_sources(
    profile: &Profile,
    mounts: Option<&[Mount]>,
    history: Option<&History>,
) -> Result<(), EnrollError> {
    let name = || profile.name.clone();
    let writes = match &profile.rules.fs_write {
        AxisRules::All(_) => true,
        AxisRules::Only(rules) => !rules.is_empty(),
    };
    if let Some(linked) = profile.sources.iter().find(|source| writes && source.names > 1) {
        return Err(EnrollError::Linked { name: name(), file: linked.file.clone(), names: linked.names });
    }
    let Some(history) = history else { return Ok(()) };
    let could = history.written.policies();
    let could = could.judge();
    let places = profile::source_places(profile, mounts);
    match places.into_iter().find(|source| could(&source.path)) {
        Some(open) => Err(EnrollError::Writable { name: name(), file: OsString::from_vec(open.path).into() }),
        None => Ok(()),
    }
}

/// What a process sees mounted.
pub(crate) fn mounts_of(pid: u32) -> Result<Vec<Mount>, EnrollError> {
    mounts::of(&pid.to_string()).map_err(|source| EnrollError::Mounts { child: pid, source })
}

/// The root directory of a process, and whether it is the host's.
pub(crate) fn root_of(pid: u32) -> Result<(OwnedFd, bool), EnrollError> {
    let opened = (|| {
        let root = open_dir(Path::new(&format!("/proc/{pid}/root")))?;
        let host = is_host_root(&root)?;
        Ok((root, host))
    })();
    opened.map_err(|source| EnrollError::Root { child: pid, source })
}

/// The host's root directory: that of the first process, for a service manager may have given this one a mount
/// namespace of its own. Where that is out of reach (the daemon itself is in a container), its own.
pub(crate) fn host_root() -> io::Result<OwnedFd> {
    open_dir(Path::new("/proc/1/root")).or_else(|_| open_dir(Path::new("/")))
}

fn open_dir(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, FileMode::empty())?)
}

fn is_host_root(root: &OwnedFd) -> io::Result<bool> {
    same_root(root, &host_root()?)
}

/// The same directory on the same mount.
pub(crate) fn same_root(one: &OwnedFd, other: &OwnedFd) -> io::Result<bool> {
    let wanted = StatxFlags::INO | StatxFlags::MNT_ID;
    let (one, other) =
        (statx(one, c"", AtFlags::EMPTY_PATH, wanted)?, statx(other, c"", AtFlags::EMPTY_PATH, wanted)?);
    let name = |of: &rustix::fs::Statx| (of.stx_dev_major, of.stx_dev_minor, of.stx_ino, of.stx_mnt_id);
    Ok(name(&one) == name(&other))
}

#[cfg(test)]
mod tests;
