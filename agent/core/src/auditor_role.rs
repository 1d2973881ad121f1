//! Starting the auditor and starting it again: its own user, no way back to privileges, a pause that grows.

use nix::unistd::User;
use ringfence_supervise::child::Process;
use ringfence_wire::{
    audit::{Handoff, PassedFd},
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
    process::Command,
    sync::mpsc::SyncSender,
    time::Duration,
};

/// The user that the auditor runs as.
pub const AUDIT_USER: &str = "ringfence-audit";

/// How long the first message to a new auditor may take.
const BRIEF: Duration = Duration::from_secs(1);

/// Starts auditors.
pub trait Spawn: Send + 'static {
    /// Starts one, with one end of a new socket pair.
    ///
    /// # Errors
    /// As fork and exec.
    fn spawn(&mut self) -> io::Result<Process>;
}

/// Starts this very binary as `ringfence auditor`.
#[derive(Debug)]
pub(crate) struct AuditorRole {
    /// Whom it runs as.
    pub user: User,
    /// Its state directory.
    pub state: PathBuf,
    /// The listening query socket, kept open so that no client is refused while an auditor is started again.
    pub query: UnixListener,
    /// The listening socket of MCP sessions, likewise.
    pub mcp: UnixListener,
    /// The listening socket of the dashboard, if a port was free.
    pub dashboard: Option<TcpListener>,
    /// Where the core's end of a new auditor's questions about its peers goes.
    pub peers: SyncSender<Packets>,
}

impl AuditorRole {
    /// Passes the new auditor the sockets that its sandbox would not let it make.
    fn hand_off(&self, link: &UnixStream) -> io::Result<()> {
        let (ours, theirs) = Packets::pair()?;
        let mut passed = vec![(PassedFd::Mcp, self.mcp.as_fd()), (PassedFd::Peers, theirs.as_fd())];
        passed.extend(self.dashboard.iter().map(|listener| (PassedFd::Dashboard, listener.as_fd())));
        let (fds, descriptors): (Vec<_>, Vec<_>) = passed.into_iter().unzip();
        // A few bytes into an empty socket: they fit, whoever reads.
        let mut conn = Conn::new(link.try_clone()?, BRIEF, MAX_REQUEST);
        conn.send_with_descriptors(&Handoff { fds }, &descriptors).map_err(io::Error::other)?;
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
        match self.hand_off(process.socket()) {
            Ok(()) => Ok(process),
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }
}
