//! Lines that came together: recorded by one write and forwarded by another, in their order. A client that does not wait
//! for answers sends many at once, and a write for each would cost more than all that is done with them.

use super::{Session, Time, lock, without_end};
use crate::{
    answer::{self, StopReason},
    judged::JudgedCall,
};
use ringfence_session::{draft::Draft, hints, notice};
use std::{
    io::{self, Write},
    sync::atomic::Ordering,
};

/// A buffer that grew beyond this is given back, bytes.
const KEPT: usize = 1 << 20;

/// Lines of the client's that are judged and may go on, and are neither recorded nor forwarded yet.
#[derive(Debug, Default)]
pub(crate) struct Burst {
    pub(super) draft: Draft,
    lines: Vec<PendingLine>,
    bytes: Vec<u8>,
}

/// One of them: a line of the draft.
#[derive(Debug)]
struct PendingLine {
    /// Where it ends in the bytes.
    end: usize,
    /// What is needed to refuse it, if it is a call.
    call: Option<JudgedCall>,
}

impl Burst {
    /// One more line, whose entry the draft has.
    pub(super) fn push(&mut self, bytes: &[u8], call: Option<JudgedCall>) {
        self.bytes.extend_from_slice(bytes);
        self.lines.push(PendingLine { end: self.bytes.len(), call });
    }

    fn clear(&mut self) {
        self.draft.clear();
        self.lines.clear();
        self.bytes.clear();
        self.bytes.shrink_to(KEPT);
    }
}

impl<S: Write, C: Write> Session<S, C> {
    /// Lines from the client that came together, each with its `\n`, but for the last of all.
    ///
    /// # Errors
    /// Only those of writing to the server or the client: the session is over then.
    pub(crate) fn client_lines(&self, bytes: &[u8]) -> io::Result<()> {
        let mut burst = lock(&self.burst);
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let taken = lines
            .try_for_each(|line| self.handle_line(&mut burst, line))
            .and_then(|()| self.flush(&mut burst));
        burst.clear();
        taken
    }

    /// Lines from the server: recorded, then forwarded, as the client's are. A client that has its last answer may kill the
    /// interceptor the next moment, and calls that come of an answer follow it in the journal. What cannot be recorded is
    /// forwarded all the same, and of all lines only lists of tools are judged.
    ///
    /// # Errors
    /// Those of writing to the client.
    pub(crate) fn server_lines(&self, bytes: &[u8]) -> io::Result<()> {
        let time = Time::now();
        let mut draft = lock(&self.answers);
        // What the client gets, once that is not what came.
        let mut given: Option<Vec<u8>> = None;
        let mut from = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let body = without_end(line);
            let mut other = None;
            if !body.iter().all(u8::is_ascii_whitespace) {
                // Before the client has the list: its next call is judged by it.
                self.server_identity.look_at(body);
                if hints::may_be_list(body) {
                    lock(&self.hints).take(body);
                }
                other = self.server_line(&mut draft, time, body);
            }
            match (other, &mut given) {
                (None, None) => {}
                (None, Some(given)) => given.extend_from_slice(line),
                (Some(other), given) => {
                    let given = given.get_or_insert_with(|| bytes[..from].to_vec());
                    given.extend_from_slice(&other);
                    if line.len() > body.len() && !other.is_empty() && !other.ends_with(b"\n") {
                        given.push(b'\n');
                    }
                }
            }
            from += line.len();
        }
        self.record_lines_or_warn(&mut draft);
        draft.clear();
        drop(draft);
        self.piece_to_client(given.as_deref().unwrap_or(bytes))
    }

    /// Records what is in the burst, then forwards it.
    pub(super) fn flush(&self, burst: &mut Burst) -> io::Result<()> {
        if burst.lines.is_empty() {
            return Ok(());
        }
        let forwarded = self.forward(burst);
        burst.clear();
        forwarded
    }

    fn forward(&self, burst: &mut Burst) -> io::Result<()> {
        let Burst { draft, lines, bytes } = burst;
        if self.record_lines(draft, 0..lines.len()).is_ok() {
            return self.to_server(bytes);
        }
        // What does not go together may go one by one, up to the one that has no room.
        let mut start = 0;
        for (index, line) in lines.iter().enumerate() {
            let recorded = self.record_lines(draft, index..index + 1);
            self.forward_one(line, &bytes[start..line.end], recorded)?;
            start = line.end;
        }
        Ok(())
    }

    fn forward_one(&self, line: &PendingLine, bytes: &[u8], recorded: io::Result<()>) -> io::Result<()> {
        if let Err(error) = recorded {
            match &line.call {
                Some(call) if !self.options.allow_unrecorded => {
                    lock(&self.outstanding).remove(&call.id);
                    let text = answer::stopped(call, &StopReason::Unrecorded(&error.to_string()));
                    return self.to_client(text.as_bytes());
                }
                Some(call) => {
                    self.gap.store(true, Ordering::Relaxed);
                    notice::print(&format!("the call of {:?} is not on record: {error}", call.tool));
                }
                None => notice::print(&format!("a message is not on record: {error}")),
            }
        }
        self.to_server(bytes)
    }
}
