//! Credentials of which a stream's events have pieces. Pure.
//!
//! A client joins what it is given of one text, or of one call's arguments. So an event that ends in what could be a
//! credential's beginning waits, and all behind it, until the next event says what it is. Only where it is one is anything
//! changed; else what goes out is what came.

use crate::{
    provider::{Wire, endpoint, sse::Event},
    redact::{REDACTED, Redactor},
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod parts;

use parts::{Part, TEXT};

/// Most events that wait, and most bytes of those behind the first. What is not decided by then goes out.
const MOST: usize = 64;
const MOST_BYTES: usize = 256 << 10;
/// Most fields whose ends are undecided at a time: each is part of an event that a client is to join.
const MOST_FIELDS: usize = 1024;
/// Fields that are said once, or again as a whole: nobody joins them.
const NOT_JOINED: [&str; 4] = ["type", "role", "id", "name"];
/// Fields that are pieces of JSON.
const JSON: [&str; 2] = ["arguments", "partial_json"];

/// Why a stream breaks off.
const SPLIT: &str = "the provider sent a credential of this agent's in pieces that are kept apart";
const BACK: &str = "the provider sent pieces of an earlier text behind those of a later one";
const TOO_MANY: &str = "the provider sent pieces of too many fields at once";

/// A field that clients join: which choice has it, and where it is there.
type Key = (u64, String);

/// A stream's events on their way out.
#[derive(Debug, Default)]
pub(crate) struct SplitSecrets {
    waiting: VecDeque<Event>,
    /// Bytes of them.
    bytes: usize,
    /// How many went out: the number of the first that waits.
    gone: usize,
    /// Fields that end in what could be the beginning of a credential.
    fields: BTreeMap<Key, Field>,
    /// Which item's part the newest text is of, where an answer has parts.
    newest: (u64, u64),
}

/// A field whose end is undecided.
#[derive(Debug, Default)]
struct Field {
    /// What of that went out.
    sent: String,
    /// What of it waits.
    pieces: Vec<Piece>,
}

/// A piece of a field.
#[derive(Debug)]
struct Piece {
    /// The number of its event.
    event: usize,
    /// Where in the event it is.
    pointer: String,
    /// What of it is undecided: its end.
    text: String,
}

impl Field {
    fn joined(&self) -> String {
        self.pieces.iter().fold(self.sent.clone(), |all, piece| all + &piece.text)
    }

    /// It is not waited for any more.
    fn settle(&mut self, redactor: &Redactor) {
        let mut sent = self.joined();
        // What nobody continues for long is no beginning.
        let from = sent.ceil_char_boundary(sent.len().saturating_sub(redactor.longest_beginning()));
        self.sent = sent.split_off(from);
        self.pieces.clear();
    }
}

impl SplitSecrets {
    /// Bytes that it holds.
    pub(super) fn held(&self) -> usize {
        self.bytes
    }

    /// Takes an event that is to go out, and gives those that may, into `out`.
    ///
    /// # Errors
    /// A credential, of which the client has a part already.
    pub(super) fn pass(
        &mut self,
        wire: Wire,
        (event, read): (Event, &Value),
        redactor: &Redactor,
        out: &mut Vec<u8>,
    ) -> Result<(), String> {
        let number = self.gone + self.waiting.len();
        self.bytes += event.name.len() + event.data.len();
        let ends = event.name == "error" || read.get("error").is_some_and(|error| !error.is_null());
        self.waiting.push_back(event);
        endpoint(wire).hold_back(self, (number, read), redactor)?;
        let behind = self.bytes - self.waiting.front().map_or(0, |first| first.data.len());
        if ends || self.waiting.len() > MOST || behind > MOST_BYTES {
            self.settle(redactor, |_| true);
        }
        self.go(out);
        Ok(())
    }

    /// Gives all that waits: nothing follows that could continue it.
    pub(super) fn finish(&mut self, out: &mut Vec<u8>) {
        self.fields.clear();
        self.go(out);
    }

    /// Of Anthropic's events.
    pub(crate) fn block(&mut self, number: usize, read: &Value, redactor: &Redactor) -> Result<(), String> {
        let at = match read.get("type").and_then(Value::as_str) {
            Some("content_block_start") => "content_block",
            Some("content_block_delta") => "delta",
            Some("content_block_stop") => {
                self.over(redactor);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if at == "content_block" {
            self.over(redactor);
        }
        let seen = self.leaves((number, 0), read, At::of(&format!("/{at}")), redactor)?;
        self.settle(redactor, |key| !seen.contains(key));
        Ok(())
    }

    /// A block is over. Some clients join the texts of all.
    fn over(&mut self, redactor: &Redactor) {
        self.settle(redactor, |_| true);
        self.fields.retain(|(_, path), _| path == "/text");
    }

    /// Of OpenAI's events.
    pub(crate) fn choices(&mut self, number: usize, read: &Value, redactor: &Redactor) -> Result<(), String> {
        let choices = read.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (place, choice) in choices.iter().enumerate() {
            let of = choice.get("index").and_then(Value::as_u64).unwrap_or(place as u64);
            let pointer = format!("/choices/{place}/delta");
            let seen = self.leaves((number, of), read, At::of(&pointer), redactor)?;
            let reason = choice.get("finish_reason").and_then(Value::as_str);
            let is_over = reason.is_some_and(|reason| !reason.is_empty());
            let newest = seen.iter().filter_map(|(_, path)| call(path)).max();
            // Some clients run a call when the next one begins.
            let is_past =
                |path: &str| newest.is_some_and(|newest| call(path).is_some_and(|call| call < newest));
            self.settle(redactor, |key| key.0 == of && (is_over || !seen.contains(key) || is_past(&key.1)));
        }
        Ok(())
    }

    /// Of the events of OpenAI's newer form. A part may begin with some of its text, which some clients extend.
    pub(crate) fn parts(&mut self, number: usize, read: &Value, redactor: &Redactor) -> Result<(), String> {
        // In one text alone it is taken out already.
        if !redactor.found(&parts::whole_text(read), false).0.is_empty() {
            return Err(SPLIT.to_owned());
        }
        let mut seen = BTreeSet::new();
        for Part { family, place, pointer } in parts::of(read) {
            // Some clients join the texts of all parts.
            let of = if family == TEXT { 0 } else { place.0.saturating_add(1) };
            let path = if family == TEXT { TEXT.to_owned() } else { format!("{family}/{}", place.1) };
            if family == TEXT && place < self.newest {
                return Err(BACK.to_owned());
            }
            if family == TEXT {
                self.newest = place;
            }
            let at = At { path, pointer, is_json: family.contains("arguments") };
            seen.extend(self.leaves((number, of), read, at, redactor)?);
        }
        self.settle(redactor, |key| !seen.contains(key));
        if let Some(over) = parts::over(read) {
            self.fields.retain(|(of, _), _| *of != over.saturating_add(1));
        }
        Ok(())
    }

    /// Of Gemini's events. Clients join the texts of all parts, and those of what was thought; a call is whole.
    pub(crate) fn candidates(
        &mut self,
        number: usize,
        read: &Value,
        redactor: &Redactor,
    ) -> Result<(), String> {
        let candidates = read.get("candidates").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (place, candidate) in candidates.iter().enumerate() {
            let of = candidate.get("index").and_then(Value::as_u64).unwrap_or(place as u64);
            let parts = candidate.pointer("/content/parts").and_then(Value::as_array);
            let mut seen = BTreeSet::new();
            for (nth, part) in parts.map_or(&[][..], Vec::as_slice).iter().enumerate() {
                let is_thought = part.get("thought").and_then(Value::as_bool).unwrap_or(false);
                let path = if is_thought { "/thought" } else { "/text" }.to_owned();
                let pointer = format!("/candidates/{place}/content/parts/{nth}/text");
                seen.extend(self.leaves(
                    (number, of),
                    read,
                    At { path, pointer, is_json: false },
                    redactor,
                )?);
            }
            let reason = candidate.get("finishReason").and_then(Value::as_str);
            let is_over = reason.is_some_and(|reason| !reason.is_empty());
            self.settle(redactor, |key| key.0 == of && (is_over || !seen.contains(key)));
        }
        Ok(())
    }

    /// Looks at all texts below a place of an event. Gives the fields among them that are undecided, or were.
    fn leaves(
        &mut self,
        (number, of): (usize, u64),
        read: &Value,
        mut at: At,
        redactor: &Redactor,
    ) -> Result<BTreeSet<Key>, String> {
        let mut seen = BTreeSet::new();
        let Some(value) = read.pointer(&at.pointer) else { return Ok(seen) };
        each(value, &mut at, &mut |at, text| {
            if text.is_empty() {
                return Ok(());
            }
            let key = (of, at.path.clone());
            if self.field(key.clone(), (number, at, text), redactor)? {
                seen.insert(key);
            }
            Ok(())
        })?;
        Ok(seen)
    }

    /// A piece of a field; whether its end is undecided, or was.
    fn field(
        &mut self,
        key: Key,
        (number, at, text): (usize, &At, &str),
        redactor: &Redactor,
    ) -> Result<bool, String> {
        let event = |text: &str| Piece { event: number, pointer: at.pointer.clone(), text: text.to_owned() };
        let Some(mut field) = self.fields.remove(&key) else {
            let (found, decided) = redactor.found(text, at.is_json);
            let mut piece = event(text);
            if !found.is_empty() {
                self.replace(&piece, &without(text, (0, text.len()), &found));
            }
            piece.text.drain(..decided);
            let is_undecided = !piece.text.is_empty();
            if is_undecided {
                self.keep(key, Field { sent: String::new(), pieces: vec![piece] })?;
            }
            return Ok(is_undecided);
        };
        let joined = field.joined() + text;
        let (found, decided) = redactor.found(&joined, at.is_json);
        if found.iter().any(|(from, _)| *from < field.sent.len()) {
            return Err(SPLIT.to_owned());
        }
        field.pieces.push(event(text));
        let mut from = field.sent.len();
        for piece in &mut field.pieces {
            let end = from + piece.text.len();
            if found.iter().any(|(at, to)| *at < end && *to > from) {
                self.replace(piece, &without(&joined, (from, end), &found));
            }
            // What is decided is as it stays.
            let keep = decided.clamp(from, end) - from;
            piece.text.drain(..keep);
            from = end;
        }
        field.pieces.retain(|piece| !piece.text.is_empty());
        field.sent.drain(..decided.min(field.sent.len()));
        if !(field.sent.is_empty() && field.pieces.is_empty()) {
            self.keep(key, field)?;
        }
        Ok(true)
    }

    fn keep(&mut self, key: Key, field: Field) -> Result<(), String> {
        self.fields.insert(key, field);
        if self.fields.len() > MOST_FIELDS { Err(TOO_MANY.to_owned()) } else { Ok(()) }
    }

    /// Puts another text in the place of a piece's undecided end, in its event.
    fn replace(&mut self, piece: &Piece, with: &str) {
        let Some(event) = piece.event.checked_sub(self.gone).and_then(|at| self.waiting.get_mut(at)) else {
            return;
        };
        let Ok(mut data) = serde_json::from_str::<Value>(&event.data) else { return };
        if let Some(Value::String(text)) = data.pointer_mut(&piece.pointer) {
            text.truncate(text.len().saturating_sub(piece.text.len()));
            text.push_str(with);
        }
        self.bytes -= event.data.len();
        event.data = super::strict_json::in_one_line(&data.to_string()).into_owned();
        self.bytes += event.data.len();
    }

    /// Does not wait for those fields any more. Whoever continues one of them none the less is found out.
    fn settle(&mut self, redactor: &Redactor, mut which: impl FnMut(&Key) -> bool) {
        self.fields.iter_mut().filter(|(key, _)| which(key)).for_each(|(_, field)| field.settle(redactor));
    }

    /// Gives the events for which nothing waits.
    fn go(&mut self, out: &mut Vec<u8>) {
        let first = self.fields.values().flat_map(|field| &field.pieces).map(|piece| piece.event).min();
        let many = first.map_or(self.waiting.len(), |first| first - self.gone);
        for Event { name, data } in self.waiting.drain(..many) {
            self.bytes -= name.len() + data.len();
            if !name.is_empty() {
                out.extend_from_slice(format!("event: {name}\n").as_bytes());
            }
            out.extend_from_slice(b"data: ");
            out.extend_from_slice(data.as_bytes());
            out.extend_from_slice(b"\n\n");
        }
        self.gone += many;
    }
}

/// Which of a choice's calls a field belongs to.
fn call(path: &str) -> Option<u64> {
    path.strip_prefix("/tool_calls/")?.split('/').next()?.parse().ok()
}

/// A part of a text without credentials. One that is in several parts is told of in the first.
fn without(joined: &str, (from, end): (usize, usize), found: &[(usize, usize)]) -> String {
    let (mut out, mut at) = (String::new(), from);
    for (begin, to) in found.iter().filter(|(begin, to)| *begin < end && *to > from) {
        if *begin >= from {
            out.push_str(&joined[at..*begin]);
            out.push_str(REDACTED);
        }
        at = (*to).min(end);
    }
    out + &joined[at..end]
}

/// Where a text is.
struct At {
    /// As clients find what it continues: in lists, by its index.
    path: String,
    /// In its event.
    pointer: String,
    is_json: bool,
}

impl At {
    /// A place in an event below which fields have paths of their own.
    fn of(pointer: &str) -> Self {
        Self { path: String::new(), pointer: pointer.to_owned(), is_json: false }
    }
}

/// Hands each text below a value to `to`.
fn each(
    value: &Value,
    at: &mut At,
    to: &mut impl FnMut(&At, &str) -> Result<(), String>,
) -> Result<(), String> {
    let (path, pointer, was_json) = (at.path.len(), at.pointer.len(), at.is_json);
    match value {
        Value::String(text) => to(at, text)?,
        Value::Array(items) => {
            for (place, item) in items.iter().enumerate() {
                let index = item.get("index").and_then(Value::as_u64).unwrap_or(place as u64);
                at.path.push_str(&format!("/{index}"));
                at.pointer.push_str(&format!("/{place}"));
                each(item, at, to)?;
                at.path.truncate(path);
                at.pointer.truncate(pointer);
            }
        }
        Value::Object(fields) => {
            for (key, item) in fields.iter().filter(|(key, _)| !NOT_JOINED.contains(&key.as_str())) {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                at.path.push_str(&format!("/{escaped}"));
                at.pointer.push_str(&format!("/{escaped}"));
                at.is_json = JSON.contains(&key.as_str());
                each(item, at, to)?;
                at.path.truncate(path);
                at.pointer.truncate(pointer);
                at.is_json = was_json;
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
