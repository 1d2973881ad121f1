//! Tests of writing MCP sessions.

use super::{Error, Position, SessionWriter};
use crate::tests::call_rows;
use ringfence_base::quota::Owners;
use ringfence_session::rows::ingest::Row;
use ringfence_wire::{
    mcp::{Conditions, MAX_STORED_RULES, StoredRule},
    tool_call::Outcome,
};

fn asked() -> [Row; 2] {
    let (message, mut call) = call_rows("call", 2);
    call.judged.action = "pause".into();
    [Row::Message(Box::new(message)), Row::Call(Box::new(call))]
}

/// A writer of a new database, and where that is.
fn opened() -> (tempfile::TempDir, SessionWriter) {
    let folder = tempfile::tempdir().expect("a folder");
    let writer = SessionWriter::new(folder.path().join("audit.db"), None);
    (folder, writer)
}

fn at<'a>(writer: &mut SessionWriter, session: &'a str, uid: u32) -> Position<'a> {
    let (_, epoch) = writer.lines(session, uid).expect("read").expect("one's own");
    Position { session, uid, journal: "", lines: 2, head: "h", bytes: 9, read_to: 0, epoch }
}

fn start() -> Row {
    Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None }
}

#[test]
fn a_session_whose_journal_is_broken_has_ended_and_is_on_record() {
    let (_folder, mut writer) = opened();
    let place = at(&mut writer, "read", 5);
    writer.write(&place, &[start()]).expect("stored");
    for session in ["read", "never-read"] {
        writer.broken(session, 6, "another's word").expect("noted");
        writer.broken(session, 5, "changed").expect("noted");
    }
    let mut session = |session: &str| -> (u32, Option<String>, bool, i64) {
        let query = "SELECT uid, broken, ended_at IS NOT NULL, (SELECT count(*) FROM session_bounds WHERE session_id = ?1)
             FROM sessions WHERE id = ?1";
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
        writer.connection().expect("open").query_row(query, [session], row).expect("a row")
    };
    assert_eq!(session("read"), (5, Some("changed".into()), true, 1));
    assert_eq!(session("never-read"), (6, Some("another's word".into()), true, 1), "whoever came first");
    // Once it can be read it has its name.
    let place = at(&mut writer, "never-read", 6);
    writer.write(&place, &[start()]).expect("stored");
    let name = "SELECT server_name FROM sessions WHERE id = 'never-read'";
    let name: String =
        writer.connection().expect("open").query_row(name, [], |row| row.get(0)).expect("a row");
    assert_eq!(name, "s");
}

#[test]
fn a_journal_that_begins_no_session_is_nobodys_and_counts_for_nothing() {
    let (_folder, mut writer) = opened();
    let place = at(&mut writer, "notes", 5);
    for _ in 0..3 {
        writer.write(&place, &[]).expect("nothing to store");
    }
    for table in ["session_bounds", "ledger"] {
        let query = format!("SELECT count(*) FROM {table}");
        let rows: i64 =
            writer.connection().expect("open").query_row(&query, [], |row| row.get(0)).expect("counts");
        assert_eq!(rows, 0, "{table}");
    }
}

#[test]
fn a_step_of_writing_ends_by_time() {
    let (_folder, mut writer) = opened();
    writer.patience = std::time::Duration::ZERO;
    let place = at(&mut writer, "own", 5);
    // An answer that refers to no message there is: it can never be written.
    let wrong = Row::Answer {
        call: "call".into(),
        message: "nowhere".into(),
        result: None,
        error: None,
        at: 4,
        duration_ms: 1,
        ended: 4,
        answer: Outcome::Answered,
    };
    let rows: Vec<Row> = [start()].into_iter().chain(asked()).collect();
    let more = [&rows[..], &[wrong]].concat();
    assert!(writer.write(&place, &more).expect_err("refused").is_hopeless());
    let mut found = |query: &str| -> (i64, i64) {
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        writer.connection().expect("open").query_row(query, [], row).expect("a row")
    };
    let query = "SELECT (SELECT count(*) FROM tool_calls), (SELECT journal_lines FROM sessions)";
    assert_eq!(found(query), (1, 0), "each row is a step, and the position is behind all of them");
    writer.write(&place, &rows).expect("again, as after a restart");
    let mut found = |query: &str| -> (i64, i64) {
        let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
        writer.connection().expect("open").query_row(query, [], row).expect("a row")
    };
    assert_eq!(found(query), (1, 2));
}

#[test]
fn a_user_s_rules_are_counted_whatever_the_id() {
    let (_folder, writer) = opened();
    let owners = Owners::parse("5:100:10\n", |name| name.parse().ok());
    let mut writer = writer.with_owners(owners);
    let mut add = |uid, number: usize| {
        let rule = StoredRule {
            name: format!("rule {number}"),
            description: String::new(),
            conditions: Conditions::default(),
            action: "block".into(),
            exception: None,
        };
        writer.add_rule(uid, &rule, 1)
    };
    for number in 0..MAX_STORED_RULES {
        add([5, 100][number % 2], number).expect("added").expect("new");
    }
    for uid in [5, 100, 101] {
        assert!(matches!(add(uid, 999), Err(Error::TooManyRules)), "{uid}");
    }
    add(6, 999).expect("added").expect("another user's");
}

#[test]
fn a_session_says_nothing_of_anothers_calls() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
    let (_, epoch) = writer.lines("own", 5).expect("read").expect("one's own");
    let mut write = |session: &str, uid, rows: &[Row]| {
        let at = Position { session, uid, journal: "", lines: 2, head: "h", bytes: 9, read_to: 0, epoch };
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None };
        writer.write(&at, &[start]).and_then(|()| writer.write(&at, rows)).expect("stored");
        let query = "SELECT decision, result FROM tool_calls WHERE id = 'call'";
        let connection = writer.connection().expect("open");
        connection.query_row(query, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("the call")
    };
    let decided = Row::Decision {
        call: "call".into(),
        outcome: "approved".into(),
        by: Some("me".into()),
        at: 3,
        boot: 3,
    };
    let answered = Row::Answer {
        call: "call".into(),
        message: "m-call".into(),
        result: Some("{}".into()),
        error: None,
        at: 4,
        duration_ms: 1,
        ended: 4,
        answer: Outcome::Answered,
    };
    type Found = (Option<String>, Option<String>);
    let untouched: Found = (None, None);
    assert_eq!(write("own", 5, &asked()), untouched);
    let both = [decided, answered];
    assert_eq!(write("another", 6, &both), untouched, "ids are no secret");
    assert_eq!(write("own", 5, &both), (Some("approved".into()), Some("{}".into())));
}
