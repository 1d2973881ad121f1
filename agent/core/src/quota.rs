//! How many containers one user may have, so that nobody keeps the others from having any. Connections: [`ringfence_base::quota`].

use ringfence_common::MAX_CONTAINERS;

/// Most live containers of one user who is not root.
pub(crate) const CONTAINERS_PER_UID: usize = 64;
/// Most live containers of all users who are not root: root can always add one.
pub(crate) const CONTAINERS_OF_USERS: usize = MAX_CONTAINERS / 4 * 3;
/// Most connections of one user that are being served.
pub(crate) const CONNECTIONS_PER_UID: usize = 8;
/// Most connections that are being served.
pub const CONNECTIONS: usize = 64;

/// Why somebody is not served now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum QuotaError {
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
pub fn check(uid: u32, live: impl Iterator<Item = u32>) -> Result<(), QuotaError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat_n;

    #[test]
    fn a_user_s_own_limit_does_not_bind_others() {
        let full = || repeat_n(1000, CONTAINERS_PER_UID);
        assert_eq!(check(1000, full()), Err(QuotaError::Containers { uid: 1000 }));
        assert_eq!(check(1000, full().skip(1)), Ok(()));
        assert_eq!(check(1001, full()), Ok(()));
    }

    #[test]
    fn users_together_leave_room_for_root() {
        let users = || (0..CONTAINERS_OF_USERS).map(|n| 2000 + n as u32);
        assert_eq!(check(1000, users()), Err(QuotaError::AllUsers));
        assert_eq!(check(0, users()), Ok(()));
        assert_eq!(check(1000, repeat_n(0, MAX_CONTAINERS)), Ok(()));
    }
}
