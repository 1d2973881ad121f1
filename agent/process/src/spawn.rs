//! Starting the launcher's child: fork, and what has to happen between fork and exec.
//!
//! The launcher forks while it has one thread. The child is then a whole copy with nothing half done in it, so that
//! ordinary code (allocation, libseccomp, the Landlock crate) may run there until it execs.

#![expect(unsafe_code, reason = "fork, _exit, sigaction and close_range have no safe wrapper")]

use crate::pidfd;
use nix::{
    errno::Errno,
    libc,
    sys::{
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction},
        wait::{WaitStatus, waitpid},
    },
    unistd::{ForkResult, Pid, fork},
};
use std::{
    fs, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Exit status of a child that does not become the command, as env(1) and timeout(1) have it.
pub const FAILED: u8 = 125;

/// Why a child could not be started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other threads would be missing in the child, and their locks held.
    #[error("cannot start a command: the launcher has {0} threads, and must have one when it forks")]
    Threads(usize),
    /// /proc is missing or unreadable.
    #[error("cannot count the launcher's threads in /proc/self/task (is /proc mounted?)")]
    Proc(#[source] io::Error),
    /// fork(2) failed.
    #[error("cannot fork (too many processes, or too little memory?)")]
    Fork(#[source] Errno),
    /// The child runs, but has no pidfd; it was ended.
    #[error("cannot open a pidfd of the child")]
    Pidfd(#[source] io::Error),
    /// A signal could not be put back to its default.
    #[error("cannot reset the handling of {signal}")]
    Signal {
        /// Which.
        signal: Signal,
        /// Why.
        #[source]
        source: Errno,
    },
    /// Descriptors could not be closed.
    #[error("cannot close the descriptors that the command must not inherit")]
    Close(#[source] Errno),
}

/// A child of this process that has not been waited for: its pid cannot have been given to another.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }
}

impl AsFd for Child {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Forks; the child runs `body` and ends with the status that it returns, without running exit handlers. `body`
/// normally execs and does not return.
///
/// With a cgroup's directory, the child is born in that cgroup where the kernel and our rights allow it, else beside us.
///
/// # Errors
/// [`Error`]; after any there is no child.
pub fn spawn(cgroup: Option<BorrowedFd<'_>>, body: impl FnOnce() -> u8) -> Result<Child, Error> {
    match fs::read_dir("/proc/self/task").map_err(Error::Proc)?.count() {
        1 => {}
        threads => return Err(Error::Threads(threads)),
    }
    // SAFETY: a child of a multithreaded process may call only async-signal-safe functions. This process has one thread,
    // counted above, and nothing between there and here starts another.
    let born = cgroup.and_then(|cgroup| unsafe { fork_into(cgroup) }.ok());
    let fork = match born {
        Some(fork) => fork,
        // SAFETY: as above.
        None => unsafe { fork() }.map_err(Error::Fork)?,
    };
    match fork {
        ForkResult::Child => {
            // A panic must not unwind into the parent's frames, which this copy has too. Where panics abort, it ends here.
            let status = catch_unwind(AssertUnwindSafe(body)).unwrap_or(FAILED);
            // SAFETY: _exit(2) has no requirements; it ends the process without the parent's atexit handlers.
            unsafe { libc::_exit(i32::from(status)) }
        }
        ForkResult::Parent { child: pid } => {
            // The child was not waited for, so the pid is still its own.
            match pidfd::open(pid.as_raw()) {
                Ok(pidfd) => Ok(Child { pid, pidfd }),
                Err(error) => {
                    let _ = kill(pid, Signal::SIGKILL);
                    let _ = waitpid(pid, None);
                    Err(Error::Pidfd(error))
                }
            }
        }
    }
}

/// fork(2) by clone3(2), which glibc has no wrapper of: the child is born in a cgroup.
///
/// # Safety
/// The caller has one thread: what glibc does at a fork for the locks of others is not done.
unsafe fn fork_into(cgroup: BorrowedFd<'_>) -> nix::Result<ForkResult> {
    // SAFETY: every field of the structure is an integer, for which zero is valid, and means that it is not used.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    // CLONE_INTO_CGROUP of linux/sched.h; the libc crate's constant is too narrow for it.
    arguments.flags = 0x2_0000_0000;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = u64::try_from(cgroup.as_raw_fd()).map_err(|_| Errno::EBADF)?;
    // SAFETY: clone3(2) reads the structure, whose size is given. Without CLONE_VM and without a stack the child is a copy
    // of this process that goes on here, as after fork(2).
    let result =
        unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match Errno::result(result)? {
        0 => Ok(ForkResult::Child),
        pid => {
            Ok(ForkResult::Parent { child: Pid::from_raw(i32::try_from(pid).map_err(|_| Errno::EOVERFLOW)?) })
        }
    }
}

/// Puts a signal back to its default action.
///
/// # Errors
/// [`Error::Signal`] for SIGKILL and SIGSTOP.
pub fn default_action(signal: Signal) -> Result<(), Error> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sigaction(2) with SIG_DFL installs no function, so nothing can run in a signal's context.
    unsafe { sigaction(signal, &action) }.map(|_| ()).map_err(|source| Error::Signal { signal, source })
}

/// Marks every descriptor but standard input, output and error to be closed at exec.
///
/// # Errors
/// [`Error::Close`], which no supported kernel gives.
pub fn close_at_exec() -> Result<(), Error> {
    let flags = libc::CLOSE_RANGE_CLOEXEC as libc::c_int;
    // SAFETY: close_range(2) with CLOSE_RANGE_CLOEXEC closes nothing now; it only sets a flag on each descriptor, so
    // no descriptor that safe code owns becomes invalid.
    Errno::result(unsafe { libc::close_range(3, libc::c_uint::MAX, flags) }).map(|_| ()).map_err(Error::Close)
}

/// The exit status that a shell has for a wait status: 128+n after signal n. None: the process has not ended.
pub fn shell_status(status: WaitStatus) -> Option<u8> {
    match status {
        WaitStatus::Exited(_, status) => u8::try_from(status & 0xff).ok(),
        WaitStatus::Signaled(_, signal, _) => u8::try_from(128 + signal as i32).ok(),
        _ => None,
    }
}
