//! Containers whose runs report what their agents are asked and call: by the core's word which they are, and up to when.

use super::{
    Error,
    connection::{begin, rows},
    sql, turn,
};
use ringfence_base::clock;
use rusqlite::{Connection, Transaction, params};

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
