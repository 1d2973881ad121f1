//! What the store takes of a session: the rows of its journal's entries.

use super::intent::Evidence;
use crate::{
    journal::{Direction, Judged, ListedTool, Passage},
    line::{Kind, Message},
};
use ringfence_wire::tool_call::{Outcome, Recorded};
use serde::Deserialize;
use serde_json::{Value, json};

/// Longest text of a message in the database, bytes; arguments and results of calls likewise.
pub(crate) const LONGEST_RAW: usize = 2 << 20;

/// Longest text that is no payload, bytes: a name, a command, a reason. Whoever writes a journal writes any length.
pub const LONGEST_TEXT: usize = 4 << 10;
/// Bytes of all of a call's reasons, and of all rules that asked for what was decided.
const LONGEST_LIST: usize = 16 << 10;
/// Most exceptions of a call, and reasons of one; a call has fewer reasons.
const MOST_EXCEPTIONS: usize = 32;
/// Bytes of the name of an exception, or of a reason.
const LONGEST_NAME: usize = 100;

/// What the store does for an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Row {
    /// A session began.
    Session {
        /// Name of the server.
        server_name: String,
        /// Its command, as a shell would show it.
        server_command: String,
        /// When; microseconds since 1970, as all times here.
        started_at: i64,
        /// Which process it works for; `None`: that is not known.
        client: Option<String>,
    },
    /// The client introduced itself.
    Client {
        /// Name and version, as the client sent them.
        info: String,
    },
    /// What tells the session's server from others, or what it says of itself.
    Server {
        /// See [`crate::journal::Entry::Server`].
        key: Option<String>,
        /// JSON.
        info: Option<String>,
        /// When.
        at: i64,
    },
    /// Tools that the server listed.
    Tools(Box<ToolsRow>),
    /// A message.
    Message(Box<MessageRow>),
    /// A tool call was asked for.
    Call(Box<CallRow>),
    /// A tool call was answered by the server.
    Answer {
        /// The call.
        call: String,
        /// The message that answers it.
        message: String,
        /// JSON.
        result: Option<String>,
        /// JSON.
        error: Option<String>,
        /// When.
        at: i64,
        /// Milliseconds since the request.
        duration_ms: i64,
        /// When, ns since boot.
        ended: u64,
        /// What kind of answer it is.
        answer: Outcome,
    },
    /// The client cancelled a call that the server has and did not answer, or its task.
    Cancelled {
        /// The call.
        call: String,
        /// When.
        at: i64,
    },
    /// The result of a call that the server took as a task.
    TaskAnswer {
        /// The call.
        call: String,
        /// The message that has it.
        message: String,
        /// What kind of result it is.
        answer: Outcome,
        /// JSON: a result or an error.
        result: String,
        /// When.
        at: i64,
    },
    /// What became of a paused call, or a cancelled one.
    Decision {
        /// The call.
        call: String,
        /// What.
        outcome: Recorded<Outcome>,
        /// Who.
        by: Option<String>,
        /// When.
        at: i64,
        /// When, ns since boot: an approved call is forwarded then.
        boot: u64,
    },
    /// The server asks the client's model for something.
    Asked {
        /// The question, by the message it came in.
        question: String,
        /// What is asked, where it is text.
        prompt: Option<String>,
    },
    /// It has its answer, or will have none.
    Answered {
        /// The question.
        question: String,
        /// When.
        at: i64,
    },
    /// The server is under a profile.
    Governed {
        /// The profile.
        profile: String,
        /// What confines it.
        enforcement: String,
        /// Its container.
        container: Option<String>,
    },
    /// The server wrote to standard error.
    Stderr {
        /// Its place in the session, from 1.
        number: u32,
        /// When it was read.
        at: i64,
        /// What: lines.
        text: String,
        /// Bytes that were left out before it.
        dropped: u64,
    },
    /// A call may have gone by that is not among the rows.
    Gap,
    /// The session ended.
    End {
        /// When.
        at: i64,
        /// Exit status of the server.
        status: Option<i32>,
    },
}

/// A row of `messages`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRow {
    /// Our id.
    pub id: String,
    /// Who sent it.
    pub direction: Direction,
    /// When, microseconds since 1970.
    pub at: i64,
    /// The sender's id, as JSON.
    pub jsonrpc_id: Option<String>,
    /// The method of a request or notification.
    pub method: Option<String>,
    /// Its params, as JSON.
    pub params: Option<String>,
    /// An answer's result, as JSON.
    pub result: Option<String>,
    /// An answer's error, as JSON.
    pub error: Option<String>,
    /// The line as it is recorded.
    pub raw: String,
    /// What is unusual about it: refused, unsolicited, an id used again, not JSON.
    pub note: Option<String>,
}

/// A row of `tool_calls` as it begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    /// What was decided about it.
    pub judged: Judged,
    /// The message that it came in: our id.
    pub message: String,
    /// Its arguments, as JSON.
    pub arguments: String,
    /// When, microseconds since 1970.
    pub at: i64,
    /// Why it was never forwarded, where that was known at once.
    pub blocked: bool,
    /// When it was forwarded, if it was at once; ns since boot.
    pub began: Option<u64>,
    /// Evidence of why it was made.
    pub evidence: Evidence,
}

/// Tools of one answer to `tools/list`, as far as they are news.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolsRow {
    /// When.
    pub at: i64,
    /// The tools; each name is a short one.
    pub tools: Vec<ListedTool>,
    /// The list began then, and there are no others.
    pub whole: Option<i64>,
    /// What is new in it is pinned, and what changed waits: its session is one that lives. From a journal that is read
    /// later nothing is trusted.
    pub counts: bool,
}

impl Row {
    /// Bytes of its texts, about: of those that may be long.
    pub fn bytes(&self) -> usize {
        let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let each = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
        match self {
            Self::Message(row) => {
                row.raw.len()
                    + [&row.jsonrpc_id, &row.method, &row.params, &row.result, &row.error, &row.note]
                        .map(of)
                        .iter()
                        .sum::<usize>()
            }
            Self::Call(row) => {
                let judged = &row.judged;
                let excepted = judged.exceptions.iter().map(|one| one.name.len() + each(&one.reasons));
                row.arguments.len()
                    + judged.tool.len()
                    + each(&judged.reasons)
                    + each(&judged.rules)
                    + excepted.sum::<usize>()
            }
            Self::Answer { result, error, .. } => of(result) + of(error),
            Self::Decision { by, .. } => of(by),
            Self::Asked { question, prompt } => question.len() + of(prompt),
            Self::Session { server_name, server_command, client, .. } => {
                server_name.len() + server_command.len() + of(client)
            }
            Self::Server { key, info, .. } => of(key) + of(info),
            Self::Tools(row) => row.tools.iter().map(tool_bytes).sum(),
            Self::Client { info: text }
            | Self::Governed { enforcement: text, .. }
            | Self::Stderr { text, .. } => text.len(),
            Self::TaskAnswer { result, .. } => result.len(),
            Self::Answered { .. } | Self::Cancelled { .. } | Self::Gap | Self::End { .. } => 0,
        }
    }
}

fn tool_bytes(tool: &ListedTool) -> usize {
    let of = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let flags = tool.flags.iter().map(|flag| flag.place.len() + flag.why.len() + flag.excerpt.len());
    tool.name.len() + of(&tool.sha256) + of(&tool.held) + of(&tool.definition) + flags.sum::<usize>()
}

impl CallRow {
    /// A call of a message that came `at` that time, `boot` ns since boot, and was `forwarded` or not.
    pub fn new(
        judged: Judged,
        message: &str,
        (at, boot): (i64, u64),
        forwarded: bool,
        arguments: String,
        evidence: Evidence,
    ) -> Self {
        let passage = judged.passage();
        Self {
            judged,
            message: message.to_owned(),
            arguments,
            at,
            blocked: passage == Passage::Stopped,
            began: (forwarded && passage == Passage::Forwarded).then_some(boot),
            evidence,
        }
    }
}

impl MessageRow {
    /// Fills the columns from the message.
    pub fn read(&mut self, message: &Message<'_>) {
        self.params = message.params.map(str::to_owned);
        match &message.kind {
            Kind::Call(id, _) => {
                self.jsonrpc_id = Some(id.to_json());
                self.method = Some("tools/call".to_owned());
            }
            Kind::Request(id, method) => {
                self.jsonrpc_id = Some(id.to_json());
                self.method = Some(method.clone());
            }
            Kind::Notification(method) => self.method = Some(method.clone()),
            Kind::Response(id, outcome) => {
                self.jsonrpc_id = Some(id.to_json());
                self.result = outcome.ok().map(str::to_owned);
                self.error = outcome.err().map(str::to_owned);
            }
        }
    }
}

/// A JSON text for the database: as it is, or, where it is too long, an object that states its length.
pub fn bounded(json: &str) -> String {
    if json.len() <= LONGEST_RAW {
        return json.to_owned();
    }
    json!({ "ringfence_cut": format!("{} bytes; the session's journal has them", json.len()) }).to_string()
}

/// Cuts a text that is no payload, and notes that in it.
pub fn cut(text: &mut String) {
    let bytes = text.len();
    if bytes > LONGEST_TEXT {
        text.truncate(text.floor_char_boundary(LONGEST_TEXT));
        text.push_str(&format!("… [of {bytes} bytes; the session's journal has them]"));
        text.shrink_to_fit();
    }
}

/// A name, which is short: what is longer is none of ours.
fn cut_name(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST_NAME));
}

/// What was judged, with no more of each text than that.
pub(crate) fn cut_judged(judged: &mut Judged) {
    let words = [judged.operation.other_mut(), judged.action.other_mut()];
    words.into_iter().flatten().chain([&mut judged.tool]).for_each(cut);
    judged.exceptions.truncate(MOST_EXCEPTIONS);
    for excepted in &mut judged.exceptions {
        excepted.reasons.truncate(MOST_EXCEPTIONS);
        excepted.reasons.iter_mut().chain([&mut excepted.name]).for_each(cut_name);
    }
    for texts in [&mut judged.reasons, &mut judged.rules] {
        texts.iter_mut().for_each(cut);
        let mut bytes = 0;
        // Each counts more than its text: an empty one takes room as well.
        let fits = |text: &&String| {
            bytes += text.len() + 16;
            bytes <= LONGEST_LIST
        };
        let kept = texts.iter().take_while(fits).count();
        let left_out = texts.len() - kept;
        if left_out > 0 {
            texts.truncate(kept);
            texts.push(format!("… [{left_out} more; the session's journal has them]"));
            texts.shrink_to_fit();
        }
    }
}

/// Who the client is, as JSON: as sent, or, where that is too long, its name and version.
pub fn client(info: &str) -> String {
    if info.len() <= LONGEST_TEXT {
        // As it is always written, whatever its spaces.
        return serde_json::from_str::<Value>(info).map_or_else(|_| info.to_owned(), |info| info.to_string());
    }
    #[derive(Deserialize)]
    struct Named {
        #[serde(default)]
        name: String,
        #[serde(default)]
        version: String,
    }
    let mut named: Named =
        serde_json::from_str(info).unwrap_or(Named { name: String::new(), version: String::new() });
    [&mut named.name, &mut named.version].into_iter().for_each(cut);
    let cut = format!("{} bytes; the session's journal has them", info.len());
    json!({ "name": named.name, "version": named.version, "ringfence_cut": cut }).to_string()
}
