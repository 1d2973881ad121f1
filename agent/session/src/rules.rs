//! The YAML rules over tool calls: parsed whole or refused with the line, evaluated to the strictest answer. Pure.

use super::conditions::{Facts, FileRule, Matcher, normal};
use ringfence_wire::{mcp::Conditions, tool_call::Action};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};
use std::{collections::HashSet, fmt};

/// The rules that ship, in force where a user has none.
pub const SHIPPED: &str = include_str!("../../../profiles/rules.yaml");

/// Most rules of one file. Each call is held against all of them, and of a change each against those that were before.
pub(crate) const MOST_RULES: usize = 1000;

/// What a score alone asks for: 0-30 pass, 31-60 flag, 61-80 pause, 81-100 block.
pub const fn action_of_score(score: u8) -> Action {
    match score {
        0..=30 => Action::Pass,
        31..=60 => Action::Flag,
        61..=80 => Action::Pause,
        _ => Action::Block,
    }
}

/// A rule as its file or the database has it.
#[derive(Debug, Clone, Serialize)]
pub struct RuleSpec {
    /// Shown in verdicts; unique within the file.
    pub name: String,
    /// For people.
    pub description: String,
    /// Which calls it is about.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// `flag`, `pause` or `block`.
    pub action: Action,
    /// `false` switches it off.
    pub enabled: bool,
}

impl RuleSpec {
    /// A rule of a file, without the places of its values.
    fn of(rule: &FileRule) -> Self {
        Self {
            name: rule.name.value.clone(),
            description: rule.description.clone(),
            conditions: rule.conditions(),
            action: rule.action.value,
            enabled: rule.enabled,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "bounded_rules")]
    rules: Vec<FileRule>,
}

/// Rules up to [`MOST_RULES`]; what is beyond is not even read.
fn bounded_rules<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<FileRule>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<FileRule>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of rules")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<FileRule>, A::Error> {
            let mut rules = Vec::new();
            while let Some(rule) = seq.next_element()? {
                if rules.len() == MOST_RULES {
                    let why = format!("more than {MOST_RULES} rules; patterns with commas make few of many");
                    return Err(A::Error::custom(why));
                }
                rules.push(rule);
            }
            Ok(rules)
        }
    }
    deserializer.deserialize_seq(Few)
}

/// A rule, ready to be matched.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Its name.
    pub name: String,
    /// For people.
    pub description: String,
    /// What it asks for.
    pub action: Action,
    conditions: Matcher,
    /// `false`: matches nothing.
    pub enabled: bool,
}

/// Why a rule file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not YAML, or not of this shape; the parser's message has line and column.
    #[error("not a rule file: {0}")]
    Shape(String),
    /// Two rules of one name.
    #[error(
        "rule {index} has the name {name:?} of an earlier rule; a verdict that names it would be unclear"
    )]
    Name {
        /// From 1.
        index: usize,
        /// The name.
        name: String,
    },
    /// A value that no rule can have.
    #[error("rule {name:?}: {key}: {why}")]
    Value {
        /// The rule.
        name: String,
        /// The key.
        key: &'static str,
        /// What is wrong with it and what it could be.
        why: String,
    },
    /// Where in the file.
    #[error("line {line}: {error}")]
    At {
        /// From 1.
        line: u64,
        /// What is wrong there.
        error: Box<Error>,
    },
}

impl Error {
    /// With the line of the rule's value in its file, where that can be found.
    fn at(self, rule: &FileRule) -> Self {
        let key = match &self {
            Self::Name { .. } => "name",
            Self::Value { key, .. } => key,
            _ => return self,
        };
        match rule.line(key) {
            Some(line) => Self::At { line, error: Box::new(self) },
            None => self,
        }
    }
}

/// What all rules and the score make of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The strictest of all.
    pub action: Action,
    /// Names of the matching rules that ask for it; empty where the score alone does.
    pub rules: Vec<String>,
}

/// Reads a rule file.
///
/// # Errors
/// [`Error`], with the line where the parser knows it.
pub fn parse(text: &str) -> Result<Vec<Rule>, Error> {
    let file = read_file(text)?;
    let mut names = HashSet::with_capacity(file.len());
    let rule = |(index, rule): (usize, &FileRule)| {
        let spec = RuleSpec::of(rule);
        if !names.insert(spec.name.clone()) {
            return Err(Error::Name { index: index + 1, name: spec.name }.at(rule));
        }
        compile(spec).map_err(|error| error.at(rule))
    };
    file.iter().enumerate().map(rule).collect()
}

/// Reads a rule file as it is written; what its values mean is not looked at.
///
/// # Errors
/// [`Error::Shape`], also for more than [`MOST_RULES`].
pub fn read(text: &str) -> Result<Vec<RuleSpec>, Error> {
    Ok(read_file(text)?.iter().map(RuleSpec::of).collect())
}

fn read_file(text: &str) -> Result<Vec<FileRule>, Error> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| {
        let words = error.to_string();
        Error::Shape(words.strip_prefix("error: ").unwrap_or(&words).to_owned())
    })?;
    Ok(file.rules)
}

/// Makes a rule ready to be matched.
///
/// # Errors
/// [`Error::Value`].
pub fn compile(spec: RuleSpec) -> Result<Rule, Error> {
    let RuleSpec { name, description, conditions, action, enabled } = spec;
    let refuse = |(key, why)| Error::Value { name: name.clone(), key, why };
    let conditions = Matcher::new(conditions).map_err(refuse)?;
    if action == Action::Pass {
        return Err(refuse((
            "action",
            "a rule can flag, pause or block; to let calls pass, write no rule".to_owned(),
        )));
    }
    Ok(Rule { name, description, action, conditions, enabled })
}

/// The strictest of the score's threshold and of every rule that matches. A tool's name is matched as sent and without
/// an `mcp__server__` prefix.
pub fn judge(rules: &[Rule], facts: Facts<'_>) -> Judgement {
    judge_at(rules, facts, facts.risk.score)
}

/// The same where the threshold is asked about another score than the rules.
pub(crate) fn judge_at(rules: &[Rule], facts: Facts<'_>, score: u8) -> Judgement {
    let matching = matching(rules, facts);
    let strictest = matching.iter().map(|rule| rule.action).max().unwrap_or(Action::Pass);
    let action = strictest.max(action_of_score(score));
    let rules = matching.iter().filter(|rule| rule.action == action).map(|rule| rule.name.clone()).collect();
    Judgement { action, rules }
}

/// The rules that a call meets, as [`judge`] reads its names.
pub(crate) fn matching<'a>(rules: &'a [Rule], facts: Facts<'_>) -> Vec<&'a Rule> {
    let (server, tool) = (normal(facts.server), normal(facts.tool));
    let bare = tool
        .strip_prefix("mcp__")
        .and_then(|rest| rest.split_once("__"))
        .map_or(tool.as_str(), |(_, bare)| bare);
    let prefixed = bare.len() < tool.len();
    let named = |tool| Facts { server: &server, tool, ..facts };
    let matches = |rule: &&Rule| {
        rule.enabled
            && (rule.conditions.matches(named(bare)) || prefixed && rule.conditions.matches(named(&tool)))
    };
    rules.iter().filter(matches).collect()
}

#[cfg(test)]
mod tests;
