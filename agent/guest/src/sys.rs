//! What no safe library call does: fork without exec, and leaving without running exit handlers.
//!
//! The runtime has one thread, so a forked child is a whole copy with nothing half done in it: ordinary code may run
//! there. The count of threads is checked before every fork.
#![expect(unsafe_code, reason = "fork, _exit, close_range and sigaction have no safe wrapper")]

use nix::{
    libc,
    sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    unistd::{ForkResult, fork},
};
use rustix::process::Pid;
use std::{
    fs, io,
    os::fd::{AsRawFd, BorrowedFd, RawFd},
};

/// Forks; the child runs `body` and ends with the status that it returns, without running exit handlers or dropping
/// anything but what `body` owns.
///
/// # Errors
/// fork(2)'s; `Other` where this process has more than one thread.
pub fn fork_child(body: impl FnOnce() -> u8) -> io::Result<Pid> {
    // Without /proc the count is unknown; that the runtime starts no thread is then all there is.
    if let Ok(threads) = fs::read_dir("/proc/self/task")
        && threads.count() != 1
    {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    // SAFETY: fork(2) requires of a multithreaded process that the child call only async-signal-safe functions. This
    // process has one thread, counted above, and nothing between there and here starts another.
    match unsafe { fork() }? {
        ForkResult::Child => {
            let status = body();
            // SAFETY: _exit(2) has no requirements; it ends the process without the parent's atexit handlers.
            unsafe { libc::_exit(i32::from(status)) }
        }
        ForkResult::Parent { child } => {
            Pid::from_raw(child.as_raw()).ok_or_else(|| io::Error::other("fork returned no process"))
        }
    }
}

/// Closes every descriptor of a forked child but standard input, output and error and those in `kept`.
///
/// Only for a child of [`fork_child`]: the values that own the closed descriptors are copies of the parent's, which the
/// child never drops.
///
/// # Errors
/// close_range(2)'s, which no supported kernel gives.
pub fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept {
        close_range(from, fd - 1)?;
        from = from.max(fd + 1);
    }
    close_range(from, RawFd::MAX)
}

fn close_range(from: RawFd, to: RawFd) -> io::Result<()> {
    if from > to {
        return Ok(());
    }
    // SAFETY: close_range(2) has no memory requirements. The descriptors belong to values of the parent's frames, which
    // `fork_child` never returns to in the child, so nothing uses or closes them again.
    match unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Puts the handling of signals back to what a program expects at its start: none blocked, SIGPIPE ends it.
///
/// # Errors
/// sigaction(2)'s and sigprocmask(2)'s, which no supported kernel gives for these arguments.
pub fn default_signals() -> io::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sigaction(2) with SIG_DFL installs no function, so nothing can run in a signal's context.
    unsafe { sigaction(Signal::SIGPIPE, &action) }?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}
