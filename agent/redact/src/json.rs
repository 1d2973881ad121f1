//! Secrets in JSON, by its structure: what members' names say of all that is in their values, pairs of name and value, text
//! in strings.

use crate::{
    REDACTED, forms,
    names::{self, Surety},
    plain, replaced, values, without_secrets,
};
use frames::{Frames, Member};
use std::borrow::Cow;
use strings::{Strings, Token};

mod frames;
mod strings;

/// What stands in a number's place.
const REDACTED_NUMBER: &str = "\"[redacted]\"";
/// Nothing shorter has a shape, bytes.
const SHORTEST: usize = 7;
/// What a schema or a description says of a secret, whatever the secret is called.
const DESCRIBES: [&str; 14] = [
    "type",
    "description",
    "title",
    "format",
    "$ref",
    "examples",
    "enum",
    "required",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "pattern",
    "x-order",
];

/// How a text is walked through.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mode {
    /// Its id, method and tool's name stay.
    pub(crate) is_message: bool,
    /// It is JSON; or else it was looked through as it stands, and only what its quotes and brackets say is looked at.
    pub(crate) is_json: bool,
    /// How many levels of text in strings are looked into.
    pub(crate) texts: usize,
}

/// Whether a text begins as JSON does.
pub(crate) fn is_json(text: &str) -> bool {
    let text = text.trim_ascii();
    let inside = text.get(1..).unwrap_or_default().trim_ascii_start();
    match text.as_bytes().first() {
        Some(b'{') => match inside.strip_prefix('"') {
            Some(name) => begins_member(name),
            None => inside.strip_prefix('}').is_some_and(ends),
        },
        Some(b'[') => inside.starts_with(['{', '[', '"']) || begins_list(inside),
        Some(b'"') => {
            text.len() > 1
                && text.ends_with('"')
                && serde_json::from_str::<&serde_json::value::RawValue>(text).is_ok()
        }
        _ => false,
    }
}

/// Longest name of a member that a text must begin with to be JSON, bytes. Where it is longer nobody can tell.
const NAME: usize = 256;

/// Whether what is behind the first quote may be a member's name.
fn begins_member(text: &str) -> bool {
    let near = text.as_bytes().get(..NAME.min(text.len())).unwrap_or_default();
    match memchr::memchr2(b'"', b'\\', near) {
        Some(end) if near.get(end) == Some(&b'"') => {
            let behind = text.get(end + 1..).unwrap_or_default().trim_ascii_start();
            behind.is_empty() || behind.starts_with(':')
        }
        _ => true,
    }
}

/// Whether what is behind a bracket is a list's first number or word, and not the time or the level of a line in a log.
fn begins_list(inside: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '-');
    let (item, behind) = inside.split_at(inside.find(|c| !is_part(c)).unwrap_or(inside.len()));
    let is_item = item.is_empty() || matches!(item, "true" | "false" | "null") || item.parse::<f64>().is_ok();
    let behind = behind.trim_ascii_start();
    is_item
        && (behind.is_empty()
            || behind.starts_with(',') && !item.is_empty()
            || behind.strip_prefix(']').is_some_and(ends))
}

/// Whether nothing stands behind JSON, or more of it does, on the next line.
fn ends(behind: &str) -> bool {
    behind.is_empty() || behind.starts_with(['\n', '\r'])
}

/// A text without its secrets.
pub(crate) fn walk(text: &str, mode: Mode) -> Cow<'_, str> {
    let mut walk = Walk {
        text,
        mode,
        cursor: Cursor::new(text, mode.is_message),
        frames: Frames::default(),
        places: Vec::new(),
        keys: 0,
    };
    let mut rest = Strings::new(text);
    let mut outside = 0;
    while let Some(token) = rest.next_token() {
        match token {
            Token::Open(is_object) => {
                walk.frames.open(is_object);
                walk.cursor.open();
            }
            Token::Close => {
                walk.frames.close(&mut walk.places);
                walk.cursor.close();
            }
            Token::Comma => walk.cursor.comma(),
            Token::Number { start, end } => {
                if walk.number(start, end) {
                    walk.outside(outside, start);
                    outside = end;
                }
            }
            Token::String { start, end, is_key } => {
                walk.outside(outside, start);
                outside = end;
                walk.string(start, end, is_key);
            }
        }
    }
    walk.outside(outside, text.len());
    walk.frames.finish(&mut walk.places);
    walk.finish()
}

/// What is to stand in a place of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum With {
    Redacted,
    Number,
    Text(String),
}

/// A place, and what is to stand there.
pub(crate) type Place = (usize, usize, With);

struct Walk<'t> {
    text: &'t str,
    mode: Mode,
    cursor: Cursor,
    frames: Frames,
    places: Vec<Place>,
    /// Keys that had the shape of a secret.
    keys: usize,
}

impl<'t> Walk<'t> {
    /// What stands between strings: structure in JSON, anything elsewhere.
    fn outside(&mut self, start: usize, end: usize) {
        if !self.mode.is_json {
            return;
        }
        let Some(piece) = self.text.get(start..end).filter(|piece| piece.len() >= SHORTEST) else { return };
        // Text behind JSON: what is in its quotes belongs to what is before them.
        let is_assigned = piece.trim_end_matches(['"', ' ']).ends_with('=');
        let piece = if is_assigned { self.text.get(start..).unwrap_or_default() } else { piece };
        let piece = piece
            .get(..piece.floor_char_boundary((end - start).saturating_add(if is_assigned { 512 } else { 0 })))
            .unwrap_or_default();
        self.places.extend(
            plain::find(piece).into_iter().map(|(from, to)| (start + from, start + to, With::Redacted)),
        );
    }

    /// Whether it is replaced.
    fn number(&mut self, start: usize, end: usize) -> bool {
        let is_named = self.cursor.secret == Surety::Secret || self.cursor.secret == Surety::Header;
        let is_secret = is_named && (self.cursor.is_member() || !self.frames.describes());
        if is_secret {
            self.places.push((start, end, With::Number));
        } else {
            self.frames.value((start, end), With::Number);
        }
        is_secret
    }

    fn string(&mut self, start: usize, end: usize, is_key: bool) {
        let content = self.text.get(start..end).unwrap_or_default();
        let decoded = decode(content);
        if is_key {
            self.cursor.key(&decoded);
            self.frames.key(&decoded);
            if self.mode.is_json && decoded.len() >= SHORTEST && !plain::find(&decoded).is_empty() {
                self.keys += 1;
                // Keys stay apart: an object that has one twice is read by nobody.
                let name =
                    if self.keys == 1 { REDACTED.to_owned() } else { format!("[redacted {}]", self.keys) };
                self.places.push((start, end, With::Text(name)));
            }
            return;
        }
        if content.is_empty() {
            return;
        }
        if self.frames.element(&decoded) || self.is_secret(&decoded) {
            // As it stands, it was judged with the name before it.
            if self.mode.is_json || !self.cursor.is_member() {
                self.places.push((start, end, With::Redacted));
                return;
            }
        }
        self.frames.string(&decoded, (start, end));
        if self.cursor.is_spared() || !self.mode.is_json && !content.contains('\\') {
            return;
        }
        let clean = if self.mode.texts == 0 {
            replaced(&decoded, &plain::find(&decoded))
        } else {
            without_secrets(&decoded, false, self.mode.texts - 1)
        };
        if let Cow::Owned(clean) = clean {
            let clean = match decoded {
                // Nothing was escaped, and nothing in what is left needs to be.
                Cow::Borrowed(_) => clean,
                Cow::Owned(_) => {
                    let quoted = serde_json::Value::from(clean).to_string();
                    quoted.get(1..quoted.len().saturating_sub(1)).unwrap_or_default().to_owned()
                }
            };
            self.places.push((start, end, With::Text(clean)));
        }
    }

    /// Whether a string is a secret by the names that it is behind.
    fn is_secret(&self, decoded: &str) -> bool {
        match self.cursor.secret {
            Surety::None => false,
            Surety::Random => {
                self.cursor.is_member()
                    && self.frames.member() != Member::Signature
                    && (values::is_random(decoded)
                        && !values::is_digest(decoded)
                        && !values::is_place(decoded)
                        || self.frames.member() == Member::Pass && !values::is_template(decoded)
                        || self.frames.member() == Member::Auth && is_pair(decoded))
            }
            Surety::Secret | Surety::Header => {
                !values::is_template(decoded)
                    && (!self.frames.describes() || self.cursor.is_member() || values::is_random(decoded))
            }
        }
    }

    fn finish(mut self) -> Cow<'t, str> {
        if self.places.is_empty() {
            return Cow::Borrowed(self.text);
        }
        // What goes as a whole goes before what is left of it.
        self.places
            .sort_by_key(|(start, end, with)| (*start, usize::MAX - end, matches!(with, With::Text(_))));
        let (mut out, mut from) = (String::with_capacity(self.text.len()), 0);
        for (start, end, with) in &self.places {
            if *start < from {
                continue;
            }
            out.push_str(self.text.get(from..*start).unwrap_or_default());
            out.push_str(match with {
                With::Redacted => REDACTED,
                With::Number => REDACTED_NUMBER,
                With::Text(text) => text,
            });
            from = *end;
        }
        out.push_str(self.text.get(from..).unwrap_or_default());
        Cow::Owned(out)
    }
}

/// The base64 of a name and a password.
fn is_pair(text: &str) -> bool {
    forms::basic(text, 0, 0).is_some()
}

/// What a JSON string's content says; as it stands where it is none.
fn decode(content: &str) -> Cow<'_, str> {
    if !content.contains('\\') {
        return Cow::Borrowed(content);
    }
    serde_json::from_str(&format!("\"{content}\"")).map_or(Cow::Borrowed(content), Cow::Owned)
}

/// Where in the text the walk is, and what that makes of a string there.
struct Cursor {
    depth: usize,
    /// Depth at which the secret key's value began, and what the key says; strings are secrets while the depth is at least
    /// that.
    from: usize,
    secret: Surety,
    /// Depth of a message's own members; none where the text is no message.
    members: Option<usize>,
    /// A message's member is its id or its method.
    pairs: bool,
    in_params: bool,
    names: bool,
}

impl Cursor {
    fn new(text: &str, is_message: bool) -> Self {
        let members = if text.trim_start().starts_with('[') { 2 } else { 1 };
        Self {
            depth: 0,
            from: 0,
            secret: Surety::None,
            members: is_message.then_some(members),
            pairs: false,
            in_params: false,
            names: false,
        }
    }

    fn open(&mut self) {
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        if self.depth < self.from {
            self.secret = Surety::None;
        }
    }

    fn comma(&mut self) {
        if self.from == self.depth {
            self.secret = Surety::None;
        }
    }

    fn key(&mut self, key: &str) {
        if self.secret == Surety::None || self.from == self.depth || self.secret == Surety::Random {
            self.secret = names::judge(key);
            self.from = self.depth;
        }
        let Some(members) = self.members else { return };
        if self.depth == members {
            self.pairs = matches!(key, "id" | "method");
            self.in_params = key == "params";
            self.names = false;
        } else if self.depth == members + 1 {
            self.names = self.in_params && key == "name";
        }
    }

    /// Whether the secret's name is that of this very member.
    fn is_member(&self) -> bool {
        self.secret != Surety::None && self.from == self.depth
    }

    fn is_spared(&self) -> bool {
        self.members.is_some_and(|members| {
            self.pairs && self.depth == members || self.names && self.depth == members + 1
        })
    }
}
