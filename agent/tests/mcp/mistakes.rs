//! Mistakes of those who ask what is on record: nothing is made or moved by one, and the answer names it.

use crate::support::{Home, answered};
use std::{fs, process::Command};

/// Status and standard error of a command that fails.
fn failed(command: &mut Command) -> String {
    let done = command.output().expect("ringfence");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(!done.status.success() && done.stdout.is_empty(), "{command:?}: {said}");
    said
}

/// Those that ask the auditor what waits, and for its dashboard.
const ASKING: [&[&str]; 3] = [&["approvals"], &["dashboard"], &["mcp", "rules", "pending"]];

/// All commands that read the record.
const READING: [&[&str]; 6] = [
    &["mcp", "sessions"],
    &["mcp", "calls"],
    &["mcp", "stats"],
    &["audit", "verify"],
    &["audit", "heads"],
    &["audit", "export", "--format", "sql"],
];

#[test]
fn a_database_that_is_not_there_is_not_made() {
    let home = Home::new();
    let db = home.text("typo.db");
    let deciding: [&[&str]; 3] =
        [&["approvals", "approve", "abcd"], &["approvals", "deny", "abcd"], &["mcp", "rules", "confirm"]];
    for asking in READING.into_iter().chain(ASKING).chain(deciding) {
        let said = failed(home.ringfence(asking).args(["--db", &db]));
        assert!(said.contains(&format!("there is no audit database {db}")), "{asking:?}: {said}");
    }
    let made: Vec<_> = fs::read_dir(home.path("")).expect("a home").flatten().collect();
    assert!(made.is_empty(), "{made:?}");
    // The control: one that a session made, and one whose rows are yet to be made from its journals.
    let mut client = home.client(&[], &[]);
    client.works("1");
    assert!(client.end().success());
    let db = home.text("audit.db");
    for asking in READING.into_iter().chain(ASKING) {
        home.output(&[asking, &["--db", &db]].concat());
    }
    crate::support::kill_auditors(&home);
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(home.path(&format!("audit.db{suffix}")));
    }
    assert_eq!(home.calls(&[]).len(), 1);
}

#[test]
fn a_file_that_is_no_database_stays_as_it_is() {
    let home = Home::new();
    fs::write(home.path("notes.txt"), "not a database").expect("written");
    let db = home.text("notes.txt");
    for asking in READING.into_iter().chain(ASKING).chain([&["approvals", "approve", "abcd"][..]]) {
        let said = failed(home.ringfence(asking).args(["--db", &db]));
        assert!(said.contains(&db) && said.contains("no SQLite database"), "{asking:?}: {said}");
    }
    let there: Vec<_> =
        fs::read_dir(home.path("")).expect("a home").flatten().map(|f| f.file_name()).collect();
    assert_eq!(there, ["notes.txt"]);
    assert_eq!(fs::read_to_string(home.path("notes.txt")).expect("text"), "not a database");
}

#[test]
fn ids_are_known_by_their_beginnings_and_unknown_ones_are_said() {
    let (home, mut client) = Home::with_client(&[], &[]);
    client.works("1");
    client.call("2", "create_it");
    assert_eq!(client.out.line(), answered("2"));
    assert!(client.end().success());
    let rows = home.calls(&[]);
    let session = rows[0]["session_id"].as_str().expect("an id");
    for id in [session, &session[..8], &session[..4]] {
        assert_eq!(home.calls(&["--session", id]).len(), 2, "{id}");
    }
    assert_eq!(home.calls(&["--session", &session[..8], "--risk", "20"]).len(), 1, "with another filter");
    let db = home.text("audit.db");
    for (asking, word) in [
        (&["mcp", "calls", "--session", "zzzz"][..], "no session's id begins with \"zzzz\""),
        (&["mcp", "calls", "--session", &session[..3]], "at least four characters"),
        (&["mcp", "calls", "zzzz"], "no call's id begins with"),
        (&["approvals", "approve", "zzzz"], "`ringfence approvals` lists those that do"),
        (&["mcp", "calls", "--limit", "0"], "1..=1000"),
        (&["mcp", "sessions", "--limit", "1001"], "1..=1000"),
    ] {
        let said = failed(home.ringfence(asking).args(["--db", &db]));
        assert!(said.contains(word), "{asking:?}: {said}");
    }
}
