//! Which calls are put under which intent.

use crate::{Position, SessionReader, SessionWriter, Viewer, tests::call_rows};
use ringfence_session::rows::{
    ingest::{CallRow, Row},
    intent::Evidence,
};
use std::path::PathBuf;

struct Rig {
    folder: tempfile::TempDir,
    writer: SessionWriter,
    /// The client of sessions that begin.
    client: Option<String>,
}

impl Rig {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let writer = SessionWriter::new(folder.path().join("audit.db"), None);
        Self { folder, writer, client: Some("claude".into()) }
    }

    fn db(&self) -> PathBuf {
        self.folder.path().join("audit.db")
    }

    /// Stores a call of a session.
    fn call(&mut self, of: (&str, u32), call: &str, at: i64, evidence: Evidence) {
        self.call_begun(of, call, at, (evidence, None));
    }

    /// The same, of one that was forwarded so many ns since boot.
    fn call_begun(
        &mut self,
        (session, uid): (&str, u32),
        call: &str,
        at: i64,
        (evidence, began): (Evidence, Option<u64>),
    ) {
        let (message, row) = call_rows(call, at);
        let row = CallRow { began, evidence, ..row };
        let start = Row::Session {
            server_name: "s".into(),
            server_command: "s".into(),
            started_at: at,
            client: self.client.clone(),
        };
        self.rows((session, uid), &[start, Row::Message(Box::new(message)), Row::Call(Box::new(row))]);
    }

    fn rows(&mut self, (session, uid): (&str, u32), rows: &[Row]) {
        let (_, epoch) = self.writer.lines(session, uid).expect("read").expect("one's own");
        let at = Position { session, uid, journal: "", lines: 2, head: "h", bytes: 9, read_to: 0, epoch };
        self.writer.write(&at, rows).expect("stored");
    }

    /// Intents as people see them, oldest first: source, what was asked, calls.
    fn intents(&self, uid: u32) -> Vec<(String, Option<String>, Vec<String>)> {
        let reader = SessionReader::open(&self.db()).expect("open");
        let rows = reader.intents(Viewer(uid), None, 100).expect("read");
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let mut found: Vec<_> = rows
            .iter()
            .map(|row| {
                let calls = row["tool_calls"].as_array().into_iter().flatten();
                let calls = calls.filter_map(|call| text(&call["id"])).collect();
                (text(&row["source"]).unwrap_or_default(), text(&row["human_prompt"]), calls)
            })
            .collect();
        found.reverse();
        found
    }
}

fn tool_use(id: &str) -> Evidence {
    Evidence { tool_use: Some(id.into()), turn: None }
}

fn turn(id: &str) -> Evidence {
    Evidence { tool_use: None, turn: Some(id.into()) }
}

fn intent(source: &str, prompt: Option<&str>, calls: &[&str]) -> (String, Option<String>, Vec<String>) {
    let calls = calls.iter().map(|call| (*call).to_owned()).collect();
    (source.to_owned(), prompt.map(str::to_owned), calls)
}

const SECOND: i64 = 1_000_000;

#[test]
fn a_turn_of_the_clients_is_an_intent_over_sessions_and_pauses() {
    let mut rig = Rig::new();
    rig.call(("s1", 5), "a", 0, turn("r1"));
    rig.call(("s2", 5), "b", SECOND, turn("r2"));
    rig.call(("s1", 5), "plain", 2 * SECOND, Evidence::default());
    rig.call(("s2", 5), "c", 60 * SECOND, turn("r1"));
    rig.call(("s3", 6), "other", 61 * SECOND, turn("r1"));
    let expected = [
        intent("client", None, &["a", "c"]),
        intent("client", None, &["b"]),
        intent("time", None, &["plain"]),
    ];
    assert_eq!(rig.intents(5), expected);
    assert_eq!(rig.intents(6), [intent("client", None, &["other"])], "another user's turn is another");
}

#[test]
fn time_alone_makes_one_intent_of_no_two_clients_calls() {
    let mut rig = Rig::new();
    let calls = |rig: &mut Rig, client: Option<&str>, session: &str, call: &str, at: i64| {
        rig.client = client.map(str::to_owned);
        rig.call((session, 5), call, at, Evidence::default());
    };
    calls(&mut rig, Some("claude"), "s1", "a", 0);
    calls(&mut rig, Some("cursor"), "s2", "b", 1);
    calls(&mut rig, None, "s3", "c", 2);
    calls(&mut rig, None, "s4", "d", 3);
    // The control: another server of the first.
    calls(&mut rig, Some("claude"), "s5", "e", 4);
    // Of one that was written before, and is written again by a writer that knows nothing.
    rig.writer = SessionWriter::new(rig.db(), None);
    for (session, call) in [("s2", "f"), ("s3", "g"), ("s1", "h")] {
        let (message, row) = call_rows(call, 5);
        rig.rows((session, 5), &[Row::Message(Box::new(message)), Row::Call(Box::new(row))]);
    }
    let of_time = |calls: &[&str]| intent("time", None, calls);
    assert_eq!(
        rig.intents(5),
        [of_time(&["a", "e", "h"]), of_time(&["b", "f"]), of_time(&["c", "g"]), of_time(&["d"])]
    );
}

#[test]
fn a_server_s_question_is_its_own_client_s_alone() {
    let mut rig = Rig::new();
    rig.call(("s1", 5), "a", 0, Evidence::default());
    rig.rows(("s1", 5), &[Row::Asked { question: "q".into(), prompt: Some("tidy up".into()) }]);
    rig.call(("s2", 5), "b", SECOND, Evidence::default());
    rig.client = Some("cursor".into());
    rig.call(("s3", 5), "c", 2 * SECOND, Evidence::default());
    let expected = [
        intent("time", None, &["a"]),
        intent("sampling", Some("tidy up"), &["b"]),
        intent("time", None, &["c"]),
    ];
    assert_eq!(rig.intents(5), expected);
}

#[test]
fn one_tool_use_is_one_intent_and_another_splits_nothing() {
    let mut rig = Rig::new();
    rig.call(("s1", 5), "a", 0, tool_use("t1"));
    rig.call(("s1", 5), "b", SECOND, tool_use("t2"));
    // A call that comes again, long after.
    rig.call(("s2", 5), "c", 90 * SECOND, tool_use("t1"));
    rig.call(("s3", 6), "d", 91 * SECOND, tool_use("t1"));
    assert_eq!(rig.intents(5), [intent("tool_use", None, &["a", "b", "c"])]);
    assert_eq!(rig.intents(6), [intent("time", None, &["d"])]);
}

#[test]
fn what_our_own_runtime_was_asked_is_the_intent() {
    let mut rig = Rig::new();
    let connection = rig.writer.connection().expect("open");
    connection
        .execute_batch(
            "INSERT INTO intents (agent, uid, id, at, text) VALUES ('helper', 5, 'i1', 1, 'tidy the garden');
                 INSERT INTO agent_calls (agent, uid, id, intent, at, began, tool, input) VALUES
                     ('helper', 5, 'toolu_1', 'i1', 1, 1, 't', '{}'), ('helper', 5, 'toolu_2', 'i1', 1, 1, 't', '{}'),
                     ('helper', 5, 'toolu_3', NULL, 1, 1, 't', '{}')",
        )
        .expect("an agent's calls");
    rig.call(("s1", 5), "a", 0, tool_use("toolu_1"));
    rig.call(("s2", 5), "b", 60 * SECOND, Evidence { turn: Some("r".into()), ..tool_use("toolu_2") });
    rig.call(("s2", 5), "c", 61 * SECOND, tool_use("toolu_3"));
    rig.call(("s3", 6), "forged", 62 * SECOND, tool_use("toolu_1"));
    let expected = [intent("runtime", Some("tidy the garden"), &["a", "b"]), intent("time", None, &["c"])];
    assert_eq!(rig.intents(5), expected);
    assert_eq!(rig.intents(6), [intent("time", None, &["forged"])], "ids are no secret");
}

#[test]
fn an_id_that_calls_of_two_intents_wait_with_names_neither() {
    let mut rig = Rig::new();
    let run =
        |rig: &mut Rig, sql: &str| rig.writer.connection().expect("open").execute_batch(sql).expect("run");
    // A provider gave the second the id of the first; the record has replaced it.
    run(
        &mut rig,
        "INSERT INTO intents (agent, uid, id, at, text) VALUES ('helper', 5, 'i1', 1, 'tidy'), ('helper', 5, 'i2', 1, 'wipe');
             INSERT INTO agent_calls (agent, uid, id, given, intent, at, began, tool, input) VALUES
                 ('helper', 5, 'toolu_1', NULL, 'i1', 1, 1, 't', '{}'), ('helper', 5, 'call_k', 'toolu_1', 'i2', 1, 1, 't', '{}')",
    );
    rig.call(("s1", 5), "a", 0, tool_use("toolu_1"));
    assert_eq!(rig.intents(5), [intent("time", None, &["a"])], "it may be either's");
    // The control: the first is over, so that the second is meant.
    run(&mut rig, "UPDATE agent_calls SET ended = 2 WHERE id = 'toolu_1'");
    rig.call(("s2", 5), "b", 60 * SECOND, tool_use("toolu_1"));
    assert_eq!(rig.intents(5)[1], intent("runtime", Some("wipe"), &["b"]));
}

#[test]
fn what_a_runtime_was_asked_may_be_told_after_the_call() {
    let mut rig = Rig::new();
    let began = |tool: &str, began| (tool_use(tool), Some(began));
    rig.call_begun(("s1", 5), "first", 0, began("toolu_1", 100));
    rig.call_begun(("s1", 5), "beside", SECOND, (Evidence::default(), Some(150)));
    rig.call_begun(("s2", 5), "second", 2 * SECOND, began("toolu_1", 200));
    rig.call_begun(("s2", 5), "again", 3 * SECOND, began("toolu_2", 210));
    rig.call_begun(("s3", 6), "forged", 3 * SECOND, began("toolu_1", 220));
    let told = |rig: &mut Rig, agent_call: &str, moment: u64| {
        let step = rig.writer.connection().expect("open").transaction().expect("begun");
        step.execute_batch(&format!(
            "INSERT OR IGNORE INTO intents (agent, uid, id, at, text) VALUES ('helper', 5, 'i1', 1, 'tidy the garden');
                 INSERT INTO agent_calls (agent, uid, id, intent, at, began, tool, input)
                     VALUES ('helper', 5, '{agent_call}', 'i1', 1, {moment}, 't', '{{}}')"
        ))
        .expect("an agent's call");
        super::told_late(&step, 5, agent_call, (moment, 5 * SECOND)).expect("told");
        step.commit().expect("committed");
    };
    let all = ["first", "beside", "second", "again"];
    assert_eq!(rig.intents(5), [intent("tool_use", None, &all)], "as long as nothing better is known");
    // The model gave the id that the first call names before, to something else.
    told(&mut rig, "toolu_1", 180);
    told(&mut rig, "toolu_2", 190);
    told(&mut rig, "toolu_2", 190);
    rig.call(("s1", 5), "more", 4 * SECOND, Evidence::default());
    let expected = [
        intent("tool_use", None, &["first", "beside", "more"]),
        intent("runtime", Some("tidy the garden"), &["second", "again"]),
    ];
    assert_eq!(rig.intents(5), expected);
    assert_eq!(rig.intents(6), [intent("time", None, &["forged"])], "ids are no secret");
}

#[test]
fn what_is_asked_for_each_call_looks_at_few_rows() {
    let mut rig = Rig::new();
    let connection = rig.writer.connection().expect("open");
    let plan = |query: &str| -> Vec<String> {
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {query}")).expect("plans");
        plan.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>().expect("reads")
    };
    let wanted: [(&str, &[&str]); 6] = [
        (super::NEXT, &["COVERING INDEX intent_tool_calls_by_order (intent_id=?)"]),
        (super::EARLIER, &["INDEX idx_tool_calls_tool_use (tool_use=?)"]),
        (super::LATER, &["INDEX idx_tool_calls_tool_use (tool_use=? AND requested_at>?)"]),
        (super::OF_EVIDENCE, &["INDEX idx_intents_evidence (evidence=?)"]),
        (super::ASKED, &["INDEX agent_calls_by_call (id=?)", "INDEX agent_calls_by_given (given=?)"]),
        (
            super::LAST,
            &["PRIMARY KEY (uid=?)", "INDEX idx_intent_tool_calls_call (tool_call_id=?)", "by_order"],
        ),
    ];
    for (query, indexes) in wanted {
        let plan = plan(query);
        // But for the few that a subquery chose.
        let mut steps = plan.iter().filter(|step| !step.starts_with("SCAN (subquery") && *step != "SCAN u");
        assert!(!steps.any(|step| step.starts_with("SCAN")), "{query}: {plan:?}");
        for index in indexes {
            assert!(plan.iter().any(|step| step.contains(index)), "{query}: {index}: {plan:?}");
        }
    }
    for query in [super::EARLIER, super::LATER] {
        assert!(!plan(query).iter().any(|step| step.contains("TEMP B-TREE")), "sorts nothing");
    }
}

#[test]
fn a_question_to_the_clients_model_names_what_comes_of_it() {
    let mut rig = Rig::new();
    rig.call(("s1", 5), "a", 0, Evidence::default());
    let prompt = Some("which files are old?".to_owned());
    rig.rows(("s1", 5), &[Row::Asked { question: "q".into(), prompt }]);
    rig.call(("s2", 5), "b", 40 * SECOND, Evidence::default());
    rig.rows(("s1", 5), &[Row::Answered { question: "q".into(), at: 50 * SECOND }]);
    rig.call(("s2", 5), "c", 52 * SECOND, Evidence::default());
    rig.call(("s2", 5), "d", 90 * SECOND, Evidence::default());
    let expected = [
        intent("time", None, &["a", "c"]),
        intent("sampling", Some("which files are old?"), &["b"]),
        intent("time", None, &["d"]),
    ];
    assert_eq!(rig.intents(5), expected);
    // Another auditor goes on where this one ended; what a call names is no beginning for others.
    rig.call(("s1", 5), "named", 91 * SECOND, turn("r"));
    rig.writer = SessionWriter::new(rig.db(), None);
    rig.call(("s1", 5), "e", 93 * SECOND, Evidence::default());
    assert_eq!(rig.intents(5)[2], intent("time", None, &["d", "e"]));
}
