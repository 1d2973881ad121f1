//! What no safe library call does: fork without exec, and leaving without running exit handlers.
//!
//! The runtime has one thread, so a forked child is a whole copy with nothing half done in it: ordinary code may run
//! there. The count of threads is checked before every fork.
#![expect(
    unsafe_code,
    reason = "fork, _exit, close_range, sigaction and code before main have no safe wrapper"
)]

use nix::{
    libc,
    sys::{
        resource::{Resource, setrlimit},
        signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction},
    },
    unistd::{ForkResult, fork},
};
use rustix::process::Pid;
use std::{
    fs, io,
    mem::MaybeUninit,
    os::fd::RawFd,
    sync::atomic::{AtomicBool, AtomicU8, Ordering},
};

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
    fork_whole(|| {
        close_all_but(kept);
        body()
    })
}

/// Refuses where this process has several threads.
fn one_thread() -> io::Result<()> {
    // Without /proc the count is unknown; that the runtime starts no thread is then all there is.
    if let Ok(threads) = fs::read_dir("/proc/self/task")
        && threads.count() > MOST_THREADS
    {
        return Err(io::Error::other("a process with several threads must not fork"));
    }
    Ok(())
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
    default_sigpipe()?;
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

fn default_sigpipe() -> io::Result<()> {
    let action = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: sigaction(2) with SIG_DFL installs no function, so nothing can run in a signal's context.
    unsafe { sigaction(Signal::SIGPIPE, &action) }?;
    Ok(())
}

/// What the process was given when it started, before Rust's runtime changed it: it ignores SIGPIPE, and opens /dev/null
/// where standard input, output or error was closed. A program that becomes another one has to hand on what it got.
static CLOSED_AT_START: AtomicU8 = AtomicU8::new(0);
static PIPE_IGNORED_AT_START: AtomicBool = AtomicBool::new(false);

// SAFETY: the C library calls each function pointer in this section once, before main, in the only thread there is. The
// function takes no arguments, and the C calling convention allows the three that it is called with.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = remember_start;

extern "C" fn remember_start() {
    for fd in 0..3 {
        // SAFETY: F_GETFD takes no memory; of a closed descriptor it is an error.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            CLOSED_AT_START.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action sigaction(2) only writes the old one, to memory of that type.
    let known = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr()) } == 0;
    // SAFETY: zeroes are a valid value of this type, and the call above can only have made it another.
    let action = unsafe { action.assume_init() };
    PIPE_IGNORED_AT_START.store(known && action.sa_sigaction == libc::SIG_IGN, Ordering::Relaxed);
}

/// Whether one of standard input (0), output (1) and error (2) was closed when the process started.
pub(crate) fn was_closed(fd: RawFd) -> bool {
    (0..3).contains(&fd) && CLOSED_AT_START.load(Ordering::Relaxed) & (1 << fd) != 0
}

/// Puts back what the process was given at its start: the handling of SIGPIPE, and closed standard descriptors. For a
/// process that is about to exec: what the runtime opened in their place is nobody's.
///
/// # Errors
/// sigaction(2)'s, which no supported kernel gives for these arguments.
pub(crate) fn as_started() -> io::Result<()> {
    if !PIPE_IGNORED_AT_START.load(Ordering::Relaxed) {
        default_sigpipe()?;
    }
    for fd in (0..3).filter(|fd| was_closed(*fd)) {
        // SAFETY: the descriptor is the runtime's /dev/null, which no value owns; nothing reads or writes it any more.
        unsafe { libc::close(fd) };
    }
    Ok(())
}

/// Forks; the child runs `body` and ends with the status that it returns, as `fork_child` says, but has every
/// descriptor that the parent has: for a tool that is to start with what its caller gave it.
///
/// # Errors
/// fork(2)'s; `Other` where this process has several threads.
pub(crate) fn fork_whole(body: impl FnOnce() -> u8) -> io::Result<Pid> {
    one_thread()?;
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

/// Ends this process by a signal, so that whoever waits for it sees what became of the tool that it stood for. Returns
/// only where that is impossible: the first process of a PID namespace is spared by its own signals.
pub(crate) fn die_by(signal: i32) {
    // A core of the tool is there already, where one is wanted.
    let _ = setrlimit(Resource::RLIMIT_CORE, 0, 0);
    // SAFETY: signal(2) with SIG_DFL installs no function; raise(3) takes no memory. An unknown number is an error of both.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
    }
    let _ = SigSet::empty().thread_set_mask();
    // SAFETY: as above.
    unsafe { libc::raise(signal) };
}
