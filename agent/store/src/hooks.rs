//! What agents' own hooks say of calls: their containers' word, kept apart from what their models' endpoints saw.

use ringfence_events::report::CheckedReport;
use ringfence_wire::trace::Renamed;
use rusqlite::{Row, Transaction, params};

/// What a hook of an agent's says of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookWord {
    /// When, µs since 1970.
    pub at: i64,
    /// Whether the call failed; `None`: the agent does not say.
    pub failed: Option<bool>,
    /// The agent's session.
    pub session: Option<String>,
    /// Nothing else is known of the call.
    pub only: bool,
}

/// A call of which only a hook tells.
pub(crate) struct Alone<'a> {
    pub key: &'a str,
    /// No other call of the agent's has it.
    pub id: &'a str,
    /// What it replaces.
    pub renamed: Option<&'a Renamed>,
    pub tool: &'a str,
    /// ns since boot.
    pub moment: u64,
}

/// What four columns say, the first of which is at this place.
pub(crate) fn word(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<HookWord>> {
    let Some(at) = row.get(first)? else { return Ok(None) };
    let (failed, session) = (row.get(first + 1)?, row.get(first + 2)?);
    Ok(Some(HookWord { at, failed, session, only: row.get(first + 3)? }))
}

/// A hook says that a call is over. What is said first stays: whoever says it again may be anybody in the container.
pub(crate) fn done(
    step: &Transaction<'_>,
    report: &CheckedReport,
    key: &str,
    (failed, session): (Option<bool>, Option<&str>),
) -> rusqlite::Result<()> {
    step.prepare_cached(
        "UPDATE agent_calls SET hook_at = ?4, hook_failed = ?5, hook_session = ?6
         WHERE agent = ?1 AND key = ?2 AND container IS ?3 AND hook_at IS NULL",
    )?
    .execute(params![report.agent, key, report.container, report.at, failed, session])
    .map(drop)
}

/// The same of a call that nothing else tells of. It has no arguments, and of its time only the end is known: no event is
/// attributed to it, and it makes none of another call's less sure.
pub(crate) fn alone(
    step: &Transaction<'_>,
    report: &CheckedReport,
    call: &Alone<'_>,
    (failed, session): (Option<bool>, Option<&str>),
) -> rusqlite::Result<()> {
    let CheckedReport { agent, uid, container, at, .. } = report;
    let Alone { key, id, renamed, tool, moment } = call;
    let (given, why) = renamed.map(|renamed| (&renamed.given, &renamed.why)).unzip();
    step.prepare_cached(
        "INSERT INTO agent_calls (agent, uid, container, key, id, given, renamed, tool, at, ended, began, done, input,
             hook_at, hook_failed, hook_session, hook_only)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?10, '', ?9, ?11, ?12, 1) ON CONFLICT (agent, key) DO NOTHING",
    )?
    .execute(params![
        agent,
        uid,
        container,
        key,
        id,
        given,
        why,
        tool,
        at,
        moment.cast_signed(),
        failed,
        session
    ])
    .map(drop)
}
