//! Starting the auditor and starting it again: its own user, no way back to privileges, a pause that grows.

use nix::unistd::User;
use ringfence_wire::{
    audit::{Endowment, Gift},
    conn::Conn,
    message::MAX_REQUEST,
    packets::Packets,
};
use std::{
    io,
    net::TcpListener,
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt,
        },
    },
    path::PathBuf,
    process::{Child, Command},
    sync::mpsc::SyncSender,
    thread,
    time::{Duration, Instant},
};

/// The user that the auditor runs as.
pub(crate) const AUDIT_USER: &str = "ringfence-audit";

/// First pause before a new start.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// An auditor that lived this long had been well: the pause begins anew.
const WELL: Duration = Duration::from_secs(60);

/// How long the first message to a new auditor may take.
const BRIEF: Duration = Duration::from_secs(1);

/// Starts auditors.
pub(crate) trait Spawn: Send + 'static {
    /// Starts one, with one end of a new socket pair.
    ///
    /// # Errors
    /// As fork and exec.
    fn spawn(&mut self) -> io::Result<Process>;
}

/// An auditor's process and the core's end of its socket.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    socket: UnixStream,
}

impl Process {
    /// Takes a child and the socket whose other end it has.
    pub(crate) fn new(child: Child, socket: UnixStream) -> Self {
        Self { child, socket }
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The core's end.
    pub(crate) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Kills it and tells how it ended, which may have been before.
    pub(crate) fn kill(mut self) -> String {
        // Give one that closed its socket on its way out a moment, for the sake of its exit status.
        for _ in 0..20 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(5));
        }
        let killed = self.child.kill();
        match (killed, self.child.wait()) {
            (Ok(()), Ok(status)) => format!("killed, {status}"),
            (Err(error), _) | (_, Err(error)) => format!("could not be killed: {error}"),
        }
    }

    /// Closes its socket, which asks it to end; kills it if it does not within `patience`.
    pub(crate) fn finish(self, patience: Duration) -> String {
        let Self { mut child, socket } = self;
        drop(socket);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Ok(Some(status)) = child.try_wait() {
                return status.to_string();
            }
            thread::sleep(Duration::from_millis(20));
        }
        let _ = child.kill();
        match child.wait() {
            Ok(status) => format!("it did not end by itself: {status}"),
            Err(error) => format!("it did not end by itself: {error}"),
        }
    }
}

/// When to start again after a failure.
#[derive(Debug)]
pub(crate) struct Backoff {
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
    pub(crate) fn failed(&mut self, lived: Duration) -> Duration {
        if lived >= WELL {
            self.pause = FIRST_PAUSE;
        }
        let pause = self.pause;
        self.next = Instant::now() + pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        pause
    }

    /// Whether it is time.
    pub(crate) fn due(&self) -> bool {
        self.wait().is_zero()
    }

    /// How long until it is time.
    pub(crate) fn wait(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }
}

/// Starts this very binary as `ringfence auditor`.
#[derive(Debug)]
pub(crate) struct AuditorRole {
    /// Whom it runs as.
    pub(crate) user: User,
    /// Its state directory.
    pub(crate) state: PathBuf,
    /// The listening query socket, kept open so that no client is refused while an auditor is started again.
    pub(crate) query: UnixListener,
    /// The listening socket of MCP sessions, likewise.
    pub(crate) mcp: UnixListener,
    /// The listening socket of the dashboard, if a port was free.
    pub(crate) dashboard: Option<TcpListener>,
    /// Where the core's end of a new auditor's questions about its peers goes.
    pub(crate) peers: SyncSender<Packets>,
}

impl AuditorRole {
    /// Gives the new auditor the sockets that its sandbox would not let it make.
    fn endow(&self, link: &UnixStream) -> io::Result<()> {
        let (ours, theirs) = Packets::pair()?;
        let mut gifts = vec![(Gift::Mcp, self.mcp.as_fd()), (Gift::Peers, theirs.as_fd())];
        gifts.extend(self.dashboard.iter().map(|listener| (Gift::Dashboard, listener.as_fd())));
        let (gifts, descriptors): (Vec<_>, Vec<_>) = gifts.into_iter().unzip();
        // A few bytes into an empty socket: they fit, whoever reads.
        let mut conn = Conn::new(link.try_clone()?, BRIEF, MAX_REQUEST);
        conn.send_with_descriptors(&Endowment { gifts }, &descriptors).map_err(io::Error::other)?;
        link.set_write_timeout(None)?;
        // Full: auditors end faster than they are looked at. This one's questions go unanswered, and it refuses.
        let _ = self.peers.try_send(ours);
        Ok(())
    }
}

impl Spawn for AuditorRole {
    fn spawn(&mut self) -> io::Result<Process> {
        let (ours, theirs) = UnixStream::pair()?;
        let query: OwnedFd = self.query.try_clone()?.into();
        // /proc/self/exe is this binary even if the file was replaced by an upgrade. The core has set no_new_privs, and
        // this child inherits it. `uid` also empties the supplementary groups.
        let child = Command::new("/proc/self/exe")
            .arg0("ringfence")
            .arg("auditor")
            .arg("--state")
            .arg(&self.state)
            .stdin(OwnedFd::from(theirs))
            .stdout(query)
            .uid(self.user.uid.as_raw())
            .gid(self.user.gid.as_raw())
            .current_dir("/")
            .env_clear()
            // A thread for each who asks: the C library gives threads heaps of their own, eight for each processor, and keeps in
            // each what the busiest moment took. Two are enough for threads that wait for a disk.
            .env("MALLOC_ARENA_MAX", "2")
            .envs(std::env::var_os("RUST_LOG").map(|value| ("RUST_LOG", value)))
            .spawn()?;
        let process = Process::new(child, ours);
        match self.endow(process.socket()) {
            Ok(()) => Ok(process),
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::{
        sys::wait::{Id, WaitPidFlag, waitid},
        unistd::Pid,
    };

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
