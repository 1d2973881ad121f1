//! The conditions of a rule: as a file has them, as a database has them, compiled, matched with a call, compared with
//! another rule's. Pure.
//!
//! Every function here names all conditions and all facts of a call, so that the compiler asks each of them about a new
//! one. What a condition may look at is in [`Facts`], by which judgements are cached as well.

use super::risk::Risk;
use globset::{GlobBuilder, GlobMatcher};
use ringfence_wire::{
    mcp::Conditions,
    tool_call::{Action, Named as _, Operation, Recorded},
};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};
use std::fmt;
use unicode_normalization::UnicodeNormalization;

/// A list of names, or one text of them with commas between.
#[derive(Debug)]
enum List {
    Each(Vec<Spanned<String>>),
    Text(String),
}

impl<'de> Deserialize<'de> for List {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = List;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of operations, or a text of them with commas between")
            }
            fn visit_str<E>(self, text: &str) -> Result<List, E> {
                Ok(List::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List, A::Error> {
                let mut each = Vec::new();
                while let Some(one) = seq.next_element()? {
                    each.push(one);
                }
                Ok(List::Each(each))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

impl List {
    fn names(&self) -> Vec<Recorded<Operation>> {
        match self {
            Self::Each(names) => names.iter().map(|name| name.value.as_str().into()).collect(),
            Self::Text(text) => text.split(',').map(|name| name.trim().into()).collect(),
        }
    }
}

/// A rule of a file, with the places of the values that can be wrong.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileRule {
    pub(super) name: Spanned<String>,
    #[serde(default)]
    pub(super) description: String,
    tool_pattern: Option<Spanned<String>>,
    server_pattern: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    min_risk_score: Option<Spanned<u8>>,
    operation_types: Option<Spanned<List>>,
    pub(super) action: Spanned<Action>,
    #[serde(default = "yes")]
    pub(super) enabled: bool,
}

const fn yes() -> bool {
    true
}

/// A value that can be left out, but is not null.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl FileRule {
    /// Which calls it is about.
    pub(super) fn conditions(&self) -> Conditions {
        let Self {
            name: _,
            description: _,
            tool_pattern,
            server_pattern,
            min_risk_score,
            operation_types,
            action: _,
            enabled: _,
        } = self;
        let text = |text: &Option<Spanned<String>>| text.as_ref().map(|text| text.value.clone());
        Conditions {
            tool_pattern: text(tool_pattern),
            server_pattern: text(server_pattern),
            min_risk_score: min_risk_score.as_ref().map_or(0, |score| score.value),
            operation_types: operation_types.as_ref().map(|list| list.value.names()),
        }
    }

    /// Line of the value that is wrong under a key, from 1.
    pub(super) fn line(&self, key: &str) -> Option<u64> {
        let Self {
            name,
            description: _,
            tool_pattern,
            server_pattern,
            min_risk_score,
            operation_types,
            action,
            enabled: _,
        } = self;
        let line = |place: &Location| Some(place.line()).filter(|line| *line > 0);
        match key {
            "name" => line(&name.referenced),
            "tool_pattern" => line(&tool_pattern.as_ref()?.referenced),
            "server_pattern" => line(&server_pattern.as_ref()?.referenced),
            "min_risk_score" => line(&min_risk_score.as_ref()?.referenced),
            "operation_types" => {
                let unknown = |name: &&Spanned<String>| Operation::from_name(&name.value).is_none();
                let list = operation_types.as_ref()?;
                match &list.value {
                    List::Each(names) => names.iter().find(unknown).and_then(|name| line(&name.referenced)),
                    List::Text(_) => None,
                }
                .or_else(|| line(&list.referenced))
            }
            "action" => line(&action.referenced),
            _ => None,
        }
    }
}

/// What a column holds that is named as a condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// A text, or names with commas between them; nothing where the rule has no such condition.
    Text(Option<String>),
    /// A number.
    Number(u8),
}

/// Conditions as a database has them, each with the name of its column.
pub fn columns(conditions: &Conditions) -> Vec<(&'static str, Cell)> {
    let Conditions { tool_pattern, server_pattern, min_risk_score, operation_types } = conditions;
    let names = operation_types.as_ref().map(|list| {
        let names: Vec<&str> = list.iter().map(Recorded::as_str).collect();
        names.join(",")
    });
    vec![
        ("tool_pattern", Cell::Text(tool_pattern.clone())),
        ("server_pattern", Cell::Text(server_pattern.clone())),
        ("min_risk_score", Cell::Number(*min_risk_score)),
        ("operation_types", Cell::Text(names)),
    ]
}

/// Conditions from their [`columns`]: `text` and `number` read one, by its name.
///
/// # Errors
/// Those of the two.
pub fn from_columns<E>(
    text: impl Fn(&str) -> Result<Option<String>, E>,
    number: impl Fn(&str) -> Result<Option<u8>, E>,
) -> Result<Conditions, E> {
    Ok(Conditions {
        tool_pattern: text("tool_pattern")?,
        server_pattern: text("server_pattern")?,
        min_risk_score: number("min_risk_score")?.unwrap_or(0),
        operation_types: text("operation_types")?.map(|names| List::Text(names).names()),
    })
}

/// What conditions may look at in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts<'a> {
    /// The server's name.
    pub server: &'a str,
    /// The tool's name.
    pub tool: &'a str,
    /// What the call does, and its score.
    pub risk: &'a Risk,
}

impl<'a> Facts<'a> {
    /// Of a call that is only tried: no session is there to tell more.
    pub const fn new(server: &'a str, tool: &'a str, risk: &'a Risk) -> Self {
        Self { server, tool, risk }
    }
}

/// [`Facts`] that are kept.
#[derive(Debug)]
pub(super) struct KeptFacts {
    server: String,
    tool: String,
    risk: Risk,
}

impl KeptFacts {
    pub(super) fn new(facts: Facts<'_>) -> Self {
        let Facts { server, tool, risk } = facts;
        Self { server: server.to_owned(), tool: tool.to_owned(), risk: risk.clone() }
    }

    pub(super) fn get(&self) -> Facts<'_> {
        let Self { server, tool, risk } = self;
        Facts { server, tool, risk }
    }
}

/// Conditions, ready to be matched.
#[derive(Debug, Clone)]
pub(super) struct Matcher {
    tools: Option<Vec<GlobMatcher>>,
    servers: Option<Vec<GlobMatcher>>,
    min_risk_score: u8,
    operations: Option<Vec<Operation>>,
}

impl Matcher {
    /// Compiles conditions.
    ///
    /// # Errors
    /// The key whose value no rule can have, and why.
    pub(super) fn new(conditions: Conditions) -> Result<Self, (&'static str, String)> {
        let Conditions { tool_pattern, server_pattern, min_risk_score, operation_types } = conditions;
        let globs = |key, patterns: Option<String>| {
            patterns.map(|patterns| globs(&patterns).map_err(|why| (key, why))).transpose()
        };
        let tools = globs("tool_pattern", tool_pattern)?;
        let servers = globs("server_pattern", server_pattern)?;
        let refuse = |why| ("operation_types", why);
        let operation = |recorded: Recorded<Operation>| match recorded {
            Recorded::Known(operation) => Ok(operation),
            Recorded::Other(text) => {
                Err(refuse(format!("{text:?} is none of read, write, delete, execute, unknown")))
            }
        };
        let operations: Option<Vec<Operation>> = operation_types
            .map(|list| list.into_iter().map(operation).collect::<Result<_, _>>())
            .transpose()?;
        if operations.as_ref().is_some_and(Vec::is_empty) {
            return Err(refuse("names no operation; leave the key out to match all".to_owned()));
        }
        if min_risk_score > 100 {
            return Err(("min_risk_score", format!("{min_risk_score} is not between 0 and 100")));
        }
        Ok(Self { tools, servers, min_risk_score, operations })
    }

    /// Whether a call meets all conditions. Its names are [normal].
    pub(super) fn matches(&self, facts: Facts<'_>) -> bool {
        let Self { tools, servers, min_risk_score, operations } = self;
        let Facts { server, tool, risk } = facts;
        let any = |globs: &Option<Vec<GlobMatcher>>, text: &str| {
            globs.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.is_match(text)))
        };
        risk.score >= *min_risk_score
            && operations.as_ref().is_none_or(|operations| operations.contains(&risk.operation))
            && any(tools, tool)
            && any(servers, server)
    }
}

fn globs(patterns: &str) -> Result<Vec<GlobMatcher>, String> {
    let matchers = patterns
        .split(',')
        .map(str::trim)
        .filter(|pattern| !pattern.is_empty())
        .map(|pattern| {
            // `*` crosses `/`, as the contract has it: tool names are not paths.
            GlobBuilder::new(&normal(pattern))
                .case_insensitive(true)
                .literal_separator(false)
                .build()
                .map(|glob| glob.compile_matcher())
                .map_err(|e| e.to_string())
        })
        .collect::<Result<Vec<_>, _>>()?;
    if matchers.is_empty() {
        return Err("holds no pattern; leave the key out to match everything".to_owned());
    }
    Ok(matchers)
}

/// A list of one glob, which matches this name and, as nothing stands for a comma in a list of globs, few others.
pub fn literal(name: &str) -> String {
    // Names and globs are compared in this form, in which a full-width bracket is any other.
    let name = normal(name);
    let special = |c: char| "*?[]{}!\\".contains(c);
    let mut glob = String::new();
    for c in name.chars() {
        match c {
            ',' => glob.push('?'),
            c if special(c) => glob.extend(['\\', c]),
            c => glob.push(c),
        }
    }
    // Blanks around a glob are no part of it, unless something is around them.
    if name.trim() == name { glob } else { format!("{{{glob}}}") }
}

/// Compatibility-composed and without case in any script, so that full-width, ligature and other spellings of a name do
/// not slip past a rule.
pub(super) fn normal(text: &str) -> String {
    if text.is_ascii() {
        // The same, without the tables: most names are.
        return text.to_ascii_lowercase();
    }
    // Lower case first: that of a letter may have an upper case that the letter has not, as the capital sharp s.
    let lower = text.nfkc().flat_map(char::to_lowercase);
    lower.flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect()
}

/// Conditions, ready to be compared: a rule file may name an operation as often as it has room.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    tool_pattern: Option<&'a str>,
    server_pattern: Option<&'a str>,
    min_risk_score: u8,
    /// A bit for each operation, and [`UNKNOWN_NAME`].
    operations: u8,
}

/// Every operation: what a rule is about that names none.
const EVERY: u8 = u8::MAX;
/// The bit of names that no operation has.
const UNKNOWN_NAME: u8 = 1 << 7;

impl<'a> Scope<'a> {
    pub(super) fn new(conditions: &'a Conditions) -> Self {
        let Conditions { tool_pattern, server_pattern, min_risk_score, operation_types } = conditions;
        let bit = |name: &Recorded<Operation>| match name {
            Recorded::Known(operation) => 1 << *operation as u8,
            Recorded::Other(_) => UNKNOWN_NAME,
        };
        Self {
            tool_pattern: tool_pattern.as_deref(),
            server_pattern: server_pattern.as_deref(),
            min_risk_score: *min_risk_score,
            operations: operation_types
                .as_ref()
                .map_or(EVERY, |names| names.iter().fold(0, |all, name| all | bit(name))),
        }
    }

    /// Whether these conditions are as wide as `other` in each of them: whatever call meets the others meets these. Names
    /// of operations that nobody knows cover nothing, and are covered only by a rule about every operation.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let Self { tool_pattern, server_pattern, min_risk_score, operations } = self;
        let known = if *operations == EVERY { EVERY } else { operations & !UNKNOWN_NAME };
        *min_risk_score <= other.min_risk_score
            && other.operations & !known == 0
            && (tool_pattern.is_none() || *tool_pattern == other.tool_pattern)
            && (server_pattern.is_none() || *server_pattern == other.server_pattern)
    }
}

/// As [`Scope::covers`] is meant, condition by condition.
#[cfg(test)]
pub(super) fn covers_plainly(wide: &Conditions, narrow: &Conditions) -> bool {
    let Conditions { tool_pattern, server_pattern, min_risk_score, operation_types } = wide;
    let wider = |wide: &Option<String>, narrow: &Option<String>| wide.is_none() || wide == narrow;
    let operations = match (operation_types, &narrow.operation_types) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|operation| wide.contains(operation)),
    };
    *min_risk_score <= narrow.min_risk_score
        && wider(tool_pattern, &narrow.tool_pattern)
        && wider(server_pattern, &narrow.server_pattern)
        && operations
}

#[cfg(test)]
mod tests {
    use super::{globs, literal, normal};

    #[test]
    fn a_literal_glob_matches_its_name_whatever_characters_that_has() {
        // The planes that have characters with case, or such as are spelled with others.
        let all = || ('\0'..='\u{1ffff}').chain('\u{2f800}'..='\u{2fa1f}');
        let changing = |c: &char| {
            // What makes a glob is in the normal form already: making that again changes nothing.
            let once = normal(&format!("a{c}b"));
            normal(&once) != once
        };
        assert_eq!(all().filter(changing).collect::<String>(), "");
        let specials = all().filter(|c| {
            normal(&c.to_string()).chars().any(|c| c.is_ascii_punctuation() || c.is_whitespace())
        });
        for c in specials {
            for name in [format!("a{c}b"), format!("{c}b"), format!("a{c}"), format!("a{c}{c}b")] {
                let globs = globs(&literal(&name)).expect(&name);
                assert!(globs.iter().any(|glob| glob.is_match(normal(&name))), "{name:?}");
                assert!(!globs.iter().any(|glob| glob.is_match("a other b")), "{name:?}");
            }
        }
    }
}
