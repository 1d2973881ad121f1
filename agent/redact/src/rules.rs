//! Rules of tokens by their shape, and by the name of their service beside them: those of gitleaks, and some of ours.
//!
//! Each is compiled when its keyword is first in a text, and searches only around it.

use crate::values;
use regex::bytes::{Captures, Regex, RegexBuilder};
use std::sync::{LazyLock, OnceLock};

/// A rule.
pub(crate) struct Rule {
    /// Its name.
    #[cfg_attr(not(test), expect(dead_code, reason = "it is what a test's message says"))]
    pub(crate) id: &'static str,
    /// What matches.
    pub(crate) regex: &'static str,
    /// Less information than this is none, bits a byte.
    pub(crate) entropy: f32,
    /// The group that is the secret; 0: the first that matched, or else the whole.
    pub(crate) group: usize,
    /// One of these is in all that matches, in letters of either case.
    pub(crate) keywords: &'static [&'static str],
}

/// Those of gitleaks: `rules/gitleaks.toml`.
static GITLEAKS: &[Rule] = include!(concat!(env!("OUT_DIR"), "/rules.rs"));

/// What gitleaks has not, or only where more stands around it.
static OURS: &[Rule] = &[
    Rule {
        id: "discord-bot-token",
        regex: r"\b([MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40})\b",
        entropy: 3.5,
        group: 1,
        keywords: &["discord", "bot "],
    },
    Rule {
        id: "discord-webhook",
        regex: r"discord(?:app)?\.com/api/webhooks/[0-9]{10,24}/([A-Za-z0-9_-]{40,100})",
        entropy: 3.0,
        group: 1,
        keywords: &["api/webhooks/"],
    },
    Rule {
        id: "twilio-key",
        regex: r"\b((?:SK|sk)[0-9a-f]{32})\b",
        entropy: 3.0,
        group: 1,
        keywords: &["twilio"],
    },
    Rule {
        id: "telegram-bot-token",
        regex: r"(?:\b|bot)([0-9]{7,12}:AA[A-Za-z0-9_-]{32,36})",
        entropy: 3.0,
        group: 1,
        keywords: &[":AA"],
    },
    Rule {
        id: "slack-webhook-of-any-length",
        regex: r"hooks\.slack\.com/(?:services|workflows|triggers)/([A-Za-z0-9+/_-]{20,100})",
        entropy: 2.5,
        group: 1,
        keywords: &["hooks.slack.com"],
    },
    Rule {
        id: "passwords-in-a-client's-file",
        regex: r"(?m)^[ \t]*[A-Za-z0-9.*_-]{1,100}:(?:5432|3306|\*):[A-Za-z0-9*_-]{1,64}:[A-Za-z0-9_.-]{1,64}:([^:\s]{4,128})[ \t]*$",
        entropy: 0.0,
        group: 1,
        keywords: &[":5432:", ":3306:", ":*:"],
    },
];

/// All rules.
pub(crate) static RULES: LazyLock<Vec<&'static Rule>> =
    LazyLock::new(|| OURS.iter().chain(GITLEAKS).collect());

static COMPILED: LazyLock<Vec<OnceLock<Option<Regex>>>> =
    LazyLock::new(|| RULES.iter().map(|_| OnceLock::new()).collect());

/// Bytes before a keyword and behind it that are searched.
const BEFORE: usize = 128;
const BEHIND: usize = 700;
/// Memory for one compiled rule, bytes, and for what it notes while it searches.
const COMPILED_BYTES: usize = 1 << 20;
const NOTED_BYTES: usize = 128 << 10;
/// Most bytes of a secret that are taken beyond the window in which it was found.
const LONGEST: usize = 16 << 10;
/// How rules begin their search for an assignment beside a service's name.
const ASSIGNMENT: &str = r"(?:=|>|:{1,3}=|";
/// Words beside a service's name that say that the value is no secret.
const DIGESTS: [&str; 8] = ["sha256", "sha1", "sha512", "md5", "checksum", "digest", "commit", "integrity"];

fn compiled(index: usize) -> Option<&'static Regex> {
    let rule = RULES.get(index)?;
    let compile = || {
        // Bytes: what is no ASCII has no class, so that classes stay small. The groups are ASCII.
        RegexBuilder::new(rule.regex)
            .unicode(false)
            .size_limit(COMPILED_BYTES)
            .dfa_size_limit(NOTED_BYTES)
            .build()
            .ok()
    };
    COMPILED.get(index)?.get_or_init(compile).as_ref()
}

/// Whether the rule may match where its keyword is, by a glance at what follows it: most services are named in prose.
pub(crate) fn may_match(text: &str, index: usize, end: usize) -> bool {
    let Some(rule) = RULES.get(index) else { return false };
    if !rule.regex.contains(ASSIGNMENT) {
        return true;
    }
    let follows = text.as_bytes().get(end..).unwrap_or_default();
    let mut rest = follows.iter().take(64).skip_while(|byte| {
        byte.is_ascii_alphanumeric()
            || matches!(byte, b' ' | b'\t' | b'_' | b'.' | b'-' | b'\'' | b'"' | b'\\')
    });
    matches!(rest.next(), Some(b'=' | b':' | b'>' | b'|' | b'?' | b','))
}

/// Where secrets are by their rules. `found`: which rule's keyword is where, by its first byte.
pub(crate) fn search(text: &str, mut found: Vec<(usize, usize)>, secrets: &mut Vec<(usize, usize)>) {
    found.sort_unstable();
    let mut rest = found.as_slice();
    while let Some(((index, at), others)) = rest.split_first() {
        let (begin, mut end) = (at.saturating_sub(BEFORE), at.saturating_add(BEHIND));
        // What overlaps is searched once.
        let count = others
            .iter()
            .take_while(|(other, at)| {
                let goes_on = other == index && at.saturating_sub(BEFORE) <= end;
                if goes_on {
                    end = at.saturating_add(BEHIND);
                }
                goes_on
            })
            .count();
        rest = others.get(count..).unwrap_or_default();
        search_within(text, *index, (begin, end.min(text.len())), secrets);
    }
}

fn search_within(text: &str, index: usize, (begin, end): (usize, usize), secrets: &mut Vec<(usize, usize)>) {
    let (Some(rule), Some(regex)) = (RULES.get(index), compiled(index)) else { return };
    let bytes = text.as_bytes();
    let Some(window) = bytes.get(begin..end) else { return };
    for captures in regex.captures_iter(window) {
        let Some(secret) = secret(rule, &captures) else { continue };
        let (start, mut stop) = (begin + secret.start(), begin + secret.end());
        if !is_secret(rule, &captures, secret.as_bytes()) {
            continue;
        }
        if stop == end {
            // It is cut by the window.
            stop += bytes
                .get(stop..)
                .unwrap_or_default()
                .iter()
                .take(LONGEST)
                .take_while(|byte| byte.is_ascii_alphanumeric() || b"_-+/=.".contains(byte))
                .count();
        }
        if text.is_char_boundary(start) && text.is_char_boundary(stop) {
            secrets.push((start, stop));
        }
    }
}

fn secret<'h>(rule: &Rule, captures: &Captures<'h>) -> Option<regex::bytes::Match<'h>> {
    if rule.group > 0 {
        return captures.get(rule.group);
    }
    captures.iter().skip(1).flatten().next().or_else(|| captures.get(0))
}

fn is_secret(rule: &Rule, captures: &Captures<'_>, secret: &[u8]) -> bool {
    let Ok(secret) = std::str::from_utf8(secret) else { return false };
    if rule.entropy > 0.0 && values::entropy(secret.as_bytes()) <= rule.entropy
        || values::is_placeholder(secret)
    {
        return false;
    }
    if !rule.regex.contains(ASSIGNMENT) {
        return true;
    }
    let whole = captures.get(0).map(|whole| String::from_utf8_lossy(whole.as_bytes()).to_ascii_lowercase());
    let whole = whole.unwrap_or_default();
    let has = |kind: fn(&u8) -> bool| secret.bytes().any(|byte| kind(&byte));
    has(u8::is_ascii_digit)
        && has(u8::is_ascii_alphabetic)
        && !values::is_path_in_code(secret)
        && !DIGESTS.iter().any(|word| whole.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::fmt::Write as _;

    #[test]
    fn the_data_is_what_its_header_says() {
        let data = include_str!("../rules/gitleaks.toml");
        let (header, rules) = data.split_once("\n\n").expect("a header");
        let digest = Sha256::digest(rules.as_bytes()).iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        });
        assert!(header.ends_with(&digest), "SHA-256 of the lines below: {digest}");
        assert!(header.contains(&format!("Kept: {} rules", GITLEAKS.len())), "{}", GITLEAKS.len());
        assert!(include_str!("../rules/LICENSE-gitleaks").starts_with("MIT License"));
    }

    #[test]
    fn every_rule_compiles_within_its_bounds() {
        let mut ids = Vec::new();
        for (index, rule) in RULES.iter().enumerate() {
            let regex = compiled(index).unwrap_or_else(|| panic!("{} does not compile", rule.id));
            assert!(rule.group < regex.captures_len(), "{}", rule.id);
            assert!(!rule.keywords.is_empty() && !ids.contains(&rule.id), "{}", rule.id);
            ids.push(rule.id);
        }
    }

    #[test]
    fn what_a_rule_matches_is_cut_by_no_window() {
        let token = format!("hvb.{}", "aB3dE5gH7jK9mN1pQ4sT6vW8".repeat(12));
        let text = format!("{}{token} x", "- ".repeat(400));
        let mut found = Vec::new();
        let index = RULES.iter().position(|rule| rule.id == "vault-batch-token").expect("the rule");
        search(&text, vec![(index, 800)], &mut found);
        assert_eq!(found, [(800, 800 + token.len())]);
    }
}
