//! The interceptor's process: starts the server behind its guard, runs the two directions, ends in the right order.

use super::{
    answer,
    ending::{Ending, PATIENCE, Step, waits_for},
    guard::{Confinement, GuardReport, MAX_REPORT, shell_status},
    server_stdin::{ServerStdin, WriteProgress},
    session::Session,
};
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal, kill, raise},
    },
    unistd::{Pid, dup2_stdout},
};
use ringfence_base::clock::now_micros as now;
use ringfence_client::sessions as client;
use ringfence_process::tree;
use ringfence_redact as redact;
use ringfence_session::{
    journal::Entry,
    line::{self, Kind, Line, Message},
    lines::{Lines, Taken},
    notice, sensitive,
    stderr::StderrTail,
};
use ringfence_wire::conn::Conn;
use std::{
    ffi::OsString,
    fs::File,
    io::{self, IsTerminal as _, PipeReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

/// How long the guard may take to start the server; the daemon compiles a profile meanwhile.
const SOON: Duration = Duration::from_secs(60);

/// Answers of ours that wait until the server reads. More of them are lost.
const MOST_UNREAD: usize = 64;

/// The session over real pipes.
pub type PipeSession = Session<ServerStdin, io::Stdout>;

/// A server, its guard, and our ends of its pipes.
#[derive(Debug)]
pub struct Server {
    guard: Child,
    keeper: Pid,
    pid: Pid,
    life: UnixStream,
    stdout: PipeReader,
    stderr: PipeReader,
    writes: WriteProgress,
    /// What confines it, where it has a profile.
    pub confinement: Option<Confinement>,
}

/// Why a server could not be started, and the exit status that says so.
#[derive(Debug, thiserror::Error)]
#[error("cannot start the MCP server {command:?}: {reason}")]
pub struct NotStarted {
    command: String,
    reason: String,
    /// 127: not found; 126: found and not executable; 125: not in a container; 1: anything else.
    pub status: u8,
}

/// Starts `command` behind a guard: this binary again, with `guard_arguments` and the command. Gives the server and
/// its stdin. `link` is for this program in place of a server: the descriptor whose number it finds in `LINK`.
///
/// # Errors
/// [`NotStarted`].
pub fn start(
    command: &[OsString],
    guard_arguments: &[String],
    link: Option<OwnedFd>,
) -> Result<(Server, ServerStdin), NotStarted> {
    let named = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    match try_start(command, guard_arguments, link) {
        Ok(Ok(started)) => Ok(started),
        Ok(Err((status, reason))) => Err(NotStarted { command: named, reason, status }),
        Err(error) => Err(NotStarted { command: named, reason: error.to_string(), status: 1 }),
    }
}

type Started = Result<(Server, ServerStdin), (u8, String)>;

fn try_start(command: &[OsString], guard_arguments: &[String], link: Option<OwnedFd>) -> io::Result<Started> {
    // What is left of the server's tree, should somebody kill the guard, becomes ours to end.
    let _ = prctl::set_child_subreaper(true);
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
    let mut conn = Conn::new(life.try_clone()?, SOON, MAX_REPORT);
    let mut pipes = vec![their_stdin.as_fd(), their_stdout.as_fd(), their_stderr.as_fd()];
    pipes.extend(link.as_ref().map(AsFd::as_fd));
    // The server takes longer to start than this.
    thread::spawn(|| {
        redact::prepare();
        sensitive::prepare();
    });
    let report = conn.send_with_descriptors(&(), &pipes).and_then(|()| conn.receive::<GuardReport>());
    match report {
        Ok(GuardReport::Started { pid, keeper, confinement }) if pid > 1 && keeper > 1 => {
            let (pid, keeper, writes) = (Pid::from_raw(pid), Pid::from_raw(keeper), WriteProgress::default());
            let stdin = ServerStdin::new(stdin, writes.clone());
            Ok(Ok((Server { guard, pid, keeper, life, stdout, stderr, writes, confinement }, stdin)))
        }
        Ok(GuardReport::Failed { status, reason }) => {
            let _ = guard.wait();
            Ok(Err((status, reason)))
        }
        Ok(GuardReport::Started { .. }) | Err(_) => {
            let _ = guard.kill();
            let _ = guard.wait();
            Ok(Err((1, "its guard ended before it could start it".to_owned())))
        }
    }
}

/// What the main thread waits for.
enum Event {
    ClientDone,
    /// The guard ended: with the server's status, and whether it lived to kill what the server left behind.
    Exited(i32, bool),
    Signal(Signal),
}

/// Signals that go on to the server instead of ending the interceptor.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// Masks the signals that go on to the server; [`run`] takes them. Call before any thread starts.
pub fn mask_signals() -> SigSet {
    let _ = masked_signals().thread_block();
    PASSED_ON.into_iter().collect()
}

/// The signals that the interceptor masks. Its children inherit the mask: whoever starts a server unmasks them.
pub fn masked_signals() -> SigSet {
    // A journal that hits a limit on file sizes is an error to report, not the end.
    PASSED_ON.into_iter().chain([Signal::SIGXFSZ]).collect()
}

/// For an auditor, which an interceptor may have started: it is to end like any process.
pub fn unmask_signals() {
    let _ = masked_signals().thread_unblock();
}

/// Runs the session until the server has ended; its status as a shell gives it.
pub fn run(session: &Arc<PipeSession>, server: Server, limit: usize, signals: SigSet) -> i32 {
    let (sender, events) = mpsc::channel();
    let Server { mut guard, pid, keeper, life, stdout, stderr, writes, .. } = server;
    let read_to_end = Arc::new(AtomicBool::new(false));
    {
        let (session, sender, read_to_end) = (Arc::clone(session), sender.clone(), Arc::clone(&read_to_end));
        thread::spawn(move || {
            from_client(&session, limit);
            read_to_end.store(true, Ordering::Release);
            // First: the server's stdin is not closed as long as another thread writes to it.
            let _ = sender.send(Event::ClientDone);
            session.client_done();
        });
    }
    {
        let sender = sender.clone();
        thread::spawn(move || {
            // A thread that hangs in a write to a server that does not read never sees the end of the client's input.
            if writes.wait_until_stuck(io::stdin(), || read_to_end.load(Ordering::Acquire)) {
                let _ = sender.send(Event::ClientDone);
            }
        });
    }
    let drained = {
        let (session, sender) = (Arc::clone(session), sender.clone());
        thread::spawn(move || {
            match from_server(&session, stdout, limit) {
                // The server closed its output, even if it lives on: the client sees that now, as it would without us.
                Ok(()) => session.after_last_line(hang_up),
                Err(_) => {
                    // The client reads no more: as good as gone.
                    let _ = sender.send(Event::ClientDone);
                    session.client_done();
                }
            }
        })
    };
    let stderr_kept = {
        let session = Arc::clone(session);
        thread::spawn(move || keep_stderr(&session, stderr))
    };
    {
        let sender = sender.clone();
        thread::spawn(move || {
            while let Ok(signal) = signals.wait() {
                if sender.send(Event::Signal(signal)).is_err() {
                    // The server is gone, and only our own last output is left: signals are for us now.
                    unmask_signals();
                    let _ = raise(signal);
                }
            }
        });
    }
    thread::spawn(move || {
        let ended = guard.wait();
        let whole = ended.as_ref().is_ok_and(|status| status.signal().is_none());
        let _ = sender.send(Event::Exited(ended.map_or(1, shell_status), whole));
    });
    let (status, whole) = supervise(session, events, pid, life);
    if whole {
        // The server's last output is still in the pipe; its descendants are gone, so the pipe ends.
        let _ = drained.join();
        let _ = stderr_kept.join();
    } else {
        // Somebody killed the guard. The keeper ends all that it has; what is left then, or if it was killed too, is ours.
        tree::wait_for_exit(keeper, PATIENCE);
        client::sparing(tree::end_except);
        let _ = session.record(&Entry::Note { at: now(), text: "the server's guard was killed".to_owned() });
    }
    status
}

/// Waits for the server's end, hurrying it along once the client is done. Nobody takes signals for the server afterwards.
fn supervise(
    session: &PipeSession,
    events: mpsc::Receiver<Event>,
    pid: Pid,
    life: UnixStream,
) -> (i32, bool) {
    let mut life = Some(life);
    // A client has no use for what is said.
    let mut ending = Ending::new(io::stderr().is_terminal());
    // Signals that came when the server was gone already.
    let mut late = Vec::new();
    let ended = loop {
        let wait = if ending.has_begun() { Duration::from_millis(20) } else { Duration::from_secs(3600) };
        match events.recv_timeout(wait) {
            Ok(Event::Exited(status, whole)) => break (status, whole),
            Ok(Event::ClientDone) => ending.client_done(Instant::now()),
            Ok(Event::Signal(signal)) => {
                if signal == Signal::SIGINT {
                    ending.interrupted(Instant::now());
                }
                if !ending.is_cut() && kill(pid, signal).is_err() {
                    late.push(signal);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break (1, false),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        match ending.next(Instant::now()) {
            Some(Step::Say) => {
                notice::print(&waits_for(pid.as_raw(), session.open_calls(), ending.is_done()));
            }
            Some(Step::Terminate) => drop(kill(Pid::from_raw(-pid.as_raw()), Signal::SIGTERM)),
            // The guard kills the whole tree when this end closes.
            Some(Step::Kill) if life.take().is_some() && ending.is_cut() => {
                let text = "the server was killed by Ctrl-C".to_owned();
                let _ = session.record(&Entry::Note { at: now(), text });
            }
            Some(Step::Kill) | None => {}
        }
    };
    late.extend(
        events
            .try_iter()
            .filter_map(|event| if let Event::Signal(signal) = event { Some(signal) } else { None }),
    );
    drop(events);
    // Now the thread that takes signals knows that they are for us.
    for signal in late {
        let _ = kill(Pid::this(), signal);
    }
    ended
}

fn from_client(session: &PipeSession, limit: usize) {
    let mut lines = Lines::new(io::stdin(), limit);
    loop {
        let outcome = match lines.next_lines() {
            Ok(Taken::End) | Err(_) => return,
            Ok(Taken::Line(lines)) => session.client_lines(lines),
            Ok(Taken::Overlong(start)) => {
                let reason = format!("a line longer than {limit} bytes cannot be judged");
                let _ = session.record(&Entry::Note { at: now(), text: format!("not forwarded: {reason}") });
                let answered = session.answer_refused(start, &reason);
                answered.and_then(|()| lines.rest(|_| Ok(())))
            }
        };
        if outcome.is_err() {
            return;
        }
    }
}

fn from_server(session: &Arc<PipeSession>, output: impl Read, limit: usize) -> io::Result<()> {
    let mut lines = Lines::new(output, limit);
    let mut answers = None;
    loop {
        match lines.next_lines() {
            Ok(Taken::End) | Err(_) => return Ok(()),
            Ok(Taken::Line(lines)) => session.server_lines(lines)?,
            Ok(Taken::Overlong(start)) => {
                let mut line = session.overlong(start, limit)?;
                lines.rest(|piece| session.overlong_piece(&mut line, piece))?;
                if let Some(answer) = session.overlong_ends(line)? {
                    // A server that takes none of so many takes no more.
                    let _ = answers.get_or_insert_with(|| to_server(Arc::clone(session))).try_send(answer);
                }
            }
        }
    }
}

/// Writes what is sent to the server. A thread of its own: a server that writes all it has before it reads would wait for whoever
/// reads that, and that one for the server.
fn to_server(session: Arc<PipeSession>) -> mpsc::SyncSender<Vec<u8>> {
    let (sender, answers) = mpsc::sync_channel::<Vec<u8>>(MOST_UNREAD);
    thread::spawn(move || answers.iter().try_for_each(|answer| session.to_server(&answer)));
    sender
}

/// Closes our end of the client's pipe. Standard output stays a valid descriptor, for what is still written to it.
fn hang_up() {
    if let Ok(nowhere) = File::options().write(true).open("/dev/null") {
        let _ = dup2_stdout(nowhere);
    }
}

/// Shows the server's stderr, all of it, and records what is kept.
fn keep_stderr(session: &PipeSession, mut errors: impl Read) {
    let mut chunk = vec![0; 8 << 10];
    let mut tail = StderrTail::new(session.stores_raw());
    loop {
        let n = match errors.read(&mut chunk) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            outcome => outcome.unwrap_or(0),
        };
        notice::pass_on(&chunk[..n]);
        let pieces = if n == 0 { tail.finish() } else { tail.push(&chunk[..n]) };
        for piece in pieces {
            let entry = Entry::Stderr { at: now(), text: piece.text.clone(), dropped: piece.dropped };
            if session.record(&entry).is_err() {
                tail.count_lost(&piece);
            }
        }
        if n == 0 {
            return;
        }
    }
}

/// Answers the client's first request with why there is no server, so that the client can show it.
pub fn refuse_client(reason: &str) {
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
