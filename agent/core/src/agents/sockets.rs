//! What an agent has on this host: the user id and the directory of its worker, its sockets.
//!
//! A worker's user id is a number of its own, in a range that neither distributions nor container engines nor systemd
//! give out, and needs no entry in the user database. It is kept as the owner of that directory.

use super::store::{Handed, Kind, Store, Stored};
use crate::containers::random_hex;
use ringfence_base::{
    error::chain,
    loopback,
    paths::{AGENT_SOCKET, HTTP_SOCKET, Paths},
    sockets as base_sockets,
};
use ringfence_files::{Dir, Entry, Meta};
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::{
    ffi::{OsStr, OsString},
    io,
    net::{Ipv4Addr, TcpListener},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixListener,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

/// User ids of workers. Debian and systemd give out ids below 65536, `useradd` subordinate ones from 100000 on.
const UIDS: std::ops::RangeInclusive<u32> = 70_000..=74_095;

/// Why an agent has no directory or no socket.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// A directory.
    #[error("cannot use {}", .0.display())]
    Dir(PathBuf, #[source] io::Error),
    /// More agents than ids.
    #[error("there are more agents than user ids for their workers ({} to {})", UIDS.start(), UIDS.end())]
    TooMany,
    /// The socket.
    #[error(transparent)]
    Socket(#[from] base_sockets::Error),
    /// Loopback.
    #[error("http_port {0} cannot be listened on")]
    Port(u16, #[source] io::Error),
}

/// Makes the directory of an agent's worker, if it is not there, and gives the user id of its worker: the directory's owner.
pub(super) fn worker_dir(paths: &Paths, name: &str) -> Result<(PathBuf, u32), Error> {
    let fail = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Dir(path, source)
    };
    // Others than the worker see nothing in it but their own.
    let all = root_dir(&paths.agents(), 0o711)?;
    let own = all.path().join(name);
    let mut taken = Vec::new();
    for there in all.names().map_err(fail(all.path()))? {
        let entry = all.entry(&there).map_err(fail(all.path()))?;
        let Some(meta) = entry.map(|entry| entry.meta()).transpose().map_err(fail(all.path()))? else {
            continue;
        };
        if UIDS.contains(&meta.uid) {
            if there == name && meta.is_dir() {
                return Ok((own, meta.uid));
            }
            taken.push(meta.uid);
        }
    }
    let uid = UIDS.into_iter().find(|uid| !taken.contains(uid)).ok_or(Error::TooMany)?;
    let made = || {
        let dir = all.make_below(name.as_ref(), 0o700)?;
        dir.take_back()?;
        dir.set_owner(uid, uid)
    };
    made().map_err(fail(&own))?;
    Ok((own, uid))
}

/// Makes a directory of ours for all agents, by a way that nobody else can change.
fn root_dir(path: &Path, mode: u32) -> Result<Dir, Error> {
    let made = || {
        let dir = Dir::make_trusted(path, mode)?;
        dir.require_own()?;
        dir.set_mode(mode)?;
        Ok(dir)
    };
    made().map_err(|source| Error::Dir(path.to_owned(), source))
}

/// The socket and the link to it, as they are in the directory of all sockets.
pub(super) fn paths_of(paths: &Paths, name: &str) -> (PathBuf, PathBuf) {
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
    /// Why it is not on the port that is wanted.
    missing_port: Option<String>,
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

impl<T> Listener<T> {
    /// The same, its socket as another type.
    fn convert<U: From<T>>(self) -> Listener<U> {
        Listener { kind: self.kind, number: self.number, socket: self.socket.into(), stored: self.stored }
    }
}

/// A socket that may be what is wanted, or not.
type Candidate = Listener<OwnedFd>;

impl From<Handed> for Candidate {
    fn from(Handed { kind, number, fd, stored }: Handed) -> Self {
        Self { kind, number, socket: fd, stored: Some(stored) }
    }
}

impl Candidate {
    /// Whether it listens at this path, and the file there is its own: who connects there gets nobody else. The file's
    /// number is not given to another while the socket is there.
    fn is_at(&self, kind: Kind, path: &Path, file: &Meta) -> bool {
        let bound = || {
            let socket = UnixListener::from(self.socket.try_clone()?);
            Ok::<_, io::Error>(socket.local_addr()?.as_pathname() == Some(path))
        };
        self.kind == kind
            && file.is_socket()
            && file.ino == self.number
            && listens(&self.socket, AddressFamily::UNIX)
            && bound().unwrap_or(false)
    }

    /// Whether it listens on this port of loopback.
    fn is_on(&self, port: u16) -> bool {
        let bound = || TcpListener::from(self.socket.try_clone()?).local_addr();
        self.kind == Kind::Loopback
            && listens(&self.socket, AddressFamily::INET)
            && bound().is_ok_and(|at| at == (Ipv4Addr::LOCALHOST, port).into())
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
        let all = root_dir(&paths.agent_sockets(), 0o711)?;
        let here = all.path().join(name);
        let fail = |source| Error::Dir(here.clone(), source);
        let dir = all.make_below(name.as_ref(), 0o700).map_err(fail)?;
        // Its owner chose its mode and put there what they liked: from here on nobody changes it but us.
        dir.take_back().map_err(fail)?;
        let mut candidates = before.map(Self::into_candidates).unwrap_or_default();
        candidates.extend(store.take(name).into_iter().map(Candidate::from));
        let mut reuse = |kind, file: &OsStr| {
            let entry = dir.entry(file).ok()??;
            let meta = entry.meta().ok()?;
            let old = extract(&mut candidates, |one| one.is_at(kind, &here.join(file), &meta))?;
            if meta.uid == owner {
                return Some((old, entry));
            }
            // Whom the file let in as another's is not to wait for this one's worker.
            let _ = dir.remove(file);
            None
        };
        let (agent, api) = (OsStr::new(AGENT_SOCKET), OsStr::new(HTTP_SOCKET));
        let old_agent = reuse(Kind::Agent, agent);
        let old_http = http.then(|| reuse(Kind::Http, api)).flatten();
        let old_loopback = extract(&mut candidates, |one| port.is_some_and(|port| one.is_on(port)));
        // Before anything is bound: one may have the port that another wants.
        drop(candidates);
        let (loopback, missing_port) = match (port, old_loopback) {
            (Some(_), Some(old)) => (Some(old.convert::<TcpListener>()), None),
            // Anybody can have it, which is no reason why nobody else is served.
            (Some(port), None) => match loopback::listen(port) {
                Ok(bound) => (Some(Listener::new((Kind::Loopback, port.into()), bound, store, name)), None),
                Err(source) => (None, Some(chain(&Error::Port(port, source)))),
            },
            (None, _) => (None, None),
        };
        let unix = |kind, file: &OsStr, old: Option<(Candidate, Entry)>| -> Result<_, Error> {
            let (listener, entry) = match old {
                Some((old, entry)) => (old.convert::<UnixListener>(), entry),
                None => {
                    clear_name(&dir, file).map_err(fail)?;
                    let (bound, entry) = base_sockets::bind_in(&dir, file)?;
                    let inode = entry.meta().map_err(fail)?.ino;
                    (Listener::new((kind, inode), bound, store, name), entry)
                }
            };
            entry.hand_over(0o600, owner, owner).map_err(fail)?;
            Ok(listener)
        };
        let agent = unix(Kind::Agent, agent, old_agent)?;
        let (file, target) = (format!("{name}.sock"), Path::new(name).join(AGENT_SOCKET));
        base_sockets::link_in(&all, file.as_ref(), &target)?;
        let http = if http {
            Some(unix(Kind::Http, api, old_http)?)
        } else {
            // Of a profile that had one.
            clear_name(&dir, api).map_err(fail)?;
            None
        };
        dir.set_owner(owner, owner).map_err(fail)?;
        Ok(Self { wanted, agent, http, loopback, missing_port })
    }

    /// Whether they are what a profile wants.
    pub(super) fn matches(&self, wanted: Wanted) -> bool {
        self.wanted == wanted && self.missing_port.is_none()
    }

    /// Why the port that the profile wants is not listened on.
    pub(super) fn missing_port(&self) -> Option<&str> {
        self.missing_port.as_deref()
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
        let stored: Vec<_> = self.into_candidates().into_iter().map(|one| one.stored).collect();
        let all = stored.iter().all(Option::is_some);
        if all {
            stored.into_iter().flatten().for_each(Stored::leave);
        }
        all
    }

    fn into_candidates(self) -> Vec<Candidate> {
        let unix = [self.agent].into_iter().chain(self.http).map(Listener::convert::<OwnedFd>);
        unix.chain(self.loopback.map(Listener::convert::<OwnedFd>)).collect()
    }
}

/// Makes a name free for a socket, whoever has it, in a directory that was taken back: an earlier owner may have left a
/// directory there, or may serve a socket of their own, so that the next owner's agent has none. What is no socket and no
/// link is moved aside, not removed: its owner may want it.
fn clear_name(dir: &Dir, file: &OsStr) -> io::Result<()> {
    let Some(entry) = dir.entry(file)? else { return Ok(()) };
    let found = entry.meta()?;
    if found.is_socket() || found.is_symlink() {
        return dir.remove(file).map(drop);
    }
    // A name that nobody can have taken before.
    let aside = OsString::from(format!("{}.{}", file.to_string_lossy(), random_hex::<8>()?));
    dir.rename(file, &aside)?;
    let (path, aside) = (dir.path().join(file), dir.path().join(aside));
    tracing::warn!("{} was no socket: it is now {}", path.display(), aside.display());
    Ok(())
}

fn extract(candidates: &mut Vec<Candidate>, is_wanted: impl FnMut(&Candidate) -> bool) -> Option<Candidate> {
    let at = candidates.iter().position(is_wanted)?;
    Some(candidates.swap_remove(at))
}

/// Removes the sockets of agents that are no more: their profiles went while no daemon ran.
pub(super) fn remove_stale(paths: &Paths, mut is_there: impl FnMut(&str) -> bool) {
    let Ok(all) = Dir::open_trusted(&paths.agent_sockets()) else { return };
    for name in all.names().unwrap_or_default() {
        let is_dir =
            all.entry(&name).ok().flatten().is_some_and(|one| one.meta().is_ok_and(|one| one.is_dir()));
        if let Some(name) = name.to_str().filter(|name| is_dir && !is_there(name)) {
            unbind(paths, name);
        }
    }
}

/// Removes an agent's sockets.
pub(super) fn unbind(paths: &Paths, name: &str) {
    let removed = || {
        let all = Dir::open_trusted(&paths.agent_sockets())?;
        all.remove(format!("{name}.sock").as_ref())?;
        let dir = all.below(name.as_ref())?;
        dir.take_back()?;
        dir.remove(AGENT_SOCKET.as_ref())?;
        dir.remove(HTTP_SOCKET.as_ref())?;
        all.remove_dir(name.as_ref())
    };
    match removed() {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!("agent {name}: its sockets cannot be removed: {error}");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
