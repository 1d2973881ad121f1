//! A tool or a command run as this process's own child, and this process standing in for it: signals go down, the end comes
//! up as it was.

use crate::sys;
use nix::sys::{
    signal::SigSet,
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    io::Errno,
    process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, waitpid},
};
use std::{
    convert::Infallible,
    ffi::{CStr, CString, OsStr},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// Signals that are about this process's own faults; they stay what they are.
const OWN_FAULTS: [nix::sys::signal::Signal; 5] = [
    nix::sys::signal::Signal::SIGSEGV,
    nix::sys::signal::Signal::SIGBUS,
    nix::sys::signal::Signal::SIGFPE,
    nix::sys::signal::Signal::SIGILL,
    nix::sys::signal::Signal::SIGTRAP,
];

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this status.
    Exited(i32),
    /// By a signal.
    Killed(i32),
}

impl End {
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        let killed = status.terminating_signal().map(Self::Killed);
        killed.or_else(|| status.exit_status().map(Self::Exited))
    }

    /// As a shell counts it.
    pub(super) fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) => 128 + signal,
        }
    }

    /// Ends this process in the same way; returns the status to exit with.
    pub(super) fn repeat(self) -> u8 {
        if let Self::Killed(signal) = self {
            sys::die_by(signal);
        }
        u8::try_from(self.status() & 0xff).unwrap_or(u8::MAX)
    }
}

/// A child, and the signals about it.
#[derive(Debug)]
pub(super) struct Child {
    pid: Pid,
    signals: SignalFd,
    end: Option<End>,
}

impl Child {
    /// Forks. `prepare` and then `become_it` run in the child, which has the signal mask, the descriptors and the environment
    /// that this process was started with, and dies with this process.
    ///
    /// # Errors
    /// What the system refused.
    pub(super) fn start(become_it: impl FnOnce() -> u8) -> io::Result<Self> {
        let given = SigSet::thread_get_mask()?;
        let mut all = SigSet::all();
        for fault in OWN_FAULTS {
            all.remove(fault);
        }
        all.thread_set_mask()?;
        let started = SignalFd::with_flags(&all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
            .map_err(io::Error::from)
            .and_then(|signals| {
                let parent = getpid();
                let pid = sys::fork_whole(|| {
                    let dies = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                    let orphan = rustix::process::getppid() != Some(parent);
                    if dies.is_err() || orphan || given.thread_set_mask().is_err() {
                        return 126;
                    }
                    become_it()
                })?;
                Ok(Self { pid, signals, end: None })
            });
        if started.is_err() {
            given.thread_set_mask()?;
        }
        started
    }

    /// For poll: readable when `listen` has something to do.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    /// How it ended, if it did.
    pub(super) fn end(&self) -> Option<End> {
        self.end
    }

    /// Takes in signals: hands down those that were meant for the tool, notices its end, stops when it stops. Whether
    /// the terminal's size changed.
    pub(super) fn listen(&mut self) -> io::Result<bool> {
        let mut resized = false;
        while let Some(signal) = self.signals.read_signal()? {
            let number = i32::try_from(signal.ssi_signo).unwrap_or(0);
            resized |= number == nix::libc::SIGWINCH;
            // What the kernel sends (a terminal's Ctrl-C, say) goes to the tool too, which is in the same group.
            let is_sent = signal.ssi_code <= 0;
            if number == nix::libc::SIGCHLD {
                self.reap()?;
            } else if is_sent
                && self.end.is_none()
                && let Some(signal) = Signal::from_named_raw(number)
            {
                let _ = kill_process(self.pid, signal);
            }
        }
        Ok(resized)
    }

    fn reap(&mut self) -> io::Result<()> {
        loop {
            match waitpid(Some(self.pid), WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((_, status))) if status.stopped() => {
                    // Its shell waits for this process: it has to see the stop, and the going on reaches the tool from here.
                    kill_process(getpid(), Signal::STOP)?;
                    let _ = kill_process(self.pid, Signal::CONT);
                }
                Ok(Some((_, status))) => {
                    self.end = End::of(status);
                    return Ok(());
                }
                Ok(None) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::CHILD) if self.end.is_some() => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Becomes a program; a script without `#!` is run by sh, as shells do. Returns only an error.
///
/// # Errors
/// execve(2)'s.
pub(super) fn exec(path: &Path, args: &[CString]) -> io::Result<Infallible> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    sys::as_started()?;
    match nix::unistd::execv(&path, args) {
        Err(nix::errno::Errno::ENOEXEC) => {}
        Err(error) => return Err(error.into()),
    }
    let rest = args.iter().skip(1).cloned();
    let args: Vec<CString> = [c"sh".to_owned(), path].into_iter().chain(rest).collect();
    Ok(nix::unistd::execv(c"/bin/sh", &args)?)
}

/// Becomes a program with this environment. Returns only an error.
///
/// # Errors
/// execve(2)'s.
pub(super) fn exec_with(program: &CStr, args: &[CString], environment: &[CString]) -> io::Result<Infallible> {
    sys::as_started()?;
    Ok(nix::unistd::execve(program, args, environment)?)
}

/// Arguments as exec takes them. They came from an exec, so none has a NUL.
pub(super) fn c_strings<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> io::Result<Vec<CString>> {
    args.into_iter().map(|arg| CString::new(arg.as_ref().as_bytes()).map_err(io::Error::from)).collect()
}
