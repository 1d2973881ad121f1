//! The service manager's store of descriptors: who connects to an agent while the daemon is away waits, and is served.
//!
//! Each listener is stored under a name, `KIND.NUMBER.AGENT`, in which the number is the inode of the socket's file, or the
//! port: what comes back at the next start is taken only where that file is still the one that the socket was bound to.

use ringfence_wire::rights;
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::SendFlags,
    time::Timespec,
};
use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    io::{self, IoSlice, PipeReader},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        linux::net::SocketAddrExt,
        unix::{
            ffi::OsStrExt,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Most bytes of a descriptor's name (sd_pid_notify_with_fds(3)).
const LONGEST: usize = 255;
/// The name of what shows whether there is a store.
const WITNESS: &str = "witness";
/// How long the service manager may take to take a message.
const BRIEF: Duration = Duration::from_secs(5);

/// What a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The agent's socket.
    Agent,
    /// The provider's own API beside it.
    Http,
    /// The same on loopback.
    Loopback,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Http => "http",
            Self::Loopback => "loopback",
        }
    }
}

/// What a name says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Label<'a> {
    kind: Kind,
    number: u64,
    agent: &'a str,
}

impl<'a> Label<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let mut parts = name.splitn(3, '.');
        let word = parts.next()?;
        let kind = [Kind::Agent, Kind::Http, Kind::Loopback].into_iter().find(|kind| kind.word() == word)?;
        let number = parts.next()?.parse().ok()?;
        let label = Self { kind, number, agent: parts.next()? };
        // One listener has one name: it is removed by it.
        (label.name()? == name).then_some(label)
    }

    /// None: the service manager would not take it.
    fn name(self) -> Option<String> {
        let name = format!("{}.{}.{}", self.kind.word(), self.number, self.agent);
        let fits = name.len() <= LONGEST && name.bytes().all(|b| (b' '..0x7f).contains(&b) && b != b':');
        (fits && !self.agent.is_empty()).then_some(name)
    }
}

/// A listener that came back.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) kind: Kind,
    /// The inode of its file, or its port.
    pub(super) number: u64,
    pub(super) fd: OwnedFd,
    pub(super) stored: Stored,
}

/// The store's copy of a listener: removed when this is dropped, so that nobody waits for an agent that is gone.
#[derive(Debug)]
pub(super) struct Stored {
    name: String,
    store: Arc<Store>,
    stays: bool,
}

impl Stored {
    /// For the next daemon.
    pub(super) fn leave(mut self) {
        self.stays = true;
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        if !self.stays {
            self.store.remove(&self.name);
        }
    }
}

/// See the module. Without a service manager it keeps nothing.
#[derive(Debug, Default)]
pub struct Store {
    manager: Option<SocketAddr>,
    /// Listeners that came back, by name, until their agents take them.
    handed: Mutex<BTreeMap<String, OwnedFd>>,
    /// Closed at the other end where nothing is stored.
    witness: Option<PipeReader>,
}

impl Store {
    /// That of the service manager named by `NOTIFY_SOCKET`, if there is one, with what it handed over.
    pub fn from_env(handed: Vec<(String, OwnedFd)>) -> Arc<Self> {
        Self::new(env::var_os("NOTIFY_SOCKET").as_deref().and_then(address), handed)
    }

    pub(super) fn new(manager: Option<SocketAddr>, handed: Vec<(String, OwnedFd)>) -> Arc<Self> {
        let mut store = Self { manager, ..Self::default() };
        let mut known = BTreeMap::new();
        for (name, fd) in handed {
            if Label::parse(&name).is_some() {
                known.entry(name).or_insert(fd);
            } else if !name.is_empty() {
                drop(fd);
                store.remove(&name);
            }
        }
        store.handed = Mutex::new(known);
        store.witness = store.witness();
        Arc::new(store)
    }

    fn handed(&self) -> MutexGuard<'_, BTreeMap<String, OwnedFd>> {
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores one end of a pipe: what is not kept is closed, and that can be seen at the other. The manager gives it up by
    /// itself when this process ends.
    fn witness(&self) -> Option<PipeReader> {
        self.manager.as_ref()?;
        let stored = io::pipe().and_then(|(read, write)| {
            self.tell(&format!("FDSTORE=1\nFDNAME={WITNESS}\n"), Some(write.as_fd())).map(|()| read)
        });
        stored
            .inspect_err(|error| tracing::warn!("the service manager keeps no sockets for agents: {error}"))
            .ok()
    }

    /// Whether what is stored is kept for the next daemon, as far as it can be seen from here.
    pub(super) fn keeps(&self) -> bool {
        let Some(witness) = &self.witness else { return false };
        let mut polled = [PollFd::new(witness, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut polled, Some(&now)), Ok(0))
    }

    /// Stores a listener. None: it is bound anew at the next start.
    pub(super) fn keep(
        self: &Arc<Self>,
        kind: Kind,
        number: u64,
        agent: &str,
        listener: BorrowedFd<'_>,
    ) -> Option<Stored> {
        self.witness.as_ref()?;
        let name = Label { kind, number, agent }.name()?;
        match self.tell(&format!("FDSTORE=1\nFDNAME={name}\n"), Some(listener)) {
            Ok(()) => Some(self.stored(name)),
            Err(error) => {
                tracing::warn!(
                    "agent {agent}: the service manager does not keep its {} socket: {error}",
                    kind.word()
                );
                None
            }
        }
    }

    fn stored(self: &Arc<Self>, name: String) -> Stored {
        Stored { name, store: Arc::clone(self), stays: false }
    }

    /// What came back of an agent's.
    pub(super) fn take(self: &Arc<Self>, agent: &str) -> Vec<Handed> {
        let of_agent = |name: &String| Label::parse(name).is_some_and(|label| label.agent == agent);
        let taken: Vec<_> = self.handed().extract_if(.., |name, _| of_agent(name)).collect();
        let handed = taken.into_iter().filter_map(|(name, fd)| {
            let Label { kind, number, .. } = Label::parse(&name)?;
            Some(Handed { kind, number, fd, stored: self.stored(name) })
        });
        handed.collect()
    }

    /// Closes and removes what came back of agents that are no more.
    pub(super) fn retain(&self, mut is_there: impl FnMut(&str) -> bool) {
        let mut is_gone = |name: &String| !Label::parse(name).is_some_and(|label| is_there(label.agent));
        let gone: Vec<_> = self.handed().extract_if(.., |name, _| is_gone(name)).collect();
        for (name, fd) in gone {
            drop(fd);
            self.remove(&name);
        }
    }

    fn remove(&self, name: &str) {
        if let Err(error) = self.tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}\n"), None) {
            tracing::warn!("the service manager still keeps the socket {name}: {error}");
        }
    }

    fn tell(&self, message: &str, fd: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let Some(manager) = &self.manager else { return Ok(()) };
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(BRIEF))?;
        socket.connect_addr(manager)?;
        rights::send(&socket, &[IoSlice::new(message.as_bytes())], fd.as_slice(), SendFlags::empty())?;
        Ok(())
    }
}

/// As sd_notify(3) has it: a path, or a name after an `@`.
fn address(text: &OsStr) -> Option<SocketAddr> {
    match text.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).ok(),
        [b'/', ..] => SocketAddr::from_pathname(text).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
