//! The end of a keeper's tree: every process that descends from this one, in whatever group or session it hides.
//!
//! For a process that is the subreaper of its descendants and keeps nothing else: an orphan becomes its own child.

use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use std::{
    fs,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How often children are looked for at most.
const ROUNDS: usize = 1000;
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(2);

/// A child whose status another thread waits for, and that status, where it was reaped here.
#[derive(Debug, Default)]
struct Awaited {
    child: Option<Pid>,
    status: Option<WaitStatus>,
}

impl Awaited {
    const fn nobody() -> Self {
        Self { child: None, status: None }
    }

    fn reaped(&mut self, status: WaitStatus) {
        if self.child.is_some() && self.child == status.pid() {
            self.status = Some(status);
        }
    }
}

static AWAITED: Mutex<Awaited> = Mutex::new(Awaited::nobody());

/// From now on the status of this child is kept, should [`reap`] come before whoever waits for it: another thread may end
/// the tree at any time.
pub fn await_status(child: Pid) {
    *AWAITED.lock().unwrap_or_else(PoisonError::into_inner) = Awaited { child: Some(child), status: None };
}

/// The status of the child of [`await_status`], if it was reaped here.
pub fn awaited_status() -> Option<WaitStatus> {
    AWAITED.lock().unwrap_or_else(PoisonError::into_inner).status
}

/// Waits until a child has ended by itself, `most` at the longest. What is no child of this process is not waited for.
pub fn wait_for_exit(child: Pid, most: Duration) {
    let until = Instant::now() + most;
    while matches!(waitpid(child, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive) | Err(Errno::EINTR))
    {
        if Instant::now() >= until {
            return;
        }
        thread::sleep(PAUSE);
    }
}

/// Kills every descendant. It is enough to kill children until there are none. What forks faster than this kills is not
/// caught up with.
pub fn end() {
    end_except(&[]);
}

/// As [`end`], but for these children and what is below them while they live.
pub fn end_except(kept: &[Pid]) {
    // Of two threads, one could reap what the other has listed, and the id could be somebody else's by then.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..ROUNDS {
        // Not when none is alive: of a child whose first thread has ended, others may not have, and only with the last of
        // them its own children become ours.
        if !reap() {
            return;
        }
        let remaining: Vec<Pid> = children().filter(|child| !kept.contains(child)).collect();
        if remaining.is_empty() {
            return;
        }
        for child in remaining.into_iter().filter(|child| !is_dead(*child)) {
            // The group first: what a child forks while we look is in it.
            let _ = kill(Pid::from_raw(-child.as_raw()), Signal::SIGKILL);
            let _ = kill(child, Signal::SIGKILL);
        }
        thread::sleep(PAUSE);
    }
}

/// Waits for what has ended; whether there are other children.
pub fn reap() -> bool {
    // Held meanwhile: who finds no child any more finds the status.
    let mut awaited = AWAITED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(status) => awaited.reaped(status),
            Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Children that are not dead.
pub fn living() -> Vec<Pid> {
    children().filter(|child| !is_dead(*child)).collect()
}

/// Children of every thread of this process, those that nobody has waited for included.
fn children() -> impl Iterator<Item = Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .map(Pid::from_raw)
}

/// Whether nothing of a process runs. Where only its first thread has ended, it is a zombie for /proc, and others go on.
fn is_dead(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let has_ended = stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
    has_ended && fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count) < 2
}

#[cfg(test)]
mod tests {
    use super::{Awaited, Pid, Signal, WaitStatus, is_dead};
    use std::{
        process::{Command, Stdio},
        thread,
        time::{Duration, Instant},
    };

    #[test]
    fn a_process_whose_first_thread_has_ended_lives_while_another_does() {
        let script = "import threading, sys, ctypes\n\
                      threading.Thread(target=sys.stdin.read).start()\n\
                      ctypes.CDLL(None).pthread_exit(None)";
        let mut python = Command::new("python3");
        let mut python = python.args(["-c", script]).stdin(Stdio::piped()).spawn().expect("python3");
        let pid = Pid::from_raw(python.id().cast_signed());
        let until = Instant::now() + Duration::from_secs(60);
        let stat = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it is not waited for");
        while !stat().contains(") Z ") {
            assert!(!is_dead(pid), "it has not even begun to end");
            assert!(Instant::now() < until, "its first thread does not end");
            thread::sleep(Duration::from_millis(5));
        }
        assert!(!is_dead(pid), "its other thread reads");
        python.kill().expect("it is there");
        while !is_dead(pid) {
            assert!(Instant::now() < until, "it does not die");
            thread::sleep(Duration::from_millis(5));
        }
        python.wait().expect("its end");
    }

    #[test]
    fn the_status_that_somebody_waits_for_is_kept_and_no_other() {
        let (child, other) = (Pid::from_raw(40), Pid::from_raw(41));
        let mut awaited = Awaited::nobody();
        awaited.reaped(WaitStatus::Exited(child, 3));
        assert_eq!(awaited.status, None, "nobody waits");
        awaited.child = Some(child);
        awaited.reaped(WaitStatus::Exited(other, 3));
        assert_eq!(awaited.status, None);
        let killed = WaitStatus::Signaled(child, Signal::SIGKILL, false);
        awaited.reaped(killed);
        awaited.reaped(WaitStatus::Exited(other, 0));
        assert_eq!(awaited.status, Some(killed));
    }
}
