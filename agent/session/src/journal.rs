//! A session's journal: append-only, one write(2) an entry, hash-chained. The store's rows are made from it.
//!
//! A line is `HASH JSON\n`: the JSON of an [`Entry`] and the hex SHA-256 of the line before's hash and that JSON. The
//! first line is chained to [`GENESIS`]. An entry that was written survives the end of every process of ours.

use super::{
    draft::{self, Draft},
    line::{self, Outline},
};
use ringfence_base::hex::DIGITS;
use ringfence_pins::{Flag, definition::Parts};
use ringfence_wire::{
    exception::Excepted,
    tool_call::{Action, Operation, Outcome, Recorded},
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::{
    borrow::Cow,
    fs::{File, OpenOptions},
    io::{self, BufRead, Seek, SeekFrom, Write},
    ops::Range,
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

/// What the first line is chained to.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Longest line that a reader accepts and the writer writes, bytes. A message that would be longer is cut ([`fitting`]).
pub const LONGEST: usize = 256 << 20;
/// Most bytes of a message's text as JSON. The rest of the longest line is for what was judged in it.
const LONGEST_RAW: usize = LONGEST - (64 << 20);
/// What stands behind a message's text that was cut.
const CUT: &str = " [cut: the rest is too long for the record]";

/// Which way a message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// From the client.
    ClientToServer,
    /// From the server.
    ServerToClient,
}

/// What was decided about a tool call before it went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// The call's id, a UUID.
    pub call: String,
    /// Position in a batch; 0 for a single message.
    pub index: u32,
    /// The tool.
    pub tool: String,
    /// What it does.
    pub operation: Recorded<Operation>,
    /// 0..=100.
    pub score: u8,
    /// What added points.
    pub reasons: Vec<String>,
    /// What was decided.
    pub action: Recorded<Action>,
    /// The rules that asked for it.
    pub rules: Vec<String>,
    /// Exceptions that lowered the score: their reasons are not among those above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exceptions: Vec<Excepted>,
}

/// A tool as its server lists it, and what became of that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedTool {
    /// Its name.
    pub name: String,
    /// Hash of its definition, as it came; nothing where it cannot be judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Why it was taken out of the answer, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
    /// Its definition, redacted unless raw storage was asked for; where the session saw it for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub definition: Option<String>,
    /// Short hashes of its parts, as they came.
    #[serde(default, skip_serializing_if = "Parts::is_empty")]
    pub parts: Parts,
    /// What is odd about it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Flag>,
}

/// Where a decision leaves a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passage {
    /// It goes on with its message.
    Forwarded,
    /// It waits for a person.
    Held,
    /// It never goes on.
    Stopped,
}

impl Judged {
    /// Where the decision leaves the call. Of an action that this version does not know, the message goes on.
    pub const fn passage(&self) -> Passage {
        match self.action {
            Recorded::Known(Action::Pass | Action::Flag) | Recorded::Other(_) => Passage::Forwarded,
            Recorded::Known(Action::Pause) => Passage::Held,
            Recorded::Known(Action::Block) => Passage::Stopped,
        }
    }
}

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Entry {
    /// The session begins.
    Start {
        /// The session's id, a UUID.
        session: String,
        /// Microseconds since 1970, as every `at`.
        at: i64,
        /// Name of the server.
        server_name: String,
        /// The command that is wrapped.
        server_command: Vec<String>,
        /// Process id of the interceptor.
        pid: u32,
        /// Version of Ringfence.
        version: String,
        /// Which process it works for, by its own word. `None`: that is not known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<String>,
    },
    /// A line went by, or was stopped.
    Message {
        /// The message's id, a UUID.
        id: String,
        /// When it was read, before it was forwarded.
        at: i64,
        /// The same in nanoseconds since boot, the clock of the kernel's events.
        #[serde(default)]
        boot: u64,
        /// Which way.
        direction: Direction,
        /// The line without its end, redacted unless raw storage was asked for; bytes that are not UTF-8 replaced.
        raw: String,
        /// Bytes of the original line.
        bytes: u64,
        /// Hex SHA-256 of the original line, so that a raw copy can be compared.
        sha256: String,
        /// The tool calls in it.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<Judged>,
        /// Why it was not forwarded, where it was refused as a message.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        refused: Option<String>,
        /// What pairs it with another message, where its text is cut.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outline: Option<Outline>,
        /// Halves of surrogate pairs ([`super::repair`]) that were replaced by U+FFFD, in what was forwarded as in `raw`.
        #[serde(default, skip_serializing_if = "is_zero")]
        repaired: u32,
    },
    /// What became of a paused call.
    Decision {
        /// The call.
        call: String,
        /// When.
        at: i64,
        /// The same in nanoseconds since boot.
        #[serde(default)]
        boot: u64,
        /// What: any but `blocked`.
        outcome: Recorded<Outcome>,
        /// Who, for `approved` and `denied`: as the auditor names them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The server was started under a profile.
    Governed {
        /// When.
        at: i64,
        /// The profile.
        profile: String,
        /// What confines it, axis by axis, as the launcher reports it.
        enforcement: String,
        /// Its container's public id, where the eBPF programs hold it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        container: Option<String>,
    },
    /// Calls went on before this that are not on record: what happened then belongs to no call for sure.
    Gap {
        /// When it was noticed that entries can be written again.
        at: i64,
    },
    /// The server wrote to stderr.
    Stderr {
        /// When.
        at: i64,
        /// What, redacted unless raw storage was asked for.
        text: String,
        /// Bytes of it that were left out before this ([`super::stderr`]).
        #[serde(default, skip_serializing_if = "is_zero")]
        dropped: u64,
    },
    /// What the server is: at the session's start what tells it from others, later what it says of itself.
    Server {
        /// When.
        at: i64,
        /// What tells it from the user's other servers ([`ringfence_pins::definition::server_key`]).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        /// Its name and version by its own word, JSON.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        info: Option<String>,
    },
    /// Tools of an answer to `tools/list`, before its message: those that were not in the session's last such entry as they are.
    Tools {
        /// When.
        at: i64,
        /// The message that is about to have them.
        message: String,
        /// The tools.
        tools: Vec<ListedTool>,
        /// How many more there are that nothing is said of.
        #[serde(default, skip_serializing_if = "is_zero")]
        more: u64,
        /// This ends a list that began then: the server has no other tools.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        whole: Option<i64>,
    },
    /// Something worth knowing happened: other rules, a lost connection, output that was not JSON.
    Note {
        /// When.
        at: i64,
        /// What.
        text: String,
    },
    /// The session ended.
    End {
        /// When.
        at: i64,
        /// The server's exit status as a shell gives it.
        status: Option<i32>,
    },
}

impl Entry {
    /// Whether calls and messages in it are named as [`is_name`] has it.
    pub fn is_well_named(&self) -> bool {
        match self {
            Self::Message { id, calls, .. } => {
                is_name(id) && calls.iter().all(|judged| is_name(&judged.call))
            }
            Self::Decision { call, .. } => is_name(call),
            Self::Tools { message, .. } => is_name(message),
            _ => true,
        }
    }
}

/// Whether this is a name as calls and messages have it: a UUID as the journal's writer writes one. Whoever writes a journal of
/// its own has no other: they are keys, and are shown to others.
pub fn is_name(text: &str) -> bool {
    text.len() == 36
        && !text.bytes().any(|byte| byte.is_ascii_uppercase())
        && uuid::Uuid::try_parse(text).is_ok()
}

fn is_zero<N: Default + PartialEq>(number: &N) -> bool {
    *number == N::default()
}

/// The writing side.
#[derive(Debug)]
pub struct Journal {
    /// Or why there is none.
    file: Result<File, String>,
    length: u64,
    head: [u8; 64],
    /// Longest line that it writes, bytes, without its end: [`LONGEST`] but for tests.
    longest: usize,
}

/// A message's text, cut where its JSON would be too long for the journal, and its outline where it was. Length and hash
/// of the whole stand beside it.
pub fn fitting(text: Cow<'_, str>) -> (Cow<'_, str>, Option<Outline>) {
    fitting_within(text, LONGEST_RAW)
}

fn fitting_within(text: Cow<'_, str>, longest: usize) -> (Cow<'_, str>, Option<Outline>) {
    match cut(&text, longest) {
        None => (text, None),
        Some(cut) => (Cow::Owned(cut), line::outline(&text)),
    }
}

fn cut(text: &str, longest: usize) -> Option<String> {
    if text.len() <= longest / draft::WORST {
        return None;
    }
    let mut length = 0;
    let end = text.bytes().position(|byte| {
        length += draft::width(byte);
        length > longest
    });
    end.map(|end| text[..text.floor_char_boundary(end)].to_owned() + CUT)
}

impl Journal {
    /// Creates a journal; the file must not exist.
    ///
    /// # Errors
    /// Whatever the file system says.
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)?;
        // Held while the session runs, so that retention leaves it alone (see `is_held`) and nobody offers it as left behind
        // (see `abandoned`). A file system without locks is no reason not to run; there, nothing is ever removed.
        let _ = file.try_lock();
        Ok(Self::over(Ok(file)))
    }

    /// A journal that could not be created: it takes no entry, and each attempt fails with `why`.
    pub fn unavailable(why: String) -> Self {
        Self::over(Err(why))
    }

    fn over(file: Result<File, String>) -> Self {
        Self { file, length: 0, head: [b'0'; 64], longest: LONGEST }
    }

    /// A journal that cannot take an entry.
    #[cfg(any(test, feature = "test-support"))]
    pub fn over_full_device() -> io::Result<Self> {
        let file = OpenOptions::new().write(true).open("/dev/full")?;
        Ok(Self::over(Ok(file)))
    }

    /// Appends an entry with one write(2). On any failure nothing of it stays behind.
    ///
    /// # Errors
    /// The file system's error, or [`io::ErrorKind::FileTooLarge`] for what no reader would take; the journal is as it was
    /// before.
    pub fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut draft = Draft::within(self.longest);
        draft.entry(entry);
        self.append_lines(&mut draft, 0..1)
    }

    /// Appends some lines of a draft with one write(2). On any failure nothing of them stays behind.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_lines(&mut self, draft: &mut Draft, lines: Range<usize>) -> io::Result<()> {
        let file = self.file.as_mut().map_err(|why| io::Error::other(why.clone()))?;
        let Some((text, head)) = draft.chained(self.head, lines)? else { return Ok(()) };
        match file.write(text) {
            Ok(written) if written == text.len() => {
                self.length += written as u64;
                self.head = head;
                Ok(())
            }
            outcome => {
                // A torn line would end the chain for every reader.
                file.set_len(self.length)?;
                Err(outcome.err().unwrap_or_else(|| io::Error::from(io::ErrorKind::StorageFull)))
            }
        }
    }
}

/// Whether the interceptor that writes a journal still runs. Where nobody can tell, it does.
pub fn is_held(path: &Path) -> bool {
    match ringfence_files::read(path).map(|file| file.try_lock()) {
        Ok(Ok(())) => false,
        Ok(Err(_)) => true,
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// A journal whose interceptor is gone, open for reading; `None` while that one lives, or where there is none.
pub fn abandoned(path: &Path) -> Option<File> {
    let file = ringfence_files::read(path).ok()?;
    file.try_lock_shared().ok()?;
    // The lock is given back at once: others may look too.
    file.unlock().ok()?;
    Some(file)
}

/// Hash of a line, hex, from the hash before it.
pub fn link(previous: &[u8], json: &[u8]) -> [u8; 64] {
    hex(&Sha256::new().chain_update(previous).chain_update(json).finalize().into())
}

/// SHA-256 of some bytes, hex.
pub fn digest(bytes: &[u8]) -> [u8; 64] {
    hex(&Sha256::digest(bytes).into())
}

/// The same as text.
pub fn sha256(bytes: &[u8]) -> String {
    text(&digest(bytes))
}

/// Hex digits as text.
pub fn text(hex: &[u8; 64]) -> String {
    hex.iter().copied().map(char::from).collect()
}

fn hex(bytes: &[u8; 32]) -> [u8; 64] {
    let mut hex = [0; 64];
    for (digits, byte) in hex.chunks_exact_mut(2).zip(bytes) {
        digits[0] = DIGITS[usize::from(byte >> 4)];
        digits[1] = DIGITS[usize::from(byte & 0xf)];
    }
    hex
}

/// Why a journal is not what was written.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// Cannot be read.
    #[error("cannot read the journal")]
    Read(#[from] io::Error),
    /// A line that is not `HASH JSON`.
    #[error("line {0} is not a journal line")]
    Form(u64),
    /// A line that does not follow from the one before: something was changed, removed or added.
    #[error("line {0} does not follow from the line before it: an entry was changed, removed or added")]
    Chain(u64),
}

/// A line up to this length is read by whoever has time; a longer one is a matter for one reader at a time.
pub const SHORT: usize = 1 << 20;

/// The reading side: checks the chain as it goes. May stop before an unfinished last line and go on later.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    head: String,
    lines: u64,
    bytes: u64,
    partial: Vec<u8>,
    /// Bytes that a long line without an end had when it was last looked at.
    unfinished: u64,
}

/// What a reader finds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// An entry.
    Entry(Entry),
    /// The end, for now.
    End,
    /// A line that is longer than asked for; nothing of it is kept.
    Long,
}

impl<R: BufRead> Reader<R> {
    /// Reads from the first line.
    pub fn new(input: R) -> Self {
        Self { input, head: GENESIS.to_owned(), lines: 0, bytes: 0, partial: Vec::new(), unfinished: 0 }
    }

    /// The next whole entry; `None` at the end, also before a line without an end.
    ///
    /// # Errors
    /// [`Broken`]; the reader does not go on behind a break.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, Broken> {
        let limit = (LONGEST - self.partial.len().min(LONGEST)) as u64;
        let mut bounded = io::Read::take(&mut self.input, limit);
        bounded.read_until(b'\n', &mut self.partial)?;
        if self.partial.last() == Some(&b'\n') {
            self.take_line().map(Some)
        } else if self.partial.len() >= LONGEST {
            Err(Broken::Form(self.lines + 1))
        } else {
            Ok(None)
        }
    }

    /// The entry of the whole line that was read.
    fn take_line(&mut self) -> Result<Entry, Broken> {
        let number = self.lines + 1;
        let line = &self.partial[..self.partial.len() - 1];
        let (hash, json) = line.split_at_checked(GENESIS.len()).ok_or(Broken::Form(number))?;
        let json = json.strip_prefix(b" ").ok_or(Broken::Form(number))?;
        if link(self.head.as_bytes(), json) != *hash {
            return Err(Broken::Chain(number));
        }
        let entry = serde_json::from_slice(json).map_err(|_| Broken::Form(number))?;
        self.head = String::from_utf8_lossy(hash).into_owned();
        self.lines = number;
        self.bytes += self.partial.len() as u64;
        self.partial.clear();
        Ok(entry)
    }

    /// Bytes of the entries that were read.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Hash of the last entry that was read, and how many were.
    pub fn position(&self) -> (&str, u64) {
        (&self.head, self.lines)
    }
}

impl<R: BufRead + Seek> Reader<R> {
    /// The next entry, if its line is no longer than `limit` bytes. Never keeps more than [`SHORT`] bytes in between, so
    /// that many readers of hostile journals fit into memory.
    ///
    /// # Errors
    /// [`Broken`]; the reader does not go on behind a break.
    pub fn step(&mut self, limit: usize) -> Result<Step, Broken> {
        if self.unfinished > 0 && self.remaining()? <= self.unfinished {
            return Ok(Step::End);
        }
        let room = (limit - self.partial.len().min(limit)) as u64;
        io::Read::take(&mut self.input, room).read_until(b'\n', &mut self.partial)?;
        if self.partial.last() == Some(&b'\n') {
            self.unfinished = 0;
            let entry = self.take_line();
            self.partial.shrink_to(SHORT);
            return entry.map(Step::Entry);
        }
        let length = self.partial.len();
        if length >= LONGEST {
            return Err(Broken::Form(self.lines + 1));
        }
        let full = length >= limit;
        if full || length > SHORT {
            self.unfinished = if full { 0 } else { length as u64 };
            self.partial = Vec::new();
            self.input.seek_relative(-i64::try_from(length).unwrap_or(0))?;
        }
        Ok(if full { Step::Long } else { Step::End })
    }

    /// Bytes between here and the end.
    fn remaining(&mut self) -> io::Result<u64> {
        let here = self.input.stream_position()?;
        let end = self.input.seek(SeekFrom::End(0))?;
        self.input.seek(SeekFrom::Start(here))?;
        Ok(end.saturating_sub(here))
    }
}

#[cfg(test)]
mod tests;
