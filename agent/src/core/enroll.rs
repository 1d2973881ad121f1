//! Enrolment: who may put which task under which profile. Everything here is decided before the task is tagged; after
//! any error it is not governed, and its launcher must not let it exec.

use super::{
    containers::Outer,
    enforcer::chain,
    peer::{Peer, PeerError, Process},
    quota::QuotaError,
};
use crate::{
    kernel::{ContainerId, Membership, PolicyError, TaskError},
    profile::{
        self, CompileContext, CompileErrors, Dirs, KernelOptions, LoadErrors, Mode, Profile,
        compiled::CompiledPolicy,
    },
};
use ringfence_grant::Grant;
use rustix::fs::{AtFlags, Mode as FileMode, OFlags, StatxFlags, open, statx};
use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Why a task was not enrolled.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnrollError {
    /// Not exactly one descriptor beside the request.
    #[error("an enrolment needs one pidfd beside the message, and {0} came")]
    Descriptors(usize),
    /// No name at all, or one that cannot be a file's.
    #[error("that is not a profile's name")]
    BadName,
    /// A grant that is none.
    #[error("that is not a grant")]
    Grant(#[source] serde_json::Error),
    /// The daemon has another working directory than its client.
    #[error("the profile's path {0} must be absolute")]
    RelativePath(String),
    /// A working directory that is none.
    #[error("the working directory {} must be an absolute path without `..`", .0.display())]
    BadWorkdir(PathBuf),
    /// The peer or the child cannot be told.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Somebody else's child.
    #[error("process {child} is not a child of process {peer}; a launcher enrols its own child only")]
    NotChild {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        peer: u32,
    },
    /// Threads would escape: a pidfd names the first only.
    #[error("process {child} has {threads} threads; it is enrolled while it has one")]
    Threads {
        /// The process to enrol.
        child: u32,
        /// How many.
        threads: u32,
    },
    /// A child that runs as somebody else.
    #[error("process {child} does not run as user {uid}, who asks to enrol it")]
    OtherUser {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        uid: u32,
    },
    /// Peer and child do not belong together.
    #[error("process {child} and process {peer}, who asks to enrol it, are not in the same container")]
    OtherContainer {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        peer: u32,
    },
    /// Enrolled already.
    #[error("the process already belongs to container {0}")]
    Governed(String),
    /// A container that the registry does not know.
    #[error("container {0} has no record (it was lost or damaged), so nothing can be nested in it")]
    NoRecord(ContainerId),
    /// A path from somebody who is not root.
    #[error("only root may name a profile by its path ({0}); put it into {1} and name it")]
    PathNotRoot(String, PathBuf),
    /// A profile that is not root's alone, asked for by somebody else.
    #[error("profile {name}: {file} can be changed by others than root; chown root and chmod go-w the file and its directory", file = .file.display())]
    NotRoots {
        /// The profile.
        name: String,
        /// The file: the profile's own or one that it extends.
        file: PathBuf,
    },
    /// Audit mode, asked for by somebody who is not root.
    #[error("only root may ask for audit mode; profile {0} says `mode = \"enforce\"`")]
    AuditNotRoot(String),
    /// The profile is wrong.
    #[error("{0}")]
    Load(LoadErrors),
    /// The profile cannot be compiled for this container.
    #[error("{0}")]
    Compile(CompileErrors),
    /// The child's root directory cannot be opened.
    #[error("cannot open the root directory of process {child}")]
    Root {
        /// The process.
        child: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host's root directory cannot be opened.
    #[error("cannot open the host's root directory")]
    HostRoot(#[source] io::Error),
    /// A nested container with another root.
    #[error(
        "the command's root directory is not that of container {0}, in which it runs; rules would mean other places: start it without chroot"
    )]
    OtherRoot(String),
    /// A root that only an earlier core knew.
    #[error(
        "container {0} has a root directory of its own, which an earlier daemon knew and this one does not; start it again to change its profile"
    )]
    RootLost(String),
    /// A cgroup that cannot be used.
    #[error("cannot take in cgroup {}", .path.display())]
    Cgroup {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Processes cannot be listed.
    #[error("cannot list the processes to take in")]
    Listing(#[source] io::Error),
    /// The first process, the daemon or the auditor.
    #[error("process {0} is the system's first, the daemon or the auditor, and is never put under a profile")]
    OurOwn(u32),
    /// Some are in, some are not.
    #[error("container {id} was made and holds {tasks} threads, but not everything that was asked for")]
    Partly {
        /// Its public id.
        id: String,
        /// Threads that it holds.
        tasks: u64,
        /// What happened.
        #[source]
        source: Box<EnrollError>,
    },
    /// Everything was detached.
    #[error("Ringfence is being uninstalled; nothing is enforced any more")]
    Closed,
    /// Too many.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The kernel's tables.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The task's tag.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The container's record.
    #[error(transparent)]
    Registry(#[from] super::containers::RegistryError),
    /// No random bytes for an id.
    #[error("cannot make an id for the container")]
    Random(#[source] io::Error),
}

/// A request, checked as to who asks and for whom.
#[derive(Debug)]
pub(crate) struct Request {
    /// The profile as it was asked for: a name or an absolute path.
    pub(crate) asked: String,
    /// What `${WORKDIR}` stands for.
    pub(crate) workdir: Option<PathBuf>,
    /// Audit mode, whatever the profile says.
    pub(crate) audit: bool,
    /// Who asks.
    pub(crate) uid: u32,
}

/// A profile, compiled for one container.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// Name of the profile.
    pub(crate) name: String,
    /// Its file.
    pub(crate) file: PathBuf,
    /// The policy.
    pub(crate) policy: CompiledPolicy,
    /// What the launcher set from the same profile.
    pub(crate) options: KernelOptions,
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
pub(crate) fn place(
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
pub(crate) const GRANT: &str = "grant:";

/// Loads the profile that a user asked for, if that user may have it. Anyone may have any grant: it only takes away, and
/// its container bears no profile's name.
pub(crate) fn load(asked: &str, uid: u32, dirs: &Dirs) -> Result<Profile, EnrollError> {
    if let Some(json) = asked.strip_prefix(GRANT) {
        let grant: Grant = serde_json::from_str(json).map_err(EnrollError::Grant)?;
        return profile::of_grant(&grant).map_err(EnrollError::Load);
    }
    if uid != 0 && (asked.contains('/') || asked.ends_with(".toml")) {
        return Err(EnrollError::PathNotRoot(asked.to_owned(), dirs.system.clone()));
    }
    let profile = profile::load(asked, dirs).map_err(EnrollError::Load)?;
    if uid != 0
        && let Some(open) = profile.sources.iter().find(|source| !source.root_only)
    {
        return Err(EnrollError::NotRoots { name: profile.name.clone(), file: open.file.clone() });
    }
    Ok(profile)
}

/// Compiles a request's profile for a container with this root, inside the containers around it.
pub(crate) fn compile(
    request: &Request,
    outer: &[Outer],
    root: BorrowedFd<'_>,
    dirs: &Dirs,
) -> Result<Compiled, EnrollError> {
    let profile = load(&request.asked, request.uid, dirs)?;
    if request.audit && request.uid != 0 && profile.mode != Mode::Audit {
        return Err(EnrollError::AuditNotRoot(profile.name));
    }
    // A magic link: the very directory behind the descriptor, whatever happened to its process since.
    let root = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
    let one = |profile: &Profile, workdir: &Option<PathBuf>, audit| {
        let context = CompileContext { root: &root, workdir: workdir.clone(), audit_override: audit };
        profile.compile(&context).map_err(EnrollError::Compile)
    };
    let mut policy = one(&profile, &request.workdir, request.audit)?;
    for around in outer.iter().rev() {
        let outer = load(&around.asked, 0, dirs)?;
        // In audit mode only if every container around it is: the meet sees to that.
        policy = profile::meet_policies(&policy, &one(&outer, &around.workdir, around.audit)?);
    }
    Ok(Compiled { name: profile.name, file: profile.file, policy, options: profile.kernel })
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

impl EnrollError {
    /// The whole message for the one who asked.
    pub(crate) fn message(&self) -> String {
        chain(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::fd::AsFd, os::unix::fs::PermissionsExt};

    fn id(raw: u64) -> ContainerId {
        ContainerId::from_raw(raw)
    }

    fn inside(raw: u64) -> Option<Membership> {
        Some(Membership { container: Some(id(raw)), next: None })
    }

    fn process() -> Process {
        Process { pid: 20, parent: 10, uids: [1000; 4], threads: 1, is_fork: true }
    }

    fn peer(uid: u32) -> Peer {
        Peer { pid: 10, uid, pidfd: std::fs::File::open("/dev/null").unwrap().into() }
    }

    #[test]
    fn only_a_fresh_child_of_the_same_user_is_taken() {
        check_child(&peer(1000), &process()).unwrap();
        let grandchild = Process { parent: 11, ..process() };
        assert!(matches!(check_child(&peer(1000), &grandchild), Err(EnrollError::NotChild { .. })));
        let threaded = Process { threads: 2, ..process() };
        assert!(matches!(check_child(&peer(1000), &threaded), Err(EnrollError::Threads { .. })));
        for n in 0..4 {
            let mut other = process();
            other.uids[n] = 0;
            assert!(matches!(check_child(&peer(1000), &other), Err(EnrollError::OtherUser { .. })));
            check_child(&peer(0), &other).unwrap();
        }
    }

    #[test]
    fn peer_and_child_are_in_one_place() {
        assert_eq!(place((10, None), (20, None)).unwrap(), None);
        assert_eq!(place((10, inside(5)), (20, inside(5))).unwrap(), Some(id(5)));
        assert!(place((10, None), (20, inside(5))).is_err());
        assert!(place((10, inside(5)), (20, inside(6))).is_err());
        assert!(place((10, inside(5)), (20, None)).is_err());
        let pending = Some(Membership { container: None, next: Some(id(5)) });
        assert!(place((10, None), (20, pending)).is_err());
        let twice = Some(Membership { container: Some(id(5)), next: Some(id(6)) });
        assert!(place((10, inside(5)), (20, twice)).is_err());
    }

    #[test]
    fn who_is_not_root_gets_root_s_profiles_by_name_only() {
        let dir = tempfile::tempdir().unwrap();
        let profiles = dir.path().join("profiles");
        fs::create_dir(&profiles).unwrap();
        let file = profiles.join("p.toml");
        fs::write(&file, "description = \"nothing\"\n").unwrap();
        let dirs = Dirs { system: profiles, user: None };
        let path = file.to_str().unwrap();
        assert!(matches!(load(path, 1000, &dirs), Err(EnrollError::PathNotRoot(..))));
        assert!(matches!(load("p.toml", 1000, &dirs), Err(EnrollError::PathNotRoot(..))));
        load(path, 0, &dirs).unwrap();
        if rustix::process::geteuid().is_root() {
            load("p", 1000, &dirs).unwrap();
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
        rustix::fs::chown(&file, None, Some(rustix::fs::Gid::from_raw(12345))).ok();
        assert!(matches!(load("p", 1000, &dirs), Err(EnrollError::NotRoots { .. })));
    }

    #[test]
    fn anyone_may_take_less_by_a_grant() {
        let dirs = Dirs { system: "/nonexistent".into(), user: None };
        let grant = Grant {
            exec: ringfence_grant::Scope::only(["/bin/true".parse().unwrap()]),
            net: ringfence_grant::Scope::only(["example.com".parse().unwrap(), "10.0.0.1".parse().unwrap()]),
            ..Grant::top()
        };
        let asked = format!("{GRANT}{}", serde_json::to_string(&grant).unwrap());
        let profile = load(&asked, 1000, &dirs).unwrap();
        assert!(!profile::is_name(&profile.name), "{}", profile.name);
        assert_eq!(profile.mode, Mode::Enforce);
        let held = profile.grant(None);
        assert_eq!(held.exec, grant.exec);
        assert_eq!(held.net, ringfence_grant::Scope::only(["10.0.0.1".parse().unwrap()]));
        let root = host_root().unwrap();
        let request = Request { asked, workdir: None, audit: false, uid: 1000 };
        compile(&request, &[], root.as_fd(), &dirs).unwrap();
        for wrong in ["grant:", "grant:{}", "grant:[]"] {
            assert!(matches!(load(wrong, 1000, &dirs), Err(EnrollError::Grant(_))), "{wrong}");
        }
    }

    #[test]
    fn audit_mode_is_root_s_to_ask_for() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("p.toml"), "mode = \"enforce\"\n").unwrap();
        fs::write(dir.path().join("a.toml"), "mode = \"audit\"\n").unwrap();
        let dirs = Dirs { system: dir.path().to_owned(), user: None };
        let root = host_root().unwrap();
        let ask = |asked: &str, uid, audit, outer: &[Outer]| {
            let request = Request { asked: asked.into(), workdir: None, audit, uid };
            compile(&request, outer, root.as_fd(), &dirs)
        };
        if rustix::process::geteuid().is_root() {
            assert!(matches!(ask("p", 1000, true, &[]), Err(EnrollError::AuditNotRoot(_))));
            assert!(ask("a", 1000, true, &[]).unwrap().policy.audit_mode);
        }
        assert!(ask("p", 0, true, &[]).unwrap().policy.audit_mode);
        assert!(!ask("p", 0, false, &[]).unwrap().policy.audit_mode);
        // Inside a container that enforces, asking changes nothing.
        let around = Outer { id: "0123456789ab".into(), asked: "p".into(), workdir: None, audit: false };
        assert!(!ask("a", 0, true, &[around]).unwrap().policy.audit_mode);
    }

    #[test]
    fn the_host_s_root_is_known_by_its_mount() {
        let (_, host) = root_of(std::process::id()).unwrap();
        assert!(host);
        let tmp = open_dir(Path::new("/tmp")).unwrap();
        assert!(!is_host_root(&tmp).unwrap());
    }
}
