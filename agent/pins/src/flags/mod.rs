//! What a description should not have: what cannot be seen, instructions to the model, other servers' tools.
//!
//! A flag is a hint for a person, and no proof: it raises the risk of the tool's calls until somebody has looked. Whoever
//! writes a description knows these patterns as well as we do.

mod instructions;
mod invisible;
mod mentions;

pub use mentions::distinctive_words;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Most flags of one tool; beyond that it says no more.
pub const MOST: usize = 16;
/// Most characters of an excerpt.
const LONGEST_EXCERPT: usize = 200;
/// Most characters of a place.
const LONGEST_PLACE: usize = 100;

/// What kind of thing it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Characters that nobody sees, or that change what others look like.
    Invisible,
    /// Words that tell a model what to do beside calling the tool.
    Instructions,
    /// Another server, or a tool of another.
    OtherServer,
}

impl Kind {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Invisible => "characters that cannot be seen",
            Self::Instructions => "instructions to the model",
            Self::OtherServer => "another server's tools",
        }
    }
}

/// Something odd in a definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// What.
    pub kind: Kind,
    /// In which text: keys joined by dots, such as `inputSchema.properties.path.description`.
    pub place: String,
    /// Why it is odd, in words.
    pub why: String,
    /// The text around it; what cannot be seen is written as its code.
    pub excerpt: String,
}

/// What is odd in a definition, as [`crate::Definition::text`] has it. `server` is the name of its own server.
pub fn of(definition: &str, server: &str) -> Vec<Flag> {
    let Ok(Value::Object(tool)) = serde_json::from_str(definition) else { return Vec::new() };
    let mut flags = Vec::new();
    for (place, text) in texts(&tool) {
        let mut add = |kind: Kind, why: &str, excerpt: &str| {
            let is_known =
                flags.iter().any(|flag: &Flag| flag.kind == kind && flag.place == place && flag.why == why);
            if flags.len() < MOST && !is_known {
                let excerpt = legible(excerpt).chars().take(LONGEST_EXCERPT).collect();
                flags.push(Flag { kind, place: place.clone(), why: why.to_owned(), excerpt });
            }
        };
        let invisible = invisible::find(text);
        if let Some(found) = &invisible {
            add(Kind::Invisible, found.why, &found.excerpt);
        }
        // As it reads once they are left out: they also keep words from being found.
        let seen = if invisible.is_some() { invisible::without(text) } else { text.to_owned() };
        for (why, excerpt) in instructions::find(&seen) {
            add(Kind::Instructions, why, &excerpt);
        }
        if let Some(mention) = mentions::find(&seen, server) {
            add(Kind::OtherServer, mentions::QUALIFIED, &mention);
        }
    }
    flags
}

/// A flag for a tool of another server of the same user, or for that server, whose name stands in a definition.
pub fn mention(name: &str, server: &str) -> Flag {
    let said =
        if name == server { format!("server {name}") } else { format!("{name} of the server {server}") };
    Flag {
        kind: Kind::OtherServer,
        place: "description".to_owned(),
        why: "it names what another server has".to_owned(),
        excerpt: legible(&said).chars().take(LONGEST_EXCERPT).collect(),
    }
}

/// All texts of a tool with their places: keys of schemas count, since a model reads them, too.
pub(crate) fn texts(tool: &Map<String, Value>) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    let mut rest: Vec<(String, &Value)> = tool
        .iter()
        .rev()
        .filter(|(key, _)| *key != "name")
        .map(|(key, value)| (key.clone(), value))
        .collect();
    if let Some(Value::String(name)) = tool.get("name") {
        found.push(("name".to_owned(), name.as_str()));
    }
    while let Some((place, value)) = rest.pop() {
        match value {
            Value::String(text) => found.push((place, text)),
            Value::Array(items) => rest.extend(items.iter().rev().map(|item| (place.clone(), item))),
            Value::Object(map) => {
                for (key, value) in map.iter().rev() {
                    let mut below = format!("{place}.{}", legible(key));
                    below.truncate(below.floor_char_boundary(LONGEST_PLACE));
                    rest.push((below, value));
                    found.push((place.clone(), key));
                }
            }
            _ => {}
        }
    }
    found
}

/// A text on one line in which everything can be seen.
fn legible(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' | '\t' => out.push(' '),
            c if c.is_control() || invisible::is_suspect(c) => out += &format!("[U+{:04X}]", u32::from(c)),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
