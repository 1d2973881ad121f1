//! A tool's output on its way through the shim: read as it comes, truncated, spilled, written on.

use super::{
    child::{Child, End},
    pipeline_end::{self, OutputKind},
    spill::Spiller,
    truncate::Truncator,
};
use crate::signals::wait_for;
use ringfence_wire::runner::{Done, Shape};
use rustix::{
    event::{PollFd, PollFlags},
    fs::OFlags,
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    stdio,
    termios::{OptionalActions, OutputModes, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize},
};
use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

/// Bytes that are written at a time: so many fit where poll says that there is room, so a write does not wait.
const WRITE: usize = 4096;

/// Most bytes that wait to be written before the tool has to.
const MOST_PENDING: usize = 64 << 10;

/// Most bytes that are read after that: as many as a pipe can hold without privilege. More comes from what it left running.
const MOST_LATE: usize = 1 << 20;

/// How long an output may stay open after the tool's end, for what it left running.
const GRACE: Duration = Duration::from_millis(100);

/// The tool's end of its outputs.
#[derive(Debug)]
pub(super) struct ToolStreams {
    out: OwnedFd,
    /// Where errors go; `None`: where they went before.
    err: Option<OwnedFd>,
}

impl ToolStreams {
    /// In the child: puts them in their places.
    pub(super) fn install(self) -> io::Result<()> {
        stdio::dup2_stdout(&self.out)?;
        if let Some(err) = &self.err {
            stdio::dup2_stderr(err)?;
        }
        Ok(())
    }
}

/// Everything of one tool's output.
#[derive(Debug)]
pub(super) struct Relay {
    streams: Vec<Stream>,
    /// The terminal that the tool sees, if it is to see one.
    terminal: Option<OwnedFd>,
}

#[derive(Debug)]
struct Stream {
    is_error: bool,
    from: Option<File>,
    truncator: Option<Truncator>,
    spiller: Option<Spiller>,
    pending: Vec<u8>,
    /// Nobody reads any more.
    gone: bool,
}

/// Pipes or a terminal between the tool and where its output goes.
///
/// # Errors
/// The system has none to give: then the tool's output cannot be cut.
pub(super) fn between(kind: OutputKind, tool: &OsStr, shape: &Shape) -> io::Result<(Relay, ToolStreams)> {
    let errors = pipeline_end::has_errors();
    let out = rustix::fs::fstat(stdio::stdout())?;
    let together = errors.as_ref().is_some_and(|errors| pipeline_end::same(errors, &out));
    let (from, to, terminal) = match kind {
        OutputKind::Pipe => {
            let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
            (from, to, None)
        }
        OutputKind::Terminal => {
            let (from, to) = pseudo_terminal()?;
            let terminal = to.try_clone()?;
            (from, to, Some(terminal))
        }
    };
    let mut streams = vec![Stream::new(false, from, tool, shape)];
    let err = match errors {
        // One pipe for both, so that their output stays in order.
        Some(_) if together => Some(to.try_clone()?),
        Some(_) => {
            let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
            streams.push(Stream::new(true, from, tool, shape));
            Some(to)
        }
        None => None,
    };
    Ok((Relay { streams, terminal }, ToolStreams { out: to, err }))
}

/// A terminal like the one that standard output is, which passes on bytes as they are: that one does the rest.
fn pseudo_terminal() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let tools = rustix::fs::open(
        name.as_c_str(),
        OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    let mut modes = tcgetattr(stdio::stdout())?;
    modes.output_modes.remove(OutputModes::OPOST);
    tcsetattr(&tools, OptionalActions::Now, &modes)?;
    tcsetwinsize(&tools, tcgetwinsize(stdio::stdout())?)?;
    Ok((ours, tools))
}

impl Stream {
    fn new(is_error: bool, from: OwnedFd, tool: &OsStr, shape: &Shape) -> Self {
        Self {
            is_error,
            from: Some(from.into()),
            truncator: Some(Truncator::new(shape)),
            spiller: Some(Spiller::new(tool, shape)),
            pending: Vec::new(),
            gone: false,
        }
    }

    fn to(&self) -> BorrowedFd<'static> {
        if self.is_error { stdio::stderr() } else { stdio::stdout() }
    }

    /// Takes in what is there; how many bytes.
    fn read(&mut self, chunk: &mut [u8]) -> usize {
        let Some(from) = &mut self.from else { return 0 };
        let count = match from.read(chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return 0,
            // A terminal that nobody has open any more ends like this.
            Err(_) => 0,
        };
        if count == 0 {
            self.from = None;
            return 0;
        }
        let piece = &chunk[..count];
        if let (Some(truncator), Some(spiller)) = (&mut self.truncator, &mut self.spiller) {
            truncator.push(piece, &mut self.pending);
            spiller.push(piece, truncator.is_over());
        }
        count
    }

    /// Writes some of what waits.
    fn write(&mut self) {
        let count = self.pending.len().min(WRITE);
        match rustix::io::write(self.to(), &self.pending[..count]) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(_) => {
                // The tool is to learn of it as it would have: by its own next write.
                self.gone = true;
                self.pending = Vec::new();
                self.from = None;
            }
        }
    }

    /// Ends the output; what waits then is the last of it. Bytes of all, whether it was cut, where all of it is.
    fn finish(&mut self) -> (u64, bool, Option<PathBuf>) {
        let (Some(truncator), Some(spiller)) = (self.truncator.take(), self.spiller.take()) else {
            return (0, false, None);
        };
        let bytes = truncator.bytes();
        let mut after = Vec::new();
        let Some(cut) = truncator.finish(&mut self.pending, &mut after) else { return (bytes, false, None) };
        let (remark, path) = spiller.remark(cut);
        self.pending.extend(remark.bytes());
        self.pending.append(&mut after);
        if self.gone {
            self.pending.clear();
        }
        (bytes, true, path)
    }
}

impl Relay {
    /// Carries output until the tool has ended, and the last of it is written.
    ///
    /// # Errors
    /// poll(2)'s and waitpid(2)'s, which are not about the tool.
    pub(super) fn run(mut self, child: &mut Child) -> io::Result<(End, Done)> {
        let mut chunk = vec![0; CHUNK];
        let mut until: Option<Instant> = None;
        let mut late = 0;
        let end = loop {
            let Some(end) = child.end() else {
                self.step(child, &mut chunk, None)?;
                continue;
            };
            let until = *until.get_or_insert_with(|| Instant::now() + GRACE);
            let is_late = Instant::now() >= until;
            let count = match self.streams.iter().all(|stream| stream.from.is_none()) {
                true => break end,
                false => self.step(child, &mut chunk, Some(until))?,
            };
            // What the tool itself wrote is there by now, however busy the machine is, and is read to its last byte.
            late += if is_late { count } else { 0 };
            if is_late
                && (count == 0 || late > MOST_LATE)
                && self.streams.iter().all(|stream| stream.pending.is_empty())
            {
                break end;
            }
        };
        let mut done = Done::default();
        match end {
            End::Exited(status) => done.status = Some(status),
            End::Killed(signal) => done.signal = Some(signal),
        }
        for stream in &mut self.streams {
            stream.from = None;
            let (bytes, cut, spill) = stream.finish();
            *(if stream.is_error { &mut done.error_bytes } else { &mut done.bytes }) = bytes;
            done.cut |= cut;
            done.spill = done.spill.or(spill);
        }
        while self.streams.iter().any(|stream| !stream.pending.is_empty()) {
            self.step(child, &mut chunk, None)?;
        }
        Ok((end, done))
    }

    /// Waits for something to happen and does what there is to do. How many bytes were read.
    fn step(&mut self, child: &mut Child, chunk: &mut [u8], until: Option<Instant>) -> io::Result<usize> {
        let signals = child.fd();
        let mut fds = vec![PollFd::new(&signals, PollFlags::IN)];
        let mut places = Vec::new();
        for (index, stream) in self.streams.iter().enumerate() {
            if let Some(from) = &stream.from
                && stream.pending.len() < MOST_PENDING
            {
                fds.push(PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN));
                places.push((index, false));
            }
            if !stream.pending.is_empty() {
                fds.push(PollFd::from_borrowed_fd(stream.to(), PollFlags::OUT));
                places.push((index, true));
            }
        }
        wait_for(&mut fds, until.map(|until| until.saturating_duration_since(Instant::now())))?;
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut count = 0;
        for ((index, is_write), _) in places.iter().zip(ready.iter().skip(1)).filter(|(_, ready)| **ready) {
            let Some(stream) = self.streams.get_mut(*index) else { continue };
            if *is_write {
                stream.write();
            } else {
                count += stream.read(chunk);
            }
        }
        if ready.first() == Some(&true)
            && child.listen()?
            && let Some(terminal) = &self.terminal
            && let Ok(size) = tcgetwinsize(stdio::stdout())
        {
            let _ = tcsetwinsize(terminal, size);
        }
        // A terminal ends only when nobody has it open: not before its size can no longer matter.
        if child.end().is_some() {
            self.terminal = None;
        }
        Ok(count)
    }
}
