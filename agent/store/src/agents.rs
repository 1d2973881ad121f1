//! Agents: what their owners asked for, the tool calls that came of it, the tags, the refusals.

use super::{
    Error, Reader, Viewer, agent_bytes,
    connection::rows,
    hooks::{self, HookWord},
    intents, read, run_lines, sql,
};
use ringfence_events::{
    present::Stored,
    report::{CheckedPayload, CheckedReport},
    ties::Gap,
};
use ringfence_wire::trace::{AgentEvent, MAX_GIVEN, Refusal, Renamed, Via};
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

/// Rows of each table beyond which some go, whatever their age: the oldest of the agent with the most.
const MOST_ROWS: i64 = 200_000;
/// Rows that a table is ahead of its bound by before it is cut.
const STEP: i64 = 5_000;

/// What a trace shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TraceTarget {
    /// All agents.
    All,
    /// One.
    Agent(String),
    /// One intent: its row.
    Intent(i64),
    /// One call: its row.
    Call(i64),
}

/// What an owner asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentIntent {
    /// Its id; `None`: what the runtime did on its own account.
    pub id: Option<String>,
    /// The agent.
    pub agent: String,
    /// The run's container; `None`: of an agent of the daemon's.
    pub container: Option<String>,
    /// µs since 1970.
    pub at: i64,
    /// µs since 1970.
    pub ended: Option<i64>,
    /// User id.
    pub sender: Option<u32>,
    /// Who asked.
    pub via: Via,
    /// The session that a client says it belongs to.
    pub session: Option<String>,
    /// Its beginning.
    pub text: String,
    /// Why it failed.
    pub error: Option<String>,
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentCall {
    /// Its row.
    pub row: i64,
    /// The agent.
    pub agent: String,
    /// The run's container; `None`: of an agent of the daemon's.
    pub container: Option<String>,
    /// The provider's id, or what replaces it: no two of an agent's calls have the same.
    pub id: String,
    /// The worker's own name for it.
    pub key: Option<String>,
    /// The provider's id, where it was replaced.
    pub renamed: Option<Renamed>,
    /// µs since 1970.
    pub at: i64,
    /// µs since 1970.
    pub ended: Option<i64>,
    /// ns since boot.
    pub began: u64,
    /// ns since boot.
    pub done: Option<u64>,
    /// The tool.
    pub tool: String,
    /// The MCP server.
    pub server: Option<String>,
    /// The beginning of its arguments.
    pub input: String,
    /// The paths that its arguments name; `None`: not known.
    pub paths: Option<Vec<String>>,
    /// Whether it failed.
    pub is_error: Option<bool>,
    /// The beginning of its result.
    pub output: Option<String>,
    /// A process was tagged for it.
    pub tagged: bool,
    /// Another process says that it is the call's.
    pub contested: bool,
    /// What a hook of the agent's says of it.
    pub hook: Option<HookWord>,
}

pub(crate) const CALL: &str =
    "a.row, a.agent, a.id, a.at, a.ended, a.began, a.done, a.tool, a.server, a.input, a.is_error, a.output,
    EXISTS (SELECT 1 FROM call_tags t WHERE t.call = a.row), a.key, a.given, a.renamed, a.container,
    a.paths, a.contested, a.hook_at, a.hook_failed, a.hook_session FROM agent_calls a";

/// Whether a row is of the agent ?2, or of a run under the profile of that name: of `PROFILE@UID`, which ends before `PROFILEA`.
pub(crate) const NAMED: &str = "(agent = ?2 OR (agent > ?2 || '@' AND agent < ?2 || 'A'))";

/// The question for an agent's calls with one value in a column.
fn calls_by(column: &str) -> String {
    format!(
        "SELECT {CALL} WHERE (?1 = 0 OR a.uid = ?1) AND a.agent = ?2 AND a.{column} IS ?3 AND a.container IS ?5
         ORDER BY a.row LIMIT ?4"
    )
}

pub(crate) fn call(row: &Row<'_>) -> rusqlite::Result<AgentCall> {
    Ok(AgentCall {
        row: row.get(0)?,
        agent: row.get(1)?,
        id: row.get(2)?,
        at: row.get(3)?,
        ended: row.get(4)?,
        began: row.get::<_, i64>(5)?.cast_unsigned(),
        done: row.get::<_, Option<i64>>(6)?.map(i64::cast_unsigned),
        tool: row.get(7)?,
        server: row.get(8)?,
        input: row.get(9)?,
        is_error: row.get(10)?,
        output: row.get(11)?,
        tagged: row.get(12)?,
        key: row.get(13)?,
        renamed: match (row.get(14)?, row.get(15)?) {
            (Some(given), Some(why)) => Some(Renamed { given, why }),
            _ => None,
        },
        container: row.get(16)?,
        // What cannot be read was not written here.
        paths: row.get::<_, Option<String>>(17)?.and_then(|paths| serde_json::from_str(&paths).ok()),
        contested: row.get(18)?,
        hook: hooks::word(row, 19)?,
    })
}

/// As the store has it.
fn word(via: Via) -> &'static str {
    match via {
        Via::Send => "send",
        Via::Http => "http",
    }
}

/// Writes a report.
pub(crate) fn store(step: &Transaction<'_>, report: &CheckedReport) -> rusqlite::Result<()> {
    let CheckedReport { agent, uid, container, at, payload } = report;
    let run =
        |text: &str, values: &[&dyn rusqlite::ToSql]| step.prepare_cached(text)?.execute(values).map(drop);
    if let Some(container) = container {
        // By whichever report comes first: one of them may have found no room.
        run_lines::opened(step, (container, agent), *uid, *at)?;
    }
    match payload {
        CheckedPayload::LineOpened => Ok(()),
        CheckedPayload::LineClosed { moment } => match container {
            Some(container) => run_lines::closed(step, container, *moment, *at),
            None => Ok(()),
        },
        CheckedPayload::Tagged { tag, container } => run(
            "INSERT OR IGNORE INTO call_tags (tag, agent, uid, at, container) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![tag.cast_signed(), agent, uid, at, container],
        ),
        // What nobody can answer any more is not in flight: kept so, it would make every later event's call unsure.
        CheckedPayload::Event(AgentEvent::Began { moment }) => {
            run(
                "UPDATE agent_calls SET ended = ?2, done = max(began, ?3) WHERE agent = ?1 AND container IS ?4 AND ended IS NULL",
                params![agent, at, moment.cast_signed(), container],
            )?;
            run(
                "UPDATE intents SET ended = ?2, error = 'the agent''s worker ended'
                 WHERE agent = ?1 AND container IS ?3 AND ended IS NULL",
                params![agent, at, container],
            )
        }
        // Said again: a client tries again what had failed.
        CheckedPayload::Event(AgentEvent::Intent { id, uid: sender, text, via, session }) => run(
            "INSERT INTO intents (agent, uid, id, at, sender, text, via, session, container) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT (agent, id) DO UPDATE SET ended = NULL, error = NULL WHERE container IS excluded.container",
            params![agent, uid, id, at, sender, text, word(*via), session, container],
        ),
        CheckedPayload::Event(AgentEvent::IntentEnded { id, error, moment }) => {
            run(
                "UPDATE intents SET ended = ?3, error = ?4 WHERE agent = ?1 AND id = ?2 AND container IS ?5 AND ended IS NULL",
                params![agent, id, at, error, container],
            )?;
            run(
                "UPDATE agent_calls SET ended = ?3, done = max(began, ?4)
                 WHERE agent = ?1 AND intent = ?2 AND container IS ?5 AND ended IS NULL",
                params![agent, id, at, moment.cast_signed(), container],
            )
        }
        CheckedPayload::Event(AgentEvent::Call {
            key,
            id,
            renamed,
            intent,
            tool,
            server,
            input,
            paths,
            moment,
        }) => {
            let (shown, renamed) = unique(step, agent, (key, id), renamed.clone())?;
            let began = moment.cast_signed();
            let (given, why) = renamed.map(|Renamed { given, why }| (given, why)).unzip();
            let paths = paths.as_ref().and_then(|paths| serde_json::to_string(paths).ok());
            run(
                "INSERT INTO agent_calls (agent, uid, id, intent, at, began, tool, server, input, key, given, renamed, container, paths)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT (agent, key) DO NOTHING",
                params![agent, uid, shown, intent, at, began, tool, server, input, key, given, why, container, paths],
            )?;
            if let Some(container) = container {
                run_lines::called(step, container, *moment)?;
            }
            // By the provider's id: it is what an MCP client was told.
            let named = given.as_deref().unwrap_or(&shown);
            intents::told_late(step, *uid, named, (*moment, *at))
        }
        CheckedPayload::Event(AgentEvent::CallEnded { key, is_error, output, moment }) => run(
            "UPDATE agent_calls SET ended = ?3, is_error = ?4, output = ?5, done = max(began, ?6)
             WHERE agent = ?1 AND key = ?2 AND container IS ?7 AND ended IS NULL",
            params![agent, key, at, is_error, output, moment.cast_signed(), container],
        ),
        // Only a tag that the core gave to this very agent, of a run in its very container, and once.
        CheckedPayload::Event(AgentEvent::Tagged { key, tag, matched }) => run(
            "UPDATE call_tags SET matched = ?5,
                call = (SELECT row FROM agent_calls WHERE agent = ?1 AND key = ?2 AND container IS ?4)
             WHERE tag = ?3 AND agent = ?1 AND (?4 IS NULL OR container = ?4) AND call IS NULL",
            params![agent, key, tag.cast_signed(), container, matched],
        ),
        CheckedPayload::Event(AgentEvent::Contested { key }) => run(
            "UPDATE agent_calls SET contested = 1 WHERE agent = ?1 AND key = ?2 AND container IS ?3",
            params![agent, key, container],
        ),
        CheckedPayload::Event(AgentEvent::HookDone { key, session, failed, moment: _ }) => {
            hooks::done(step, report, key, (*failed, session.as_deref()))
        }
        CheckedPayload::Event(AgentEvent::Lost { count, from, to }) => match container {
            Some(_) => run_lines::lost(step, report, *count, Gap { from: *from, to: *to }),
            None => Ok(()),
        },
        CheckedPayload::Event(AgentEvent::Refused(Refusal { what, why, pid, uid: peer, container: of_peer })) => run(
            "INSERT INTO refusals (agent, uid, at, what, why, pid, peer_uid, container, run)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![agent, uid, at, what, why, pid, peer, of_peer, container],
        ),
    }
}

/// What a call is shown as. Of a client's calls, and over a worker's lives, only the record knows which ids were had: one
/// that comes again is replaced, or an event's call would be two.
fn unique(
    step: &Transaction<'_>,
    agent: &str,
    (key, id): (&str, &str),
    renamed: Option<Renamed>,
) -> rusqlite::Result<(String, Option<Renamed>)> {
    let had = step
        .prepare_cached("SELECT 1 FROM agent_calls WHERE agent = ?1 AND id = ?2 AND key IS NOT ?3")?
        .exists(params![agent, id, key])?;
    if !had {
        return Ok((id.to_owned(), renamed));
    }
    let again = || Renamed {
        given: id[..id.floor_char_boundary(MAX_GIVEN)].to_owned(),
        why: "the id was used before".to_owned(),
    };
    Ok((format!("call_{key}"), renamed.or_else(|| Some(again()))))
}

/// Deletes what is too old or too much, in rows or in bytes. Above 0: perhaps not all that is too many bytes.
pub(crate) fn retain(step: &Transaction<'_>, oldest: i64, bytes: u64) -> rusqlite::Result<usize> {
    bounded_by(step, oldest, MOST_ROWS, STEP)?;
    run_lines::forget_gaps(step)?;
    agent_bytes::retain(step, bytes)
}

fn bounded_by(step: &Transaction<'_>, oldest: i64, most: i64, ahead: i64) -> rusqlite::Result<()> {
    // Tags are random numbers: their order is that of their times.
    for (table, key, order) in [
        ("intents", "row", "row"),
        ("agent_calls", "row", "row"),
        ("refusals", "id", "id"),
        ("call_tags", "tag", "at"),
        ("run_lines", "container", "at"),
    ] {
        // A run that reports may go on for longer, and what is missing of it is to be known as long.
        let over = if table == "run_lines" { "AND until IS NOT NULL" } else { "" };
        step.execute(&format!("DELETE FROM {table} WHERE at < ?1 {over}"), [oldest])?;
        let count: i64 = step.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0))?;
        if count <= most + ahead {
            continue;
        }
        let by_agent = format!("SELECT agent, count(*) FROM {table} GROUP BY agent ORDER BY 2 DESC");
        let of_each: Vec<(String, i64)> = rows(step, &by_agent, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let share = agent_bytes::share(of_each.iter().map(|(_, count)| *count), most);
        let cut = format!(
            "DELETE FROM {table} WHERE {key} IN (SELECT {key} FROM {table} WHERE agent = ?1 ORDER BY {order} LIMIT ?2)"
        );
        for (agent, count) in of_each.iter().filter(|(_, count)| *count > share) {
            step.execute(&cut, params![agent, count - share])?;
        }
    }
    Ok(())
}

impl Reader {
    /// What a name stands for: an agent; calls, by key, id or the provider's id; intents, by their beginning. Every one of
    /// that name, the newest `most`, oldest first: none is chosen from several. Empty: nothing that the viewer may see.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn trace_targets(
        &self,
        viewer: Viewer,
        what: Option<&str>,
        most: u32,
    ) -> Result<Vec<TraceTarget>, Error> {
        let Some(what) = what else { return Ok(vec![TraceTarget::All]) };
        let rows = |text: &str| -> Result<Vec<i64>, Error> {
            let found = rows(self.connection(), text, params![viewer.0, what, most], |row| row.get(0));
            let mut found = found.map_err(sql("find what to trace"))?;
            found.reverse();
            Ok(found)
        };
        let is_agent =
            rows(&format!("SELECT 1 FROM (SELECT uid, agent FROM intents UNION ALL SELECT uid, agent FROM agent_calls
             UNION ALL SELECT uid, agent FROM refusals) WHERE {NAMED} AND (?1 = 0 OR uid = ?1) LIMIT min(1, ?3)"))?;
        if !is_agent.is_empty() {
            return Ok(vec![TraceTarget::Agent(what.to_owned())]);
        }
        // A key is ours and names one call, whatever a provider calls another.
        let calls = rows(
            "SELECT row FROM agent_calls WHERE key = ?2 AND (?1 = 0 OR uid = ?1) ORDER BY row DESC LIMIT ?3",
        )?;
        if !calls.is_empty() {
            return Ok(calls.into_iter().map(TraceTarget::Call).collect());
        }
        let calls = rows(
            "SELECT row FROM agent_calls WHERE (id = ?2 OR given = ?2) AND (?1 = 0 OR uid = ?1)
             ORDER BY row DESC LIMIT ?3",
        )?;
        if !calls.is_empty() {
            return Ok(calls.into_iter().map(TraceTarget::Call).collect());
        }
        let intents = rows(
            "SELECT row FROM intents WHERE substr(id, 1, length(?2)) = ?2 AND (?1 = 0 OR uid = ?1)
             ORDER BY row DESC LIMIT ?3",
        )?;
        Ok(intents.into_iter().map(TraceTarget::Intent).collect())
    }

    /// The newest intents of a target, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn intents(
        &self,
        viewer: Viewer,
        target: &TraceTarget,
        limit: u32,
    ) -> Result<Vec<AgentIntent>, Error> {
        let fail = sql("read intents");
        // A call that no intent asked for stands alone.
        if let TraceTarget::Call(row) = target {
            let alone =
                "SELECT agent, at, ended, container FROM agent_calls WHERE row = ?1 AND (intent IS NULL OR NOT EXISTS
                 (SELECT 1 FROM intents i WHERE i.agent = agent_calls.agent AND i.id = agent_calls.intent
                  AND i.container IS agent_calls.container))";
            let alone = self.connection().query_row(alone, [row], |row| {
                Ok(AgentIntent {
                    id: None,
                    agent: row.get(0)?,
                    container: row.get(3)?,
                    at: row.get(1)?,
                    ended: row.get(2)?,
                    sender: None,
                    via: Via::default(),
                    session: None,
                    text: String::new(),
                    error: None,
                })
            });
            if let Some(intent) = alone.optional().map_err(&fail)? {
                return Ok(vec![intent]);
            }
        }
        let (which, value): (_, Box<dyn rusqlite::ToSql>) = match target {
            TraceTarget::All => ("?2 = 0", Box::new(0)),
            TraceTarget::Agent(name) => (NAMED, Box::new(name.clone())),
            TraceTarget::Intent(row) => ("row = ?2", Box::new(*row)),
            TraceTarget::Call(row) => (
                "row = (SELECT i.row FROM intents i JOIN agent_calls c ON c.agent = i.agent AND c.intent = i.id
                 AND c.container IS i.container WHERE c.row = ?2)",
                Box::new(*row),
            ),
        };
        let text = format!(
            "SELECT id, agent, at, ended, sender, text, error, via = 'http', session, container FROM intents WHERE (?1 = 0 OR uid = ?1) AND {which}
             ORDER BY row DESC LIMIT ?3"
        );
        let intents = rows(self.connection(), &text, params![viewer.0, value, limit], |row| {
            Ok(AgentIntent {
                id: row.get(0)?,
                agent: row.get(1)?,
                at: row.get(2)?,
                ended: row.get(3)?,
                sender: row.get(4)?,
                text: row.get(5)?,
                error: row.get(6)?,
                via: if row.get(7)? { Via::Http } else { Via::Send },
                session: row.get(8)?,
                container: row.get(9)?,
            })
        });
        let mut all = intents.map_err(&fail)?;
        all.reverse();
        Ok(all)
    }

    /// The calls of an intent, oldest first; only one of them, if `only` says so.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn agent_calls(
        &self,
        viewer: Viewer,
        intent: &AgentIntent,
        only: Option<i64>,
        most: u32,
    ) -> Result<Vec<AgentCall>, Error> {
        // Two questions and not one with an OR, which would look at all calls of the agent for each of its intents.
        let (which, value): (_, &dyn rusqlite::ToSql) = match &only {
            Some(row) => ("row", row),
            None => ("intent", &intent.id),
        };
        let values = params![viewer.0, intent.agent, value, most, intent.container];
        rows(self.connection(), &calls_by(which), values, call).map_err(sql("read tool calls"))
    }

    /// Events of the tree that was tagged for a call, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn events_tagged(&self, viewer: Viewer, call: i64, most: u32) -> Result<Vec<Stored>, Error> {
        let select = format!(
            "SELECT {} WHERE e.call IN (SELECT tag FROM call_tags WHERE call = ?1) AND e.call <> 0 AND t.tag IS NOT NULL
             AND (?2 = 0 OR c.uid = ?2) ORDER BY e.id LIMIT ?3",
            read::COLUMNS
        );
        let values = params![call, viewer.0, most];
        rows(self.connection(), &select, values, read::stored).map_err(sql("read a call's events"))
    }

    /// Untagged events of an agent's containers while one of its calls was in flight, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn events_beside(&self, viewer: Viewer, call: &AgentCall, most: u32) -> Result<Vec<Stored>, Error> {
        // A run's calls are of its one container.
        let (which, value): (_, &dyn rusqlite::ToSql) = match &call.container {
            Some(container) => ("public = ?1", container),
            // Root's containers may be of anybody's agent, another user's are not.
            None => (
                "(profile, uid) IN (SELECT agent, uid FROM agent_calls WHERE row = ?1
                     UNION ALL SELECT agent, 0 FROM agent_calls WHERE row = ?1)
                 AND public NOT IN (SELECT container FROM run_lines)",
                &call.row,
            ),
        };
        let select = format!(
            "SELECT {} WHERE e.container IN (SELECT id FROM containers WHERE {which} AND (?2 = 0 OR uid = ?2))
             AND e.moment BETWEEN ?3 AND ?4 AND e.call = 0 ORDER BY e.moment, e.id LIMIT ?5",
            read::COLUMNS
        );
        let done = call.done.and_then(|done| i64::try_from(done).ok()).unwrap_or(i64::MAX);
        let values = params![value, viewer.0, call.began.cast_signed(), done, most];
        rows(self.connection(), &select, values, read::stored).map_err(sql("read a call's events"))
    }
}

#[cfg(test)]
mod tests;
