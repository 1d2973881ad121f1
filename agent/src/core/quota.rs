//! How much one user may ask for, so that nobody keeps the others from being served.

use ringfence_common::MAX_CONTAINERS;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

/// Most live containers of one user who is not root.
pub(crate) const CONTAINERS_PER_UID: usize = 64;
/// Most live containers of all users who are not root: root can always add one.
pub(crate) const CONTAINERS_OF_USERS: usize = MAX_CONTAINERS / 4 * 3;
/// Most connections of one user that are being served.
pub(crate) const CONNECTIONS_PER_UID: usize = 8;
/// Most connections that are being served.
pub(crate) const CONNECTIONS: usize = 64;

/// Why somebody is not served now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QuotaError {
    /// Too many containers of this user.
    #[error("user {uid} has {CONTAINERS_PER_UID} containers, which is the most; wait until one ends")]
    Containers {
        /// The user.
        uid: u32,
    },
    /// Too many containers of all users.
    #[error(
        "there are {CONTAINERS_OF_USERS} containers of users, which is the most; the rest is kept for root"
    )]
    AllUsers,
    /// Too many connections.
    #[error("too many requests of user {uid} at once; try again")]
    Connections {
        /// The user.
        uid: u32,
    },
}

/// Checks whether a user may have one more container, given the owners of those that live.
///
/// # Errors
/// [`QuotaError`]; never for root, whose limit is the kernel table's.
pub(crate) fn one_more(uid: u32, live: impl Iterator<Item = u32>) -> Result<(), QuotaError> {
    if uid == 0 {
        return Ok(());
    }
    let (mut own, mut users) = (0, 0);
    for owner in live.filter(|owner| *owner != 0) {
        users += 1;
        own += usize::from(owner == uid);
    }
    if own >= CONTAINERS_PER_UID {
        Err(QuotaError::Containers { uid })
    } else if users >= CONTAINERS_OF_USERS {
        Err(QuotaError::AllUsers)
    } else {
        Ok(())
    }
}

/// Connections being served, by user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connections(Arc<Mutex<HashMap<u32, usize>>>);

impl Connections {
    /// Takes a place for a connection of a user; it is given back when the result is dropped.
    ///
    /// # Errors
    /// [`QuotaError::Connections`]. Root's own limit is the whole: it is not kept out by users.
    pub(crate) fn take(&self, uid: u32) -> Result<Place, QuotaError> {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = served.get(&uid).copied().unwrap_or(0);
        let users: usize = served.iter().filter(|(uid, _)| **uid != 0).map(|(_, n)| n).sum();
        let room =
            if uid == 0 { own < CONNECTIONS } else { own < CONNECTIONS_PER_UID && users < CONNECTIONS };
        if !room {
            return Err(QuotaError::Connections { uid });
        }
        *served.entry(uid).or_default() += 1;
        Ok(Place { connections: self.clone(), uid })
    }
}

/// A connection's place among those being served.
#[derive(Debug)]
pub(crate) struct Place {
    connections: Connections,
    uid: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut served = self.connections.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(n) = served.get_mut(&self.uid) {
            *n -= 1;
            if *n == 0 {
                served.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;

    #[test]
    fn a_user_s_own_limit_does_not_bind_others() {
        let full = || repeat_n(1000, CONTAINERS_PER_UID);
        assert_eq!(one_more(1000, full()), Err(QuotaError::Containers { uid: 1000 }));
        assert_eq!(one_more(1000, full().skip(1)), Ok(()));
        assert_eq!(one_more(1001, full()), Ok(()));
    }

    #[test]
    fn users_together_leave_room_for_root() {
        let users = || (0..CONTAINERS_OF_USERS).map(|n| 2000 + n as u32);
        assert_eq!(one_more(1000, users()), Err(QuotaError::AllUsers));
        assert_eq!(one_more(0, users()), Ok(()));
        assert_eq!(one_more(1000, repeat_n(0, MAX_CONTAINERS)), Ok(()));
    }

    #[test]
    fn connections_are_given_back() {
        let connections = Connections::default();
        let places: Vec<_> = (0..CONNECTIONS_PER_UID).map(|_| connections.take(1000).unwrap()).collect();
        assert_eq!(connections.take(1000).unwrap_err(), QuotaError::Connections { uid: 1000 });
        let other = connections.take(1001).unwrap();
        drop(places);
        assert!(connections.take(1000).is_ok());
        drop(other);
        assert!(connections.0.lock().unwrap().is_empty());
    }

    #[test]
    fn users_together_do_not_keep_root_out() {
        let connections = Connections::default();
        let places: Vec<_> = (0..)
            .map_while(|n| connections.take(1000 + n / CONNECTIONS_PER_UID as u32).ok())
            .take(CONNECTIONS + 1)
            .collect();
        assert_eq!(places.len(), CONNECTIONS);
        assert!(connections.take(0).is_ok());
    }
}
