//! Turns of users at work that takes a thread, for tasks: one question of a user at a time, and decisions beside it. A turn may
//! last; the threads are few, and a turn has one for as long as it works.

use ringfence_base::quota::Owners;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Decisions of one user that are carried out at once.
const DECISIONS: usize = 4;
/// Threads that root may have at once, by the turns that it may have: they are kept for it, beside those of all users.
pub(crate) const OF_ROOT: usize = DECISIONS + 3;

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum For {
    /// To read something, which may take long.
    Question,
    /// To decide about a call: it does not wait for the user's own questions.
    Decision,
    /// To change rules: it waits for whoever writes the store, and so no decision waits for it.
    Change,
    /// To tell pages what waits. It takes no time, and waits for neither.
    News,
}

/// How many threads all users but root have for each kind of turn.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// To read something.
    pub questions: usize,
    /// To decide something.
    pub decisions: usize,
    /// To change rules.
    pub changes: usize,
    /// To tell pages what waits.
    pub news: usize,
}

impl Threads {
    /// How many there have to be, so that root finds one as well, whatever users do.
    pub const fn with_root_s(self) -> usize {
        self.questions + self.decisions + self.changes + self.news + OF_ROOT
    }

    const fn of(self, wanted: For) -> usize {
        match wanted {
            For::Question => self.questions,
            For::Decision => self.decisions,
            For::Change => self.changes,
            For::News => self.news,
        }
    }
}

/// Who has a turn, and who waits for one, in the order in which they came.
#[derive(Debug)]
pub struct Turns {
    lanes: Mutex<HashMap<(u32, For), Arc<Semaphore>>>,
    /// Threads of all users but root.
    threads: [(For, Arc<Semaphore>); 4],
    owners: Owners,
}

/// A turn; over when dropped.
#[derive(Debug)]
pub struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    /// Where its threads are counted; root's are not.
    threads: Option<Arc<Semaphore>>,
}

/// A thread of a turn's; free for others when dropped.
#[derive(Debug)]
pub struct Thread {
    _counted: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// All users but root have so many threads at once.
    pub fn new(threads: Threads, owners: Owners) -> Self {
        let kinds = [For::Question, For::Decision, For::Change, For::News];
        let threads = kinds.map(|kind| (kind, Arc::new(Semaphore::new(threads.of(kind)))));
        Self { lanes: Mutex::default(), threads, owners }
    }

    /// Waits for a turn of this user.
    pub async fn take(&self, uid: u32, wanted: For) -> Turn {
        let owner = self.owners.of(uid);
        let lane = {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            let most = if wanted == For::Decision { DECISIONS } else { 1 };
            Arc::clone(lanes.entry((owner, wanted)).or_insert_with(|| Arc::new(Semaphore::new(most))))
        };
        // Neither this nor those below are ever closed.
        let own = lane.acquire_owned().await.ok();
        let of_kind = self.threads.iter().find(|(kind, _)| *kind == wanted);
        let threads = of_kind.filter(|_| owner != 0).map(|(_, threads)| Arc::clone(threads));
        Turn { _own: own, threads }
    }
}

impl Turn {
    /// Waits until there is a thread for what is to be done now. A turn has one at a time.
    pub async fn thread(&self) -> Thread {
        let counted = match &self.threads {
            Some(threads) => Arc::clone(threads).acquire_owned().await.ok(),
            None => None,
        };
        Thread { _counted: counted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{pin::pin, task::Poll};
    use tokio::task::unconstrained;

    const FEW: Threads = Threads { questions: 3, decisions: 4, changes: 2, news: 1 };

    /// Whether a turn and a thread for it are to be had at once; if so, both.
    async fn now(turns: &Turns, uid: u32, wanted: For) -> Option<(Turn, Thread)> {
        // As if it had just been woken, however much the test has asked for before.
        let mut both = pin!(unconstrained(async {
            let turn = turns.take(uid, wanted).await;
            let thread = turn.thread().await;
            (turn, thread)
        }));
        std::future::poll_fn(|cx| match both.as_mut().poll(cx) {
            Poll::Ready(both) => Poll::Ready(Some(both)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn slow_questions_are_before_nobody_else() {
        let turns = Turns::new(FEW, Owners::parse("5:100:10\n", |name| name.parse().ok()));
        let slow = now(&turns, 5, For::Question).await.expect("the first");
        assert!(
            now(&turns, 5, For::Question).await.is_none() && now(&turns, 104, For::Question).await.is_none()
        );
        assert!(now(&turns, 5, For::Decision).await.is_some(), "what is decided does not wait for it");
        let others = (now(&turns, 6, For::Question).await, now(&turns, 7, For::Question).await);
        assert!(others.0.is_some() && others.1.is_some());
        assert!(now(&turns, 8, For::Question).await.is_none(), "all users together");
        assert!(now(&turns, 0, For::Question).await.is_some(), "root's reserve");
        assert!(now(&turns, 8, For::Decision).await.is_some());
        drop(slow);
        assert!(now(&turns, 8, For::Question).await.is_some());
    }

    #[tokio::test]
    async fn what_users_decide_and_change_leaves_threads_for_others_and_for_root() {
        let turns = Turns::new(FEW, Owners::default());
        let mut held = Vec::new();
        // Everything that users can have at once.
        for wanted in [For::Question, For::Decision, For::Change, For::News] {
            let before = held.len();
            for uid in 1000..1100 {
                for _ in 0..DECISIONS {
                    held.extend(now(&turns, uid, wanted).await);
                }
            }
            assert_eq!(held.len() - before, FEW.of(wanted), "{wanted:?}");
            assert!(now(&turns, 2000, wanted).await.is_none(), "{wanted:?}");
        }
        let of_users = held.len();
        for wanted in [For::Question, For::Decision, For::Change, For::News] {
            for _ in 0..2 * DECISIONS {
                held.extend(now(&turns, 0, wanted).await);
            }
        }
        assert_eq!(held.len() - of_users, OF_ROOT, "root finds its own");
        assert_eq!(held.len(), FEW.with_root_s(), "and there are as many as all may have");
        // Rules that wait to be changed hold up no decision, and neither does a turn without a thread.
        let turns = Turns::new(FEW, Owners::default());
        let changes = (now(&turns, 5, For::Change).await, now(&turns, 6, For::Change).await);
        assert!(changes.0.is_some() && now(&turns, 7, For::Change).await.is_none());
        let idle: Vec<Turn> = vec![turns.take(5, For::Decision).await, turns.take(6, For::Decision).await];
        for uid in [7, 8, 9, 10] {
            held.push(now(&turns, uid, For::Decision).await.expect("a decision"));
        }
        assert!(now(&turns, 11, For::Decision).await.is_none(), "the control");
        drop(idle);
    }
}
