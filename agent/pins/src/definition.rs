//! What of a tool counts, in one spelling, and its hash.

use crate::{LONGEST_DEFINITION, LONGEST_NAME, MOST_BYTES, MOST_TOOLS};
use ringfence_base::hex;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, fmt};

/// What a definition's hash begins with: another rule of what counts has another word.
const DOMAIN: &[u8] = b"ringfence tool 1\n";

/// Keys that no model sees: pictures for people.
const LEFT_OUT: [&str; 1] = ["icons"];

/// A tool as it describes itself: name, title, description, schemas, annotations and whatever else its server says of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Definition {
    /// The tool's name.
    pub name: String,
    /// SHA-256 of the text below, in 64 hex digits.
    pub sha256: String,
    /// JSON in one spelling: keys sorted, no space.
    pub text: String,
}

/// Why a tool cannot be pinned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unjudged {
    /// It is no object.
    NoObject,
    /// It has no name, or one that is no text.
    NoName,
    /// Its name has so many bytes.
    LongName(usize),
    /// Its definition has more than [`LONGEST_DEFINITION`].
    Long,
    /// Two parsers could read it differently: in what.
    Ambiguous(String),
    /// An earlier tool of the same list has the name.
    Twice,
    /// The server has more tools, or more bytes of definitions, than are pinned of one.
    TooMany,
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoObject => f.write_str("it is no JSON object"),
            Self::NoName => f.write_str("it has no name"),
            Self::LongName(bytes) => {
                write!(f, "its name has {bytes} bytes, and tools are pinned up to {LONGEST_NAME}")
            }
            Self::Long => write!(f, "its description and schemas have more than {LONGEST_DEFINITION} bytes"),
            Self::Ambiguous(why) => write!(f, "parsers could read it differently: {why}"),
            Self::Twice => f.write_str("its server lists two tools of this name"),
            Self::TooMany => {
                let mib = MOST_BYTES >> 20;
                write!(f, "its server exceeds the limit of {MOST_TOOLS} tools or {mib} MiB of definitions")
            }
        }
    }
}

impl Definition {
    /// Of a tool as an answer to `tools/list` has it.
    ///
    /// # Errors
    /// [`Unjudged`]: it has no name, or is too long.
    pub fn of(tool: &Map<String, Value>) -> Result<Self, Unjudged> {
        let Some(Value::String(name)) = tool.get("name") else { return Err(Unjudged::NoName) };
        if name.is_empty() {
            return Err(Unjudged::NoName);
        }
        if name.len() > LONGEST_NAME {
            return Err(Unjudged::LongName(name.len()));
        }
        let mut text = String::new();
        let counts = tool.iter().filter(|(key, _)| !LEFT_OUT.contains(&key.as_str()));
        if !object(&mut text, counts.map(|(key, value)| (key.as_str(), value)).collect()) {
            return Err(Unjudged::Long);
        }
        Ok(Self { name: name.clone(), sha256: hash(&[DOMAIN, text.as_bytes()]), text })
    }

    /// The same of name, description and schema alone, for whoever shows a model nothing else.
    ///
    /// # Errors
    /// [`Unjudged`].
    pub fn of_parts(name: &str, description: &str, schema: &Value) -> Result<Self, Unjudged> {
        let mut tool = Map::new();
        tool.insert("name".to_owned(), name.into());
        tool.insert("description".to_owned(), description.into());
        tool.insert("inputSchema".to_owned(), schema.clone());
        Self::of(&tool)
    }
}

/// Short hashes of a definition's parts by their keys, to say which of them changed where the texts are not at hand.
pub type Parts = BTreeMap<String, String>;

/// Most parts that are told apart, and the longest name of one, bytes: others are one part.
const MOST_PARTS: usize = 12;
const LONGEST_PART: usize = 32;
/// What all others are called.
const OTHERS: &str = "other keys";

impl Definition {
    /// Its parts but for the name.
    pub fn parts(&self) -> Parts {
        let Ok(Value::Object(tool)) = serde_json::from_str(&self.text) else { return Parts::new() };
        let mut parts = Parts::new();
        for (key, value) in tool.iter().filter(|(key, _)| *key != "name") {
            let mut digest = hash(&[value.to_string().as_bytes()]);
            digest.truncate(8);
            let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if parts.len() < MOST_PARTS && plain && !key.is_empty() && key.len() <= LONGEST_PART {
                parts.insert(key.clone(), digest);
            } else {
                let all = parts.entry(OTHERS.to_owned()).or_default();
                *all = hash(&[all.as_bytes(), key.as_bytes(), digest.as_bytes()]);
                all.truncate(8);
            }
        }
        parts
    }
}

/// The parts that differ, in words: `description and inputSchema`.
pub fn differing(old: &Parts, new: &Parts) -> String {
    let keys: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differ: Vec<&str> =
        keys.into_iter().filter(|key| old.get(*key) != new.get(*key)).map(String::as_str).collect();
    match differ.as_slice() {
        [] => "definition".to_owned(),
        [one] => (*one).to_owned(),
        [rest @ .., last] => format!("{} and {last}", rest.join(", ")),
    }
}

/// The hash that pins of an agent's tools had before they were [`Definition`]s: over description and schema.
pub fn hash_of_before(description: &str, schema: &Value) -> String {
    let mut text = String::new();
    // Of any length: these are compared with what was taken then.
    write(&mut text, schema, usize::MAX);
    // The length keeps the two apart.
    hash(&[&(description.len() as u64).to_be_bytes(), description.as_bytes(), text.as_bytes()])
}

/// The first half of a name's hash in hex digits: names of any length in a list that is short.
pub fn name_digest(name: &str) -> String {
    let mut digest = hash(&[b"ringfence tool name\n", name.as_bytes()]);
    digest.truncate(32);
    digest
}

/// A part of the hash of a text that has what looks like a secret: where that is taken out, it tells one from another. It says as
/// much of the text as the definition's hash does.
pub fn secret_digest(text: &str) -> String {
    let mut digest = hash(&[b"ringfence text with a secret\n", text.as_bytes()]);
    digest.truncate(12);
    digest
}

/// What tells a server of a user from others: the name that the user gave it and the words it is started by, secrets taken
/// out before. 64 hex digits.
pub fn server_key(name: &str, command: &[String]) -> String {
    let length = |text: &str| (text.len() as u64).to_be_bytes();
    let mut hash = Sha256::new();
    hash.update(b"ringfence server 1\n");
    for text in std::iter::once(name).chain(command.iter().map(String::as_str)) {
        hash.update(length(text));
        hash.update(text);
    }
    hex::of(&hash.finalize())
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    hex::of(&hash.finalize())
}

/// Whether this is a hash as [`Definition::sha256`] has it.
pub fn is_hash(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// Writes a definition's object; `false`: it is too long.
fn object(text: &mut String, members: Vec<(&str, &Value)>) -> bool {
    let sorted: BTreeMap<&str, &Value> = members.into_iter().collect();
    members_of(text, &sorted, LONGEST_DEFINITION)
}

fn members_of(text: &mut String, sorted: &BTreeMap<&str, &Value>, most: usize) -> bool {
    text.push('{');
    for (at, (key, value)) in sorted.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(*key).to_string());
        text.push(':');
        if !write(text, value, most) {
            return false;
        }
    }
    text.push('}');
    text.len() <= most
}

/// One text for what means the same; `false`: it would be longer than `most`. As deep as the parser lets a value be.
fn write(text: &mut String, value: &Value, most: usize) -> bool {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&str, &Value> =
                map.iter().map(|(key, value)| (key.as_str(), value)).collect();
            return members_of(text, &sorted, most);
        }
        Value::Array(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                if !write(text, item, most) {
                    return false;
                }
            }
            text.push(']');
        }
        other => text.push_str(&other.to_string()),
    }
    text.len() <= most
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(value: Value) -> Result<Definition, Unjudged> {
        match value {
            Value::Object(map) => Definition::of(&map),
            _ => Err(Unjudged::NoObject),
        }
    }

    #[test]
    fn what_means_the_same_has_one_hash_and_what_a_model_sees_counts() {
        let base = json!({"name": "t", "title": "T", "description": "Adds", "inputSchema": {"type": "object", "a": [1, 2.5]},
            "outputSchema": {"type": "object"}, "annotations": {"readOnlyHint": true}, "_meta": {"x": "y"}});
        let known = of(base.clone()).expect("a definition");
        let text = r#"{ "inputSchema": {"a":[1,2.5], "type":"\u006fbject"}, "_meta":{"x":"y"}, "name":"t", "title":"T",
            "description":"Adds","outputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"icons":[{"src":"x"}]}"#;
        let other = of(serde_json::from_str(text).expect("JSON")).expect("a definition");
        assert_eq!(known, other, "laid out otherwise, and with an icon");
        for key in ["title", "description", "inputSchema", "outputSchema", "annotations", "_meta"] {
            let mut changed = base.clone();
            changed[key] = json!("another");
            assert_ne!(of(changed).expect("a definition").sha256, known.sha256, "{key}");
            let mut without = base.clone();
            without.as_object_mut().expect("an object").remove(key);
            assert_ne!(of(without).expect("a definition").sha256, known.sha256, "{key}");
        }
        let mut later = base;
        later["somethingLater"] = json!("a key that no version knows yet");
        assert_ne!(of(later).expect("a definition").sha256, known.sha256);
    }

    #[test]
    fn the_parts_that_differ_are_named() {
        let parts = |tool: Value| of(tool).expect("a definition").parts();
        let old = parts(json!({"name": "t", "description": "a", "inputSchema": {}}));
        let same = parts(json!({"name": "t", "inputSchema": {}, "description": "a"}));
        assert_eq!(differing(&old, &same), "definition", "nothing that is known");
        let new =
            parts(json!({"name": "t", "description": "b", "inputSchema": {}, "title": "T", "odd key\n": 1}));
        assert_eq!(differing(&old, &new), "description, other keys and title");
        let many: Map<String, Value> =
            (0..1000).map(|n| (format!("k{n}"), json!(n))).chain([("name".to_owned(), json!("t"))]).collect();
        assert!(parts(Value::Object(many)).len() <= MOST_PARTS + 1);
    }

    #[test]
    fn what_is_too_long_or_has_no_name_is_not_judged() {
        assert_eq!(of(json!({"description": "x"})), Err(Unjudged::NoName));
        assert_eq!(of(json!({"name": 1})), Err(Unjudged::NoName));
        assert_eq!(of(json!({"name": ""})), Err(Unjudged::NoName));
        assert!(of(json!({"name": "n".repeat(LONGEST_NAME)})).is_ok());
        let name = "n".repeat(LONGEST_NAME + 1);
        assert_eq!(of(json!({ "name": name })), Err(Unjudged::LongName(LONGEST_NAME + 1)));
        let long = |length: usize| of(json!({"name": "t", "description": "d".repeat(length)}));
        assert!(long(LONGEST_DEFINITION - 100).is_ok());
        assert_eq!(long(LONGEST_DEFINITION), Err(Unjudged::Long));
        let many: Vec<Value> = (0..LONGEST_DEFINITION).map(Value::from).collect();
        assert_eq!(of(json!({"name": "t", "inputSchema": many})), Err(Unjudged::Long));
    }

    #[test]
    fn pins_of_before_are_recognised() {
        // As versions before this one wrote it into their files.
        let hash = hash_of_before("Adds", &json!({"type": "object", "a": 1}));
        assert_eq!(
            hash,
            hash_of_before("Adds", &serde_json::from_str(r#"{ "a": 1, "type": "object"}"#).expect("JSON"))
        );
        let mut expected = Sha256::new();
        expected.update(4u64.to_be_bytes());
        expected.update(r#"Adds{"a":1,"type":"object"}"#);
        assert_eq!(hash, hex::of(&expected.finalize()));
    }

    #[test]
    fn servers_are_told_apart_by_name_and_by_each_word() {
        let key = |name: &str, command: &[&str]| {
            server_key(name, &command.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
        };
        let all = [
            key("a", &["npx", "x"]),
            key("a", &["npx", "y"]),
            key("b", &["npx", "x"]),
            key("a", &["npxx"]),
            key("anpx", &["x"]),
            key("a", &["npx", "x", ""]),
        ];
        assert!(all.iter().enumerate().all(|(at, one)| is_hash(one) && !all[..at].contains(one)), "{all:?}");
        assert_eq!(key("a", &["npx", "x"]), all[0]);
    }
}
