//! One agent's conversation: its log on disk, and the same ready for the provider.
//!
//! The log is NDJSON, one message a line, in the order in which things happened; and a line of usage alone for a call of the
//! provider that was cut off. What the provider is sent is made from it: results of one answer's tool calls stand together, in the order of the calls.

use super::{
    calls::Used,
    history::{History, Pieces},
    limits,
    message::{Message, Role},
    provider::{self, Usage},
    rpc::{INVALID_PARAMS, RpcError},
};
use bytes::Bytes;
use jiff::Timestamp;
use ringfence_files::{Dir, Permissions};
use ringfence_policy::agents::config::ProviderKind;
use serde::{Deserialize, Serialize};
use std::{
    borrow::Cow,
    collections::VecDeque,
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

/// Longest line of a log that is read, bytes: more than any message can have.
const MAX_LINE: u64 = 64 << 20;
/// Groups that are kept apart: more than one call of the model adds.
const RECENT: usize = 8;
/// What is written without leaving the event loop, bytes; the page cache takes it in microseconds.
const WRITTEN_INLINE: usize = 256 << 10;
/// What a tool call is answered with where nobody else answered it.
const UNANSWERED: &str = "this call was not answered: the runtime was gone before its result came";

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Its directory.
    #[error("cannot make the log's directory {}", .0.display())]
    Directory(PathBuf, #[source] io::Error),
    /// The file.
    #[error("cannot use the conversation log {}", .0.display())]
    File(PathBuf, #[source] io::Error),
}

/// A conversation.
#[derive(Debug)]
pub struct Conversation {
    path: PathBuf,
    file: Arc<File>,
    /// Bytes of the log that are whole lines.
    length: u64,
    /// Lines that are not written yet.
    unwritten: Vec<u8>,
    kind: ProviderKind,
    history: History,
    /// Groups that are not part of `history` yet, because they may be sent with a mark for the provider's cache: the
    /// last one of the request before, and what came since.
    recent: VecDeque<Vec<Message>>,
    /// Whether the first of them was the last one of a request.
    was_sent: bool,
    pending: Option<Pending>,
    /// Ids that its tool calls have had.
    pub used: Mutex<Used>,
    /// What its calls of the provider used.
    pub(crate) meter: limits::Shared,
}

/// An answer's tool calls, of which some are not answered.
#[derive(Debug)]
struct Pending {
    /// Ids, in the order of the calls, and their results.
    calls: Vec<(String, Option<Message>)>,
    /// Their tools, likewise.
    tools: Vec<String>,
}

impl Pending {
    fn missing(&self) -> impl Iterator<Item = &str> {
        self.calls.iter().filter(|(_, result)| result.is_none()).map(|(id, _)| id.as_str())
    }

    /// The results, each with its tool. What has none is answered here.
    fn results(self) -> Vec<Message> {
        let named = |((id, result), tool): ((String, Option<Message>), String)| {
            let result = result.unwrap_or_else(|| Message::tool_text(&id, UNANSWERED, true));
            Message { tool_name: Some(tool), ..result }
        };
        self.calls.into_iter().zip(self.tools).map(named).collect()
    }
}

/// What was found when a log was opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Messages.
    pub messages: usize,
    /// Bytes of a last line that was cut off, and removed.
    pub torn: u64,
    /// Lines within that are no messages, left where they are.
    pub skipped: usize,
}

impl Conversation {
    /// Opens a log, makes it where there is none, and replays it. Blocks.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(path: &Path, kind: ProviderKind, log_reader: Option<u32>) -> Result<(Self, Replay), Error> {
        let io = |e| Error::File(path.to_owned(), e);
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io(io::ErrorKind::InvalidInput.into()));
        };
        let dir = Dir::make_private(parent)
            .and_then(|dir| {
                dir.share(log_reader, Permissions { own: 0o7, theirs: 0o5 })?;
                Ok(dir)
            })
            .map_err(|e| Error::Directory(parent.to_owned(), e))?;
        let file = dir.append(name).map_err(io)?;
        file.set_permissions(fs::Permissions::from_mode(0o600)).map_err(io)?;
        ringfence_files::share(&file, log_reader, Permissions { own: 0o6, theirs: 0o4 }).map_err(io)?;
        let mut conversation = Self {
            path: path.to_owned(),
            file: Arc::new(file),
            length: 0,
            unwritten: Vec::new(),
            kind,
            history: History::default(),
            recent: VecDeque::new(),
            was_sent: false,
            pending: None,
            used: Mutex::default(),
            meter: limits::Shared::default(),
        };
        let replay = conversation.replay().map_err(io)?;
        Ok((conversation, replay))
    }

    /// Writes to another file from now on.
    #[cfg(test)]
    pub(crate) fn write_to(&mut self, file: File) {
        self.file = Arc::new(file);
    }

    fn replay(&mut self) -> io::Result<Replay> {
        let mut replay = Replay::default();
        let file = Arc::clone(&self.file);
        let mut reader = BufReader::new(&*file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = io::Read::take(&mut reader, MAX_LINE).read_until(b'\n', &mut line)? as u64;
            if read == 0 {
                return Ok(replay);
            }
            let ended = line.last() == Some(&b'\n');
            if !ended && read == MAX_LINE {
                self.length += read + skip_line(&mut reader)?;
                replay.skipped += 1;
                continue;
            }
            match serde_json::from_slice::<Message>(&line) {
                Ok(message) => {
                    if message.role == Role::Assistant {
                        self.count(&line);
                    }
                    self.take(message);
                    replay.messages += 1;
                }
                Err(_) if line.iter().all(u8::is_ascii_whitespace) && ended => {}
                Err(_) if !ended => {
                    // Its write was cut off by a crash, so nobody was told that it happened.
                    self.file.set_len(self.length)?;
                    self.file.sync_data()?;
                    replay.torn = read;
                    return Ok(replay);
                }
                Err(_) => match serde_json::from_slice(&line) {
                    Ok(UsageLine { ts, usage }) => self.meter.lock().used(&usage, ts),
                    Err(_) => replay.skipped += 1,
                },
            }
            self.length += read;
            if !ended {
                (&*self.file).write_all(b"\n")?;
                self.length += 1;
            }
        }
    }

    /// Counts what a logged answer used.
    fn count(&mut self, line: &[u8]) {
        #[derive(Deserialize)]
        struct Used<'a> {
            #[serde(borrow)]
            ts: Cow<'a, str>,
            usage: Usage,
        }
        let Ok(Used { ts, usage }) = serde_json::from_slice(line) else { return };
        if let Ok(ts) = ts.parse() {
            self.meter.lock().used(&usage, ts);
        }
    }

    /// How many bytes the provider is sent of it.
    pub fn bytes(&self) -> usize {
        self.history.bytes()
    }

    /// Checks what a runtime brings to a turn.
    ///
    /// # Errors
    /// -32602, saying which message is wrong.
    pub fn check(&self, messages: &[Message]) -> Result<(), RpcError> {
        let wrong = |what: String| Err(RpcError::new(INVALID_PARAMS, what));
        let mut missing: Vec<&str> = self.pending.iter().flat_map(Pending::missing).collect();
        let mut results = 0;
        for message in messages {
            match (message.role, &message.tool_call_id) {
                (Role::Assistant, _) => {
                    return wrong("a runtime does not speak for the model: role `assistant`".to_owned());
                }
                (Role::User, _) if message.content.is_empty() => {
                    return wrong("a user's message without content".to_owned());
                }
                (Role::User, _) => {}
                (Role::Tool, None) => return wrong("a tool's message without a tool_call_id".to_owned()),
                (Role::Tool, Some(id)) => {
                    let Some(at) = missing.iter().position(|m| m == id) else {
                        return wrong(format!("no tool call {id:?} waits for a result"));
                    };
                    missing.swap_remove(at);
                    results += 1;
                }
            }
        }
        if results > 0 && !missing.is_empty() {
            let ids = missing.join(", ");
            return wrong(format!("results of all tool calls come in one turn; missing: {ids}"));
        }
        let says_nothing = self.pending.is_some()
            || self.recent.back().and_then(|g| g.last()).is_none_or(|m| m.role == Role::Assistant);
        if messages.is_empty() && says_nothing {
            return wrong("messages is empty, and the conversation waits for one".to_owned());
        }
        Ok(())
    }

    /// Adds what was checked. Tool calls that nobody answered are answered here: a provider accepts nothing else after
    /// them.
    pub fn begin(&mut self, messages: Vec<Message>) {
        let (results, said): (Vec<_>, Vec<_>) = messages.into_iter().partition(|m| m.role == Role::Tool);
        for result in results {
            self.push(result, None);
        }
        self.answer_missing(UNANSWERED);
        for message in said {
            self.push(message, None);
        }
    }

    /// Answers every tool call that waits with an error.
    pub(crate) fn answer_missing(&mut self, why: &str) {
        let missing: Vec<String> =
            self.pending.iter().flat_map(Pending::missing).map(str::to_owned).collect();
        for id in missing {
            self.push(Message::tool_text(&id, why, true), None);
        }
    }

    /// Adds a message.
    pub fn push(&mut self, message: Message, usage: Option<&Usage>) {
        let now = Timestamp::now();
        usage.inspect(|usage| self.meter.lock().used(usage, now));
        self.write(now, Some(&message), usage);
        self.take(message);
    }

    /// Counts a call of the provider of which there is no message, because it was cut off: also after a restart.
    pub fn record_usage(&mut self, usage: &Usage) {
        let now = Timestamp::now();
        self.meter.lock().used(usage, now);
        self.write(now, None, Some(usage));
    }

    fn write(&mut self, now: Timestamp, message: Option<&Message>, usage: Option<&Usage>) {
        #[derive(Serialize)]
        struct Line<'a> {
            ts: &'a str,
            #[serde(flatten)]
            message: Option<&'a Message>,
            #[serde(skip_serializing_if = "Option::is_none")]
            usage: Option<&'a Usage>,
        }
        let ts = format!("{now:.3}");
        let before = self.unwritten.len();
        match serde_json::to_writer(&mut self.unwritten, &Line { ts: &ts, message, usage }) {
            Ok(()) => self.unwritten.push(b'\n'),
            Err(error) => {
                self.unwritten.truncate(before);
                tracing::error!("a message cannot be logged: {error}");
            }
        }
    }

    /// Takes a message into what the provider is sent.
    fn take(&mut self, message: Message) {
        if message.role != Role::Tool {
            // Only a log that somebody edited has calls without results here.
            if let Some(pending) = self.pending.take() {
                self.group(pending.results());
            }
            if !message.tool_calls.is_empty() {
                let used = self.used.get_mut().unwrap_or_else(PoisonError::into_inner);
                message.tool_calls.iter().for_each(|call| {
                    used.note(&call.id);
                });
                let calls = message.tool_calls.iter().map(|call| (call.id.clone(), None)).collect();
                let tools = message.tool_calls.iter().map(|call| call.name.clone()).collect();
                self.pending = Some(Pending { calls, tools });
            }
            return self.group(vec![message]);
        }
        let Some(pending) = &mut self.pending else { return };
        let id = message.tool_call_id.as_deref();
        let Some(slot) = pending.calls.iter_mut().find(|(call, result)| id == Some(call) && result.is_none())
        else {
            return;
        };
        slot.1 = Some(message);
        if pending.missing().next().is_none()
            && let Some(pending) = self.pending.take()
        {
            self.group(pending.results());
        }
    }

    fn group(&mut self, messages: Vec<Message>) {
        // What says nothing to this provider is not sent to it.
        if provider::encode(self.kind, &messages, false).is_empty() {
            return;
        }
        self.recent.push_back(messages);
        self.seal(RECENT);
    }

    /// Makes all but the last `keep` groups part of the history.
    fn seal(&mut self, keep: usize) {
        while self.recent.len() > keep
            && let Some(group) = self.recent.pop_front()
        {
            self.history.push(provider::encode(self.kind, &group, false));
            self.was_sent = false;
        }
    }

    /// A request's body with all messages, between what the provider needs around them. `mark`: tell the provider's
    /// cache up to where it was filled by the request before, however much came since, and up to where to fill it now.
    pub fn body(&mut self, before: Bytes, after: Bytes, mark: bool) -> Pieces {
        let last = self.recent.len().saturating_sub(1);
        let encoded = self.recent.iter().enumerate().map(|(i, group)| {
            let is_end = i == last || (i == 0 && self.was_sent);
            provider::encode(self.kind, group, mark && is_end)
        });
        let recent = encoded.collect::<Vec<_>>().join(&b","[..]);
        let body = self.history.body(before, recent.into(), after);
        self.seal(1);
        self.was_sent = true;
        body
    }

    /// Writes what was added, so that a crash of this process does not lose it.
    ///
    /// # Errors
    /// The log cannot be written; what was added stays to be written.
    pub async fn flush(&mut self) -> Result<(), Error> {
        if self.unwritten.len() > WRITTEN_INLINE {
            return self.off_loop(false).await;
        }
        let bytes = std::mem::take(&mut self.unwritten);
        let result = append(&self.file, self.length, &bytes);
        self.after_write(bytes, result.is_ok(), result)
    }

    /// Writes what was added, and waits until the disk has it.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub async fn commit(&mut self) -> Result<(), Error> {
        self.off_loop(true).await
    }

    async fn off_loop(&mut self, sync: bool) -> Result<(), Error> {
        let (file, length) = (Arc::clone(&self.file), self.length);
        let bytes = Arc::new(std::mem::take(&mut self.unwritten));
        let shared = Arc::clone(&bytes);
        let done = tokio::task::spawn_blocking(move || {
            if let Err(error) = append(&file, length, &shared) {
                return (false, Err(error));
            }
            drop(shared);
            (true, if sync { file.sync_data() } else { Ok(()) })
        });
        let (written, result) = done.await.unwrap_or_else(|e| (false, Err(io::Error::other(e))));
        self.after_write(Arc::unwrap_or_clone(bytes), written, result)
    }

    fn after_write(&mut self, bytes: Vec<u8>, written: bool, result: io::Result<()>) -> Result<(), Error> {
        if written {
            self.length += bytes.len() as u64;
        } else {
            self.unwritten = bytes;
        }
        result.map_err(|e| Error::File(self.path.clone(), e))
    }
}

/// Appends whole lines, or nothing.
fn append(file: &File, length: u64, bytes: &[u8]) -> io::Result<()> {
    let mut file = file;
    if bytes.is_empty() {
        return Ok(());
    }
    file.write_all(bytes).inspect_err(|_| {
        let _ = file.set_len(length);
    })
}

/// A line of no message: what a call used that was cut off.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageLine {
    ts: Timestamp,
    usage: Usage,
}

fn skip_line(reader: &mut impl BufRead) -> io::Result<u64> {
    let mut skipped = 0;
    loop {
        let buffer = reader.fill_buf()?;
        let end = buffer.iter().position(|b| *b == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        skipped += used as u64;
        reader.consume(used);
        if end.is_some() || used == 0 {
            return Ok(skipped);
        }
    }
}

#[cfg(test)]
mod tests;
