//! Threads that are used again.

use ringfence_base::precedence;
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// How long a thread that is done waits for more.
const KEPT: Duration = Duration::from_secs(20);

/// As many threads as there are jobs at once.
pub(super) struct Threads<J> {
    name: &'static str,
    stack: usize,
    shared: Arc<Shared<J>>,
}

struct Shared<J> {
    work: Box<dyn Fn(J) + Send + Sync>,
    queue: Mutex<Queue<J>>,
    comes: Condvar,
}

struct Queue<J> {
    /// No more than threads that wait for one.
    jobs: VecDeque<J>,
    idle: usize,
}

impl<J: Send + 'static> Threads<J> {
    /// None is started yet.
    pub(super) fn new(name: &'static str, stack: usize, work: impl Fn(J) + Send + Sync + 'static) -> Self {
        let queue = Mutex::new(Queue { jobs: VecDeque::new(), idle: 0 });
        Self { name, stack, shared: Arc::new(Shared { work: Box::new(work), queue, comes: Condvar::new() }) }
    }

    /// Gives a job to a thread that waits, or to a new one.
    ///
    /// # Errors
    /// The job, where there is neither.
    pub(super) fn give(&self, job: J) -> Result<(), J> {
        let mut queue = self.shared.lock();
        if queue.idle > queue.jobs.len() {
            queue.jobs.push_back(job);
            drop(queue);
            self.shared.comes.notify_one();
            return Ok(());
        }
        drop(queue);
        let (shared, job) = (Arc::clone(&self.shared), Arc::new(Mutex::new(Some(job))));
        let take = |job: &Mutex<Option<J>>| job.lock().unwrap_or_else(PoisonError::into_inner).take();
        let given = Arc::clone(&job);
        let thread = thread::Builder::new().name(self.name.into()).stack_size(self.stack);
        let started = thread.spawn(move || {
            if let Some(job) = take(&given) {
                shared.run(job);
            }
        });
        match started {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!("starting a thread for the {} socket failed: {error}", self.name);
                take(&job).map_or(Ok(()), Err)
            }
        }
    }
}

impl<J> Shared<J> {
    fn run(&self, mut job: J) {
        loop {
            precedence::usual();
            (self.work)(job);
            let mut queue = self.lock();
            queue.idle += 1;
            let wait = self.comes.wait_timeout_while(queue, KEPT, |queue| queue.jobs.is_empty());
            queue = wait.unwrap_or_else(PoisonError::into_inner).0;
            queue.idle -= 1;
            match queue.jobs.pop_front() {
                Some(next) => job = next,
                None => return,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue<J>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_is_used_again_and_as_many_work_as_there_are_jobs() {
        let (done, ended) = mpsc::channel();
        let threads = Threads::new("job", 1 << 20, move |wait: Option<mpsc::Receiver<()>>| {
            if let Some(wait) = wait {
                let _ = wait.recv();
            }
            done.send(thread::current().id()).expect("it is waited for");
        });
        let idle = |count| {
            while threads.shared.lock().idle != count {
                thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(threads.give(None).is_ok());
        let first = ended.recv().expect("done");
        idle(1);
        assert!(threads.give(None).is_ok());
        assert_eq!(ended.recv().expect("done"), first);
        idle(1);
        // While it is busy, another one starts.
        let (go, wait) = mpsc::channel();
        assert!(threads.give(Some(wait)).is_ok());
        idle(0);
        assert!(threads.give(None).is_ok());
        assert_ne!(ended.recv().expect("done"), first);
        drop(go);
        assert_eq!(ended.recv().expect("done"), first);
        idle(2);
    }

    #[test]
    fn a_job_for_which_there_is_no_thread_comes_back() {
        let threads = Threads::new("job", 1 << 60, |_: u8| ());
        assert_eq!(threads.give(7), Err(7));
    }
}
