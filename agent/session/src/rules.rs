//! The YAML rules over tool calls: parsed whole or refused with the line, evaluated to the strictest answer. Pure.

use super::risk::Risk;
use globset::{GlobBuilder, GlobMatcher};
use ringfence_wire::tool_call::{Action, Named as _, Operation};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, SeqAccess, Visitor},
};
use serde_saphyr::{Location, Spanned};
use std::{collections::HashSet, fmt, marker::PhantomData};
use unicode_normalization::UnicodeNormalization;

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

/// A rule as its file has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Shown in verdicts; unique within the file.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Globs over the tool's name, comma between them. Absent: every tool.
    pub tool_pattern: Option<String>,
    /// Globs over the server's name. Absent: every server.
    pub server_pattern: Option<String>,
    /// Lowest score the rule is about, 0..=100.
    #[serde(default)]
    pub min_risk_score: u8,
    /// Operations it is about: a list, or a text with commas between them. Absent: all.
    #[serde(default, deserialize_with = "operations")]
    pub operation_types: Option<Vec<String>>,
    /// `flag`, `pause` or `block`.
    pub action: Action,
    /// `false` switches it off.
    #[serde(default = "yes")]
    pub enabled: bool,
}

const fn yes() -> bool {
    true
}

fn operations<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<List<String>>::deserialize(deserializer)?.map(|list| match list {
        List::Each(names) => names,
        List::Text(text) => text.split(',').map(|name| name.trim().to_owned()).collect(),
    }))
}

/// A list of names, or one text of them.
#[derive(Debug)]
enum List<T> {
    Each(Vec<T>),
    Text(String),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Either<T> {
            type Value = List<T>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of operations, or a text of them with commas between")
            }
            fn visit_str<E>(self, text: &str) -> Result<List<T>, E> {
                Ok(List::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<List<T>, A::Error> {
                let mut each = Vec::new();
                while let Some(one) = seq.next_element()? {
                    each.push(one);
                }
                Ok(List::Each(each))
            }
        }
        deserializer.deserialize_any(Either(PhantomData))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(deserialize_with = "few")]
    rules: Vec<Written>,
}

/// Rules up to [`MOST_RULES`]; what is beyond is not even read.
fn few<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Written>, D::Error> {
    struct Few;
    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Written>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of rules")
        }
        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Written>, A::Error> {
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

/// The same file with the places of the values that can be wrong.
#[derive(Debug, Deserialize)]
struct Placed {
    rules: Vec<PlacedRule>,
}

#[derive(Debug, Deserialize)]
struct PlacedRule {
    name: Spanned<String>,
    tool_pattern: Option<Spanned<String>>,
    server_pattern: Option<Spanned<String>>,
    min_risk_score: Option<Spanned<u8>>,
    operation_types: Option<Spanned<List<Spanned<String>>>>,
    action: Spanned<Action>,
}

impl PlacedRule {
    /// Line of the value that is wrong under a key, from 1.
    fn line(&self, key: &str) -> Option<u64> {
        let line = |place: &Location| Some(place.line()).filter(|line| *line > 0);
        match key {
            "name" => line(&self.name.referenced),
            "tool_pattern" => line(&self.tool_pattern.as_ref()?.referenced),
            "server_pattern" => line(&self.server_pattern.as_ref()?.referenced),
            "min_risk_score" => line(&self.min_risk_score.as_ref()?.referenced),
            "operation_types" => {
                let unknown = |kind: &&Spanned<String>| Operation::from_name(&kind.value).is_none();
                let list = self.operation_types.as_ref()?;
                match &list.value {
                    List::Each(names) => names.iter().find(unknown).and_then(|name| line(&name.referenced)),
                    List::Text(_) => None,
                }
                .or_else(|| line(&list.referenced))
            }
            "action" => line(&self.action.referenced),
            _ => None,
        }
    }
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
    tools: Option<Vec<GlobMatcher>>,
    servers: Option<Vec<GlobMatcher>>,
    operations: Option<Vec<Operation>>,
    min_risk_score: u8,
    /// `false`: matches nothing.
    pub enabled: bool,
}

/// Why a rule file is refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not YAML, or not of this shape; the parser's words carry line and column.
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
    fn placed(self, text: &str, index: usize) -> Self {
        let key = match &self {
            Self::Name { .. } => "name",
            Self::Value { key, .. } => key,
            _ => return self,
        };
        let file = serde_saphyr::from_str::<Placed>(text).ok();
        match file.and_then(|file| file.rules.get(index)?.line(key)) {
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
    let written = read(text)?;
    let mut rules: Vec<Rule> = Vec::with_capacity(written.len());
    let mut names = HashSet::with_capacity(written.len());
    for (index, written) in written.into_iter().enumerate() {
        if !names.insert(written.name.clone()) {
            return Err(Error::Name { index: index + 1, name: written.name }.placed(text, index));
        }
        rules.push(compile(written).map_err(|error| error.placed(text, index))?);
    }
    Ok(rules)
}

/// Reads a rule file as it is written; what its values mean is not looked at.
///
/// # Errors
/// [`Error::Shape`], also for more than [`MOST_RULES`].
pub fn read(text: &str) -> Result<Vec<Written>, Error> {
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
pub fn compile(written: Written) -> Result<Rule, Error> {
    let name = written.name;
    let refuse = |key, why| Error::Value { name: name.clone(), key, why };
    let globs = |key, patterns: Option<String>| {
        patterns.map(|patterns| globs(&patterns).map_err(|why| refuse(key, why))).transpose()
    };
    let tools = globs("tool_pattern", written.tool_pattern)?;
    let servers = globs("server_pattern", written.server_pattern)?;
    let operation = |text: &String| {
        Operation::from_name(text).ok_or_else(|| {
            refuse("operation_types", format!("{text:?} is none of read, write, delete, execute, unknown"))
        })
    };
    let operations: Option<Vec<Operation>> = written
        .operation_types
        .map(|list| list.iter().map(operation).collect::<Result<_, _>>())
        .transpose()?;
    if operations.as_ref().is_some_and(Vec::is_empty) {
        return Err(refuse(
            "operation_types",
            "names no operation; leave the key out to match all".to_owned(),
        ));
    }
    if written.min_risk_score > 100 {
        return Err(refuse("min_risk_score", format!("{} is not between 0 and 100", written.min_risk_score)));
    }
    if written.action == Action::Pass {
        return Err(refuse(
            "action",
            "a rule can flag, pause or block; to let calls pass, write no rule".to_owned(),
        ));
    }
    Ok(Rule {
        description: written.description,
        action: written.action,
        tools,
        servers,
        operations,
        min_risk_score: written.min_risk_score,
        enabled: written.enabled,
        name,
    })
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

/// Compatibility-composed and without case in any script, so that full-width, ligature and other spellings of a name do
/// not slip past a rule.
fn normal(text: &str) -> String {
    if text.is_ascii() {
        // The same, without the tables: most names are.
        return text.to_ascii_lowercase();
    }
    text.nfkc().flat_map(char::to_uppercase).flat_map(char::to_lowercase).nfkc().collect()
}

impl Rule {
    fn matches(&self, server: &str, tool: &str, risk: &Risk) -> bool {
        let any = |globs: &Option<Vec<GlobMatcher>>, text: &str| {
            globs.as_ref().is_none_or(|globs| globs.iter().any(|glob| glob.is_match(text)))
        };
        self.enabled
            && risk.score >= self.min_risk_score
            && self.operations.as_ref().is_none_or(|operations| operations.contains(&risk.operation))
            && any(&self.tools, tool)
            && any(&self.servers, server)
    }
}

/// The strictest of the score's threshold and of every rule that matches. A tool's name is matched as sent and without
/// an `mcp__server__` prefix.
pub fn judge(rules: &[Rule], server: &str, tool: &str, risk: &Risk) -> Judgement {
    let (server, tool) = (normal(server), normal(tool));
    let bare = tool
        .strip_prefix("mcp__")
        .and_then(|rest| rest.split_once("__"))
        .map_or(tool.as_str(), |(_, bare)| bare);
    let prefixed = bare.len() < tool.len();
    let matching: Vec<&Rule> = rules
        .iter()
        .filter(|r| r.matches(&server, bare, risk) || prefixed && r.matches(&server, &tool, risk))
        .collect();
    let strictest = matching.iter().map(|rule| rule.action).max().unwrap_or(Action::Pass);
    let action = strictest.max(action_of_score(risk.score));
    let rules = matching.iter().filter(|rule| rule.action == action).map(|rule| rule.name.clone()).collect();
    Judgement { action, rules }
}

#[cfg(test)]
mod tests {
    use super::{Action, Judgement, MOST_RULES, SHIPPED, judge, parse};
    use crate::risk::assess;
    use serde_json::json;

    fn verdict(server: &str, tool: &str, arguments: serde_json::Value) -> (Action, Vec<String>) {
        let rules = parse(SHIPPED).expect("the shipped rules");
        let Judgement { action, rules } = judge(&rules, server, tool, &assess(tool, &arguments, false));
        (action, rules)
    }

    #[test]
    fn shipped_rules_do_what_they_say() {
        assert_eq!(verdict("fs", "read_file", json!({})), (Action::Pass, vec![]));
        assert_eq!(verdict("fs", "create_x", json!({})), (Action::Flag, vec!["flag_all_writes".into()]));
        assert_eq!(verdict("fs", "delete_x", json!({})), (Action::Pause, vec!["pause_deletes".into()]));
        assert_eq!(
            verdict("x", "run_tests", json!({})),
            (Action::Pause, vec!["pause_shell_execution".into()])
        );
        assert_eq!(verdict("x", "post_note", json!({})).0, Action::Flag);
        assert_eq!(
            verdict("Postgres", "insert_row", json!({})),
            (Action::Pause, vec!["pause_sql_mutations".into()])
        );
        let everything = json!({"sql": "DELETE FROM users", "password": "x"});
        assert_eq!(
            verdict("x", "delete_all", everything),
            (Action::Block, vec!["block_bulk_destructive".into()])
        );
    }

    #[test]
    fn operations_are_a_list_or_a_text_with_commas() {
        let list =
            parse("rules:\n  - {name: a, operation_types: [delete, write], action: pause}").expect("rules");
        let text =
            parse("rules:\n  - {name: a, operation_types: 'delete, write', action: pause}").expect("rules");
        for (tool, expected) in
            [("delete_x", Action::Pause), ("create_x", Action::Pause), ("read_x", Action::Pass)]
        {
            let risk = assess(tool, &json!({}), false);
            for rules in [&list, &text] {
                assert_eq!(judge(rules, "s", tool, &risk).action, expected, "{tool}");
            }
        }
    }

    #[test]
    fn a_mild_rule_does_not_soften_a_high_score() {
        let rules = parse("rules:\n  - {name: a, operation_types: [delete], action: flag}").expect("rules");
        let risk = assess("delete_x", &json!({"sql": "DELETE FROM t", "token": 1}), false);
        assert_eq!(judge(&rules, "s", "delete_x", &risk), Judgement { action: Action::Block, rules: vec![] });
    }

    #[test]
    fn patterns_fold_case_width_and_slashes() {
        let rules = parse("rules:\n  - {name: a, tool_pattern: 'DROP_*', action: block}").expect("rules");
        for tool in ["drop_table", "DROP_x/y", "ｄｒｏｐ_table", "mcp__db__drop_it"] {
            assert_eq!(
                judge(&rules, "s", tool, &assess(tool, &json!({}), false)).action,
                Action::Block,
                "{tool}"
            );
        }
        assert_ne!(judge(&rules, "s", "raindrop_x", &assess("x", &json!({}), false)).action, Action::Block);
    }

    #[test]
    fn patterns_fold_the_case_of_every_script() {
        for (pattern, tool) in
            [("LÖSCHE_*", "lösche_alles"), ("удали*", "УДАЛИТЬ"), ("stra\u{df}e", "STRASSE"), ("ΟΣ", "ος")]
        {
            let rules = parse(&format!("rules:\n  - {{name: a, tool_pattern: '{pattern}', action: block}}"));
            let rules = rules.expect("rules");
            let action = judge(&rules, "s", tool, &assess(tool, &json!({}), false)).action;
            assert_eq!(action, Action::Block, "{pattern} {tool}");
        }
    }

    #[test]
    fn what_is_wrong_is_found_in_its_line() {
        let cases = [
            (
                "rules:\n  - name: a\n    action: flag\n    operation_types:\n      - read\n      - fly\n",
                "line 6: ",
            ),
            ("rules:\n  - name: a\n    action: flag\n\n  - action: flag\n    name: a\n", "line 6: "),
            ("rules:\n  - name: a\n    action: flag\n    min_risk_score: 101\n", "line 4: "),
            ("rules:\n  - name: a\n    tool_pattern: '['\n    action: flag\n", "line 3: "),
            ("rules:\n  - name: a\n    server_pattern: '['\n    action: flag\n", "line 3: "),
            ("rules:\n  - name: a\n    operation_types: 'read, fly'\n    action: flag\n", "line 3: "),
            ("rules:\n  - name: a\n    action: flag\n    operation_types: []\n", "line 4: "),
            ("rules:\n  - name: a\n    action: flag\n    operation_types: 7\n", "line 4"),
            ("rules:\n  - name: a\n    action: pass\n", "line 3: "),
            ("rules:\n  - name: a\n    action: explode\n", "line 3"),
        ];
        for (text, line) in cases {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(line), "{text:?}: {error}");
        }
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let cases = [
            ("rules: 3", "rule file"),
            ("rules:\n  - {name: a, action: explode}", "explode"),
            ("rules:\n  - {name: a, action: flag, colour: red}", "colour"),
            ("rules:\n  - {name: a, action: pass}", "action"),
            ("rules:\n  - {name: a, action: flag, operation_types: [fly]}", "fly"),
            ("rules:\n  - {name: a, action: flag, tool_pattern: '['}", "tool_pattern"),
            ("rules:\n  - {name: a, action: flag, tool_pattern: ' , '}", "tool_pattern"),
            ("rules:\n  - {name: a, action: flag, min_risk_score: 101}", "min_risk_score"),
            ("rules:\n  - {name: a, action: flag}\n  - {name: a, action: flag}", "rule 2"),
            ("", "rule file"),
        ];
        for (text, named) in cases {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(named), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_file_of_more_rules_than_anybody_writes_is_refused() {
        let file = |many: usize| {
            let each = (0..many).map(|n| format!("  - {{name: r{n}, tool_pattern: 't{n}', action: flag}}\n"));
            each.fold("rules:\n".to_owned(), |text, rule| text + &rule)
        };
        assert_eq!(parse(&file(MOST_RULES)).expect("the control").len(), MOST_RULES);
        let error = parse(&file(MOST_RULES + 1)).expect_err("one more").to_string();
        assert!(error.contains("more than 1000 rules"), "{error}");
    }
}
