//! What the remote server was given and must not come back: to the agent, or into the record. Pure.
//!
//! It is looked for as it was sent, and as JSON may write it. A server that means to hand it over can write it in any other way,
//! so this keeps a credential out of error texts and echoes, and not from an agent that the server is in league with.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use memchr::memmem::Finder;
use percent_encoding::percent_decode_str;
use ringfence_credentials::Secret;
use ringfence_redact::{
    REDACTED, misplaced,
    names::{Surety, judge},
};
use std::{collections::BTreeSet, fmt};
use url::Url;

/// Shortest secret that is looked for: what is shorter is in every text.
const MIN: usize = 8;
/// Words anywhere in the name of a header, a cookie or a parameter whose value is a secret whatever it looks like, beside those
/// that are one of a secret wherever they stand.
const WORDS: &[&str] = &["auth", "key", "pat", "sig", "signature"];
/// The same of cookies.
const COOKIE_WORDS: &[&str] = &["auth", "key", "pat", "sig", "signature", "session", "sid", "sess"];
/// Shortest part of the path that is a key though it has one kind of letters only, bytes.
const LONG_PART: usize = 16;

/// What is looked for.
pub(super) struct Needle(Finder<'static>);

impl fmt::Debug for Needle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Needle")
    }
}

/// A message grew longer than one may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Long;

/// The secrets of an address and of the headers that go to it. Ordinary values are none: names of tools stand in messages.
pub(super) fn of(url: &Url, headers: &[(String, Secret)]) -> Vec<Needle> {
    let mut found = BTreeSet::new();
    for (name, value) in headers {
        let value = value.expose();
        if name.eq_ignore_ascii_case("cookie") {
            for part in value.split(';') {
                let (name, value) = part.split_once('=').unwrap_or(("", part));
                found.extend(if_secret(COOKIE_WORDS, name, value.trim().trim_matches('"')));
            }
            continue;
        }
        // Of `Bearer TOKEN`, the token alone may come back, too.
        let bare = value.rsplit(' ').next().unwrap_or_default();
        found.extend(if_secret(WORDS, name, bare));
        if value.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("basic "))
            && let Some(pair) =
                BASE64_STANDARD.decode(bare).ok().and_then(|pair| String::from_utf8(pair).ok())
        {
            found.extend(pair.split_once(':').map(|(_, password)| password.to_owned()));
        }
    }
    let (user, password) = (url.username(), url.password().unwrap_or_default());
    if !user.is_empty() || !password.is_empty() {
        for part in [user, password] {
            found.extend([part.to_owned(), decoded(part)]);
        }
        // As the HTTP client sends the two.
        found.insert(BASE64_STANDARD.encode(format!("{}:{}", decoded(user), decoded(password))));
    }
    for pair in url.query().unwrap_or_default().split('&') {
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        let plain = decoded(&value.replace('+', " "));
        if if_secret(WORDS, &decoded(name), &plain).is_some() {
            found.extend([value.to_owned(), plain]);
        }
    }
    for segment in url.path_segments().into_iter().flatten() {
        if is_key(&decoded(segment)) {
            found.extend([segment.to_owned(), decoded(segment)]);
        }
    }
    let mut all: BTreeSet<String> = found.into_iter().filter(|secret| secret.len() >= MIN).collect();
    for secret in all.clone() {
        let json = serde_json::to_string(&secret).unwrap_or_default();
        let json = json.trim_matches('"').to_owned();
        all.extend([json.replace('/', "\\/"), json]);
    }
    let mut all: Vec<String> = all.into_iter().filter(|secret| secret.len() >= MIN).collect();
    // One may be part of another.
    all.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    all.iter().map(|secret| Needle(Finder::new(secret).into_owned())).collect()
}

/// The value, if it is a secret by its name, which may have one of these words, or by its looks.
fn if_secret(sure: &[&str], name: &str, value: &str) -> Option<String> {
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    let is_sure =
        |word: &str| sure.iter().any(|own| own.eq_ignore_ascii_case(word)) || judge(word) >= Surety::Secret;
    let named = judge(name) >= Surety::Secret || words.any(is_sure);
    (named || misplaced::shown(value) != value).then(|| value.to_owned())
}

/// Whether a part of the path is a key by its looks: also an id, or one word of letters and digits. What is words with a number
/// behind them may be one where it is not shown; here it is the name of a project, which stands in answers.
fn is_key(part: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| part.bytes().any(|byte| kind(&byte));
    let is_id = has(u8::is_ascii_alphabetic) && part.bytes().all(|c| c.is_ascii_hexdigit() || c == b'-');
    let is_word = part.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let is_long = part.len() >= LONG_PART && has(u8::is_ascii_digit);
    is_long && (is_id || is_word) || misplaced::shown(part) != part
}

/// Without the percent signs of an address.
fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// A message without them, in time that grows with its length alone.
///
/// # Errors
/// [`Long`]: it would have more than `limit` bytes.
pub(super) fn without(needles: &[Needle], mut message: Vec<u8>, limit: usize) -> Result<Vec<u8>, Long> {
    for Needle(finder) in needles {
        let hits = finder.find_iter(&message).count();
        if hits == 0 {
            continue;
        }
        // What stands in their place may be longer. It takes what it has, and not what a vector that grows does.
        let grown = message.len().saturating_add(hits.saturating_mul(REDACTED.len()));
        let length = grown.saturating_sub(hits.saturating_mul(finder.needle().len()));
        if length > limit {
            return Err(Long);
        }
        let (mut out, mut from) = (Vec::with_capacity(length), 0);
        for at in finder.find_iter(&message) {
            out.extend_from_slice(message.get(from..at).unwrap_or_default());
            out.extend_from_slice(REDACTED.as_bytes());
            from = at + finder.needle().len();
        }
        out.extend_from_slice(message.get(from..).unwrap_or_default());
        message = out;
    }
    if message.len() > limit { Err(Long) } else { Ok(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needles(url: &str, headers: &[(&str, &str)]) -> Vec<Needle> {
        let header =
            |(name, value): &(&str, &str)| ((*name).to_owned(), Secret::checked(value).expect("a secret"));
        of(&url.parse().expect("an address"), &headers.iter().map(header).collect::<Vec<_>>())
    }

    fn cleaned(needles: &[Needle], text: &str) -> String {
        String::from_utf8(without(needles, text.as_bytes().to_vec(), 1 << 20).expect("short")).expect("text")
    }

    #[test]
    fn every_part_that_is_a_secret_is_taken_out() {
        let key = "0123456789abcdef0123456789abcdef";
        let found = needles(
            &format!(
                "https://us3rt0ken:p%40ssw0rd1@h.example/{key}/6f9619ff-8b86-d011/mcp?api_key=s3cr3t-q%2Fuery&mode=properties"
            ),
            &[
                ("Authorization", "Bearer tok/en+12345"),
                (
                    "Cookie",
                    "sid=S1S1S1S1S1; connect.sid=S5S5S5S5; theme=darkdarkdark; auth_token=\"S2S2S2S2\"; PHPSESSID=S3S3S3S3; sessionid=S4S4S4S4",
                ),
                ("X-Api-Key", "plain-word"),
            ],
        );
        for secret in [
            "us3rt0ken",
            "p%40ssw0rd1",
            "p@ssw0rd1",
            key,
            "s3cr3t-q%2Fuery",
            "s3cr3t-q/uery",
            "tok/en+12345",
            "tok\\/en+12345",
            "S1S1S1S1S1",
            "S2S2S2S2",
            "S3S3S3S3",
            "S4S4S4S4",
            "S5S5S5S5",
            "6f9619ff-8b86-d011",
            // us3rt0ken:p@ssw0rd1
            "dXMzcnQwa2VuOnBAc3N3MHJkMQ==",
            "plain-word",
        ] {
            assert_eq!(cleaned(&found, &format!("a {secret} b")), "a [redacted] b", "{secret}");
        }
        let basic = needles("https://h/", &[("authorization", "Basic bWU6aHVudGVyMjIy")]);
        assert_eq!(cleaned(&basic, "bWU6aHVudGVyMjIy hunter222"), "[redacted] [redacted]");
    }

    #[test]
    fn what_is_no_secret_stays() {
        let ordinary = needles(
            "https://h.example/mcp/properties/my-project-123456/knowledge-base-2025/2025-06-18-001234?toolsets=pull_requests&access=read-only&code=typescript",
            &[
                ("X-MCP-Tools", "create_pull_request"),
                ("X-Mode", "properties"),
                ("X-Author", "somebody"),
                ("X-Session", "research"),
                ("Cookie", "theme=darkdarkdark; access=readonly"),
            ],
        );
        let list = r#"{"name":"create_pull_request","properties":{"pull_requests":"somebody darkdarkdark read-only readonly typescript research my-project-123456 knowledge-base-2025 2025-06-18-001234"}}"#;
        assert_eq!(cleaned(&ordinary, list), list);
        let keys =
            ["6f9619ff-8b86-d011-b42d-00c04fc964ff", "a8f3k2j1m9x0q7w5", "sk-proj-0123456789abcdefghij"];
        for key in keys {
            let found = needles(&format!("https://h.example/my-project-123456/{key}/mcp"), &[]);
            assert_eq!(cleaned(&found, key), "[redacted]", "the control: {key}");
        }
    }

    #[test]
    fn a_message_of_nothing_else_takes_no_longer_and_is_bounded() {
        let found = needles("https://h/", &[("authorization", "Bearer 0123456789")]);
        let many = "0123456789".repeat(2_000_000);
        // With a copy of the rest for every hit, this would take an hour.
        assert_eq!(without(&found, many.into_bytes(), 20_000_000).map(|out| out.len()), Ok(20_000_000));
        let found = needles("https://h/", &[("authorization", "Bearer 01234567")]);
        assert_eq!(without(&found, "01234567".repeat(100).into_bytes(), 999), Err(Long));
        assert_eq!(without(&found, vec![b'x'; 10], 9), Err(Long));
        let out = without(&found, "01234567 ".repeat(100).into_bytes(), 1100).unwrap();
        assert_eq!((out.len(), out.capacity()), (1100, 1100), "it takes what it has");
    }
}
