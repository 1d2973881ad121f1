//! Hits, and changes held against calls on record.

use crate::{SessionReader, SessionWriter, Viewer};
use ringfence_wire::mcp::{Conditions, RuleChange, StoredRule};
use rusqlite::params;

const NOW: i64 = 1_800_000_000_000_000;
const DAY: i64 = 24 * 3_600 * 1_000_000;

#[test]
fn hits_are_counted_as_calls_come_and_a_change_is_tried_on_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.db");
    let mut writer = SessionWriter::new(path.clone(), None);
    let conditions = Conditions { tool_pattern: Some("x_*".into()), ..Conditions::default() };
    let rule = |name: &str| StoredRule {
        name: name.into(),
        description: String::new(),
        conditions: conditions.clone(),
        action: "block".into(),
    };
    let id = writer.add_rule(5, &rule("a"), 1).expect("stored").expect("new");
    let connection = writer.connection().expect("open");
    let call = |uid: u32, tool: &str, days: i64, action: &str, rules: Option<&str>| {
        let at = ringfence_base::clock::rfc3339(NOW - days * DAY);
        let session = uid.to_string();
        connection
            .execute(
                "INSERT OR IGNORE INTO sessions (id, server_name, server_command, started_at, uid) VALUES (?1, 's', '', '', ?2)",
                params![session, uid],
            )
            .and_then(|_| {
                connection.execute(
                    "INSERT OR IGNORE INTO messages (id, session_id, direction, timestamp, raw) VALUES ('m', ?1, '', '', '')",
                    [&session],
                )
            })
            .and_then(|_| {
                connection.execute(
                    "INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at,
                         policy_action, rules) VALUES (?1, ?2, 'm', ?3, '{}', 'read', ?4, ?5, ?6)",
                    params![uuid::Uuid::new_v4().to_string(), session, tool, at, action, rules],
                )
            })
            .expect("inserted")
    };
    call(5, "x_1", 1, "block", Some(r#"["a"]"#));
    call(5, "x_2", 3, "block", Some(r#"["a","of_a_file"]"#));
    call(5, "y", 1, "pass", Some("[]"));
    call(5, "x_3", 30, "block", Some(r#"["a"]"#));
    call(6, "x_4", 1, "block", Some(r#"["a"]"#));
    call(5, "x_5", 1, "pass", None);
    call(5, "x_6", 1, "pass", Some("no JSON"));
    let reader = SessionReader::open(&path).expect("opens");
    let rows = reader.rules(Viewer(5)).expect("reads");
    assert_eq!(rows[0]["hits"], 3, "not another user's");
    assert_eq!(rows[0]["last_hit"], ringfence_base::clock::rfc3339(NOW - DAY));
    assert_eq!(reader.rule_hits(Viewer(5)).expect("reads")["of_a_file"].0, 1);
    assert_eq!(reader.rules(Viewer(0)).expect("reads")[0]["hits"], 3, "it binds one user's");

    let tried = |change: &RuleChange, days| {
        let trial =
            reader.try_rule(Viewer(5), change, (Vec::new(), days), NOW).expect("asked").expect("tried");
        let report = trial.report();
        ["calls", "matched", "stricter", "milder"].map(|key| report[key].as_u64().expect("a number"))
    };
    let delete = RuleChange::Delete { id: id.clone(), version: 1 };
    assert_eq!(tried(&delete, 7), [5, 2, 0, 1]);
    assert_eq!(tried(&delete, 90), [6, 3, 0, 2]);
    assert_eq!(tried(&RuleChange::Add { rule: rule("b") }, 7), [5, 4, 2, 0]);
    let stale = RuleChange::Delete { id: id.clone(), version: 9 };
    assert!(reader.try_rule(Viewer(5), &stale, (Vec::new(), 7), NOW).expect("asked").is_err());

    let deleted = writer.change_rule(Viewer(5), &delete, ("somebody", true), NOW).expect("asked");
    assert!(matches!(deleted, crate::Changed::Done { .. }));
    writer.add_rule(5, &rule("a"), 1).expect("stored").expect("new");
    assert_eq!(reader.rules(Viewer(5)).expect("reads")[0]["hits"], 0, "another rule of the name begins anew");
}

#[test]
fn names_of_rules_are_bounded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.db");
    let mut writer = SessionWriter::new(path.clone(), None);
    let connection = writer.connection().expect("open");
    let names: Vec<String> = (0..2500).map(|n| format!("n{n}")).chain(["x".repeat(201)]).collect();
    let text =
        "INSERT INTO sessions (id, server_name, server_command, started_at, uid) VALUES ('s', '', '', '', 5);
         INSERT INTO messages (id, session_id, direction, timestamp, raw) VALUES ('m', 's', '', '', '')";
    connection.execute_batch(text).expect("inserted");
    for (id, names) in [&names[2400..], &names[..]].into_iter().enumerate() {
        let text = "INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at, rules)
             VALUES (?1, 's', 'm', '', '{}', '', '', ?2)";
        connection
            .execute(text, params![id.to_string(), serde_json::json!(names).to_string()])
            .expect("inserted");
    }
    let hits = SessionReader::open(&path).expect("opens").rule_hits(Viewer(5)).expect("reads");
    assert_eq!((hits.len(), hits["n2499"].0), (2000, 2));
    assert!(!hits.contains_key(&"x".repeat(201)));
}
