//! Landlock: file hierarchies and TCP ports, set by a process on itself for good.
//!
//! It can allow a tree and everything below, and nothing finer; `plan` in `ringfence-launch` knows what that leaves
//! open. A ruleset is built for the kernel's ABI and is in force in full, or there is an error: never silently less.

use crate::host;
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, Mode, OFlags, fstat, openat};
use std::{
    collections::BTreeSet,
    io,
    os::fd::OwnedFd,
    path::{Component, Path, PathBuf},
};

/// ABI of Linux 6.2: truncation.
pub const ABI_TRUNCATE: u32 = 3;
/// ABI of Linux 6.7: TCP ports.
pub const ABI_TCP: u32 = 4;
/// ABI of Linux 6.12: signals and abstract unix sockets stay within the domain.
pub const ABI_SCOPES: u32 = 6;
/// ABI of Linux 7.1: unix sockets by path.
pub const ABI_UNIX_PATH: u32 = 9;

/// Why a ruleset cannot be built or enforced.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Landlock is not there.
    #[error(
        "Landlock is not active in this kernel (CONFIG_SECURITY_LANDLOCK, and `landlock` in the `lsm=` list)"
    )]
    Absent,
    /// A granted path exists and cannot be opened.
    #[error("cannot open {} for a Landlock rule", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refused a part of the ruleset.
    #[error("cannot build the Landlock ruleset")]
    Build(#[source] RulesetError),
    /// The kernel refused the ruleset as a whole.
    #[error("cannot enforce the Landlock ruleset")]
    Enforce(#[source] RulesetError),
    /// What a rule is about is missing.
    #[error("{} is not there, not for this user, or a symlink leads to it: there is no Landlock rule for it", .0.display())]
    Missing(PathBuf),
    /// The kernel enforced less than it said it could.
    #[error("the kernel enforced the Landlock ruleset only in part ({0:?}), although it has the ABI for it")]
    Partial(RulesetStatus),
}

/// What may be done below a path, or which of it is restricted at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Access {
    /// Read files, list directories.
    pub read: bool,
    /// Write, create, remove, rename, truncate.
    pub write: bool,
    /// Execute. The kernel asks for reading too, which is added.
    pub exec: bool,
    /// Connect to unix sockets ([`ABI_UNIX_PATH`]; ignored before).
    pub unix: bool,
}

/// A path and what may be done there and below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// A directory or a file, by a path without symlinks: none is followed, for who could have put it there?
    pub path: PathBuf,
    /// What may be done.
    pub access: Access,
    /// Not below it: a directory is passed over, for a rule about one opens everything in it.
    pub exact: bool,
    /// Not worth a word if it is not there.
    pub may_be_missing: bool,
}

impl Hierarchy {
    /// The tree at a path, if it is there. Links on the way are followed now, for a rule follows none.
    pub fn resolved(path: &Path, access: Access) -> Self {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Self { path, access, exact: false, may_be_missing: true }
    }
}

/// A whole ruleset.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// What is restricted: everything of it that no hierarchy allows is denied.
    pub restricted: Access,
    /// What is allowed.
    pub hierarchies: Vec<Hierarchy>,
    /// TCP ports that may be connected to and bound; `None`: any. Ignored before [`ABI_TCP`].
    pub tcp: Option<BTreeSet<u16>>,
    /// Where TCP ports are restricted: none may be bound, those of `tcp` and one of the kernel's choice included.
    pub no_bind: bool,
    /// Signals reach only the domain itself. Ignored before [`ABI_SCOPES`].
    pub scope_signals: bool,
    /// Abstract unix sockets reach only the domain itself. Ignored before [`ABI_SCOPES`].
    pub scope_abstract: bool,
}

/// A ruleset in the kernel, not yet in force.
#[derive(Debug)]
pub struct Prepared {
    ruleset: RulesetCreated,
    /// Paths of rules that do not exist, or not for this user, or with a symlink: they stay denied even if they appear.
    pub missing: Vec<PathBuf>,
}

impl Rules {
    /// Whether there is anything to restrict on this ABI.
    fn is_empty(&self, abi: u32) -> bool {
        let Access { read, write, exec, unix } = self.restricted;
        let scopes = abi >= ABI_SCOPES && (self.scope_signals || self.scope_abstract);
        !(read
            || write
            || exec
            || unix && abi >= ABI_UNIX_PATH
            || self.tcp.is_some() && abi >= ABI_TCP
            || scopes)
    }

    /// Restricts the calling thread and all it starts, for good. False: this kernel has no Landlock.
    ///
    /// # Errors
    /// [`Error`], also for a path that is missing and may not be; the caller must not go on.
    pub fn enforce(&self) -> Result<bool, Error> {
        let abi = host::landlock_abi();
        if abi > 0
            && let Some(prepared) = self.prepare(abi)?
        {
            if let Some(missing) = prepared.missing.first() {
                return Err(Error::Missing(missing.clone()));
            }
            prepared.enforce()?;
        }
        Ok(abi > 0)
    }

    /// Builds the ruleset for a kernel with this ABI (`host::landlock_abi`). `None`: nothing to restrict.
    ///
    /// # Errors
    /// [`Error`]; a path that does not exist is not one, see [`Prepared::missing`].
    pub fn prepare(&self, abi: u32) -> Result<Option<Prepared>, Error> {
        let level = ABI::from(i32::try_from(abi).unwrap_or(i32::MAX));
        if level == ABI::Unsupported {
            return Err(Error::Absent);
        }
        if self.is_empty(abi) {
            return Ok(None);
        }
        let handled = self.restricted.handled(level);
        let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
        if !handled.is_empty() {
            ruleset = ruleset.handle_access(handled).map_err(Error::Build)?;
        }
        let tcp = self.tcp.as_ref().filter(|_| abi >= ABI_TCP);
        if tcp.is_some() {
            ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V4)).map_err(Error::Build)?;
        }
        if abi >= ABI_SCOPES {
            let mut scopes = BitFlags::<Scope>::empty();
            if self.scope_signals {
                scopes |= Scope::Signal;
            }
            if self.scope_abstract {
                scopes |= Scope::AbstractUnixSocket;
            }
            if !scopes.is_empty() {
                ruleset = ruleset.scope(scopes).map_err(Error::Build)?;
            }
        }
        let mut ruleset = ruleset.create().map_err(Error::Build)?;
        let mut missing = Vec::new();
        for Hierarchy { path, access, exact, may_be_missing } in &self.hierarchies {
            let mut rights = access.rights(level) & handled;
            if rights.is_empty() {
                continue;
            }
            let Some(file) = open(path)? else {
                if !may_be_missing {
                    missing.push(path.clone());
                }
                continue;
            };
            let stat =
                fstat(&file).map_err(|errno| Error::Open { path: path.clone(), source: errno.into() })?;
            let is_dir = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if !is_dir {
                rights &= AccessFs::from_file(level);
            }
            if *exact && is_dir {
                continue;
            }
            if !rights.is_empty() {
                ruleset = ruleset.add_rule(PathBeneath::new(file, rights)).map_err(Error::Build)?;
            }
        }
        for port in tcp.into_iter().flatten() {
            let access =
                if self.no_bind { AccessNet::ConnectTcp.into() } else { AccessNet::from_all(ABI::V4) };
            let rule = NetPort::new(*port, access);
            ruleset = ruleset.add_rule(rule).map_err(Error::Build)?;
        }
        if tcp.is_some_and(|ports| !ports.contains(&0)) && !self.no_bind {
            // Port 0 is any free port of the kernel's choice.
            ruleset = ruleset.add_rule(NetPort::new(0, AccessNet::BindTcp)).map_err(Error::Build)?;
        }
        Ok(Some(Prepared { ruleset, missing }))
    }
}

impl Prepared {
    /// The same ruleset, for one more thread.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { ruleset: self.ruleset.try_clone()?, missing: Vec::new() })
    }

    /// Restricts the calling thread and all it starts, for good. Sets `no_new_privs`.
    ///
    /// # Errors
    /// [`Error`]; the caller must not go on.
    pub fn enforce(self) -> Result<(), Error> {
        match self.ruleset.restrict_self().map_err(Error::Enforce)?.ruleset {
            RulesetStatus::FullyEnforced => Ok(()),
            status => Err(Error::Partial(status)),
        }
    }
}

impl Access {
    /// What the ruleset is about, where `rights` is what a rule gives.
    fn handled(self, level: ABI) -> BitFlags<AccessFs> {
        let exec = if self.exec { AccessFs::Execute.into() } else { BitFlags::empty() };
        Self { exec: false, ..self }.rights(level) | exec
    }

    fn rights(self, level: ABI) -> BitFlags<AccessFs> {
        let mut rights = BitFlags::empty();
        if self.read {
            rights |= AccessFs::ReadFile | AccessFs::ReadDir;
        }
        if self.write {
            // Not ioctl on devices: the grant has no axis for it.
            rights |= AccessFs::from_write(level)
                & !(AccessFs::IoctlDev | AccessFs::ResolveUnix | AccessFs::Execute);
        }
        if self.exec {
            rights |= AccessFs::Execute | AccessFs::ReadFile;
        }
        if self.unix && level >= ABI::V9 {
            rights |= AccessFs::ResolveUnix;
        }
        rights
    }
}

/// Opens a rule's path; `None`: it is not there, not for this user, or there is a symlink on the way.
///
/// Step by step and not by openat2(2), which would do it in one: system call filters that cannot look into its argument
/// (systemd's RestrictSUIDSGID=, older container engines) refuse it altogether.
fn open(path: &Path) -> Result<Option<OwnedFd>, Error> {
    use rustix::io::Errno;
    let failed = |errno: Errno| Error::Open { path: path.to_owned(), source: errno.into() };
    let step = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut here = rustix::fs::open("/", step, Mode::empty()).map_err(failed)?;
    for part in path.components().filter(|part| *part != Component::RootDir) {
        here = match openat(&here, part.as_os_str(), step, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
    }
    // Below a symlink nothing opens; as the last part it opens itself.
    let stat = fstat(&here).map_err(|errno| Error::Open { path: path.to_owned(), source: errno.into() })?;
    Ok((FileType::from_raw_mode(stat.st_mode) != FileType::Symlink).then_some(here))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::landlock_abi;
    use std::{fs, net::TcpListener, net::TcpStream, os::unix::fs::PermissionsExt, path::Path, thread};

    /// A domain is a thread's: each case restricts a thread of its own.
    fn within<T: Send + 'static>(rules: Rules, case: impl FnOnce() -> T + Send + 'static) -> T {
        thread::spawn(move || {
            rules.prepare(landlock_abi()).unwrap().unwrap().enforce().unwrap();
            case()
        })
        .join()
        .unwrap()
    }

    fn denied<T>(result: io::Result<T>) -> bool {
        matches!(result, Err(error) if error.kind() == io::ErrorKind::PermissionDenied)
    }

    fn tree(path: &Path, access: Access) -> Hierarchy {
        Hierarchy { path: path.into(), access, exact: false, may_be_missing: false }
    }

    #[test]
    fn hierarchies_hold() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let at = move |name: &str| root.join(name);
        for name in ["open", "shut", "both"] {
            fs::create_dir(at(name)).unwrap();
            fs::write(at(name).join("file"), "x").unwrap();
        }
        std::os::unix::fs::symlink(at("shut"), at("link")).unwrap();
        fs::copy("/bin/true", at("open/true")).unwrap();
        fs::copy("/bin/true", at("single")).unwrap();
        fs::set_permissions(at("single"), fs::Permissions::from_mode(0o644)).unwrap();
        let read = Access { read: true, ..Access::default() };
        let both = Access { read: true, write: true, ..Access::default() };
        let rules = Rules {
            restricted: Access { read: true, write: true, exec: true, unix: true },
            hierarchies: vec![
                tree(&at("open"), read),
                tree(&at("both"), both),
                tree(&at("single"), both),
                tree(&at("absent"), both),
                tree(&at("link"), both),
            ],
            ..Rules::default()
        };
        assert_eq!(rules.prepare(landlock_abi()).unwrap().unwrap().missing, [at("absent"), at("link")]);
        within(rules, move || {
            assert_eq!(fs::read(at("open/file")).unwrap(), b"x");
            assert!(denied(fs::write(at("open/file"), "y")));
            assert!(denied(fs::read(at("shut/file"))));
            assert!(denied(fs::read_dir(at("shut"))));
            fs::write(at("both/file"), "y").unwrap();
            fs::write(at("both/new"), "y").unwrap();
            fs::remove_file(at("both/new")).unwrap();
            assert!(denied(fs::rename(at("both/file"), at("open/moved"))));
            fs::write(at("single"), "y").unwrap();
            assert!(denied(fs::write(at("absent"), "y")));
            assert!(denied(std::process::Command::new(at("open/true")).status()), "not granted to execute");
        });
    }

    #[test]
    fn where_a_place_is_missing_that_may_not_be_nothing_is_in_force() {
        let dir = tempfile::tempdir().unwrap();
        let absent = dir.path().canonicalize().unwrap().join("absent");
        let enforce = |may_be_missing| {
            let rules = Rules {
                restricted: Access { write: true, ..Access::default() },
                hierarchies: vec![Hierarchy {
                    may_be_missing,
                    ..tree(&absent, Access { write: true, ..Access::default() })
                }],
                ..Rules::default()
            };
            thread::spawn(move || rules.enforce()).join().unwrap()
        };
        if landlock_abi() == 0 {
            return;
        }
        assert!(matches!(enforce(false), Err(Error::Missing(path)) if path == absent));
        assert!(matches!(enforce(true), Ok(true)), "the control");
    }

    #[test]
    fn tcp_ports_hold() {
        let (granted, other) =
            (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
        let (granted, other) = (port(&granted), (port(&other), other, granted));
        let rules = Rules { tcp: Some([granted].into()), ..Rules::default() };
        within(rules, move || {
            TcpStream::connect(("127.0.0.1", granted)).unwrap();
            assert!(denied(TcpStream::connect(("127.0.0.1", other.0))));
            TcpListener::bind("127.0.0.1:0").unwrap();
        });
    }

    #[test]
    fn a_port_that_may_not_be_bound_may_be_connected_to() {
        let granted = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = granted.local_addr().unwrap().port();
        for no_bind in [true, false] {
            let rules = Rules { tcp: Some([port].into()), no_bind, ..Rules::default() };
            within(rules, move || {
                TcpStream::connect(("127.0.0.1", port)).unwrap();
                assert_eq!(denied(TcpListener::bind("127.0.0.1:0")), no_bind);
                assert_eq!(denied(TcpListener::bind(("127.0.0.2", port))), no_bind);
            });
        }
    }

    #[test]
    fn nothing_to_restrict_is_no_ruleset() {
        assert!(Rules::default().prepare(landlock_abi()).unwrap().is_none());
        let tcp = Rules { tcp: Some(BTreeSet::new()), ..Rules::default() };
        assert!(tcp.prepare(ABI_TCP - 1).unwrap().is_none());
        assert!(matches!(tcp.prepare(0), Err(Error::Absent)));
    }
}
