//! A rule as the dashboard adds one: what its page asks for, what is posted, what of that is refused. Pure.
//!
//! The page makes its table of rules and its form from the conditions that are listed here.

use super::refusal::{Refusal, sentence};
use crate::mcp::rule_changes;
use axum::http::StatusCode;
use ringfence_wire::{
    exception::Exception,
    mcp::{Conditions, StoredRule},
    tool_call::{Action, Named as _, Operation, Recorded},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// A condition on the page.
#[derive(Debug, Serialize)]
struct Field {
    /// Its name in a rule.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    #[serde(flatten)]
    input: Input,
}

/// How the page asks for a condition.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Input {
    /// Globs, comma between them.
    Globs { placeholder: &'static str },
    /// Any of these operations.
    Operations { all: Vec<&'static str> },
    /// A score.
    Score,
}

/// The conditions of a rule as the page has them, in the order of its table.
fn fields() -> Vec<Field> {
    let all = [Operation::Read, Operation::Write, Operation::Delete, Operation::Execute, Operation::Unknown];
    vec![
        Field {
            name: "tool_pattern",
            label: "Tools",
            hint: "globs, comma between them; empty: all",
            input: Input::Globs { placeholder: "delete_*,drop_*" },
        },
        Field {
            name: "server_pattern",
            label: "Servers",
            hint: "globs; empty: all",
            input: Input::Globs { placeholder: "postgres,mysql" },
        },
        Field {
            name: "operation_types",
            label: "Operations",
            hint: "none ticked: all",
            input: Input::Operations { all: all.map(Operation::name).to_vec() },
        },
        Field { name: "min_risk_score", label: "Score from", hint: "", input: Input::Score },
    ]
}

/// The page's module that lists them.
pub(super) fn page_module() -> String {
    format!("export const CONDITIONS = {};\n", json!(fields()))
}

/// A rule as it is posted.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRule {
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    tool_pattern: Option<String>,
    #[serde(default)]
    server_pattern: Option<String>,
    #[serde(default)]
    min_risk_score: Option<u8>,
    #[serde(default, deserialize_with = "list_or_text")]
    operation_types: Option<Vec<Recorded<Operation>>>,
    action: Recorded<Action>,
    #[serde(default)]
    exception: Option<Exception>,
    /// A person agreed that calls are judged more mildly.
    #[serde(default)]
    pub(super) agreed: bool,
}

fn list_or_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Recorded<Operation>>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        List(Vec<String>),
        Text(String),
    }
    let list = match Option::<Either>::deserialize(deserializer)? {
        None => return Ok(None),
        Some(Either::List(list)) => list,
        Some(Either::Text(text)) => text.split(',').map(|name| name.trim().to_owned()).collect(),
    };
    let list: Vec<_> = list.into_iter().filter(|name| !name.is_empty()).map(Recorded::from).collect();
    Ok((!list.is_empty()).then_some(list))
}

pub(super) fn unprocessable(why: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, format!("{}.", sentence(&why.into())))
}

/// Checks everything but whether the rule exists already.
pub fn validate(posted: NewRule) -> Result<StoredRule, Refusal> {
    let rule = stored(posted);
    rule_changes::check(&rule).map_err(unprocessable)?;
    Ok(rule)
}

/// The rule that was posted, unchecked.
fn stored(posted: NewRule) -> StoredRule {
    // A form sends empty texts for what was left out.
    let text = |value: Option<String>| value.filter(|text| !text.trim().is_empty());
    let NewRule {
        name,
        description,
        tool_pattern,
        server_pattern,
        min_risk_score,
        operation_types,
        action,
        exception,
        agreed: _,
    } = posted;
    StoredRule {
        name: name.trim().to_owned(),
        description: description.unwrap_or_default(),
        conditions: Conditions {
            tool_pattern: text(tool_pattern),
            server_pattern: text(server_pattern),
            min_risk_score: min_risk_score.unwrap_or(0),
            operation_types,
        },
        action,
        exception,
    }
}

/// A rule with what was posted in place of what it has, but for what is no part of a rule.
pub(super) fn patched(rule: &StoredRule, posted: Map<String, Value>) -> Result<StoredRule, Refusal> {
    let mut whole = json!(rule);
    let Value::Object(parts) = &mut whole else { return Err(unprocessable("a rule is an object")) };
    parts.extend(posted);
    let whole: NewRule = serde_json::from_value(whole).map_err(|error| unprocessable(error.to_string()))?;
    validate(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::mcp::{MAX_STORED_RULES, SessionOrder};
    use std::collections::BTreeSet;

    /// As `rule_changes` has it.
    const LONGEST_TEXT: usize = 1000;

    fn posted(description: &str, operations: &str) -> Result<StoredRule, Refusal> {
        let text = json!({ "name": "a", "description": description, "tool_pattern": "x", "action": "flag",
            "operation_types": operations });
        validate(serde_json::from_value(text).expect("a body"))
    }

    #[test]
    fn the_page_asks_for_every_condition_and_knows_how() {
        let (module, page) = (page_module(), include_str!("page/rules.js"));
        let list = module.trim_end().strip_prefix("export const CONDITIONS = ").expect("the list");
        let list = list.strip_suffix(';').expect("its end");
        let list: Vec<Value> = serde_json::from_str(list).expect("JSON");
        let of = |key: &str| -> BTreeSet<&str> {
            list.iter().map(|field| field[key].as_str().expect("a text")).collect()
        };
        let conditions = json!(Conditions::default());
        let conditions: BTreeSet<&str> =
            conditions.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(of("name"), conditions);
        for kind in of("kind") {
            assert!(page.contains(&format!("\n  {kind}: {{\n")), "rules.js knows no {kind}");
        }
    }

    #[test]
    fn a_rule_s_texts_are_bounded_in_the_bytes_that_interceptors_are_sent() {
        let control = |many: usize| "\u{1}".repeat(many);
        for (text, fits) in [
            ("x".repeat(LONGEST_TEXT), true),
            ("x".repeat(LONGEST_TEXT + 1), false),
            ("é".repeat(LONGEST_TEXT / 2), true),
            ("é".repeat(LONGEST_TEXT / 2 + 1), false),
            // Six bytes each as JSON.
            (control(LONGEST_TEXT / 6), true),
            (control(LONGEST_TEXT / 6 + 1), false),
        ] {
            assert_eq!(posted(&text, "read").is_ok(), fits, "{} bytes", text.len());
        }
        assert!(posted("", &"read,".repeat(5)).is_ok() && posted("", &"x".repeat(1000)).is_err());
        // As many as there may be, of root's and a user's own, are one message that a link keeps.
        let Ok(rule) = posted(&control(LONGEST_TEXT / 6), "read,write,delete") else { panic!("refused") };
        let rule = StoredRule {
            conditions: Conditions {
                tool_pattern: Some(control(LONGEST_TEXT / 6)),
                server_pattern: Some(control(LONGEST_TEXT / 6)),
                ..rule.conditions
            },
            ..rule
        };
        let order = SessionOrder::Rules { rules: vec![rule; 2 * MAX_STORED_RULES] };
        let bytes = serde_json::to_vec(&order).expect("JSON").len();
        assert!(bytes < 2 << 20, "{bytes} bytes");
    }

    #[test]
    fn what_is_posted_of_a_rule_replaces_what_it_has_and_null_takes_it_away() {
        let Ok(rule) = posted("d", "read,write") else { panic!("refused") };
        let patch = |change: Value| {
            let Value::Object(change) = change else { panic!("an object") };
            patched(&rule, change)
        };
        assert!(matches!(patch(json!({})), Ok(same) if same == rule), "the control");
        let other = patch(json!({ "action": "block", "tool_pattern": null, "operation_types": ["delete"] }));
        let Ok(other) = other else { panic!("refused") };
        assert_eq!((other.action.as_str(), &other.conditions.tool_pattern), ("block", &None));
        assert_eq!(json!(other.conditions.operation_types), json!(["delete"]));
        assert_eq!((other.name, other.description), ("a".to_owned(), "d".to_owned()));
        for change in [json!({ "colour": 1 }), json!({ "action": null }), json!({ "tool_pattern": "[" })] {
            assert!(patch(change.clone()).is_err(), "{change}");
        }
    }
}
