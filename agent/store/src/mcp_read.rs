//! Reading MCP sessions: rows as JSON objects, the columns' names as keys.

use super::{
    CallFilter, Error, Viewer,
    connection::{open_to_read, rows},
    mcp_schema::OUTCOME,
    sql,
};
use ringfence_session::{
    heads::{Head, Of},
    strict,
};
use ringfence_wire::tool_call::{Named as _, Outcome};
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, params, types::ValueRef};
use serde_json::{Map, Value, json};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Bytes of rule files that one answer about pending changes has, before they are JSON: one file, in force and changed, fits
/// however long both are.
const MOST_PENDING: u64 = 2 * ringfence_session::reload::LONGEST;

/// Instructions of SQLite's machine between looks at the clock: a millisecond's, about.
const STEPS: i32 = 10_000;
/// Most rows of one answer.
pub(crate) const MOST: u32 = 1000;
/// A page ends once it is longer than this, bytes; with the longest row it still fits a message.
pub(crate) const PAGE_BYTES: usize = 2 << 20;
/// Most heads of journals in one answer: 10 MB.
const MOST_HEADS: u32 = 50_000;
/// Columns that hold JSON.
const JSON: &[&str] = &[
    "arguments",
    "result",
    "error",
    "params",
    "risk_reasons",
    "rules",
    "exception",
    "exceptions",
    "client_info",
    "_client_info",
    "task_result",
    "info",
    "flags",
    "changed_flags",
];

/// A read-only connection.
#[derive(Debug)]
pub struct SessionReader {
    connection: Connection,
}

/// Columns of a call as lists show it: without its results, which may be long.
/// Long arguments and errors are cut there, and are text then.
const CALL: &str = "c.id, c.session_id, s.uid, s.server_name, s.container, c.tool_name,
    CASE WHEN octet_length(c.arguments) <= 4096 THEN c.arguments ELSE substr(c.arguments, 1, 4096) || '…' END AS arguments,
    CASE WHEN octet_length(c.error) <= 4096 THEN c.error ELSE substr(c.error, 1, 4096) || '…' END AS error, c.operation_type, c.risk_score, c.risk_reasons,
    c.requested_at, c.responded_at, c.duration_ms, c.policy_action, c.approved_by, c.approved_at, c.rules, c.exceptions, c.decision, c.decided_by,
    c.decided_at, (SELECT intent_id FROM intent_tool_calls i WHERE i.tool_call_id = c.id) AS intent_id,
    (SELECT n.source FROM intent_tool_calls i JOIN intent_contexts n ON n.id = i.intent_id WHERE i.tool_call_id = c.id) AS intent_source
    FROM tool_calls c JOIN sessions s ON s.id = c.session_id";
/// A session as lists show it.
const SESSION: &str = "SELECT s.id, s.uid, s.server_name, s.server_command, s.started_at, s.ended_at, s.client_info, s.exit_status, s.broken,
         s.profile, s.enforcement, s.container, s.stderr_bytes, s.stderr_dropped,
         (SELECT count(*) FROM tool_calls c WHERE c.session_id = s.id) AS calls,
         (SELECT count(*) FROM intent_contexts n WHERE n.session_id = s.id) AS intents,
         (SELECT count(*) FROM tool_calls c WHERE c.session_id = s.id AND c.policy_action <> 'pass') AS flagged,
         (SELECT max(risk_score) FROM tool_calls c WHERE c.session_id = s.id) AS highest_risk
     FROM sessions s";
/// A uid sees its own. For a few rows whose ids are known, or all in the order they came.
const OWN: &str = "(?1 = 0 OR s.uid = ?1)";

/// The same as a condition by which SQLite finds a user's rows without looking at others'.
fn own(viewer: Viewer) -> &'static str {
    if viewer.0 == 0 { "?1 = 0" } else { "s.uid = ?1" }
}

impl SessionReader {
    /// Opens a database.
    ///
    /// # Errors
    /// [`Error::Open`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { connection: open_to_read(path)? })
    }

    /// The same, for questions that end after `limit`, answered or not.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn within(mut self, limit: Duration) -> Result<Self, Error> {
        let until = Instant::now() + limit;
        self.connection
            .progress_handler(STEPS, Some(move || Instant::now() >= until))
            .map_err(sql("bound a question"))?;
        Ok(self)
    }

    /// The same, for questions that may take as long as they take.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub(crate) fn without_limit(mut self) -> Result<Self, Error> {
        self.connection
            .progress_handler(0, None::<fn() -> bool>)
            .map_err(sql("bound a question no longer"))?;
        Ok(self)
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Calls, newest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn calls<'a>(&self, viewer: Viewer, filter: &'a CallFilter) -> Result<Vec<Value>, Error> {
        // A user's are found by the index that has them by time, unless they are all one session's.
        let by_user = viewer.0 != 0 && filter.session.is_none();
        let (index, whose, flagged, before, order) = if by_user {
            (
                "JOIN calls_by_user u ON u.id = c.id",
                "u.uid = ?",
                "u.flagged = 1",
                "(u.requested_at, u.id) < (SELECT requested_at, id FROM tool_calls WHERE id = ?)",
                "u.requested_at DESC, u.id DESC",
            )
        } else {
            (
                "",
                own(viewer),
                "c.policy_action != 'pass'",
                "(c.requested_at, c.id) < (SELECT requested_at, id FROM tool_calls WHERE id = ?)",
                "c.requested_at DESC, c.id DESC",
            )
        };
        // Only the conditions that are asked for, so that SQLite can choose an index for them.
        let mut values: Vec<(&str, &dyn ToSql)> = vec![(whose, &viewer.0)];
        let mut ask =
            |condition, value: Option<&'a dyn ToSql>| values.extend(value.map(|value| (condition, value)));
        // The plus keeps SQLite from the index over scores: it would sort a third of all calls by time.
        ask("+c.risk_score >= ?", filter.risk.as_ref().map(|v| v as _));
        let verdict = format!("? IN (c.policy_action, c.decision, {OUTCOME})");
        ask(&verdict, filter.verdict.as_ref().map(|v| v as _));
        let outcome = format!("{OUTCOME} = ?");
        ask(&outcome, filter.outcome.as_ref().map(|v| v as _));
        ask("c.session_id = ?", filter.session.as_ref().map(|v| v as _));
        ask("instr(s.container, ?) = 1", filter.container.as_ref().map(|v| v as _));
        ask("s.server_name = ?", filter.server.as_ref().map(|v| v as _));
        ask("instr(lower(c.tool_name), lower(?)) > 0", filter.tool.as_ref().map(|v| v as _));
        ask(before, filter.before.as_ref().map(|v| v as _));
        let mut conditions: Vec<&str> = values.iter().map(|(condition, _)| *condition).collect();
        if filter.flagged {
            conditions.push(flagged);
        }
        let text = format!(
            "SELECT {OUTCOME} AS outcome, {CALL} {index} WHERE {} ORDER BY {order} LIMIT {}",
            conditions.join(" AND "),
            filter.limit.min(MOST)
        );
        let values: Vec<&dyn ToSql> = values.into_iter().map(|(_, value)| value).collect();
        self.rows(&text, &values)
    }

    /// One call as lists show it.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn listed(&self, viewer: Viewer, id: &str) -> Result<Option<Value>, Error> {
        let text = format!("SELECT {OUTCOME} AS outcome, {CALL} WHERE {OWN} AND c.id = ?2");
        Ok(self.rows(&text, &[&viewer.0, &id])?.pop())
    }

    /// What people are shown of a call that waits: of long arguments `beginning` bytes, or a few more, and with them as
    /// `arguments_bytes` how many there are.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn paused(&self, id: &str, beginning: usize) -> Result<Option<Value>, Error> {
        let text = "SELECT session_id, tool_name, risk_score, risk_reasons, rules,
                 CASE WHEN octet_length(arguments) <= ?2 THEN arguments ELSE substr(arguments, 1, ?2) END AS arguments,
                 CASE WHEN octet_length(arguments) <= ?2 THEN NULL ELSE octet_length(arguments) END AS arguments_bytes
             FROM tool_calls WHERE id = ?1";
        Ok(self.rows(text, &[&id, &i64::try_from(beginning).unwrap_or(i64::MAX)])?.pop())
    }

    /// One call, whole, with what it belongs to.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn call(&self, viewer: Viewer, id: &str) -> Result<Option<Value>, Error> {
        let text = format!(
            "SELECT c.*, {OUTCOME} AS outcome, s.server_name, s.uid, s.container, s.profile, s.enforcement, n.id AS intent_id, n.source AS intent_source,
                 n.human_prompt
             FROM tool_calls c JOIN sessions s ON s.id = c.session_id LEFT JOIN intent_tool_calls i ON i.tool_call_id = c.id
                 LEFT JOIN intent_contexts n ON n.id = i.intent_id
             WHERE {OWN} AND c.id = ?2"
        );
        self.connection
            .query_row(&text, params![viewer.0, id], object)
            .optional()
            .map_err(sql("read a tool call"))
    }

    /// The whole id of the one call whose id begins with this; `None` where none or several do.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn whole_id(&self, viewer: Viewer, beginning: &str) -> Result<Option<String>, Error> {
        let text = format!(
            "SELECT c.id FROM tool_calls c JOIN sessions s ON s.id = c.session_id
             WHERE {OWN} AND c.id >= ?2 AND c.id < ?2 || 'g' AND length(?2) >= 4 LIMIT 2"
        );
        self.only_id(viewer, beginning, &text).map_err(sql("find a tool call"))
    }

    /// The one id that a question about a beginning finds; `None` where it finds none or several.
    pub(crate) fn only_id(
        &self,
        viewer: Viewer,
        beginning: &str,
        text: &str,
    ) -> rusqlite::Result<Option<String>> {
        let mut ids = rows(&self.connection, text, params![viewer.0, beginning], |row| row.get(0))?;
        Ok(if ids.len() == 1 { ids.pop() } else { None })
    }

    /// One session, as [`Self::sessions`] shows it.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn session(&self, viewer: Viewer, id: &str) -> Result<Option<Value>, Error> {
        Ok(self.rows(&format!("{SESSION} WHERE {OWN} AND s.id = ?2"), &[&viewer.0, &id])?.pop())
    }

    /// Sessions, newest first, each with its numbers of calls.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn sessions(&self, viewer: Viewer, limit: u32) -> Result<Vec<Value>, Error> {
        let text = format!("{SESSION} WHERE {} ORDER BY s.started_at DESC LIMIT ?2", own(viewer));
        self.rows(&text, &[&viewer.0, &limit.min(MOST)])
    }

    /// Intents, newest first, each with its chain, oldest first; with a session, only those that hold a call of it.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn intents(&self, viewer: Viewer, session: Option<&str>, limit: u32) -> Result<Vec<Value>, Error> {
        let limit = limit.min(MOST);
        let intents = match session {
            Some(session) => self.rows(
                &format!(
                    "SELECT DISTINCT i.* FROM intent_contexts i JOIN intent_tool_calls x ON x.intent_id = i.id
                     JOIN tool_calls c ON c.id = x.tool_call_id JOIN sessions s ON s.id = c.session_id
                     WHERE {OWN} AND c.session_id = ?2 ORDER BY i.created_at DESC LIMIT {limit}"
                ),
                &[&viewer.0, &session],
            )?,
            None => self.rows(
                &format!(
                    "SELECT i.* FROM intent_contexts i JOIN sessions s ON s.id = i.session_id
                     WHERE {} ORDER BY i.created_at DESC LIMIT {limit}",
                    own(viewer)
                ),
                &[&viewer.0],
            )?,
        };
        // By time: `sequence_order` is that of arrival, and journals of several sessions are read side by side.
        let chain = format!(
            "SELECT x.sequence_order, {OUTCOME} AS outcome, {CALL} JOIN intent_tool_calls x ON x.tool_call_id = c.id
             WHERE {OWN} AND x.intent_id = ?2 ORDER BY c.requested_at, x.sequence_order LIMIT {MOST}"
        );
        intents
            .into_iter()
            .map(|mut intent| {
                let calls = self.rows(&chain, &[&viewer.0, &intent["id"].as_str()])?;
                if let Value::Object(fields) = &mut intent {
                    fields.insert("tool_calls".to_owned(), Value::Array(calls));
                }
                Ok(intent)
            })
            .collect()
    }

    /// A page of a table, in the order its rows came; other users' rows are left out.
    ///
    /// # Errors
    /// [`Error::Sql`]; [`Error::NoTable`], for whoever verifies must not take a table that this version does not know for one
    /// without rows.
    pub fn table(
        &self,
        viewer: Viewer,
        table: &str,
        after: i64,
        limit: u32,
        shown: Shown,
    ) -> Result<Vec<Value>, Error> {
        let from = match table {
            "unvouched" => return self.unvouched(viewer, after, limit.min(MOST)),
            "sessions" => "s.rowid AS _rowid, s.* FROM sessions s WHERE s.rowid > ?2",
            "messages" => {
                "m.rowid AS _rowid, m.* FROM messages m JOIN sessions s ON s.id = m.session_id WHERE m.rowid > ?2"
            }
            "tool_calls" => {
                // Whether lists have it as it is: whoever verifies the calls does not see what those are made from.
                &format!("c.rowid AS _rowid, c.*, {OUTCOME} AS _outcome, s.server_name AS _server_name, s.uid AS _uid, s.client_info AS _client_info,
                     EXISTS (SELECT 1 FROM calls_by_user u WHERE u.uid = s.uid AND u.requested_at = c.requested_at AND u.id = c.id
                         AND u.flagged = (c.policy_action != 'pass')) AS _listed
                 FROM tool_calls c JOIN sessions s ON s.id = c.session_id WHERE c.rowid > ?2")
            }
            "intent_contexts" => {
                "i.rowid AS _rowid, i.* FROM intent_contexts i JOIN sessions s ON s.id = i.session_id WHERE i.rowid > ?2"
            }
            "intent_tool_calls" => {
                "x.rowid AS _rowid, x.* FROM intent_tool_calls x JOIN tool_calls c ON c.id = x.tool_call_id
                 JOIN sessions s ON s.id = c.session_id WHERE x.rowid > ?2"
            }
            "stderr" => {
                "e.rowid AS _rowid, e.* FROM stderr e JOIN sessions s ON s.id = e.session_id WHERE e.rowid > ?2"
            }
            "ledger" => "s.rowid AS _rowid, s.uid, s.seq, s.entry, s.hash FROM ledger s WHERE s.rowid > ?2",
            // Root's rules bind everybody.
            "policy_rules" => "s.rowid AS _rowid, s.* FROM policy_rules s WHERE s.rowid > ?2",
            _ => return Err(Error::NoTable),
        };
        let own = if table == "policy_rules" { "(?1 = 0 OR s.uid IN (0, ?1))" } else { OWN };
        let limit = limit.min(MOST);
        let text = format!("SELECT {from} AND {own} ORDER BY _rowid LIMIT ?3");
        self.page(&text, params![viewer.0, after, limit], shown)
    }

    /// Rows up to what fits an answer: at least one, if there is any.
    pub fn page(&self, text: &str, values: &[&dyn ToSql], shown: Shown) -> Result<Vec<Value>, Error> {
        let fail = sql("read MCP sessions");
        let mut statement = self.connection.prepare(text).map_err(&fail)?;
        let mut rows = statement.query(values).map_err(&fail)?;
        let (mut page, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(&fail)? {
            let row = fields(row, shown).map_err(&fail)?;
            bytes += row.to_string().len();
            page.push(row);
            if bytes > PAGE_BYTES {
                break;
            }
        }
        Ok(page)
    }

    /// The present heads: of each user's ledger, then of that user's newest sessions' journals. `db` names the database.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn heads(&self, viewer: Viewer, db: &str, running: bool) -> Result<Vec<Head>, Error> {
        let running = if running { "AND s.ended_at IS NULL" } else { "" };
        let own = own(viewer);
        let ledgers =
            format!("SELECT s.uid, NULL, max(s.seq), s.hash FROM ledger s WHERE {own} GROUP BY s.uid");
        let sessions = format!(
            "SELECT s.uid, s.id, s.journal_lines, s.journal_head FROM sessions s
             WHERE {own} AND s.journal_lines > 0 {running} ORDER BY s.started_at DESC LIMIT {MOST_HEADS}"
        );
        let mut heads = Vec::new();
        for text in [ledgers, sessions] {
            let found = rows(&self.connection, &text, [viewer.0], |row| {
                let session: Option<String> = row.get(1)?;
                Ok(Head {
                    db: db.to_owned(),
                    uid: row.get(0)?,
                    of: session.map_or(Of::Ledger, Of::Session),
                    lines: row.get::<_, i64>(2)?.cast_unsigned(),
                    hash: row.get(3)?,
                })
            });
            heads.extend(found.map_err(sql("read the heads of journals"))?);
        }
        Ok(heads)
    }

    /// Totals: the audit contract's metrics, and how many calls had each outcome.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn stats(&self, viewer: Viewer) -> Result<Value, Error> {
        let own = own(viewer);
        let each: String = Outcome::ALL
            .iter()
            .filter(|outcome| **outcome != Outcome::Approved)
            .map(|outcome| {
                format!(", count(*) FILTER (WHERE outcome = '{0}') AS outcome_{0}", outcome.name())
            })
            .collect();
        // Each call's outcome is worked out once, not for each number.
        let text = format!(
            "WITH calls AS MATERIALIZED (SELECT c.policy_action, c.decision, c.risk_score, {OUTCOME} AS outcome
                 FROM tool_calls c JOIN sessions s ON s.id = c.session_id WHERE {own})
             SELECT count(*) AS total_calls,
                 count(*) FILTER (WHERE policy_action = 'flag') AS flagged,
                 count(*) FILTER (WHERE policy_action = 'pause') AS paused,
                 count(*) FILTER (WHERE policy_action = 'block') AS blocked,
                 count(*) FILTER (WHERE decision = 'approved') AS approved,
                 count(*) FILTER (WHERE decision IN ('denied', 'timeout')) AS denied,
                 count(*) FILTER (WHERE outcome IN ('error', 'tool_error')) AS failed,
                 coalesce(round(avg(risk_score), 1), 0) AS average_risk,
                 (SELECT count(*) FROM sessions s WHERE {own}) AS sessions{each},
                 count(*) FILTER (WHERE outcome IS NULL) AS outcome_pending
             FROM calls"
        );
        Ok(self.rows(&text, &[&viewer.0])?.pop().unwrap_or_else(|| json!({})))
    }

    /// Whether a session is on record as another user's.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn is_another_s(&self, session: &str, uid: u32) -> Result<bool, Error> {
        let fail = sql("read whose a session is");
        let text = "SELECT 1 FROM sessions WHERE id = ?1 AND uid <> ?2";
        let mut statement = self.connection.prepare(text).map_err(&fail)?;
        statement.exists(params![session, uid]).map_err(&fail)
    }

    /// Of some sessions, those that are not wholly in the store, as far as `viewer` may know; one that retention removed
    /// is not missing.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn missing(&self, viewer: Viewer, sessions: Vec<String>) -> Result<Vec<String>, Error> {
        let fail = sql("read whether a session ended");
        let text = format!(
            "SELECT 1 FROM sessions s WHERE id = ?2 AND ended_at IS NOT NULL AND {OWN}
             UNION ALL SELECT 1 FROM ledger WHERE session = ?2"
        );
        let mut statement = self.connection.prepare(&text).map_err(&fail)?;
        let mut missing = Vec::new();
        for session in sessions {
            if !statement.exists(params![viewer.0, session]).map_err(&fail)? {
                missing.push(session);
            }
        }
        Ok(missing)
    }

    /// Of some sessions, those of the viewer's that retention removed.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn removed(&self, viewer: Viewer, sessions: &[String]) -> Result<Vec<String>, Error> {
        let fail = sql("read the ledger of sessions");
        let text = format!("SELECT 1 FROM ledger s WHERE s.session = ?2 AND {OWN}");
        let mut statement = self.connection.prepare(&text).map_err(&fail)?;
        let mut removed = Vec::new();
        for session in sessions {
            if statement.exists(params![viewer.0, session]).map_err(&fail)? {
                removed.push(session.clone());
            }
        }
        Ok(removed)
    }

    /// Changes of rule files that wait for a confirmation, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn pending_rules(&self, viewer: Viewer) -> Result<Vec<Value>, Error> {
        // Of each user the one that waits for longest, then of each the next: nobody's keep all others' out. None is read that
        // is not shown.
        let text = format!(
            "WITH waiting AS (
                 SELECT s.rowid AS id, octet_length(s.text) + octet_length(s.pending) AS bytes,
                     row_number() OVER (PARTITION BY s.uid ORDER BY s.pending_at, s.rowid) AS nth
                 FROM rule_files s WHERE s.pending IS NOT NULL AND {OWN}),
             placed AS (
                 SELECT id, sum(bytes) OVER (ORDER BY nth, bytes, id ROWS UNBOUNDED PRECEDING) AS sum,
                     row_number() OVER (ORDER BY nth, bytes, id) AS place
                 FROM waiting WHERE bytes <= {MOST_PENDING}),
             shown AS (SELECT id, place FROM placed WHERE place <= 16 AND sum <= {MOST_PENDING})
             SELECT s.uid, s.path, s.text, s.pending, s.pending_sha256 AS sha256, s.pending_at AS since,
                 (SELECT count(*) FROM waiting) - (SELECT count(*) FROM shown) AS left_out
             FROM shown JOIN rule_files s ON s.rowid = shown.id ORDER BY shown.place"
        );
        self.rows(&text, &[&viewer.0])
    }

    pub(crate) fn rows(&self, text: &str, values: &[&dyn ToSql]) -> Result<Vec<Value>, Error> {
        rows(&self.connection, text, values, object).map_err(sql("read MCP sessions"))
    }
}

/// How columns of JSON are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// As what they say.
    Parsed,
    /// As the texts that are stored.
    Text,
}

fn object(row: &Row<'_>) -> rusqlite::Result<Value> {
    fields(row, Shown::Parsed)
}

fn fields(row: &Row<'_>, shown: Shown) -> rusqlite::Result<Value> {
    let mut fields = Map::new();
    for (index, name) in row.as_ref().column_names().enumerate() {
        let value = match row.get_ref(index)? {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(n) => Value::from(n),
            ValueRef::Real(n) => Value::from(n),
            ValueRef::Text(text) => {
                let text = String::from_utf8_lossy(text);
                // What is not JSON although it should be, or not the same to everybody, is shown as the text it is.
                let parsed = if shown == Shown::Parsed && JSON.contains(&name) {
                    strict::value(&text).ok()
                } else {
                    None
                };
                parsed.unwrap_or_else(|| Value::from(text))
            }
            ValueRef::Blob(_) => Value::Null,
        };
        fields.insert(name.to_owned(), value);
    }
    Ok(Value::Object(fields))
}

#[cfg(test)]
mod tests;
