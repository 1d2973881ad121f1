//! Other servers' tools in a description.

use std::sync::LazyLock;

use regex::Regex;

pub(super) const QUALIFIED: &str = "it names a tool of another server";

/// A tool as clients write it with its server: `mcp__SERVER__TOOL`.
static NAMED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?i)\bmcp__([a-z0-9-]+(?:_[a-z0-9-]+)*)__[a-z0-9_-]+").ok());

/// The first tool of a server that is not `server`.
pub(super) fn find(text: &str, server: &str) -> Option<String> {
    let alike = |name: &str| {
        let plain = |text: &str| -> String {
            text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
        };
        plain(name) == plain(server)
    };
    let mut found = NAMED.as_ref()?.captures_iter(text);
    found
        .find(|found| found.get(1).is_some_and(|name| !alike(name.as_str())))
        .map(|found| found[0].to_owned())
}

/// Most words of a definition that are looked up.
const MOST_WORDS: usize = 512;
/// Shortest word that is one.
const SHORTEST: usize = 6;

/// Words of a definition's texts that look like a tool's name and not like a word of a sentence: of two parts, by `_`, `-` or a
/// hump. Each once. Whether another server has a tool of that name is for the store to say.
pub fn distinctive_words(definition: &str) -> Vec<String> {
    let Ok(serde_json::Value::Object(tool)) = serde_json::from_str(definition) else { return Vec::new() };
    let mut words: Vec<String> = Vec::new();
    for (place, text) in super::texts(&tool) {
        // The names of its own parameters are not what is meant.
        if place == "name" || !(place.ends_with("description") || place == "title") {
            continue;
        }
        let candidates = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        for word in candidates.map(|word| word.trim_matches(|c| c == '-' || c == '_')) {
            if words.len() >= MOST_WORDS {
                return words;
            }
            if is_distinctive(word) && !words.iter().any(|known| known == word) {
                words.push(word.to_owned());
            }
        }
    }
    words
}

fn is_distinctive(word: &str) -> bool {
    let inner = word.get(1..).unwrap_or_default();
    let parts = inner.contains(['_', '-']);
    let hump =
        word.bytes().zip(word.bytes().skip(1)).any(|(a, b)| a.is_ascii_lowercase() && b.is_ascii_uppercase());
    word.len() >= SHORTEST && word.len() <= crate::LONGEST_NAME && (parts || hump)
}
