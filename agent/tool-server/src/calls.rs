//! Calls, several at once, each answered once: in the order in which they came, unless an earlier one takes its time.
//! One that is cancelled is not answered.

use ringfence_grant::gate::Cancel;
use ringfence_session::line::Id;
use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
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

/// What one line's calls do: their answers' line, unless all of them were cancelled.
type Work = Box<dyn FnOnce() -> Option<String> + Send>;

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
    pub(crate) fn write(&self, line: &str) -> io::Result<()> {
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(line.as_bytes())?;
        out.flush()
    }
}

/// Threads that run calls.
pub(crate) struct Calls<W> {
    queue: Option<SyncSender<(u64, Work)>>,
    received: Arc<Mutex<Receiver<(u64, Work)>>>,
    answers: Arc<Answers<W>>,
    next: u64,
    turns: Arc<Turns>,
    threads: Vec<JoinHandle<()>>,
}

impl<W: Write + Send + 'static> Calls<W> {
    /// Answers go to `answers`. Threads are started as they are needed.
    pub(crate) fn new(answers: &Arc<Answers<W>>) -> Self {
        let (queue, received) = sync_channel(WAITING);
        Self {
            queue: Some(queue),
            received: Arc::new(Mutex::new(received)),
            answers: answers.clone(),
            next: 0,
            turns: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// Queues the work of one line, whose calls can be cancelled by their ids. Blocks while too many wait.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn run(&mut self, calls: Vec<(Id, Cancel)>, work: Work) -> io::Result<()> {
        if self.threads.len() < AT_ONCE && self.turns.open().len() >= self.threads.len() {
            match self.start() {
                Ok(thread) => self.threads.push(thread),
                Err(error) if self.threads.is_empty() => return Err(error),
                // Those that there are do the work.
                Err(_) => {}
            }
        }
        self.turns.open().insert(self.next, calls);
        let queue = self.queue.as_ref().ok_or(io::ErrorKind::BrokenPipe)?;
        queue.send((self.next, work)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        self.next += 1;
        Ok(())
    }

    fn start(&self) -> io::Result<JoinHandle<()>> {
        let (received, answers, turns) = (self.received.clone(), self.answers.clone(), self.turns.clone());
        thread::Builder::new().name("call".into()).spawn(move || work(&received, &answers, &turns))
    }

    /// Says the answer to a call that needed no thread. Without one, too, unless earlier calls are to be answered first.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn answer(&mut self, line: String) -> io::Result<()> {
        if self.turns.open().is_empty() {
            // A client that is gone does not end calls that it began: the end of its input does, later.
            let _ = self.answers.write(&line);
            return Ok(());
        }
        self.run(Vec::new(), Box::new(move || Some(line)))
    }

    /// Cancels a call, wherever it is. One that is not known, or has ended, is not there any more.
    pub(crate) fn cancel(&self, id: &Id, reason: &str) {
        let open = self.turns.open();
        let named = open.values().flatten().filter(|(of, _)| of == id);
        let named: Vec<Cancel> = named.map(|(_, cancel)| cancel.clone()).collect();
        drop(open);
        named.iter().for_each(|cancel| cancel.cancel(reason));
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
        if let Some(line) = work() {
            turns.wait(turn);
            // A client that does not read any more learns nothing; the calls are run all the same.
            let _ = answers.write(&line);
        }
        turns.end(turn);
    }
}

/// Lines whose calls are queued or run.
#[derive(Debug, Default)]
struct Turns {
    open: Mutex<BTreeMap<u64, Vec<(Id, Cancel)>>>,
    ended: Condvar,
}

impl Turns {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<(Id, Cancel)>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no earlier call is open, but not for long.
    fn wait(&self, turn: u64) {
        let open = self.open();
        let earlier = |open: &mut BTreeMap<u64, _>| open.keys().next().is_some_and(|first| *first < turn);
        let _ = self.ended.wait_timeout_while(open, GRACE, earlier);
    }

    fn end(&self, turn: u64) {
        self.open().remove(&turn);
        self.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// Collects what is written.
    #[derive(Clone, Default)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl Write for Output {
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
        let output = Output::default();
        let answers = Arc::new(Answers::new(output.clone()));
        let mut calls = Calls::new(&answers);
        // They end only if all of them run.
        let all = Arc::new(Barrier::new(AT_ONCE));
        for n in 0..AT_ONCE {
            let all = all.clone();
            let work = move || {
                all.wait();
                Some(format!("{n}\n"))
            };
            calls.run(Vec::new(), Box::new(work)).unwrap();
        }
        for n in AT_ONCE..200 {
            calls.run(Vec::new(), Box::new(move || Some(format!("{n}\n")))).unwrap();
        }
        calls.finish();
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let mut said: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        said.sort_unstable();
        assert_eq!(said, (0..200).collect::<Vec<_>>());
    }

    #[test]
    fn an_answer_waits_for_an_earlier_one_but_not_for_ever() {
        let output = Output::default();
        let answers = Arc::new(Answers::new(output.clone()));
        let mut calls = Calls::new(&answers);
        let (release, slow) = sync_channel::<()>(0);
        let work = move || {
            let _ = slow.recv();
            Some("slow\n".to_owned())
        };
        calls.run(Vec::new(), Box::new(work)).unwrap();
        calls.run(Vec::new(), Box::new(|| Some("quick\n".to_owned()))).unwrap();
        while output.0.lock().unwrap().is_empty() {
            thread::yield_now();
        }
        release.send(()).unwrap();
        calls.finish();
        assert_eq!(*output.0.lock().unwrap(), b"quick\nslow\n");
    }

    #[test]
    fn what_is_answered_at_once_needs_no_thread_unless_something_is_open() {
        let output = Output::default();
        let answers = Arc::new(Answers::new(output.clone()));
        let mut calls = Calls::new(&answers);
        calls.answer("alone\n".to_owned()).unwrap();
        assert_eq!((&*output.0.lock().unwrap(), calls.threads.len()), (&b"alone\n".to_vec(), 0));
        let (release, slow) = sync_channel::<()>(0);
        let work = move || {
            slow.recv().unwrap();
            Some("first\n".to_owned())
        };
        calls.run(Vec::new(), Box::new(work)).unwrap();
        calls.answer("second\n".to_owned()).unwrap();
        release.send(()).unwrap();
        calls.finish();
        let text = String::from_utf8(output.0.lock().unwrap().clone()).unwrap();
        let mut lines: Vec<&str> = text.lines().collect();
        // Their order is kept for a while only, which a busy machine may use up.
        lines[1..].sort_unstable();
        assert_eq!(lines, ["alone", "first", "second"]);
    }

    #[test]
    fn calls_are_cancelled_by_their_ids_and_nothing_is_said_of_them() {
        let output = Output::default();
        let answers = Arc::new(Answers::new(output.clone()));
        let mut calls = Calls::new(&answers);
        let id = |n: u32| Id::Number(n.to_string());
        for n in 0..20 {
            let cancel = Cancel::default();
            let (hook, ended) = sync_channel(1);
            cancel.on_cancel(move || {
                let _ = hook.send(());
            });
            let work = move || ended.recv().is_err().then(|| format!("{n}\n"));
            calls.run(vec![(id(n), cancel)], Box::new(work)).unwrap();
        }
        calls.cancel(&Id::String("3".into()), "another id");
        calls.cancel(&id(99), "unknown");
        // More than run at once: those that wait can be cancelled, too.
        for n in (0..20).rev() {
            calls.cancel(&id(n), "enough");
        }
        calls.finish();
        assert_eq!(*output.0.lock().unwrap(), b"");
    }
}
