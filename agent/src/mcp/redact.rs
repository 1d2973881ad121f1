//! Takes secrets out of a payload before it is stored: values by their key's name, tokens by their shape. Pure.
//!
//! Works on the text as it stands, JSON or not, so that a line nobody could parse is redacted too.

use super::classify;
use regex::Regex;
use std::{borrow::Cow, sync::LazyLock};

/// What stands in a secret's place.
pub(crate) const REDACTED: &str = "[redacted]";

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

/// Shapes of tokens in use: provider keys, forge tokens, cloud keys, JWTs, private keys, bearer headers, URL passwords.
static SHAPES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"sk-[A-Za-z0-9_-]{16,}",
        r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}",
        r"|xox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}",
        r"|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}|hf_[A-Za-z0-9]{25,}",
        r"|eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-[^-])*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        r"|(?i:bearer) [A-Za-z0-9._~+/=-]{12,}",
        r"|://[^\s/@:\x22]{1,64}:[^\s/@\x22]{1,128}@",
    ))
    .ok()
});

/// The text without its secrets.
pub(crate) fn redact(text: &str) -> Cow<'_, str> {
    let named = by_key(text);
    let Some(shapes) = SHAPES.as_ref() else { return Cow::Borrowed(REDACTED) };
    match shapes.replace_all(&named, |found: &regex::Captures<'_>| {
        if found[0].starts_with("://") { format!("://{REDACTED}@") } else { REDACTED.to_owned() }
    }) {
        Cow::Borrowed(_) => named,
        Cow::Owned(shaped) => Cow::Owned(shaped),
    }
}

/// Replaces strings that are the value of a secret key, directly or inside its array or object.
fn by_key(text: &str) -> Cow<'_, str> {
    let mut out: Option<String> = None;
    let mut copied = 0;
    // Depth at which the secret key's value began; strings are secrets while the depth is at least that.
    let (mut depth, mut secret_from) = (0usize, None::<usize>);
    let mut rest = Strings { text, at: 0 };
    while let Some(token) = rest.next_token() {
        match token {
            Token::Open => depth += 1,
            Token::Close => {
                depth = depth.saturating_sub(1);
                if secret_from.is_some_and(|from| depth < from) {
                    secret_from = None;
                }
            }
            Token::Comma => {
                if secret_from == Some(depth) {
                    secret_from = None;
                }
            }
            Token::Key(key) => {
                if secret_from.is_none() && is_secret(key) {
                    secret_from = Some(depth);
                }
            }
            Token::Value { start, end } => {
                if secret_from.is_some() && end > start {
                    let into = out.get_or_insert_with(|| String::with_capacity(text.len()));
                    into.push_str(&text[copied..start]);
                    into.push_str(REDACTED);
                    copied = end;
                }
            }
        }
    }
    match out {
        None => Cow::Borrowed(text),
        Some(mut out) => {
            out.push_str(&text[copied..]);
            Cow::Owned(out)
        }
    }
}

fn is_secret(key: &str) -> bool {
    if key.len() > 128 || HARMLESS.contains(&key) {
        return false;
    }
    let words = classify::words(key);
    words.iter().any(|word| SECRET_WORDS.contains(&word.as_str()))
        || words.windows(2).any(|pair| SECRET_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str())))
}

enum Token<'a> {
    Open,
    Close,
    Comma,
    /// A string before a colon, without quotes.
    Key(&'a str),
    /// Any other string: the range between its quotes.
    Value {
        start: usize,
        end: usize,
    },
}

/// Walks JSON-like text by its strings and brackets. Quotes and brackets are ASCII, so byte positions are char borders.
struct Strings<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Strings<'a> {
    fn next_token(&mut self) -> Option<Token<'a>> {
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
                    while end < bytes.len() && bytes[end] != b'"' {
                        end += if bytes[end] == b'\\' { 2 } else { 1 };
                    }
                    let end = end.min(bytes.len());
                    self.at = (end + 1).min(bytes.len());
                    let colon = bytes[self.at..].iter().find(|b| !b.is_ascii_whitespace()) == Some(&b':');
                    return Some(match (colon, self.text.get(start..end)) {
                        (true, Some(key)) => Token::Key(key),
                        (_, Some(_)) => Token::Value { start, end },
                        // A backslash before a multi-byte character at the very end: nothing to cut safely.
                        (_, None) => Token::Value { start, end: start },
                    });
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::redact;

    #[test]
    fn values_of_secret_keys_go_and_the_rest_stays() {
        let cases = [
            (r#"{"password":"hunter2","user":"a"}"#, r#"{"password":"[redacted]","user":"a"}"#),
            (r#"{"apiKey": "x", "b": "y"}"#, r#"{"apiKey": "[redacted]", "b": "y"}"#),
            (
                r#"{"secrets":["a",{"b":"c"}],"d":"e"}"#,
                r#"{"secrets":["[redacted]",{"b":"[redacted]"}],"d":"e"}"#,
            ),
            (r#"{"a":{"token":"t\"u"},"x":"y"}"#, r#"{"a":{"token":"[redacted]"},"x":"y"}"#),
            (r#"{"max_tokens":100,"tokenizer":"cl100k"}"#, r#"{"max_tokens":100,"tokenizer":"cl100k"}"#),
            (r#"{"_meta":{"progressToken":"p1"}}"#, r#"{"_meta":{"progressToken":"p1"}}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(redact(text), expected, "{text}");
        }
    }

    #[test]
    fn tokens_go_by_their_shape() {
        for secret in [
            "sk-ant-api03-Zm9vYmFyYmF6cXV4",
            "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
            "AKIAIOSFODNN7EXAMPLE",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc",
            "Bearer abcdefghijklmnop",
            "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----",
        ] {
            let text = format!(r#"{{"text":"before {secret} after"}}"#);
            assert_eq!(redact(&text), r#"{"text":"before [redacted] after"}"#, "{secret}");
        }
        assert_eq!(redact("https://u:pw@host/x"), "https://[redacted]@host/x");
        assert_eq!(redact("nothing here: 12345"), "nothing here: 12345");
    }

    proptest::proptest! {
        #[test]
        fn any_text_passes(text in ".{0,80}", quoted in r#"["\\{}:,a\u{e9}]{0,40}"#) {
            let _ = redact(&text);
            let _ = redact(&quoted);
        }
    }
}
