//! Which auditor the agents of `ringfence agent start` are linked to: the daemon's where there is a daemon, and else the user's own.
//!
//! What is pinned has one place, and people look there. A daemon that is away for a moment is waited for: workers have their files
//! meanwhile.

use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use ringfence_client::{places::Places, sessions as client};
use ringfence_wire::mcp::McpRequest;
use std::{
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

/// How often lines to the user's own auditor are moved, where the daemon's answers by now.
const LOOK: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct AgentLines {
    /// The daemon's auditor answered once.
    has_daemon: AtomicBool,
    /// The lines to the user's own.
    own: Mutex<Vec<UnixStream>>,
}

impl AgentLines {
    /// Ends lines to the user's own auditor from now on, once the daemon's answers: they are made again, to that.
    ///
    /// # Errors
    /// There is no room for a thread.
    pub(super) fn watch(self: &Arc<Self>) -> anyhow::Result<()> {
        let lines = Arc::clone(self);
        let watch = move || {
            loop {
                thread::sleep(LOOK);
                if !lines.has_own() {
                    continue;
                }
                if let Ok(places) = Places::locate(None)
                    && client::connect_daemon(&places).is_some()
                {
                    lines.end_own();
                }
            }
        };
        thread::Builder::new().name("moves".into()).spawn(watch).context("cannot start a thread")?;
        Ok(())
    }

    /// A connection to the auditor on which this was said.
    ///
    /// # Errors
    /// It cannot be reached.
    pub(super) fn connect(&self, request: &McpRequest) -> anyhow::Result<UnixStream> {
        let places = Places::locate(None)?;
        if let Some(mut conn) = client::connect_daemon(&places) {
            self.has_daemon.store(true, Ordering::Relaxed);
            self.end_own();
            conn.send(request)?;
            return Ok(conn.into_stream());
        }
        // Where it was killed, its socket is still there.
        let is_there = places.daemon.as_ref().is_some_and(|socket| socket.symlink_metadata().is_ok());
        if is_there || self.has_daemon.load(Ordering::Relaxed) {
            bail!(
                "the daemon's auditor, which has what is pinned, does not answer; is `ringfence daemon` running? Without a daemon, start the service again"
            );
        }
        places.make()?;
        let mut conn = client::connect_own(&places, client::DEFAULT_PORT)?;
        conn.send(request)?;
        let line = conn.into_stream();
        self.own.lock().unwrap_or_else(PoisonError::into_inner).push(line.try_clone()?);
        Ok(line)
    }

    /// Whether a line to the user's own auditor is up.
    fn has_own(&self) -> bool {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|line| {
            let mut polled = [PollFd::new(line.as_fd(), PollFlags::empty())];
            // Whoever has it as well shuts it down, or the auditor has ended.
            matches!(poll(&mut polled, PollTimeout::ZERO), Ok(0))
        });
        !own.is_empty()
    }

    fn end_own(&self) {
        for line in self.own.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = line.shutdown(Shutdown::Both);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_over_are_forgotten_and_the_others_end_with_the_move() {
        let lines = AgentLines::default();
        let (over, over_there) = UnixStream::pair().expect("a pair");
        let (up, up_there) = UnixStream::pair().expect("a pair");
        lines.own.lock().expect("not poisoned").extend([over, up.try_clone().expect("another")]);
        drop(over_there);
        assert!(lines.has_own());
        assert_eq!(lines.own.lock().expect("not poisoned").len(), 1, "one is over");
        lines.end_own();
        assert!(!lines.has_own());
        let mut polled = [PollFd::new(up_there.as_fd(), PollFlags::empty())];
        assert_eq!(poll(&mut polled, PollTimeout::ZERO), Ok(1), "its auditor is told");
    }
}
