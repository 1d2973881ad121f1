//! Keeping the store within its bounds: by age, by size, and no container more than its share.

use super::{Error, Retention, connection::begin, sql};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

/// Rows deleted in one step, so that writing goes on in between.
const STEP: i64 = 5_000;

/// What an account leaves out, as 1/n of it: indexes, and what is free in pages.
const INDEXES: u64 = 2;

/// Agents' rows may take this share of `Retention::event_bytes`, as 1/n, beside what events may.
const OF_AGENTS: u64 = 4;

/// Deletes at most a few thousand rows. True: there is more to delete.
pub(crate) fn step(connection: &mut Connection, retention: &Retention, now: i64) -> Result<bool, Error> {
    let step = begin(connection)?;
    let deleted = one(&step, retention, now).map_err(sql("delete old events"))?;
    step.commit().map_err(sql("commit"))?;
    // Give pages back to the file system, a few MiB at a time.
    if deleted > 0 {
        connection.execute_batch("PRAGMA incremental_vacuum(1024)").map_err(sql("give back free pages"))?;
    }
    Ok(deleted > 0)
}

fn one(step: &Transaction<'_>, retention: &Retention, now: i64) -> rusqlite::Result<usize> {
    let oldest = now.saturating_sub(retention.age);
    let old =
        delete(step, "SELECT id FROM events WHERE ts < ?1 ORDER BY ts LIMIT ?2", params![oldest, STEP])?;
    if old > 0 {
        return Ok(old);
    }
    step.execute("DELETE FROM core_sessions WHERE at < ?1", [oldest])?;
    let of_agents = super::agents::retain(step, oldest, retention.event_bytes / OF_AGENTS)?;
    super::name_approvals::containers_ended(step, now)?;
    step.execute(
        "DELETE FROM containers WHERE ended < ?1 AND NOT EXISTS (SELECT 1 FROM events e WHERE e.container = containers.id)",
        [oldest],
    )?;
    Ok(of_agents + too_many(step, retention)?)
}

/// Deletes some events of who has more than its share, or of all.
fn too_many(step: &Transaction<'_>, retention: &Retention) -> rusqlite::Result<usize> {
    let share = (retention.event_bytes / retention.container_share.max(1)).cast_signed();
    let greedy: Option<i64> = step
        .query_row("SELECT id FROM containers WHERE bytes > ?1 ORDER BY bytes DESC LIMIT 1", [share], |row| {
            row.get(0)
        })
        .optional()?;
    if let Some(container) = greedy {
        // What was allowed goes before what was denied.
        let of = |which| {
            format!("SELECT id FROM events WHERE container = ?1 AND verdict {which} 1 ORDER BY id LIMIT ?2")
        };
        let allowed = delete(step, &of("="), params![container, STEP])?;
        if allowed > 0 {
            return Ok(allowed);
        }
        return delete(step, &of("<>"), params![container, STEP]);
    }
    // By their own account. The size of the file says nothing: what is in it beside events (sessions, agents, rule files,
    // ledgers) has bounds of its own, and whatever of that nobody counted would be taken out on all containers' events.
    let accounts: i64 =
        step.query_row("SELECT coalesce(sum(bytes), 0) FROM containers", [], |row| row.get(0))?;
    let accounts = accounts.max(0).cast_unsigned();
    if accounts.saturating_add(accounts / INDEXES) > retention.event_bytes {
        return delete(step, "SELECT id FROM events ORDER BY id LIMIT ?2 + ?1", params![0, STEP]);
    }
    Ok(0)
}

/// Deletes the chosen events and takes them off their containers' accounts.
fn delete(step: &Transaction<'_>, chosen: &str, values: &[&dyn rusqlite::ToSql]) -> rusqlite::Result<usize> {
    step.execute("CREATE TEMP TABLE IF NOT EXISTS doomed (id INTEGER PRIMARY KEY)", [])?;
    step.execute("DELETE FROM temp.doomed", [])?;
    let count = step.execute(&format!("INSERT INTO temp.doomed {chosen}"), values)?;
    if count > 0 {
        step.execute(
            "UPDATE containers SET bytes = max(0, containers.bytes - freed.bytes)
             FROM (SELECT container, sum(120 + coalesce(length(CAST(path AS BLOB)), 0)
                       + coalesce(length(CAST(path2 AS BLOB)), 0) + length(CAST(exe AS BLOB))
                       + coalesce(length(lineage), 0) + coalesce(length(CAST(name AS BLOB)), 0)
                       + coalesce(length(CAST(egress AS BLOB)), 0)) AS bytes
                   FROM events WHERE id IN (SELECT id FROM temp.doomed) GROUP BY container) AS freed
             WHERE containers.id = freed.container",
            [],
        )?;
        step.execute("DELETE FROM events WHERE id IN (SELECT id FROM temp.doomed)", [])?;
    }
    Ok(count)
}
