//! Where an agent is on this host: the user id and the directory of its worker, its socket.
//!
//! A worker's user id is a number of its own, in a range that neither distributions nor container engines nor systemd
//! give out, and needs no entry in the user database. It is kept as the owner of that directory.

use super::store::{Handed, Kind, Store, Stored};
use crate::{core::paths::Paths, llm::serve};
use nix::unistd::{Gid, Uid, chown};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::{
    fs::{self, DirBuilder, Permissions},
    io,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{
            fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// User ids of workers. Debian and systemd give out ids below 65536, `useradd` subordinate ones from 100000 on.
const UIDS: std::ops::RangeInclusive<u32> = 70_000..=74_095;

/// Why an agent has no place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A directory.
    #[error("cannot use {}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
    /// More agents than ids.
    #[error("there are more agents than user ids for their workers ({} to {})", UIDS.start(), UIDS.end())]
    TooMany,
    /// The socket.
    #[error(transparent)]
    Socket(#[from] serve::Error),
    /// Loopback.
    #[error("http_port {0} cannot be listened on")]
    Port(u16, #[source] io::Error),
}

/// Makes the directory of an agent's worker, if it is not there, and gives the user id of its worker: the directory's owner.
pub(super) fn own_dir(paths: &Paths, name: &str) -> Result<(PathBuf, u32), Error> {
    let all = paths.agents();
    let dir = all.join(name);
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Dir(path, source)
    };
    // Others than the worker see nothing in it but their own.
    make_dir(&all, 0o711).map_err(fail(&all))?;
    let mut taken = Vec::new();
    for entry in fs::read_dir(&all).map_err(fail(&all))? {
        let entry = entry.map_err(fail(&all))?;
        let owner = entry.metadata().map_err(fail(&all))?.uid();
        if UIDS.contains(&owner) {
            if entry.file_name().as_encoded_bytes() == name.as_bytes() {
                return Ok((dir, owner));
            }
            taken.push(owner);
        }
    }
    let uid = UIDS.into_iter().find(|uid| !taken.contains(uid)).ok_or(Error::TooMany)?;
    make_dir(&dir, 0o700).map_err(fail(&dir))?;
    give(&dir, uid).map_err(fail(&dir))?;
    Ok((dir, uid))
}

/// The socket and the link to it, as they are in the directory of all sockets.
pub(super) fn socket(paths: &Paths, name: &str) -> (PathBuf, PathBuf) {
    let all = paths.agent_sockets();
    (paths.agent_socket(name), all.join(format!("{name}.sock")))
}

/// What a profile wants of an agent's sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Whose they are.
    pub(super) owner: u32,
    /// The provider's own API is served.
    pub(super) http: bool,
    /// On this port of loopback, too.
    pub(super) port: Option<u16>,
}

/// What an agent's worker listens on.
#[derive(Debug)]
pub(super) struct Sockets {
    wanted: Wanted,
    agent: Listener<UnixListener>,
    /// The provider's own API, where the profile has it served.
    http: Option<Listener<UnixListener>>,
    /// The same on loopback.
    loopback: Option<Listener<TcpListener>>,
}

/// One of them.
#[derive(Debug)]
struct Listener<T> {
    kind: Kind,
    /// The inode of its file, or its port.
    number: u64,
    socket: T,
    /// The service manager's copy, where it has one.
    stored: Option<Stored>,
}

impl<T: AsFd> Listener<T> {
    fn new((kind, number): (Kind, u64), socket: T, store: &Arc<Store>, agent: &str) -> Self {
        let stored = store.keep(kind, number, agent, socket.as_fd());
        Self { kind, number, socket, stored }
    }
}

impl<T: Into<OwnedFd>> Listener<T> {
    fn loose(self) -> Loose {
        Listener { kind: self.kind, number: self.number, socket: self.socket.into(), stored: self.stored }
    }
}

/// A socket that may be what is wanted, or not.
type Loose = Listener<OwnedFd>;

impl From<Handed> for Loose {
    fn from(Handed { kind, number, fd, stored }: Handed) -> Self {
        Self { kind, number, socket: fd, stored: Some(stored) }
    }
}

impl Loose {
    /// Whether it listens at this path, and the file there is its own: who connects there gets nobody else.
    fn is_at(&self, kind: Kind, path: &Path) -> bool {
        let bound = || {
            let socket = UnixListener::from(self.socket.try_clone()?);
            let file = path.symlink_metadata()?;
            let is_there = socket.local_addr()?.as_pathname() == Some(path);
            Ok::<_, io::Error>(is_there && file.file_type().is_socket() && file.ino() == self.number)
        };
        self.kind == kind && listens(&self.socket, AddressFamily::UNIX) && bound().unwrap_or(false)
    }

    /// Whether it listens on this port of loopback.
    fn is_on(&self, port: u16) -> bool {
        let bound = || TcpListener::from(self.socket.try_clone()?).local_addr();
        self.kind == Kind::Loopback
            && listens(&self.socket, AddressFamily::INET)
            && bound().is_ok_and(|at| at == (Ipv4Addr::LOCALHOST, port).into())
    }

    fn unix(self) -> Listener<UnixListener> {
        let Self { kind, number, socket, stored } = self;
        Listener { kind, number, socket: socket.into(), stored }
    }

    fn tcp(self) -> Listener<TcpListener> {
        let Self { kind, number, socket, stored } = self;
        Listener { kind, number, socket: socket.into(), stored }
    }
}

/// Whether a descriptor is a listening stream socket of this family.
fn listens(fd: &OwnedFd, family: AddressFamily) -> bool {
    sockopt::socket_domain(fd) == Ok(family)
        && sockopt::socket_type(fd) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(fd) == Ok(true)
}

impl Sockets {
    /// An agent's sockets: 0600 in a directory of its own, 0700, all its owner's. Those of `before`, and those that the
    /// service manager kept, are used again where they are what is wanted; the others are closed, and bound anew.
    pub(super) fn bind(
        paths: &Paths,
        name: &str,
        wanted: Wanted,
        before: Option<Self>,
        store: &Arc<Store>,
    ) -> Result<Self, Error> {
        let Wanted { owner, http, port } = wanted;
        let all = paths.agent_sockets();
        let (path, link) = socket(paths, name);
        let http_path = paths.agent_http_socket(name);
        let dir = all.join(name);
        let fail = |source| Error::Dir(dir.clone(), source);
        make_dir(&all, 0o711).map_err(fail)?;
        // What was given away is taken back first: root without CAP_DAC_OVERRIDE enters no other's directory.
        if dir.symlink_metadata().is_ok_and(|found| found.is_dir()) {
            give(&dir, 0).map_err(fail)?;
        }
        let mut loose = before.map(Self::loosen).unwrap_or_default();
        loose.extend(store.take(name).into_iter().map(Loose::from));
        let mut reuse = |kind, path: &Path| {
            let old = extract(&mut loose, |one| one.is_at(kind, path))?;
            // Whom the file let in as another's is not to wait for this one's worker.
            if path.symlink_metadata().is_ok_and(|file| file.uid() == owner) {
                return Some(old);
            }
            let _ = fs::remove_file(path);
            None
        };
        let old_agent = reuse(Kind::Agent, &path);
        let old_http = http.then(|| reuse(Kind::Http, &http_path)).flatten();
        let old_loopback = extract(&mut loose, |one| port.is_some_and(|port| one.is_on(port)));
        // Before anything is bound: one may have the port that another wants.
        drop(loose);
        let loopback = match (port, old_loopback) {
            (Some(_), Some(old)) => Some(old.tcp()),
            (Some(port), None) => {
                let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
                let bound = bound.map_err(|source| Error::Port(port, source))?;
                Some(Listener::new((Kind::Loopback, port.into()), bound, store, name))
            }
            (None, _) => None,
        };
        let unix = |kind, path: &Path, old: Option<Loose>| -> Result<_, Error> {
            let listener = match old {
                Some(old) => old.unix(),
                None => {
                    let bound = serve::bind(path)?;
                    let inode = path.symlink_metadata().map_err(fail)?.ino();
                    Listener::new((kind, inode), bound, store, name)
                }
            };
            fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(fail)?;
            give(path, owner).map_err(fail)?;
            Ok(listener)
        };
        let agent = unix(Kind::Agent, &path, old_agent)?;
        serve::link(&link, &path)?;
        let http = if http {
            Some(unix(Kind::Http, &http_path, old_http)?)
        } else {
            // Of a profile that had one.
            let _ = fs::remove_file(&http_path);
            None
        };
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).map_err(fail)?;
        give(&dir, owner).map_err(fail)?;
        Ok(Self { wanted, agent, http, loopback })
    }

    /// Whether they are what a profile wants.
    pub(super) fn fit(&self, wanted: Wanted) -> bool {
        self.wanted == wanted
    }

    /// In the order in which a worker is handed them.
    pub(super) fn each(&self) -> Vec<BorrowedFd<'_>> {
        let unix = [&self.agent].into_iter().chain(&self.http).map(|one| one.socket.as_fd());
        unix.chain(self.loopback.iter().map(|one| one.socket.as_fd())).collect()
    }

    /// Whether the provider's own API is among them: on a unix socket, and on loopback.
    pub(super) fn has_http(&self) -> (bool, bool) {
        (self.http.is_some(), self.loopback.is_some())
    }

    /// Leaves them to the next daemon; their files stay. False: the service manager has not got all of them, and they are
    /// closed.
    pub(super) fn leave(self) -> bool {
        let stored: Vec<_> = self.loosen().into_iter().map(|one| one.stored).collect();
        let all = stored.iter().all(Option::is_some);
        if all {
            stored.into_iter().flatten().for_each(Stored::leave);
        }
        all
    }

    fn loosen(self) -> Vec<Loose> {
        let unix = [self.agent].into_iter().chain(self.http).map(Listener::loose);
        unix.chain(self.loopback.map(Listener::loose)).collect()
    }
}

fn extract(loose: &mut Vec<Loose>, is_wanted: impl FnMut(&Loose) -> bool) -> Option<Loose> {
    let at = loose.iter().position(is_wanted)?;
    Some(loose.swap_remove(at))
}

/// Removes the sockets of agents that are no more: their profiles went while no daemon ran.
pub(super) fn clear(paths: &Paths, mut is_there: impl FnMut(&str) -> bool) {
    let Ok(entries) = fs::read_dir(paths.agent_sockets()) else { return };
    for entry in entries.flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if let Some(name) = entry.file_name().to_str().filter(|name| is_dir && !is_there(name)) {
            unbind(paths, name);
        }
    }
}

/// Removes an agent's sockets.
pub(super) fn unbind(paths: &Paths, name: &str) {
    let (socket, link) = socket(paths, name);
    if let Some(dir) = socket.parent() {
        let _ = give(dir, 0);
    }
    let _ = fs::remove_file(paths.agent_http_socket(name));
    serve::unbind(&link, &socket);
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().recursive(true).mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, Permissions::from_mode(mode))
}

fn give(path: &Path, uid: u32) -> io::Result<()> {
    Ok(chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(uid)))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(dir: &Path) -> Paths {
        Paths {
            runtime: dir.join("run"),
            state: dir.join("state"),
            config: dir.join("etc"),
            pins: dir.join("pins"),
        }
    }

    /// Without a service manager, and none of before.
    fn bind(paths: &Paths, name: &str, wanted: Wanted) -> Result<Sockets, Error> {
        Sockets::bind(paths, name, wanted, None, &Store::new(None, Vec::new()))
    }

    #[test]
    fn each_agent_has_a_user_id_of_its_own_and_keeps_it() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        let (a_dir, a) = own_dir(&paths, "a").unwrap();
        let (_, b) = own_dir(&paths, "b").unwrap();
        assert_ne!(a, b);
        assert!(UIDS.contains(&a) && UIDS.contains(&b));
        assert_eq!(own_dir(&paths, "a").unwrap().1, a);
        let meta = fs::metadata(&a_dir).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (a, 0o700));
        fs::remove_dir(&a_dir).unwrap();
        assert_eq!(own_dir(&paths, "c").unwrap().1, a, "an id that nobody has is given out again");
    }

    #[test]
    fn a_socket_is_its_owner_s_and_is_bound_again() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(dir.path());
        // A port that is free now; the system gives out others for long.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let wanted = Wanted { owner: 1234, http: true, port: Some(port) };
        for _ in 0..2 {
            let sockets = bind(&paths, "a", wanted).unwrap();
            assert!(sockets.fit(wanted) && !sockets.fit(Wanted { owner: 0, ..wanted }));
            assert!(
                !sockets.fit(Wanted { http: false, ..wanted })
                    && !sockets.fit(Wanted { port: None, ..wanted })
            );
            std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
            assert!(matches!(bind(&paths, "b", wanted), Err(Error::Port(..))), "it is taken");
            let (path, link) = socket(&paths, "a");
            let http = paths.agent_http_socket("a");
            for (path, mode) in [(&*path, 0o600), (&*http, 0o600), (path.parent().unwrap(), 0o700)] {
                let meta = fs::metadata(path).unwrap();
                assert_eq!((meta.uid(), meta.mode() & 0o777), (1234, mode), "{}", path.display());
            }
            std::os::unix::net::UnixStream::connect(link).unwrap();
            std::os::unix::net::UnixStream::connect(http).unwrap();
            drop(sockets);
        }
        let wanted = Wanted { owner: 1234, http: false, port: None };
        let sockets = bind(&paths, "a", wanted).unwrap();
        assert!(sockets.has_http() == (false, false) && !paths.agent_http_socket("a").exists());
        unbind(&paths, "a");
        assert!(!socket(&paths, "a").0.parent().unwrap().exists());
    }
}
