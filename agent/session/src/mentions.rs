//! Words about credentials and settings, in a tool's name, in keys and in short texts. Pure.

use ringfence_redact::words::words;

/// Whole words that mean credentials.
const CREDENTIALS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "tokens",
    "credential",
    "credentials",
    "apikey",
    "auth",
    "oauth",
    "authorization",
    "login",
    "ssh",
    "gpg",
    "keychain",
    "keyring",
    "vault",
    "htpasswd",
    "shadow",
    "netrc",
    "pem",
    "jwt",
    "2fa",
    "otp",
    "totp",
];
/// Pairs of words that mean credentials together.
const CREDENTIAL_PAIRS: &[(&str, &str)] = &[
    ("api", "key"),
    ("private", "key"),
    ("access", "key"),
    ("id", "rsa"),
    ("id", "ed25519"),
    ("service", "account"),
];
/// Words beside `token` that make it a piece of text that is counted, or a place in a list: `maxTokens`, `page_token`.
const NO_CREDENTIAL: &[&str] = &[
    "budget",
    "completion",
    "context",
    "continuation",
    "count",
    "cursor",
    "input",
    "limit",
    "max",
    "maximum",
    "min",
    "next",
    "num",
    "number",
    "output",
    "page",
    "pagination",
    "per",
    "prev",
    "previous",
    "progress",
    "prompt",
    "reasoning",
    "resume",
    "starting",
    "stop",
    "sync",
    "thinking",
    "total",
    "usage",
    "used",
];
/// Whole words that mean configuration.
const SETTINGS: &[&str] = &[
    "config",
    "configs",
    "configuration",
    "setting",
    "settings",
    "preferences",
    "prefs",
    "conf",
    "dotfile",
    "env",
];

/// What a call's words are about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mentions {
    pub(crate) credentials: bool,
    pub(crate) settings: bool,
}

impl Mentions {
    /// Takes the words of one name or text.
    pub(crate) fn look_at(&mut self, words: &[String]) {
        self.credentials |= words.iter().enumerate().any(|(at, word)| {
            CREDENTIALS.contains(&word.as_str()) && !(word.starts_with("token") && is_counted(words, at))
        }) || words
            .windows(2)
            .any(|pair| CREDENTIAL_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str())));
        self.settings |= words.iter().any(|word| SETTINGS.contains(&word.as_str()));
    }

    /// The key of a number: `tokens: 5000` counts them, whatever stands beside it.
    pub(crate) fn look_at_number(&mut self, words: &[String]) {
        let counts = |word: &String| word == "tokens";
        if !words.iter().any(counts) {
            self.look_at(words);
        }
    }

    /// Takes those of a text.
    pub(crate) fn look_into(&mut self, text: &str) {
        self.look_at(&words(text));
    }

    /// Whether nothing more can be found.
    pub(crate) fn is_full(self) -> bool {
        self.credentials && self.settings
    }
}

/// What a text mentions.
pub(crate) fn of_text(text: &str) -> Mentions {
    let mut mentions = Mentions::default();
    mentions.look_into(text);
    mentions
}

/// Whether a token is counted: by a word before it, or right behind it.
fn is_counted(words: &[String], at: usize) -> bool {
    let is = |word: Option<&String>| word.is_some_and(|word| NO_CREDENTIAL.contains(&word.as_str()));
    is(words.get(at + 1)) || (1..=2).any(|back| is(at.checked_sub(back).and_then(|at| words.get(at))))
}

#[cfg(test)]
mod tests {
    use super::{Mentions, of_text};
    use ringfence_redact::words::words;

    #[test]
    fn tokens_that_are_counted_are_none() {
        for name in [
            "maxTokens",
            "max_tokens",
            "maxOutputTokens",
            "pageToken",
            "next_page_token",
            "tokensNum",
            "tokenLimit",
            "tokenize",
            "tokenizer.rs",
            "author",
            "cursor",
            "progressToken",
        ] {
            assert!(!of_text(name).credentials, "{name}");
        }
        for name in ["token", "access_token", "githubToken", "token_secret", "auth", "API-key", "tokens"] {
            assert!(of_text(name).credentials, "{name}");
        }
    }

    #[test]
    fn a_number_is_no_token() {
        let mut mentions = Mentions::default();
        mentions.look_at_number(&words("tokens"));
        assert!(!mentions.credentials);
        mentions.look_at_number(&words("otp"));
        assert!(mentions.credentials, "a number may be a credential");
    }
}
