//! A process that is supervised: ended by its socket or killed, told how it ended, started again after pauses that grow.

use std::{
    os::unix::net::UnixStream,
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// First pause before a new start.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that lived this long had been well: the pause begins anew.
const WELL: Duration = Duration::from_secs(60);
/// How long one that was killed may take to end.
const DYING: Duration = Duration::from_secs(10);

/// A role's process, and our end of its socket.
#[derive(Debug)]
pub struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    /// Takes a child and the socket whose other end it has.
    pub fn new(child: Child, socket: UnixStream) -> Self {
        Self { child, socket }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Our end.
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Kills it and tells how it ended, which may have been before.
    pub fn kill(mut self) -> String {
        // Give one that closed its socket on its way out a moment, for the sake of its exit status.
        for _ in 0..20 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(5));
        }
        match self.child.kill() {
            Ok(()) => format!("killed, {}", ended(self.child, DYING)),
            Err(error) => format!("could not be killed: {error}"),
        }
    }

    /// Closes its socket, which asks it to end; kills it if it does not within `patience`.
    pub fn finish(self, patience: Duration) -> String {
        self.finish_unless(patience, || false)
    }

    /// The same, for as long as nobody `hurries`, which is asked every few milliseconds.
    pub fn finish_unless(self, patience: Duration, mut hurries: impl FnMut() -> bool) -> String {
        let Self { mut child, socket } = self;
        drop(socket);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline && !hurries() {
            if let Ok(Some(status)) = child.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        format!("it did not end by itself: {}", ended(child, DYING))
    }
}

/// How a process ended that was killed. One that is closing a file may be kept by that file's system, for as long as a user says
/// whose own file system it is: what comes after it does not wait.
fn ended(mut child: Child, patience: Duration) -> String {
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(Some(status)) => return status.to_string(),
            Ok(None) => thread::sleep(Duration::from_millis(5)),
            Err(error) => return error.to_string(),
        }
    }
    let pid = child.id();
    // Its descriptors, and the locks on them, are its until then.
    let _ = thread::Builder::new().name("reaper".into()).stack_size(128 << 10).spawn(move || child.wait());
    format!("but process {pid} has not ended after {} s", patience.as_secs())
}

/// When to start again after a failure.
#[derive(Debug)]
pub struct Backoff {
    pause: Duration,
    next: Instant,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { pause: FIRST_PAUSE, next: Instant::now() }
    }
}

impl Backoff {
    /// Notes a failure after a life of `lived`; gives the pause until the next start.
    pub fn failed(&mut self, lived: Duration) -> Duration {
        if lived >= WELL {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.pause;
        self.next = Instant::now() + pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    /// Whether it is time.
    pub fn due(&self) -> bool {
        self.wait().is_zero()
    }

    /// How long until it is time.
    pub fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{
        sys::{
            signal::{Signal, kill},
            wait::{Id, WaitPidFlag, waitid},
        },
        unistd::Pid,
    };
    use std::{os::fd::OwnedFd, process::Command};

    #[test]
    fn pauses_grow_and_begin_anew_after_a_good_life() {
        let mut backoff = Backoff::default();
        assert!(backoff.due());
        let pauses: Vec<_> = (0..12).map(|_| backoff.failed(Duration::ZERO)).collect();
        assert_eq!(pauses[..3], [FIRST_PAUSE, FIRST_PAUSE * 2, FIRST_PAUSE * 4]);
        assert_eq!(pauses[11], LONGEST_PAUSE);
        assert!(!backoff.due());
        assert_eq!(backoff.failed(WELL), FIRST_PAUSE);
    }

    #[test]
    fn one_that_does_not_end_is_waited_for_elsewhere() {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(child.id().try_into().unwrap());
        // Nobody has killed it, as if it could not be.
        let said = ended(child, Duration::ZERO);
        assert!(said.contains(&format!("process {pid} has not ended")), "{said}");
        kill(pid, Signal::SIGKILL).unwrap();
        let begun = Instant::now();
        while kill(pid, None).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(120), "it ended, and nobody reaped it");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn the_way_a_process_ended_is_told() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new("sh").args(["-c", "exit 3"]).stdin(OwnedFd::from(theirs)).spawn().unwrap();
        // It has ended, and nobody has waited for it.
        let id = Id::Pid(Pid::from_raw(child.id().try_into().unwrap()));
        waitid(id, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert!(Process::new(child, ours).kill().contains('3'));
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new("sleep").arg("60").stdin(OwnedFd::from(theirs)).spawn().unwrap();
        assert!(Process::new(child, ours).kill().contains("killed"));
        // cat ends at the end of its input.
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = Command::new("cat").stdin(OwnedFd::from(theirs)).spawn().unwrap();
        assert!(Process::new(child, ours).finish(Duration::from_secs(120)).contains('0'));
    }
}
