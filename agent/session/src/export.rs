//! Rows of the audit store in the forms that other tools read: NDJSON, OCSF, CEF, SQL. Pure.

pub mod events;

use ringfence_wire::tool_call::{Named as _, Operation, Outcome};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// A form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One JSON object a line, the columns' names as keys, OpenTelemetry's names under `attributes`.
    Ndjson,
    /// OCSF 1.3 "API Activity" (class 6003), one object a line.
    Ocsf,
    /// ArcSight Common Event Format, one event a line.
    Cef,
    /// Tables and rows as SQL that any SQLite reads.
    Sql,
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

/// A tool call under OpenTelemetry's names, as far as those exist (status: development).
/// <https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md>
fn attributes(row: &Value) -> Value {
    let mut attributes = json!({
        "mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": row["tool_name"],
        "network.transport": "pipe",
    });
    // Of a task the later result counts.
    let (result, error) = match row["task_answer"].as_str() {
        Some("error") => (&Value::Null, &row["task_result"]),
        Some(_) => (&row["task_result"], &Value::Null),
        None => (&row["result"], &row["error"]),
    };
    if result["isError"] == true {
        attributes["error.type"] = "tool_error".into();
    } else if let Some(code) = error["code"].as_i64() {
        attributes["error.type"] = code.to_string().into();
    }
    attributes
}

/// What the policy did with a call, as OCSF's profile `security_control` has it: ids and names of the action and of the
/// disposition.
fn disposition(
    decision: Option<Outcome>,
    outcome: Option<Outcome>,
) -> ((u8, &'static str), (u8, &'static str)) {
    let (allowed, denied, unknown) = ((1, "Allowed"), (2, "Denied"), (0, "Unknown"));
    match (outcome, decision) {
        (Some(Outcome::Blocked | Outcome::Denied | Outcome::Timeout), _) => (denied, (2, "Blocked")),
        // Nobody decided: it went before that.
        (Some(Outcome::Cancelled | Outcome::Ended), _) => (denied, (6, "Dropped")),
        (_, Some(Outcome::Approved)) => (allowed, (8, "Approved")),
        (Some(_), _) => (allowed, (1, "Allowed")),
        (None, _) => (unknown, (0, "Unknown")),
    }
}

/// A tool call as it is stored, with its outcome, and OpenTelemetry's names under `attributes`. Keys that begin with `_` are
/// not columns.
pub fn ndjson(row: &Value) -> Value {
    let mut row = row.clone();
    let (attributes, outcome) = (attributes(&row), row["_outcome"].clone());
    if let Value::Object(fields) = &mut row {
        fields.retain(|key, _| !key.starts_with('_'));
        fields.insert("outcome".to_owned(), outcome);
        fields.insert("attributes".to_owned(), attributes);
    }
    row
}

/// A tool call as OCSF API Activity. <https://schema.ocsf.io/1.4.0/classes/api_activity>
pub fn ocsf(row: &Value) -> Value {
    let (activity, name) = match Operation::from_name(text(row, "operation_type")) {
        Some(Operation::Read) => (2, "Read"),
        Some(Operation::Write) => (3, "Update"),
        Some(Operation::Delete) => (4, "Delete"),
        // OCSF: what it has no number for is named in the source's own word.
        Some(Operation::Execute) => (99, "Execute"),
        Some(Operation::Unknown) | None => (0, "Unknown"),
    };
    let score = row["risk_score"].as_u64().unwrap_or(0);
    // OCSF: 1 informational, 2 low, 3 medium, 4 high, 5 critical.
    let severity = match score {
        0 => 1,
        1..=30 => 2,
        31..=60 => 3,
        61..=80 => 4,
        _ => 5,
    };
    let outcome = Outcome::from_name(text(row, "_outcome"));
    let (status, status_name) = match outcome {
        Some(Outcome::Answered | Outcome::TaskAnswered) => (1, "Success"),
        Some(
            Outcome::Blocked
            | Outcome::Denied
            | Outcome::Timeout
            | Outcome::Cancelled
            | Outcome::Ended
            | Outcome::ToolError
            | Outcome::Error
            | Outcome::CancelledInFlight
            | Outcome::Killed,
        ) => (2, "Failure"),
        // It is not over.
        Some(Outcome::Approved | Outcome::Task) | None => (0, "Unknown"),
    };
    let (action, disposition) = disposition(Outcome::from_name(text(row, "decision")), outcome);
    // Required of this class, with one name at least: the client is a process on this very host.
    let client =
        Some(text(&row["_client_info"], "name")).filter(|name| !name.is_empty()).unwrap_or("MCP client");
    let mut event = json!({
        "class_uid": 6003, "class_name": "API Activity", "category_uid": 6, "category_name": "Application Activity",
        "activity_id": activity, "activity_name": name, "type_uid": 600_300 + activity,
        "time": milliseconds(text(row, "requested_at")), "duration": row["duration_ms"],
        "severity_id": severity, "status_id": status, "status": status_name, "status_detail": row["_outcome"],
        "action_id": action.0, "action": action.1, "disposition_id": disposition.0, "disposition": disposition.1,
        "api": {"operation": row["tool_name"], "service": {"name": row["_server_name"]},
                "request": {"uid": row["id"], "data": row["arguments"]}},
        "src_endpoint": {"svc_name": client}, "dst_endpoint": {"svc_name": row["_server_name"]},
        "actor": {"user": {"uid": row["_uid"].to_string()}, "session": {"uid": row["session_id"]}},
        "metadata": {"version": "1.4.0", "uid": row["id"], "profiles": ["security_control"],
                     "product": {"name": "Ringfence", "vendor_name": "Ringfence", "version": env!("CARGO_PKG_VERSION")}},
        "unmapped": {"risk_score": score, "risk_reasons": row["risk_reasons"], "policy_action": row["policy_action"],
                     "decision": row["decision"], "outcome": row["_outcome"], "approved_by": row["approved_by"], "attributes": attributes(row)},
    });
    if let Value::Object(fields) = &mut event {
        // A call without an answer has no duration, and null is none of its type.
        fields.retain(|_, value| !value.is_null());
    }
    event
}

/// A tool call as a CEF line.
pub fn cef(row: &Value) -> String {
    // Names are servers' and clients' words: a terminal that shows the line is not to obey them.
    let header =
        |text: &str| text.replace('\\', "\\\\").replace('|', "\\|").replace(|c: char| c.is_control(), " ");
    let value = |text: &str| {
        let text = text.replace('\\', "\\\\").replace('=', "\\=").replace('\n', "\\n").replace('\r', "\\r");
        text.replace(|c: char| c.is_control(), " ")
    };
    let score = row["risk_score"].as_u64().unwrap_or(0).min(100);
    let mut line = format!(
        "CEF:0|Ringfence|ringfence|{}|mcp:{}|MCP tool call {}|{}|",
        env!("CARGO_PKG_VERSION"),
        header(text(row, "policy_action")),
        header(text(row, "tool_name")),
        score / 10
    );
    let fields = [
        ("rt", milliseconds(text(row, "requested_at")).map_or_else(String::new, |ms| ms.to_string())),
        ("externalId", text(row, "id").to_owned()),
        ("act", text(row, "policy_action").to_owned()),
        ("outcome", text(row, "_outcome").to_owned()),
        ("suid", row["_uid"].to_string()),
        ("destinationServiceName", text(row, "_server_name").to_owned()),
        ("cn1Label", "risk".to_owned()),
        ("cn1", score.to_string()),
        ("cs1Label", "tool".to_owned()),
        ("cs1", text(row, "tool_name").to_owned()),
        ("cs2Label", "session".to_owned()),
        ("cs2", text(row, "session_id").to_owned()),
        ("cs3Label", "reasons".to_owned()),
        ("cs3", row["risk_reasons"].to_string()),
        ("msg", row["arguments"].to_string()),
    ];
    let fields: Vec<String> = fields
        .into_iter()
        .filter(|(_, text)| !text.is_empty() && text != "null")
        .map(|(key, text)| format!("{key}={}", value(&text)))
        .collect();
    line.push_str(&fields.join(" "));
    line
}

/// A row as an INSERT statement. Keys that begin with `_` are not columns; of columns of JSON the row has the texts: a text
/// that is itself a JSON string has its quotes.
pub fn insert(table: &str, row: &Value) -> String {
    let (mut names, mut values) = (String::new(), String::new());
    for (key, value) in row.as_object().into_iter().flatten().filter(|(key, _)| !key.starts_with('_')) {
        let separator = if names.is_empty() { "" } else { ", " };
        let _ = write!(names, "{separator}\"{key}\"");
        let _ = match value {
            Value::Null => write!(values, "{separator}NULL"),
            Value::Number(number) => write!(values, "{separator}{number}"),
            Value::String(text) => write!(values, "{separator}{}", literal(text)),
            json => write!(values, "{separator}{}", literal(&json.to_string())),
        };
    }
    format!("INSERT INTO \"{table}\" ({names}) VALUES ({values});")
}

/// A text as an SQL literal. NUL ends a literal for SQLite's parser, so a text with one goes as bytes.
fn literal(text: &str) -> String {
    if text.contains('\0') {
        let hex = text.bytes().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        return format!("CAST(X'{hex}' AS TEXT)");
    }
    format!("'{}'", text.replace('\'', "''"))
}

fn milliseconds(rfc3339: &str) -> Option<i64> {
    rfc3339.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond)
}

#[cfg(test)]
mod tests {
    use super::{cef, insert, ndjson, ocsf};
    use serde_json::json;

    fn row() -> serde_json::Value {
        json!({
            "id": "c1", "session_id": "s1", "_server_name": "db|x", "tool_name": "drop=it|now", "arguments": {"a": "b\nc"},
            "operation_type": "delete", "risk_score": 85, "risk_reasons": ["destructive"], "policy_action": "block",
            "decision": "blocked", "_outcome": "blocked", "requested_at": "2026-01-02T03:04:05.678901Z", "responded_at": null, "error": null,
            "duration_ms": null, "_uid": 1000, "approved_by": null,
        })
    }

    #[test]
    fn ocsf_has_its_class_time_and_severity() {
        let event = ocsf(&row());
        assert_eq!(event["type_uid"], 600_304);
        assert_eq!(event["time"], 1_767_323_045_678_i64);
        assert_eq!((event["severity_id"].as_u64(), event["status_id"].as_u64()), (Some(5), Some(2)));
    }

    /// <https://schema.ocsf.io/1.4.0/classes/api_activity>: what is required, and that an endpoint has a name.
    #[test]
    fn ocsf_has_all_that_its_class_requires() {
        let required = [
            "activity_id",
            "actor",
            "api",
            "category_uid",
            "class_uid",
            "metadata",
            "severity_id",
            "src_endpoint",
            "time",
            "type_uid",
        ];
        for operation in ["read", "write", "delete", "execute", "unknown"] {
            for client in [json!({"name": "claude-code", "version": "2"}), json!(null), json!("odd")] {
                let mut row = row();
                (row["operation_type"], row["_client_info"]) = (operation.into(), client);
                let event = ocsf(&row);
                let missing: Vec<_> = required.into_iter().filter(|key| event.get(key).is_none()).collect();
                assert!(missing.is_empty() && event.get("duration").is_none(), "{missing:?}: {event}");
                assert!(event["src_endpoint"]["svc_name"].as_str().is_some_and(|name| !name.is_empty()));
            }
        }
        let execute = ocsf(&json!({"operation_type": "execute", "_client_info": {"name": "cursor"}}));
        assert_eq!((&execute["activity_id"], &execute["activity_name"]), (&json!(99), &json!("Execute")));
        assert_eq!(execute["src_endpoint"]["svc_name"], "cursor");
    }

    #[test]
    fn opentelemetrys_names_are_there() {
        let call = ndjson(&row());
        assert_eq!(call["tool_name"], call["attributes"]["gen_ai.tool.name"]);
        assert_eq!(call["attributes"]["mcp.method.name"], "tools/call");
        assert!(call.get("_uid").is_none() && call["attributes"].get("error.type").is_none());
        let mut failed = row();
        failed["result"] = json!({"isError": true});
        (failed["decision"], failed["_outcome"]) = (json!(null), json!("tool_error"));
        assert_eq!(ocsf(&failed)["unmapped"]["attributes"]["error.type"], "tool_error");
        assert_eq!(ocsf(&failed)["status"], "Failure", "what the tool says of itself");
        failed["result"] = json!(null);
        failed["error"] = json!({"code": -32602, "message": "no"});
        assert_eq!(ndjson(&failed)["attributes"]["error.type"], "-32602");
    }

    #[test]
    fn each_outcome_has_its_status_and_disposition() {
        for (decision, outcome, expected) in [
            (json!(null), json!("answered"), ("Success", "Allowed", "Allowed")),
            (json!("approved"), json!("answered"), ("Success", "Allowed", "Approved")),
            (json!(null), json!("task_answered"), ("Success", "Allowed", "Allowed")),
            (json!(null), json!("tool_error"), ("Failure", "Allowed", "Allowed")),
            (json!("approved"), json!("error"), ("Failure", "Allowed", "Approved")),
            (json!(null), json!("cancelled_in_flight"), ("Failure", "Allowed", "Allowed")),
            (json!(null), json!("killed"), ("Failure", "Allowed", "Allowed")),
            (json!(null), json!("task"), ("Unknown", "Allowed", "Allowed")),
            (json!("denied"), json!("denied"), ("Failure", "Denied", "Blocked")),
            (json!("timeout"), json!("timeout"), ("Failure", "Denied", "Blocked")),
            (json!("cancelled"), json!("cancelled"), ("Failure", "Denied", "Dropped")),
            (json!(null), json!("ended"), ("Failure", "Denied", "Dropped")),
            (json!("approved"), json!(null), ("Unknown", "Allowed", "Approved")),
            (json!(null), json!(null), ("Unknown", "Unknown", "Unknown")),
        ] {
            let mut row = row();
            (row["decision"], row["_outcome"]) = (decision, outcome.clone());
            let event = ocsf(&row);
            let found = ["status", "action", "disposition"].map(|key| event[key].as_str().expect("a name"));
            assert_eq!(found, [expected.0, expected.1, expected.2], "{row}");
            assert_eq!(event.get("status_detail").unwrap_or(&json!(null)), &outcome);
            assert_eq!(ndjson(&row)["outcome"], outcome);
        }
    }

    #[test]
    fn cef_escapes_what_would_end_a_field() {
        let line = cef(&row());
        assert!(line.starts_with("CEF:0|Ringfence|ringfence|"));
        assert!(line.contains(r"MCP tool call drop=it\|now|8|"), "{line}");
        assert!(line.contains(r"cs1=drop\=it|now"), "{line}");
        let mut hostile = row();
        hostile["tool_name"] = json!("a\n\u{1b}[2J\u{9b}1m\rb");
        let line = cef(&hostile);
        assert!(line.contains(r"cs1=a\n [2J 1m\rb") && !line.contains(char::is_control), "{line}");
    }

    #[test]
    fn sql_is_quoted() {
        let statement =
            insert("t", &json!({"_rowid": 1, "a": "it's", "b": null, "c": 3, "d": {"x": "'"}, "e": "\0"}));
        assert_eq!(
            statement,
            r#"INSERT INTO "t" ("a", "b", "c", "d", "e") VALUES ('it''s', NULL, 3, '{"x":"''"}', CAST(X'00' AS TEXT));"#
        );
    }
}
