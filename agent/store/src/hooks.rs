//! What agents' own hooks say of calls: their containers' word, kept apart from what their models' endpoints saw.

use ringfence_base::clock::rfc3339;
use ringfence_events::report::CheckedReport;
use ringfence_wire::trace::TracedHook;
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
}

impl HookWord {
    /// The same as it is shown.
    #[must_use]
    pub fn traced(self) -> TracedHook {
        TracedHook { ts: rfc3339(self.at), failed: self.failed, session: self.session }
    }
}

/// What three columns say, the first of which is at this place.
pub(crate) fn word(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<HookWord>> {
    let Some(at) = row.get(first)? else { return Ok(None) };
    Ok(Some(HookWord { at, failed: row.get(first + 1)?, session: row.get(first + 2)? }))
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
