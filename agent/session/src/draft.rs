//! Lines for a journal, made in one buffer before they are chained: `HASH JSON\n` each, with room for the hash.
//!
//! Most entries are messages, and most of the work on a message is its entry: they are written straight into the buffer,
//! as serde would write [`Entry::Message`], without the entry itself.

use super::{
    journal::{Direction, Entry, GENESIS, LONGEST, link},
    line::Outline,
};
use ringfence_base::hex::DIGITS;
use ringfence_wire::{
    exception::Excepted,
    tool_call::{Action, Named as _, Operation},
};
use std::{
    io::{self, Write},
    ops::Range,
};
use uuid::Uuid;

/// Bytes of a line before its JSON.
const PREFIX: usize = GENESIS.len() + 1;
/// Memory beyond this is given back when the lines are done with, bytes.
const KEPT: usize = 1 << 20;
/// Bytes of a text that are escaped at once: room is made for the longest escape of each.
const PIECE: usize = 512;
/// Bytes of the longest escape of one byte.
pub(crate) const WORST: usize = 6;

/// A message that is to be journalled: [`Entry::Message`], borrowed.
#[derive(Debug)]
pub struct Message<'a> {
    /// Its id, which is ours.
    pub id: Uuid,
    /// When it came, microseconds since 1970.
    pub at: i64,
    /// The same, nanoseconds since boot.
    pub boot: u64,
    /// Who sent it.
    pub direction: Direction,
    /// The line as it is recorded.
    pub raw: &'a str,
    /// Bytes of the line as it came.
    pub bytes: u64,
    /// Its hash, in hexadecimal digits.
    pub sha256: &'a [u8; 64],
    /// What was decided about each call in it.
    pub calls: &'a [Verdict<'a>],
    /// Why it was refused, if it was.
    pub refused: Option<&'a str>,
    /// What a batch consists of, if it is one.
    pub outline: Option<&'a Outline>,
    /// Halves of surrogate pairs that were replaced before anything else was done with the line.
    pub repaired: u32,
}

/// What was decided about a call in it: [`super::journal::Judged`], borrowed.
#[derive(Debug)]
pub struct Verdict<'a> {
    /// The call's id, which is ours.
    pub call: Uuid,
    /// Its place in a batch, from 0.
    pub index: u32,
    /// The tool's name.
    pub tool: &'a str,
    /// What the tool does.
    pub operation: Operation,
    /// Its risk, 0 to 100.
    pub score: u8,
    /// What the score is made of.
    pub reasons: &'a [&'static str],
    /// What becomes of it.
    pub action: Action,
    /// The rules that say so.
    pub rules: &'a [String],
    /// Exceptions that lowered the score.
    pub exceptions: &'a [Excepted],
}

/// Some lines, in their order.
#[derive(Debug)]
pub struct Draft {
    text: Vec<u8>,
    /// Where each ends. One that would be longer than the longest has nothing.
    ends: Vec<usize>,
    longest: usize,
    /// Where the line begins that is being made, and whether it is too long already.
    start: usize,
    over: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self::within(LONGEST)
    }
}

impl Draft {
    /// Lines that are each shorter than `longest` bytes, without their end.
    pub const fn within(longest: usize) -> Self {
        Self { text: Vec::new(), ends: Vec::new(), longest, start: 0, over: false }
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// How many lines there are.
    pub const fn len(&self) -> usize {
        self.ends.len()
    }

    /// Drops all lines.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.text.shrink_to(KEPT);
        self.ends.shrink_to(KEPT / size_of::<usize>());
    }

    /// One more line.
    pub fn entry(&mut self, entry: &Entry) {
        self.begin();
        self.json(entry);
        self.end();
    }

    /// One more line, of a message.
    pub fn message(&mut self, message: &Message<'_>) {
        self.begin();
        self.put(br#"{"kind":"message","id":""#);
        self.uuid(message.id);
        self.put(br#"","at":"#);
        self.json(&message.at);
        self.put(br#","boot":"#);
        self.json(&message.boot);
        self.put(match message.direction {
            Direction::ClientToServer => br#","direction":"client_to_server","raw":"#,
            Direction::ServerToClient => br#","direction":"server_to_client","raw":"#,
        });
        self.string(message.raw);
        self.put(br#","bytes":"#);
        self.json(&message.bytes);
        self.put(br#","sha256":""#);
        self.put(message.sha256);
        self.put(br#"""#);
        if !message.calls.is_empty() {
            self.put(br#","calls":"#);
            self.list(message.calls, Self::verdict);
        }
        if let Some(refused) = message.refused {
            self.put(br#","refused":"#);
            self.string(refused);
        }
        if let Some(outline) = message.outline {
            self.put(br#","outline":"#);
            self.json(outline);
        }
        if message.repaired > 0 {
            self.put(br#","repaired":"#);
            self.json(&message.repaired);
        }
        self.put(b"}");
        self.end();
    }

    fn verdict(&mut self, verdict: &Verdict<'_>) {
        self.put(br#"{"call":""#);
        self.uuid(verdict.call);
        self.put(br#"","index":"#);
        self.json(&verdict.index);
        self.put(br#","tool":"#);
        self.string(verdict.tool);
        self.put(br#","operation":""#);
        self.put(verdict.operation.name().as_bytes());
        self.put(br#"","score":"#);
        self.json(&verdict.score);
        self.put(br#","reasons":"#);
        self.list(verdict.reasons, |draft, reason| draft.string(reason));
        self.put(br#","action":""#);
        self.put(verdict.action.name().as_bytes());
        self.put(br#"","rules":"#);
        self.list(verdict.rules, |draft, rule| draft.string(rule));
        if !verdict.exceptions.is_empty() {
            self.put(br#","exceptions":"#);
            self.json(&verdict.exceptions);
        }
        self.put(b"}");
    }

    fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        let mut before: &[u8] = b"[";
        for item in items {
            self.put(before);
            each(self, item);
            before = b",";
        }
        self.put(if items.is_empty() { b"[]" } else { b"]" });
    }

    fn uuid(&mut self, id: Uuid) {
        self.put(id.hyphenated().encode_lower(&mut Uuid::encode_buffer()).as_bytes());
    }

    /// A text as JSON, escaped as serde_json does.
    fn string(&mut self, text: &str) {
        self.put(b"\"");
        for piece in text.as_bytes().chunks(PIECE) {
            if self.over {
                return;
            }
            let start = self.text.len();
            self.text.resize(start + WORST * piece.len(), 0);
            let (room, mut at) = (&mut self.text[start..], 0);
            for &byte in piece {
                let short = SHORT[usize::from(byte)];
                if short == LONG {
                    let digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 0xf)]];
                    room[at..at + WORST].copy_from_slice(&[b'\\', b'u', b'0', b'0', digits[0], digits[1]]);
                    at += WORST;
                    continue;
                }
                // Both are written each time, and the second counts where it is needed: no branch to guess.
                let escaped = short != 0;
                room[at] = if escaped { b'\\' } else { byte };
                room[at + 1] = short;
                at += 1 + usize::from(escaped);
            }
            self.text.truncate(start + at);
            self.over = self.text.len() - self.start >= self.longest;
        }
        self.put(b"\"");
    }

    fn json(&mut self, value: &impl serde::Serialize) {
        let over = serde_json::to_writer(&mut *self, value).is_err();
        self.over |= over;
    }

    fn put(&mut self, bytes: &[u8]) {
        self.over |= self.text.len() - self.start + bytes.len() >= self.longest;
        if !self.over {
            self.text.extend_from_slice(bytes);
        }
    }

    fn begin(&mut self) {
        (self.start, self.over) = (self.text.len(), false);
        self.put(GENESIS.as_bytes());
        self.put(b" ");
    }

    fn end(&mut self) {
        if self.over {
            self.text.truncate(self.start);
        } else {
            self.text.push(b'\n');
        }
        self.ends.push(self.text.len());
    }

    /// Chains some of the lines to `head`: their bytes, and the hash of the last. Nothing where there are none.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] where one is too long for any reader.
    pub fn chained(
        &mut self,
        mut head: [u8; 64],
        lines: Range<usize>,
    ) -> io::Result<Option<(&[u8], [u8; 64])>> {
        let first = lines.start.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mut start = first;
        for end in &self.ends[lines.clone()] {
            if start == *end {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "too long for the journal"));
            }
            let (prefix, rest) = self.text[start..*end].split_at_mut(PREFIX);
            head = link(&head, &rest[..rest.len() - 1]);
            prefix[..GENESIS.len()].copy_from_slice(&head);
            start = *end;
        }
        Ok((!lines.is_empty()).then(|| (&self.text[first..start], head)))
    }
}

/// Numbers and whole entries, up to the longest line: what no reader would take is not built either.
impl Write for Draft {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes);
        if self.over { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that one byte of a text takes in JSON.
pub const fn width(byte: u8) -> usize {
    match SHORT[byte as usize] {
        0 => 1,
        LONG => WORST,
        _ => 2,
    }
}

/// Stands for a control character that has no short escape.
const LONG: u8 = 1;
/// What stands behind the backslash of each byte that is escaped by two; 0: it stands for itself.
const SHORT: [u8; 256] = {
    let mut table = [0; 256];
    let mut control = 0;
    while control < 0x20 {
        table[control] = LONG;
        control += 1;
    }
    table[b'"' as usize] = b'"';
    table[b'\\' as usize] = b'\\';
    table[8] = b'b';
    table[b'\t' as usize] = b't';
    table[b'\n' as usize] = b'n';
    table[12] = b'f';
    table[b'\r' as usize] = b'r';
    table
};

#[cfg(test)]
mod tests;
