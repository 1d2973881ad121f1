//! Who is at the other end of a connection, in the kernel's terms; and how many connections each user may have.

use super::waiting::Refused;
use crate::{
    auditor::keeper::chain,
    core::peer::{self, Peer},
};
use ringfence_wire::{
    audit::{PeerFacts, PeerQuestion},
    conn::Conn,
    message::Reply,
};
use std::{
    collections::HashMap,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{Arc, Mutex, PoisonError},
};

/// Where the facts about a peer come from. Where they cannot be had, nobody is believed.
#[derive(Debug)]
pub(crate) enum Vouching {
    /// /proc, which a user's own auditor sees. It does not see who is governed: without the core, nobody is.
    Proc,
    /// The core: the daemon's auditor is shut off from /proc and from the kernel's tags.
    Core(Mutex<Conn>),
    /// Nobody: the core gave no socket to ask.
    Nobody,
}

impl Vouching {
    /// What the kernel says of whoever made a connection.
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub(crate) fn facts(&self, connection: &UnixStream) -> Result<PeerFacts, Refused> {
        match self {
            Self::Proc => Peer::of(connection)
                .and_then(|peer| peer::lineage(&peer))
                .map(|lineage| PeerFacts { lineage, governed: false })
                .map_err(|error| Refused::Unknown(chain(&error))),
            Self::Core(core) => {
                let mut core = core.lock().unwrap_or_else(PoisonError::into_inner);
                core.send_with_descriptors(&PeerQuestion {}, &[connection.as_fd()])
                    .and_then(|()| core.receive::<Reply<PeerFacts>>())
                    .map_err(|error| {
                        // A late answer would be taken for the next one's.
                        let _ = core.stream().shutdown(std::net::Shutdown::Both);
                        Refused::Unknown(format!("the daemon does not answer: {}", chain(&error)))
                    })?
                    .into_result()
                    .map_err(|failure| Refused::Unknown(failure.error))
            }
            Self::Nobody => Err(Refused::Unknown("the daemon cannot be asked".to_owned())),
        }
    }
}

/// Bounds on what users have open at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// All users but root together; root has as many of its own.
    pub(crate) all: usize,
    /// One user but root.
    pub(crate) each: usize,
}

/// What users have open, counted.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    counts: Arc<Mutex<HashMap<u32, usize>>>,
    bounds: Bounds,
}

impl Open {
    /// Nothing yet.
    pub(crate) fn within(bounds: Bounds) -> Self {
        Self { counts: Arc::default(), bounds }
    }

    /// One more, until the place is dropped. `None`: the user has enough, or all users have.
    pub(crate) fn take(&self, uid: u32) -> Option<Place> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(&uid).copied().unwrap_or(0);
        let users: usize = counts.iter().filter(|(uid, _)| **uid != 0).map(|(_, n)| n).sum();
        let Bounds { all, each } = self.bounds;
        let room = if uid == 0 { own < all } else { own < each && users < all };
        if !room {
            return None;
        }
        *counts.entry(uid).or_default() += 1;
        Some(Place { open: self.clone(), uid })
    }

    /// How many `uid` has; for root, how many there are.
    pub(crate) fn count(&self, uid: u32) -> usize {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if uid == 0 { counts.values().sum() } else { counts.get(&uid).copied().unwrap_or(0) }
    }
}

/// One of what a user has open; given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    open: Open,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.open.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = counts.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bounds, Open, Vouching};
    use std::os::unix::net::UnixStream;

    #[test]
    fn one_user_keeps_nobody_else_out() {
        let open = Open::within(Bounds { all: 5, each: 3 });
        let first: Vec<_> = (0..9).map_while(|_| open.take(1000)).collect();
        assert_eq!(first.len(), 3);
        let second: Vec<_> = (0..9).map_while(|_| open.take(1001)).collect();
        assert_eq!(second.len(), 2, "all users together");
        let root = open.take(0).expect("root has places of its own");
        assert_eq!((open.count(1000), open.count(0)), (3, 6));
        drop((first, root));
        assert!(open.take(1000).is_some());
    }

    #[test]
    fn who_cannot_be_asked_about_is_refused() {
        let (here, _there) = UnixStream::pair().expect("a pair");
        let facts = Vouching::Proc.facts(&here).expect("this very process");
        assert_eq!(facts.lineage[0], std::process::id());
        assert!(Vouching::Nobody.facts(&here).is_err());
    }
}
