//! One list of tool calls, whatever carried them: those of agents' models, and MCP calls.

use super::{
    Error, Reader, Viewer,
    connection::rows,
    hooks::{self, HookWord},
    sql,
};
use ringfence_base::clock::{now_micros, rfc3339};
use ringfence_wire::{
    calls::{CallResult, CallTie, CallsQuery, KnownBy, ListedCall, MAX_CALLS},
    tool_call::{Named as _, Outcome},
};
use rusqlite::{Row, params};

/// Calls unless more are asked for.
const CALLS: u32 = 50;
/// Longest result of an MCP call in which it is looked whether it is an error, bytes.
const MOST_RESULT: u32 = 64 << 10;

/// Rows of agents' calls: of all.
const ALL: &str = "SELECT row FROM agent_calls WHERE ?1 = ?1 AND ?2 IS ?2 ORDER BY row DESC LIMIT ?3";
/// Of one user's.
const USERS: &str = "SELECT row FROM agent_calls WHERE uid = ?1 AND ?2 IS ?2 ORDER BY row DESC LIMIT ?3";
/// Of one agent, and of the runs under the profile of that name: of `PROFILE@UID`, which ends before `PROFILEA`.
const NAMED: &str = "
    SELECT row FROM (SELECT row FROM agent_calls WHERE ?1 = ?1 AND agent = ?2 ORDER BY at DESC LIMIT ?3)
    UNION ALL SELECT row FROM (SELECT row FROM agent_calls WHERE agent > ?2 || '@' AND agent < ?2 || 'A'
        ORDER BY at DESC LIMIT ?3)";
/// The same of one user's, whose runs all end with the user's id. The indexes are named: which is best here SQLite cannot know.
const USERS_NAMED: &str = "
    SELECT row FROM (SELECT row FROM agent_calls INDEXED BY agent_calls_by_user_and_agent
        WHERE uid = ?1 AND agent = ?2 ORDER BY at DESC LIMIT ?3)
    UNION ALL SELECT row FROM (SELECT row FROM agent_calls INDEXED BY agent_calls_by_user_and_agent
        WHERE uid = ?1 AND agent = ?2 || '@' || ?1 ORDER BY at DESC LIMIT ?3)";

/// MCP calls: of all. Their times are what their sessions say: those of which it is not yet that time (?3) take no place of the others.
const ALL_MCP: &str = "
    SELECT id FROM (SELECT id FROM tool_calls WHERE requested_at <= ?3 ORDER BY requested_at DESC LIMIT ?2)
    UNION ALL SELECT id FROM (SELECT id FROM tool_calls WHERE requested_at > ?3 ORDER BY requested_at DESC LIMIT ?2)";
/// Of one user's.
const USERS_MCP: &str = "
    SELECT id FROM (SELECT id FROM calls_by_user WHERE uid = ?1 AND requested_at <= ?3
        ORDER BY requested_at DESC, id DESC LIMIT ?2)
    UNION ALL SELECT id FROM (SELECT id FROM calls_by_user WHERE uid = ?1 AND requested_at > ?3
        ORDER BY requested_at DESC, id DESC LIMIT ?2)";

/// The question for the agents' calls that one of the above names.
fn of_agents(which: &str) -> String {
    format!(
        "SELECT a.at, a.agent, a.container, a.id, a.key, a.tool, a.server, a.ended IS NOT NULL, a.is_error, a.contested,
             (SELECT min(t.matched) FROM call_tags t WHERE t.call = a.row), a.hook_at, a.hook_failed, a.hook_session
         FROM agent_calls a WHERE a.row IN ({which}) ORDER BY a.at DESC, a.row DESC LIMIT ?3"
    )
}

/// The same for MCP calls. Names can have any length there.
fn of_mcp(which: &str) -> String {
    format!(
        "SELECT c.requested_at, s.container, c.session_id, substr(c.tool_use, 1, 256), c.id, substr(c.tool_name, 1, 256),
             substr(s.server_name, 1, 256),
             coalesce(nullif(c.decision, 'approved'), iif(c.cancelled_at IS NOT NULL, 'cancelled_in_flight', NULL), c.task_answer,
                 c.answer, c.decision),
             c.responded_at IS NOT NULL, s.ended_at IS NOT NULL,
             CASE WHEN c.answer IS NOT NULL THEN coalesce(c.task_answer, c.answer) IN ('error', 'tool_error')
                 WHEN c.error IS NOT NULL THEN 1 WHEN octet_length(c.result) > {MOST_RESULT} THEN NULL
                 WHEN json_valid(c.result) THEN json_extract(c.result, '$.isError') IS 1 ELSE 0 END,
             (SELECT b.written FROM session_bounds b WHERE b.session_id = c.session_id)
         FROM tool_calls c JOIN sessions s ON s.id = c.session_id WHERE c.id IN ({which})
         ORDER BY c.requested_at DESC, c.id DESC"
    )
}

impl Reader {
    /// Tool calls, the newest first: one more than are asked for, where there are more.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn call_list(&self, viewer: Viewer, query: &CallsQuery) -> Result<(Vec<ListedCall>, bool), Error> {
        let limit = query.limit.unwrap_or(CALLS).min(MAX_CALLS);
        let which = match (viewer.0, &query.agent) {
            (0, None) => ALL,
            (_, None) => USERS,
            (0, Some(_)) => NAMED,
            (_, Some(_)) => USERS_NAMED,
        };
        // One more, to know whether there are more.
        let most = limit + 1;
        let mut calls =
            rows(self.connection(), &of_agents(which), params![viewer.0, query.agent, most], of_agent)
                .map_err(sql("list agents' calls"))?;
        if query.agent.is_none() {
            let which = if viewer.0 == 0 { ALL_MCP } else { USERS_MCP };
            let now = now_micros();
            let values = params![viewer.0, most, rfc3339(now)];
            let mcp = rows(self.connection(), &of_mcp(which), values, |row| of_session(row, now));
            calls.extend(mcp.map_err(sql("list MCP calls"))?);
            // All are of one form, which is ordered as the times are; those of one time stay in their order.
            calls.sort_by(|a, b| b.ts.cmp(&a.ts));
        }
        let more = calls.len() > limit as usize;
        calls.truncate(limit as usize);
        Ok((calls, more))
    }
}

fn of_agent(row: &Row<'_>) -> rusqlite::Result<ListedCall> {
    let (is_over, is_error): (bool, Option<bool>) = (row.get(7)?, row.get(8)?);
    let hook = hooks::word(row, 11)?.map(HookWord::traced);
    let (is_contested, matched): (bool, Option<bool>) = (row.get(9)?, row.get(10)?);
    Ok(ListedCall {
        ts: rfc3339(row.get(0)?),
        agent: Some(row.get(1)?),
        container: row.get(2)?,
        mcp_session: None,
        call: Some(row.get(3)?),
        key: row.get(4)?,
        tool: row.get(5)?,
        server: row.get(6)?,
        by: if hook.is_some() { KnownBy::Both } else { KnownBy::Endpoint },
        result: CallResult::of_agent(is_error, hook.as_ref(), is_over),
        is_error,
        tie: match (is_contested, matched) {
            (true, _) => CallTie::Ambiguous,
            (false, Some(false)) => CallTie::Exact,
            (false, Some(true)) => CallTie::Matched,
            (false, None) => CallTie::None,
        },
        hook,
    })
}

/// `now`: µs since 1970.
fn of_session(row: &Row<'_>, now: i64) -> rusqlite::Result<ListedCall> {
    // Whoever writes a journal may say any time in it, but it was not later than when the journal was read.
    let read: Option<i64> = row.get(11)?;
    let latest = rfc3339(read.map_or(now, |read| read.min(now)));
    let (outcome, is_answered): (Option<String>, bool) = (row.get(7)?, row.get(8)?);
    let (is_over, is_error): (bool, Option<bool>) = (row.get(9)?, row.get(10)?);
    let result = match outcome.as_deref().and_then(Outcome::from_name) {
        Some(Outcome::Blocked | Outcome::Denied | Outcome::Timeout) => CallResult::Denied,
        Some(Outcome::Cancelled | Outcome::Ended | Outcome::CancelledInFlight | Outcome::Killed) => {
            CallResult::None
        }
        Some(Outcome::Task) => {
            if is_over {
                CallResult::None
            } else {
                CallResult::Waiting
            }
        }
        Some(
            Outcome::Approved
            | Outcome::Answered
            | Outcome::ToolError
            | Outcome::Error
            | Outcome::TaskAnswered,
        )
        | None => match (is_answered, is_error) {
            (true, Some(true)) => CallResult::Failed,
            (true, Some(false)) => CallResult::Ok,
            (false, _) if !is_over => CallResult::Waiting,
            (true, None) | (false, _) => CallResult::None,
        },
    };
    Ok(ListedCall {
        ts: row.get::<_, String>(0)?.min(latest),
        agent: None,
        container: row.get(1)?,
        mcp_session: Some(row.get(2)?),
        call: row.get(3)?,
        key: Some(row.get(4)?),
        tool: row.get(5)?,
        server: Some(row.get(6)?),
        by: KnownBy::Mcp,
        result,
        is_error: is_error.filter(|_| is_answered),
        hook: None,
        tie: CallTie::None,
    })
}

#[cfg(test)]
mod tests;
