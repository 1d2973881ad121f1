//! Starting a tool's processes: what a start is made of, and who makes it.
//!
//! The gate says whether a program may be started; a [`Spawner`] starts it, and may put the same grant on it by means of
//! the kernel. The one here does not.

use ringfence_grant::Grant;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::Serialize;
use std::{
    ffi::OsString,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::{CommandExt, ExitStatusExt},
    },
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
};

/// One process to start: everything it gets. Nothing else is inherited, but for the working directory's root.
#[derive(Debug)]
pub struct ProcessSpec {
    /// The program: absolute, as the gate found it.
    pub program: PathBuf,
    /// The name that it is called by: its `argv[0]`.
    pub name: OsString,
    /// Its arguments after that.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its standard input.
    pub stdin: OwnedFd,
    /// Its standard output.
    pub stdout: OwnedFd,
    /// Its standard error.
    pub stderr: OwnedFd,
    /// The process group that it joins; 0: a new one that has its own process id.
    pub group: i32,
}

/// A started process. It is not ended by dropping this.
pub trait Running: Send {
    /// Its process id, valid until [`wait`](Self::wait) has returned.
    fn pid(&self) -> i32;

    /// Its pidfd: readable once the process has ended.
    fn pidfd(&self) -> BorrowedFd<'_>;

    /// Waits for its end. To be called once, and always: an ended process that nobody waited for stays a zombie.
    ///
    /// # Errors
    /// Somebody else waited for it.
    fn wait(&mut self) -> io::Result<ExitStatus>;
}

/// What holds one axis of a grant for a started process and everything that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Enforcer {
    /// The kernel, in full, whatever the process does.
    Kernel,
    /// The gate alone: it holds what a call asks for, not what its processes do.
    Gate,
    /// Nothing: the axis is not restricted.
    None,
}

/// What holds each axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Enforcement {
    /// Executing programs.
    pub exec: Enforcer,
    /// Reading files.
    pub fs_read: Enforcer,
    /// Writing files.
    pub fs_write: Enforcer,
    /// Connecting.
    pub net: Enforcer,
}

impl Enforcement {
    /// The gate on each axis that `grant` restricts.
    pub fn by_gate(grant: &Grant) -> Self {
        let enforcer = |all: bool| if all { Enforcer::None } else { Enforcer::Gate };
        Self {
            exec: enforcer(grant.exec == ringfence_grant::Scope::All),
            fs_read: enforcer(grant.fs_read == ringfence_grant::Scope::All),
            fs_write: enforcer(grant.fs_write == ringfence_grant::Scope::All),
            net: enforcer(grant.net == ringfence_grant::Scope::All),
        }
    }
}

/// Starts processes that hold no more than a grant.
pub trait Spawner: Send + Sync {
    /// Starts one. `grant` is the effective grant of the call.
    ///
    /// # Errors
    /// It cannot be started, or cannot be held to the grant as [`enforcement`](Self::enforcement) says: then it does
    /// not run.
    fn spawn(&self, grant: &Grant, spec: ProcessSpec) -> io::Result<Box<dyn Running>>;

    /// Calls `work` once, work of our own that takes paths from a model, such as reading a file, where the kernel holds it
    /// to the grant. Returns once it is done.
    ///
    /// # Errors
    /// It could not be held to the grant, and did not run.
    fn within(&self, grant: &Grant, work: &mut (dyn FnMut() + Send)) -> io::Result<()>;

    /// What holds each axis of `grant` for a process started here.
    fn enforcement(&self, grant: &Grant) -> Enforcement;
}

/// Starts processes with no help from the kernel: the gate alone holds them.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainSpawner;

impl Spawner for PlainSpawner {
    fn spawn(&self, _: &Grant, spec: ProcessSpec) -> io::Result<Box<dyn Running>> {
        Ok(Box::new(start(spec)?))
    }

    fn within(&self, _: &Grant, work: &mut (dyn FnMut() + Send)) -> io::Result<()> {
        work();
        Ok(())
    }

    fn enforcement(&self, grant: &Grant) -> Enforcement {
        Enforcement::by_gate(grant)
    }
}

/// A child of this process.
#[derive(Debug)]
pub struct Child {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Starts a process from the calling thread: it inherits what that thread has put on itself.
///
/// # Errors
/// As for [`Command::spawn`]; or it has no pidfd, and was ended.
pub fn start(spec: ProcessSpec) -> io::Result<Child> {
    let mut command = Command::new(&spec.program);
    command.arg0(&spec.name).args(&spec.args).env_clear().envs(spec.env).current_dir(&spec.cwd);
    command.stdin(Stdio::from(spec.stdin)).stdout(Stdio::from(spec.stdout));
    command.stderr(Stdio::from(spec.stderr)).process_group(spec.group);
    let mut child = command.spawn()?;
    let pid = Pid::from_child(&child);
    match pidfd_open(pid, PidfdFlags::empty()) {
        // From here on it is waited for by its pidfd, not by `child`.
        Ok(pidfd) => Ok(Child { pid, pidfd }),
        Err(errno) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(errno.into())
        }
    }
}

impl Running for Child {
    fn pid(&self) -> i32 {
        self.pid.as_raw_pid()
    }

    fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn wait(&mut self) -> io::Result<ExitStatus> {
        loop {
            match waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(None) => return Err(io::ErrorKind::NotFound.into()),
                Ok(Some(status)) => {
                    let exited = status.exit_status().map(|code| (code & 0xff) << 8);
                    let ended = status.terminating_signal().map(|signal| signal & 0x7f);
                    let core = if status.dumped() { 0x80 } else { 0 };
                    return Ok(ExitStatus::from_raw(exited.or(ended).unwrap_or_default() | core));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, io::Read};

    fn spec(program: &str, args: &[&str], stdout: OwnedFd) -> ProcessSpec {
        let null = || File::open("/dev/null").unwrap().into();
        ProcessSpec {
            program: program.into(),
            name: "sh".into(),
            args: args.iter().map(OsString::from).collect(),
            env: vec![("ONLY".into(), "this".into())],
            cwd: "/".into(),
            stdin: null(),
            stdout,
            stderr: null(),
            group: 0,
        }
    }

    #[test]
    fn a_process_gets_what_its_stage_says_and_its_end_is_told() {
        let (mut read, write) = std::io::pipe().unwrap();
        let script = "echo $ONLY $PATH_OF_SERVER; pwd; exit 7";
        let mut child = start(spec("/bin/sh", &["-c", script], write.into())).unwrap();
        let mut said = String::new();
        read.read_to_string(&mut said).unwrap();
        assert_eq!(said, "this\n/\n");
        assert_eq!(child.wait().unwrap().code(), Some(7));
        let (_read, write) = std::io::pipe().unwrap();
        let mut child = start(spec("/bin/sh", &["-c", "kill -TERM $$"], write.into())).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }
}
