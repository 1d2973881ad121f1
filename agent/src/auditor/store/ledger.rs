//! The ledger of MCP sessions in the database: written in the transaction that writes the rows it is about.

use super::{Error, Position, SessionWriter, sql, turn};
use crate::{
    auditor::mcp::ingest::Row,
    mcp::{
        journal::GENESIS,
        ledger::{self, Entry},
    },
};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

/// Migration 3.
pub(super) const MIGRATION: &str = "
    CREATE TABLE ledger (                   -- one chain for each user: mcp/ledger.rs
        uid     INTEGER NOT NULL,
        seq     INTEGER NOT NULL,           -- from 1, without gaps
        entry   TEXT NOT NULL,              -- JSON
        hash    TEXT NOT NULL,              -- hex SHA-256 of the hash before and the entry
        session TEXT,                       -- of which retention removed: to find it
        told    INTEGER NOT NULL DEFAULT 0, -- the host's journal has it
        PRIMARY KEY (uid, seq)
    );
    CREATE INDEX ledger_untold ON ledger (uid, seq) WHERE told = 0;
    CREATE INDEX ledger_removed ON ledger (session) WHERE session IS NOT NULL;

    CREATE TABLE session_bounds (           -- what retention needs to know of a session
        session_id TEXT PRIMARY KEY,
        bytes      INTEGER NOT NULL,        -- of its journal
        removing   INTEGER NOT NULL DEFAULT 0
    );
    CREATE INDEX idx_sessions_ended ON sessions (ended_at);
    CREATE INDEX idx_intents_session ON intent_contexts (session_id);
";

/// Appends to a user's ledger.
pub(super) fn append(step: &Transaction<'_>, uid: u32, entry: &Entry) -> rusqlite::Result<()> {
    let last: Option<(i64, String)> = step
        .prepare_cached("SELECT seq, hash FROM ledger WHERE uid = ?1 ORDER BY seq DESC LIMIT 1")?
        .query_row([uid], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (seq, head) = last.unwrap_or((0, GENESIS.to_owned()));
    let json = serde_json::to_string(entry)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let hash = ledger::hash(&head, &json);
    let removed = match entry {
        Entry::Removed(checkpoint) => Some(&checkpoint.session),
        _ => None,
    };
    step.prepare_cached("INSERT INTO ledger (uid, seq, entry, hash, session) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![uid, seq + 1, json, hash, removed])
        .map(drop)
}

/// Notes how much of a session's journal is about to be in the database, for retention.
pub(super) fn bytes(step: &Transaction<'_>, at: &Position<'_>) -> rusqlite::Result<()> {
    step.prepare_cached(
        "INSERT INTO session_bounds (session_id, bytes) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET bytes = excluded.bytes",
    )?
    .execute(params![at.session, at.bytes.cast_signed()])
    .map(drop)
}

/// Notes that a session's journal is about to be in the database up to a position: at its first rows and its last.
pub(super) fn reached(step: &Transaction<'_>, at: &Position<'_>, rows: &[Row]) -> rusqlite::Result<()> {
    let ended = rows.iter().any(|row| matches!(row, Row::End { .. }));
    if !ended {
        let lines: Option<i64> = step
            .prepare_cached("SELECT journal_lines FROM sessions WHERE id = ?1")?
            .query_row([at.session], |row| row.get(0))
            .optional()?;
        if lines.is_some_and(|lines| lines > 0) {
            return Ok(());
        }
    }
    let entry = Entry::Reached {
        at: crate::auditor::clock::now_micros(),
        session: at.session.to_owned(),
        lines: at.lines,
        head: at.head.to_owned(),
        ended,
    };
    append(step, at.uid, &entry)
}

/// Whether a ledger has the checkpoint of a session.
pub(super) fn is_removed(connection: &Connection, session: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM ledger WHERE session = ?1 LIMIT 1")?
        .query_row([session], |_| Ok(()))
        .optional()
        .map(|found| found.is_some())
}

impl SessionWriter {
    /// Entries that the host's journal does not have yet, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn untold(&mut self, limit: u32) -> Result<Vec<ledger::Row>, Error> {
        let text = "SELECT uid, seq, entry, hash FROM ledger WHERE told = 0 ORDER BY uid, seq LIMIT ?1";
        self.connection()?
            .prepare_cached(text)
            .and_then(|mut statement| statement.query_map([limit], row)?.collect())
            .map_err(sql("read the ledger of sessions"))
    }

    /// The host's journal has a user's entries up to this one.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn told(&mut self, uid: u32, seq: u64) -> Result<(), Error> {
        let _turn = turn::wait();
        self.connection()?
            .execute(
                "UPDATE ledger SET told = 1 WHERE told = 0 AND uid = ?1 AND seq <= ?2",
                params![uid, seq.cast_signed()],
            )
            .map(drop)
            .map_err(sql("note which heads are kept elsewhere"))
    }
}

fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<ledger::Row> {
    let seq: i64 = row.get(1)?;
    Ok(ledger::Row { uid: row.get(0)?, seq: seq.cast_unsigned(), entry: row.get(2)?, hash: row.get(3)? })
}

/// One user's rows, in order.
pub(super) fn rows(connection: &Connection, uid: u32) -> rusqlite::Result<Vec<ledger::Row>> {
    connection
        .prepare_cached("SELECT uid, seq, entry, hash FROM ledger WHERE uid = ?1 ORDER BY seq")?
        .query_map([uid], row)?
        .collect()
}
