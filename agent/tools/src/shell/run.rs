//! Running what was admitted: one thread, one poll loop, everything ended at the end.

use super::{
    admit::{Pipeline, Plan, Redirect, RedirectTarget, Stage},
    output::{Capture, Captured},
    paths::{self, NULL, OpenMode},
    script::When,
};
use crate::spawn::{self, Running, Spawner};
use ringfence_grant::Grant;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::{OFlags, fcntl_setfl},
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{
        Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_send_signal, waitid,
    },
};
use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::{Duration, Instant},
};

/// How long killed processes may take to be gone; longer only where the kernel waits for a broken disk.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Most bytes of output that are read after the end; more than two pipes hold.
const MAX_DRAIN: usize = 4 * 1024 * 1024;

/// How a call went.
#[derive(Debug)]
pub(super) struct Outcome {
    /// How it ended.
    pub(super) end: End,
    /// Standard output of all stages that was not redirected.
    pub(super) stdout: Captured,
    /// Standard error, with Ringfence's own messages about redirects and starts.
    pub(super) stderr: Captured,
}

/// How a call ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// By itself, with this status: 128 and the signal's number for one that a signal ended.
    Exited(i32),
    /// It was killed when its time was over.
    TimedOut,
    /// It was killed because the call was cancelled.
    Stopped,
}

/// What a call runs with.
pub(super) struct RunContext<'a> {
    /// Who starts processes.
    pub(super) spawner: &'a dyn Spawner,
    /// What they hold.
    pub(super) grant: &'a Grant,
    /// Their environment.
    pub(super) env: &'a [(OsString, OsString)],
    /// When everything is killed.
    pub(super) deadline: Instant,
    /// Readable once everything is to be killed.
    pub(super) stop: BorrowedFd<'a>,
}

/// Runs a plan. When it returns, no stage is left, and no process of their group.
///
/// # Errors
/// No descriptors are left, or no memory.
pub(super) fn run(plan: &Plan, context: &RunContext<'_>) -> io::Result<Outcome> {
    let mut run = Run::new(plan, context)?;
    let mut end = End::Exited(0);
    for pipeline in &plan.pipelines {
        let wanted = match (pipeline.when, &end) {
            (When::Always, _) => true,
            (When::Success, end) => *end == End::Exited(0),
            (When::Failure, end) => *end != End::Exited(0),
        };
        if !wanted {
            continue;
        }
        end = run.pipeline(pipeline)?;
        if !matches!(end, End::Exited(_)) {
            break;
        }
    }
    run.end_all();
    run.drain();
    let [stdout, stderr] =
        [&mut run.out, &mut run.err].map(|stream| std::mem::take(&mut stream.capture).finish());
    Ok(Outcome { end, stdout, stderr })
}

struct Run<'a> {
    context: &'a RunContext<'a>,
    dir: &'a Path,
    null: OwnedFd,
    out: Stream,
    err: Stream,
    /// The first process of the call, whose id is the group's. It is not waited for before the end: until then its id
    /// cannot become another's, and the group can be joined and killed.
    leader: Option<Box<dyn Running>>,
    live: Vec<Live>,
}

/// One of the two streams that are shown.
struct Stream {
    read: OwnedFd,
    write: OwnedFd,
    capture: Capture,
    ended: bool,
}

/// A stage that has not ended.
struct Live {
    running: Box<dyn Running>,
    leader: bool,
    last: bool,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.end_all();
    }
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, context: &'a RunContext<'a>) -> io::Result<Self> {
        let null = paths::open(Path::new(NULL), OpenMode::Read)?;
        let (out, err) = (Stream::new()?, Stream::new()?);
        Ok(Self { context, dir: &plan.dir, null, out, err, leader: None, live: Vec::new() })
    }

    /// Runs one pipeline to its end; the status is the last stage's, as a shell has it without `pipefail`.
    fn pipeline(&mut self, pipeline: &Pipeline) -> io::Result<End> {
        let mut stdin = self.null.try_clone()?;
        let mut status = 0;
        let count = pipeline.stages.len();
        for (at, stage) in pipeline.stages.iter().enumerate() {
            let last = at + 1 == count;
            let (next, stdout) = if last {
                (self.null.try_clone()?, self.out.write.try_clone()?)
            } else {
                pipe_with(PipeFlags::CLOEXEC)?
            };
            let stdout = (stdout, if last { Sink::Out } else { Sink::Own });
            let stderr = (self.err.write.try_clone()?, Sink::Err);
            match self.start(stage, [(std::mem::replace(&mut stdin, next), Sink::Own), stdout, stderr]) {
                Ok(running) => {
                    let leader = self.leader.is_none() && self.live.iter().all(|live| !live.leader);
                    self.live.push(Live { running, leader, last });
                }
                Err(failure) => {
                    self.report(&failure);
                    status = if last { failure.status } else { status };
                }
            }
        }
        self.wait(status)
    }

    fn start(&mut self, stage: &Stage, mut fds: [(OwnedFd, Sink); 3]) -> Result<Box<dyn Running>, Failure> {
        for Redirect { fd, to } in &stage.redirects {
            let (what, opened) = match to {
                RedirectTarget::Same(of) => {
                    (&stage.name, fds[*of].0.try_clone().map(|same| (same, fds[*of].1)))
                }
                RedirectTarget::File { path, written, mode } => {
                    (written, paths::open(path, *mode).map(|file| (file, Sink::Own)))
                }
            };
            match opened {
                Ok(opened) => fds[*fd] = opened,
                Err(error) => {
                    let [_, _, (stderr, sink)] = fds;
                    return Err(Failure { what: what.clone(), error, status: 1, stderr: Some(stderr), sink });
                }
            }
        }
        let [stdin, stdout, stderr] = fds.map(|(fd, _)| fd);
        let leader =
            self.live.iter().find(|live| live.leader).map(|live| &live.running).or(self.leader.as_ref());
        let spawned = spawn::ProcessSpec {
            program: stage.program.clone(),
            name: stage.name.clone(),
            args: stage.args.clone(),
            env: self.context.env.to_vec(),
            cwd: self.dir.to_owned(),
            stdin,
            stdout,
            stderr,
            group: leader.map_or(0, |leader| leader.pid()),
        };
        self.context.spawner.spawn(self.context.grant, spawned).map_err(|error| {
            let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Failure { what: stage.name.clone(), error, status, stderr: None, sink: Sink::Err }
        })
    }

    /// Where a shell would report it: on what is the stage's standard error so far.
    fn report(&mut self, failure: &Failure) {
        // After the output from before it.
        self.drain();
        let line = format!("ringfence: {}: {}\n", failure.what.to_string_lossy(), failure.error);
        match (failure.sink, &failure.stderr) {
            (Sink::Out, _) => self.out.capture.push(line.as_bytes()),
            // A file, or a pipe that nobody wrote to yet: it has room.
            (Sink::Own, Some(stderr)) => drop(rustix::io::write(stderr, line.as_bytes())),
            (Sink::Err | Sink::Own, _) => self.err.capture.push(line.as_bytes()),
        }
    }

    /// Waits for the stages, reading their output.
    fn wait(&mut self, mut status: i32) -> io::Result<End> {
        while !self.live.is_empty() {
            let Some(left) = self.context.deadline.checked_duration_since(Instant::now()) else {
                return Ok(End::TimedOut);
            };
            let wakeup = self.poll(left, true)?;
            if wakeup.stop {
                return Ok(End::Stopped);
            }
            for at in wakeup.ended.into_iter().rev() {
                let live = self.live.remove(at);
                let ended = status_of(live.running.pidfd());
                if live.last {
                    status = ended;
                }
                if live.leader {
                    self.leader = Some(live.running);
                } else {
                    reap(live.running);
                }
            }
        }
        Ok(End::Exited(status))
    }

    /// Waits until something happens, and reads the output.
    fn poll(&mut self, left: Duration, stoppable: bool) -> io::Result<Wakeup> {
        let mut fds = Vec::with_capacity(3 + self.live.len());
        let wanted = |on: bool| if on { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.out.read, wanted(!self.out.ended)));
        fds.push(PollFd::new(&self.err.read, wanted(!self.err.ended)));
        fds.push(PollFd::from_borrowed_fd(self.context.stop, wanted(stoppable)));
        fds.extend(
            self.live.iter().map(|live| PollFd::from_borrowed_fd(live.running.pidfd(), PollFlags::IN)),
        );
        let time = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&time)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let happened: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        if happened[0] {
            self.out.read();
        }
        if happened[1] {
            self.err.read();
        }
        let ended = happened[3..].iter().enumerate().filter_map(|(at, ended)| ended.then_some(at)).collect();
        Ok(Wakeup { stop: happened[2], ended })
    }

    /// Kills what is left: the whole group, and the stages themselves should one have left it.
    fn end_all(&mut self) {
        let group =
            self.live.iter().find(|live| live.leader).map(|live| &live.running).or(self.leader.as_ref());
        if let Some(group) = group.and_then(|leader| Pid::from_raw(leader.pid())) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        for live in &self.live {
            let _ = pidfd_send_signal(live.running.pidfd(), Signal::KILL);
        }
        let until = Instant::now() + KILL_TIMEOUT;
        while let (false, Some(left)) = (self.live.is_empty(), until.checked_duration_since(Instant::now())) {
            let Ok(wakeup) = self.poll(left, false) else { break };
            for at in wakeup.ended.into_iter().rev() {
                reap(self.live.remove(at).running);
            }
        }
        if let Some(leader) = self.leader.take() {
            reap(leader);
        }
    }

    /// Reads the output from before the end. What still holds the pipes, outside of the group, is not waited for.
    fn drain(&mut self) {
        for stream in [&mut self.out, &mut self.err] {
            let before = stream.capture.total();
            while stream.read() && stream.capture.total() - before < MAX_DRAIN as u64 {}
        }
    }
}

struct Wakeup {
    stop: bool,
    /// Ascending positions among the live.
    ended: Vec<usize>,
}

/// What a descriptor of a stage leads to. A pipe that only we read must not be written by us: it may be full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sink {
    /// The standard output that is shown.
    Out,
    /// The standard error that is shown.
    Err,
    /// A file, or the pipe to the next stage.
    Own,
}

/// Why a stage did not start, and the status that it has for it.
struct Failure {
    what: OsString,
    error: io::Error,
    status: i32,
    stderr: Option<OwnedFd>,
    sink: Sink,
}

impl Stream {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // The reading end alone: the flag is not shared with the other.
        fcntl_setfl(&read, OFlags::NONBLOCK)?;
        Ok(Self { read, write, capture: Capture::default(), ended: false })
    }

    /// Takes what is there, at most one buffer; `false` if there was nothing.
    fn read(&mut self) -> bool {
        let mut buffer = [0; 64 * 1024];
        match rustix::io::read(self.read.as_fd(), &mut buffer) {
            Ok(0) => self.ended = true,
            Ok(length) => {
                self.capture.push(&buffer[..length]);
                return true;
            }
            Err(Errno::INTR) => return true,
            Err(Errno::AGAIN) => {}
            Err(_) => self.ended = true,
        }
        false
    }
}

/// The status of a process that has ended, which stays to be waited for.
fn status_of(pidfd: BorrowedFd<'_>) -> i32 {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    match waitid(WaitId::PidFd(pidfd), options) {
        Ok(Some(status)) => code(&status),
        // Somebody else waited for it, and knows.
        _ => 1,
    }
}

fn code(status: &WaitIdStatus) -> i32 {
    status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal)).unwrap_or(1)
}

fn reap(mut running: Box<dyn Running>) {
    // It has ended, and its status is known.
    let _ = running.wait();
}
