//! Containers whose runs report what their agents are asked and call: by the core's word which they are, and up to when; and of
//! which times reports are lost.

use super::{
    Error,
    connection::{begin, rows},
    sql, turn,
};
use ringfence_base::clock;
use ringfence_events::{report::CheckedReport, ties::Gap};
use rusqlite::{Connection, Transaction, params};

/// Gaps of one container. One more, and the newest is as long as both.
const MOST_GAPS: i64 = 32;

/// Open lines, and the last moment that was said on each.
const OPEN: &str = "
    SELECT l.container, coalesce((SELECT max(max(c.began, coalesce(c.done, 0))) FROM agent_calls c
        WHERE c.container = l.container), 0)
    FROM run_lines l WHERE l.until IS NULL";

/// A run reports of this container.
pub(crate) fn opened(
    step: &Transaction<'_>,
    (container, agent): (&str, &str),
    uid: u32,
    at: i64,
) -> rusqlite::Result<()> {
    step.prepare_cached(
        "INSERT OR IGNORE INTO run_lines (container, agent, uid, at) VALUES (?1, ?2, ?3, ?4)",
    )?
    .execute(params![container, agent, uid, at])
    .map(drop)
}

/// A call of it began, ns since boot: the first of them is known for as long as the run is.
pub(crate) fn called(step: &Transaction<'_>, container: &str, began: u64) -> rusqlite::Result<()> {
    step.prepare_cached("UPDATE run_lines SET first = min(coalesce(first, ?2), ?2) WHERE container = ?1")?
        .execute(params![container, i64::try_from(began).unwrap_or(i64::MAX)])
        .map(drop)
}

/// It reports no more since `moment`, ns since boot: what was under way has an end (`at`, µs since 1970), and whatever comes
/// later is not known.
pub(crate) fn closed(step: &Transaction<'_>, container: &str, moment: u64, at: i64) -> rusqlite::Result<()> {
    let moment = moment.cast_signed();
    step.prepare_cached(
        "UPDATE agent_calls SET ended = ?2, done = max(began, ?3) WHERE container = ?1 AND ended IS NULL",
    )?
    .execute(params![container, at, moment])?;
    step.prepare_cached(
        "UPDATE intents SET ended = ?2, error = 'the run reports no more' WHERE container = ?1 AND ended IS NULL
         AND agent = (SELECT agent FROM run_lines WHERE container = ?1)",
    )?
    .execute(params![container, at])?;
    step.prepare_cached("UPDATE run_lines SET until = ?2 WHERE container = ?1 AND until IS NULL")?
        .execute(params![container, moment])
        .map(drop)
}

/// Reports of a run are lost. One gap of a run's worker is open at a time: said again, it is the same.
pub(crate) fn lost(
    step: &Transaction<'_>,
    report: &CheckedReport,
    count: u64,
    gap: Gap,
) -> rusqlite::Result<()> {
    let CheckedReport { agent, uid, container, at, .. } = report;
    let number = |moment: u64| i64::try_from(moment).unwrap_or(i64::MAX);
    let (from, to) = (number(gap.from), gap.to.map(number));
    // What the core lost can be of any time, and is not over where the worker says that its own is.
    let is_of_any_time = from == 0;
    let extend = |which: &str| {
        let text = format!(
            "UPDATE OR REPLACE run_gaps SET began = min(began, ?2), ended = CASE WHEN ?3 IS NULL THEN NULL ELSE max(?3, coalesce(ended, 0)) END
             WHERE container = ?1 AND began > 0 AND {which}"
        );
        step.prepare_cached(&text)?.execute(params![container, from, to])
    };
    if !is_of_any_time && extend("ended IS NULL")? > 0 {
        return Ok(());
    }
    let had: i64 = step
        .prepare_cached("SELECT count(*) FROM run_gaps WHERE container = ?1")?
        .query_row([container], |row| row.get(0))?;
    if had >= MOST_GAPS && !is_of_any_time {
        let newest = "began = (SELECT max(began) FROM run_gaps WHERE container = ?1)";
        return extend(newest).map(drop);
    }
    step.prepare_cached(
        "INSERT INTO run_gaps (container, began, ended) VALUES (?1, ?2, ?3) ON CONFLICT (container, began)
         DO UPDATE SET ended = CASE WHEN ended IS NULL OR excluded.ended IS NULL THEN NULL ELSE max(ended, excluded.ended) END",
    )?
    .execute(params![container, from, to])?;
    let why = format!(
        "{count} reports of this run are lost, or more: they were more, or longer, than the daemon takes; what is missing between \
         its calls here may have happened, and what the kernel saw then is no call's for certain"
    );
    step.prepare_cached(
        "INSERT INTO refusals (agent, uid, at, what, why, container, run) VALUES (?1, ?2, ?3, 'report', ?4, ?5, ?5)",
    )?
    .execute(params![agent, uid, at, why, container])
    .map(drop)
}

/// Of which times reports of a run are lost.
pub(crate) fn gaps(connection: &Connection, container: &str) -> rusqlite::Result<Vec<Gap>> {
    rows(connection, "SELECT began, ended FROM run_gaps WHERE container = ?1", [container], |row| {
        Ok(Gap {
            from: row.get::<_, i64>(0)?.cast_unsigned(),
            to: row.get::<_, Option<i64>>(1)?.map(i64::cast_unsigned),
        })
    })
}

/// Deletes those of runs that are forgotten.
pub(crate) fn forget_gaps(step: &Transaction<'_>) -> rusqlite::Result<()> {
    step.execute("DELETE FROM run_gaps WHERE container NOT IN (SELECT container FROM run_lines)", [])
        .map(drop)
}

/// Another core begins, which has none of the lines before it. When those broke nobody knows: no earlier than the last that came
/// over them.
pub(crate) fn broken(connection: &mut Connection) -> Result<(), Error> {
    let _turn = turn::wait();
    let step = begin(connection)?;
    let ended = || -> rusqlite::Result<()> {
        let open: Vec<(String, i64)> = rows(&step, OPEN, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        for (container, moment) in open {
            closed(&step, &container, moment.cast_unsigned(), clock::now_micros())?;
        }
        Ok(())
    };
    ended().and_then(|()| step.commit()).map_err(sql("end what earlier runs reported"))
}
