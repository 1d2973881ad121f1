//! Removes a session from the tables, a little at a time: everybody who writes waits for a step.

use super::{
    Error, SessionWriter, connection::begin, session_retention::Removal, sql, standing_approvals, turn,
};
use ringfence_base::clock::now_micros;
use rusqlite::{Transaction, params};

/// Rows deleted in one step, so that writing goes on in between.
const STEP: i64 = 2_000;
/// Bytes of their long texts, but for one row: a row has 2 MiB of each.
const STEP_BYTES: i64 = 4 << 20;

/// The rows of a session in each table that has them, and the bytes of their long texts, in an order in which nobody who is left
/// refers to those that went. Lengths stand in a row's head: no page of a long text is read for them.
const CALLS: &str = "
    SELECT rowid, octet_length(arguments) + coalesce(octet_length(result), 0) + coalesce(octet_length(error), 0)
    FROM tool_calls WHERE session_id = ?1 LIMIT ?2";
const MESSAGES: &str = "
    SELECT rowid, octet_length(raw) + coalesce(octet_length(params), 0) + coalesce(octet_length(result), 0)
        + coalesce(octet_length(error), 0)
    FROM messages WHERE session_id = ?1 LIMIT ?2";
const STDERR: &str = "SELECT rowid, octet_length(text) FROM stderr WHERE session_id = ?1 LIMIT ?2";

impl SessionWriter {
    /// Deletes some rows of a session that is being removed. False: none were left, and the session itself is gone too.
    ///
    /// # Errors
    /// [`Error::Sql`]; call it again.
    pub fn remove_rows(&mut self, removal: &Removal) -> Result<bool, Error> {
        let _turn = turn::wait();
        // SQLite would look for whoever refers to each row, through every call: the order below leaves nobody who does.
        self.connection()?.execute_batch("PRAGMA foreign_keys = OFF").map_err(sql("prepare a removal"))?;
        let removed = self.remove_step(&removal.session);
        self.connection()?.execute_batch("PRAGMA foreign_keys = ON").map_err(sql("end a removal"))?;
        let more = removed?;
        self.connection()?
            .execute_batch("PRAGMA incremental_vacuum(1024)")
            .map_err(sql("give back free pages"))?;
        Ok(more)
    }

    fn remove_step(&mut self, session: &str) -> Result<bool, Error> {
        let step = begin(self.connection()?)?;
        let more = delete_rows(&step, session).map_err(sql("remove an old session"))?;
        step.commit().map_err(sql("commit"))?;
        Ok(more)
    }
}

fn delete_rows(step: &Transaction<'_>, session: &str) -> rusqlite::Result<bool> {
    step.execute_batch("CREATE TEMP TABLE IF NOT EXISTS removed (row INTEGER PRIMARY KEY)")?;
    if choose(step, session, CALLS)? {
        step.execute_batch(
            "DELETE FROM intent_tool_calls WHERE tool_call_id IN
                 (SELECT id FROM tool_calls WHERE rowid IN (SELECT row FROM temp.removed));
             DELETE FROM tool_calls WHERE rowid IN (SELECT row FROM temp.removed)",
        )?;
        return Ok(true);
    }
    for (rows, delete) in [
        (MESSAGES, "DELETE FROM messages WHERE rowid IN (SELECT row FROM temp.removed)"),
        (STDERR, "DELETE FROM stderr WHERE rowid IN (SELECT row FROM temp.removed)"),
    ] {
        if choose(step, session, rows)? {
            step.execute(delete, [])?;
            return Ok(true);
        }
    }
    // An intent may hold calls of sessions that stay: it is theirs then.
    let intents = step.execute(
        "DELETE FROM intent_contexts WHERE rowid IN (SELECT rowid FROM intent_contexts n WHERE session_id = ?1
             AND NOT EXISTS (SELECT 1 FROM intent_tool_calls x WHERE x.intent_id = n.id) LIMIT ?2)",
        params![session, STEP],
    )?;
    let kept = step.execute(
        "UPDATE intent_contexts SET session_id = (
             SELECT c.session_id FROM intent_tool_calls x JOIN tool_calls c ON c.id = x.tool_call_id
             WHERE x.intent_id = intent_contexts.id ORDER BY x.sequence_order LIMIT 1)
         WHERE rowid IN (SELECT rowid FROM intent_contexts n WHERE session_id = ?1
             AND EXISTS (SELECT 1 FROM intent_tool_calls x WHERE x.intent_id = n.id) LIMIT ?2)",
        params![session, STEP],
    )?;
    if intents + kept > 0 {
        return Ok(true);
    }
    step.execute("DELETE FROM sessions WHERE id = ?1", [session])?;
    standing_approvals::session_removed(step, session, now_micros())?;
    step.execute("DELETE FROM session_bounds WHERE session_id = ?1", [session])?;
    Ok(false)
}

/// Chooses rows that go together; whether there are any.
fn choose(step: &Transaction<'_>, session: &str, rows: &str) -> rusqlite::Result<bool> {
    step.execute("DELETE FROM temp.removed", [])?;
    let mut insert = step.prepare_cached("INSERT INTO temp.removed VALUES (?1)")?;
    let mut statement = step.prepare_cached(rows)?;
    let mut rows = statement.query(params![session, STEP])?;
    let (mut any, mut sum) = (false, 0);
    while let Some(row) = rows.next()? {
        sum += row.get::<_, i64>(1)?;
        if any && sum > STEP_BYTES {
            break;
        }
        insert.execute([row.get::<_, i64>(0)?])?;
        any = true;
    }
    Ok(any)
}

#[cfg(test)]
mod tests {
    use super::{CALLS, MESSAGES, STDERR, STEP_BYTES};
    use crate::{SessionWriter, session_retention::Removal};
    use rusqlite::params;

    #[test]
    fn a_step_is_bounded_by_bytes_too() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let connection = writer.connection().expect("open");
        let long = "x".repeat(STEP_BYTES as usize / 4);
        connection
            .execute_batch(
                "INSERT INTO sessions (id, server_name, server_command, started_at) VALUES ('s', '', '', '')",
            )
            .expect("a session");
        for number in 0..6 {
            let (id, message) = (format!("c{number}"), format!("m{number}"));
            let insert = "INSERT INTO messages (id, session_id, direction, timestamp, raw, params) VALUES (?1, 's', '', '', ?2, ?2)";
            connection.execute(insert, params![message, long]).expect("a message");
            let insert = "INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, result, operation_type, requested_at)
                 VALUES (?1, 's', ?2, 't', ?3, ?3, 'read', '')";
            connection.execute(insert, params![id, message, long]).expect("a call");
            let insert = "INSERT INTO stderr (session_id, number, timestamp, text) VALUES ('s', ?1, '', ?2)";
            connection.execute(insert, params![number, long]).expect("a piece");
            let intent = "INSERT INTO intent_contexts (id, session_id, created_at) VALUES (?1, 's', '')";
            connection.execute(intent, [&id]).expect("an intent");
            let belongs = "INSERT INTO intent_tool_calls VALUES (?1, ?1, 1)";
            connection.execute(belongs, [&id]).expect("belongs");
        }
        for query in [CALLS, MESSAGES, STDERR] {
            let plan: String = connection
                .query_row(&format!("EXPLAIN QUERY PLAN {query}"), params!["s", 1], |row| row.get(3))
                .expect("plans");
            assert!(plan.starts_with("SEARCH"), "{plan}");
        }
        let removal = Removal { session: "s".into(), fresh: true };
        let mut counts = Vec::new();
        loop {
            let more = writer.remove_rows(&removal).expect("removes");
            let count = "SELECT (SELECT count(*) FROM tool_calls) || (SELECT count(*) FROM messages)
                 || (SELECT count(*) FROM stderr) || (SELECT count(*) FROM intent_contexts) || (SELECT count(*) FROM sessions)";
            let count: String =
                writer.connection().expect("open").query_row(count, [], |row| row.get(0)).expect("counts");
            counts.push(count);
            if !more {
                break;
            }
        }
        let wanted =
            ["46661", "26661", "06661", "04661", "02661", "00661", "00261", "00061", "00001", "00000"];
        assert_eq!(counts, wanted);
    }
}
