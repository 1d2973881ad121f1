//! A command that was let go, until it ends.

use crate::{Error, cgroup::Cgroup, proxy::Proxy};
use nix::unistd::Pid;
use ringfence_process::{
    job::Job,
    spawn::{Child, FAILED},
    wait,
};
use std::{io::Read, os::unix::net::UnixStream};

/// Longest word of a child that fails.
const MAX_WORD: u64 = 16 << 10;

/// A command that was let go, or that failed before.
#[derive(Debug)]
pub struct Started {
    pub(crate) child: Child,
    pub(crate) job: Job,
    pub(crate) signals: wait::Signals,
    pub(crate) cgroup: Option<Cgroup>,
    /// The child's word, until its exec closes the other end.
    pub(crate) socket: UnixStream,
    /// What it said before it was ready; nothing: it was.
    pub(crate) early: Option<Vec<u8>>,
    /// What reaches hosts by name for it.
    pub(crate) proxy: Option<Proxy>,
    /// Name of the profile.
    pub profile: String,
    /// Public id of its container, where the eBPF programs hold it.
    pub container: Option<String>,
    /// What enforces, in a few words.
    pub enforcement: String,
    /// The same in sentences.
    pub lines: Vec<String>,
}

/// The child's word that it will not become the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    /// 127: not found; 126: found and not executable; [`FAILED`]: its confinement failed.
    pub status: u8,
    /// Why.
    pub reason: String,
}

impl Started {
    /// The command's process id.
    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Waits until the child is the command.
    ///
    /// # Errors
    /// [`NotRun`]: it never will be.
    pub fn become_command(&mut self) -> Result<(), NotRun> {
        let early = self.early.take();
        let ready = early.is_none();
        let mut said = early.unwrap_or_default();
        // The child's end closes with its exec, or with its end.
        let _ = (&self.socket).take(MAX_WORD).read_to_end(&mut said);
        match said.split_first() {
            None if ready => Ok(()),
            None => Err(NotRun {
                status: FAILED,
                reason: "the child ended before it was in its container".into(),
            }),
            Some((status, reason)) => {
                Err(NotRun { status: *status, reason: String::from_utf8_lossy(reason).into_owned() })
            }
        }
    }

    /// Stands in for the command until it ends; its exit status as a shell has it. `before_stop` is called each time before this
    /// process stops because the command did, with all of its threads; what it gives is dropped when they go on.
    ///
    /// # Errors
    /// It cannot be waited for.
    pub fn wait<T>(self, before_stop: impl Fn() -> T) -> Result<u8, Error> {
        let status = self.signals.wait_with(&self.child, Some(&self.job), before_stop)?;
        self.leave();
        Ok(status)
    }

    /// The command has ended, and was waited for: ends its proxy, and takes its cgroup away.
    pub fn leave(self) {
        if let Some(proxy) = self.proxy {
            proxy.end();
        }
        if let Some(cgroup) = self.cgroup {
            cgroup.leave();
        }
    }
}
