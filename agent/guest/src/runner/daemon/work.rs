//! A v1 run: the tool is the daemon's own child, in a process group of its own; its output becomes the answer.

use crate::runner::{child::End, find, spill::Spiller, truncate::Truncator};
use ringfence_wire::runner::{Done, Keep, Line, Shape, Truncate, term};
use rustix::{
    event::{PollFd, PollFlags},
    fs::OFlags,
    io::Errno,
    process::{Pid, Signal, kill_process_group},
};
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::{ffi::OsStringExt, process::CommandExt},
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Most bytes that are read of what was in the pipe when the tool ended: the most that a pipe can hold without privilege.
const MOST_LEFT: usize = 1 << 20;

/// Most bytes of one output in an answer, when nothing is to be cut: an answer is in memory whole.
const MOST_ANSWER: u64 = 16 << 20;

/// Status of a tool that ran too long, as timeout(1) has it.
const TIMED_OUT: i32 = 124;

/// A tool that runs.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) run: u64,
    pub(super) tool: Pid,
    outputs: [Output; 2],
    deadline: Option<Instant>,
    limit: Duration,
    timed_out: bool,
}

#[derive(Debug)]
struct Output {
    from: Option<File>,
    truncator: Truncator,
    spiller: Spiller,
    text: Vec<u8>,
}

impl Work {
    /// Starts the tool. What cannot be started is an answer at once: status and words.
    pub(super) fn start(
        run: u64,
        line: Line,
        shape: &Shape,
        limit: Duration,
        own: Option<(u64, u64)>,
    ) -> Result<Self, (i32, String)> {
        let mut words = line.words.into_iter().map(OsString::from_vec);
        let name = words.next().unwrap_or_default();
        let args: Vec<OsString> = words.collect();
        let path = find::tool(&name, std::env::var_os("PATH"), None, own)
            .map_err(|error| (error.status().into(), error.to_string()))?;
        let mut child = spawn(&path, &name, &args)
            .map_err(|error| (126, format!("cannot run {}: {error}", path.display())))?;
        let shape = &bounded(shape);
        let outputs = [
            Output::new(child.stdout.take().map(OwnedFd::from), &name, shape),
            Output::new(child.stderr.take().map(OwnedFd::from), &name, shape),
        ];
        let deadline = (!limit.is_zero()).then(|| Instant::now() + limit);
        // The child is waited for by its number, with all others.
        Ok(Self { run, tool: Pid::from_child(&child), outputs, deadline, limit, timed_out: false })
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// What to wait for.
    pub(super) fn watch(&self) -> impl Iterator<Item = PollFd<'_>> {
        let open = self.outputs.iter().filter_map(|output| output.from.as_ref());
        open.map(|from| PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN))
    }

    /// Reads some of what is there.
    pub(super) fn read(&mut self) {
        for output in &mut self.outputs {
            output.read(CHUNK);
        }
    }

    /// Ends the tool with its group.
    pub(super) fn kill(&self) {
        let _ = kill_process_group(self.tool, Signal::KILL);
    }

    /// Ends the tool if it has run too long; whether it has.
    pub(super) fn check(&mut self, now: Instant) -> bool {
        let is_over = !self.timed_out && self.deadline.is_some_and(|deadline| now >= deadline);
        if is_over {
            self.timed_out = true;
            self.deadline = None;
            self.kill();
        }
        is_over
    }

    /// The tool has ended: the answer, and what to write down.
    pub(super) fn finish(mut self, end: End) -> (Vec<u8>, Done) {
        let mut done = Done::default();
        match end {
            End::Exited(status) => done.status = Some(status),
            End::Killed(signal) => done.signal = Some(signal),
        }
        for output in &mut self.outputs {
            output.read(MOST_LEFT);
        }
        let [out, err] = self.outputs;
        let (stdout, bytes) = out.finish(&mut done);
        let (mut stderr, error_bytes) = err.finish(&mut done);
        (done.bytes, done.error_bytes) = (bytes, error_bytes);
        let mut code = end.status();
        if self.timed_out {
            code = TIMED_OUT;
            let words = format!("ringfence-toolrunner: killed after {} s\n", self.limit.as_secs());
            stderr.extend(words.bytes());
        }
        (term(&stdout, &stderr, code), done)
    }
}

fn spawn(path: &Path, name: &OsStr, args: &[OsString]) -> io::Result<std::process::Child> {
    let run = |program: &Path, arg0: &OsStr, first: Option<&Path>| {
        let mut command = Command::new(program);
        command.arg0(arg0).args(first).args(args).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    match run(path, name, None) {
        // A script without `#!`: as shells do.
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
            run(Path::new("/bin/sh"), OsStr::new("sh"), Some(path))
        }
        other => other,
    }
}

/// What is not to be cut is bounded all the same.
fn bounded(shape: &Shape) -> Shape {
    let mut shape = shape.clone();
    if shape.truncate == Truncate::Off {
        shape.max_bytes = MOST_ANSWER;
        shape.max_lines = u64::MAX;
        shape.keep = Keep::Head;
        shape.name_binary = false;
    }
    shape
}

impl Output {
    fn new(from: Option<OwnedFd>, name: &OsStr, shape: &Shape) -> Self {
        let name = Path::new(name).file_name().unwrap_or(name);
        // A pipe that stays blocking would be read only when poll says so, and only once.
        let from = from.filter(|from| rustix::fs::fcntl_setfl(from, OFlags::NONBLOCK).is_ok());
        Self {
            from: from.map(File::from),
            truncator: Truncator::new(shape),
            spiller: Spiller::new(name, shape),
            text: Vec::new(),
        }
    }

    fn read(&mut self, most: usize) {
        let mut chunk = vec![0; CHUNK];
        let mut count = 0;
        while count < most
            && let Some(from) = &mut self.from
        {
            match from.read(&mut chunk) {
                Ok(0) => self.from = None,
                Ok(length) => {
                    let piece = chunk.get(..length).unwrap_or_default();
                    self.truncator.push(piece, &mut self.text);
                    self.spiller.push(piece, self.truncator.is_over());
                    count += length;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.from = None,
            }
        }
    }

    fn finish(mut self, done: &mut Done) -> (Vec<u8>, u64) {
        let bytes = self.truncator.bytes();
        let mut after = Vec::new();
        if let Some(cut) = self.truncator.finish(&mut self.text, &mut after) {
            let (remark, path) = self.spiller.remark(cut);
            self.text.extend(remark.bytes());
            self.text.append(&mut after);
            done.cut = true;
            done.spill = done.spill.take().or(path);
        }
        (self.text, bytes)
    }
}
