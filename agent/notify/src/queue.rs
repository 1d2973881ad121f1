//! What waits for one receiver. It is bounded, what does not fit is counted, and nobody but the receiver's own thread waits for it.

use super::{notice::Notice, say};
use ringfence_base::clock::now_micros;
use std::{
    collections::VecDeque,
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Notices that wait for one receiver: as many as calls of one user may.
pub(crate) const MOST: usize = 256;

/// Carries one notice out. False: it was not delivered, and that was said.
pub(crate) type Deliver = Box<dyn FnMut(&Notice, &Queue) -> bool + Send>;

/// The queue of one receiver.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Arc<Notice>>,
    /// One is being delivered.
    is_busy: bool,
    /// No more come: what is there is delivered, and then it ends.
    is_closed: bool,
    /// What did not fit since this was last said.
    dropped: u64,
}

impl Queue {
    /// A queue whose notices `deliver` delivers, one after the other.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(name: &'static str, mut deliver: Deliver) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self::default());
        let own = Arc::clone(&queue);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(notice) = own.next() {
                // Nobody can decide such a call any more.
                if now_micros() < notice.until() {
                    deliver(&notice, &own);
                }
                own.done();
            }
        })?;
        Ok(queue)
    }

    /// One more, if there is room.
    pub(crate) fn offer(&self, notice: &Arc<Notice>) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        if state.waiting.len() >= MOST {
            state.dropped += 1;
            return;
        }
        state.waiting.push_back(Arc::clone(notice));
        let dropped = std::mem::take(&mut state.dropped);
        drop(state);
        self.changed.notify_all();
        if dropped > 0 {
            say(&format!("{dropped} notices were dropped: the receiver takes them too slowly"));
        }
    }

    /// No more come.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// How many are not delivered yet.
    pub(crate) fn pending(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + usize::from(state.is_busy)
    }

    /// Waits between two attempts, for `pause` at most: less, where the queue is closed. Whether it is.
    pub(crate) fn pause(&self, pause: Duration) -> bool {
        let state = self.lock();
        let waited = self.changed.wait_timeout_while(state, pause, |state| !state.is_closed);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_closed
    }

    fn next(&self) -> Option<Arc<Notice>> {
        let state = self.lock();
        let nothing = |state: &mut State| state.waiting.is_empty() && !state.is_closed;
        let mut state = self.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner);
        let notice = state.waiting.pop_front()?;
        state.is_busy = true;
        Some(notice)
    }

    fn done(&self) {
        self.lock().is_busy = false;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::mcp::WaitingCall;
    use std::{sync::mpsc, time::Instant};

    fn notice(id: &str, until: i64) -> Arc<Notice> {
        let call = WaitingCall {
            id: id.into(),
            session: String::new(),
            server: String::new(),
            tool: String::new(),
            arguments: String::new(),
            arguments_bytes: None,
            score: 0,
            reasons: vec![],
            rules: vec![],
            since: 0,
            until,
        };
        Arc::new(Notice::new(call, false))
    }

    fn wait(what: impl Fn() -> bool) {
        let until = Instant::now() + Duration::from_secs(60);
        while !what() {
            assert!(Instant::now() < until, "it does not come to that");
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_receiver_that_takes_nothing_holds_nobody_up_and_gets_no_more_than_there_is_room_for() {
        let (begun, begins) = mpsc::channel();
        let (goes, go) = mpsc::channel::<()>();
        let deliver = move |notice: &Notice, _: &Queue| {
            begun.send(notice.id()).expect("waited for");
            go.recv().is_ok()
        };
        let queue = Queue::start("test", Box::new(deliver)).expect("a thread");
        queue.offer(&notice("first", i64::MAX));
        assert_eq!(begins.recv().expect("it begins"), "call_first");
        for number in 0..MOST + 20 {
            queue.offer(&notice(&number.to_string(), i64::MAX));
        }
        assert_eq!((queue.pending(), queue.lock().dropped), (MOST + 1, 20));
        drop(goes);
        wait(|| queue.pending() == 0);
        queue.offer(&notice("later", i64::MAX));
        assert_eq!(begins.iter().nth(MOST).expect("in their order"), "call_later");
    }

    #[test]
    fn what_is_too_late_is_passed_over_and_a_closed_queue_is_emptied() {
        let (delivered, arrives) = mpsc::channel();
        let deliver = move |notice: &Notice, queue: &Queue| {
            // As between two attempts: it is over as soon as the queue is closed.
            let _ = queue.pause(Duration::from_secs(600));
            delivered.send(notice.id()).is_ok()
        };
        let queue = Queue::start("test", Box::new(deliver)).expect("a thread");
        for (id, until) in [("late", 1), ("a", i64::MAX), ("b", i64::MAX)] {
            queue.offer(&notice(id, until));
        }
        wait(|| queue.pending() == 2);
        queue.close();
        queue.offer(&notice("more", i64::MAX));
        assert_eq!(arrives.iter().collect::<Vec<_>>(), ["call_a", "call_b"], "and then its thread ends");
    }
}
