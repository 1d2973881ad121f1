//! Standing in for the command until it ends: signals go through, stops and continuations are shared.
//!
//! The command stays in the launcher's process group, so that the terminal treats both as one job. A signal that the
//! terminal made has reached both already; one that somebody sent reached only the launcher and is passed on.

use crate::kernel::spawn::{self, Child, shell_status};
use nix::{
    errno::Errno,
    sys::{
        signal::{SigSet, SigmaskHow, Signal, kill, raise, sigprocmask},
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
pub(crate) struct Error {
    what: &'static str,
    #[source]
    source: Errno,
}

/// The signals that this process waits for instead of being interrupted by them.
#[derive(Debug)]
pub(crate) struct Signals {
    descriptor: SignalFd,
    before: SigSet,
}

impl Signals {
    /// Blocks them, before the child is there.
    ///
    /// # Errors
    /// [`Error`], which no supported kernel gives.
    pub(crate) fn block() -> Result<Self, Error> {
        let error = |what| move |source| Error { what, source };
        let mut set: SigSet = FORWARDED.iter().copied().collect();
        set.add(Signal::SIGCHLD);
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut before)).map_err(error("block signals"))?;
        let descriptor = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC)
            .map_err(error("open a descriptor for signals"))?;
        Ok(Self { descriptor, before })
    }

    /// In the child: puts back what it would have had without a launcher.
    ///
    /// # Errors
    /// [`Error`], which no supported kernel gives.
    pub(crate) fn unblock(&self) -> Result<(), Error> {
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None)
            .map_err(|source| Error { what: "restore the signal mask", source })
    }

    /// Waits until the command has ended; its status as a shell has it, 128+n after signal n.
    ///
    /// # Errors
    /// [`Error`] if the child is not ours to wait for.
    pub(crate) fn wait(&self, child: &Child) -> Result<u8, Error> {
        loop {
            let signal = match self.descriptor.read_signal() {
                Ok(Some(signal)) => signal,
                Ok(None) | Err(Errno::EINTR) => continue,
                Err(source) => return Err(Error { what: "read signals", source }),
            };
            match Signal::try_from(i32::try_from(signal.ssi_signo).unwrap_or_default()) {
                Ok(Signal::SIGCHLD) => {
                    if let Some(status) = reap(child)? {
                        return Ok(status);
                    }
                }
                // The terminal, or the kernel for a lost one: the command has it too.
                Ok(_) if signal.ssi_code == nix::libc::SI_KERNEL => {}
                // A child that is gone has left a SIGCHLD for the next round.
                Ok(signal) => drop(kill(child.pid(), signal)),
                Err(_) => {}
            }
        }
    }
}

/// Takes in what happened to the child; its status if it ended.
fn reap(child: &Child) -> Result<Option<u8>, Error> {
    loop {
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED;
        match waitpid(child.pid(), Some(flags)) {
            Ok(WaitStatus::StillAlive) => return Ok(None),
            // Stop as well, so that the shell that started the launcher gets its prompt back. `fg` continues the whole
            // group; a SIGCONT to the launcher alone is passed on like any signal.
            Ok(WaitStatus::Stopped(..)) => drop(raise(Signal::SIGSTOP)),
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
pub(crate) fn adopt_children() -> Result<(), spawn::Error> {
    spawn::default_action(Signal::SIGCHLD)
}
