//! The guard: two small processes between the interceptor and the server, so that the server and everything it started end
//! when the interceptor does, even if that is killed.
//!
//! | process | does | if it is killed |
//! |---|---|---|
//! | the interceptor | waits for the guard | the keeper ends all below |
//! | guard: the interceptor's child | waits for the keeper | the keeper ends all below, and the interceptor what that leaves |
//! | keeper: the guard's fork | the server's parent | the guard ends all below |
//!
//! All three are subreapers: what the server started and lost becomes a child of the nearest of them that lives. So whichever
//! of them is left ends everything, if two are killed.
//!
//! The guard's standard input, and the keeper's, is one end of a socket pair: over it come the server's three pipes, for a remote server
//! with a login one end of the link to that login's keeper, which is none of this tree; and go [`GuardReport`]. When the other end closes, for whatever reason, the keeper kills its whole tree.

use super::forward;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, fcntl},
    sys::{
        prctl,
        signal::{Signal, kill},
        wait::{WaitStatus, waitpid},
    },
    unistd::Pid,
};
use ringfence_launch::{self as launch, NotRun};
use ringfence_process::{
    job::Streams,
    spawn::{self, FAILED},
    tree,
};
use ringfence_wire::{conn::Conn, mcp_login::LINK};
use serde::{Deserialize, Serialize};
use std::{
    cell::Cell,
    ffi::{CStr, OsString},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Command, ExitCode, Stdio},
    thread,
    time::Duration,
};

/// The two processes' name as `ps` and `killall` have it: not the program's, so that who kills by that does not kill all.
const NAME: &CStr = c"mcp-guard";

/// How long what a finished server left behind may take to end itself.
const GRACE: Duration = Duration::from_millis(500);

/// Longest message between guard and interceptor, bytes: a refusal names every axis and its gaps.
pub const MAX_REPORT: usize = 64 << 10;

/// How long the other end may take to send the pipes.
const SOON: Duration = Duration::from_secs(10);

/// The guard's report: the server was started, or was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardReport {
    /// The server runs.
    Started {
        /// Its process id.
        pid: i32,
        /// Process id of the keeper, which ends it.
        keeper: i32,
        /// What confines it, where it has a profile.
        #[serde(default, rename = "held")]
        confinement: Option<Confinement>,
    },
    /// It does not.
    Failed {
        /// 127: not found; 126: found and not executable.
        status: u8,
        /// The system's message.
        reason: String,
    },
}

/// What confines a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// Name of the profile.
    pub profile: String,
    /// Public id of the container, where the eBPF programs hold it.
    pub container: Option<String>,
    /// What enforces, in a few words.
    pub enforcement: String,
    /// The same in sentences.
    pub lines: Vec<String>,
}

/// How the server is started.
#[derive(Debug)]
pub enum ServerLaunch {
    /// As any child.
    Plain(Vec<OsString>),
    /// In a container.
    Contained(Box<launch::Request>),
}

/// A server that was started.
struct Server {
    pid: Pid,
    container: Option<launch::Started>,
}

/// Runs a server, by way of a keeper, until it ends or the other end of standard input closes. The status is the server's.
///
/// # Errors
/// There is no keeper.
pub fn guard(how: &ServerLaunch) -> io::Result<ExitCode> {
    let _ = prctl::set_name(NAME);
    // Without this, orphans of the server would escape to init. Failing to get it is not a reason not to run.
    let _ = prctl::set_child_subreaper(true);
    let (life, watched) = UnixStream::pair()?;
    let life = Cell::new(Some(life));
    let keeper = spawn::spawn(None, || {
        // Its other end is the guard's alone: it closes with that.
        drop(life.take());
        keep(how, watched).unwrap_or_else(|error| {
            let _ = writeln!(
                io::stderr(),
                "ringfence mcp-guard, which `ringfence mcp` starts: {}",
                ringfence_base::error::chain(&error)
            );
            FAILED
        })
    });
    let keeper = keeper.map_err(io::Error::other)?;
    let status = reap_until(keeper.pid());
    // What a keeper that was killed has left.
    tree::end();
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}

/// In the keeper.
///
/// # Errors
/// Where standard input is not what the interceptor gives its guard.
fn keep(how: &ServerLaunch, mut guard: UnixStream) -> io::Result<u8> {
    let _ = prctl::set_child_subreaper(true);
    let life = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut watched = life.try_clone()?;
    let mut conn = Conn::new(life, SOON, MAX_REPORT);
    let ((), pipes) = conn.receive_with_descriptors::<()>().map_err(io::Error::other)?;
    let mut pipes = pipes.into_iter();
    let three = [pipes.next(), pipes.next(), pipes.next()];
    let [Some(stdin), Some(stdout), Some(stderr)] = three else {
        return Err(io::Error::other("the interceptor sends three pipes"));
    };
    let (link, pipes) = (pipes.next(), [stdin, stdout, stderr]);
    let started = match how {
        ServerLaunch::Plain(command) => spawn(command, pipes, link),
        ServerLaunch::Contained(request) => contain(request, pipes),
    };
    let server = match started {
        Ok(server) => server,
        Err(NotRun { status, reason }) => {
            let _ = conn.send(&GuardReport::Failed { status, reason });
            return Ok(status);
        }
    };
    let confinement = server.container.as_ref().map(|started| Confinement {
        profile: started.profile.clone(),
        container: started.container.clone(),
        enforcement: started.enforcement.clone(),
        lines: started.lines.clone(),
    });
    let _ = conn.send(&GuardReport::Started {
        pid: server.pid.as_raw(),
        keeper: Pid::this().as_raw(),
        confinement,
    });
    tree::await_status(server.pid);
    thread::spawn(move || {
        let _ = watched.set_read_timeout(None);
        let _ = watched.read_to_end(&mut Vec::new());
        tree::end();
    });
    thread::spawn(move || {
        let _ = guard.read_to_end(&mut Vec::new());
        tree::end();
    });
    let status = reap_until(server.pid);
    for child in tree::living() {
        let _ = kill(child, Signal::SIGTERM);
    }
    let ended = std::time::Instant::now();
    while !tree::living().is_empty() && ended.elapsed() < GRACE {
        tree::reap();
        thread::sleep(Duration::from_millis(5));
    }
    tree::end();
    if let Some(started) = server.container {
        started.leave();
    }
    Ok(u8::try_from(status).unwrap_or(1))
}

/// Starts the server in a process group of its own. The pipes' ends are in the server alone when this returns; so is that of `link`,
/// which is for this program in place of a server, and whose number it finds in [`LINK`].
fn spawn(
    command: &[OsString],
    [stdin, stdout, stderr]: [OwnedFd; 3],
    link: Option<OwnedFd>,
) -> Result<Server, NotRun> {
    let try_spawn = || {
        let (program, arguments) = command.split_first().ok_or(io::ErrorKind::NotFound)?;
        let mut server = Command::new(program);
        server
            .args(arguments)
            .stdin(Stdio::from(stdin))
            .stdout(Stdio::from(stdout))
            .stderr(Stdio::from(stderr))
            .env_remove(LINK);
        if let Some(link) = &link {
            // This process has one thread yet, and starts nothing else.
            fcntl(link, FcntlArg::F_SETFD(FdFlag::empty()))?;
            server.env(LINK, link.as_raw_fd().to_string());
        }
        let server = with_signals_unmasked(|| server.process_group(0).spawn())?;
        i32::try_from(server.id()).map(Pid::from_raw).map_err(io::Error::other)
    };
    match try_spawn() {
        Ok(pid) => Ok(Server { pid, container: None }),
        Err(error) => {
            let status = match error.kind() {
                io::ErrorKind::NotFound => launch::NOT_FOUND,
                _ => launch::NOT_EXECUTABLE,
            };
            Err(NotRun { status, reason: error.to_string() })
        }
    }
}

/// Starts the server in a container, as `ringfence run` does; the keeper is the launcher. The pipes' ends are in the server
/// alone when this returns.
fn contain(request: &launch::Request, pipes: [OwnedFd; 3]) -> Result<Server, NotRun> {
    let mut started = with_signals_unmasked(|| launch::start(request, Streams::Given(pipes)))
        .map_err(|error| NotRun { status: launch::FAILED, reason: ringfence_base::error::chain(&error) })?;
    let pid = started.pid();
    if let Err(not_run) = started.become_command() {
        let _ = waitpid(pid, None);
        started.leave();
        return Err(not_run);
    }
    Ok(Server { pid, container: Some(started) })
}

/// Starts something without the mask that interceptor, guard and keeper share: a server must receive SIGTERM.
fn with_signals_unmasked<T>(start: impl FnOnce() -> T) -> T {
    let masked = forward::masked_signals();
    let _ = masked.thread_unblock();
    let started = start();
    let _ = masked.thread_block();
    started
}

/// Reaps children until this one is among them; its status as a shell gives it.
fn reap_until(child: Pid) -> i32 {
    loop {
        let status = match waitpid(None, None) {
            Ok(status) => Some(status),
            Err(Errno::EINTR) => None,
            // The thread that ends the tree was faster.
            Err(_) => return tree::awaited_status().and_then(|status| code_of(status, child)).unwrap_or(1),
        };
        if let Some(code) = status.and_then(|status| code_of(status, child)) {
            return code;
        }
    }
}

/// A status as a shell gives it, if it is this child's.
fn code_of(status: WaitStatus, child: Pid) -> Option<i32> {
    match status {
        WaitStatus::Exited(pid, code) if pid == child => Some(code),
        WaitStatus::Signaled(pid, signal, _) if pid == child => Some(128 + signal as i32),
        _ => None,
    }
}

/// The status of a process that ended, as a shell gives it.
pub fn shell_status(status: std::process::ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}
