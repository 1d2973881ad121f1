//! The log of HTTP calls: one line of JSON each, beside the conversation.

use super::{relay::Outcome, session::ClientSession};
use crate::{
    limits,
    message::{Block, ToolCall},
    provider::Usage,
};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::Path,
    time::Duration,
};

/// Most bytes of a message that are written down.
const MAX_MESSAGE: usize = 256 << 10;
/// The same of a request that was refused, which costs nobody anything and comes again and again; and most of an error.
const MAX_REFUSED: usize = 4 << 10;
/// Most bytes of the log that are read for what was used today.
const MAX_REPLAY: u64 = 64 << 20;

/// What is known of a call before its answer.
pub(super) struct Call {
    pub(super) path: String,
    pub(super) streams: bool,
    pub(super) messages: usize,
    /// The session that the client says it is in.
    pub(super) session: Option<ClientSession>,
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
    session: Option<&'a ClientSession>,
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
struct UsageLine {
    ts: Timestamp,
    usage: Option<Usage>,
}

/// Counts what the calls of earlier runs used, as far back as a day can reach. Blocks.
pub fn replay(log: &Path, meter: &limits::Shared) -> io::Result<()> {
    // A worker that was taken over may have put a FIFO there, for the next one to wait for.
    let mut file = match ringfence_files::read(log) {
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
        if let Ok(UsageLine { ts, usage: Some(usage) }) = serde_json::from_slice(&line) {
            meter.lock().used(&usage, ts);
        }
    }
    Ok(())
}

/// Writes a line, and waits for the disk.
///
/// # Errors
/// It is not there for sure. The host's log says why.
pub(super) async fn write(
    log: &Path,
    call: &Call,
    status: u16,
    took: Duration,
    outcome: &Outcome,
) -> Result<(), Unrecorded> {
    let most = if status < 400 { MAX_MESSAGE } else { MAX_REFUSED };
    // Before it is cut: half a credential has no shape.
    let error = outcome.error.as_deref().map(ringfence_redact::redact);
    let line = Line {
        ts: format!("{:.3}", Timestamp::now()),
        path: &call.path,
        status,
        stream: call.streams,
        ms: took.as_millis(),
        messages: call.messages,
        session: call.session.as_ref(),
        last: call.last.as_deref().filter(|last| last.get().len() <= most),
        stop_reason: outcome.stop_reason.as_deref(),
        content: &outcome.content,
        tool_calls: &outcome.tool_calls,
        usage: outcome.usage.as_ref(),
        error: error.as_deref().map(|error| &error[..error.floor_char_boundary(MAX_REFUSED)]),
    };
    let mut text = serde_json::to_string(&line).map_err(|error| {
        tracing::error!("a line of {} cannot be made: {error}", log.display());
        Unrecorded
    })?;
    // A message may have come laid out over several lines.
    text = text.replace(['\n', '\r'], " ");
    let path = log.to_owned();
    let written = tokio::task::spawn_blocking(move || {
        // The worker's own credentials are out; others' are in what people paste, and in what tools print.
        let mut text = ringfence_redact::redact(&text).into_owned();
        text.push('\n');
        let mut file = ringfence_files::append(&path)?;
        // One write: lines of two calls do not mix.
        file.write_all(text.as_bytes())?;
        file.sync_data()
    });
    written.await.unwrap_or_else(|error| Err(error.into())).map_err(|error| {
        tracing::error!("{} cannot be written: {error}", log.display());
        Unrecorded
    })
}

/// What is not on record is not the client's to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the call cannot be written down, so its answer is kept back; see the host's log")]
pub(super) struct Unrecorded;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn what_is_no_file_in_the_place_of_the_log_is_not_waited_for() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("http.ndjson");
        assert!(replay(&log, &limits::Shared::default()).is_ok(), "there is none yet");
        mknodat(CWD, &log, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        assert!(replay(&log, &limits::Shared::default()).is_err());
    }

    #[tokio::test]
    async fn secrets_that_people_paste_are_not_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("http.ndjson");
        let said =
            "{\n  \"role\": \"user\",\n  \"content\": \"DB_PASSWORD=hunter2x\\nwhat is wrong with it?\"\n}";
        let call = Call {
            path: "/v1/messages".into(),
            streams: false,
            messages: 1,
            session: None,
            last: serde_json::value::RawValue::from_string(said.to_owned()).ok(),
        };
        write(&log, &call, 200, Duration::ZERO, &Outcome::default()).await.unwrap();
        let line: Value = serde_json::from_str(std::fs::read_to_string(&log).unwrap().trim()).unwrap();
        assert_eq!(line["last"]["content"], "DB_PASSWORD=[redacted]\nwhat is wrong with it?");
        assert_eq!(line["path"], "/v1/messages", "the rest stays");
    }

    #[tokio::test]
    async fn a_refused_request_takes_little_of_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("http.ndjson");
        let message = |bytes: usize| serde_json::value::to_raw_value(&"x".repeat(bytes)).ok();
        let mut sizes = Vec::new();
        for (status, bytes) in [(200, MAX_REFUSED), (400, MAX_REFUSED), (200, MAX_MESSAGE), (400, 100)] {
            let call = Call {
                path: "/v1/messages".into(),
                streams: false,
                messages: 1,
                session: None,
                last: message(bytes),
            };
            let error = (status == 400).then(|| "\u{fc}".repeat(MAX_MESSAGE));
            let outcome = Outcome { error, ..Outcome::default() };
            write(&log, &call, status, Duration::ZERO, &outcome).await.unwrap();
            let line = std::fs::read_to_string(&log).unwrap();
            let line: Value = serde_json::from_str(line.lines().last().unwrap()).unwrap();
            let length = |key: &str| line[key].as_str().map_or(0, str::len);
            sizes.push((length("last"), length("error")));
        }
        assert_eq!(sizes, [(MAX_REFUSED, 0), (0, MAX_REFUSED), (0, 0), (100, MAX_REFUSED)]);
        let call = Call { path: String::new(), streams: false, messages: 0, session: None, last: None };
        let written = write(dir.path(), &call, 200, Duration::ZERO, &Outcome::default()).await;
        assert_eq!(written, Err(Unrecorded));
    }
}
