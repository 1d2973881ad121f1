//! What agents' rows take in the database, and keeping that within a bound of its own: no agent's rows are a reason to
//! delete events, or another agent's rows.

use super::connection::rows;
use rusqlite::{Connection, Transaction, params};

/// Rows deleted in one step, so that writing goes on in between.
const STEP: i64 = 5_000;

/// The oldest rows of an agent: of which table, and their keys.
const OLDEST: &str = "
    SELECT * FROM (SELECT 0, row, at FROM intents WHERE agent = ?1 ORDER BY at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT 1, row, at FROM agent_calls WHERE agent = ?1 ORDER BY at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT 2, id, at FROM refusals WHERE agent = ?1 ORDER BY at LIMIT ?2)
    UNION ALL SELECT * FROM (SELECT 3, tag, at FROM call_tags WHERE agent = ?1 ORDER BY at LIMIT ?2)
    ORDER BY 3 LIMIT ?2";

/// Bytes that agents' rows take in the database, at most.
pub(crate) fn all(connection: &Connection) -> rusqlite::Result<u64> {
    let bytes: i64 =
        connection.query_row("SELECT coalesce(sum(bytes), 0) FROM agent_bytes", [], |row| row.get(0))?;
    Ok(bytes.max(0).cast_unsigned())
}

/// Deletes a few thousand of the oldest rows of the agent with the most, if all together are above `bound`. How many.
pub(crate) fn retain(step: &Transaction<'_>, bound: u64) -> rusqlite::Result<usize> {
    step.execute("DELETE FROM agent_bytes WHERE bytes <= 0", [])?;
    if all(step)? <= bound {
        return Ok(0);
    }
    let most_first = "SELECT agent, bytes FROM agent_bytes ORDER BY bytes DESC";
    let of_each: Vec<(String, i64)> = rows(step, most_first, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // A little below the bound, or every look would delete a row or two.
    let share = share(of_each.iter().map(|(_, bytes)| *bytes), (bound - bound / 16).cast_signed());
    let Some((agent, bytes)) = of_each.first() else { return Ok(0) };
    let doomed: Vec<(u8, i64)> =
        rows(step, OLDEST, params![agent, STEP], |row| Ok((row.get(0)?, row.get(1)?)))?;
    // How much a row counts for is known by reading its texts: only of those that go.
    let delete = [
        "DELETE FROM intents WHERE row = ?1 RETURNING bytes",
        "DELETE FROM agent_calls WHERE row = ?1 RETURNING bytes",
        "DELETE FROM refusals WHERE id = ?1 RETURNING bytes",
        "DELETE FROM call_tags WHERE tag = ?1 RETURNING bytes",
    ];
    let (mut left, mut deleted) = (*bytes, 0);
    for (table, key) in doomed {
        if left <= share {
            break;
        }
        let went =
            step.prepare_cached(delete[usize::from(table)])?.query_row([key], |row| row.get::<_, i64>(0));
        left -= went?;
        deleted += 1;
    }
    Ok(deleted)
}

/// The most that each may keep so that all keep `most` together: who has less than that loses nothing. `counts`: the largest
/// first.
pub(crate) fn share(counts: impl DoubleEndedIterator<Item = i64> + ExactSizeIterator, most: i64) -> i64 {
    let mut left = most;
    let mut others = i64::try_from(counts.len()).unwrap_or(i64::MAX);
    for count in counts.rev() {
        let share = left / others.max(1);
        if count > share {
            return share;
        }
        (left, others) = (left - count, others - 1);
    }
    i64::MAX
}

#[cfg(test)]
mod tests {
    use super::super::{FILE, Incoming, Reader, Retention, Viewer, Writer, open};
    use crate::write::Event;
    use ringfence_base::clock::now_micros;
    use ringfence_events::{
        decode::Decoded,
        manifests::Decider,
        report::{CheckedPayload, CheckedReport},
        samples,
    };
    use ringfence_wire::trace::{AgentEvent, Refusal, Via};

    const TABLES: [&str; 4] = ["intents", "agent_calls", "refusals", "call_tags"];

    fn event(container: u64) -> Incoming {
        Incoming::Event(Box::new(Event {
            ts: now_micros(),
            identity: None,
            decider: Decider::Default,
            record: Decoded { container, ..samples::decoded() },
        }))
    }

    fn said(agent: &str, payload: CheckedPayload) -> Incoming {
        Incoming::Report(Box::new(CheckedReport {
            agent: agent.into(),
            uid: 0,
            container: None,
            at: now_micros(),
            payload,
        }))
    }

    /// One row in each table, with texts of so many bytes.
    fn work(agent: &str, number: u64, tag: u64, long: usize) -> Vec<Incoming> {
        let (id, text) = (format!("{agent}-{number}"), "é".repeat(long / 2));
        let call = AgentEvent::Call {
            key: id.clone(),
            id: id.clone(),
            renamed: None,
            intent: Some(id.clone()),
            tool: "bash".into(),
            server: None,
            input: text.clone(),
            paths: None,
            moment: tag,
        };
        let session = Some("s".repeat(128));
        let hook = AgentEvent::HookDone {
            key: id.clone(),
            session: session.clone(),
            failed: Some(true),
            moment: tag,
        };
        let ended =
            AgentEvent::CallEnded { key: id.clone(), is_error: false, output: text.clone(), moment: tag };
        let refusal =
            Refusal { what: "send".into(), why: text.clone(), pid: None, uid: None, container: None };
        vec![
            said(
                agent,
                CheckedPayload::Event(AgentEvent::Intent {
                    id: id.clone(),
                    uid: None,
                    text: text.clone(),
                    via: Via::Send,
                    session,
                }),
            ),
            said(agent, CheckedPayload::Event(call)),
            said(agent, CheckedPayload::Event(hook)),
            said(agent, CheckedPayload::Event(ended)),
            said(
                agent,
                CheckedPayload::Event(AgentEvent::IntentEnded { id, error: Some(text), moment: tag }),
            ),
            said(agent, CheckedPayload::Event(AgentEvent::Refused(refusal))),
            said(agent, CheckedPayload::Tagged { tag, container: "c".into() }),
        ]
    }

    fn number(writer: &Writer, text: &str) -> i64 {
        writer.connection().query_row(text, [], |row| row.get(0)).expect("reads")
    }

    /// Whether the sums are those of the rows; how much that is.
    fn counted(writer: &Writer) -> i64 {
        let sum = |table: &str| number(writer, &format!("SELECT coalesce(sum(bytes), 0) FROM {table}"));
        let (kept, rows) = (sum("agent_bytes"), TABLES.iter().map(|table| sum(table)).sum::<i64>());
        assert_eq!(kept, rows, "the sums are those of the rows");
        kept
    }

    #[test]
    fn a_flood_of_one_agent_s_long_rows_deletes_only_its_own() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
        writer.hello("s", "boot").expect("greets");
        writer.write(&(0..2_000).map(|n| event(n % 8)).collect::<Vec<_>>()).expect("writes");
        writer.write(&(0..20).flat_map(|n| work("quiet", n, n, 500)).collect::<Vec<_>>()).expect("writes");
        let retention = Retention { event_bytes: 4 << 20, ..Retention::default() };
        assert!(!writer.retain(&retention, now_micros()).expect("looks"), "nothing is too much yet");
        // Texts of two thousand bytes: a row of the longest that half a page cannot hold, and one that overflows.
        for (round, long) in [2_100, 8_000, 2_100].into_iter().enumerate() {
            let first = 1_000 * (round as u64 + 1);
            let rows = (first..first + 400).flat_map(|n| work("flood", n, n, long)).collect::<Vec<_>>();
            writer.write(&rows).expect("writes");
            let size = number(&writer, "SELECT page_count FROM pragma_page_count") * 4096;
            assert!(size > 5 << 20, "more than all may take: {size}");
            let before = counted(&writer);
            let mut steps = 0;
            while writer.retain(&retention, now_micros()).expect("deletes") {
                steps += 1;
            }
            assert!(steps > 0);
            let left = counted(&writer);
            assert!(left < before && left <= 1 << 20 && left > 3 << 18, "{left} of {before}");
            let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
            assert_eq!(reader.size(Viewer(0)).expect("reads").0, 2_000, "no event went");
            for table in TABLES {
                let of =
                    |which: &str| number(&writer, &format!("SELECT count(*) FROM {table} WHERE {which}"));
                assert_eq!(of("agent = 'quiet'"), 20, "{table}");
                assert!(of("agent = 'flood'") < 400, "{table}");
            }
            let newest = format!("SELECT count(*) FROM intents WHERE id = 'flood-{}'", first + 399);
            assert_eq!(number(&writer, &newest), 1, "its newest stay");
        }
        // Events have the bound that they had: these are too many by themselves.
        writer.write(&(0..40_000).map(|n| event(n % 8)).collect::<Vec<_>>()).expect("writes");
        let kept = counted(&writer);
        while writer.retain(&retention, now_micros()).expect("deletes") {}
        let reader = Reader::open(&dir.path().join(FILE)).expect("opens");
        let (rows, bytes) = reader.size(Viewer(0)).expect("reads");
        assert!(rows < 42_000 && bytes <= (4 << 20) + kept.cast_unsigned(), "{rows} rows, {bytes} bytes");
        assert_eq!(counted(&writer), kept, "and cost no agent a row");
        // By age all of it goes, and so do the sums.
        while writer.retain(&retention, now_micros() + retention.age + 60_000_000).expect("deletes") {}
        assert_eq!((counted(&writer), number(&writer, "SELECT count(*) FROM agent_bytes")), (0, 0));
    }

    #[test]
    fn rows_count_for_no_less_than_they_take() {
        for long in [0, 300, 2_100, 4_200, 8_000] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
            let used =
                |writer: &Writer| super::super::read::bytes_in_use(writer.connection()).expect("reads");
            let empty = used(&writer);
            let rows = (0..300).flat_map(|n| work("an agent's name", n * 7919 % 300, n, long));
            writer.write(&rows.collect::<Vec<_>>()).expect("writes");
            let (took, counts) = (used(&writer) - empty, counted(&writer).cast_unsigned());
            // What each row counts for beside its texts is more than short ones take.
            assert!(
                took <= counts && counts < 4 * took + 300 * 2_400,
                "{long}: {took} bytes count for {counts}"
            );
        }
    }

    #[test]
    fn the_oldest_rows_are_found_without_a_look_at_the_others() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
        writer.write(&(0..20).flat_map(|n| work("a", n, n, 500)).collect::<Vec<_>>()).expect("writes");
        let plan: Vec<String> = writer
            .connection()
            .prepare(&format!("EXPLAIN QUERY PLAN {}", super::OLDEST))
            .and_then(|mut plan| plan.query_map(("a", 7), |row| row.get(3))?.collect())
            .expect("plans");
        for table in TABLES {
            let found = format!("SEARCH {table} USING COVERING INDEX {table}_by_age (agent=?)");
            assert!(plan.contains(&found), "{plan:?}");
        }
        // Nothing but the few from each table is sorted.
        let sorted = plan.windows(2).filter(|step| step[1].contains("TEMP B-TREE"));
        assert!({ sorted }.all(|step| step[0].starts_with("SCAN (subquery")), "{plan:?}");
        let mut oldest = writer.connection().prepare(super::OLDEST).expect("prepares");
        let ages: Vec<i64> =
            oldest.query_map(("a", 7), |row| row.get(2)).and_then(Iterator::collect).expect("reads");
        assert!(ages.len() == 7 && ages.is_sorted(), "{ages:?}");
    }

    #[test]
    fn rows_of_before_are_counted() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join(FILE);
        let mut writer = open(&file, 0).expect("opens").writer;
        writer.write(&(0..20).flat_map(|n| work("a", n, n, 500)).collect::<Vec<_>>()).expect("writes");
        let before = counted(&writer);
        // As the schema was before this migration.
        let mut undo = "DROP TABLE agent_bytes; PRAGMA user_version = 13;".to_owned();
        let triggers =
            "SELECT group_concat('DROP TRIGGER ' || name, ';') FROM (SELECT * FROM sqlite_schema UNION ALL SELECT * FROM sqlite_temp_schema)
             WHERE type = 'trigger'";
        let triggers: String = writer.connection().query_row(triggers, [], |row| row.get(0)).expect("reads");
        undo = format!("{triggers}; {undo}");
        for table in TABLES {
            undo += &format!("DROP INDEX {table}_by_age; ALTER TABLE {table} DROP COLUMN bytes;");
        }
        undo += "DROP INDEX intent_tool_calls_by_order; DROP INDEX idx_sessions_uid; DROP INDEX session_bounds_by_time;
            DROP INDEX session_bounds_removing; ALTER TABLE session_bounds DROP COLUMN written;
            DROP INDEX rule_files_by_use; DROP TABLE calls_by_user; DROP INDEX tool_calls_flagged;
            DROP INDEX sessions_by_time; DROP INDEX sessions_by_user; ALTER TABLE intents DROP COLUMN session;
            DROP INDEX agent_calls_by_container; ALTER TABLE intents DROP COLUMN container;
            ALTER TABLE agent_calls DROP COLUMN container; DROP TABLE run_lines;
            ALTER TABLE agent_calls DROP COLUMN paths; ALTER TABLE agent_calls DROP COLUMN contested;
            ALTER TABLE call_tags DROP COLUMN matched; DROP INDEX agent_calls_by_user;
            DROP INDEX agent_calls_by_user_and_agent;
            ALTER TABLE agent_calls DROP COLUMN hook_at; ALTER TABLE agent_calls DROP COLUMN hook_failed;
            ALTER TABLE agent_calls DROP COLUMN hook_session; ALTER TABLE events DROP COLUMN lineage;
            ALTER TABLE refusals DROP COLUMN run; DROP TABLE run_gaps; ALTER TABLE sessions DROP COLUMN client;
            ALTER TABLE tool_calls RENAME COLUMN decision TO outcome; ALTER TABLE tool_calls DROP COLUMN answer;
            ALTER TABLE tool_calls DROP COLUMN cancelled_at; ALTER TABLE tool_calls DROP COLUMN task_answer;
            ALTER TABLE tool_calls DROP COLUMN task_msg_id; ALTER TABLE tool_calls DROP COLUMN task_result;
            ALTER TABLE sessions DROP COLUMN outcomes;
            ALTER TABLE policy_rules DROP COLUMN position; ALTER TABLE policy_rules DROP COLUMN version;
            ALTER TABLE policy_rules DROP COLUMN changed_at; ALTER TABLE policy_rules DROP COLUMN changed_by;
            DROP TABLE rule_hits; DROP INDEX policy_rules_by_name; DROP TABLE vouched;
            DROP INDEX sessions_by_server; ALTER TABLE sessions DROP COLUMN server; DROP TABLE mcp_servers;
            DROP TABLE mcp_tools; DROP TABLE tool_pins; DROP TABLE tool_definitions; DROP TABLE tool_changes;
            DROP TABLE standing_approvals; ALTER TABLE policy_rules DROP COLUMN exception;
            ALTER TABLE tool_calls DROP COLUMN exceptions; DROP TABLE forgotten_servers;
            DROP INDEX events_by_name; DROP INDEX events_by_address; ALTER TABLE events DROP COLUMN name;
            ALTER TABLE events DROP COLUMN egress; ALTER TABLE containers DROP COLUMN egress_lost;";
        writer.connection().execute_batch(&undo).expect("undoes");
        drop(writer);
        let writer = open(&file, 0).expect("opens").writer;
        assert_eq!(counted(&writer), before);
    }
}
