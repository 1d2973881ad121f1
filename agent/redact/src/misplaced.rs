//! Credentials where none belong: in a variable's name, a command's words, an address. What people put into the wrong key
//! is not printed again, where a log or a screen has it. Pure.

use crate::{REDACTED, redact};
use std::{borrow::Cow, fmt};
use url::Url;

/// Shortest run of letters and digits that is taken for a key though it has no known shape, bytes.
const LONG_RUN: usize = 20;
/// The same of hex digits alone.
const LONG_HEX: usize = 32;

/// Shortest part of an address's path that may be a secret though it has one kind of letters only, bytes.
const LONG_SEGMENT: usize = 16;

/// A text without what is a credential by its shape, or looks like one.
pub fn shown(text: &str) -> Cow<'_, str> {
    let text = redact(text);
    if !text.split(|c| !is_of_key(c)).any(is_key_like) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    for piece in text.split_inclusive(|c| !is_of_key(c)) {
        let word = piece.trim_end_matches(|c| !is_of_key(c));
        out.push_str(if is_key_like(word) { REDACTED } else { word });
        out.push_str(&piece[word.len()..]);
    }
    out.into()
}

fn is_of_key(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '+' | '=')
}

/// Random letters and digits: such a run has all three kinds of them, or is hex. Names of models, sections and files are
/// words and dates.
fn is_key_like(run: &str) -> bool {
    let has = |kind: fn(&u8) -> bool| run.bytes().any(|byte| kind(&byte));
    let is_mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && has(u8::is_ascii_digit);
    (run.len() >= LONG_RUN && is_mixed)
        || (run.len() >= LONG_HEX
            && run.bytes().all(|byte| byte.is_ascii_hexdigit())
            && has(u8::is_ascii_digit))
}

/// Whether a part of the path of a remote server's address may be a secret: a key by its looks, an id that nobody could guess.
/// Some providers give each user an address instead of a key.
pub fn may_be_secret(segment: &str) -> bool {
    let is_long = segment.len() >= LONG_SEGMENT && segment.bytes().any(|byte| byte.is_ascii_digit());
    is_long || shown(segment) != segment
}

/// What a configuration names: a variable, a credential of systemd's.
#[derive(Debug, Clone, Copy)]
pub struct Name<'a>(pub &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name) = *self;
        // Small letters and digits in one word are what keys of some providers are, and names of variables are not.
        let has = |kind: fn(&u8) -> bool| name.bytes().any(|byte| kind(&byte));
        let is_odd = name.len() >= LONG_RUN && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit);
        if is_odd || shown(name) != name {
            return f.write_str("(a name that is not shown: it looks like the credential itself)");
        }
        f.write_str(&ringfence_base::escape::line(name))
    }
}

/// Whether a text can be the name of a variable of the environment.
pub fn is_variable(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// A command: what is run, not what with.
#[derive(Debug, Clone, Copy)]
pub struct Command<'a>(pub &'a [String]);

impl fmt::Display for Command<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([program, arguments @ ..]) = self else { return Ok(()) };
        write!(f, "{}", Name(program))?;
        match arguments.len() {
            0 => Ok(()),
            1 => f.write_str(" with an argument"),
            n => write!(f, " with {n} arguments"),
        }
    }
}

/// An address: no user, password, query or fragment, and nothing in its path that looks like a key.
pub fn address(url: &Url) -> String {
    let mut clean = url.clone();
    // They fail for an address that can have none.
    let _ = (clean.set_username(""), clean.set_password(None));
    clean.set_query(None);
    clean.set_fragment(None);
    shown(clean.as_str()).into_owned()
}

/// A text that should be an address.
pub fn as_address(text: &str) -> String {
    match Url::parse(text) {
        Ok(url) if url.has_host() => address(&url),
        _ => "what is given".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys as providers give them, and as no list of shapes has them.
    const KEYS: [&str; 7] = [
        "sk-ant-api03-abcdefghijklmnop-qrstuvwxyz",
        "sk-proj-0123456789abcdefghij",
        "gsk_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "0123456789abcdef0123456789abcdef",
        "ghp_0123456789abcdefghij0123456789abcd",
        "Zm9vYmFyMTIzNDU2Nzg5MGFiY2Rl",
    ];

    #[test]
    fn a_key_is_shown_nowhere() {
        for key in KEYS {
            assert!(!shown(&format!("\"{key}\" is not one of a, b")).contains(key), "{key}");
            assert!(!Name(key).to_string().contains(key), "{key}");
            for words in [vec![key], vec!["sh", "-c", key], vec!["pass", key]] {
                let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
                assert!(!Command(&words).to_string().contains(key), "{words:?}");
            }
            for url in [
                "https://h.example/p?key=K",
                "https://u:K@h.example/",
                "https://h.example/K/mcp",
                "K",
                "K://x",
                "https://h/#K",
            ] {
                let text = as_address(&url.replace('K', key));
                assert!(!text.contains(key), "{text}");
            }
        }
    }

    #[test]
    fn parts_of_a_path_may_be_secrets() {
        for part in KEYS.iter().chain(&["6f9619ff-8b86-d011-b42d-00c04fc964ff", "a8f3k2j1m9x0q7w5"]) {
            assert!(may_be_secret(part), "{part}");
        }
        for part in ["", "mcp", "v1", "2025-06-18", "model-context-protocol", "pull_requests"] {
            assert!(!may_be_secret(part), "{part}");
        }
    }

    #[test]
    fn what_is_no_key_is_shown_as_it_is() {
        for text in [
            "claude-sonnet-4-5-20250929",
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY_2",
            "my_key",
            "llm",
            "anthropic-production-key",
            "/run/secrets/anthropic",
            "/etc/ringfence/profiles/coder.toml:12: llm.x.provider: \"open\" is not one of anthropic, openai",
        ] {
            assert_eq!(shown(text), text);
        }
        for name in ["ANTHROPIC_API_KEY", "MY_KEY_2", "llm", "anthropic-key"] {
            assert_eq!(Name(name).to_string(), name);
        }
        let words = ["pass", "show", "llm"].map(str::to_owned);
        assert_eq!(Command(&words).to_string(), "pass with 2 arguments");
        assert_eq!(as_address("https://h.example/v1/mcp?x=1"), "https://h.example/v1/mcp");
        assert!(is_variable("MY_KEY_2") && !is_variable("sk-x") && !is_variable("2X"));
    }
}
