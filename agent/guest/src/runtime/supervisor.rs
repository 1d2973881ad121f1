//! What runs in a call's process, from the fork on.
//!
//! The process waits until it is let go. A file tool then runs in it. For the shell it becomes the supervisor of the call: it
//! forks the shell, and as its subreaper has everything that the shell starts below itself, also what daemonises. It stays as
//! long as anything of that runs, and ends all of it when the runtime closes its end of the control pipe, or dies.

use super::{tree, work::Work};
use crate::{
    signals::{Signal, Signals, wait_for},
    sys,
};
use ringfence_base::error::chain;
use ringfence_file_tools::workspace::{AllowAll, Workspace};
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
    process::{self, Pid, WaitOptions, WaitStatus},
    stdio,
};
use std::{
    ffi::{CString, OsStr},
    fs::File,
    io::{self, BufWriter, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, process::CommandExt},
    },
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

/// How long a shell's helpers (such as `>(tee log)`) may outlive it before they count as left running.
const GRACE: Duration = Duration::from_millis(100);

/// Bytes of a [`Report`].
pub(super) const REPORT: usize = 5;

/// What a call's process reports about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The shell's process id, which is its group's too.
    Shell(i32),
    /// There is no shell that could be run: the error number.
    NoShell(i32),
    /// Processes outlive the shell. Comes before its end.
    Left,
    /// The shell ended with this status.
    Exited(i32),
    /// A signal ended the shell.
    Killed(i32),
    /// The file tool succeeded.
    Done,
    /// The file tool failed; its output is the reason.
    Refused,
}

impl Report {
    fn encode(self) -> [u8; REPORT] {
        let (kind, value) = match self {
            Self::Shell(pid) => (1, pid),
            Self::NoShell(error) => (2, error),
            Self::Left => (3, 0),
            Self::Exited(status) => (4, status),
            Self::Killed(signal) => (5, signal),
            Self::Done => (6, 0),
            Self::Refused => (7, 0),
        };
        let [a, b, c, d] = value.to_be_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn decode([kind, a, b, c, d]: [u8; REPORT]) -> Option<Self> {
        let value = i32::from_be_bytes([a, b, c, d]);
        match kind {
            1 => Some(Self::Shell(value)),
            2 => Some(Self::NoShell(value)),
            3 => Some(Self::Left),
            4 => Some(Self::Exited(value)),
            5 => Some(Self::Killed(value)),
            6 => Some(Self::Done),
            7 => Some(Self::Refused),
            _ => None,
        }
    }
}

/// The process's ends of its pipes.
#[derive(Debug)]
pub(super) struct Pipes {
    /// A byte comes to let it go; its closing ends it.
    pub(super) control: File,
    /// Reports go here.
    pub(super) status: File,
    /// Output goes here.
    pub(super) out: OwnedFd,
}

impl Pipes {
    /// What a call's process has to keep.
    pub(super) fn descriptors(&self) -> [RawFd; 3] {
        [self.control.as_raw_fd(), self.status.as_raw_fd(), self.out.as_raw_fd()]
    }
}

/// The body of a call's process.
pub(super) fn supervise(pipes: Pipes, work: Work, dir: &Path) -> u8 {
    // A tool may stop this process. The kernel sends SIGHUP to an orphaned process group that has a stopped process in it:
    // that must not be the runtime's group.
    let _ = process::setpgid(None, None);
    u8::from(run(pipes, work, dir).is_err())
}

fn run(pipes: Pipes, work: Work, dir: &Path) -> io::Result<()> {
    let Pipes { mut control, mut status, out } = pipes;
    if control.read(&mut [0])? == 0 {
        // The runtime is gone, or thought better of it.
        return Ok(());
    }
    match work {
        Work::File { tool, input } => {
            // Its reader is the runtime: without it there is nothing to do. The runtime has one thread, so the death of
            // the thread that forked is its death.
            process::set_parent_process_death_signal(Some(process::Signal::KILL))?;
            let mut out = BufWriter::new(File::from(out));
            let result = tool.run(&input, &Workspace { dir, gate: &AllowAll, deadline: None }, &mut out);
            let report = match result {
                Ok(()) => Report::Done,
                Err(error) => {
                    out.write_all(chain(&error).as_bytes())?;
                    Report::Refused
                }
            };
            out.flush()?;
            drop(out);
            status.write_all(&report.encode())
        }
        Work::Shell { command } => shell(&control, &status, out, &command),
    }
}

/// Runs the shell and stays until nothing of it runs.
fn shell(control: &File, mut status: &File, out: OwnedFd, command: &str) -> io::Result<()> {
    process::set_child_subreaper(Some(process::getpid()))?;
    let died = Signals::block(&[Signal::SIGCHLD])?;
    let command = CString::new(command)?;
    let failed = status.try_clone()?;
    let shell =
        sys::fork_child(&[out.as_raw_fd(), failed.as_raw_fd()], || become_shell(&out, &command, &failed))?;
    drop(out);

    let mut end: Option<(Report, Instant)> = None;
    let mut reported = false;
    loop {
        let alone = reap(shell, |report| end = Some((report, Instant::now() + GRACE)));
        let mut timeout = None;
        if let Some((report, grace)) = end
            && !reported
        {
            let left = grace.saturating_duration_since(Instant::now());
            if alone || left.is_zero() {
                if !alone {
                    status.write_all(&Report::Left.encode())?;
                }
                status.write_all(&report.encode())?;
                reported = true;
            } else {
                timeout = Some(left);
            }
        }
        if alone {
            return Ok(());
        }
        let mut watched = [PollFd::new(&died, PollFlags::IN), PollFd::new(control, PollFlags::empty())];
        wait_for(&mut watched, timeout)?;
        if watched[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            if !tree::end(process::getpid(), shell) {
                status.write_all(&Report::Left.encode())?;
            }
            return Ok(());
        }
        while let Ok(Some(_)) = died.next() {}
    }
}

/// Reaps what is dead; whether nothing is left.
fn reap(shell: Pid, mut ended: impl FnMut(Report)) -> bool {
    loop {
        match process::wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == shell => ended(how(status)),
            Ok(Some(_)) | Err(Errno::INTR) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

fn how(status: WaitStatus) -> Report {
    match status.terminating_signal() {
        Some(signal) => Report::Killed(signal),
        None => Report::Exited(status.exit_status().unwrap_or(-1)),
    }
}

/// In the shell's process: execs bash, or sh where there is none.
fn become_shell(out: &OwnedFd, command: &CString, mut failed: &File) -> u8 {
    let exec = || -> io::Result<std::convert::Infallible> {
        process::setsid()?;
        // Before anything of the command runs: it may stop the supervisor, and then whoever is to end it has to know it.
        let mut reports = failed;
        reports.write_all(&Report::Shell(process::getpid().as_raw_nonzero().get()).encode())?;
        let null = File::open("/dev/null")?;
        stdio::dup2_stdin(&null)?;
        stdio::dup2_stdout(out)?;
        stdio::dup2_stderr(out)?;
        sys::default_signals()?;
        let command = OsStr::from_bytes(command.to_bytes());
        let become_it = |shell: &str| Command::new(shell).arg("-c").arg(command).exec();
        match become_it("bash") {
            error if error.kind() == io::ErrorKind::NotFound => Err(become_it("sh")),
            error => Err(error),
        }
    };
    let Err(error) = exec();
    let _ = failed.write_all(&Report::NoShell(error.raw_os_error().unwrap_or(0)).encode());
    127
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_survives_its_pipe() {
        let all = [
            Report::Shell(7),
            Report::NoShell(2),
            Report::Left,
            Report::Exited(255),
            Report::Killed(9),
            Report::Done,
            Report::Refused,
        ];
        for report in all {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode([0; REPORT]), None);
    }
}
