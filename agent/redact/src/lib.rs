//! Removes secrets from text before it is stored or printed: values by their key's name, tokens by their shape. Pure.
//!
//! It works on the text as it stands, JSON or not, so it also redacts a line that does not parse. `misplaced` finds
//! credentials in the wrong place of a configuration; `words` splits names into words.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod misplaced;
pub mod words;
use crate::words::words;
use regex::Regex;
use std::{borrow::Cow, sync::LazyLock};

/// What stands in a secret's place.
pub const REDACTED: &str = "[redacted]";
/// The same in a number's place.
const REDACTED_NUMBER: &str = "\"[redacted]\"";
/// How many times text stands in a string of text in a string that is looked into for keys: each time doubles the
/// backslashes, so that real texts end long before.
const DEEPEST_TEXT: usize = 4;

/// Whole words of a key whose text is a secret.
const SECRET_WORDS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "credential",
    "credentials",
    "apikey",
    "authorization",
    "cookie",
    "jwt",
    "pin",
];
/// Two words that mean it together.
const SECRET_PAIRS: &[(&str, &str)] = &[
    ("api", "key"),
    ("private", "key"),
    ("access", "key"),
    ("secret", "key"),
    ("signing", "key"),
    ("auth", "key"),
    ("set", "cookie"),
];
/// Keys with a secret word that hold no secret: MCP's own, and cursors.
const HARMLESS: &[&str] = &["progressToken", "nextPageToken", "pageToken", "continuationToken", "stopToken"];

/// Shapes of tokens in use, each as how it begins and how it goes on: provider keys, forge tokens, cloud keys, private
/// keys, bearer headers, URL passwords. What begins as none of them is not searched further, whatever the case of its
/// letters. Each either matches within its run of characters or fails within a bounded number of them: a search that is
/// alive for long beside others that match would be begun again at each match, and take quadratic time.
const SHAPES: &[(&str, &str)] = &[
    ("sk-", "[A-Za-z0-9_-]{16,}"),
    ("gh[pousr]_", "[A-Za-z0-9]{20,}"),
    ("github_pat_", "[A-Za-z0-9_]{20,}"),
    ("glpat-", "[A-Za-z0-9_-]{16,}"),
    ("xox", "[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("AKIA", "[0-9A-Z]{16}"),
    ("ASIA", "[0-9A-Z]{16}"),
    ("AIza", "[A-Za-z0-9_-]{30,}"),
    (r"ya29\.", "[A-Za-z0-9_-]{20,}"),
    ("npm_", "[A-Za-z0-9]{30,}"),
    ("pypi-", "[A-Za-z0-9_-]{30,}"),
    ("hf_", "[A-Za-z0-9]{25,}"),
    ("-----BEGIN", " [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-[^-])*(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"),
    ("(?i:bearer) ", "[A-Za-z0-9._~+/=-]{12,}"),
    ("://", r"[^\s/@:\x22]{1,64}:[^\s/@\x22]{1,128}@"),
];
/// JSON Web Tokens: searched for alone, since whether one is there shows only at the end of a run of any length.
const WEB_TOKEN: (&str, &str) = ("eyJ", r"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*");

/// What has one of [`SHAPES`].
static SHAPED: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let shapes: Vec<String> = SHAPES.iter().map(|(begins, goes_on)| format!("{begins}{goes_on}")).collect();
    Regex::new(&shapes.join("|")).ok()
});
/// What has the shape of [`WEB_TOKEN`].
static WEB_TOKENS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let (begins, goes_on) = WEB_TOKEN;
    Regex::new(&format!("{begins}{goes_on}")).ok()
});
/// What is in every text that holds a secret, if it is ASCII and nothing in it is escaped: most messages have none of it,
/// and this one search is all that they cost.
static SUSPICIOUS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let beginnings = SHAPES.iter().chain([&WEB_TOKEN]).map(|(begins, _)| *begins);
    let any: Vec<&str> = ROOTS.into_iter().chain(beginnings).collect();
    Regex::new(&format!("(?i-u:{})", any.join("|"))).ok()
});
/// Nothing shorter has a shape, bytes.
const SHORTEST: usize = 7;

/// Makes what the first search needs, which takes some milliseconds: for whoever has time before there is anything to search.
pub fn prepare() {
    let _ = (SUSPICIOUS.is_some(), SHAPED.is_some(), WEB_TOKENS.is_some());
}

/// Any text without its secrets. JSON stays JSON: what is replaced never reaches beyond one of its strings.
pub fn redact(text: &str) -> Cow<'_, str> {
    walk(text, false, DEEPEST_TEXT)
}

/// A message without its secrets, its id, method and tool's name as they are: requests and answers are paired by them.
pub fn message(text: &str) -> Cow<'_, str> {
    walk(text, true, DEEPEST_TEXT)
}

/// A command line without its secrets: by shape, behind a flag that names one (`--api-key VALUE`), and in
/// `NAME=VALUE`, `Header: VALUE` where the name does.
pub fn command(words: &[String]) -> Vec<String> {
    let is_flag = |word: &str| word.starts_with('-') && !word.contains(['=', ':']);
    let mut behind_secret = false;
    let mut redacted = Vec::with_capacity(words.len());
    for word in words {
        let named = word.find(['=', ':']).filter(|at| is_secret(&word[..*at]));
        redacted.push(match named {
            _ if behind_secret && !is_flag(word) => REDACTED.to_owned(),
            Some(at) => format!("{}{REDACTED}", &word[..=at]),
            None => redact(word).into_owned(),
        });
        behind_secret = is_flag(word) && is_secret(word);
    }
    redacted
}

/// `texts`: how many levels of text in strings are looked into.
fn walk(text: &str, is_message: bool, texts: usize) -> Cow<'_, str> {
    if is_harmless(text) { Cow::Borrowed(text) } else { look_through(text, is_message, texts) }
}

/// Whether one look at the whole says that nothing in it can be a secret.
fn is_harmless(text: &str) -> bool {
    text.is_ascii()
        && memchr::memchr(b'\\', text.as_bytes()).is_none()
        && SUSPICIOUS.as_ref().is_some_and(|suspicious| !suspicious.is_match(text))
}

fn look_through(text: &str, is_message: bool, texts: usize) -> Cow<'_, str> {
    // Where nothing is escaped, every string stands in the text as it reads: what the whole has none of, no piece has.
    let clean = memchr::memchr(b'\\', text.as_bytes()).is_none() && !has_shape(text);
    let mut out = Rewriter { text, clean, out: None, copied: 0 };
    let mut cursor = Cursor::new(text, is_message);
    let mut rest = Strings { text, at: 0 };
    let (mut outside, mut keys) = (0, 0);
    while let Some(token) = rest.next_token() {
        match token {
            Token::Open => cursor.open(),
            Token::Close => cursor.close(),
            Token::Comma => cursor.comma(),
            Token::Number { start, end } => {
                if cursor.is_secret() {
                    out.shape(outside, start);
                    outside = end;
                    out.replace(start, end, REDACTED_NUMBER);
                }
            }
            Token::String { start, end, is_key } => {
                out.shape(outside, start);
                outside = end;
                let content = text.get(start..end).unwrap_or_default();
                let decoded = decode(content);
                if is_key {
                    cursor.key(&decoded);
                    if !clean && let Cow::Owned(_) = shapeless(&decoded) {
                        keys += 1;
                        // Keys stay apart: an object that has one twice is read by nobody.
                        let name = if keys == 1 { REDACTED.to_owned() } else { format!("[redacted {keys}]") };
                        out.replace(start, end, &name);
                    }
                } else if cursor.is_secret() && !content.is_empty() {
                    out.replace(start, end, REDACTED);
                } else if !clean
                    && !cursor.is_spared()
                    && let Cow::Owned(shaped) = without_secrets(&decoded, texts)
                {
                    match decoded {
                        // Nothing was escaped, and nothing in what is left needs to be.
                        Cow::Borrowed(_) => out.replace(start, end, &shaped),
                        Cow::Owned(_) => {
                            let quoted = serde_json::Value::from(shaped).to_string();
                            out.replace(start, end, &quoted[1..quoted.len() - 1]);
                        }
                    }
                }
            }
        }
    }
    out.shape(outside, text.len());
    out.finish()
}

/// What a JSON string's content says; as it stands where it is none.
fn decode(content: &str) -> Cow<'_, str> {
    if !content.contains('\\') {
        return Cow::Borrowed(content);
    }
    serde_json::from_str(&format!("\"{content}\"")).map_or(Cow::Borrowed(content), Cow::Owned)
}

/// A string's text without secrets: by their shape, and, where it may be JSON itself (most results of tools are), by
/// their keys. Owned where there was some.
fn without_secrets(text: &str, texts: usize) -> Cow<'_, str> {
    let shaped = shapeless(text);
    if texts == 0 || !text.contains('"') {
        return shaped;
    }
    match walk(&shaped, false, texts - 1) {
        Cow::Owned(walked) => Cow::Owned(walked),
        Cow::Borrowed(_) => shaped,
    }
}

/// A text without what has the shape of a secret; owned where there was some.
fn shapeless(text: &str) -> Cow<'_, str> {
    if text.len() < SHORTEST {
        return Cow::Borrowed(text);
    }
    let (Some(shaped), Some(web_tokens)) = (SHAPED.as_ref(), WEB_TOKENS.as_ref()) else {
        return Cow::Owned(REDACTED.to_owned());
    };
    let replace = |found: &regex::Captures<'_>| {
        if found[0].starts_with("://") { format!("://{REDACTED}@") } else { REDACTED.to_owned() }
    };
    // Looking alone costs a fraction of looking and noting where.
    let without =
        if web_tokens.is_match(text) { web_tokens.replace_all(text, REDACTED) } else { Cow::Borrowed(text) };
    if !shaped.is_match(&without) {
        return without;
    }
    Cow::Owned(shaped.replace_all(&without, replace).into_owned())
}

/// Whether anything in a text has the shape of a secret.
fn has_shape(text: &str) -> bool {
    match (SHAPED.as_ref(), WEB_TOKENS.as_ref()) {
        (Some(shaped), Some(web_tokens)) => shaped.is_match(text) || web_tokens.is_match(text),
        _ => true,
    }
}

/// The text as it is copied, with something else in places.
struct Rewriter<'a> {
    text: &'a str,
    /// Nothing in it has a shape.
    clean: bool,
    out: Option<String>,
    copied: usize,
}

impl<'a> Rewriter<'a> {
    fn replace(&mut self, start: usize, end: usize, with: &str) {
        let out = self.out.get_or_insert_with(|| String::with_capacity(self.text.len()));
        out.push_str(self.text.get(self.copied..start).unwrap_or_default());
        out.push_str(with);
        self.copied = end;
    }

    /// What stands between strings: structure in JSON, anything elsewhere.
    fn shape(&mut self, start: usize, end: usize) {
        if !self.clean
            && let Some(piece) = self.text.get(start..end)
            && let Cow::Owned(shaped) = shapeless(piece)
        {
            self.replace(start, end, &shaped);
        }
    }

    fn finish(self) -> Cow<'a, str> {
        let Some(mut out) = self.out else { return Cow::Borrowed(self.text) };
        out.push_str(self.text.get(self.copied..).unwrap_or_default());
        Cow::Owned(out)
    }
}

/// Where in the text the walk is, and what that makes of a string there.
struct Cursor {
    depth: usize,
    /// Depth at which the secret key's value began; strings are secrets while the depth is at least that.
    secret_from: Option<usize>,
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
            secret_from: None,
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
        if self.secret_from.is_some_and(|from| self.depth < from) {
            self.secret_from = None;
        }
    }

    fn comma(&mut self) {
        if self.secret_from == Some(self.depth) {
            self.secret_from = None;
        }
    }

    fn key(&mut self, key: &str) {
        if self.secret_from.is_none() && is_secret(key) {
            self.secret_from = Some(self.depth);
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

    fn is_secret(&self) -> bool {
        self.secret_from.is_some()
    }

    fn is_spared(&self) -> bool {
        self.members.is_some_and(|members| {
            self.pairs && self.depth == members || self.names && self.depth == members + 1
        })
    }
}

fn is_secret(key: &str) -> bool {
    if key.len() > 128 || !may_be_secret(key) || HARMLESS.contains(&key) {
        return false;
    }
    let words = words(key);
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
        || words.windows(2).any(|pair| SECRET_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str())))
}

/// What every secret word and pair begins with or has in it: most keys are told apart without being taken to words.
const ROOTS: [&str; 9] = ["auth", "cookie", "cred", "jwt", "key", "pass", "pin", "secret", "token"];

fn may_be_secret(key: &str) -> bool {
    // Characters beyond ASCII may fold to some of it.
    !key.is_ascii()
        || key.bytes().enumerate().any(|(at, byte)| {
            let rest = &key.as_bytes()[at..];
            matches!(byte.to_ascii_lowercase(), b'a' | b'c' | b'j' | b'k' | b'p' | b's' | b't')
                && ROOTS.iter().any(|root| {
                    rest.get(..root.len()).is_some_and(|part| part.eq_ignore_ascii_case(root.as_bytes()))
                })
        })
}

enum Token {
    Open,
    Close,
    Comma,
    /// A number that stands alone: where it begins and ends.
    Number {
        start: usize,
        end: usize,
    },
    /// A string: the range between its quotes, and whether a colon follows.
    String {
        start: usize,
        end: usize,
        is_key: bool,
    },
}

/// Walks JSON-like text by its strings and brackets. Quotes and brackets are ASCII, so byte positions are char borders.
struct Strings<'a> {
    text: &'a str,
    at: usize,
}

impl Strings<'_> {
    fn next_token(&mut self) -> Option<Token> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'{' | b'[' => return Some(Token::Open),
                b'}' | b']' => return Some(Token::Close),
                b',' => return Some(Token::Comma),
                b'"' => {
                    let start = self.at;
                    let mut end = start;
                    while let Some(found) = memchr::memchr2(b'"', b'\\', bytes.get(end..).unwrap_or_default())
                    {
                        end += found;
                        if bytes[end] == b'"' {
                            break;
                        }
                        end += 2;
                    }
                    // A backslash at the very end skips beyond it; without a quote the string ends with the text.
                    let end = if bytes.get(end) == Some(&b'"') { end } else { bytes.len() };
                    self.at = (end + 1).min(bytes.len());
                    let is_key = bytes[self.at..].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b':');
                    return Some(Token::String { start, end, is_key });
                }
                b'-' | b'0'..=b'9' => {
                    let start = self.at - 1;
                    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
                    let end = start + bytes[start..].iter().take_while(|byte| is_part(byte)).count();
                    self.at = end;
                    // A hyphen of prose is none.
                    if bytes[start..end].iter().any(u8::is_ascii_digit) {
                        return Some(Token::Number { start, end });
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
