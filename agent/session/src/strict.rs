//! JSON read strictly: what two parsers could read differently is refused, with the reason.
//!
//! Real MCP servers differ in what they accept: one takes the first of two equal keys, another the last, a third folds
//! case, some split lines where JSON sees white space. A line whose meaning depends on who reads it cannot be judged.

use super::plain;
use ringfence_wire::depth;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, value::RawValue};
use std::{borrow::Cow, cell::Cell, collections::HashSet, fmt};

/// Deepest nesting of what may pass and of what is shown taken apart.
pub const MAX_DEPTH: usize = depth::MOST;

/// Why a line cannot be judged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Ambiguity {
    /// Not JSON, or not only JSON: the parser's message.
    #[error("not one JSON value: {0}")]
    Syntax(String),
    /// Bytes that are not UTF-8.
    #[error("not UTF-8 from byte {0} on")]
    Encoding(usize),
    /// An object that holds one key twice.
    #[error("the key {0:?} stands twice in one object, and parsers differ on which one counts")]
    DuplicateKey(String),
    /// A key that `serde_json` reserves for itself: the value parsed from it is not the one that was written.
    #[error("the key {0:?} has a meaning of its own to JSON parsers of the serde family")]
    ReservedKey(String),
    /// A key that a case-folding parser takes for another.
    #[error("the key {found:?} is read as {meant:?} by parsers that fold case")]
    FoldedKey {
        /// As it stands in the line.
        found: String,
        /// What it could be taken for.
        meant: &'static str,
    },
    /// A byte-order mark, which some parsers skip and others refuse.
    #[error("the line starts with a byte-order mark")]
    ByteOrderMark,
    /// A character at which some readers end the line, with a JSON object behind it.
    #[error("a reader that ends lines at {0} sees a second message inside this one")]
    HiddenLine(&'static str),
    /// Nesting that real parsers refuse at different depths.
    #[error("nested deeper than {MAX_DEPTH} levels")]
    Depth,
}

/// An object's members in order, keys unescaped, values as they stand.
#[derive(Debug)]
pub struct Members<'a> {
    all: Vec<(Cow<'a, str>, &'a str)>,
    /// Nothing in it is unusual, at any depth: no key stands twice or is reserved.
    plain: bool,
}

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some((Key(key), value)) = map.next_entry::<Key<'de>, &'de RawValue>()? {
                    members.push((key, value.get()));
                }
                Ok(Members { all: members, plain: false })
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A key as it reads: borrowed from the text where nothing in it is escaped.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Key<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// The keys of one object so far. Most objects have few: they are compared, not hashed.
#[derive(Default)]
struct Seen<'a> {
    few: Vec<Cow<'a, str>>,
    many: HashSet<Cow<'a, str>>,
}

impl<'a> Seen<'a> {
    const FEW: usize = 12;

    fn has(&self, key: &str) -> bool {
        self.few.iter().any(|seen| seen == key) || self.many.contains(key)
    }

    fn insert(&mut self, key: Cow<'a, str>) {
        if self.few.len() < Self::FEW {
            self.few.push(key);
        } else {
            self.many.insert(key);
        }
    }
}

impl<'a> Members<'a> {
    /// The value of a key, if the object has it.
    pub fn find(&self, key: &str) -> Option<&'a str> {
        self.all.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    /// All of them, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &'a str)> {
        self.all.iter().map(|(key, value)| (key.as_ref(), *value))
    }

    /// Whether it is known that no object in it, at any depth, is one that [`unique`] refuses.
    pub const fn is_plain(&self) -> bool {
        self.plain
    }

    /// Refuses duplicate keys, and keys that fold to one of `meaningful` without being it.
    fn unambiguous(self, meaningful: &'static [&'static str]) -> Result<Self, Ambiguity> {
        let mut seen = Seen::default();
        for (key, _) in &self.all {
            if !self.plain {
                if seen.has(key) {
                    return Err(Ambiguity::DuplicateKey(shorten(key)));
                }
                seen.insert(Cow::Borrowed(key.as_ref()));
            }
            if meaningful.contains(&key.as_ref()) {
                continue;
            }
            // Most keys are ASCII, and are compared without a copy.
            let folded = if key.is_ascii() { String::new() } else { fold(key) };
            let same = |known: &str| {
                if key.is_ascii() { key.eq_ignore_ascii_case(known) } else { fold(known) == folded }
            };
            if let Some(meant) = meaningful.iter().find(|known| same(known)) {
                return Err(Ambiguity::FoldedKey { found: shorten(key), meant });
            }
        }
        Ok(self)
    }
}

/// Parses one object. `meaningful` are the keys that somebody acts on.
///
/// # Errors
/// [`Ambiguity`] where the text is no object, or one that two parsers could read differently.
pub fn object<'a>(text: &'a str, meaningful: &'static [&'static str]) -> Result<Members<'a>, Ambiguity> {
    let members = match plain(text) {
        Some(members) => members,
        None => serde_json::from_str::<Members<'a>>(text).map_err(|e| syntax(&e))?,
    };
    members.unambiguous(meaningful)
}

/// Reads a line as one object, [checked](whole) whole, that nests no deeper than `deepest`. `None`: it is JSON, and no
/// object.
///
/// # Errors
/// [`Ambiguity`], the first one found.
pub fn line<'a>(
    text: &'a str,
    meaningful: &'static [&'static str],
    deepest: usize,
) -> Result<Option<Members<'a>>, Ambiguity> {
    if let Some(members) = plain(text) {
        return members.unambiguous(meaningful).map(Some);
    }
    json_within(text, deepest)?;
    if text.trim_start().starts_with('[') {
        return Ok(None);
    }
    let members = serde_json::from_str::<Members<'a>>(text).map_err(|e| syntax(&e))?;
    members.unambiguous(meaningful).map(Some)
}

fn plain(text: &str) -> Option<Members<'_>> {
    plain::object(text).map(|all| Members { all, plain: true })
}

/// An object's members, without the fast path.
#[cfg(test)]
pub(crate) fn strict_object(text: &str) -> Result<Vec<(Cow<'_, str>, &str)>, Ambiguity> {
    serde_json::from_str(text).map(|members: Members<'_>| members.all).map_err(|e| syntax(&e))
}

/// How keys begin that `serde_json` gives a meaning (`RawValue` and `Number`, its features `raw_value` and
/// `arbitrary_precision`): `{"$serde_json::private::RawValue":"{}"}` parses to `{}`.
pub const RESERVED: &str = "$serde_json::private::";

/// Refuses an object, at any depth, that holds one key twice, or one that our own parser reads as something else: what
/// a call is scored by must be what the server acts on.
///
/// # Errors
/// [`Ambiguity::DuplicateKey`], [`Ambiguity::ReservedKey`]; `text` is JSON, as [`whole`] left it.
pub fn unique(text: &str) -> Result<(), Ambiguity> {
    unique_within(text, depth::PARSED)
}

fn unique_within(text: &str, deepest: usize) -> Result<(), Ambiguity> {
    let found = Cell::new(None);
    let walked = walk(text, Some(&found), deepest);
    match found.take() {
        Some(ambiguity) => Err(ambiguity),
        None => walked.map_err(|error| unread(text, &error, deepest)),
    }
}

/// The value of a text that every parser reads alike, and that can stand within a record's own JSON.
///
/// # Errors
/// Those of [`unique`], [`Ambiguity::Syntax`], and [`Ambiguity::Depth`] beyond [`MAX_DEPTH`].
pub fn value(text: &str) -> Result<Value, Ambiguity> {
    unique_within(text, MAX_DEPTH)?;
    serde_json::from_str(text).map_err(|e| syntax(&e))
}

fn walk(
    text: &str,
    found: Option<&Cell<Option<Ambiguity>>>,
    deepest: usize,
) -> Result<(), serde_json::Error> {
    let mut parser = serde_json::Deserializer::from_str(text);
    Walk { found, left: deepest }.deserialize(&mut parser)?;
    parser.end()
}

/// Decodes everything and keeps nothing, so that a 10 MiB line costs no second copy. Where there is room for it, leaves
/// the first key that stands twice in an object or is reserved.
#[derive(Clone, Copy)]
struct Walk<'a> {
    found: Option<&'a Cell<Option<Ambiguity>>>,
    /// Levels that may still begin.
    left: usize,
}

impl Walk<'_> {
    /// The same, one level further in.
    fn inside<E: serde::de::Error>(self) -> Result<Self, E> {
        let left = self.left.checked_sub(1).ok_or_else(|| E::custom("nested too deep"))?;
        Ok(Self { left, ..self })
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }
    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }
    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }
    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }
    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let inside = self.inside()?;
        while seq.next_element_seed(inside)?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let inside = self.inside()?;
        let Some(found) = self.found else {
            while map.next_key_seed(inside)?.is_some() {
                map.next_value_seed(inside)?;
            }
            return Ok(());
        };
        let mut seen = Seen::default();
        while let Some(Key(key)) = map.next_key::<Key<'de>>()? {
            if key.starts_with(RESERVED) {
                found.set(Some(Ambiguity::ReservedKey(shorten(&key))));
                return Err(A::Error::custom("a reserved key"));
            }
            if seen.has(&key) {
                found.set(Some(Ambiguity::DuplicateKey(shorten(&key))));
                return Err(A::Error::custom("a key stands twice"));
            }
            seen.insert(key);
            map.next_value_seed(inside)?;
        }
        Ok(())
    }
}

/// Checks a whole line before anything in it is looked at: encoding, depth, every nested string and number, hidden
/// line ends. Returns it as text.
///
/// # Errors
/// [`Ambiguity`], the first one found.
pub fn whole(line: &[u8]) -> Result<&str, Ambiguity> {
    let text = text(line)?;
    json(text)?;
    Ok(text)
}

/// The line as text that every reader takes for one line.
///
/// # Errors
/// [`Ambiguity`], the first one found.
pub fn text(line: &[u8]) -> Result<&str, Ambiguity> {
    let text = std::str::from_utf8(line).map_err(|e| Ambiguity::Encoding(e.valid_up_to()))?;
    if text.starts_with('\u{feff}') {
        return Err(Ambiguity::ByteOrderMark);
    }
    hidden_line(text)?;
    Ok(text)
}

/// Checks every nested string and number, and the depth.
///
/// # Errors
/// [`Ambiguity::Syntax`], [`Ambiguity::Depth`].
pub fn json(text: &str) -> Result<(), Ambiguity> {
    json_within(text, MAX_DEPTH)
}

fn json_within(text: &str, deepest: usize) -> Result<(), Ambiguity> {
    // `RawValue` and `IgnoredAny` do not decode strings (lone surrogates) and numbers.
    walk(text, None, deepest).map_err(|error| unread(text, &error, deepest))
}

/// Why a walk ended early. That it was the depth is looked up only then.
fn unread(text: &str, error: &serde_json::Error, deepest: usize) -> Ambiguity {
    if nesting(text) > deepest { Ambiguity::Depth } else { syntax(error) }
}

/// Line ends that JSON does not know but readers of lines do: Python's text mode ends lines at CR, Node's readline also
/// at U+2028 and U+2029, `str.splitlines` at the rest.
pub(crate) const LINE_ENDS: [(char, &str); 9] = [
    ('\r', "CR"),
    ('\u{2028}', "U+2028"),
    ('\u{2029}', "U+2029"),
    ('\u{85}', "U+0085"),
    ('\u{b}', "VT"),
    ('\u{c}', "FF"),
    ('\u{1c}', "FS"),
    ('\u{1d}', "GS"),
    ('\u{1e}', "RS"),
];

/// Refuses a line that a reader with other line ends would take apart into something it acts on. A CR at the very end is
/// the other half of CRLF and harmless; U+2028 inside a text is fine unless a whole value stands between two of them, or an object
/// with something in it behind one: some readers ignore what follows a value.
fn hidden_line(text: &str) -> Result<(), Ambiguity> {
    let body = text.strip_suffix('\r').unwrap_or(text);
    // All of them are control characters or beyond ASCII; most lines have neither.
    if body.is_ascii() && !plain::has_control(body) {
        return Ok(());
    }
    for (end, name) in LINE_ENDS {
        if !body.contains(end) {
            continue;
        }
        if body.split(end).any(is_read_alone) {
            return Err(Ambiguity::HiddenLine(name));
        }
    }
    Ok(())
}

/// Whether a piece of a line begins with an object or a list that some reader of it acts on.
fn is_read_alone(piece: &str) -> bool {
    let piece = piece.trim_matches(|c: char| c.is_whitespace());
    if !piece.starts_with(['{', '[']) {
        return false;
    }
    let mut values = serde_json::Deserializer::from_str(piece).into_iter::<IgnoredAny>();
    let is_value = values.next().is_some_and(|value| value.is_ok());
    let (value, rest) = piece.split_at_checked(values.byte_offset()).unwrap_or((piece, ""));
    // The quotation marks of what an object holds. Those of one that is quoted within a text are escaped.
    is_value && (rest.is_empty() || value.contains('"'))
}

/// Deepest nesting of brackets outside strings. Counts only; the text need not be JSON.
fn nesting(text: &str) -> usize {
    let (mut now, mut most, mut quoted, mut escaped) = (0usize, 0usize, false, false);
    for byte in text.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => {
                now += 1;
                most = most.max(now);
            }
            b'}' | b']' if !quoted => now = now.saturating_sub(1),
            _ => {}
        }
    }
    most
}

/// Simple case folding, both ways, so that characters like U+017F and U+212A meet their ASCII relatives.
pub(crate) fn fold(key: &str) -> String {
    key.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect()
}

/// An error may quote a key, but not a megabyte of it.
fn shorten(key: &str) -> String {
    key.chars().take(40).collect()
}

fn syntax(error: &serde_json::Error) -> Ambiguity {
    Ambiguity::Syntax(error.to_string())
}

#[cfg(test)]
mod tests;
