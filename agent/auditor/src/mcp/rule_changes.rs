//! Rules of the database as the dashboard and the command line list, try and change them, and the rules beside them that
//! this process can read.

use super::sessions::Sessions;
use ringfence_base::{clock, error::chain, quota::Lane};
use ringfence_session::{
    conditions::{from_columns, literal},
    exceptions,
    rules::{self, RuleSpec},
    ruleset::{self, is_exception},
};
use ringfence_store::{self as store, Changed, MOST_PATTERNS, SessionReader, Viewer};
use ringfence_wire::{
    exception::{EXCEPT, Exception},
    mcp::{Conditions, RuleChange, StoredRule},
    tool_call::{Named as _, Operation, Recorded},
};
use serde::Deserialize as _;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    convert::Infallible,
    fs::File,
    io::{self, Read},
    path::Path,
};

/// Bytes of a rule file that are read.
const LONGEST_FILE: u64 = 1 << 20;
/// Characters of a rule's name.
const LONGEST_NAME: usize = 100;
/// Characters of a tool's name in a suggested one.
const SUGGESTED_NAME: usize = 60;
/// Bytes of a rule's other texts as JSON, which is how interceptors are sent them: with
/// [`ringfence_wire::mcp::MAX_STORED_RULES`] it bounds how long that is.
const LONGEST_TEXT: usize = 1000;

/// Why a rule was not changed, or what is amiss although it was.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotChanged {
    /// No rule can be like that.
    #[error("{0}")]
    Invalid(String),
    /// The rules that there are do not allow it.
    #[error("{}", why(.0))]
    Refused(Changed),
    /// The store.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// It was changed.
    #[error("the change is stored, {but}")]
    Stored {
        /// What could not be done then.
        but: &'static str,
        /// Why.
        source: store::Error,
    },
}

/// What is said where sessions do not have a change yet.
const NOT_IN_FORCE: &str = "but not yet in force in every session that runs: it is sent again until it is";
/// What is said where the changed rule cannot be shown.
const NOT_SHOWN: &str = "and in force, but cannot be read back";

/// Why a change was refused, for a person.
fn why(refused: &Changed) -> String {
    match refused {
        Changed::Done { .. } | Changed::Same { .. } => "nothing is wrong with it".to_owned(),
        Changed::Taken => {
            "there is a rule of that name already; a verdict that names it would be unclear".to_owned()
        }
        Changed::Unknown => "there is no rule of the database with that id".to_owned(),
        Changed::NotYours => {
            "the rule is root's and binds everybody's sessions: only root changes it".to_owned()
        }
        Changed::Renamed => {
            "a rule keeps its name, by which verdicts on record name it; add another rule and delete this one"
                .to_owned()
        }
        Changed::Stale { by } if by.is_empty() => {
            "the rule is another version than the one that was looked at; look at it again".to_owned()
        }
        Changed::Stale { by } => format!("the rule was changed meanwhile by {by}; look at it again"),
        Changed::OtherKind => {
            "an exception does not become another rule, nor another rule an exception; add one and delete this one"
                .to_owned()
        }
        Changed::Loosens(rule) => {
            format!("this loosens the rule {rule:?}: calls that it is about would be judged more mildly")
        }
        Changed::TooManyPatterns(rule) => format!(
            "nothing is tried while the rule {rule:?} is on: it has more than {MOST_PATTERNS} patterns for tools or servers; make it several rules"
        ),
    }
}

/// Checks all of a rule but its place among others.
pub(crate) fn check(rule: &StoredRule) -> Result<(), String> {
    let StoredRule { name, description, conditions, action: _, exception } = rule;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(plain) {
        return Err(format!("a rule's name is 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 _ - ."));
    }
    fits("description", description)?;
    if is_exception(rule) {
        let exception = exception.as_ref().ok_or("an exception says what it is about, as \"exception\"")?;
        if *conditions != Conditions::default() {
            return Err(
                "an exception has no conditions: it names its server, its tool and the arguments".to_owned()
            );
        }
        return exceptions::check(exception);
    }
    if exception.is_some() {
        return Err(format!("only a rule whose action is \"{EXCEPT}\" has an \"exception\""));
    }
    let Conditions { tool_pattern, server_pattern, min_risk_score: _, operation_types } = conditions;
    fits("tool_pattern", tool_pattern.as_deref().unwrap_or_default())?;
    fits("server_pattern", server_pattern.as_deref().unwrap_or_default())?;
    let given: &[Recorded<Operation>] = operation_types.as_deref().unwrap_or_default();
    let length: usize = given.iter().map(|name| name.as_str().len()).sum();
    if given.len() > Operation::ALL.len() || length > LONGEST_NAME {
        return Err("operation_types names more operations than there are".to_owned());
    }
    rules::compile(ruleset::rule_spec(rule)?).map(drop).map_err(|error| chain(&error))
}

/// Refuses a text that is too long for interceptors.
fn fits(key: &str, text: &str) -> Result<(), String> {
    // Without its quotes.
    let length = json!(text).to_string().len() - 2;
    if length > LONGEST_TEXT {
        return Err(format!("{key} has {length} bytes as JSON, and at most {LONGEST_TEXT}"));
    }
    Ok(())
}

/// The rules that an interceptor started without `--rules` has, and where they are from: the user's file, or those that ship.
/// None without a path: each interceptor reads its user's own then; the daemon's auditor may not.
pub(crate) fn file_rules(path: Option<&Path>) -> (String, Result<Vec<RuleSpec>, String>) {
    let Some(path) = path else { return (String::new(), Ok(Vec::new())) };
    let (source, text) = rule_text(path);
    let rules = text.and_then(|text| {
        let checked = rules::parse(&text).and_then(|_| rules::read(&text));
        checked.map_err(|error| chain(&error))
    });
    (source, rules)
}

/// The text of a user's rule file, or of the rules that ship where there is none, and where it is from.
fn rule_text(path: &Path) -> (String, Result<String, String>) {
    let read = |file: File| {
        let mut text = String::new();
        file.take(LONGEST_FILE).read_to_string(&mut text).map(|_| text)
    };
    match ringfence_files::read(path).and_then(read) {
        Ok(text) => (path.display().to_string(), Ok(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            ("built in".to_owned(), Ok(rules::SHIPPED.to_owned()))
        }
        Err(error) => (path.display().to_string(), Err(error.to_string())),
    }
}

/// All rules as they are listed, those of the database first.
pub(crate) fn listed(
    reader: &SessionReader,
    viewer: Viewer,
    path: Option<&Path>,
) -> Result<Vec<Value>, store::Error> {
    let mut rows = of_database(reader, viewer)?;
    let (source, written) = file_rules(path);
    let written = written.unwrap_or_default();
    let hits = if written.is_empty() { HashMap::new() } else { reader.rule_hits(viewer)? };
    for rule in written {
        let mut row = json!(rule);
        let (hits, last) = hits.get(&rule.name).map_or((0, None), |(hits, last)| (*hits, Some(last)));
        row["source"] = source.clone().into();
        row["hits"] = hits.into();
        row["last_hit"] = json!(last);
        rows.push(row);
    }
    Ok(rows)
}

fn of_database(reader: &SessionReader, viewer: Viewer) -> Result<Vec<Value>, store::Error> {
    let mut rows = reader.rules(viewer)?;
    rows.iter_mut().for_each(|row| show(row, viewer));
    Ok(rows)
}

/// Makes of a rule's row what is shown of it.
fn show(row: &mut Value, viewer: Viewer) {
    lists(row);
    row["enabled"] = (row["enabled"] != 0).into();
    row["source"] = "database".into();
    row["yours"] = (viewer.0 == 0 || row["uid"] != 0).into();
    if row["action"] == EXCEPT
        && let Err(why) = excepts(row)
    {
        row["not_in_force"] = why.into();
    }
}

/// Whether the exception of a row counts in sessions, which check it once more: an earlier version may have taken it.
fn excepts(row: &Value) -> Result<(), String> {
    let exception =
        Exception::deserialize(&row["exception"]).map_err(|why| format!("it cannot be read: {why}"))?;
    exceptions::check(&exception)
}

/// Makes lists of those conditions that are lists, and texts in their columns.
fn lists(row: &mut Value) {
    let text = |name: &str| Ok::<_, Infallible>(row[name].as_str().map(str::to_owned));
    let number = |name: &str| Ok(row[name].as_u64().and_then(|number| u8::try_from(number).ok()));
    let Ok(conditions) = from_columns(text, number);
    let Value::Object(conditions) = json!(conditions) else { return };
    for (name, value) in conditions {
        if value.is_array() {
            row[name] = value;
        }
    }
}

/// What a rule about calls like this one would have, but for what it asks for: of its tool, on its server, that do the same.
pub(crate) fn suggested(call: &Value) -> Value {
    let text = |key: &str| call[key].as_str().unwrap_or_default();
    let (tool, server) = (text("tool_name"), text("server_name"));
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_-.".contains(c) { c } else { '_' };
    let name: String = tool.chars().take(SUGGESTED_NAME).map(plain).collect();
    let mut rule = json!({ "name": format!("like_{name}"), "tool_pattern": literal(tool) });
    if !server.is_empty() {
        rule["server_pattern"] = literal(server).into();
    }
    if Operation::from_name(text("operation_type")).is_some_and(|known| known != Operation::Unknown) {
        rule["operation_types"] = json!([text("operation_type")]);
    }
    rule
}

/// The rule that a change has, checked.
fn checked(change: &RuleChange) -> Result<Option<&StoredRule>, NotChanged> {
    match change {
        RuleChange::Add { rule } | RuleChange::Edit { rule, .. } => {
            check(rule).map_err(NotChanged::Invalid).map(|()| Some(rule))
        }
        RuleChange::Switch { .. } | RuleChange::Move { .. } | RuleChange::Delete { .. } => Ok(None),
    }
}

impl Sessions {
    /// Makes a change of a rule on behalf of `viewer`, whose lane this is, and puts the rules in force as they are then. Gives the
    /// rule's row, or null where the change deletes it.
    pub(crate) fn change_rule(
        &self,
        viewer: Viewer,
        change: &RuleChange,
        (by, agreed): (&str, bool),
        lane: Lane,
    ) -> Result<Value, NotChanged> {
        let rule = checked(change)?;
        if let (RuleChange::Add { .. }, Some(rule)) = (change, rule)
            && self.file_rules().1.is_ok_and(|written| written.iter().any(|other| other.name == rule.name))
        {
            return Err(NotChanged::Refused(Changed::Taken));
        }
        let mut writer = self.writer.lock_in(lane);
        let changed = writer.change_rule(viewer, change, (by, agreed), clock::now_micros())?;
        drop(writer);
        // Also where nothing had to be changed: whoever asks again may do so because sessions did not have it.
        let id = match changed {
            Changed::Done { id, uid } | Changed::Same { id, uid } => {
                let sent = self.send_rules(uid);
                sent.map_err(|source| NotChanged::Stored { but: NOT_IN_FORCE, source })?;
                id
            }
            refused => return Err(NotChanged::Refused(refused)),
        };
        if matches!(change, RuleChange::Delete { .. }) {
            return Ok(Value::Null);
        }
        let row = self.readers.ask(|reader| reader.rule(viewer, &id));
        let row = row.map_err(|source| NotChanged::Stored { but: NOT_SHOWN, source })?;
        // Somebody may have deleted it meanwhile: that was another change.
        let mut row = row.ok_or(NotChanged::Refused(Changed::Unknown))?;
        show(&mut row, viewer);
        Ok(row)
    }

    /// What a change would have meant for the calls of the last `days`.
    pub(crate) fn try_rule(
        &self,
        reader: &SessionReader,
        viewer: Viewer,
        change: &RuleChange,
        days: u32,
    ) -> Result<Value, NotChanged> {
        checked(change)?;
        // Not compiled here, where nobody looks at the clock.
        let text = self.rule_file.as_deref().and_then(|path| rule_text(path).1.ok());
        let file = text.and_then(|text| rules::read(&text).ok()).unwrap_or_default();
        let tried = reader.try_rule(viewer, change, (file, days), clock::now_micros())?;
        tried.map(|trial| trial.report()).map_err(NotChanged::Refused)
    }

    /// The rules beside those of the database, as far as this process can read them.
    pub(crate) fn file_rules(&self) -> (String, Result<Vec<RuleSpec>, String>) {
        file_rules(self.rule_file.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::{check, lists, show, suggested};
    use ringfence_session::{conditions::Facts, risk, rules, ruleset};
    use ringfence_store::Viewer;
    use ringfence_wire::mcp::StoredRule;
    use serde_json::{Value, json};

    #[test]
    fn a_suggested_rule_is_about_the_call_whatever_its_names_are() {
        for tool in [
            "delete_file",
            "a*b",
            "[x]{y,z}",
            "q?\\",
            " a ",
            "!x",
            "ünï,côde",
            "a/b",
            // What is special only once it is in its normal form.
            "a＊b",
            "［x］｛y，z｝",
            "q？＼",
            "\u{3000}a\u{3000}",
            "！x",
            "ﬁ*İ",
        ] {
            let call = json!({ "tool_name": tool, "server_name": "s,1", "operation_type": "read" });
            let mut rule = suggested(&call);
            rule["action"] = "block".into();
            let rule: StoredRule = serde_json::from_value(rule).expect("a rule");
            check(&rule).expect(tool);
            let rule = [rules::compile(ruleset::rule_spec(&rule).expect("known")).expect(tool)];
            let risk = risk::Risk {
                operation: ringfence_wire::tool_call::Operation::Read,
                score: 0,
                reasons: vec![],
            };
            let matches = |tool: &str| !rules::judge(&rule, Facts::new("s,1", tool, &risk)).rules.is_empty();
            assert!(matches(tool), "{tool}");
            assert!(!matches("aXb") && !matches("other") && !matches("x"), "{tool}");
        }
    }

    #[test]
    fn an_exception_that_sessions_do_not_count_is_listed_as_not_in_force() {
        let shown = |action: &str, exception: Value| {
            let mut row =
                json!({ "name": "a", "enabled": 1, "uid": 5, "action": action, "exception": exception });
            show(&mut row, Viewer(5));
            row["not_in_force"].as_str().map(str::to_owned)
        };
        let argument = |equals: Value| {
            let mut argument = json!({ "name": "command", "type": "string" });
            argument["equals"] = equals;
            json!({ "server": "s", "tool": "bash", "arguments": [argument], "reasons": ["execute"] })
        };
        let open = shown("except", argument(Value::Null)).expect("it is not");
        assert!(open.contains("\"command\" is not pinned"), "{open}");
        assert!(shown("except", Value::Null).is_some_and(|why| why.starts_with("it cannot be read")));
        assert_eq!(shown("except", argument("ls".into())), None, "the control");
        assert_eq!(shown("flag", Value::Null), None);
    }

    #[test]
    fn operations_are_a_list_in_answers_and_all_else_is_as_its_column_has_it() {
        let row = |operations: Value| {
            let mut row = json!({ "name": "a", "tool_pattern": "x,y", "server_pattern": null,
                "min_risk_score": 7, "operation_types": operations, "action": "flag" });
            lists(&mut row);
            row
        };
        for (column, answer) in [(json!("read,fly"), json!(["read", "fly"])), (Value::Null, Value::Null)] {
            let expected = json!({ "name": "a", "tool_pattern": "x,y", "server_pattern": null,
                "min_risk_score": 7, "operation_types": answer, "action": "flag" });
            assert_eq!(row(column), expected);
        }
    }
}
