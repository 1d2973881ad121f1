//! The guard: a small process between the interceptor and the server, so that the server and everything it started end
//! when the interceptor does, even if that is killed.
//!
//! It is the server's parent and the reaper of its orphans. Its standard input is one end of a socket pair: over it come
//! the server's three pipes, and go [`Said`]. When the other end closes, for whatever reason, it kills its whole tree.

use super::forward;
use crate::launch::{self, NotRun, Streams};
use nix::{
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use ringfence_wire::conn::Conn;
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

/// How long what a finished server left behind may take to end itself.
const GRACE: Duration = Duration::from_millis(500);

/// Longest message between guard and interceptor, bytes: a refusal names every axis and its gaps.
pub(crate) const MAX_SAID: usize = 64 << 10;

/// How long the other end may take to send the pipes.
const SOON: Duration = Duration::from_secs(10);

/// What the guard says once the server was started, or was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// The server runs.
    Started {
        /// Its process id.
        pid: i32,
        /// What holds it, where it has a profile.
        #[serde(default)]
        held: Option<Held>,
    },
    /// It does not.
    Failed {
        /// 127: not found; 126: found and not executable.
        status: u8,
        /// The system's words.
        reason: String,
    },
}

/// What holds a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Name of the profile.
    pub(crate) profile: String,
    /// Public id of the container, where the eBPF programs hold it.
    pub(crate) container: Option<String>,
    /// What enforces, in a few words.
    pub(crate) enforcement: String,
    /// The same in sentences.
    pub(crate) lines: Vec<String>,
}

/// How the server is started.
#[derive(Debug)]
pub(crate) enum How {
    /// As any child.
    Plain(Vec<OsString>),
    /// In a container.
    Contained(launch::Request),
}

/// A server that was started.
struct Server {
    pid: Pid,
    container: Option<launch::Started>,
}

/// Runs a server until it ends or the other end of standard input closes. The status is the server's.
///
/// # Errors
/// Where standard input is not what the interceptor gives its guard.
pub(crate) fn guard(how: &How) -> io::Result<ExitCode> {
    // Without this, orphans of the server would escape to init. Failing to get it is not a reason not to run.
    let _ = prctl::set_child_subreaper(true);
    let life = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut watched = life.try_clone()?;
    let mut conn = Conn::new(life, SOON, MAX_SAID);
    let ((), pipes) = conn.receive_with_descriptors::<()>().map_err(io::Error::other)?;
    let pipes: [OwnedFd; 3] =
        pipes.try_into().map_err(|_| io::Error::other("the interceptor sends three pipes"))?;
    let started = match how {
        How::Plain(command) => spawn(command, pipes),
        How::Contained(request) => contain(request, pipes),
    };
    let server = match started {
        Ok(server) => server,
        Err(NotRun { status, reason }) => {
            let _ = conn.send(&Said::Failed { status, reason });
            return Ok(ExitCode::from(status));
        }
    };
    let held = server.container.as_ref().map(|started| Held {
        profile: started.profile.clone(),
        container: started.container.clone(),
        enforcement: started.enforcement.clone(),
        lines: started.lines.clone(),
    });
    let _ = conn.send(&Said::Started { pid: server.pid.as_raw(), held });
    thread::spawn(move || {
        let _ = watched.set_read_timeout(None);
        let _ = watched.read_to_end(&mut Vec::new());
        kill_tree();
    });
    let status = reap_until(server.pid);
    for child in children() {
        let _ = kill(child, Signal::SIGTERM);
    }
    let ended = std::time::Instant::now();
    while !children().is_empty() && ended.elapsed() < GRACE {
        reap_all();
        thread::sleep(Duration::from_millis(5));
    }
    kill_tree();
    if let Some(started) = server.container {
        started.leave();
    }
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// Starts the server in a process group of its own. The pipes' ends are in the server alone when this returns.
fn spawn(command: &[OsString], [stdin, stdout, stderr]: [OwnedFd; 3]) -> Result<Server, NotRun> {
    let try_spawn = || {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut server = Command::new(program);
        server
            .args(arguments)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::from(stdout))
            .stderr(Stdio::from(stderr));
        let server = hearing(|| server.process_group(0).spawn())?;
        i32::try_from(server.id()).map(Pid::from_raw).map_err(io::Error::other)
    };
    match try_spawn() {
        Ok(pid) => Ok(Server { pid, container: None }),
        Err(error) => {
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Err(NotRun { status, reason: error.to_string() })
        }
    }
}

/// Starts the server in a container, as `ringfence run` does; the guard is the launcher. The pipes' ends are in the server
/// alone when this returns.
fn contain(request: &launch::Request, pipes: [OwnedFd; 3]) -> Result<Server, NotRun> {
    let mut started = hearing(|| launch::start(request, Streams::Given(pipes)))
        .map_err(|error| NotRun { status: launch::FAILED, reason: launch::chain(&error) })?;
    let pid = started.pid();
    if let Err(not_run) = started.become_command() {
        let _ = waitpid(pid, None);
        started.leave();
        return Err(not_run);
    }
    Ok(Server { pid, container: Some(started) })
}

/// Starts something with the signals that the interceptor holds, and the guard with it: a server must hear SIGTERM.
fn hearing<T>(start: impl FnOnce() -> T) -> T {
    let held = forward::held();
    let _ = held.thread_unblock();
    let started = start();
    let _ = held.thread_block();
    started
}

/// Reaps children until `server` is among them; its status as a shell gives it.
fn reap_until(server: Pid) -> i32 {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == server => return code,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == server => return 128 + signal as i32,
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return 1,
        }
    }
}

fn reap_all() {
    while let Ok(status) = waitpid(None, Some(nix::sys::wait::WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}

/// Kills every descendant. An orphan becomes our child, so that it is enough to kill children until there are none.
fn kill_tree() {
    for _ in 0..1000 {
        let children = children();
        if children.is_empty() {
            return;
        }
        for child in children {
            // The group first: what a child forks while we look is in it.
            let _ = kill(Pid::from_raw(-child.as_raw()), Signal::SIGKILL);
            let _ = kill(child, Signal::SIGKILL);
        }
        reap_all();
        thread::sleep(Duration::from_millis(2));
    }
}

/// Children of every thread of this process that are not dead.
fn children() -> Vec<Pid> {
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .filter(|pid| !is_zombie(*pid))
        .map(Pid::from_raw)
        .collect()
}

fn is_zombie(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

/// The status of a process that ended, as a shell gives it.
pub(crate) fn shell_status(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
