//! Exceptions: reasons that are not counted in the score of calls of one tool with arguments of one shape. Pure.
//!
//! An exception lowers a score and nothing else: rules are held against the call as it would be without.

use super::{
    arguments, classify,
    risk::{self, GRAVE, Risk},
};
use ringfence_redact::{REDACTED, words::words};
use ringfence_wire::{
    exception::{Argument, Excepted, Exception, JsonType},
    tool_call::Operation,
};
use serde_json::{Map, Value, json};
use std::collections::HashSet;

/// Most arguments that an exception names.
const MOST_ARGUMENTS: usize = 32;
/// Bytes of the whole exception as JSON: interceptors are sent all of them.
const LONGEST: usize = 2500;
/// The reason of a call that runs something.
const EXECUTE: &str = "execute";
/// The one member of arguments that are too long for the record.
const CUT: &str = "ringfence_cut";

/// An exception in force.
#[derive(Debug, Clone)]
pub struct NamedException {
    /// Its name, which calls on record have.
    pub name: String,
    /// What it is about.
    pub exception: Exception,
}

/// Why no exception can be like that, for a person.
///
/// # Errors
/// The reason.
pub fn check(exception: &Exception) -> Result<(), String> {
    let Exception { server, tool, arguments, reasons } = exception;
    if server.is_empty() || tool.is_empty() {
        return Err("an exception is about one tool of one server: it names both".to_owned());
    }
    if reasons.is_empty() {
        return Err("an exception names the reasons that do not count".to_owned());
    }
    let mut named = HashSet::new();
    for reason in reasons {
        if !risk::reasons().any(|known| known == reason) {
            let known: Vec<&str> = risk::reasons().collect();
            return Err(format!("{reason:?} is no reason of a score; those are {}", known.join(", ")));
        }
        if !named.insert(reason) {
            return Err(format!("the reason {reason:?} is named twice"));
        }
    }
    if arguments.len() > MOST_ARGUMENTS {
        return Err(format!("an exception names at most {MOST_ARGUMENTS} arguments"));
    }
    let mut names = HashSet::new();
    for Argument { name, kind, equals } in arguments {
        if !names.insert(name) {
            return Err(format!("the argument {name:?} is named twice"));
        }
        if let Some(value) = equals {
            if JsonType::of(value) != *kind {
                return Err(format!("the argument {name:?} is to be equal to a value of another type"));
            }
            if !is_exact(value) {
                return Err(format!(
                    "the argument {name:?} is to be equal to a list, an object or a fraction; name a text, a whole number or a truth value"
                ));
            }
        }
    }
    if let Some(open) = arguments.iter().find(|argument| is_open(argument, tool, reasons)) {
        return Err(format!(
            "a call that runs code can do anything, depending on its text: pin the arguments that hold it (`--same ARGUMENT`, \"equals\"); {:?} is {}",
            open.name,
            if open.kind == JsonType::String { "not pinned" } else { "a list or an object, which cannot be" }
        ));
    }
    let bytes = json!(exception).to_string().len();
    if bytes > LONGEST {
        return Err(format!("the exception has {bytes} bytes as JSON, and at most {LONGEST}"));
    }
    Ok(())
}

/// Whether an argument leaves open what a call does that loses something for good or runs something. Of a tool that runs, and for a
/// reason that says so or a grave one, any text could be what is run or lost; elsewhere what is called a command is.
fn is_open(argument: &Argument, tool: &str, reasons: &[String]) -> bool {
    let words = words(tool);
    let (operation, is_shell) = (classify::name(&words), classify::is_shell(&words));
    let all = is_shell
        || operation == Operation::Execute
        || reasons.iter().any(|reason| reason == EXECUTE || GRAVE.contains(&reason.as_str()));
    let may_hold_text = matches!(argument.kind, JsonType::String | JsonType::Array | JsonType::Object);
    may_hold_text
        && argument.equals.is_none()
        && (all || arguments::holds_code(&argument.name, operation, is_shell))
}

/// The first argument of a call on record of which only that it was a secret is known, not of which type.
pub fn without_type(arguments: &Map<String, Value>) -> Option<&str> {
    arguments.iter().find(|(_, value)| *value == REDACTED).map(|(name, _)| name.as_str())
}

/// Whether every reader takes a value for the same.
fn is_exact(value: &Value) -> bool {
    const EXACT: u64 = 1 << 53;
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => true,
        Value::Number(number) => number.as_i64().is_some_and(|number| number.unsigned_abs() < EXACT),
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// Whether a call is one that an exception is about.
pub fn is_about(exception: &Exception, server: &str, tool: &str, arguments: &Value) -> bool {
    if exception.tool != tool || exception.server != server {
        return false;
    }
    let Value::Object(given) = arguments else { return false };
    given.len() == exception.arguments.len()
        && exception.arguments.iter().all(|Argument { name, kind, equals }| {
            given.get(name).is_some_and(|value| {
                JsonType::of(value) == *kind && equals.as_ref().is_none_or(|equals| equals == value)
            })
        })
}

/// The risk of a call without what the exceptions that are about it except, and those of them that change it.
pub fn lowered(
    exceptions: &[NamedException],
    (server, tool): (&str, &str),
    arguments: &Value,
    risk: &Risk,
) -> Option<(Risk, Vec<Excepted>)> {
    let applied: Vec<Excepted> = exceptions
        .iter()
        .filter(|one| is_about(&one.exception, server, tool, arguments))
        .filter_map(|one| {
            let of_call =
                risk.reasons.iter().filter(|reason| one.exception.reasons.iter().any(|r| r == *reason));
            let reasons: Vec<String> = of_call.map(|reason| (*reason).to_owned()).collect();
            (!reasons.is_empty()).then(|| Excepted { name: one.name.clone(), reasons })
        })
        .collect();
    if applied.is_empty() {
        return None;
    }
    let is_excepted = |reason: &str| applied.iter().any(|one| one.reasons.iter().any(|name| name == reason));
    let score = risk::score_without(risk.score, &risk.reasons, is_excepted);
    let reasons = risk.reasons.iter().copied().filter(|reason| !is_excepted(reason)).collect();
    Some((Risk { operation: risk.operation, score, reasons }, applied))
}

/// Whether whatever `narrow` excepts `wide` excepts as well.
pub fn covers(wide: &Exception, narrow: &Exception) -> bool {
    let same = |of: &Argument, other: &Argument| {
        of.name == other.name && of.kind == other.kind && (of.equals.is_none() || of.equals == other.equals)
    };
    wide.server == narrow.server
        && wide.tool == narrow.tool
        && narrow.reasons.iter().all(|reason| wide.reasons.contains(reason))
        && wide.arguments.len() == narrow.arguments.len()
        && wide.arguments.iter().all(|of| narrow.arguments.iter().any(|other| same(of, other)))
}

/// What an exception for a call on record would have, and null where that has no arguments that it could be told by: every
/// reason of its score that is not grave.
pub fn suggested(call: &Value) -> Value {
    let text = |key: &str| call[key].as_str().unwrap_or_default();
    let (Some(arguments), Some(reasons)) = (call["arguments"].as_object(), call["risk_reasons"].as_array())
    else {
        return Value::Null;
    };
    // It would be about other calls than this one.
    if arguments.contains_key(CUT) || without_type(arguments).is_some() {
        return Value::Null;
    }
    let arguments =
        arguments.iter().map(|(name, value)| json!({ "name": name, "type": JsonType::of(value) }));
    let reasons = reasons.iter().filter_map(Value::as_str);
    let reasons: Vec<&str> = reasons
        .filter(|reason| !GRAVE.contains(reason) && risk::reasons().any(|known| known == *reason))
        .collect();
    json!({ "server": text("server_name"), "tool": text("tool_name"), "arguments": arguments.collect::<Vec<_>>(),
        "reasons": reasons })
}

#[cfg(test)]
mod tests {
    use super::{NamedException, check, covers, is_about, lowered, suggested};
    use crate::risk;
    use ringfence_wire::exception::Exception;
    use serde_json::{Value, json};

    fn exception(arguments: Value, reasons: &[&str]) -> Exception {
        let value =
            json!({ "server": "fs", "tool": "read_file", "arguments": arguments, "reasons": reasons });
        serde_json::from_value(value).expect("an exception")
    }

    fn path(more: Value) -> Exception {
        let mut argument = json!({ "name": "path", "type": "string" });
        if !more.is_null() {
            argument["equals"] = more;
        }
        exception(json!([argument]), &["sensitive_data"])
    }

    #[test]
    fn it_is_about_calls_of_its_tool_with_its_arguments_and_no_others() {
        let any = path(Value::Null);
        assert!(is_about(&any, "fs", "read_file", &json!({"path": "/a/.env"})));
        for (server, tool, arguments) in [
            ("fs2", "read_file", json!({"path": "/a"})),
            ("fs", "Read_file", json!({"path": "/a"})),
            ("fs", "ｒead_file", json!({"path": "/a"})),
            ("fs", "mcp__fs__read_file", json!({"path": "/a"})),
            ("fs", "read_file", json!({"path": 1})),
            ("fs", "read_file", json!({"path": "/a", "more": 1})),
            ("fs", "read_file", json!({"Path": "/a"})),
            ("fs", "read_file", json!({})),
            ("fs", "read_file", json!([])),
        ] {
            assert!(!is_about(&any, server, tool, &arguments), "{server} {tool} {arguments}");
        }
        let one = path(json!("/a/.env"));
        assert!(is_about(&one, "fs", "read_file", &json!({"path": "/a/.env"})));
        assert!(!is_about(&one, "fs", "read_file", &json!({"path": "/a/.env.local"})));
        let number = exception(json!([{ "name": "n", "type": "number", "equals": 1 }]), &["write"]);
        assert!(is_about(&number, "fs", "read_file", &json!({"n": 1})));
        for other in [json!(1.0), json!(2), json!("1")] {
            assert!(!is_about(&number, "fs", "read_file", &json!({ "n": other })), "{other}");
        }
    }

    #[test]
    fn a_score_is_lowered_by_its_reasons_and_all_others_count() {
        let named = |exception| [NamedException { name: "env".into(), exception }];
        let arguments = json!({"path": "/home/a/.env"});
        let full = risk::assess("read_file", &arguments, true);
        assert_eq!((full.score, full.reasons.as_slice()), (40, ["sensitive_data", "first_use"].as_slice()));
        let lower = |exception| lowered(&named(exception), ("fs", "read_file"), &arguments, &full);
        let (risk, applied) = lower(path(Value::Null)).expect("it is about it");
        assert_eq!((risk.score, risk.reasons, risk.operation), (10, vec!["first_use"], full.operation));
        assert_eq!(
            (applied[0].name.as_str(), applied[0].reasons.as_slice()),
            ("env", ["sensitive_data".to_owned()].as_slice())
        );
        assert_eq!(lower(path(json!("/other"))), None);
        assert_eq!(lower(exception(json!([{ "name": "path", "type": "string" }]), &["destructive"])), None);
    }

    #[test]
    fn what_no_exception_can_have_is_refused_in_words() {
        assert_eq!(check(&path(json!("/a"))), Ok(()), "the control");
        let with = |change: fn(&mut Exception)| {
            let mut exception = path(Value::Null);
            change(&mut exception);
            check(&exception).expect_err("refused")
        };
        assert!(with(|e| e.tool.clear()).contains("names both"));
        assert!(with(|e| e.reasons.clear()).contains("names the reasons"));
        assert!(with(|e| e.reasons.push("fun".into())).contains("no reason"));
        assert!(with(|e| e.reasons.push("sensitive_data".into())).contains("twice"));
        assert!(with(|e| e.arguments.push(e.arguments[0].clone())).contains("twice"));
        assert!(with(|e| e.arguments[0].equals = Some(json!(1))).contains("another type"));
        assert!(with(|e| e.arguments[0].equals = Some(json!("x".repeat(3000)))).contains("bytes"));
        let fraction = exception(json!([{ "name": "n", "type": "number", "equals": 0.5 }]), &["write"]);
        assert!(check(&fraction).expect_err("refused").contains("fraction"));
        let long = exception(json!([{ "name": "n", "type": "number", "equals": 1u64 << 60 }]), &["write"]);
        assert!(check(&long).is_err(), "two readers of it may have two numbers");
        assert!(
            serde_json::from_value::<Exception>(
                json!({ "server": "s", "tool": "t", "arguments": [], "reasons": [], "x": 1 })
            )
            .is_err()
        );
    }

    #[test]
    fn a_narrower_one_is_covered() {
        let (wide, narrow) = (path(Value::Null), path(json!("/a")));
        assert!(covers(&wide, &narrow) && covers(&wide, &wide) && !covers(&narrow, &wide));
        let more = exception(json!([{ "name": "path", "type": "string" }]), &["sensitive_data", "write"]);
        assert!(covers(&more, &narrow) && !covers(&wide, &more));
        assert!(!covers(&wide, &exception(json!([]), &["sensitive_data"])), "other arguments");
        assert!(!covers(&wide, &Exception { tool: "x".into(), ..narrow }), "another tool");
    }

    #[test]
    fn what_is_suggested_names_no_grave_reason() {
        let call = json!({ "server_name": "s", "tool_name": "t", "arguments": {"b": [1], "a": "x"},
            "risk_reasons": ["destructive", "bulk_operation", "wide_target", "of_later"] });
        let expected = json!({ "server": "s", "tool": "t", "reasons": ["bulk_operation"],
            "arguments": [{ "name": "a", "type": "string" }, { "name": "b", "type": "array" }] });
        let exception: Exception = serde_json::from_value(suggested(&call)).expect("an exception");
        assert_eq!(json!(exception), expected);
        check(&exception).expect("one that can be");
        let of = |arguments: Value| suggested(&json!({ "arguments": arguments, "risk_reasons": ["write"] }));
        assert!(of(json!({"a": "x [redacted]", "n": {"token": "[redacted]"}})).is_object(), "the control");
        for unknown in [
            json!("not an object"),
            json!({"a": "x", "pin": "[redacted]"}),
            json!({"ringfence_cut": "3000000 bytes; the session's journal has them"}),
        ] {
            assert_eq!(of(unknown.clone()), Value::Null, "{unknown}");
        }
    }

    #[test]
    fn what_runs_or_destroys_is_excepted_only_with_every_text_pinned() {
        let of = |tool: &str, arguments: Value, reason: &str| {
            let value = json!({ "server": "s", "tool": tool, "arguments": arguments, "reasons": [reason] });
            check(&serde_json::from_value(value).expect("an exception"))
        };
        let text = |name: &str| json!({ "name": name, "type": "string" });
        let pinned = |name: &str| json!({ "name": name, "type": "string", "equals": "x" });
        let number = json!({ "name": "timeout", "type": "number" });
        for (tool, arguments, reason) in [
            ("t", json!([text("a")]), "execute"),
            ("t", json!([text("a")]), "unseen_code"),
            ("t", json!([pinned("a"), text("cwd")]), "execute"),
            ("bash", json!([text("command"), pinned("cwd")]), "bulk_operation"),
            ("bash", json!([text("command")]), "destructive"),
            ("run_tests", json!([text("path")]), "first_use"),
            ("t", json!([text("command"), pinned("path")]), "bulk_operation"),
        ] {
            let why = of(tool, arguments.clone(), reason).expect_err("refused");
            assert!(
                why.contains("--same") && why.contains("not pinned"),
                "{tool} {arguments} {reason}: {why}"
            );
        }
        let list = json!([{ "name": "command", "type": "array" }, pinned("cwd")]);
        for (tool, reason) in [("bash", "bulk_operation"), ("t", "execute"), ("t", "bulk_operation")] {
            assert!(of(tool, list.clone(), reason).expect_err("refused").contains("cannot be"), "{tool}");
        }
        for (tool, arguments, reason) in [
            ("bash", json!([pinned("command"), pinned("cwd"), number]), "execute"),
            ("bash", json!([pinned("command")]), "destructive"),
            ("delete_all", json!([]), "destructive"),
            ("t", json!([pinned("command"), text("path")]), "bulk_operation"),
            ("read_file", json!([text("path"), { "name": "lines", "type": "array" }]), "sensitive_data"),
        ] {
            assert_eq!(of(tool, arguments.clone(), reason), Ok(()), "the control: {tool} {arguments}");
        }
    }

    #[test]
    fn what_removes_one_folder_excepts_no_other() {
        let call = json!({ "server_name": "s", "tool_name": "bash", "arguments": {"command": "rm -rf build"},
            "risk_reasons": risk::assess("bash", &json!({"command": "rm -rf build"}), false).reasons });
        let mut exception: Exception = serde_json::from_value(suggested(&call)).expect("an exception");
        exception.reasons = vec!["destructive".into(), "bulk_operation".into()];
        check(&exception).expect_err("of any command");
        exception.arguments[0].equals = Some(json!("rm -rf build"));
        check(&exception).expect("of that one");
        let named = [NamedException { name: "build".into(), exception }];
        let score = |command: &str| {
            let arguments = json!({ "command": command });
            let risk = risk::assess("bash", &arguments, false);
            lowered(&named, ("s", "bash"), &arguments, &risk).map_or(risk.score, |(risk, _)| risk.score)
        };
        assert_eq!(score("rm -rf build"), 0, "the control");
        assert!(score("rm -rf anything/else") >= 40);
    }
}
