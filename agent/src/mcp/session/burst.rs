//! Lines that came together: recorded by one write and forwarded by another, in their order. A client that does not wait
//! for answers sends many at once, and a write for each would cost more than all that is done with them.

use super::Session;
use crate::mcp::{
    answer::{self, Stopped},
    journal::{Direction, Entry},
    line::Id,
    notice, risk,
    rules::Judgement,
};
use std::{
    io::{self, Write},
    mem,
    sync::atomic::Ordering,
};

/// Lines of the client's that are judged and may go on, and are neither recorded nor forwarded yet.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    lines: Vec<Passing>,
    bytes: Vec<u8>,
}

/// One of them.
#[derive(Debug)]
struct Passing {
    entry: Entry,
    /// Where it ends in the bytes.
    end: usize,
    /// What is needed to refuse it, if it is a call.
    call: Option<Refusable>,
}

/// A call that is refused if it cannot be recorded.
#[derive(Debug)]
pub(super) struct Refusable {
    pub(super) id: Id,
    pub(super) tool: String,
    pub(super) risk: risk::Risk,
    pub(super) judgement: Judgement,
}

impl Burst {
    /// One more line.
    pub(super) fn push(&mut self, entry: Entry, bytes: &[u8], call: Option<Refusable>) {
        self.bytes.extend_from_slice(bytes);
        self.lines.push(Passing { entry, end: self.bytes.len(), call });
    }
}

impl<S: Write, C: Write> Session<S, C> {
    /// Lines from the client that came together, each with its `\n`, but for the last of all.
    ///
    /// # Errors
    /// Only those of writing to the server or the client: the session is over then.
    pub(crate) fn client_lines(&self, bytes: &[u8]) -> io::Result<()> {
        let mut burst = Burst::default();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.take(&mut burst, line)?;
        }
        self.flush(&mut burst)
    }

    /// Lines from the server: forwarded first, recorded then; but what asks the client's model is recorded first, so that
    /// calls that come of it follow it in the journal. Never judged, never stopped.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn server_lines(&self, bytes: &[u8]) -> io::Result<()> {
        // `sampling/createMessage`, however its slash is written.
        let asks = memchr::memmem::find(bytes, b"createMessage").is_some();
        if !asks {
            self.piece_to_client(bytes)?;
        }
        let lines = bytes.split(|byte| *byte == b'\n');
        let entries: Vec<Entry> = lines
            .filter(|body| !body.iter().all(u8::is_ascii_whitespace))
            .map(|body| self.message(Direction::ServerToClient, body, Vec::new(), None))
            .collect();
        if self.record_all(&entries).is_err() {
            entries.iter().for_each(|entry| self.record_softly(entry));
        }
        if asks { self.piece_to_client(bytes) } else { Ok(()) }
    }

    /// Records what is in the burst, then forwards it.
    pub(super) fn flush(&self, burst: &mut Burst) -> io::Result<()> {
        let Burst { lines, bytes } = mem::take(burst);
        if lines.is_empty() {
            return Ok(());
        }
        if self.record_all(lines.iter().map(|line| &line.entry)).is_ok() {
            return self.to_server(&bytes);
        }
        // What does not go together may go one by one, up to the one that has no room.
        let mut start = 0;
        for line in &lines {
            self.alone(line, &bytes[start..line.end])?;
            start = line.end;
        }
        Ok(())
    }

    fn alone(&self, line: &Passing, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.record(&line.entry) {
            match &line.call {
                Some(call) if !self.options.allow_unrecorded => {
                    let Refusable { id, tool, risk, judgement } = call;
                    let error = error.to_string();
                    let why = Stopped::Unrecorded(&error);
                    let text = answer::stopped(id, tool, &why, risk.score, &risk.reasons, judgement);
                    return self.to_client(text.as_bytes());
                }
                Some(call) => {
                    self.gap.store(true, Ordering::Relaxed);
                    notice::say(&format!("the call of {:?} is not on record: {error}", call.tool));
                }
                None => notice::say(&format!("a message is not on record: {error}")),
            }
        }
        self.to_server(bytes)
    }
}
