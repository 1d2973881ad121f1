//! The log of what peers were refused: who, what, why; so many of each user that nobody fills the log with them.

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::{
    collections::HashMap,
    os::unix::net::UnixStream,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How many refusals of one user are logged in a while; the others are counted.
const MOST: u32 = 20;
const WHILE: Duration = Duration::from_secs(60);
/// Users that are told apart. Beyond, those that are quiet are forgotten, and if none is, all share one count.
const MOST_USERS: usize = 1024;

/// What was logged lately, by user.
#[derive(Debug, Default)]
pub(crate) struct Refusals(Mutex<HashMap<u32, Lately>>);

#[derive(Debug)]
struct Lately {
    since: Instant,
    count: u32,
}

impl Refusals {
    /// Logs that the peer of a connection was refused something.
    pub(super) fn log(&self, peer: &UnixStream, what: &str, why: &impl std::fmt::Display) {
        let peer = getsockopt(peer, PeerCredentials).ok();
        let (uid, pid) = peer.map_or((u32::MAX, 0), |peer| (peer.uid(), peer.pid()));
        match self.one_more(uid, Instant::now()) {
            (true, 0) => tracing::warn!("{what} refused to process {pid} of user {uid}: {why}"),
            (true, unsaid) => {
                tracing::warn!(
                    "{what} refused to process {pid} of user {uid}: {why} ({unsaid} more were not logged)"
                );
            }
            (false, _) => {}
        }
    }

    /// Whether one more of a user's is logged, and how many were not in the while before.
    fn one_more(&self, uid: u32, now: Instant) -> (bool, u32) {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() >= MOST_USERS && !users.contains_key(&uid) {
            users.retain(|_, lately| now.duration_since(lately.since) < WHILE);
        }
        let uid = if users.len() >= MOST_USERS && !users.contains_key(&uid) { u32::MAX } else { uid };
        let lately = users.entry(uid).or_insert(Lately { since: now, count: 0 });
        let mut unsaid = 0;
        if now.duration_since(lately.since) >= WHILE {
            unsaid = lately.count.saturating_sub(MOST);
            *lately = Lately { since: now, count: 0 };
        }
        lately.count = lately.count.saturating_add(1);
        (lately.count <= MOST, unsaid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_refusals_are_logged_up_to_a_number_and_another_s_beside() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert!((0..MOST).all(|_| refusals.one_more(5, now).0));
        assert!(!refusals.one_more(5, now).0 && !refusals.one_more(5, now).0);
        assert_eq!(refusals.one_more(6, now), (true, 0), "another user's are");
        assert_eq!(refusals.one_more(5, now + WHILE), (true, 2), "and what was left out is counted");
    }

    #[test]
    fn many_users_fill_no_memory() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let logged = (0..4 * MOST_USERS as u32).filter(|uid| refusals.one_more(*uid, now).0).count();
        assert_eq!(logged, MOST_USERS + MOST as usize);
        assert!(refusals.0.lock().unwrap().len() <= MOST_USERS + 1);
        assert_eq!(refusals.one_more(u32::MAX - 1, now + WHILE), (true, 0), "the quiet are forgotten");
    }
}
