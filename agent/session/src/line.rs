//! One line of MCP's stdio transport: what it is, and what in it cannot be judged. Pure: no I/O.

use super::{
    rough,
    strict::{self, Ambiguity, Members},
};
use memchr::memmem::Finder;
use ringfence_wire::depth;
use serde_json::value::RawValue;
use std::{borrow::Cow, sync::LazyLock};

/// Longest configuration of a client, bytes.
pub const MAX_CONFIG: usize = 4 << 20;
/// Keys of a message that somebody acts on.
const MESSAGE_KEYS: &[&str] = &["jsonrpc", "id", "method", "params", "result", "error"];
/// Keys of a tool call's params that somebody acts on.
const CALL_KEYS: &[&str] = &["name", "arguments", "_meta"];

/// A request's or response's id, with its JSON type: `1` and `"1"` are two ids.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Id {
    /// A string, unescaped.
    String(String),
    /// A number: whole numbers that a double holds exactly in one spelling (`1.0` is `1`, `-0` is `0`), others as written.
    Number(String),
    /// `null`.
    Null,
}

impl Id {
    /// Reads an id; `None` for what no id can be (arrays, objects, booleans).
    pub fn parse(text: &str) -> Option<Self> {
        /// Digits of numbers that a double holds exactly, however they go on.
        const SHORT: usize = 15;
        // Nearly every id.
        if text.len() <= SHORT && !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return (!text.is_empty()).then(|| Self::Number(text.to_owned()));
        }
        match serde_json::from_str::<serde_json::Value>(text).ok()? {
            serde_json::Value::String(text) => Some(Self::String(text)),
            serde_json::Value::Null => Some(Self::Null),
            serde_json::Value::Number(number) => {
                const EXACT: u64 = 1 << 53;
                if let Some(whole) = number.as_u64().filter(|whole| *whole < EXACT) {
                    return Some(Self::Number(whole.to_string()));
                }
                match number.as_f64() {
                    // Plus zero, since the zero of most languages has no sign.
                    Some(n) if n.fract() == 0.0 && n.abs() < EXACT as f64 => {
                        Some(Self::Number(format!("{:.0}", n + 0.0)))
                    }
                    _ => Some(Self::Number(text.to_owned())),
                }
            }
            _ => None,
        }
    }

    /// The id as JSON text, for an answer of our own.
    pub fn to_json(&self) -> String {
        match self {
            Self::String(text) => serde_json::Value::from(text.as_str()).to_string(),
            Self::Number(text) => text.clone(),
            Self::Null => "null".to_owned(),
        }
    }

    /// An answer of our own under it: its `result` or `error`. Ends with a newline. The id goes in as text: a number
    /// beyond 2^53 must come back as it was.
    pub fn answer(&self, key: &str, value: &serde_json::Value) -> String {
        format!("{{\"jsonrpc\":\"2.0\",\"id\":{},\"{key}\":{value}}}\n", self.to_json())
    }
}

/// A `tools/call` request.
#[derive(Debug)]
pub struct Call<'a> {
    /// The tool's name as sent.
    pub name: String,
    /// Its arguments: an object's text; `{}` where none came.
    pub arguments: &'a str,
    /// The same, parsed.
    pub value: serde_json::Value,
    /// `params._meta`, if any: JSON.
    pub meta: Option<&'a str>,
}

/// What a message is.
#[derive(Debug)]
pub enum Kind<'a> {
    /// A request for a tool.
    Call(Id, Call<'a>),
    /// Any other request.
    Request(Id, String),
    /// A notification.
    Notification(String),
    /// A response, successful or not: its result or error, JSON.
    Response(Id, Result<&'a str, &'a str>),
}

/// A message and its params as they stand.
#[derive(Debug)]
pub struct Message<'a> {
    /// What it is.
    pub kind: Kind<'a>,
    /// `params`, for requests and notifications: JSON.
    pub params: Option<&'a str>,
}

/// A line that was understood.
#[derive(Debug)]
pub enum Line<'a> {
    /// Nothing but white space: forwarded, recorded as nothing.
    Blank,
    /// One message.
    Message(Message<'a>),
    /// A batch, element by element.
    Batch(Vec<Message<'a>>),
}

/// Why a client's line is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Two parsers could read it differently.
    #[error(transparent)]
    Ambiguous(#[from] Ambiguity),
    /// Neither request, notification nor response, or two of them at once.
    #[error("{0}")]
    Shape(&'static str),
    /// A tool call that cannot be answered or judged.
    #[error("this tools/call {0}")]
    Call(&'static str),
}

/// A refusal and the id to answer under, where one could be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// Why.
    pub reason: Refusal,
    /// The request's id.
    pub id: Option<Id>,
}

impl<R: Into<Refusal>> From<R> for Refused {
    fn from(reason: R) -> Self {
        Self { reason: reason.into(), id: None }
    }
}

/// Reads one line on record, without its `\n`: as deep as it can be read at all.
///
/// # Errors
/// [`Refused`] where the line cannot be judged. A batch is refused whole if any element is.
pub fn read(line: &[u8]) -> Result<Line<'_>, Refused> {
    read_within(line, depth::PARSED)
}

/// Reads one line that is to pass, without its `\n`: no deeper than what every reader of the record takes.
///
/// # Errors
/// As [`read`].
pub fn judge(line: &[u8]) -> Result<Line<'_>, Refused> {
    read_within(line, strict::MAX_DEPTH)
}

fn read_within(line: &[u8], deepest: usize) -> Result<Line<'_>, Refused> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return Ok(Line::Blank);
    }
    let text = strict::text(line)?;
    if let Some(members) = strict::line(text, MESSAGE_KEYS, deepest)? {
        return message(&members).map(Line::Message);
    }
    let elements: Vec<&RawValue> =
        serde_json::from_str(text).map_err(|e| Ambiguity::Syntax(e.to_string()))?;
    if elements.is_empty() {
        return Err(Refusal::Shape("an empty batch").into());
    }
    let messages = elements.into_iter().map(|element| message(&strict::object(element.get(), MESSAGE_KEYS)?));
    messages.collect::<Result<_, _>>().map(Line::Batch)
}

fn message<'a>(members: &Members<'a>) -> Result<Message<'a>, Refused> {
    let id = members.find("id").map(Id::parse);
    let known = id.clone().flatten();
    understand(members, id).map_err(|reason| Refused { reason, id: known })
}

fn understand<'a>(members: &Members<'a>, id: Option<Option<Id>>) -> Result<Message<'a>, Refusal> {
    let id = match id {
        Some(None) => return Err(Refusal::Shape("an id that is neither string nor number")),
        Some(known) => known,
        None => None,
    };
    let params = members.find("params");
    let outcome = match (members.find("result"), members.find("error")) {
        (Some(_), Some(_)) => return Err(Refusal::Shape("a response with both result and error")),
        (Some(result), None) => Some(Ok(result)),
        (None, Some(error)) => Some(Err(error)),
        (None, None) => None,
    };
    let Some(method) = members.find("method") else {
        let outcome = outcome.ok_or(Refusal::Shape("neither method, result nor error"))?;
        // A response to something unreadable has id null, and may come without one.
        return Ok(Message { kind: Kind::Response(id.unwrap_or(Id::Null), outcome), params: None });
    };
    if outcome.is_some() {
        return Err(Refusal::Shape("a method together with a result or an error"));
    }
    let method = string(method).ok_or(Refusal::Shape("a method that is not a string"))?;
    let kind = match (method == "tools/call", id) {
        (true, None | Some(Id::Null)) => {
            return Err(Refusal::Call("has no id: it would run and could not be answered"));
        }
        (true, Some(id)) => Kind::Call(id, call(params)?),
        (false, Some(id)) => Kind::Request(id, method.into_owned()),
        (false, None) => Kind::Notification(method.into_owned()),
    };
    Ok(Message { kind, params })
}

impl Message<'_> {
    /// The id of a request or an answer.
    pub const fn id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Call(id, _) | Kind::Request(id, _) | Kind::Response(id, _) => Some(id),
            Kind::Notification(_) => None,
        }
    }

    /// The same of a request.
    pub const fn request_id(&self) -> Option<&Id> {
        match &self.kind {
            Kind::Call(id, _) | Kind::Request(id, _) => Some(id),
            Kind::Response(..) | Kind::Notification(_) => None,
        }
    }
}

/// What pairs a message with another, where all of it cannot be judged: too odd for [`read`], or cut.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Outline {
    /// Its id, as JSON.
    pub id: String,
    /// What it says of itself: a `method`, a `result`, or an `error`.
    pub member: String,
}

/// Longest id that an outline has, bytes.
pub(crate) const LONGEST_OUTLINED: usize = 1024;
/// Most requests of a batch that are answered one by one when it is refused.
const MOST_ANSWERED: usize = 1024;

/// A member of an object's own that tells what a message is.
enum Told<'a> {
    /// A key that is `id`, whatever its case: the key, and its value as it stands.
    Id(String, &'a [u8]),
    /// `method`, `result` or `error`.
    Member(String),
}

/// Most members of an object that are looked at for what it is. What has more of them is no message.
const MOST_TOLD: usize = 16;

/// Where the string ends that begins there; nothing if it does not.
pub(crate) fn string_end(bytes: &[u8], from: usize) -> Option<usize> {
    let mut at = from + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes.get(at) == Some(&b'"') {
            return Some(at + 1);
        }
        at += 2;
    }
}

/// Where what is no white space begins, from there on.
fn spaces(bytes: &[u8], from: usize) -> usize {
    from + bytes.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The same of what is no white space to any parser: that of Unicode is beyond ASCII.
pub(crate) fn blanks(bytes: &[u8], from: usize) -> usize {
    let is_blank = |byte: &u8| !(b'!'..=b'~').contains(byte);
    from + bytes.get(from..).unwrap_or_default().iter().copied().take_while(|byte| is_blank(byte)).count()
}

/// What an object says of itself, by brackets and strings alone: the rest need not be there, nor be JSON. `None` where a
/// key cannot be read, a value is cut that tells which message this is, or there are more than [`MOST_TOLD`] of those.
fn told(bytes: &[u8]) -> Option<Vec<Told<'_>>> {
    let rest = |from: usize| bytes.get(from..).unwrap_or_default();
    let (mut at, mut depth, mut all) = (0, 0usize, Vec::new());
    while let Some(byte) = bytes.get(at) {
        if all.len() > MOST_TOLD {
            return None;
        }
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let Some(end) = string_end(bytes, at) else { break };
                let key = bytes.get(at..end)?;
                at = end;
                let colon = spaces(bytes, at);
                if depth != 1 || bytes.get(colon) != Some(&b':') {
                    continue;
                }
                let key: String = serde_json::from_slice(key).ok()?;
                let value = spaces(bytes, colon + 1);
                if ["method", "result", "error"].contains(&key.as_str()) {
                    all.push(Told::Member(key));
                } else if key.eq_ignore_ascii_case("id") {
                    let end = match bytes.get(value)? {
                        b'"' => string_end(bytes, value)?,
                        _ => value + rest(value).iter().take_while(|b| !b",}] \t\r\n".contains(b)).count(),
                    };
                    all.push(Told::Id(key, bytes.get(value..end)?));
                }
                at = value;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    Some(all)
}

/// The id of a bounded length that is written so.
fn outlined(id: &[u8]) -> Option<Id> {
    let raw: &RawValue = serde_json::from_slice(id).ok().filter(|_| id.len() <= LONGEST_OUTLINED)?;
    Id::parse(raw.get())
}

/// The outline of an object. Nothing where it has two ids, none, or is not one of request, result and error.
pub fn outline(text: &str) -> Option<Outline> {
    let (mut ids, mut members) = (Vec::new(), Vec::new());
    for told in told(text.trim_start().as_bytes())? {
        match told {
            Told::Id(key, id) if key == "id" => ids.push(id),
            Told::Id(..) => {}
            Told::Member(member) => members.push(member),
        }
    }
    let ([id], [member]) = (ids.as_slice(), members.as_slice()) else { return None };
    Some(Outline { id: outlined(id)?.to_json(), member: member.clone() })
}

/// Ids under which a client's line that was refused can be answered: those of its requests, as far as they can be read.
/// What has two ids, or one that some parser takes for it, has none, and neither has an answer of the client's.
pub fn request_ids(line: &[u8]) -> Vec<Id> {
    let line = line.trim_ascii_start();
    let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
    if !line.starts_with(b"[") {
        return request_id(line).into_iter().collect();
    }
    let elements: Vec<&RawValue> = serde_json::from_slice(line).unwrap_or_default();
    let of = |element: &&RawValue| request_id(element.get().as_bytes());
    elements.iter().filter_map(of).take(MOST_ANSWERED).collect()
}

fn request_id(object: &[u8]) -> Option<Id> {
    let (mut ids, mut is_request) = (Vec::new(), false);
    for told in told(object)? {
        match told {
            Told::Id(key, id) => ids.push((key, id)),
            Told::Member(member) => is_request |= member == "method",
        }
    }
    let [(key, id)] = ids.as_slice() else { return None };
    outlined(id).filter(|id| is_request && key == "id" && *id != Id::Null)
}

/// The id that a line of the server's answers, where it is one answer: with a result or an error, and without a method.
pub fn answered_id(line: &[u8]) -> Option<Id> {
    match answers(line) {
        Answers::One(id) => Some(id),
        Answers::Unclear(id) => id,
        Answers::Nothing => None,
    }
}

/// The texts that parsers may take for what an object has under a key: some take the first, some the last, and some fold keys.
pub fn values_of(object: &str, key: &str) -> Vec<String> {
    let Ok(members) = serde_json::from_str::<strict::Members<'_>>(object) else { return Vec::new() };
    let folded = strict::fold(key);
    let found = members.all().filter(|(name, _)| strict::fold(name) == folded);
    let (mut ends, mut own) = ((None, None), (None, None));
    for (name, value) in found.filter_map(|(name, value)| Some((name, string(value)?))) {
        for (first, last) in [Some(&mut ends), (name == key).then_some(&mut own)].into_iter().flatten() {
            first.get_or_insert_with(|| value.to_string());
            *last = Some(value.to_string());
        }
    }
    let mut values: Vec<String> = [ends.0, ends.1, own.0, own.1].into_iter().flatten().collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// Whether something in a line is written by its code that could be a character of ASCII.
pub(crate) fn has_written_ascii(line: &[u8]) -> bool {
    // Made once: making it takes longer than searching a short line.
    static ESCAPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\\u00"));
    ESCAPE.find(line).is_some()
}

/// Whether a line that nobody can read may be a request to any reader, and not only a notification: a key in it may be `id`.
fn may_ask(line: &[u8]) -> bool {
    let is_word = |at: Option<usize>| {
        at.and_then(|at| line.get(at)).is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
    };
    memchr::memchr2_iter(b'i', b'I', line).any(|at| {
        matches!(line.get(at + 1), Some(b'd' | b'D')) && !is_word(at.checked_sub(1)) && !is_word(Some(at + 2))
    }) || has_written_ascii(line)
        || std::str::from_utf8(line).is_err()
}

/// Whether some reader may take such a line for more requests than were [`read`](request_ids) in it: for any, or for more of a batch.
pub fn may_ask_more(line: &[u8], read: &[Id]) -> bool {
    (read.is_empty() || rough::trimmed(line).starts_with(b"[")) && may_ask(line)
}

/// Which request a line of the server's answers, as far as brackets and strings tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answers {
    /// None: it is a request or a notification.
    Nothing,
    /// The one of this id.
    One(Id),
    /// Readers may differ, or it is more than one: a batch, two ids, keys that fold to `id`, a part of a line. The id that most
    /// of them take, where there is one.
    Unclear(Option<Id>),
}

/// Which request a line of the server's answers.
pub fn answers(line: &[u8]) -> Answers {
    let (mut ids, mut folded, mut is_request, mut is_answer) = (Vec::new(), false, false, false);
    // What begins otherwise is a batch, or a line of a log that quotes one.
    let object = Some(rough::trimmed(line)).filter(|line| line.starts_with(b"{"));
    for told in object.and_then(told).into_iter().flatten() {
        match told {
            Told::Id(key, id) if key == "id" => ids.push(id),
            Told::Id(..) => folded = true,
            Told::Member(member) if member == "method" => is_request = true,
            Told::Member(_) => is_answer = true,
        }
    }
    match (is_request, is_answer, ids.as_slice()) {
        (true, false, _) => Answers::Nothing,
        (false, true, [id]) => match outlined(id) {
            Some(id) if !folded => Answers::One(id),
            id => Answers::Unclear(id),
        },
        _ => Answers::Unclear(None),
    }
}

impl Outline {
    /// The id, to find the other message by.
    pub fn id(&self) -> Option<Id> {
        Id::parse(serde_json::from_str::<&RawValue>(&self.id).ok()?.get())
    }
}

/// A JSON string's text; nothing for any other JSON.
fn string(json: &str) -> Option<Cow<'_, str>> {
    match json.strip_prefix('"')?.strip_suffix('"') {
        Some(text) if !text.contains('\\') => Some(Cow::Borrowed(text)),
        _ => serde_json::from_str(json).ok().map(Cow::Owned),
    }
}

fn call(params: Option<&str>) -> Result<Call<'_>, Refusal> {
    let params = params.ok_or(Refusal::Call("has no params"))?;
    let members = strict::object(params, CALL_KEYS).map_err(|ambiguity| match ambiguity {
        Ambiguity::Syntax(_) => Refusal::Call("has params that are not an object"),
        other => other.into(),
    })?;
    if !members.is_plain() {
        strict::unique(params)?;
    }
    let name = members.find("name").ok_or(Refusal::Call("names no tool"))?;
    let name = string(name).ok_or(Refusal::Call("names its tool by something else than a string"))?;
    let name = name.into_owned();
    let arguments = match members.find("arguments") {
        None | Some("null") => "{}",
        Some(object) if object.starts_with('{') => object,
        Some(_) => return Err(Refusal::Call("has arguments that are not an object")),
    };
    // What is judged is what was parsed here: nothing later may take a text that it cannot read for an empty one.
    let value = serde_json::from_str(arguments).map_err(|e| Ambiguity::Syntax(e.to_string()))?;
    Ok(Call { name, arguments, value, meta: members.find("_meta") })
}

#[cfg(test)]
mod tests;
