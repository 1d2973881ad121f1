//! What waits for one receiver. It is bounded, what does not fit is counted, and nobody but the receiver's own thread waits for it.

use super::{notice::Notice, say};
use ringfence_base::{clock::now_micros, counted::counted};
use std::{
    collections::VecDeque,
    fmt, io, mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Notices that wait for one receiver: as many as calls of one user may.
pub(crate) const MOST: usize = 256;

/// What came of an attempt to carry a notice out.
pub(crate) enum Delivered {
    /// It is, or never will be, and that was said.
    Over,
    /// It was not, for this reason, and is tried again after that time: others come first.
    Later(String, Duration),
}

/// Carries one notice out, in that attempt, from 1.
pub(crate) type Deliver = Box<dyn FnMut(&Notice, u32) -> Delivered + Send>;

/// The queue of one receiver.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    say: Box<dyn Fn(&str) + Send + Sync>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// One is being delivered.
    is_busy: bool,
    /// No more come: what is there is delivered, and then it ends.
    is_closed: bool,
    /// What did not fit since this was last said, and what came too late.
    dropped: u64,
    late: u64,
}

/// A notice that waits.
#[derive(Debug)]
struct Waiting {
    notice: Arc<Notice>,
    attempts: u32,
    /// When it may be tried again, and why it has to be.
    again: Option<(Instant, String)>,
}

impl State {
    /// The next one to try: one that was not tried yet before one that failed, or a receiver that does not like one would hear of no
    /// other. Whether it is tried again needs no waiting where it ends.
    fn take(&mut self, now: Instant) -> Option<Waiting> {
        let is_ready =
            |one: &Waiting| self.is_closed || one.again.as_ref().is_none_or(|(from, _)| *from <= now);
        let ready = self.waiting.iter().enumerate().filter(|(_, one)| is_ready(one));
        let (at, _) = ready.min_by_key(|(at, one)| (one.attempts, *at))?;
        self.is_busy = true;
        self.waiting.remove(at)
    }

    /// What nobody was told of, and is not told here either until this is called.
    fn unsaid(&mut self) -> Option<String> {
        let (dropped, late) = (mem::take(&mut self.dropped), mem::take(&mut self.late));
        let many = |count: u64| counted(count, "notice");
        match (dropped, late) {
            (0, 0) => None,
            (dropped, 0) => Some(format!("dropped {}: the receiver takes them too slowly", many(dropped))),
            (0, late) => Some(format!("did not deliver {}: their calls were over before", many(late))),
            (dropped, late) => Some(format!(
                "dropped {}, and did not deliver {}, whose calls were over before: the receiver takes them too slowly",
                many(dropped),
                many(late)
            )),
        }
    }
}

impl Queue {
    /// A queue whose notices `deliver` delivers, one after the other.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(name: &'static str, deliver: Deliver) -> io::Result<Arc<Self>> {
        Self::start_saying(name, deliver, Box::new(say))
    }

    fn start_saying(
        name: &'static str,
        mut deliver: Deliver,
        say: Box<dyn Fn(&str) + Send + Sync>,
    ) -> io::Result<Arc<Self>> {
        let queue = Arc::new(Self { state: Mutex::default(), changed: Condvar::new(), say });
        let own = Arc::clone(&queue);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Some(waiting) = own.next() {
                let again = own.attempt(waiting, &mut deliver);
                own.done(again);
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
        state.waiting.push_back(Waiting { notice: Arc::clone(notice), attempts: 0, again: None });
        let unsaid = state.unsaid();
        drop(state);
        self.changed.notify_all();
        unsaid.iter().for_each(|words| (self.say)(words));
    }

    /// No more come.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let unsaid = state.unsaid();
        drop(state);
        self.changed.notify_all();
        unsaid.iter().for_each(|words| (self.say)(words));
    }

    /// How many are not delivered yet.
    pub(crate) fn pending(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + usize::from(state.is_busy)
    }

    /// Tries one: what is left to try again.
    fn attempt(&self, mut waiting: Waiting, deliver: &mut Deliver) -> Option<Waiting> {
        let is_closed = self.lock().is_closed;
        if let Some((_, why)) = waiting.again.as_ref().filter(|_| is_closed) {
            let (id, attempts) = (waiting.notice.id(), counted(waiting.attempts.into(), "attempt"));
            (self.say)(&format!("{id} was not taken in {attempts}: {why}"));
            return None;
        }
        // Nobody can decide such a call any more.
        if now_micros() >= waiting.notice.until() {
            self.lock().late += 1;
            return None;
        }
        waiting.attempts += 1;
        match deliver(&waiting.notice, waiting.attempts) {
            Delivered::Over => None,
            Delivered::Later(why, pause) => {
                waiting.again = Some((Instant::now() + pause, why));
                Some(waiting)
            }
        }
    }

    fn next(&self) -> Option<Waiting> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if let Some(taken) = state.take(now) {
                return Some(taken);
            }
            if state.is_closed {
                return None;
            }
            let soonest =
                state.waiting.iter().filter_map(|one| one.again.as_ref()).map(|(from, _)| *from).min();
            state = match soonest {
                Some(from) => {
                    let waited = self.changed.wait_timeout(state, from.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    fn done(&self, again: Option<Waiting>) {
        let mut state = self.lock();
        state.is_busy = false;
        state.waiting.extend(again);
        // As often as something comes out of it, or once nothing is left.
        let unsaid = if state.late > 0 && !state.waiting.is_empty() { None } else { state.unsaid() };
        drop(state);
        unsaid.iter().for_each(|words| (self.say)(words));
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
            connection: None,
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
        let (says, said) = mpsc::channel();
        let deliver = move |notice: &Notice, _: u32| {
            begun.send(notice.id()).expect("waited for");
            let _ = go.recv();
            Delivered::Over
        };
        let say = move |words: &str| drop(says.send(words.to_owned()));
        let queue = Queue::start_saying("test", Box::new(deliver), Box::new(say)).expect("a thread");
        queue.offer(&notice("first", i64::MAX));
        assert_eq!(begins.recv().expect("it begins"), "call_first");
        for number in 0..MOST + 20 {
            queue.offer(&notice(&number.to_string(), i64::MAX));
        }
        assert_eq!((queue.pending(), queue.lock().dropped), (MOST + 1, 20));
        queue.close();
        let words = said.recv().expect("it is said at the end, too");
        assert_eq!(words, "dropped 20 notices: the receiver takes them too slowly");
        drop(goes);
        assert_eq!(begins.iter().count(), MOST, "and then its thread ends");
    }

    #[test]
    fn one_that_fails_lets_the_others_go_before_it() {
        let (delivered, arrives) = mpsc::channel();
        let deliver = move |notice: &Notice, attempt: u32| {
            delivered.send((notice.id(), attempt)).expect("waited for");
            match notice.id().as_str() {
                "call_poison" => Delivered::Later("500".into(), Duration::from_secs(3_600)),
                "call_flaky" if attempt < 3 => Delivered::Later("500".into(), Duration::from_millis(1)),
                _ => Delivered::Over,
            }
        };
        let (says, said) = mpsc::channel();
        let say = move |words: &str| drop(says.send(words.to_owned()));
        let queue = Queue::start_saying("test", Box::new(deliver), Box::new(say)).expect("a thread");
        for id in ["poison", "a", "flaky", "b"] {
            queue.offer(&notice(id, i64::MAX));
        }
        let got: Vec<(String, u32)> = (0..6).map(|_| arrives.recv().expect("it arrives")).collect();
        let attempts = |id: &str| got.iter().filter(|(of, _)| of == id).map(|(_, n)| *n).collect::<Vec<_>>();
        for (id, tried) in [("call_poison", vec![1]), ("call_a", vec![1]), ("call_b", vec![1])] {
            assert_eq!(attempts(id), tried, "{got:?}");
        }
        assert_eq!(attempts("call_flaky"), [1, 2, 3], "{got:?}");
        wait(|| queue.pending() == 1);
        queue.close();
        assert_eq!(said.recv().expect("it is said"), "call_poison was not taken in 1 attempt: 500");
        assert!(arrives.recv().is_err(), "and not tried again");
    }

    #[test]
    fn what_is_too_late_is_passed_over_and_said_and_a_closed_queue_is_emptied() {
        let (delivered, arrives) = mpsc::channel();
        let (goes, go) = mpsc::channel::<()>();
        let (says, said) = mpsc::channel();
        let deliver = move |notice: &Notice, _: u32| {
            let _ = go.recv();
            let _ = delivered.send(notice.id());
            Delivered::Over
        };
        let say = move |words: &str| drop(says.send(words.to_owned()));
        let queue = Queue::start_saying("test", Box::new(deliver), Box::new(say)).expect("a thread");
        for (id, until) in [("a", i64::MAX), ("late", 1), ("b", i64::MAX), ("later", 2)] {
            queue.offer(&notice(id, until));
        }
        queue.close();
        queue.offer(&notice("more", i64::MAX));
        drop(goes);
        assert_eq!(arrives.iter().collect::<Vec<_>>(), ["call_a", "call_b"], "and then its thread ends");
        let words: Vec<String> = said.try_iter().collect();
        assert_eq!(words, ["did not deliver 2 notices: their calls were over before"]);
    }
}
