//! Words about credentials and settings, in a tool's name, in keys and in short texts. Pure.

use crate::{sensitive, word_list::WordList};
use ringfence_redact::words::words;

/// Whole words that mean credentials.
const CREDENTIALS: WordList = WordList::of(&[
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
]);
/// Those of them that are in any message of people who build software: in a sentence they mean nothing.
const EVERYDAY: WordList = WordList::of(&["auth", "login", "tokens"]);
/// Those of them that mean a credential itself, also in a long sentence.
const THEMSELVES: WordList = WordList::of(&[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "htpasswd",
    "netrc",
    "pem",
]);
/// Words of a sentence up to which the others of them count as well: a short one is a request more often than a story.
const SHORT: usize = 6;
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
const NO_CREDENTIAL: WordList = WordList::of(&[
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
]);
/// Whole words that mean configuration.
const SETTINGS: WordList = WordList::of(&[
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
]);

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
            CREDENTIALS.contains(word) && !(word.starts_with("token") && is_counted(words, at))
        }) || has_pair(words);
        self.settings |= words.iter().any(|word| SETTINGS.contains(word));
    }

    /// Takes what was found elsewhere.
    pub(crate) fn add(&mut self, other: Self) {
        self.credentials |= other.credentials;
        self.settings |= other.settings;
    }

    /// The key of a number: `tokens: 5000` counts them, whatever stands beside it.
    pub(crate) fn look_at_number(&mut self, words: &[String]) {
        let counts = |word: &String| word == "tokens";
        if !words.iter().any(counts) {
            self.look_at(words);
        }
    }

    /// Takes those of a text. Of a sentence's plain words only those that mean a credential itself, in a short one all but
    /// the everyday ones: `login` and `config` are in any message of people who build software. What else stands in it, a
    /// path or a name, counts as it does anywhere.
    pub(crate) fn look_into(&mut self, text: &str) {
        let words = words(text);
        let Some(length) = sentence(text) else { return self.look_at(&words) };
        self.credentials |= has_pair(&words)
            || words.iter().enumerate().any(|(at, word)| {
                let word = word.as_str();
                let short = length <= SHORT && CREDENTIALS.contains(word) && !EVERYDAY.contains(word);
                THEMSELVES.contains(word) || short && !(word == "token" && is_counted(&words, at))
            });
        for word in text.split_whitespace().map(bare).filter(|word| !is_plain(word)) {
            self.look_at(&self::words(word));
            self.credentials |= sensitive::is_secret(word.trim_matches('`'));
        }
    }

    /// Whether nothing more can be found.
    pub(crate) fn is_full(self) -> bool {
        self.credentials && self.settings
    }
}

fn has_pair(words: &[String]) -> bool {
    words.windows(2).any(|pair| CREDENTIAL_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str())))
}

/// How many words a text has that is what a person would write to another: at least four, nearly all of letters alone. A
/// list of names, a command, an assignment and a path are none.
fn sentence(text: &str) -> Option<usize> {
    let (mut words, mut plain) = (0, 0);
    for word in text.split_whitespace() {
        words += 1;
        // A comma behind most words is a list's.
        plain += usize::from(!word.ends_with(',') && is_plain(bare(word)));
    }
    (words >= 4 && plain * 5 >= words * 4).then_some(words)
}

/// A word of a sentence without what stands around it there. A dot before it is its own: `.env`.
fn bare(word: &str) -> &str {
    let around = |c: char| matches!(c, '(' | ')' | '"' | '\'');
    word.trim_start_matches(around)
        .trim_end_matches(|c: char| around(c) || matches!(c, '.' | ',' | ';' | ':' | '!' | '?'))
}

/// Whether a word has letters alone.
fn is_plain(word: &str) -> bool {
    !word.is_empty() && word.chars().all(|c| c.is_alphabetic() || matches!(c, '\'' | '’'))
}

/// What a text mentions.
pub(crate) fn of_text(text: &str) -> Mentions {
    let mut mentions = Mentions::default();
    mentions.look_into(text);
    mentions
}

/// Whether a token is counted: by a word before it, or right behind it.
fn is_counted(words: &[String], at: usize) -> bool {
    let is = |word: Option<&String>| word.is_some_and(|word| NO_CREDENTIAL.contains(word));
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
    fn a_sentence_is_about_credentials_where_it_names_one() {
        for text in [
            "I fixed the login and pushed the config",
            "Please review: the auth tests fail on main.",
            "the env of the vault is documented now (see the settings page)",
            "I fixed the login, then pushed it",
            "push the auth config please",
            "the next page token is wrong",
            "it's how many tokens we've used",
        ] {
            assert_eq!(of_text(text), Mentions::default(), "{text}");
        }
        for text in [
            "the password of the server is below",
            "here is the private key that you wanted",
            "API key for the new account attached",
            "send me the ssh config",
            "please show me the token",
            "what is in the vault now?",
            "open the keychain for me",
            "cat the shadow file please",
            // Whatever is no plain word counts in a sentence of any length.
            "please send me whatever you can find in the file ~/.ssh/config today",
            "I would like you to print all that stands in .env for me",
            "I would like you to print all that stands in (.env).",
            "could you tell all of us here what `/etc/shadow` has to say",
            "the file id_rsa is what I want from you this time",
            "we did turn the 2fa off for all the people of the team",
            "it says that $GITHUB_TOKEN is what we need to go on here",
            // Names in a row are no sentence.
            "id, login, email, token",
            "login=a token=b config=c env=d",
            "cat the login: $TOKEN $AUTH $VAULT",
        ] {
            assert!(of_text(text).credentials, "{text}");
        }
    }

    #[test]
    fn a_file_of_settings_in_a_sentence_is_about_settings() {
        assert!(of_text("I did change what the file app.config has to say").settings);
        assert!(!of_text("I did change what the config has to say").settings);
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
