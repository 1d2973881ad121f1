//! An answer on its way to the client: event by event, without the agent's credentials, read along for the record. Pure.
//!
//! What goes out is what was read, written anew: a client that reads bytes in another way than this finds nothing else.

use super::{request, strict_json, tool_calls::ToolCalls};
use crate::{
    message::{Block, ToolCall},
    provider::{
        Decode, Usage, Wire, endpoint, reported_error,
        sse::{Event, Events, Read},
    },
    redact::Redactor,
};
use serde_json::{Value, value::RawValue};
use split_secrets::SplitSecrets;
use std::collections::VecDeque;

pub(crate) mod split_secrets;

/// What an answer may say of its form.
pub(super) const STREAM: &str = "text/event-stream; charset=utf-8";
pub(super) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// Why an answer is not read: as values it would take more memory than there is.
const HEAVY: &str = "the provider sent JSON of too many values";

/// Bytes of a whole answer that are read as a stream at a time.
const PIECE: usize = 64 << 10;

/// What an answer came to, as far as it was understood.
#[derive(Debug, Default)]
pub struct Outcome {
    pub(super) stop_reason: Option<String>,
    pub(super) content: Vec<Block>,
    /// The tool calls in it.
    pub tool_calls: Vec<ToolCall>,
    pub(super) usage: Option<Usage>,
    /// Bytes of the model's words.
    pub(super) text_bytes: usize,
    /// Why it is no whole answer.
    pub(super) error: Option<String>,
    /// Why the client is not to have it.
    pub refused: Option<String>,
    /// It ended before its final event, and the client was not told that the provider failed.
    pub is_cut: bool,
}

/// A whole answer as it goes on.
#[derive(Debug)]
pub struct Whole {
    /// What the client gets.
    pub body: Vec<u8>,
    /// Its content type.
    pub(super) form: &'static str,
    /// What the record gets.
    pub outcome: Outcome,
}

/// An answer to a client.
pub struct Relay {
    wire: Wire,
    hides_usage: bool,
    events: Events,
    decoder: Option<Box<dyn Decode>>,
    usage: Option<Usage>,
    text_bytes: usize,
    /// The same of what it says once more as a whole.
    whole_bytes: usize,
    error: Option<String>,
    /// The client was told that the provider failed: it waits for no final event.
    told_failure: bool,
    /// The tool calls that a client may find in it.
    tool_calls: ToolCalls,
    /// What is on its way out.
    split_secrets: SplitSecrets,
    /// An event that may be the answer's last one, where its API has none that is: it goes out when another comes, or with the
    /// end.
    ending: Vec<u8>,
}

impl Relay {
    /// `hides_usage`: what is said of the usage alone is not the client's. `has_many`: several answers were asked for.
    pub fn new(wire: Wire, hides_usage: bool, has_many: bool) -> Self {
        Self {
            wire,
            hides_usage,
            events: Events::default(),
            decoder: Some(endpoint(wire).decoder()),
            usage: None,
            text_bytes: 0,
            whole_bytes: 0,
            error: None,
            told_failure: false,
            tool_calls: ToolCalls::new(has_many),
            split_secrets: SplitSecrets::default(),
            ending: Vec::new(),
        }
    }

    /// Whose answer it is.
    pub(super) fn wire(&self) -> Wire {
        self.wire
    }

    /// Bytes that it holds of a stream: of what it reads, of what it is to tell, and of what waits to go out.
    pub(super) fn held(&self) -> usize {
        let decoder = self.decoder.as_ref().map_or(0, |decoder| decoder.held());
        let out = self.split_secrets.held() + self.ending.len();
        self.events.held() + decoder + self.tool_calls.held() + out
    }

    /// How many tool calls began since this was asked last: a client may run one before the answer is whole.
    pub(super) fn started(&mut self) -> usize {
        self.tool_calls.fresh()
    }

    /// The calls that became complete since this was asked last, each with its place in [`Outcome::tool_calls`]: a client may
    /// run them once it has what was fed. They do not change any more.
    pub(super) fn completed(&mut self) -> Vec<(usize, ToolCall)> {
        self.tool_calls.completed()
    }

    /// Whether its final event was read: clients do not wait for anything behind it.
    pub(super) fn is_over(&self) -> bool {
        self.tool_calls.is_over()
    }

    /// Takes bytes of a stream in; gives the events that are whole. What is behind the final one is nothing.
    ///
    /// # Errors
    /// An event without end, or that parsers may read differently; too many tool calls. What waited goes to nobody then.
    pub fn feed(&mut self, bytes: &[u8], redactor: &Redactor) -> Result<Vec<u8>, String> {
        self.read(bytes, redactor).inspect_err(|_| {
            self.split_secrets = SplitSecrets::default();
            self.ending.clear();
        })
    }

    fn read(&mut self, bytes: &[u8], redactor: &Redactor) -> Result<Vec<u8>, String> {
        let (mut reads, mut out) = (Vec::new(), Vec::new());
        let read = if self.is_over() { Ok(()) } else { self.events.read(bytes, |read| reads.push(read)) };
        for read in reads {
            if self.is_over() {
                break;
            }
            match read {
                Read::Event(event) => self.event(event, redactor, &mut out)?,
                // It stands in for nothing, and keeps a connection open.
                Read::Comment => self.comment(&mut out),
                // Some clients forgive a byte order mark at each line, or read lines that are no event's.
                Read::Odd => {
                    return Err("the provider sent a line in a stream that is none of an event".into());
                }
            }
        }
        match read {
            Err(error) if !self.is_over() => Err(format!("the provider sent {error}")),
            _ => Ok(out),
        }
    }

    /// What is left of a stream, and what the answer came to. `is_whole`: it did not break off.
    pub fn finish(mut self, is_whole: bool, redactor: &Redactor) -> (Vec<u8>, Outcome) {
        // Some servers leave out the last empty line; and some clients do not wait for it.
        let mut rest = if is_whole { self.feed(b"\n\n", redactor) } else { Ok(Vec::new()) };
        if let Ok(rest) = &mut rest {
            // Of what breaks off nothing says why it ended.
            if is_whole {
                rest.append(&mut self.ending);
            }
            self.split_secrets.finish(rest);
        }
        // Many clients take the end of the connection for the end of the answer.
        let is_cut = is_whole && !self.is_over() && !self.told_failure && !self.tool_calls.may_end();
        let (rest, refused) = match rest {
            Ok(rest) => (rest, self.tool_calls.complete().err()),
            Err(why) => (Vec::new(), Some(why)),
        };
        let reported = self.decoder.as_ref().and_then(|decoder| decoder.reported_usage());
        let mut outcome = Outcome {
            usage: reported.or(self.usage),
            text_bytes: self.text_bytes.max(self.whole_bytes),
            error: self.error,
            refused,
            is_cut,
            ..Outcome::default()
        };
        match self.decoder.map(|decoder| (decoder.may_end(), decoder.finish())) {
            Some((true, Ok(answer))) => {
                outcome.stop_reason = Some(answer.stop_reason);
                outcome.content = answer.content;
            }
            Some((true, Err(error))) => outcome.error = outcome.error.or(Some(error.message)),
            Some((false, _)) => {
                outcome.error = outcome.error.or_else(|| Some(CUT.to_owned()));
            }
            None => {}
        }
        outcome.tool_calls = self.tool_calls.finish();
        (rest, outcome)
    }

    /// Reads an event along, and writes it anew: its name, and its data as one line.
    ///
    /// # Errors
    /// It has more tool calls than are relayed, or is none of which each client reads the same.
    fn event(&mut self, event: Event, redactor: &Redactor, out: &mut Vec<u8>) -> Result<(), String> {
        let Event { name, data } = event;
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the provider sent an event with a name that is none".into());
        }
        let name = redactor.text(&name).into_owned();
        let data = match data.trim_ascii() {
            "" => {
                self.comment(out);
                return Ok(());
            }
            "[DONE]" if endpoint(self.wire).ends_by_event() => {
                self.decode(&Event { name, data: "[DONE]".into() });
                self.tool_calls.over()?;
                self.split_secrets.finish(out);
                out.extend_from_slice(b"data: [DONE]\n\n");
                return Ok(());
            }
            _ => RawValue::from_string(data).map_err(|_| "the provider sent an event that is no JSON")?,
        };
        if !strict_json::is_light(data.get().as_bytes()) {
            return Err(HEAVY.to_owned());
        }
        // An escape could hide a credential.
        let clean = redactor.json(data);
        let mut read =
            strict_json::read(clean.get()).inspect_err(|_| self.text_bytes += clean.get().len())?;
        if !read.is_object() {
            return Err("the provider sent an event that is no JSON object".into());
        }
        let endpoint = endpoint(self.wire);
        self.text_bytes += endpoint.text_bytes(&read);
        self.whole_bytes += endpoint.whole_bytes(&read);
        let begun = self.tool_calls.event(self.wire, &name, &read);
        let agrees = self.tool_calls.agrees(redactor);
        let rewritten = self.tool_calls.rewrite(&mut read).then(|| read.to_string());
        let data = strict_json::in_one_line(rewritten.as_deref().unwrap_or(clean.get())).into_owned();
        let event = Event { name, data };
        self.decode(&event);
        begun.and(agrees)?;
        let is_failure = matches!(read["type"].as_str(), Some("error" | "response.failed"));
        self.told_failure |= is_failure || reported_error(&read).is_some();
        let (usage, is_alone) = endpoint.event_usage(&read);
        self.usage = usage.or(self.usage);
        if self.hides_usage && is_alone {
            return Ok(());
        }
        out.append(&mut self.ending);
        let mut passed = Vec::new();
        self.split_secrets.pass(self.wire, (event, &read), redactor, &mut passed)?;
        if self.tool_calls.may_end() {
            self.ending = passed.split_off(last_event(&passed));
        }
        out.append(&mut passed);
        if self.is_over() {
            self.split_secrets.finish(out);
        }
        Ok(())
    }

    /// What keeps a connection open, for clients that know it.
    fn comment(&self, out: &mut Vec<u8>) {
        if endpoint(self.wire).ends_by_event() {
            out.extend_from_slice(b":\n\n");
        }
    }

    /// What it says piece by piece goes to nobody: the bytes do.
    fn decode(&mut self, event: &Event) {
        let Some(decoder) = self.decoder.as_mut().filter(|decoder| !decoder.is_done()) else { return };
        let mut pieces = VecDeque::new();
        if let Err(error) = decoder.event(event, &mut pieces) {
            self.error.get_or_insert(error.message);
            self.decoder = None;
        }
    }

    /// A whole answer, of which nothing was fed: JSON, or a stream that does not say that it is one. A client that asked for
    /// a stream reads one, whatever the answer says of itself. What is neither has nothing that a client could run only if it
    /// `is_error`: a page of a proxy.
    pub fn whole(mut self, is_error: bool, body: &[u8], redactor: &Redactor) -> Whole {
        if body.trim_ascii().is_empty() {
            return Whole { body: Vec::new(), form: JSON, outcome: Outcome::default() };
        }
        if let Ok(text) = str::from_utf8(body)
            && let Ok(raw) = RawValue::from_string(text.to_owned())
        {
            return self.json(is_error, raw, redactor);
        }
        let mut out = Vec::new();
        let fed = body.chunks(PIECE).try_for_each(|piece| {
            out.extend(self.feed(piece, redactor)?);
            Ok(())
        });
        let (rest, mut outcome) = self.finish(fed.is_ok(), redactor);
        out.extend(rest);
        outcome.refused = fed.err().or(outcome.refused);
        let text = String::from_utf8_lossy(body);
        if is_error && outcome.refused.is_some() && is_harmless(&text) {
            let body = redactor.text(&text).into_owned().into_bytes();
            return Whole { body, form: TEXT, outcome: Outcome::default() };
        }
        Whole { body: out, form: STREAM, outcome }
    }

    /// A whole answer in JSON.
    fn json(mut self, is_error: bool, raw: Box<RawValue>, redactor: &Redactor) -> Whole {
        let text_bytes = raw.get().len();
        if !strict_json::is_light(raw.get().as_bytes()) {
            let outcome = Outcome { refused: Some(HEAVY.to_owned()), text_bytes, ..Outcome::default() };
            return Whole { body: Vec::new(), form: JSON, outcome };
        }
        let clean = redactor.json(raw);
        // What is JSON by its form alone.
        let (mut value, mut refused) = match strict_json::read(clean.get()) {
            Ok(value) => (value, None),
            Err(why) => (Value::Null, Some(why)),
        };
        if !is_error && !value.is_object() {
            refused.get_or_insert_with(|| "the provider sent an answer that is no JSON object".into());
        }
        let endpoint = endpoint(self.wire);
        let mut read = self.tool_calls.read(self.wire, &value).and_then(|()| self.tool_calls.complete());
        // An error may echo what the client sent.
        if !is_error {
            read = read.and_then(|()| endpoint.check_answer(&value));
        }
        let rewritten = self.tool_calls.rewrite(&mut value).then(|| value.to_string());
        refused = refused.or(read.err());
        let outcome = Outcome {
            stop_reason: endpoint.stop_reason(&value),
            // One that is refused may have anything in it.
            content: if refused.is_some() { Vec::new() } else { endpoint.content(&value) },
            usage: endpoint.usage(&value),
            error: value.pointer("/error/message").and_then(Value::as_str).map(str::to_owned),
            refused,
            is_cut: false,
            tool_calls: self.tool_calls.finish(),
            text_bytes,
        };
        let body =
            strict_json::in_one_line(rewritten.as_deref().unwrap_or(clean.get())).into_owned().into_bytes();
        Whole { body, form: JSON, outcome }
    }
}

/// Where the last of some events begins.
fn last_event(events: &[u8]) -> usize {
    let before = events.strip_suffix(b"\n\n").unwrap_or(events);
    before.windows(2).rposition(|two| two == b"\n\n").map_or(0, |end| end + 2)
}

/// Why a stream is none that came to its end.
pub(super) const CUT: &str = "the provider's stream ended before its final event";

/// What a stream says of why it breaks off, as its provider would.
pub(super) fn error(wire: Wire, why: &str) -> Vec<u8> {
    let (name, data) = request::error_event(wire, 503, why);
    format!("{name}data: {data}\n\n").into_bytes()
}

/// Whether no client finds JSON or an event in a text: in whatever encoding, and whatever ends a line for it.
fn is_harmless(text: &str) -> bool {
    let begin = |line: &str| {
        let is_skipped = |c: char| {
            c.is_whitespace() || c.is_control() || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{fffd}')
        };
        line.trim_start_matches(is_skipped).to_owned()
    };
    let is_end = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    !text.contains('\0')
        && !begin(text).starts_with(['{', '['])
        && text.split(is_end).all(|line| !begin(line).starts_with("data:"))
}

#[cfg(test)]
mod tests;
