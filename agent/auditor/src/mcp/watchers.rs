//! What those who watch have yet to be told. Each user's news are apart, so that whoever has much takes no room from others, and
//! where there was too much of a user's that is told instead: nothing goes missing without a word.

use super::sessions::{Live, lock};
use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    time::Duration,
};

/// Most news of one user that are kept for a watcher.
const MOST_EACH: usize = 200;
/// Most users whose news are. Of more, with their subordinate ids, all are behind.
const MOST_USERS: usize = 1024;

/// All who watch.
#[derive(Debug, Default)]
pub(super) struct News(Mutex<Vec<Weak<Watcher>>>);

impl News {
    /// One more: of what happens from now on.
    pub(super) fn watch(&self) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher::default());
        lock(&self.0).push(Arc::downgrade(&watcher));
        watcher
    }

    /// Tells all of something of a user's. Nobody waits for those who watch.
    pub(super) fn tell(&self, uid: u32, live: &Live) {
        lock(&self.0).retain(|watcher| watcher.upgrade().map(|watcher| watcher.hear(uid, live)).is_some());
    }
}

/// One who watches.
#[derive(Debug, Default)]
pub struct Watcher {
    heard: Mutex<Heard>,
    changed: Condvar,
}

/// What a watcher has yet to be told.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Of each user.
    pub of: BTreeMap<u32, OfUser>,
    /// There were too many users.
    pub(crate) all_behind: bool,
}

/// What is new of one user.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct OfUser {
    /// In the order in which it happened, each once.
    pub news: Vec<Live>,
    /// There was more than that: whoever watches has to look itself.
    pub is_behind: bool,
}

impl Watcher {
    fn hear(&self, uid: u32, live: &Live) {
        let mut heard = lock(&self.heard);
        if heard.of.len() >= MOST_USERS && !heard.of.contains_key(&uid) {
            *heard = Heard { of: BTreeMap::new(), all_behind: true };
        }
        if !heard.all_behind {
            let of = heard.of.entry(uid).or_default();
            if of.news.len() >= MOST_EACH && !of.news.contains(live) {
                *of = OfUser { news: Vec::new(), is_behind: true };
            }
            if !of.is_behind && !of.news.contains(live) {
                of.news.push(live.clone());
            }
        }
        drop(heard);
        self.changed.notify_one();
    }

    /// Waits until there is something, at most for `limit`.
    pub fn wait(&self, limit: Duration) {
        let heard = lock(&self.heard);
        let nothing = |heard: &mut Heard| heard.of.is_empty() && !heard.all_behind;
        let waited = self.changed.wait_timeout_while(heard, limit, nothing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// What there is, once.
    pub fn take(&self) -> Heard {
        mem::take(&mut *lock(&self.heard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(n: usize) -> Live {
        Live::Call(n.to_string())
    }

    #[test]
    fn whoever_has_many_news_takes_no_room_from_others_and_is_said_to_be_behind() {
        let news = News::default();
        let watcher = news.watch();
        news.tell(5, &call(1));
        for n in 0..100 * MOST_EACH {
            news.tell(6, &call(n));
        }
        (2..4).for_each(|n| news.tell(5, &call(n)));
        news.tell(5, &call(2));
        let heard = watcher.take();
        assert_eq!(heard.of[&5], OfUser { news: vec![call(1), call(2), call(3)], is_behind: false });
        assert_eq!(heard.of[&6], OfUser { news: vec![], is_behind: true });
        assert!(!heard.all_behind && watcher.take() == Heard::default(), "once");
        // As many as there is room for, told again and again.
        for _ in 0..3 {
            (0..MOST_EACH).for_each(|n| news.tell(6, &call(n)));
        }
        let of = &watcher.take().of[&6];
        assert!(of.news.len() == MOST_EACH && !of.is_behind, "the control");
    }

    #[test]
    fn of_more_users_than_there_can_be_all_are_behind() {
        let news = News::default();
        let watcher = news.watch();
        (0..MOST_USERS as u32).for_each(|uid| news.tell(uid, &call(1)));
        assert!(!watcher.take().all_behind, "the control");
        (0..=MOST_USERS as u32).for_each(|uid| news.tell(uid, &call(1)));
        news.tell(7, &call(1));
        assert_eq!(watcher.take(), Heard { of: BTreeMap::new(), all_behind: true });
        watcher.wait(Duration::ZERO);
    }

    #[test]
    fn whoever_waits_is_woken_and_whoever_is_gone_is_forgotten() {
        let news = Arc::new(News::default());
        let (watcher, gone) = (news.watch(), news.watch());
        drop(gone);
        let told = std::thread::spawn({
            let news = Arc::clone(&news);
            move || news.tell(5, &call(1))
        });
        watcher.wait(Duration::from_secs(60));
        assert_eq!(watcher.take().of[&5].news, [call(1)]);
        told.join().expect("no panic");
        assert_eq!(lock(&news.0).len(), 1);
    }
}
