//! Turns of users at work that takes a thread, for tasks: one question of a user at a time, and decisions beside it.

use super::Owners;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Decisions of one user that are carried out at once.
const DECISIONS: usize = 4;

/// What a turn is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum For {
    /// To read something, which may take long.
    Question,
    /// To change something: it does not wait for the user's own questions.
    Decision,
    /// To tell pages what waits. It takes no time, and waits for neither.
    News,
}

/// Who has a turn, and who waits for one, in the order in which they came.
#[derive(Debug)]
pub(crate) struct Turns {
    lanes: Mutex<HashMap<(u32, For), Arc<Semaphore>>>,
    /// Questions of all users but root.
    questions: Arc<Semaphore>,
    owners: Owners,
}

/// A turn; over when dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _shared: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// All users but root have so many questions answered at once.
    pub(crate) fn new(questions: usize, owners: Owners) -> Self {
        Self { lanes: Mutex::default(), questions: Arc::new(Semaphore::new(questions)), owners }
    }

    /// Waits for a turn of this user.
    pub(crate) async fn take(&self, uid: u32, wanted: For) -> Turn {
        let owner = self.owners.of(uid);
        let lane = {
            let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
            lanes.retain(|_, lane| Arc::strong_count(lane) > 1);
            let most = if wanted == For::Decision { DECISIONS } else { 1 };
            Arc::clone(lanes.entry((owner, wanted)).or_insert_with(|| Arc::new(Semaphore::new(most))))
        };
        // Neither is ever closed.
        let own = lane.acquire_owned().await.ok();
        let shared = match owner != 0 && wanted == For::Question {
            true => Arc::clone(&self.questions).acquire_owned().await.ok(),
            false => None,
        };
        Turn { _own: own, _shared: shared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{pin::pin, task::Poll};

    /// Whether a turn is to be had at once; if so, it.
    async fn now(turns: &Turns, uid: u32, wanted: For) -> Option<Turn> {
        let mut turn = pin!(turns.take(uid, wanted));
        std::future::poll_fn(|cx| match turn.as_mut().poll(cx) {
            Poll::Ready(turn) => Poll::Ready(Some(turn)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    #[tokio::test]
    async fn slow_questions_are_before_nobody_else() {
        let turns = Turns::new(3, Owners::parse("5:100:10\n", |name| name.parse().ok()));
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
}
