//! Every mistake in a flag or a rule file names itself, to the client too; and the drop-in form works.

use crate::support::{Client, Home, answered};
use serde_json::Value;
use std::fs;

#[test]
fn a_wrong_flag_names_itself() {
    let home = Home::new();
    let cases: [(&[&str], &[&str]); 13] = [
        (&["--port", "65536", "--", "cat"], &["--port", "65536"]),
        (&["--port", "http", "--", "cat"], &["--port", "http"]),
        (&["--on-audit-failure", "shrug", "--", "cat"], &["--on-audit-failure", "deny, allow"]),
        (&["--max-line", "0", "--", "cat"], &["--max-line", "1024"]),
        (&["--max-line", "64M", "--", "cat"], &["--max-line", "64M"]),
        (&["--approval-timeout", "0", "--", "cat"], &["--approval-timeout", "86400"]),
        (&["--approval-timeout", "-1", "--", "cat"], &["-1"]),
        (&["--server-name", "", "--", "cat"], &["--server-name"]),
        (&["--colour", "--", "cat"], &["--colour"]),
        (&["--db", "--", "cat"], &["--db"]),
        (&["cat"], &["cat"]),
        (&["--"], &["COMMAND"]),
        (&[], &["COMMAND"]),
    ];
    for (arguments, named) in cases {
        let done = home.ringfence(&["mcp"]).args(arguments).output().expect("ringfence");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(named.iter().all(|text| said.contains(text)), "{arguments:?}: {said}");
        assert!(done.stdout.is_empty(), "standard output is the protocol's");
    }
}

#[test]
fn a_broken_rule_file_names_itself_to_the_client() {
    let home = Home::new();
    let file = home.text("rules.yaml");
    let cases = [
        ("rules:\n  - name: a\n    action: explode\n", "explode"),
        ("rules:\n  - name: a\n    action: flag\n    colour: red\n", "line 4"),
        ("rules:\n  - {name: a, action: pause, tool_pattern: '['}\n", "rule \"a\": tool_pattern"),
        ("rules:\n  - {name: a, action: pause, min_risk_score: 200}\n", "min_risk_score"),
        ("rules:\n  - {name: a, action: flag}\n  - {name: a, action: flag}\n", "rule 2"),
        ("rules: [", "line 1"),
        ("", "rule file"),
    ];
    for (text, named) in cases {
        fs::write(&file, text).expect("written");
        let mut client = Client::start(home.interceptor(&["--rules", &file, "--"]).arg("cat"));
        client.send("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n");
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        let message = answer["error"]["message"].as_str().expect("a message");
        assert!(message.contains(&file) && message.contains(named), "{text}: {message}");
        assert_eq!(client.wait().code(), Some(1));
        let checked = home.ringfence(&["mcp", "rules", "check", &file]).output().expect("ringfence");
        let said = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(!checked.status.success() && said.contains(named), "{text}: {said}");
    }
    let mut client = Client::start(home.interceptor(&["--rules", "/no/such/rules.yaml", "--"]).arg("cat"));
    client.send("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n");
    assert!(client.out.line().contains("/no/such/rules.yaml"));
    assert_eq!(client.wait().code(), Some(1));
    fs::write(&file, "rules: []\n").expect("written");
    let mut control = home.client(&["--rules", &file], &[]);
    control.call("1", "delete_it");
    assert_eq!(control.out.line(), answered("1"), "no rule, and 50 is not enough to pause");
    assert!(control.end().success());
}

#[test]
fn rules_of_a_file_bind_and_a_tightened_file_binds_at_once() {
    let home = Home::new();
    let file = home.text("rules.yaml");
    fs::write(&file, "rules:\n  - {name: no_reading, tool_pattern: 'READ_x*', action: block}\n")
        .expect("written");
    let mut client = home.client(&["--rules", &file], &[]);
    client.works("1");
    client.call("2", "read_xyz");
    let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!(answer["result"]["isError"], true);
    let text = answer["result"]["content"][0]["text"].as_str().expect("text");
    assert!(text.contains("no_reading") && text.contains("ask the person"), "{text}");
    fs::write(&file, "rules:\n  - {name: no_reading, action: block}\n").expect("written");
    crate::support::eventually("the new rule is in force", || {
        client.call("3", "read_it");
        client.out.line().contains("no_reading").then_some(())
    });
    assert!(client.end().success());
    let said = client.errors.rest();
    assert!(said.contains("other rules are in force"), "{said}");
    assert!(
        home.calls(&["--verdict", "block"])
            .iter()
            .all(|row| row["rules"] == serde_json::json!(["no_reading"]))
    );
}

#[test]
fn the_flags_of_the_design_document_work_and_the_home_is_expanded() {
    let home = Home::new();
    let arguments =
        ["mcp", "--server-name", "github", "--db", "~/.beacon/audit.db", "--port", "0", "--", "cat"];
    let mut client = Client::start(&mut home.ringfence(&arguments));
    client.send("{\"id\":1,\"method\":\"ping\"}\n");
    assert_eq!(client.out.line(), "{\"id\":1,\"method\":\"ping\"}\n");
    assert!(client.end().success());
    let sessions = home.output(&["mcp", "sessions", "--json", "--db", "~/.beacon/audit.db"]);
    let row: Value = serde_json::from_str(sessions.trim()).expect("one row");
    assert_eq!((&row["server_name"], &row["server_command"]), (&"github".into(), &"cat".into()));
    assert!(home.path(".beacon/audit.db").is_file());
}

#[test]
fn a_secret_of_the_servers_command_line_is_stored_only_where_that_was_asked_for() {
    let secret = "postgresql://me:hunter2@localhost/db";
    for (options, stored) in [(&[][..], false), (&["--store-raw"][..], true)] {
        let (home, mut client) = Home::with_client(options, &["--odd", secret, "--api-key", "xyzzy"]);
        client.works("1");
        assert!(client.end().success());
        let entries = home.journal();
        let start = entries.iter().find(|entry| entry["kind"] == "start").expect("a start").to_string();
        assert_eq!((start.contains("hunter2"), start.contains("xyzzy")), (stored, stored), "{start}");
        let db = home.text("audit.db");
        let row = home.output(&["mcp", "sessions", "--json", "--limit", "1", "--db", &db]);
        assert_eq!((row.contains("hunter2"), row.contains("xyzzy")), (stored, stored), "{row}");
        assert!(row.contains("server.py") && row.contains("--api-key"), "{row}");
    }
}

#[test]
fn whoever_reads_nothing_of_a_command_makes_none_panic() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    assert!(client.end().success());
    let db = home.text("audit.db");
    let commands: [&[&str]; 8] = [
        &["version"],
        &["doctor"],
        &["doctor", "--json"],
        &["profile", "schema"],
        &["grant", "show"],
        &["audit", "verify", "--db", &db],
        &["dashboard", "--db", &db],
        &["mcp", "stats", "--db", &db],
    ];
    for arguments in commands {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = home.ringfence(arguments).stdout(writer).output().expect("ringfence");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.code().is_some_and(|code| code < 3), "{arguments:?}: {} {said}", ran.status);
        assert!(!said.contains("panicked") && !said.contains("Broken pipe"), "{arguments:?}: {said}");
    }
}

#[test]
fn whoever_reads_half_of_what_is_said_is_no_reason_to_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    std::fs::write(&file, "rules:\n  - {name: a, action: flag}\n").expect("written");
    let file = file.display().to_string();
    let call = r#"{"name":"delete_file","arguments":{}}"#;
    for arguments in [
        vec!["check", &file],
        vec!["check", &file, "--json"],
        vec!["test", &file, "--call", call],
        vec!["test", &file, "--call", call, "--json"],
    ] {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let ran = std::process::Command::new(env!("CARGO_BIN_EXE_ringfence"))
            .args(["mcp", "rules"])
            .args(&arguments)
            .stdout(writer)
            .output()
            .expect("ringfence mcp rules");
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success() && said.is_empty(), "{arguments:?}: {said}");
    }
}
