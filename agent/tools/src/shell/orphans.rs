//! Processes that outlive their call: those that left its process group and lost their parents.
//!
//! A process that becomes the subreaper of its descendants gets them as children when their own parents end, wherever
//! they fled to: another session, another group. Once no call runs, every child that is left is one of those.

use rustix::{
    io::Errno,
    process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, pidfd_open, pidfd_send_signal,
        set_child_subreaper, waitid,
    },
};
use std::{
    fs, io,
    os::fd::AsFd,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How long killing goes on: a process that forks faster than this kills is not caught up with.
const TIME: Duration = Duration::from_secs(10);

/// Ends the orphans of a process all of whose children are tools.
#[derive(Debug)]
pub(super) struct Orphans {
    running: Mutex<usize>,
}

/// A call that runs.
pub(super) struct Call<'a>(&'a Orphans);

impl Orphans {
    /// Makes this process the subreaper of its descendants.
    ///
    /// # Errors
    /// As of prctl(2).
    pub(super) fn adopt() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { running: Mutex::new(0) })
    }

    /// A call begins. Its processes are not taken for orphans until it is dropped.
    pub(super) fn call(&self) -> Call<'_> {
        *self.running() += 1;
        Call(self)
    }

    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Held until the end, so that no call begins meanwhile.
        let mut running = self.0.running();
        *running -= 1;
        if *running == 0 {
            sweep();
        }
    }
}

/// Ends every child, then theirs, until there are none.
fn sweep() {
    let until = Instant::now() + TIME;
    while Instant::now() < until {
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if matches!(waitid(WaitId::All, any), Err(Errno::CHILD)) {
            return;
        }
        for child in children() {
            // A child that nobody waits for keeps its id: this is the one that was listed.
            let Ok(pidfd) = pidfd_open(child, PidfdFlags::empty()) else { continue };
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            let _ = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED);
        }
    }
}

/// This process's children, by whichever of its threads they are listed under.
fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return vec![] };
    let lists =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let ids = |list: String| list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>();
    lists.flat_map(ids).filter_map(Pid::from_raw).collect()
}
