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
use std::{fs, io, os::fd::RawFd};

/// Highest descriptor that is closed one by one; the runtime has a few for each call, and never this many.
const MOST_DESCRIPTORS: RawFd = 4096;

/// Threads that a process may have when it forks. A test has one more, libtest's main, which only waits.
const MOST_THREADS: usize = if cfg!(test) { 2 } else { 1 };

/// Forks; the child runs `body` and ends with the status that it returns, without running exit handlers or dropping
/// anything but what `body` owns. Of the descriptors it has standard input, output and error and those in `kept`, which
/// have to include all that `body` owns or borrows: another tool's pipe held here would never end.
///
/// # Errors
/// fork(2)'s; `Other` where this process has several threads.
pub(crate) fn fork_child(kept: &[RawFd], body: impl FnOnce() -> u8) -> io::Result<Pid> {
    // Without /proc the count is unknown; that the runtime starts no thread is then all there is.
    if let Ok(threads) = fs::read_dir("/proc/self/task")
        && threads.count() > MOST_THREADS
    {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    // SAFETY: fork(2) requires of a multithreaded process that the child call only async-signal-safe functions. This
    // process has one thread, counted above, and nothing between there and here starts another.
    match unsafe { fork() }? {
        ForkResult::Child => {
            close_all_but(kept);
            let status = body();
            // SAFETY: _exit(2) has no requirements; it ends the process without the parent's atexit handlers.
            unsafe { libc::_exit(i32::from(status)) }
        }
        ForkResult::Parent { child } => {
            Pid::from_raw(child.as_raw()).ok_or_else(|| io::Error::other("fork returned no process"))
        }
    }
}

/// Closes every descriptor but standard input, output and error and those in `kept`.
fn close_all_but(kept: &[RawFd]) {
    let mut kept = kept.to_vec();
    kept.sort_unstable();
    let mut from = 3;
    for fd in kept {
        close_range(from, fd - 1);
        from = from.max(fd + 1);
    }
    close_range(from, RawFd::MAX);
}

fn close_range(from: RawFd, to: RawFd) {
    if from > to {
        return;
    }
    // SAFETY: close_range(2) has no memory requirements. Only the child of `fork_child` gets here. The descriptors belong
    // to values of the parent's frames, which the child never returns to, so nothing uses or closes them again; those that
    // its body uses are among the kept.
    if unsafe { libc::syscall(libc::SYS_close_range, from, to, 0) } == 0 {
        return;
    }
    // A container's seccomp may know no close_range.
    for fd in from..=to.min(MOST_DESCRIPTORS) {
        // SAFETY: as above; close(2) of a descriptor that is not open does nothing.
        unsafe { libc::close(fd) };
    }
}

/// Puts the handling of signals back to what a program expects at its start: none blocked, SIGPIPE ends it.
///
/// # Errors
/// sigaction(2)'s and sigprocmask(2)'s, which no supported kernel gives for these arguments.
pub(crate) fn default_signals() -> io::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sigaction(2) with SIG_DFL installs no function, so nothing can run in a signal's context.
    unsafe { sigaction(Signal::SIGPIPE, &action) }?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}
