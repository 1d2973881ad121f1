//! Keeping MCP sessions within their bounds: whole sessions that ended, oldest first; a checkpoint in the ledger first,
//! then the rows, a few thousand at a time.

use super::{Error, SessionWriter, ledger, sql, turn};
use crate::{
    auditor::clock::rfc3339,
    mcp::ledger::{Checkpoint, Entry, Why, fold},
};
use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};

/// Rows deleted in one step, so that writing goes on in between.
const STEP: i64 = 2_000;
/// What a byte of a journal takes in all: itself, and its row, which has the line's text and its parts again.
const COPIES: u64 = 3;
/// Candidates that are looked at at once: those that still run are passed over.
const CANDIDATES: usize = 64;
/// A user's ledger is folded once it has so many entries and half of them can go.
const LONGEST_LEDGER: usize = 10_000;

/// The bounds of MCP sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionLimits {
    /// Oldest end of a session that is kept: µs.
    pub(crate) age: i64,
    /// Bytes of all journals and their rows together.
    pub(crate) bytes: u64,
    /// A session is never removed sooner after its end, µs: its interceptor may have lost its link only, and the present
    /// intent may hold its calls.
    pub(crate) grace: i64,
    /// Entries of a ledger before it is folded.
    pub(crate) ledger: usize,
}

impl Default for SessionLimits {
    /// 30 days, as events are kept; 2 GiB, of which the rows take about as much as all events may; a minute; and 10,000
    /// entries of a ledger, 4 MB.
    fn default() -> Self {
        Self { age: 30 * 24 * 3_600 * 1_000_000, bytes: 2 << 30, grace: 60_000_000, ledger: LONGEST_LEDGER }
    }
}

/// A session that is being removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Doomed {
    /// Its id.
    pub(crate) session: String,
    /// Its checkpoint was just written; otherwise an earlier run wrote it.
    pub(crate) fresh: bool,
}

/// Bytes that rows of MCP sessions take in the database, about.
pub(super) fn bytes_of_sessions(connection: &Connection) -> rusqlite::Result<u64> {
    let journals: i64 =
        connection.query_row("SELECT coalesce(sum(bytes), 0) FROM session_bounds", [], |row| row.get(0))?;
    Ok(journals.cast_unsigned().saturating_mul(COPIES - 1))
}

impl SessionWriter {
    /// The next session to remove, if any: one whose removal was begun, or the oldest that ended and is beyond a bound.
    /// Its checkpoint is in the ledger when this returns. `runs` tells whether a session's interceptor still runs.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn doom(
        &mut self,
        limits: &SessionLimits,
        now: i64,
        runs: impl Fn(&str) -> bool,
    ) -> Result<Option<Doomed>, Error> {
        let fail = sql("look for sessions to remove");
        let begun: Option<String> = self
            .connection()?
            .query_row("SELECT session_id FROM session_bounds WHERE removing <> 0 LIMIT 1", [], |row| {
                row.get(0)
            })
            .optional()
            .map_err(&fail)?;
        if let Some(session) = begun {
            return Ok(Some(Doomed { session, fresh: false }));
        }
        let total = bytes_of_sessions(self.connection()?).map_err(&fail)? / (COPIES - 1) * COPIES;
        let (why, before) = if total > limits.bytes {
            (Why::Size, now.saturating_sub(limits.grace))
        } else {
            (Why::Age, now.saturating_sub(limits.age.max(limits.grace)))
        };
        // Whoever has the most makes room: nobody's record gives way to another's.
        let users = match why {
            Why::Size => users_by_size(self.connection()?).map_err(&fail)?.into_iter().map(Some).collect(),
            Why::Age => vec![None],
        };
        let mut found = None;
        for uid in users {
            let candidates = ended_before(self.connection()?, &rfc3339(before), uid).map_err(&fail)?;
            found = candidates.into_iter().find(|session| !runs(session));
            if found.is_some() {
                break;
            }
        }
        let Some(session) = found else { return Ok(None) };
        let _turn = turn::wait();
        let step = self
            .connection()?
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sql("begin a transaction"))?;
        let written = checkpoint(&step, &session, why, now).and_then(|()| {
            step.execute("UPDATE session_bounds SET removing = 1 WHERE session_id = ?1", [&session])
        });
        written.map_err(sql("write a checkpoint"))?;
        step.commit().map_err(sql("commit"))?;
        Ok(Some(Doomed { session, fresh: true }))
    }

    /// Deletes some rows of a session that is doomed. False: none were left, and the session itself is gone too.
    ///
    /// # Errors
    /// [`Error::Sql`]; call it again.
    pub(crate) fn strip(&mut self, doomed: &Doomed) -> Result<bool, Error> {
        let _turn = turn::wait();
        // SQLite would look for whoever refers to each row, through every call: the order below leaves nobody who does.
        self.connection()?.execute_batch("PRAGMA foreign_keys = OFF").map_err(sql("prepare a removal"))?;
        let stripped = self.strip_step(&doomed.session);
        self.connection()?.execute_batch("PRAGMA foreign_keys = ON").map_err(sql("end a removal"))?;
        let more = stripped?;
        self.connection()?
            .execute_batch("PRAGMA incremental_vacuum(1024)")
            .map_err(sql("give back free pages"))?;
        Ok(more)
    }

    fn strip_step(&mut self, session: &str) -> Result<bool, Error> {
        let step = self
            .connection()?
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sql("begin a transaction"))?;
        let more = strip(&step, session).map_err(sql("remove an old session"))?;
        step.commit().map_err(sql("commit"))?;
        Ok(more)
    }

    /// Folds ledgers that have become long.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn fold_ledgers(&mut self, limits: &SessionLimits, now: i64) -> Result<(), Error> {
        let fail = sql("fold a ledger");
        let _turn = turn::wait();
        let step = self
            .connection()?
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(sql("begin a transaction"))?;
        let long: Vec<u32> = step
            .prepare("SELECT uid FROM ledger GROUP BY uid HAVING count(*) > ?1")
            .and_then(|mut s| s.query_map([limits.ledger as i64], |row| row.get(0))?.collect())
            .map_err(&fail)?;
        for uid in long {
            let rows = ledger::rows(&step, uid).map_err(&fail)?;
            if let Some(entry) = fold(&rows, limits.ledger / 2, now)
                && let Entry::Folded { upto, .. } = entry
            {
                ledger::append(&step, uid, &entry).map_err(&fail)?;
                step.execute(
                    "DELETE FROM ledger WHERE uid = ?1 AND seq <= ?2",
                    params![uid, upto.cast_signed()],
                )
                .map_err(&fail)?;
            }
        }
        step.commit().map_err(sql("commit"))
    }
}

fn ended_before(connection: &Connection, time: &str, uid: Option<u32>) -> rusqlite::Result<Vec<String>> {
    connection
        .prepare_cached(
            "SELECT id FROM sessions WHERE ended_at < ?1 AND (?3 IS NULL OR uid = ?3) ORDER BY ended_at LIMIT ?2",
        )?
        .query_map(params![time, CANDIDATES as i64, uid], |row| row.get(0))?
        .collect()
}

/// Users, whoever has most first.
fn users_by_size(connection: &Connection) -> rusqlite::Result<Vec<u32>> {
    connection
        .prepare_cached(
            "SELECT s.uid FROM session_bounds b JOIN sessions s ON s.id = b.session_id
             GROUP BY s.uid ORDER BY sum(b.bytes) DESC",
        )?
        .query_map([], |row| row.get(0))?
        .collect()
}

/// Whether sessions take so much more than `bound`, in spite of retention, that `uid`, who has most of it, must wait.
pub(super) fn must_wait(connection: &Connection, uid: u32, bound: u64) -> rusqlite::Result<bool> {
    let total = bytes_of_sessions(connection)? / (COPIES - 1) * COPIES;
    Ok(total > bound + bound / 4 && users_by_size(connection)?.first() == Some(&uid))
}

fn checkpoint(step: &Transaction<'_>, session: &str, why: Why, now: i64) -> rusqlite::Result<()> {
    let (uid, checkpoint) = step.query_row(
        "SELECT uid, server_name, started_at, ended_at, journal_lines, journal_head, broken,
             (SELECT count(*) FROM tool_calls c WHERE c.session_id = s.id) FROM sessions s WHERE id = ?1",
        [session],
        |row| {
            let unsigned = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok((
                row.get::<_, u32>(0)?,
                Checkpoint {
                    at: now,
                    session: session.to_owned(),
                    server: row.get(1)?,
                    began: row.get(2)?,
                    ended: row.get(3)?,
                    first: 1,
                    last: unsigned(4)?,
                    head: row.get(5)?,
                    calls: unsigned(7)?,
                    why,
                    broken: row.get(6)?,
                },
            ))
        },
    )?;
    // A session of before there were bounds has no row there.
    step.execute("INSERT OR IGNORE INTO session_bounds (session_id, bytes) VALUES (?1, 0)", [session])?;
    ledger::append(step, uid, &Entry::Removed(checkpoint))
}

fn strip(step: &Transaction<'_>, session: &str) -> rusqlite::Result<bool> {
    step.execute_batch(
        "CREATE TEMP TABLE IF NOT EXISTS stripped (id TEXT PRIMARY KEY); DELETE FROM temp.stripped",
    )?;
    let calls = step.execute(
        "INSERT INTO temp.stripped SELECT id FROM tool_calls WHERE session_id = ?1 LIMIT ?2",
        params![session, STEP],
    )?;
    if calls > 0 {
        step.execute_batch(
            "DELETE FROM intent_tool_calls WHERE tool_call_id IN (SELECT id FROM temp.stripped);
             DELETE FROM tool_calls WHERE id IN (SELECT id FROM temp.stripped)",
        )?;
        return Ok(true);
    }
    let messages = step.execute(
        "DELETE FROM messages WHERE rowid IN (SELECT rowid FROM messages WHERE session_id = ?1 LIMIT ?2)",
        params![session, STEP],
    )?;
    if messages > 0 {
        return Ok(true);
    }
    step.execute("DELETE FROM stderr WHERE session_id = ?1", [session])?;
    // An intent may hold calls of sessions that stay: it is theirs then.
    step.execute(
        "DELETE FROM intent_contexts WHERE session_id = ?1
             AND NOT EXISTS (SELECT 1 FROM intent_tool_calls x WHERE x.intent_id = intent_contexts.id)",
        [session],
    )?;
    step.execute(
        "UPDATE intent_contexts SET session_id = (
             SELECT c.session_id FROM intent_tool_calls x JOIN tool_calls c ON c.id = x.tool_call_id
             WHERE x.intent_id = intent_contexts.id ORDER BY c.requested_at LIMIT 1) WHERE session_id = ?1",
        [session],
    )?;
    step.execute("DELETE FROM sessions WHERE id = ?1", [session])?;
    step.execute("DELETE FROM session_bounds WHERE session_id = ?1", [session])?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::{Doomed, SessionLimits, must_wait};
    use crate::{
        auditor::{
            mcp::ingest::{CallRow, MessageRow, Row},
            store::{Error, Position, SessionWriter},
        },
        mcp::journal::{Direction, Judged},
    };

    /// Stores a session that ended at `ended`, µs, with a journal of so many bytes.
    fn store(
        writer: &mut SessionWriter,
        (session, uid): (&str, u32),
        bytes: u64,
        ended: i64,
    ) -> Result<(), Error> {
        let (_, epoch) = writer.lines(session, uid)?.expect("one's own");
        let at = Position { session, uid, journal: "", lines: 2, head: "h", bytes, read_to: 0, epoch };
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: ended - 1 };
        writer.write(&at, &[start, Row::End { at: ended, status: Some(0) }])
    }

    /// Stores a session with one call, which was asked for and ended at `at`, µs.
    fn store_call(writer: &mut SessionWriter, session: &str, at: i64) -> Result<(), Error> {
        let (_, epoch) = writer.lines(session, 5)?.expect("one's own");
        let place =
            Position { session, uid: 5, journal: "", lines: 4, head: "h", bytes: 9, read_to: 0, epoch };
        let message = MessageRow {
            id: format!("message-{session}"),
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
            call: format!("call-{session}"),
            index: 0,
            tool: "t".into(),
            operation: "read".into(),
            score: 0,
            reasons: vec![],
            action: "pass".into(),
            rules: vec![],
        };
        let call = CallRow {
            judged,
            message: message.id.clone(),
            arguments: "{}".into(),
            at,
            blocked: false,
            began: None,
            evidence: Default::default(),
        };
        let start = Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: at };
        let rows = [
            start,
            Row::Message(Box::new(message)),
            Row::Call(Box::new(call)),
            Row::End { at, status: Some(0) },
        ];
        writer.write(&place, &rows)
    }

    #[test]
    fn an_intent_goes_on_when_the_session_that_began_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), Some(10_000));
        store_call(&mut writer, "first", 1_000_000).expect("stored");
        let limits = SessionLimits { bytes: 0, grace: 0, ..SessionLimits::default() };
        let doomed = writer.doom(&limits, 9_000_000, |_| false).expect("found").expect("one");
        while writer.strip(&doomed).expect("removed") {}
        store_call(&mut writer, "second", 2_000_000).expect("a call within the same intent");
    }

    #[test]
    fn whoever_has_most_makes_room_and_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), Some(10_000));
        store(&mut writer, ("small", 6), 10, 1_000_000).expect("stored");
        store(&mut writer, ("first", 5), 6_000, 2_000_000).expect("stored");
        store(&mut writer, ("second", 5), 6_000, 3_000_000).expect("stored");
        let limits = SessionLimits { bytes: 20_000, grace: 0, age: i64::MAX, ..SessionLimits::default() };
        let doomed = |session: &str, fresh| Some(Doomed { session: session.into(), fresh });
        let none = |_: &str| false;
        assert_eq!(
            writer.doom(&limits, 9_000_000, |one| one == "first").expect("found"),
            doomed("second", true)
        );
        assert_eq!(
            writer.doom(&limits, 9_000_000, none).expect("found"),
            doomed("second", false),
            "as begun"
        );
        let mut waits = |uid| must_wait(writer.connection().expect("open"), uid, 10_000).expect("measured");
        assert!(waits(5) && !waits(6));
        std::thread::sleep(super::super::mcp_write::CROWDED);
        let more = store(&mut writer, ("third", 5), 1, 4_000_000);
        assert!(matches!(more, Err(Error::Crowded { uid: 5 })), "{more:?}");
        store(&mut writer, ("other", 6), 1, 4_000_000).expect("others are stored");
    }
}
