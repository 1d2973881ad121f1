//! Calls, several at once, each answered once: in the order in which they came, unless an earlier one takes its time.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Calls that run at once.
const AT_ONCE: usize = 8;
/// Calls that wait for a place; beyond that the client's lines wait in its pipe.
const WAITING: usize = 64;
/// How long an answer waits for those of earlier calls.
const GRACE: Duration = Duration::from_millis(100);

/// What one call does: its answer's line.
type Work = Box<dyn FnOnce() -> String + Send>;

/// Where answers go.
#[derive(Debug)]
pub(crate) struct Answers<W> {
    out: Mutex<W>,
}

impl<W: Write> Answers<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out: Mutex::new(out) }
    }

    /// Writes a line, whole.
    ///
    /// # Errors
    /// The client's end is closed.
    pub(crate) fn say(&self, line: &str) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(line.as_bytes())?;
        out.flush()
    }
}

/// Threads that run calls.
pub(crate) struct Calls {
    queue: Option<SyncSender<(u64, Work)>>,
    next: u64,
    turns: Arc<Turns>,
    threads: Vec<JoinHandle<()>>,
    start: Box<dyn Fn() -> io::Result<JoinHandle<()>>>,
}

impl Calls {
    /// Answers go to `answers`. Threads are started as they are needed.
    pub(crate) fn new<W: Write + Send + 'static>(answers: &Arc<Answers<W>>) -> Self {
        let (queue, received) = sync_channel(WAITING);
        let received = Arc::new(Mutex::new(received));
        let turns = Arc::new(Turns::default());
        let (answers, shared) = (answers.clone(), turns.clone());
        let start = move || {
            let (received, answers, turns) = (received.clone(), answers.clone(), shared.clone());
            thread::Builder::new().name("call".into()).spawn(move || work(&received, &answers, &turns))
        };
        Self { queue: Some(queue), next: 0, turns, threads: Vec::new(), start: Box::new(start) }
    }

    /// Queues a call. Blocks while too many wait.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn run(&mut self, work: Work) -> io::Result<()> {
        if self.threads.len() < AT_ONCE && self.turns.running() >= self.threads.len() {
            match (self.start)() {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                // Those that there are do the work.
                Err(_) => {}
            }
        }
        self.turns.begin(self.next);
        let queue = self.queue.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        queue.send((self.next, work)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.next += 1;
        Ok(())
    }

    /// Waits until every call is answered.
    pub(crate) fn finish(mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn work<W: Write>(received: &Mutex<Receiver<(u64, Work)>>, answers: &Answers<W>, turns: &Turns) {
    loop {
        let taken = received.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((turn, work)) = taken else { return };
        let line = work();
        turns.wait(turn);
        // A client that does not read any more learns nothing; the calls are run all the same.
        let _ = answers.say(&line);
        turns.end(turn);
    }
}

/// Calls that are queued or run.
#[derive(Debug, Default)]
struct Turns {
    open: Mutex<BTreeSet<u64>>,
    ended: Condvar,
}

impl Turns {
    fn running(&self) -> usize {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn begin(&self, turn: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(turn);
    }

    /// Waits until no earlier call is open, but not for long.
    fn wait(&self, turn: u64) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = |open: &mut BTreeSet<u64>| open.first().is_some_and(|first| *first < turn);
        let _ = self.ended.wait_timeout_while(open, GRACE, earlier);
    }

    fn end(&self, turn: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&turn);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Collects what is said.
    #[derive(Clone, Default)]
    struct Heard(Arc<Mutex<Vec<u8>>>);

    impl Write for Heard {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn calls_run_at_once_and_every_one_is_answered() {
        let heard = Heard::default();
        let answers = Arc::new(Answers::new(heard.clone()));
        let mut calls = Calls::new(&answers);
        // They end only if all of them run.
        let all = Arc::new(Barrier::new(AT_ONCE));
        for n in 0..AT_ONCE {
            let all = all.clone();
            let work = move || {
                all.wait();
                format!("{n}\n")
            };
            calls.run(Box::new(work)).unwrap();
        }
        for n in AT_ONCE..200 {
            calls.run(Box::new(move || format!("{n}\n"))).unwrap();
        }
        calls.finish();
        let text = String::from_utf8(heard.0.lock().unwrap().clone()).unwrap();
        let mut said: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        said.sort_unstable();
        assert_eq!(said, (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn an_answer_waits_for_an_earlier_one_but_not_for_ever() {
        let heard = Heard::default();
        let answers = Arc::new(Answers::new(heard.clone()));
        let mut calls = Calls::new(&answers);
        let (release, slow) = sync_channel::<()>(0);
        let work = move || {
            let _ = slow.recv();
            "slow\n".to_owned()
        };
        calls.run(Box::new(work)).unwrap();
        calls.run(Box::new(|| "quick\n".to_owned())).unwrap();
        while heard.0.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        calls.finish();
        assert_eq!(*heard.0.lock().unwrap(), b"quick\nslow\n");
    }
}
