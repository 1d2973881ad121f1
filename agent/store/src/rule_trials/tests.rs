//! Changes held against calls on record.

use crate::{Changed, MOST_PATTERNS, SessionReader, SessionWriter, Viewer};
use ringfence_session::rules::{self, RuleSpec};
use ringfence_wire::mcp::{Conditions, RuleChange, StoredRule};
use rusqlite::params;

const NOW: i64 = 1_800_000_000_000_000;
const DAY: i64 = 24 * 3_600 * 1_000_000;

#[test]
fn a_change_is_tried_on_a_users_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("audit.db");
    let mut writer = SessionWriter::new(path.clone(), None);
    let conditions = Conditions { tool_pattern: Some("x_*".into()), ..Conditions::default() };
    let rule = |name: &str| StoredRule {
        name: name.into(),
        description: String::new(),
        conditions: conditions.clone(),
        action: "block".into(),
        exception: None,
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

    let trial = |file: &Vec<RuleSpec>, times: usize| {
        let mut asked = 0;
        let goes_on = || {
            asked += 1;
            asked <= times
        };
        let tried = reader.try_rule_while(Viewer(5), &delete, (file.clone(), 90), NOW, goes_on);
        tried.expect("asked").map(|trial| (trial.calls(), trial.report()["cut"] == true))
    };
    let file = rules::read("rules: [{name: f, action: flag}, {name: g, action: flag}]").expect("rules");
    assert_eq!(trial(&file, 8), Ok((6, false)), "two rules are compiled, six calls are looked at");
    assert_eq!(trial(&file, 5), Ok((3, true)), "the time is over among calls of one page");
    assert_eq!(trial(&file, 1), Ok((0, true)), "it is over before the rules are compiled");

    let patterns = |count: usize| {
        let text =
            format!("rules: [{{name: f, tool_pattern: '{}', action: flag}}]", vec!["x"; count].join(","));
        rules::read(&text).expect("a rule")
    };
    assert_eq!(trial(&patterns(MOST_PATTERNS), 99), Ok((6, false)));
    let refused = trial(&patterns(MOST_PATTERNS + 1), 99);
    assert_eq!(refused, Err(Changed::TooManyPatterns("f".into())));
}
