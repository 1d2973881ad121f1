//! The interceptor's process: starts the server behind its guard, runs the two directions, ends in the right order.

use super::{
    answer,
    guard::{Said, shell_status},
    journal::Entry,
    line::{self, Kind, Line, Message},
    lines::{Lines, Taken},
    redact,
    session::{Session, now},
};
use nix::{
    sys::signal::{SigSet, Signal, kill},
    unistd::Pid,
};
use ringfence_wire::conn::Conn;
use std::{
    ffi::OsString,
    io::{self, PipeReader, PipeWriter, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::{Child, Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How long a server may take to end after its stdin closed, and again after SIGTERM.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long the guard may take to start the server.
const SOON: Duration = Duration::from_secs(30);
/// Bytes of a server's stderr that are kept with a session.
const STDERR_KEPT: usize = 1 << 20;

/// The session over real pipes.
pub(crate) type Live = Session<PipeWriter, io::Stdout>;

/// A server, its guard, and our ends of its pipes.
#[derive(Debug)]
pub(crate) struct Server {
    guard: Child,
    pid: Pid,
    life: UnixStream,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// Why a server could not be started, and the exit status that says so.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the MCP server {command:?}: {reason}")]
pub(crate) struct NotStarted {
    command: String,
    reason: String,
    /// 127: not found; 126: found and not executable; 1: anything else.
    pub(crate) status: u8,
}

/// Starts `command` behind a guard: this binary again, with `guard_arguments` and the command. Gives the server and
/// its stdin.
///
/// # Errors
/// [`NotStarted`].
pub(crate) fn start(
    command: &[OsString],
    guard_arguments: &[&str],
) -> Result<(Server, PipeWriter), NotStarted> {
    let named = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    match try_start(command, guard_arguments) {
        Ok(Ok(started)) => Ok(started),
        Ok(Err((status, reason))) => Err(NotStarted { command: named, reason, status }),
        Err(error) => Err(NotStarted { command: named, reason: error.to_string(), status: 1 }),
    }
}

type Started = Result<(Server, PipeWriter), (u8, String)>;

fn try_start(command: &[OsString], guard_arguments: &[&str]) -> io::Result<Started> {
    let (life, theirs) = UnixStream::pair()?;
    let (their_stdin, stdin) = io::pipe()?;
    let (stdout, their_stdout) = io::pipe()?;
    let (stderr, their_stderr) = io::pipe()?;
    let mut guard = Command::new(std::env::current_exe()?)
        .args(guard_arguments)
        .arg("--")
        .args(command)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()?;
    let mut conn = Conn::new(life.try_clone()?, SOON, 4096);
    let pipes = [their_stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
    let said = conn.send_with_descriptors(&(), &pipes).and_then(|()| conn.receive::<Said>());
    match said {
        Ok(Said::Started { pid }) if pid > 1 => {
            let server = Server { guard, pid: Pid::from_raw(pid), life, stdout, stderr };
            Ok(Ok((server, stdin)))
        }
        Ok(Said::Failed { status, reason }) => {
            let _ = guard.wait();
            Ok(Err((status, reason)))
        }
        Ok(Said::Started { .. }) | Err(_) => {
            let _ = guard.kill();
            let _ = guard.wait();
            Ok(Err((1, "its guard ended before it could start it".to_owned())))
        }
    }
}

/// What the threads tell the main one.
enum Happened {
    ClientDone,
    Exited(i32),
    Signal(Signal),
}

/// Signals that go on to the server instead of ending the interceptor. Call before any thread starts.
pub(crate) fn hold_signals() -> SigSet {
    let mut set = SigSet::empty();
    for signal in
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2]
    {
        set.add(signal);
    }
    let _ = set.thread_block();
    set
}

/// Runs the session until the server has ended; its status as a shell gives it.
pub(crate) fn run(session: &Arc<Live>, server: Server, limit: usize, signals: SigSet) -> i32 {
    let (sender, happened) = mpsc::channel();
    let Server { mut guard, pid, life, stdout, stderr } = server;
    {
        let (session, sender) = (Arc::clone(session), sender.clone());
        thread::spawn(move || {
            from_client(&session, limit);
            session.client_done();
            let _ = sender.send(Happened::ClientDone);
        });
    }
    let drained = {
        let (session, sender) = (Arc::clone(session), sender.clone());
        thread::spawn(move || {
            if from_server(&session, stdout, limit).is_err() {
                // The client reads no more: as good as gone.
                session.client_done();
                let _ = sender.send(Happened::ClientDone);
            }
        })
    };
    let told = {
        let session = Arc::clone(session);
        thread::spawn(move || keep_stderr(&session, stderr))
    };
    {
        let sender = sender.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                let _ = sender.send(Happened::Signal(signal));
            }
        });
    }
    thread::spawn(move || {
        let status = guard.wait().map_or(1, shell_status);
        let _ = sender.send(Happened::Exited(status));
    });
    let status = supervise(&happened, pid, life);
    // What the server said last is still in the pipe; its descendants are gone, so the pipe ends.
    let _ = drained.join();
    let _ = told.join();
    status
}

/// Waits for the server's end, hurrying it along once the client is done.
fn supervise(happened: &mpsc::Receiver<Happened>, pid: Pid, life: UnixStream) -> i32 {
    let mut life = Some(life);
    let mut done: Option<Instant> = None;
    let mut terminated = false;
    loop {
        let wait = if done.is_some() { Duration::from_millis(20) } else { Duration::from_secs(3600) };
        match happened.recv_timeout(wait) {
            Ok(Happened::Exited(status)) => return status,
            Ok(Happened::ClientDone) => done = done.or_else(|| Some(Instant::now())),
            Ok(Happened::Signal(signal)) => {
                let _ = kill(pid, signal);
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return 1,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        let waited = done.map_or(Duration::ZERO, |since| since.elapsed());
        if waited > PATIENCE && !terminated {
            terminated = true;
            let _ = kill(Pid::from_raw(-pid.as_raw()), Signal::SIGTERM);
        }
        if waited > 2 * PATIENCE {
            // The guard kills the whole tree when this end closes.
            life.take();
        }
    }
}

fn from_client(session: &Live, limit: usize) {
    let mut lines = Lines::new(io::stdin(), limit);
    loop {
        let outcome = match lines.next_line() {
            Ok(Taken::End) | Err(_) => return,
            Ok(Taken::Line(line)) => session.client_line(line),
            Ok(Taken::Overlong(_)) => {
                let reason = format!("a line longer than {limit} bytes cannot be judged");
                let _ = session.record(&Entry::Note { at: now(), text: format!("not forwarded: {reason}") });
                let told = session.to_client(answer::invalid(None, &reason).as_bytes());
                told.and_then(|()| lines.rest(|_| Ok(())))
            }
        };
        if outcome.is_err() {
            return;
        }
    }
}

fn from_server(session: &Live, output: impl Read, limit: usize) -> io::Result<()> {
    let mut lines = Lines::new(output, limit);
    loop {
        match lines.next_line() {
            Ok(Taken::End) | Err(_) => return Ok(()),
            Ok(Taken::Line(line)) => session.server_line(line)?,
            Ok(Taken::Overlong(start)) => {
                let text = format!("a line of the server's longer than {limit} bytes went by unread");
                let _ = session.record(&Entry::Note { at: now(), text });
                session.to_client(start)?;
                lines.rest(|piece| session.to_client(piece))?;
            }
        }
    }
}

/// Shows the server's stderr and keeps the first of it.
fn keep_stderr(session: &Live, mut errors: impl Read) {
    let mut chunk = vec![0; 8 << 10];
    let mut kept = 0;
    loop {
        let n = match errors.read(&mut chunk) {
            Ok(0) | Err(_) => return,
            Ok(n) => n,
        };
        let _ = io::stderr().write_all(&chunk[..n]);
        if kept < STDERR_KEPT {
            kept += n;
            let text = redact::redact(&String::from_utf8_lossy(&chunk[..n])).into_owned();
            let _ = session.record(&Entry::Stderr { at: now(), text });
        }
    }
}

/// Answers the client's first request with why there is no server, so that the client can show it.
pub(crate) fn refuse_client(reason: &str) {
    let (sender, answered) = mpsc::channel();
    let reason = reason.to_owned();
    thread::spawn(move || {
        let mut lines = Lines::new(io::stdin(), 1 << 20);
        while let Ok(Taken::Line(line)) = lines.next_line() {
            let body = line.strip_suffix(b"\n").unwrap_or(line);
            if let Ok(Line::Message(Message { kind: Kind::Request(id, _) | Kind::Call(id, _), .. })) =
                line::read(body)
            {
                let mut client = io::stdout();
                let _ = client
                    .write_all(answer::no_server(&id, &reason).as_bytes())
                    .and_then(|()| client.flush());
                break;
            }
        }
        let _ = sender.send(());
    });
    let _ = answered.recv_timeout(PATIENCE);
}
