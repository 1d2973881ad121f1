//! Calls of MCP sessions and the intents they belong to: by what a call names, where it names something; else by the
//! grouping of its user's calls.

use super::Position;
use ringfence_base::clock::rfc3339;
use ringfence_session::rows::{
    ingest::CallRow,
    intent::{Grouping, IntentAttribution, Source},
};
use ringfence_wire::tool_call::{Named as _, Outcome};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

/// The last call of a user that is in an intent that time made. Of each session a few are looked at: whoever wrote since has
/// one among them, but for a session whose last calls all name something.
const LAST: &str = "
    SELECT i.intent_id, c.requested_at,
        (SELECT max(sequence_order) FROM intent_tool_calls x WHERE x.intent_id = i.intent_id)
    FROM sessions s CROSS JOIN tool_calls c CROSS JOIN intent_tool_calls i CROSS JOIN intent_contexts n
    WHERE s.uid = ?1 AND i.tool_call_id = c.id AND n.id = i.intent_id AND n.source IN ('time', 'tool_use')
        AND c.id IN (SELECT id FROM tool_calls x WHERE x.session_id = s.id ORDER BY x.requested_at DESC LIMIT 16)
    ORDER BY c.requested_at DESC LIMIT 1";
/// The last call of a user's that was given an id. The plus keeps SQLite from looking at all sessions of the user.
const EARLIER: &str = "
    SELECT n.id, n.evidence FROM tool_calls c JOIN sessions s ON s.id = c.session_id
        JOIN intent_tool_calls i ON i.tool_call_id = c.id JOIN intent_contexts n ON n.id = i.intent_id
    WHERE c.tool_use = ?1 AND +s.uid = ?2 AND c.id <> ?3 ORDER BY c.requested_at DESC LIMIT 1";
/// An agent's calls that were given an id, the newest first. The plus keeps SQLite from looking at all calls in that order.
const ASKED: &str = "
    SELECT i.agent, i.id, i.text, i.via = 'http', a.ended IS NULL
    FROM agent_calls a JOIN intents i ON i.agent = a.agent AND i.id = a.intent
    WHERE (a.id = ?1 OR a.given = ?1) AND a.uid = ?2 AND i.uid = ?2 ORDER BY +a.row DESC LIMIT 100";
/// Calls of a user that were given an id that a worker names only now.
const LATER: &str = "
    SELECT c.id, c.session_id, c.requested_at, n.id FROM tool_calls c JOIN sessions s ON s.id = c.session_id
        JOIN intent_tool_calls i ON i.tool_call_id = c.id JOIN intent_contexts n ON n.id = i.intent_id
    WHERE c.tool_use = ?1 AND +s.uid = ?2 AND c.began >= ?3 AND coalesce(n.evidence, '') NOT GLOB 'runtime *'
        AND coalesce(n.evidence, '') NOT GLOB 'http *' AND c.requested_at > ?4 ORDER BY c.requested_at";
/// The intent of a user's whose calls all name this.
const OF_EVIDENCE: &str = "
    SELECT n.id FROM intent_contexts n JOIN sessions s ON s.id = n.session_id
    WHERE n.evidence = ?1 AND +s.uid = ?2 LIMIT 1";
/// The place of an intent's next call.
const NEXT: &str = "SELECT coalesce(max(sequence_order), 0) + 1 FROM intent_tool_calls WHERE intent_id = ?1";

/// How late a worker's word may come, µs: an hour.
const LATE: i64 = 3_600_000_000;

/// The last intent of a user that time made: what follows may belong to it.
pub(crate) fn last(connection: &Connection, uid: u32) -> rusqlite::Result<Grouping> {
    let last: Option<(String, String, i64)> =
        connection.query_row(LAST, [uid], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    Ok(match last {
        Some((intent, at, calls)) => {
            let at = at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_microsecond);
            Grouping::resume(intent, at, calls)
        }
        None => Grouping::default(),
    })
}

/// Stores a call and where it belongs.
pub(crate) fn insert_call(
    step: &Transaction<'_>,
    at: &Position<'_>,
    row: &CallRow,
    grouping: &mut Grouping,
) -> rusqlite::Result<()> {
    let judged = &row.judged;
    let list = |texts: &[String]| match texts {
        [] => "[]".to_owned(),
        texts => serde_json::Value::from(texts).to_string(),
    };
    let outcome = row.blocked.then_some(Outcome::Blocked.name());
    let inserted = step
        .prepare_cached(
            "INSERT OR IGNORE INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, risk_score,
                 risk_reasons, requested_at, policy_action, rules, outcome, began, tool_use)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            judged.call,
            at.session,
            row.message,
            judged.tool,
            row.arguments,
            judged.operation.as_str(),
            judged.score,
            list(&judged.reasons),
            rfc3339(row.at),
            judged.action.as_str(),
            list(&judged.rules),
            outcome,
            row.began.map(u64::cast_signed),
            row.evidence.tool_use
        ])?;
    if inserted == 0 {
        // Read again after a restart: it has its intent.
        return Ok(());
    }
    let (IntentAttribution { intent, order, source, prompt }, evidence) = match named(step, at.uid, row)? {
        Some((attribution, evidence)) => (attribution, evidence),
        None => (grouping.attribute(&judged.call, row.at), None),
    };
    place(step, (&intent, at.session, &rfc3339(row.at)), (source, prompt, evidence), (&judged.call, order))
}

/// Where a call belongs that names something by which it can be told, and what all calls of that intent name.
fn named(
    step: &Transaction<'_>,
    uid: u32,
    row: &CallRow,
) -> rusqlite::Result<Option<(IntentAttribution, Option<String>)>> {
    let call = &row.judged.call;
    if let Some(tool_use) = &row.evidence.tool_use
        && let Some(asked) = asked_of_agent(step, uid, tool_use)?
    {
        return by_evidence(step, uid, call, asked).map(Some);
    }
    if let Some(turn) = &row.evidence.turn {
        return by_evidence(step, uid, call, (Source::Client, format!("client {turn}"), None)).map(Some);
    }
    let Some(tool_use) = &row.evidence.tool_use else { return Ok(None) };
    let earlier: Option<(String, Option<String>)> = step
        .prepare_cached(EARLIER)?
        .query_row(params![tool_use, uid, call], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((intent, evidence)) = earlier else { return Ok(None) };
    step.prepare_cached("UPDATE intent_contexts SET source = ?2 WHERE id = ?1 AND source = ?3")?
        .execute(params![intent, Source::ToolUse.name(), Source::Time.name()])?;
    let order = next_order(step, &intent)?;
    Ok(Some((IntentAttribution { intent, order, source: Source::ToolUse, prompt: None }, evidence)))
}

/// Where it is known from, what all calls of it name, what was asked.
type Asked = (Source, String, Option<String>);

/// What an agent was asked for when its model asked for a call: by the worker's word, of this very user's agents only. A
/// message of the agent's owner, or what a client of its HTTP endpoint says that it was asked.
fn asked_of_agent(step: &Transaction<'_>, uid: u32, tool_use: &str) -> rusqlite::Result<Option<Asked>> {
    // The newest first: an id that comes again names what came last. Where calls of several intents that have it wait for
    // their results, nobody can say which is meant.
    let found: Vec<(Asked, bool)> = step
        .prepare_cached(ASKED)?
        .query_map(params![tool_use, uid], |row| {
            let (agent, id): (String, String) = (row.get(0)?, row.get(1)?);
            let (source, name) =
                if row.get(3)? { (Source::Client, "http") } else { (Source::Runtime, "runtime") };
            Ok(((source, format!("{name} {agent} {id}"), row.get(2)?), row.get(4)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let Some(((_, newest, _), _)) = found.first() else { return Ok(None) };
    if found.iter().any(|((_, evidence, _), waits)| *waits && evidence != newest) {
        return Ok(None);
    }
    Ok(found.into_iter().next().map(|(asked, _)| asked))
}

/// A worker says only now what a tool call is for, and calls that name it may be on record already: both come by ways of
/// their own, and an auditor that was away takes in what waited in any order. `moment`: when the tool call was asked for, ns
/// since boot; `at`: when that was reported, µs since 1970. Ids come again, and a call from before, or of an earlier boot,
/// names another.
pub(crate) fn told_late(
    step: &Transaction<'_>,
    uid: u32,
    tool_use: &str,
    (moment, at): (u64, i64),
) -> rusqlite::Result<()> {
    let calls: Vec<(String, String, String, String)> = step
        .prepare_cached(LATER)?
        .query_map(params![tool_use, uid, moment.cast_signed(), rfc3339(at.saturating_sub(LATE))], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    if calls.is_empty() {
        return Ok(());
    }
    let Some(asked) = asked_of_agent(step, uid, tool_use)? else { return Ok(()) };
    for (call, session, at, before) in calls {
        step.prepare_cached("DELETE FROM intent_tool_calls WHERE tool_call_id = ?1")?.execute([&call])?;
        step.prepare_cached(
            "DELETE FROM intent_contexts WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM intent_tool_calls WHERE intent_id = ?1)",
        )?
        .execute([&before])?;
        // Not by the call's own name: calls close in time may still be put with the intent that it began.
        let fresh = uuid::Uuid::new_v4().to_string();
        let (IntentAttribution { intent, order, source, prompt }, evidence) =
            by_evidence(step, uid, &fresh, asked.clone())?;
        place(step, (&intent, &session, &at), (source, prompt, evidence), (&call, order))?;
    }
    Ok(())
}

/// Puts a call in its intent, which may begin with it.
fn place(
    step: &Transaction<'_>,
    (intent, session, at): (&str, &str, &str),
    (source, prompt, evidence): (Source, Option<String>, Option<String>),
    (call, order): (&str, i64),
) -> rusqlite::Result<()> {
    // Also where the intent began before: retention may have removed it with the session whose calls it held.
    step.prepare_cached(
        "INSERT OR IGNORE INTO intent_contexts (id, session_id, human_prompt, created_at, source, evidence)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![intent, session, prompt, at, source.name(), evidence])?;
    step.prepare_cached("INSERT OR IGNORE INTO intent_tool_calls (intent_id, tool_call_id, sequence_order) VALUES (?1, ?2, ?3)")?
        .execute(params![intent, call, order])
        .map(drop)
}

/// The intent whose calls all name the same; a new one is named by the call that begins it.
fn by_evidence(
    step: &Transaction<'_>,
    uid: u32,
    call: &str,
    (source, evidence, prompt): (Source, String, Option<String>),
) -> rusqlite::Result<(IntentAttribution, Option<String>)> {
    let known: Option<String> =
        step.prepare_cached(OF_EVIDENCE)?.query_row(params![evidence, uid], |row| row.get(0)).optional()?;
    let belongs = match known {
        Some(intent) => IntentAttribution { order: next_order(step, &intent)?, intent, source, prompt },
        None => IntentAttribution { intent: call.to_owned(), order: 1, source, prompt },
    };
    Ok((belongs, Some(evidence)))
}

fn next_order(step: &Transaction<'_>, intent: &str) -> rusqlite::Result<i64> {
    step.prepare_cached(NEXT)?.query_row([intent], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use crate::{Position, SessionReader, SessionWriter, Viewer};
    use ringfence_session::{
        journal::{Direction, Judged},
        rows::{
            ingest::{CallRow, MessageRow, Row},
            intent::Evidence,
        },
    };
    use std::path::PathBuf;

    struct Rig {
        folder: tempfile::TempDir,
        writer: SessionWriter,
    }

    impl Rig {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("a folder");
            let writer = SessionWriter::new(folder.path().join("audit.db"), None);
            Self { folder, writer }
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
            let message = MessageRow {
                id: format!("m-{call}"),
                direction: Direction::ClientToServer,
                at,
                jsonrpc_id: None,
                method: None,
                params: None,
                result: None,
                error: None,
                raw: String::new(),
                note: None,
            };
            let judged = Judged {
                call: call.into(),
                index: 0,
                tool: "t".into(),
                operation: "read".into(),
                score: 0,
                reasons: vec![],
                action: "pass".into(),
                rules: vec![],
            };
            let row = CallRow {
                judged,
                message: message.id.clone(),
                arguments: "{}".into(),
                at,
                blocked: false,
                began,
                evidence,
            };
            let start = Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: at };
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
        let expected =
            [intent("runtime", Some("tidy the garden"), &["a", "b"]), intent("time", None, &["c"])];
        assert_eq!(rig.intents(5), expected);
        assert_eq!(rig.intents(6), [intent("time", None, &["forged"])], "ids are no secret");
    }

    #[test]
    fn an_id_that_calls_of_two_intents_wait_with_names_neither() {
        let mut rig = Rig::new();
        let run = |rig: &mut Rig, sql: &str| {
            rig.writer.connection().expect("open").execute_batch(sql).expect("run")
        };
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
                &[
                    "INDEX idx_sessions_uid (uid=?)",
                    "INDEX idx_tool_calls_session (session_id=?)",
                    "by_order",
                ],
            ),
        ];
        for (query, indexes) in wanted {
            let plan = plan(query);
            assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{query}: {plan:?}");
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
}
