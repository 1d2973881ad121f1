//! How many connections to what one entry of the profile grants do the same thing at once: a name whose servers do not answer, or that
//! is found slowly, does not have all that there is of it, and others go on.

use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{Arc, Weak},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// See the module.
pub(crate) struct Turns {
    /// Of each entry.
    most: usize,
    by_entry: RefCell<HashMap<String, Weak<Semaphore>>>,
}

impl Turns {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, by_entry: RefCell::default() }
    }

    /// Waits for a turn. It is over when this is dropped, by whatever thread.
    pub(crate) async fn take(&self, entry: &str) -> Option<OwnedSemaphorePermit> {
        // They are never closed.
        self.of(entry).acquire_owned().await.ok()
    }

    /// The turns of one entry.
    pub(crate) fn of(&self, entry: &str) -> Arc<Semaphore> {
        let mut by_entry = self.by_entry.borrow_mut();
        if let Some(turns) = by_entry.get(entry).and_then(Weak::upgrade) {
            return turns;
        }
        by_entry.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(self.most));
        by_entry.insert(entry.to_owned(), Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{pin::pin, task::Context};

    #[test]
    fn a_name_waits_for_itself_alone() {
        let turns = Turns::new(2);
        let take = |entry: &str| {
            let mut context = Context::from_waker(std::task::Waker::noop());
            match pin!(turns.take(entry)).poll(&mut context) {
                std::task::Poll::Ready(turn) => turn,
                std::task::Poll::Pending => None,
            }
        };
        let (one, two) = (take("a.example"), take("a.example"));
        assert!(one.is_some() && two.is_some() && take("a.example").is_none());
        let other = take("b.example");
        assert!(other.is_some(), "another name");
        std::thread::spawn(move || drop(one)).join().unwrap();
        assert!(take("a.example").is_some());
        drop((two, other));
        assert!(take("c.example").is_some());
        assert_eq!(turns.by_entry.borrow().len(), 1, "names that nobody waits for are forgotten");
    }
}
