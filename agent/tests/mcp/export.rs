//! The record in every form that others read, and the totals.

use crate::support::{Home, answered, call};
use serde_json::Value;

/// A session with a call that passes, one that is flagged, one that is blocked, and one with a hostile name.
fn recorded() -> Home {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.send(
        "{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"initialize\",\"params\":{\"clientInfo\":{\"name\":\"an-editor\",\"version\":\"1\"}}}\n",
    );
    assert_eq!(client.out.line(), answered("0"));
    client.works("1");
    client.call("2", "create_it");
    assert_eq!(client.out.line(), answered("2"));
    let everything = r#"{"name":"delete_all","arguments":{"sql":"DELETE FROM t","password":"hunter2"}}"#;
    client.send(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{everything}}}\n"
    ));
    assert!(client.out.line().contains("Ringfence refused"));
    client.send(call("4", r"read_|=\\\n\u001b[2J'; DROP TABLE tool_calls; --"));
    assert_eq!(client.out.line(), answered("4"));
    assert!(client.end().success());
    home
}

fn export(home: &Home, format: &str) -> String {
    home.output(&["audit", "export", "--format", format, "--db", &home.text("audit.db")])
}

#[test]
fn every_form_has_every_call_and_no_secret() {
    let home = recorded();
    let hostile = "read_|=\\\n\u{1b}[2J'; DROP TABLE tool_calls; --";
    for form in ["ndjson", "ocsf", "cef", "sql"] {
        assert!(!export(&home, form).contains("hunter2"), "{form}");
    }

    let rows: Vec<Value> =
        export(&home, "ndjson").lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let tools: Vec<&str> = rows.iter().filter_map(|row| row["tool_name"].as_str()).collect();
    assert_eq!(tools, ["read_it", "create_it", "delete_all", hostile]);
    assert_eq!(rows[2]["policy_action"], "block");
    assert_eq!(rows[3]["attributes"]["gen_ai.tool.name"], hostile);

    let events: Vec<Value> =
        export(&home, "ocsf").lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
    let status: Vec<&str> = events.iter().filter_map(|event| event["status"].as_str()).collect();
    assert_eq!(status, ["Success", "Success", "Failure", "Success"]);
    for event in &events {
        assert_eq!(event["class_uid"], 6003, "{event}");
        assert_eq!(event["src_endpoint"]["svc_name"], "an-editor", "{event}");
        assert_eq!(event["type_uid"].as_u64(), event["activity_id"].as_u64().map(|id| 600_300 + id));
    }

    let lines = export(&home, "cef");
    assert_eq!(lines.lines().count(), 4, "a name does not begin a line of its own: {lines}");
    for line in lines.lines() {
        assert!(line.starts_with("CEF:0|Ringfence|ringfence|") && !line.contains('\u{1b}'), "{line}");
    }

    let copy = rusqlite::Connection::open_in_memory().expect("a database");
    copy.execute_batch(&export(&home, "sql")).expect("SQL that SQLite reads");
    let count = |of: &str| copy.query_row(of, [], |row| row.get::<_, i64>(0)).expect("a count");
    assert_eq!(count("SELECT count(*) FROM tool_calls"), 4);
    assert_eq!(count("SELECT count(*) FROM messages WHERE method = 'tools/call'"), 4);
    assert_eq!(count("SELECT count(*) FROM sessions WHERE client_info LIKE '%an-editor%'"), 1);
    let name: String = copy
        .query_row(
            "SELECT tool_name FROM tool_calls WHERE tool_name LIKE 'read\\_|%' ESCAPE '\\'",
            [],
            |row| row.get(0),
        )
        .expect("the hostile name");
    assert_eq!(name, hostile);
}

/// All rows of a table.
fn rows(database: &rusqlite::Connection, table: &str) -> Vec<Vec<rusqlite::types::Value>> {
    let mut statement = database.prepare(&format!("SELECT * FROM {table} ORDER BY rowid")).expect("a table");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| (0..columns).map(|column| row.get(column)).collect());
    rows.expect("rows").collect::<Result<_, _>>().expect("values")
}

#[test]
fn sql_is_a_copy_value_for_value() {
    let (home, mut client) = Home::with_client(&[], &["stderr"]);
    for (id, tool) in ["text", "null", "number", "list", "error"].iter().enumerate() {
        client.call(&id.to_string(), &format!("read_bare_{tool}"));
        assert!(client.out.line().contains(&format!("\"id\":{id},")));
    }
    assert!(client.end().success());
    let copy = rusqlite::Connection::open_in_memory().expect("a database");
    copy.execute_batch(&export(&home, "sql")).expect("SQL that SQLite reads");
    let original = rusqlite::Connection::open(home.path("audit.db")).expect("the database");
    let tables = ["sessions", "messages", "tool_calls", "intent_contexts", "intent_tool_calls", "stderr"];
    for table in tables {
        let expected = rows(&original, table);
        assert!(!expected.is_empty(), "{table}");
        assert_eq!(rows(&copy, table), expected, "{table}");
    }
    let text = |of: &str| {
        let query = format!("SELECT {of} FROM tool_calls WHERE {of} LIKE '\"%'");
        copy.query_row(&query, [], |row| row.get::<_, String>(0)).expect("a bare text")
    };
    assert_eq!((text("result"), text("error")), (r#""it is \"bare\"""#.into(), r#""it is bare""#.into()));
}

#[test]
fn the_totals_are_those_of_the_calls() {
    let home = recorded();
    let stats = home.output(&["mcp", "stats", "--json", "--db", &home.text("audit.db")]);
    let stats: Value = serde_json::from_str(stats.trim()).expect("JSON");
    let scores: Vec<f64> = home.calls(&[]).iter().filter_map(|row| row["risk_score"].as_f64()).collect();
    assert_eq!((stats["total_calls"].as_u64(), stats["blocked"].as_u64()), (Some(4), Some(1)), "{stats}");
    assert_eq!((stats["flagged"].as_u64(), stats["sessions"].as_u64()), (Some(1), Some(1)), "{stats}");
    let average = scores.iter().sum::<f64>() / scores.len() as f64;
    assert!(stats["average_risk"].as_f64().is_some_and(|told| (told - average).abs() < 0.1), "{stats}");
}
