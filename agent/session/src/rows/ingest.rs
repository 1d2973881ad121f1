//! A session's journal to the store's rows: requests and responses paired, calls grouped into intents. Pure.
//!
//! The fold is deterministic: read again from the start, a journal gives the same rows with the same ids, so that an
//! auditor that was killed in the middle begins again and writes nothing twice.

pub use super::row::{CallRow, MessageRow, Row, ToolsRow};
use super::{
    intent::{self, Evidence},
    requests::{Answered, LONGEST_ID, Pending, Requests},
    row::{self, LONGEST_RAW, bounded},
    stderr::Stderr,
    tasks::{Later, Tasks},
    tools,
};
use crate::{
    journal::{Direction, Entry, Judged, Passage, sha256},
    line::{self, Id, Kind, Line, Message, Outline},
};
use ringfence_wire::tool_call::{Outcome, Recorded};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use std::collections::{HashMap, HashSet};

/// Messages of one line, and calls of one, that are looked at; what is beyond is a gap.
const MOST_IN_LINE: usize = 16_384;

/// Longest name of a client's process that is believed to be one, bytes.
const LONGEST_CLIENT: usize = 64;

/// Questions to the client's model in answers that are remembered per session.
const MOST_QUESTIONS: usize = 64;

/// The state of one session's fold.
#[derive(Debug, Default)]
pub struct Fold {
    requests: Requests,
    tasks: Tasks,
    client_known: bool,
    /// Questions to the client's model in answers, until calls bring theirs.
    in_answers: Vec<String>,
    stderr: Stderr,
    /// A message that is to come, and what is to be noted of it.
    noted: Option<(String, String)>,
}

impl Fold {
    /// The rows of the next entry.
    pub fn next(&mut self, entry: Entry) -> Vec<Row> {
        match entry {
            Entry::Start { at, mut server_name, server_command, client, .. } => {
                let mut server_command = shell_words(&server_command);
                [&mut server_name, &mut server_command].into_iter().for_each(row::cut);
                let client = client.filter(|client| client.len() <= LONGEST_CLIENT);
                vec![Row::Session { server_name, server_command, started_at: at, client }]
            }
            Entry::Message { id, at, boot, direction, raw, calls, refused, outline, repaired, .. } => {
                let mut notes: Vec<String> = refused.iter().map(|why| format!("refused: {why}")).collect();
                if repaired > 0 {
                    notes.push(format!(
                        "repaired: U+FFFD for {repaired} escapes that are half a surrogate pair"
                    ));
                }
                self.message(id, (at, boot), direction, raw, (calls, outline), (refused, notes))
            }
            Entry::Governed { mut profile, mut enforcement, mut container, .. } => {
                [&mut profile, &mut enforcement].into_iter().chain(&mut container).for_each(row::cut);
                vec![Row::Governed { profile, enforcement, container }]
            }
            Entry::Gap { .. } => vec![Row::Gap],
            Entry::Decision { call, at, boot, mut outcome, mut by } => {
                outcome.other_mut().into_iter().chain(&mut by).for_each(row::cut);
                self.requests.decide(&call, outcome == Recorded::Known(Outcome::Approved));
                vec![Row::Decision { call, outcome, by, at, boot }]
            }
            Entry::Stderr { at, text, dropped } => self.stderr.piece(at, text, dropped).into_iter().collect(),
            Entry::End { at, status } => {
                self.stderr.end(at).into_iter().chain([Row::End { at, status }]).collect()
            }
            Entry::Server { at, key, info } => tools::server(at, key, info).into_iter().collect(),
            Entry::Tools { at, message, tools, more, whole } => {
                match (&mut self.noted, tools::note(&tools, more)) {
                    (Some((of, noted)), Some(note)) if *of == message => {
                        row::cut(noted);
                        *noted += &format!("; {note}");
                    }
                    (noted, Some(note)) => *noted = Some((message, note)),
                    (_, None) => {}
                }
                vec![tools::tools(at, tools, whole)]
            }
            Entry::Note { .. } => Vec::new(),
        }
    }

    fn message(
        &mut self,
        id: String,
        (at, boot): (i64, u64),
        direction: Direction,
        raw: String,
        (mut calls, outline): (Vec<Judged>, Option<Outline>),
        (refused, mut notes): (Option<String>, Vec<String>),
    ) -> Vec<Row> {
        let mut rows = Vec::new();
        if self.noted.as_ref().is_some_and(|(of, _)| *of == id) {
            notes.extend(self.noted.take().map(|(_, note)| note));
        }
        if calls.len() > MOST_IN_LINE {
            notes.push(format!("{} calls; the first {MOST_IN_LINE} are on record", calls.len()));
            calls.truncate(MOST_IN_LINE);
            rows.push(Row::Gap);
        }
        calls.iter_mut().for_each(row::cut_judged);
        let mut row = MessageRow {
            id: id.clone(),
            direction,
            at,
            jsonrpc_id: None,
            method: None,
            params: None,
            result: None,
            error: None,
            raw,
            note: None,
        };
        let raw = std::mem::take(&mut row.raw);
        let mut judged = HashMap::with_capacity(calls.len());
        for call in &calls {
            judged.entry(call.index).or_insert(call);
        }
        match line::read(raw.as_bytes()) {
            Ok(Line::Blank) => {}
            Ok(Line::Message(message)) => {
                let forwarded = refused.is_none();
                self.one(&message, 0, &id, (at, boot), direction, &judged, forwarded, &mut rows, &mut notes);
                row.read(&message);
            }
            Ok(Line::Batch(messages)) => {
                notes.push(format!("a batch of {}", messages.len()));
                if messages.len() > MOST_IN_LINE {
                    notes.push(format!("the first {MOST_IN_LINE} of them are on record"));
                    rows.push(Row::Gap);
                }
                let forwarded =
                    refused.is_none() && calls.iter().all(|call| call.passage() != Passage::Stopped);
                for (index, message) in messages.iter().take(MOST_IN_LINE).enumerate() {
                    let index = u32::try_from(index).unwrap_or(u32::MAX);
                    self.one(
                        message,
                        index,
                        &id,
                        (at, boot),
                        direction,
                        &judged,
                        forwarded,
                        &mut rows,
                        &mut notes,
                    );
                }
            }
            Err(_) if refused.is_some() => {}
            Err(why) => {
                notes.push(format!("not judged: {why}"));
                let outline = outline.or_else(|| line::outline(&raw));
                match direction {
                    Direction::ServerToClient => {
                        let answers = outline.map(|outline| self.unread_answer(&outline, &id, (at, boot)));
                        rows.extend(answers.unwrap_or_default());
                    }
                    // It was forwarded all the same, and may have been a call.
                    Direction::ClientToServer if calls.is_empty() => rows.push(Row::Gap),
                    Direction::ClientToServer => {
                        let alone = outline.filter(|outline| calls.len() == 1 && outline.member == "method");
                        self.unread_request(alone.and_then(|outline| outline.id()), &calls[0], at);
                    }
                }
            }
        }
        Self::unread_calls(&id, (at, boot), calls, refused.is_none(), &mut rows);
        if raw.len() > LONGEST_RAW {
            notes.push(format!(
                "{} bytes; the database has the first {LONGEST_RAW}, the journal all",
                raw.len()
            ));
            let cut = raw.floor_char_boundary(LONGEST_RAW);
            row.raw = raw[..cut].to_owned();
            (row.params, row.result, row.error) = (None, None, None);
        } else {
            row.raw = raw;
        }
        if !notes.is_empty() {
            row.note = Some(notes.join("; "));
        }
        [&mut row.jsonrpc_id, &mut row.method, &mut row.note].into_iter().flatten().for_each(row::cut);
        // The message first: calls and answers refer to it.
        rows.insert(0, Row::Message(Box::new(row)));
        rows
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "one message's place in its line, and where its findings go"
    )]
    fn one(
        &mut self,
        message: &Message<'_>,
        index: u32,
        id: &str,
        (at, boot): (i64, u64),
        direction: Direction,
        judged: &HashMap<u32, &Judged>,
        forwarded: bool,
        rows: &mut Vec<Row>,
        notes: &mut Vec<String>,
    ) {
        match &message.kind {
            Kind::Call(rpc, call) if direction == Direction::ClientToServer => {
                self.client(message, direction, rows);
                let Some(&judged) = judged.get(&index) else {
                    // It was forwarded as what nobody could judge (`--lenient`): only nested too deep for a judge, say.
                    if forwarded && !matches!(rows.last(), Some(Row::Gap)) {
                        rows.push(Row::Gap);
                    }
                    return;
                };
                let arguments = bounded(call.arguments);
                let evidence = Evidence::of(call.meta);
                let row = CallRow::new(judged.clone(), id, (at, boot), forwarded, arguments, evidence);
                // A call that comes again with what its answer asked for.
                if message.params.is_some_and(|params| params.contains("\"inputResponses\"")) {
                    rows.extend(self.in_answers.drain(..).map(|question| Row::Answered { question, at }));
                }
                rows.push(Row::Call(Box::new(row)));
                let uuid = judged.call.clone();
                match judged.passage() {
                    Passage::Held => self.requests.pause(uuid, rpc, at),
                    Passage::Forwarded if forwarded => {
                        if self.requests.add(direction, rpc.clone(), Pending::new(Some(uuid), None, at)) {
                            notes.push("its id is that of a request that was not answered yet".to_owned());
                        }
                    }
                    Passage::Forwarded | Passage::Stopped => {}
                }
            }
            Kind::Call(rpc, _) | Kind::Request(rpc, _) => {
                let asks = direction == Direction::ServerToClient
                    && matches!(&message.kind, Kind::Request(_, method) if method == intent::SAMPLING);
                let question = asks.then(|| id.to_owned());
                if let Some(question) = question.clone() {
                    rows.push(Row::Asked { question, prompt: intent::prompt(message.params) });
                }
                let mut pending = Pending::new(None, question, at);
                if let Kind::Request(_, method) = &message.kind
                    && direction == Direction::ClientToServer
                {
                    pending.task = self.tasks.request(method, message.params);
                }
                if forwarded && self.requests.add(direction, rpc.clone(), pending) {
                    notes.push("its id is that of a request that was not answered yet".to_owned());
                }
                self.client(message, direction, rows);
            }
            Kind::Notification(method) => {
                if method == "notifications/cancelled" && direction == Direction::ClientToServer && forwarded
                {
                    let call = cancelled_id(message.params).and_then(|id| self.requests.cancel(id));
                    rows.extend(call.map(|call| Row::Cancelled { call, at }));
                }
                self.client(message, direction, rows);
            }
            Kind::Response(rpc, outcome) => {
                let asked = match direction {
                    Direction::ClientToServer => Direction::ServerToClient,
                    Direction::ServerToClient => Direction::ClientToServer,
                };
                let pending = match self.requests.answer(asked, rpc.clone()) {
                    Answered::Nothing => {
                        notes.push("answers no request that is known".to_owned());
                        return;
                    }
                    Answered::Unclear => {
                        notes.push("answers one of several requests of one id".to_owned());
                        return;
                    }
                    Answered::Last(pending) => pending,
                };
                if !pending.same.is_empty() {
                    notes.push("answers one of several requests of one id".to_owned());
                    rows.extend(Self::unclear(pending, id, (at, boot)));
                    return;
                }
                match pending {
                    Pending { question: Some(question), .. } => {
                        rows.push(Row::Answered { question, at });
                    }
                    Pending { call: None, task: Some(request), .. } => {
                        let later = self.tasks.later(&request, *outcome);
                        rows.extend(later.map(|later| match later {
                            Later::Cancelled(call) => Row::Cancelled { call, at },
                            Later::Answer(call, answer, result) => {
                                Row::TaskAnswer { call, message: id.to_owned(), answer, result, at }
                            }
                        }));
                    }
                    Pending { call: None, .. } => {}
                    Pending { call: Some(call), at: began, is_cancelled, .. } => {
                        let answer = self.tasks.answer(&call, is_cancelled, *outcome);
                        rows.push(Row::Answer {
                            call,
                            message: id.to_owned(),
                            result: outcome.ok().map(bounded),
                            error: outcome.err().map(bounded),
                            at,
                            duration_ms: at.saturating_sub(began).max(0) / 1000,
                            ended: boot,
                            answer,
                        });
                        for (key, params) in outcome.map(intent::asked_in_result).unwrap_or_default() {
                            let question = if key.len() > LONGEST_ID {
                                format!("{id} {}", sha256(key.as_bytes()))
                            } else {
                                format!("{id} {key}")
                            };
                            if self.in_answers.len() < MOST_QUESTIONS {
                                self.in_answers.push(question.clone());
                                rows.push(Row::Asked { question, prompt: intent::prompt(params.as_deref()) });
                            }
                        }
                    }
                }
            }
        }
    }

    /// An answer that cannot be read is one all the same: the server's strange JSON, or a text that the journal has a part
    /// of.
    fn unread_answer(&mut self, outline: &Outline, message: &str, (at, ended): (i64, u64)) -> Vec<Row> {
        let Some(id) = outline.id().filter(|_| outline.member != "method") else { return Vec::new() };
        let Answered::Last(pending) = self.requests.answer(Direction::ClientToServer, id) else {
            return Vec::new();
        };
        if !pending.same.is_empty() {
            return Self::unclear(pending, message, (at, ended));
        }
        let Pending { call: Some(call), at: began, .. } = pending else { return Vec::new() };
        let text =
            json!({ "ringfence_unread": "this answer cannot be read; the message has what is there of it" });
        let (result, error, answer) = match outline.member.as_str() {
            "error" => (None, Some(text.to_string()), Outcome::Error),
            _ => (Some(text.to_string()), None, Outcome::Answered),
        };
        let duration_ms = at.saturating_sub(began).max(0) / 1000;
        vec![Row::Answer { call, message: message.to_owned(), result, error, at, duration_ms, ended, answer }]
    }

    /// Requests of one id are all in flight until as many answers came: which answer is which request's is the server's to
    /// know, and what a process does meanwhile may be for any of them.
    fn unclear(pending: Pending, message: &str, (at, ended): (i64, u64)) -> Vec<Row> {
        let Pending { call, at: began, same, .. } = pending;
        let text = json!({
            "ringfence_unclear": "several calls of one id were in flight; which answer is whose cannot be told"
        })
        .to_string();
        let calls = same.into_iter().chain(call.map(|call| (call, began)));
        let row = |(call, began): (String, i64)| Row::Answer {
            call,
            message: message.to_owned(),
            result: Some(text.clone()),
            error: None,
            at,
            duration_ms: at.saturating_sub(began).max(0) / 1000,
            ended,
            answer: Outcome::Answered,
        };
        calls.map(row).collect()
    }

    /// A call whose text cannot be read waits for its answer like any other.
    fn unread_request(&mut self, id: Option<Id>, judged: &Judged, at: i64) {
        let Some(id) = id else { return };
        match judged.passage() {
            Passage::Stopped => {}
            Passage::Held => self.requests.pause(judged.call.clone(), &id, at),
            Passage::Forwarded => {
                let pending = Pending::new(Some(judged.call.clone()), None, at);
                self.requests.add(Direction::ClientToServer, id, pending);
            }
        }
    }

    /// Rows of the calls that the interceptor judged and that are not found in what the journal has of their line: a
    /// call is on record even where its text is not.
    fn unread_calls(
        message: &str,
        time: (i64, u64),
        calls: Vec<Judged>,
        forwarded: bool,
        rows: &mut Vec<Row>,
    ) {
        let named = |row: &Row| match row {
            Row::Call(call) => Some(call.judged.call.clone()),
            _ => None,
        };
        let mut found: HashSet<String> = rows.iter().filter_map(named).collect();
        for judged in calls {
            if !found.insert(judged.call.clone()) {
                continue;
            }
            let arguments =
                json!({ "ringfence_unread": "the journal's text of this call cannot be read" }).to_string();
            let row = CallRow::new(judged, message, time, forwarded, arguments, Evidence::default());
            rows.push(Row::Call(Box::new(row)));
        }
    }

    /// Who the client is: in `initialize`, or in each request's `_meta` where there is no handshake.
    fn client(&mut self, message: &Message<'_>, direction: Direction, rows: &mut Vec<Row>) {
        if self.client_known || direction != Direction::ClientToServer {
            return;
        }
        let params = message.params.and_then(object::<Params<'_>>).unwrap_or_default();
        let meta = params.meta.and_then(|meta| object::<Meta<'_>>(meta.get())).unwrap_or_default();
        if let Some(info) = params.info.or(meta.namespaced).or(meta.plain) {
            self.client_known = true;
            rows.push(Row::Client { info: row::client(info.get()) });
        }
    }
}

/// The client's name in a message's params. The rest may be of any length, and is not parsed.
#[derive(Debug, Default, Deserialize)]
struct Params<'a> {
    #[serde(borrow, default, rename = "clientInfo")]
    info: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/clientInfo")]
    namespaced: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "clientInfo")]
    plain: Option<&'a RawValue>,
}

/// The request that a notification cancels.
fn cancelled_id(params: Option<&str>) -> Option<Id> {
    #[derive(Deserialize)]
    struct Cancelled<'a> {
        #[serde(borrow, rename = "requestId")]
        id: &'a RawValue,
    }
    Id::parse(object::<Cancelled<'_>>(params?)?.id.get())
}

/// A JSON object as `T`; a list is not, whatever is in it.
fn object<'a, T: Deserialize<'a>>(json: &'a str) -> Option<T> {
    let is_object = json.trim_start().starts_with('{');
    if is_object { serde_json::from_str(json).ok() } else { None }
}

/// A command as one would type it; for people, not for running.
fn shell_words(command: &[String]) -> String {
    let quote = |word: &String| {
        let plain =
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=:@,+%".contains(&b));
        if plain { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    command.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
