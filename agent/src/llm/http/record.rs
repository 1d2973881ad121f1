//! The log of HTTP calls: one line of JSON each, beside the conversation.

use super::relay::Outcome;
use crate::llm::{
    limits,
    message::{Block, ToolCall},
    provider::Usage,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};

/// Most bytes of a message that are written down.
const MAX_MESSAGE: usize = 256 << 10;
/// Most bytes of the log that are read for what was used today.
const MAX_REPLAY: u64 = 64 << 20;

/// What is known of a call before its answer.
pub(super) struct Call {
    pub(super) path: String,
    pub(super) streams: bool,
    pub(super) messages: usize,
    /// The last message, without credentials.
    pub(super) last: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Line<'a> {
    ts: String,
    path: &'a str,
    status: u16,
    stream: bool,
    ms: u128,
    messages: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    content: &'a [Block],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [ToolCall],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

/// What is counted of a line that was written before.
#[derive(Deserialize)]
struct Spent {
    ts: Timestamp,
    usage: Option<Usage>,
}

/// Counts what the calls of earlier runs used, as far back as a day can reach. Blocks.
pub(in crate::llm) fn replay(log: &Path, meter: &limits::Shared) -> io::Result<()> {
    let mut file = match File::open(log) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let from = file.metadata()?.len().saturating_sub(MAX_REPLAY);
    file.seek(SeekFrom::Start(from))?;
    let mut reader = BufReader::new(file.take(MAX_REPLAY));
    let mut line = Vec::new();
    while {
        line.clear();
        reader.read_until(b'\n', &mut line)? > 0
    } {
        // What is no whole line was cut, by a crash or by us.
        if let Ok(Spent { ts, usage: Some(usage) }) = serde_json::from_slice(&line) {
            meter.lock().used(&usage, ts);
        }
    }
    Ok(())
}

/// Writes a line, and waits for the disk.
pub(super) async fn write(log: &Path, call: &Call, status: u16, took: Duration, outcome: &Outcome) {
    let line = Line {
        ts: format!("{:.3}", Timestamp::now()),
        path: &call.path,
        status,
        stream: call.streams,
        ms: took.as_millis(),
        messages: call.messages,
        last: call.last.as_deref().filter(|last| last.get().len() <= MAX_MESSAGE),
        stop_reason: outcome.stop_reason.as_deref(),
        content: &outcome.content,
        tool_calls: &outcome.tool_calls,
        usage: outcome.usage.as_ref(),
        error: outcome.error.as_deref(),
    };
    let Ok(mut text) = serde_json::to_string(&line) else { return };
    // A message may have come laid out over several lines.
    text = text.replace(['\n', '\r'], " ");
    text.push('\n');
    let path = log.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        let mut file = ringfence_files::append(&path)?;
        // One write: lines of two calls do not mix.
        file.write_all(text.as_bytes())?;
        file.sync_data()
    });
    match written.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::error!("{} cannot be written: {error}", log.display()),
        Err(error) => tracing::error!("{} cannot be written: {error}", log.display()),
    }
}
