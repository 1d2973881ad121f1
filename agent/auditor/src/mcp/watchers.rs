//! What watchers have yet to see. Each user's changes are apart, so that whoever has many takes no room from others. A
//! watcher learns when there were too many to keep, and then reads the newest rows itself.

use crate::shared::lock;
use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Most changes of one user that are kept for a watcher.
const MOST_EACH: usize = 200;
/// Most users whose changes are. Of more, with their subordinate ids, all are behind.
const MOST_USERS: usize = 1024;

/// What changed; watchers read the rest from the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A call was asked for, answered or decided.
    Call(String),
    /// A session began or ended, or its server wrote to standard error.
    Session(String),
    /// What agents' servers of this user list.
    Tools(u32),
}

/// All who watch.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<Vec<Weak<Watcher>>>);

impl Watchers {
    /// Adds a watcher: of what happens from now on.
    pub(super) fn add(&self) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher::default());
        lock(&self.0).push(Arc::downgrade(&watcher));
        watcher
    }

    /// Passes a change of a user's rows to all watchers, and waits for none of them.
    pub(super) fn notify(&self, uid: u32, change: &Change) {
        lock(&self.0).retain(|watcher| watcher.upgrade().map(|watcher| watcher.push(uid, change)).is_some());
    }
}

/// One who watches.
#[derive(Debug, Default)]
pub struct Watcher {
    backlog: Mutex<Backlog>,
    changed: Condvar,
}

/// What a watcher has yet to see.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// By user.
    pub users: BTreeMap<u32, UserBacklog>,
    /// There were too many users.
    pub(crate) all_behind: bool,
}

/// The changes of one user's rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UserBacklog {
    /// In the order in which they happened, each once.
    pub changes: Vec<Change>,
    /// There were more: the watcher has to look itself.
    pub is_behind: bool,
}

impl Watcher {
    fn push(&self, uid: u32, change: &Change) {
        let mut backlog = lock(&self.backlog);
        if backlog.users.len() >= MOST_USERS && !backlog.users.contains_key(&uid) {
            *backlog = Backlog { users: BTreeMap::new(), all_behind: true };
        }
        if !backlog.all_behind {
            let user = backlog.users.entry(uid).or_default();
            if user.changes.len() >= MOST_EACH && !user.changes.contains(change) {
                *user = UserBacklog { changes: Vec::new(), is_behind: true };
            }
            if !user.is_behind && !user.changes.contains(change) {
                user.changes.push(change.clone());
            }
        }
        drop(backlog);
        self.changed.notify_one();
    }

    /// Waits until there is something, at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let backlog = lock(&self.backlog);
        let is_empty = |backlog: &mut Backlog| backlog.users.is_empty() && !backlog.all_behind;
        let waited = self.changed.wait_timeout_while(backlog, limit, is_empty);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// What there is, once.
    pub fn take(&self) -> Backlog {
        mem::take(&mut *lock(&self.backlog))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(n: usize) -> Change {
        Change::Call(n.to_string())
    }

    #[test]
    fn whoever_has_many_news_takes_no_room_from_others_and_is_said_to_be_behind() {
        let watchers = Watchers::default();
        let watcher = watchers.add();
        watchers.notify(5, &call(1));
        for n in 0..100 * MOST_EACH {
            watchers.notify(6, &call(n));
        }
        (2..4).for_each(|n| watchers.notify(5, &call(n)));
        watchers.notify(5, &call(2));
        let backlog = watcher.take();
        assert_eq!(
            backlog.users[&5],
            UserBacklog { changes: vec![call(1), call(2), call(3)], is_behind: false }
        );
        assert_eq!(backlog.users[&6], UserBacklog { changes: vec![], is_behind: true });
        assert!(!backlog.all_behind && watcher.take() == Backlog::default(), "once");
        // As many as there is room for, notified again and again.
        for _ in 0..3 {
            (0..MOST_EACH).for_each(|n| watchers.notify(6, &call(n)));
        }
        let of = &watcher.take().users[&6];
        assert!(of.changes.len() == MOST_EACH && !of.is_behind, "the control");
    }

    #[test]
    fn of_more_users_than_there_can_be_all_are_behind() {
        let watchers = Watchers::default();
        let watcher = watchers.add();
        (0..MOST_USERS as u32).for_each(|uid| watchers.notify(uid, &call(1)));
        assert!(!watcher.take().all_behind, "the control");
        (0..=MOST_USERS as u32).for_each(|uid| watchers.notify(uid, &call(1)));
        watchers.notify(7, &call(1));
        assert_eq!(watcher.take(), Backlog { users: BTreeMap::new(), all_behind: true });
        watcher.wait(Duration::ZERO);
    }

    #[test]
    fn whoever_waits_is_woken_and_whoever_is_gone_is_forgotten() {
        let watchers = Arc::new(Watchers::default());
        let (watcher, gone) = (watchers.add(), watchers.add());
        drop(gone);
        let notifies = std::thread::spawn({
            let watchers = Arc::clone(&watchers);
            move || watchers.notify(5, &call(1))
        });
        watcher.wait(Duration::from_secs(60));
        assert_eq!(watcher.take().users[&5].changes, [call(1)]);
        notifies.join().expect("no panic");
        assert_eq!(lock(&watchers.0).len(), 1);
    }
}
