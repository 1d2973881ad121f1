//! The names of the Gemini API's fields, of which a provider takes two spellings for one. Pure.

use crate::http::request::squashed;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A request, or a part of one, by its fields.
pub(super) type Fields = BTreeMap<String, Box<RawValue>>;

/// Fields of a request that are looked at or fixed.
pub(super) const TOP: [&str; 11] = [
    "contents",
    "tools",
    "toolConfig",
    "safetySettings",
    "systemInstruction",
    "generationConfig",
    "cachedContent",
    "generateContentRequest",
    "store",
    "model",
    "labels",
];
/// The same of its `generationConfig`.
pub(super) const CONFIG: [&str; 3] = ["maxOutputTokens", "candidateCount", "thinkingConfig"];
/// The same of what that has of thinking.
pub(super) const THINKING: [&str; 1] = ["thinkingBudget"];

/// A field of a request, as we spell it.
pub(super) fn top(key: &str) -> String {
    spelled(key, &TOP)
}

/// A field of its `generationConfig`.
pub(super) fn config(key: &str) -> String {
    spelled(key, &CONFIG)
}

/// One of the two spellings of a known name becomes that name; all else stays.
fn spelled(key: &str, known: &[&str]) -> String {
    let is = |name: &&&str| key == **name || key == snake(name);
    known.iter().find(is).map_or(key, |name| name).to_owned()
}

/// The other spelling of a name: as its protocol buffer has it.
fn snake(name: &str) -> String {
    let mut snake = String::with_capacity(name.len() + 4);
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

/// Fields under our own spelling of what is `known`. What only looks like one of them, to a parser that ignores case or
/// underscores, is left out.
///
/// # Errors
/// One is there under both its spellings: which of the two counts is the provider's to say.
pub(super) fn read(fields: Fields, known: &[&str]) -> Result<Fields, String> {
    let mut read = Fields::new();
    for (key, value) in fields {
        let name = spelled(&key, known);
        let is_known = known.contains(&name.as_str());
        if !is_known && known.iter().any(|known| squashed(known) == squashed(&name)) {
            continue;
        }
        if read.insert(name.clone(), value).is_some() {
            return Err(format!("{name} is there under two spellings; send it once"));
        }
    }
    Ok(read)
}

/// Whether a key says which model is meant, or how one is chosen.
pub(super) fn names_model(key: &str) -> bool {
    let key = squashed(key);
    key.contains("model") || key.starts_with("routing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(json: &str) -> Fields {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn both_spellings_are_one_name_and_never_two_fields() {
        let got = read(fields(r#"{"max_output_tokens":1,"candidateCount":2,"top_k":3}"#), &CONFIG).unwrap();
        assert_eq!(got.keys().collect::<Vec<_>>(), ["candidateCount", "maxOutputTokens", "top_k"]);
        assert!(read(fields(r#"{"max_output_tokens":1,"maxOutputTokens":1}"#), &CONFIG).is_err());
        // What is neither is nothing to the provider, and left out for whoever reads it freely.
        let odd = r#"{"MaxOutputTokens":1,"maxoutputtokens":1,"max_outputTokens":1,"MAX_OUTPUT_TOKENS":1,"max-output-tokens":1}"#;
        assert!(read(fields(odd), &CONFIG).unwrap().is_empty());
    }
}
