//! A rule as the dashboard adds one: what its page asks for, what is posted, what of that is refused. Pure.
//!
//! The page makes its table of rules and its form from the conditions that are listed here.

use super::refusal::{Refusal, sentence};
use axum::http::StatusCode;
use ringfence_base::error::chain;
use ringfence_session::{rules, ruleset};
use ringfence_wire::{
    mcp::{Conditions, StoredRule},
    tool_call::{Action, Named as _, Operation, Recorded},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;

/// Characters of a rule's name.
const LONGEST_NAME: usize = 100;
/// Bytes of a rule's other texts as JSON, which is how interceptors are sent them: with
/// [`ringfence_wire::mcp::MAX_STORED_RULES`] it bounds how long that is.
const LONGEST_TEXT: usize = 1000;

/// A condition on the page.
#[derive(Debug, Serialize)]
struct Field<'a> {
    /// Its name in a rule.
    name: &'static str,
    label: &'static str,
    hint: &'static str,
    #[serde(flatten)]
    input: Input<'a>,
}

/// How the page asks for a condition, and what a rule has of it that could be too long.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Input<'a> {
    /// Globs, comma between them.
    Globs {
        placeholder: &'static str,
        #[serde(skip)]
        given: Option<&'a str>,
    },
    /// Any of these operations.
    Operations {
        all: Vec<&'static str>,
        #[serde(skip)]
        given: &'a [Recorded<Operation>],
    },
    /// A score.
    Score,
}

/// The conditions of a rule as the page has them, in the order of its table.
fn fields(conditions: &Conditions) -> Vec<Field<'_>> {
    let Conditions { tool_pattern, server_pattern, min_risk_score: _, operation_types } = conditions;
    let all = [Operation::Read, Operation::Write, Operation::Delete, Operation::Execute, Operation::Unknown];
    vec![
        Field {
            name: "tool_pattern",
            label: "Tools",
            hint: "globs, comma between them; empty: all",
            input: Input::Globs { placeholder: "delete_*,drop_*", given: tool_pattern.as_deref() },
        },
        Field {
            name: "server_pattern",
            label: "Servers",
            hint: "globs; empty: all",
            input: Input::Globs { placeholder: "postgres,mysql", given: server_pattern.as_deref() },
        },
        Field {
            name: "operation_types",
            label: "Operations",
            hint: "none ticked: all",
            input: Input::Operations {
                all: all.map(Operation::name).to_vec(),
                given: operation_types.as_deref().unwrap_or_default(),
            },
        },
        Field { name: "min_risk_score", label: "Score from", hint: "", input: Input::Score },
    ]
}

/// The page's module that lists them.
pub(super) fn page_module() -> String {
    format!("export const CONDITIONS = {};\n", json!(fields(&Conditions::default())))
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
    // A form sends empty texts for what was left out.
    let text = |value: Option<String>| value.filter(|text| !text.trim().is_empty());
    let NewRule { name, description, tool_pattern, server_pattern, min_risk_score, operation_types, action } =
        posted;
    let rule = StoredRule {
        name: name.trim().to_owned(),
        description: description.unwrap_or_default(),
        conditions: Conditions {
            tool_pattern: text(tool_pattern),
            server_pattern: text(server_pattern),
            min_risk_score: min_risk_score.unwrap_or(0),
            operation_types,
        },
        action,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if rule.name.is_empty() || rule.name.len() > LONGEST_NAME || !rule.name.chars().all(plain) {
        return Err(unprocessable(format!(
            "a rule's name is 1 to {LONGEST_NAME} of the characters a-z A-Z 0-9 _ - ."
        )));
    }
    fits("description", &rule.description)?;
    for Field { name, input, .. } in fields(&rule.conditions) {
        match input {
            Input::Globs { given, .. } => fits(name, given.unwrap_or_default())?,
            Input::Operations { all, given } => {
                let length: usize = given.iter().map(|name| name.as_str().len()).sum();
                if given.len() > all.len() || length > LONGEST_NAME {
                    return Err(unprocessable(format!("{name} names more operations than there are")));
                }
            }
            Input::Score => {}
        }
    }
    let written = ruleset::rule_spec(&rule).map_err(unprocessable)?;
    rules::compile(written).map_err(|error| unprocessable(chain(&error)))?;
    Ok(rule)
}

/// Refuses a text that is too long for interceptors.
fn fits(key: &str, text: &str) -> Result<(), Refusal> {
    // Without its quotes.
    let length = json!(text).to_string().len() - 2;
    if length > LONGEST_TEXT {
        return Err(unprocessable(format!("{key} has {length} bytes as JSON, and at most {LONGEST_TEXT}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_wire::mcp::{MAX_STORED_RULES, SessionOrder};
    use serde_json::Value;
    use std::collections::BTreeSet;

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
}
