//! The log of what peers were refused: who, what, why; so many of each user that nobody fills the log with them, and how many
//! more there were.

use super::Owners;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use std::{
    collections::HashMap,
    mem,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};
use std::{fmt::Display, os::unix::net::UnixStream};

/// How many refusals of one user, subordinate ids included, are logged in a while, and of all users together; the others are
/// counted. Each user's first is logged beside those: so many users that nobody hides another's do not fill a log.
const MOST: u32 = 20;
const MOST_IN_ALL: u32 = 600;
const MOST_FIRST: u32 = MOST_USERS as u32;
const WHILE: Duration = Duration::from_secs(60);
/// Users that are told apart. Beyond, those that are quiet are forgotten, and if none is, whoever was refused most: a
/// newcomer never shares a count that is used up, and the lines of all together are bounded.
const MOST_USERS: usize = 1024;
/// The user of a peer of whom the kernel does not say one.
const UNKNOWN: u32 = u32::MAX;

/// What was logged lately.
#[derive(Debug, Default)]
pub struct Refusals {
    owners: Owners,
    users: Mutex<Users>,
}

#[derive(Debug, Default)]
struct Users {
    /// By user.
    each: HashMap<u32, Window>,
    all: Option<Window>,
    /// Of whom no more is known than how many of theirs were not logged.
    gone: Vec<Suppressed>,
}

/// How many refusals of a user's were not logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Suppressed {
    owner: u32,
    suppressed: u32,
}

impl Users {
    /// Forgets those of whom this says so. What of theirs was not logged is still to be said.
    fn forget(&mut self, which: impl Fn(&u32, &Window) -> bool) {
        self.each.retain(|owner, window| {
            let goes = which(owner, window);
            if goes && window.suppressed > 0 {
                self.gone.push(Suppressed { owner: *owner, suppressed: window.suppressed });
            }
            !goes
        });
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    since: Instant,
    logged: u32,
    suppressed: u32,
}

impl Window {
    fn new(since: Instant) -> Self {
        Self { since, logged: 0, suppressed: 0 }
    }

    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= WHILE
    }

    /// Begins anew if the while is over. What was not logged is still to be said.
    fn renew(&mut self, now: Instant) {
        if self.is_over(now) {
            (self.since, self.logged) = (now, 0);
        }
    }
}

impl Refusals {
    /// Nobody was refused anything yet.
    pub fn new(owners: Owners) -> Self {
        Self { owners, users: Mutex::default() }
    }

    /// Logs that a peer was refused something of whom the kernel says no more than its user, or nothing.
    pub fn log_user(&self, uid: Option<u32>, what: impl FnOnce() -> String, why: &impl std::fmt::Display) {
        let user = uid.map_or_else(|| "an unknown user".to_owned(), |uid| format!("user {uid}"));
        self.warn(uid.unwrap_or(UNKNOWN), || format!("{} refused to {user}: {why}", what()));
    }

    /// Logs what was refused to a user.
    pub fn warn(&self, uid: u32, text: impl FnOnce() -> String) {
        match self.may_log(uid, Instant::now()) {
            (true, 0) => tracing::warn!("{}", text()),
            (true, suppressed) => tracing::warn!("{} ({suppressed} more were not logged)", text()),
            (false, _) => {}
        }
    }

    /// Says how many were not logged, of users who were refused nothing since. Call it now and then, and with `at_end` when
    /// nothing else will be said.
    pub fn log_suppressed(&self, now: Instant, at_end: bool) {
        for Suppressed { owner, suppressed } in self.take_suppressed(now, at_end) {
            match owner {
                UNKNOWN => tracing::warn!("{suppressed} more refusals to unknown users were not logged"),
                owner => tracing::warn!("{suppressed} more refusals to user {owner} were not logged"),
            }
        }
    }

    fn take_suppressed(&self, now: Instant, at_end: bool) -> Vec<Suppressed> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.forget(|_, window| at_end || window.is_over(now));
        mem::take(&mut users.gone)
    }

    /// Whether one more of a user's is logged, and how many before it were not.
    fn may_log(&self, uid: u32, now: Instant) -> (bool, u32) {
        let owner = self.owners.of(uid);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.each.len() >= MOST_USERS && !users.each.contains_key(&owner) {
            users.forget(|_, window| window.is_over(now));
            if users.each.len() >= MOST_USERS {
                let most = users.each.iter().max_by_key(|(_, of)| of.logged.saturating_add(of.suppressed));
                if let Some(most) = most.map(|(owner, _)| *owner) {
                    users.forget(|owner, _| *owner == most);
                }
            }
            // Nobody asks for them? Then they are no more than the users that are told apart.
            users.gone.truncate(MOST_USERS);
        }
        let Users { each, all, .. } = &mut *users;
        let all = all.get_or_insert(Window::new(now));
        let own = each.entry(owner).or_insert(Window::new(now));
        all.renew(now);
        own.renew(now);
        let room = if own.logged == 0 { MOST_IN_ALL + MOST_FIRST } else { MOST_IN_ALL };
        if own.logged < MOST && all.logged < room {
            own.logged += 1;
            all.logged += 1;
            (true, mem::take(&mut own.suppressed))
        } else {
            own.suppressed = own.suppressed.saturating_add(1);
            (false, 0)
        }
    }
}

impl Refusals {
    /// Logs that the peer of a connection was refused something.
    pub fn log(&self, peer: &UnixStream, what: &str, why: &impl Display) {
        match getsockopt(peer, PeerCredentials) {
            Ok(peer) => {
                let (uid, pid) = (peer.uid(), peer.pid());
                self.warn(uid, || format!("{what} refused to process {pid} of user {uid}: {why}"));
            }
            Err(_) => self.log_user(None, || what.to_owned(), why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_s_refusals_are_logged_up_to_a_number_and_another_s_beside() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        assert!((0..MOST).all(|_| refusals.may_log(5, now).0));
        assert!(!refusals.may_log(5, now).0 && !refusals.may_log(5, now).0);
        assert_eq!(refusals.may_log(6, now), (true, 0), "another user's are");
        assert_eq!(refusals.may_log(5, now + WHILE), (true, 2), "and what was left out is counted");
    }

    #[test]
    fn subordinate_ids_are_no_further_users() {
        let owners = Owners::parse("1000:100000:65536\n", |name| name.parse().ok());
        let (refusals, now) = (Refusals::new(owners), Instant::now());
        let logged = (0..5000).filter(|n| refusals.may_log(100_000 + n, now).0).count();
        assert_eq!(logged, MOST as usize, "one user's lines");
        assert!(!refusals.may_log(1000, now).0, "that user's");
        assert!(refusals.may_log(1001, now).0, "another's");
    }

    #[test]
    fn all_users_together_fill_no_log_and_what_was_left_out_is_counted() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let logged = (0..MOST * 1000).filter(|n| refusals.may_log(n % 1000, now).0).count();
        assert_eq!(logged, 1000, "the first of each");
        assert_eq!(refusals.may_log(0, now + WHILE), (true, MOST - 1));
        assert_eq!(refusals.may_log(999, now + WHILE), (true, MOST - 1));
        // Few users do not even fill what is for all.
        let (few, now) = (Refusals::default(), Instant::now());
        let logged = (0..MOST * 1000).filter(|n| few.may_log(n % 40, now).0).count();
        assert_eq!(logged, MOST_IN_ALL as usize);
        assert_eq!(few.may_log(50, now), (true, 0), "nor do they hide the first of another");
        assert!(!few.may_log(50, now).0);
        // And any number of users do not fill a log.
        let logged = (0..100_000).filter(|n| few.may_log(1000 + n, now).0).count();
        assert!(logged <= MOST_FIRST as usize, "{logged}");
    }

    #[test]
    fn what_was_not_logged_is_said_though_its_user_is_refused_nothing_more() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..MOST + 7 {
            refusals.may_log(5, now);
        }
        refusals.may_log(6, now);
        assert_eq!(
            refusals.take_suppressed(now + WHILE / 2, false),
            [],
            "it may be said with the next that is logged"
        );
        assert_eq!(refusals.take_suppressed(now + WHILE, false), [Suppressed { owner: 5, suppressed: 7 }]);
        assert_eq!(refusals.take_suppressed(now + WHILE, false), [], "once");
        for _ in 0..MOST + 2 {
            refusals.may_log(UNKNOWN, now);
        }
        assert_eq!(refusals.take_suppressed(now, true), [Suppressed { owner: UNKNOWN, suppressed: 2 }]);
        // Whoever goes for another is not forgotten without a word.
        for _ in 0..MOST + 3 {
            refusals.may_log(7, now);
        }
        for uid in 0..MOST_USERS as u32 {
            refusals.may_log(10_000 + uid, now);
        }
        assert_eq!(refusals.take_suppressed(now, false), [Suppressed { owner: 7, suppressed: 3 }]);
    }

    #[test]
    fn many_users_fill_no_memory_and_a_newcomer_has_a_count_of_its_own() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        for _ in 0..=MOST {
            refusals.may_log(7, now);
        }
        let users = |refusals: &Refusals| refusals.users.lock().unwrap().each.len();
        // As many users as are told apart, each quiet for long enough that all together are not over the bound.
        let later = now + WHILE / 2;
        for uid in 0..MOST_USERS as u32 - 1 {
            refusals.may_log(10_000 + uid, later);
        }
        assert_eq!(users(&refusals), MOST_USERS);
        let noisy = now + WHILE;
        assert!(refusals.may_log(10_000, noisy).0, "all together begin anew");
        for _ in 0..3 * MOST {
            refusals.may_log(10_001, noisy);
        }
        refusals.may_log(7, noisy);
        assert_eq!(refusals.may_log(5, noisy), (true, 0), "a newcomer is logged");
        assert_eq!(users(&refusals), MOST_USERS, "in place of one");
        assert!(!refusals.users.lock().unwrap().each.contains_key(&10_001), "of the loudest");
        for uid in 0..4 * MOST_USERS as u32 {
            refusals.may_log(50_000 + uid, noisy);
        }
        assert_eq!(users(&refusals), MOST_USERS);
        assert_eq!(refusals.may_log(u32::MAX - 1, noisy + WHILE), (true, 0), "the quiet are forgotten");
        assert_eq!(users(&refusals), 1);
    }
}
