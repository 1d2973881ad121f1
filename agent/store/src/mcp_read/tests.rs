//! What a user asks for costs by what that user has, however much others have.

use super::SessionReader;
use crate::{CallFilter, Error, FILE, Shown, Viewer, Writer, open};
use serde_json::Value;
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

type Question = fn(&SessionReader, Viewer) -> Result<Vec<Value>, Error>;

const QUESTIONS: [(&str, Question); 5] = [
    ("calls", |reader, viewer| reader.calls(viewer, &CallFilter { limit: 5, ..CallFilter::default() })),
    ("flagged", |reader, viewer| {
        reader.calls(viewer, &CallFilter { limit: 5, flagged: true, ..CallFilter::default() })
    }),
    ("sessions", |reader, viewer| reader.sessions(viewer, 5)),
    ("intents", |reader, viewer| reader.intents(viewer, None, 5)),
    ("stats", |reader, viewer| reader.stats(viewer).map(|stats| vec![stats])),
];

/// A user's sessions of `calls` calls each, every fourth of which is flagged; `from`: the second of the first.
fn fill(writer: &Writer, uid: u32, sessions: u32, calls: u32, from: u32) {
    let text = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {sessions})
         INSERT INTO sessions (id, server_name, server_command, started_at, uid)
             SELECT '{uid}-' || i, 's', 's', printf('%09d', {from} + i), {uid} FROM n;
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {calls})
         INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at, policy_action)
             SELECT s.id || '-' || i, s.id, 'm', 't', '{{}}', 'read', printf('%09d', s.started_at + i), iif(i % 4 = 0, 'flag', 'pass')
             FROM sessions s, n WHERE s.uid = {uid};
         INSERT INTO intent_contexts (id, session_id, created_at) SELECT 'i' || id, id, started_at FROM sessions WHERE uid = {uid};"
    );
    writer.connection().execute_batch(&text).expect("fills");
}

/// Thousands of steps of SQLite's machine that a question takes.
fn steps(path: &Path, question: Question, viewer: Viewer) -> u32 {
    let mut reader = SessionReader::open(path).expect("opens");
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let count_steps = move || {
        counted.fetch_add(1, Ordering::Relaxed);
        false
    };
    reader.connection.progress_handler(1000, Some(count_steps)).expect("counts");
    question(&reader, viewer).expect("answers");
    count.load(Ordering::Relaxed)
}

#[test]
fn what_others_have_makes_no_user_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let writer = open(&path, 0).expect("opens").writer;
    writer.connection().execute_batch("PRAGMA foreign_keys = OFF").expect("sets");
    fill(&writer, 1000, 3, 8, 0);
    // Others' come before, between and after, and are far more.
    fill(&writer, 1001, 400, 40, 0);
    for (name, question) in QUESTIONS {
        let (one_s, another_s) = (steps(&path, question, Viewer(1000)), steps(&path, question, Viewer(1001)));
        assert!(one_s <= 3, "{name}: {one_s} thousand steps for a user who has little");
        if matches!(name, "calls" | "flagged" | "sessions") {
            assert!(another_s <= 8, "{name}: {another_s} thousand steps for five of many");
        }
    }
    // The control: who asks for what all calls have pays for all.
    assert!(steps(&path, QUESTIONS[4].1, Viewer(0)) > 50);
}

#[test]
fn lists_of_one_user_and_of_root_agree() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let writer = open(&path, 0).expect("opens").writer;
    writer.connection().execute_batch("PRAGMA foreign_keys = OFF").expect("sets");
    fill(&writer, 1000, 3, 8, 5);
    fill(&writer, 1001, 2, 9, 3);
    writer.connection().execute_batch("DELETE FROM tool_calls WHERE id = '1000-2-8'").expect("removes");
    let reader = SessionReader::open(&path).expect("opens");
    let ids = |viewer, filter: &CallFilter| -> Vec<String> {
        let rows = reader.calls(Viewer(viewer), filter).expect("reads");
        rows.iter().map(|row| row["id"].as_str().expect("an id").to_owned()).collect()
    };
    for flagged in [false, true] {
        let all = CallFilter { limit: 100, flagged, ..CallFilter::default() };
        let whole = ids(0, &all);
        assert_eq!(whole.len(), if flagged { 9 } else { 41 });
        for uid in [1000, 1001] {
            let own: Vec<String> =
                whole.iter().filter(|id| id.starts_with(&uid.to_string())).cloned().collect();
            assert_eq!(ids(uid, &all), own);
            // Page by page it is the same.
            let (mut paged, mut before) = (Vec::new(), None);
            loop {
                let page = ids(uid, &CallFilter { limit: 2, before: before.clone(), flagged, ..all.clone() });
                let Some(last) = page.last() else { break };
                before = Some(last.clone());
                paged.extend(page);
            }
            assert_eq!(paged, own);
        }
        let of_session = CallFilter { session: Some("1001-1".into()), ..all };
        assert_eq!(
            (ids(1001, &of_session).len(), ids(1000, &of_session).len()),
            (if flagged { 2 } else { 9 }, 0)
        );
    }
    // What the index lacks, and nothing else, is said to be in no list.
    writer.connection().execute_batch("DELETE FROM calls_by_user WHERE id = '1001-2-3'").expect("removes");
    let calls = reader.table(Viewer(0), "tool_calls", 0, 100, Shown::Parsed).expect("reads");
    // One that is not known does not look like one without rows.
    reader.table(Viewer(0), "another", 0, 100, Shown::Parsed).expect_err("no such table");
    let unlisted: Vec<&Value> =
        calls.iter().filter(|row| row["_listed"] == 0).map(|row| &row["id"]).collect();
    assert_eq!((calls.len(), unlisted), (41, vec![&Value::from("1001-2-3")]));
    let rows: i64 = writer
        .connection()
        .query_row("SELECT count(*) FROM calls_by_user", [], |row| row.get(0))
        .expect("counts");
    assert_eq!(rows, 40, "a row that is gone is in no index");
}

#[test]
fn calls_of_before_have_the_outcome_that_their_rows_tell() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(FILE);
    let writer = open(&path, 0).expect("opens").writer;
    writer.connection().execute_batch("PRAGMA foreign_keys = OFF").expect("sets");
    fill(&writer, 1000, 1, 1, 0);
    let long = format!("{{\"isError\":true,\"text\":\"{}\"}}", "x".repeat(4096));
    let answered = |result: &str| format!("responded_at = '2026', result = '{result}'");
    let reader = SessionReader::open(&path).expect("opens");
    for (change, over, outcome) in [
        ("id = id".to_owned(), false, None),
        ("id = id".to_owned(), true, Some("killed")),
        ("policy_action = 'pause'".to_owned(), true, Some("ended")),
        ("policy_action = 'pause', decision = 'approved'".to_owned(), true, Some("killed")),
        ("policy_action = 'pause', decision = 'denied'".to_owned(), false, Some("denied")),
        (answered("{}"), false, Some("answered")),
        (answered("{\"isError\":true}"), false, Some("tool_error")),
        (answered("{\"isError\":false}"), false, Some("answered")),
        (answered("no JSON"), false, Some("answered")),
        (answered(&long), false, Some("answered")),
        ("responded_at = '2026', error = '{}'".to_owned(), true, Some("error")),
        (
            "responded_at = '2026', answer = 'task', task_answer = 'tool_error'".to_owned(),
            true,
            Some("tool_error"),
        ),
        (
            "responded_at = '2026', answer = 'answered', cancelled_at = '2026'".to_owned(),
            true,
            Some("cancelled_in_flight"),
        ),
    ] {
        let before = "policy_action = 'pass', decision = NULL, responded_at = NULL, result = NULL, error = NULL, answer = NULL,
            task_answer = NULL, cancelled_at = NULL";
        let ended = if over { "'2026'" } else { "NULL" };
        let text = format!(
            "UPDATE tool_calls SET {before}; UPDATE tool_calls SET {change}; UPDATE sessions SET ended_at = {ended}"
        );
        writer.connection().execute_batch(&text).expect("changes");
        if outcome == Some("ended") {
            let gap = |gap: u8| {
                writer.connection().execute("UPDATE sessions SET gap = ?1", [gap]).expect("changes");
                reader.stats(Viewer(0)).expect("reads")["outcome_pending"].clone()
            };
            assert_eq!(
                (gap(1), gap(0)),
                (1.into(), 0.into()),
                "what is not on record may have been an approval"
            );
        }
        let rows = reader.calls(Viewer(0), &CallFilter { limit: 1, ..CallFilter::default() }).expect("reads");
        assert_eq!(rows[0]["outcome"].as_str(), outcome, "{change:.80}");
        let key = outcome.map_or("outcome_pending".to_owned(), |outcome| format!("outcome_{outcome}"));
        assert_eq!(reader.stats(Viewer(0)).expect("reads")[&key], 1, "{key}");
    }
}
