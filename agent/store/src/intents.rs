//! Calls of MCP sessions and the intents they belong to: by what a call names, where it names something; else by the
//! grouping of its client's calls.

use super::{Position, client_groups::Client, connection::rows};
use ringfence_base::clock::rfc3339;
use ringfence_session::rows::{
    ingest::CallRow,
    intent::{Grouping, IntentAttribution, Source},
};
use ringfence_wire::tool_call::{Named as _, Outcome};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

/// The last call of a client's that is in an intent that time made. A few hundred of its user's are looked at, however many
/// sessions those have: whose last calls all name something, or are long ago, begins a new intent.
const LAST: &str = "
    SELECT i.intent_id, u.requested_at,
        (SELECT max(sequence_order) FROM intent_tool_calls x WHERE x.intent_id = i.intent_id)
    FROM (SELECT id, requested_at FROM calls_by_user WHERE uid = ?1 ORDER BY requested_at DESC, id DESC LIMIT 256) u
        CROSS JOIN tool_calls c CROSS JOIN sessions s CROSS JOIN intent_tool_calls i CROSS JOIN intent_contexts n
    WHERE c.id = u.id AND s.id = c.session_id AND (s.id = ?3 OR s.client = ?2)
        AND i.tool_call_id = u.id AND n.id = i.intent_id AND n.source IN ('time', 'tool_use')
    ORDER BY u.requested_at DESC LIMIT 1";
/// The last call of a user's that was given an id. The plus keeps SQLite from looking at all sessions of the user.
const EARLIER: &str = "
    SELECT n.id, n.evidence FROM tool_calls c JOIN sessions s ON s.id = c.session_id
        JOIN intent_tool_calls i ON i.tool_call_id = c.id JOIN intent_contexts n ON n.id = i.intent_id
    WHERE c.tool_use = ?1 AND +s.uid = ?2 AND c.id <> ?3 ORDER BY c.requested_at DESC LIMIT 1";
/// An agent's calls that were given an id, the newest first. The pluses keep SQLite from looking at all calls in that order, or at
/// all of the user's.
const ASKED: &str = "
    SELECT i.agent, i.id, i.text, i.via = 'http', a.ended IS NULL
    FROM agent_calls a JOIN intents i ON i.agent = a.agent AND i.id = a.intent AND i.container IS a.container
    WHERE (a.id = ?1 OR a.given = ?1) AND +a.uid = ?2 AND i.uid = ?2 ORDER BY +a.row DESC LIMIT 100";
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

/// The name of the client that a session is of, if that is known.
pub(crate) fn client_of(connection: &Connection, session: &str) -> rusqlite::Result<Option<String>> {
    let found = connection
        .prepare_cached("SELECT client FROM sessions WHERE id = ?1")?
        .query_row([session], |row| row.get(0));
    found.optional().map(Option::flatten)
}

/// The last intent of a client's that time made: what follows may belong to it.
pub(crate) fn last(connection: &Connection, client: &Client) -> rusqlite::Result<Grouping> {
    let (uid, name, session) = match client {
        Client::Process { uid, name } => (uid, Some(name), None),
        Client::Session { uid, session } => (uid, None, Some(session)),
    };
    let last: Option<(String, String, i64)> = connection
        .query_row(LAST, params![uid, name, session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    Ok(match last {
        Some((intent, at, calls)) => {
            let at = at.parse::<jiff::Timestamp>().map_or(0, jiff::Timestamp::as_microsecond);
            Grouping::resume(intent, at, calls)
        }
        None => Grouping::default(),
    })
}

/// Stores a call and where it belongs; whether it is new.
pub(crate) fn insert_call(
    step: &Transaction<'_>,
    at: &Position<'_>,
    row: &CallRow,
    grouping: &mut Grouping,
) -> rusqlite::Result<bool> {
    let judged = &row.judged;
    let list = |texts: &[String]| match texts {
        [] => "[]".to_owned(),
        texts => serde_json::Value::from(texts).to_string(),
    };
    let exceptions =
        (!judged.exceptions.is_empty()).then(|| serde_json::json!(judged.exceptions).to_string());
    let decision = row.blocked.then_some(Outcome::Blocked.name());
    let inserted = step
        .prepare_cached(
            "INSERT OR IGNORE INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, risk_score,
                 risk_reasons, requested_at, policy_action, rules, decision, began, tool_use, exceptions)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
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
            decision,
            row.began.map(u64::cast_signed),
            row.evidence.tool_use,
            exceptions
        ])?;
    if inserted == 0 {
        // Read again after a restart: it has its intent.
        return Ok(false);
    }
    let (IntentAttribution { intent, order, source, prompt }, evidence) = match named(step, at.uid, row)? {
        Some((attribution, evidence)) => (attribution, evidence),
        None => (grouping.attribute(&judged.call, row.at), None),
    };
    place(step, (&intent, at.session, &rfc3339(row.at)), (source, prompt, evidence), (&judged.call, order))?;
    Ok(true)
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
    let found: Vec<(Asked, bool)> = rows(step, ASKED, params![tool_use, uid], |row| {
        let (agent, id): (String, String) = (row.get(0)?, row.get(1)?);
        let (source, name) =
            if row.get(3)? { (Source::Client, "http") } else { (Source::Runtime, "runtime") };
        Ok(((source, format!("{name} {agent} {id}"), row.get(2)?), row.get(4)?))
    })?;
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
    let values = params![tool_use, uid, moment.cast_signed(), rfc3339(at.saturating_sub(LATE))];
    let calls: Vec<(String, String, String, String)> =
        rows(step, LATER, values, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
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
mod tests;
