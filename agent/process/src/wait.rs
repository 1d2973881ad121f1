//! Standing in for the command until it ends: signals go through, stops and continuations are shared.
//!
//! Where the command is a job of its own, what somebody sent to the launcher is passed on to the command, and what the
//! terminal sent to the launcher's group to all of the command's. Where it is in the launcher's group, it has that already.

use super::job::Job;
use crate::spawn::{self, Child, shell_status};
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, killpg, raise, sigprocmask},
        signalfd::{SfdFlags, SignalFd},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
};

/// Passed on to the command. SIGKILL and SIGSTOP cannot be; the rest are a process's own faults.
const FORWARDED: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Why signals cannot be handled. The command is not started then.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}")]
pub struct Error {
    what: &'static str,
    #[source]
    source: Errno,
}

/// The signals that this process waits for instead of being interrupted by them.
#[derive(Debug)]
pub struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Blocks them, before the child is there.
    ///
    /// # Errors
    /// [`Error`], which no supported kernel gives.
    pub fn block() -> Result<Self, Error> {
        let error = |what| move |source| Error { what, source };
        let mut set: SigSet = FORWARDED.iter().copied().collect();
        set.add(Signal::SIGCHLD);
        // Only blocked: who takes a terminal back from the background would be stopped by it.
        let mut blocked = set;
        blocked.add(Signal::SIGTTOU);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&blocked), Some(&mut before))
            .map_err(error("block signals"))?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
            .map_err(error("open a descriptor for signals"))?;
        Ok(Self { descriptor, before })
    }

    /// In the child: puts back what it would have had without a launcher.
    ///
    /// # Errors
    /// [`Error`], which no supported kernel gives.
    pub fn unblock(&self) -> Result<(), Error> {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None)
            .map_err(|source| Error { what: "restore the signal mask", source })
    }

    /// Waits until the command has ended, which may be a job of its own; its status as a shell has it, 128+n after signal n.
    ///
    /// # Errors
    /// [`Error`] if the child is not ours to wait for.
    pub fn wait(&self, child: &Child, job: Option<&Job>) -> Result<u8, Error> {
        self.wait_with(child, job, || {})
    }

    /// The same. `before_stop`: each time, as [`Job::stopped`] has it.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn wait_with<T>(
        &self,
        child: &Child,
        job: Option<&Job>,
        before_stop: impl Fn() -> T,
    ) -> Result<u8, Error> {
        loop {
            let signal = match self.descriptor.read_signal() {
                Ok(Some(signal)) => signal,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(source) => return Err(Error { what: "read signals", source }),
            };
            match Signal::try_from(i32::try_from(signal.ssi_signo).unwrap_or_default()) {
                Ok(Signal::SIGCHLD) => {
                    if let Some(status) = reap(child, job, &before_stop)? {
                        if let Some(job) = job {
                            job.end();
                        }
                        return Ok(status);
                    }
                }
                // A child that is gone has left a SIGCHLD for the next round.
                Ok(passed) => match job {
                    // The terminal, or the kernel for a lost one.
                    Some(job) if signal.ssi_code == nix::libc::SI_KERNEL => {
                        let _ = killpg(child.pid(), job.passes(passed, child));
                    }
                    Some(job) => drop(kill(child.pid(), job.passes(passed, child))),
                    None if signal.ssi_code == nix::libc::SI_KERNEL => {}
                    None => drop(kill(child.pid(), passed)),
                },
                Err(_) => {}
            }
        }
    }
}

/// Takes in what happened to the child; its status if it ended.
fn reap<T>(child: &Child, job: Option<&Job>, before_stop: &impl Fn() -> T) -> Result<Option<u8>, Error> {
    loop {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        match waitpid(child.pid(), Some(flags)) {
            Ok(WaitStatus::StillAlive) => return Ok(None),
            // So that whoever waits for this process notices.
            Ok(WaitStatus::Stopped(_, by)) => match job {
                Some(job) => job.stopped(child, by, before_stop),
                None => {
                    let held = before_stop();
                    let _ = raise(Signal::SIGSTOP);
                    drop(held);
                }
            },
            Ok(status) => {
                if let Some(status) = shell_status(status) {
                    return Ok(Some(status));
                }
            }
            Err(Errno::EINTR) => {}
            Err(source) => return Err(Error { what: "wait for the command", source }),
        }
    }
}

/// Makes sure that children can be waited for, whatever was inherited.
///
/// # Errors
/// [`spawn::Error`], which no supported kernel gives.
pub fn reset_sigchld() -> Result<(), spawn::Error> {
    spawn::default_action(Signal::SIGCHLD)
}
