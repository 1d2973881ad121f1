//! Takes an agent's own credentials out of what a provider or an MCP server sends, before it reaches the agent or its log.
//!
//! Looked for as they are, in base64 at each of its three alignments, and percent-encoded. A stream is held back by as
//! much as could be the beginning of one.

use super::message::{Block, ToolCall};
use escapes::{Unescaped, characters};
use ringfence_credentials::Secret;
use std::{borrow::Cow, cmp::Reverse};
use zeroize::Zeroizing;

mod escapes;
mod json;

/// What stands in a credential's place.
pub const REDACTED: &str = "[redacted]";
/// Shorter ones are words that occur by chance: the placeholder keys of local servers.
const SHORTEST: usize = 8;
/// Most bytes of an escape: `\u0073`.
const ESCAPED: usize = 6;

/// What is looked for.
#[derive(Default)]
pub struct Redactor {
    /// Longest first: where two match at one place, the whole is taken out. A credential itself is no copy of it.
    patterns: Vec<Secret>,
    /// Which bytes a pattern begins with: most ends of a text begin with none of them.
    begins: [u64; 4],
}

impl Redactor {
    /// For these credentials.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let mut patterns: Vec<Secret> = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.expose().len() >= SHORTEST) {
            patterns.push(secret.clone());
            let secret = secret.expose();
            // Hexadecimal digits may be of either case (RFC 3986 section 2.1).
            patterns.extend([percent_encoded(secret, false), percent_encoded(secret, true)]);
            for alignment in 0..3 {
                for engine in
                    [base64::engine::general_purpose::STANDARD, base64::engine::general_purpose::URL_SAFE]
                {
                    patterns.push(inside_base64(secret, alignment, &engine));
                }
            }
        }
        // Stable: of equal ones the credential itself stays, and not what an encoding left as it is.
        patterns.sort_by(|a, b| order(a).cmp(&order(b)));
        patterns.dedup();
        let mut begins = [0; 4];
        for first in patterns.iter().filter_map(|pattern| pattern.expose().as_bytes().first()) {
            begins[usize::from(first >> 6)] |= 1 << (first & 63);
        }
        Self { patterns, begins }
    }

    /// The text without credentials.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut found = self.finds(text).peekable();
        if found.peek().is_none() {
            return Cow::Borrowed(text);
        }
        Cow::Owned(replaced(text, found))
    }

    /// Takes credentials out of a tool call.
    pub(crate) fn call(&self, call: &mut ToolCall) {
        call.input = self.json(std::mem::take(&mut call.input));
        call.name = self.text(&call.name).into_owned();
    }

    /// A block without credentials.
    pub fn block(&self, block: Block) -> Block {
        let clean = self.json(block.raw().to_owned());
        if clean.get() == block.raw().get() {
            return block;
        }
        // Taking text out of a block's strings leaves its type and fields.
        Block::parse(clean).unwrap_or_else(|_| Block::text(REDACTED))
    }

    /// A stream of text.
    pub fn stream(&self) -> Stream<'_> {
        Stream { redactor: self, held: String::new(), is_json: false }
    }

    /// A stream of JSON, in whose strings escapes could hide a credential.
    pub fn json_stream(&self) -> Stream<'_> {
        Stream { is_json: true, ..self.stream() }
    }

    /// Where credentials are in a text that may go on, from the left; and from where on its end could be the beginning of one.
    /// `is_json`: it is source, in whose strings escapes could hide one.
    pub fn found(&self, text: &str, is_json: bool) -> (Vec<(usize, usize)>, usize) {
        if is_json && text.contains('\\') {
            return self.found_behind(Unescaped(characters(text)));
        }
        let found: Vec<_> = self.finds(text).collect();
        let last = found.last().map_or(0, |(_, end)| *end);
        (found, text.len() - self.undecided(&text[last..]))
    }

    /// Bytes of the longest beginning of a credential that is none yet, whatever escapes it is written with.
    pub(crate) fn longest_beginning(&self) -> usize {
        self.longest() * ESCAPED
    }

    /// Bytes of the longest pattern.
    fn longest(&self) -> usize {
        self.patterns.first().map_or(0, |longest| longest.expose().len())
    }

    /// Where credentials are, from the left, none in another.
    fn finds<'t>(&self, text: &'t str) -> Finds<'_, 't> {
        let patterns = self.patterns.iter().map(Secret::expose).filter(|pattern| pattern.len() <= text.len());
        // The longest is first: of those at one place it is the one that is taken.
        let found = patterns.filter_map(|pattern| Some((find(text, pattern)?, pattern))).collect();
        Finds { text, found, from: 0 }
    }

    /// How many bytes at the end of `text` could be the beginning of a pattern.
    fn undecided(&self, text: &str) -> usize {
        let longest = self.longest().saturating_sub(1);
        let end = &text[text.ceil_char_boundary(text.len().saturating_sub(longest))..];
        let may_begin = |first: &u8| self.begins[usize::from(first >> 6)] & 1 << (first & 63) != 0;
        let is_beginning = |tail: &&str| {
            tail.as_bytes().first().is_some_and(may_begin)
                && self.patterns.iter().any(|p| p.expose().starts_with(tail))
        };
        end.char_indices().map(|(at, _)| &end[at..]).find(is_beginning).map_or(0, str::len)
    }
}

/// Where a pattern is in a text.
fn find(text: &str, pattern: &str) -> Option<usize> {
    memchr::memmem::find(text.as_bytes(), pattern.as_bytes())
}

/// Goes through a text once for each pattern, however often they are in it.
struct Finds<'r, 't> {
    text: &'t str,
    /// Where each pattern is next, of those that are still there.
    found: Vec<(usize, &'r str)>,
    /// Where the one before ended.
    from: usize,
}

impl Iterator for Finds<'_, '_> {
    type Item = (usize, usize);

    fn next(&mut self) -> Option<(usize, usize)> {
        let Self { text, found, from } = self;
        // Only what began within the one before is looked for again.
        found.retain_mut(|(at, pattern)| {
            if *at >= *from {
                return true;
            }
            let next = find(&text[*from..], pattern);
            *at = next.map_or(*at, |next| *from + next);
            next.is_some()
        });
        let (at, pattern) = found.iter().min_by_key(|(at, _)| *at)?;
        *from = at + pattern.len();
        Some((*at, *from))
    }
}

/// Text that comes in pieces.
pub struct Stream<'r> {
    redactor: &'r Redactor,
    held: String,
    is_json: bool,
}

impl Stream<'_> {
    /// What may go out now.
    pub fn push<'t>(&mut self, piece: &'t str) -> Cow<'t, str> {
        if self.redactor.patterns.is_empty() {
            return Cow::Borrowed(piece);
        }
        if self.held.is_empty()
            && !(self.is_json && piece.contains('\\'))
            && self.redactor.undecided(piece) == 0
        {
            return self.redactor.text(piece);
        }
        self.held.push_str(piece);
        let (found, decided) = self.redactor.found(&self.held, self.is_json);
        let out = replaced(&self.held[..decided], found);
        self.held.drain(..decided);
        Cow::Owned(out)
    }

    /// What was held back.
    pub fn finish(self) -> String {
        self.held
    }
}

/// A text with [`REDACTED`] in these places of it.
fn replaced(text: &str, places: impl IntoIterator<Item = (usize, usize)>) -> String {
    let (mut out, mut from) = (String::new(), 0);
    for (at, end) in places {
        out.push_str(&text[from..at]);
        out.push_str(REDACTED);
        from = end;
    }
    out + &text[from..]
}

/// The longest first.
fn order(pattern: &Secret) -> (Reverse<usize>, &str) {
    (Reverse(pattern.expose().len()), pattern.expose())
}

fn percent_encoded(secret: &str, lower: bool) -> Secret {
    let mut out = String::with_capacity(secret.len() * 3);
    for byte in secret.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else if lower {
            out.push_str(&format!("%{byte:02x}"));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out.into()
}

/// What base64 makes of a secret `alignment` bytes into a group of three, without the characters that its neighbours
/// have a part in.
fn inside_base64(secret: &str, alignment: usize, engine: &impl base64::Engine) -> Secret {
    let mut padded = Zeroizing::new(vec![0; alignment]);
    padded.extend_from_slice(secret.as_bytes());
    let encoded = Zeroizing::new(engine.encode(&*padded));
    let from = [0, 2, 3][alignment];
    let whole_bits = padded.len() * 8 / 6;
    encoded[from..whole_bits].to_owned().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use proptest::prelude::*;
    use serde_json::value::RawValue;

    const KEY: &str = "sk-ant/a+b=c d%1234567890";

    fn redactor() -> Redactor {
        Redactor::new([&Secret::from(KEY.to_owned()), &Secret::from("x".to_owned())])
    }

    #[test]
    fn every_encoding_is_taken_out() {
        let redactor = redactor();
        let base64 = |text: String| base64::engine::general_purpose::STANDARD.encode(text);
        for hidden in [
            KEY.to_owned(),
            "sk-ant%2Fa%2Bb%3Dc%20d%251234567890".to_owned(),
            "sk-ant%2fa%2bb%3dc%20d%251234567890".to_owned(),
            base64(KEY.to_owned()),
            base64(format!("a{KEY}b")),
            base64(format!("ab{KEY}")),
            base64(format!("abc{KEY}cd")),
            base64::engine::general_purpose::URL_SAFE.encode(format!("??{KEY}>>")),
        ] {
            let text = format!("before {hidden} after x");
            let clean = redactor.text(&text);
            assert!(
                clean.contains(REDACTED) && clean.starts_with("before ") && clean.ends_with(" after x"),
                "{clean}"
            );
            assert!(!clean.contains("1234567890") && !clean.contains(&hidden[4..12]), "{clean}");
        }
    }

    #[test]
    fn escapes_do_not_hide_it() {
        let escaped =
            format!(r#"{{"a":["{}"],"n":1.50}}"#, KEY.replace('/', r"\/").replace("sk", r"\u0073k"));
        let clean = redactor().json(RawValue::from_string(escaped).unwrap());
        assert_eq!(clean.get(), r#"{"a":["[redacted]"],"n":1.50}"#);
        let harmless = r#"{"a":"\u00e9","n":1.50}"#;
        assert_eq!(redactor().json(RawValue::from_string(harmless.into()).unwrap()).get(), harmless);
    }

    /// Pushes the text in pieces of so many characters.
    fn streamed(mut stream: Stream<'_>, text: &str, size: usize) -> String {
        let characters: Vec<char> = text.chars().collect();
        let mut out = String::new();
        for piece in characters.chunks(size) {
            out.push_str(&stream.push(&piece.iter().collect::<String>()));
        }
        out + &stream.finish()
    }

    #[test]
    fn escapes_do_not_hide_it_in_a_stream_however_that_is_cut() {
        let key = "sk-\"quoted\\/1234567890";
        let redactor = Redactor::new([&Secret::from(key.to_owned())]);
        let plain = serde_json::to_string(key).unwrap();
        let plain = plain.trim_matches('"');
        for hidden in [
            plain.to_owned(),
            plain.replace('/', r"\/"),
            plain.replace('s', r"\u0073").replace('k', r"\u006B"),
            key.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect(),
        ] {
            let source = format!(r#"{{"a":"z\u00fcrich\n{hidden} \ud83e\udd80\t{hidden}","b":"sk-\"quo"}}"#);
            let clean = r#"{"a":"z\u00fcrich\n[redacted] \ud83e\udd80\t[redacted]","b":"sk-\"quo"}"#;
            for size in 1..source.len() {
                assert_eq!(streamed(redactor.json_stream(), &source, size), clean, "{size}: {source}");
            }
        }
        // Cut off in an escape, and what is no escape.
        for odd in [r#"{"a":"\"#, r#"{"a":"\u00"#, r#"{"a":"\uzzzz\q\u{fc}"#, "\\u\u{e9}\u{e9}\u{e9}\u{e9}"] {
            assert_eq!(streamed(redactor.json_stream(), odd, 1), odd);
        }
    }

    /// Would take hours if all patterns were looked for in all that is left, behind each of them.
    #[test]
    fn a_credential_over_and_over_is_looked_for_once() {
        let redactor = redactor();
        let (base64, many) = (base64::engine::general_purpose::STANDARD.encode(KEY), 1 << 17);
        let text = format!("{KEY}{base64}").repeat(many);
        assert_eq!(redactor.text(&text).matches(REDACTED).count(), 2 * many);
        let escaped = RawValue::from_string(format!("[\"{}\\n\"]", KEY.repeat(many))).unwrap();
        assert_eq!(redactor.json(escaped).get(), format!("[\"{}\\n\"]", REDACTED.repeat(many)));
        let hidden = KEY.replace('/', r"\/").repeat(many);
        assert_eq!(redactor.json_stream().push(&hidden), REDACTED.repeat(many));
    }

    proptest! {
        #[test]
        fn a_stream_is_as_the_whole(cuts in proptest::collection::vec(0usize..90, 0..12), times in 1usize..3) {
            let redactor = redactor();
            let text = format!("sk-ant sk-\u{fc} {KEY}sk-ant/a+b").repeat(times);
            let mut stream = redactor.stream();
            let mut out = String::new();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c < text.len() && text.is_char_boundary(*c)).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                out.push_str(&stream.push(&text[from..cut]));
                from = cut;
            }
            out.push_str(&stream.finish());
            prop_assert_eq!(out, redactor.text(&text).into_owned());
        }
    }
}
