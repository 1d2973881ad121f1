//! Reading: each question its own read-only connection, so that a slow reader holds nobody up.

use super::{
    Error,
    connection::{open_to_read, rows},
    sql,
};
use ringfence_common::{event::rule, task::LINEAGE};
use ringfence_events::{
    decode::Decoded,
    egress::Egress,
    manifests::Decider,
    present::{Stored, Tie},
};
use ringfence_wire::{event::RuleText, message::Lost};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use std::{path::Path, sync::Arc};

/// Who asks: root sees everything, a uid the containers it enrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Viewer(pub u32);

/// Which events.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    /// Only what was refused, or would have been.
    pub refused: bool,
    /// Beginning of a public id, or a profile.
    pub container: Option<String>,
    /// Only connections by name, and questions for names.
    pub egress: bool,
    /// Of those, only the ones of this host; `*.HOST`: of what is below it.
    pub name: Option<String>,
    /// µs since 1970.
    pub since: Option<i64>,
}

/// A connection that only reads.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
}

/// What an event's row has. Which host an address of a container's block (198.18.0.0/15) stood for is what its egress worker told
/// last, up to a second later, since clocks may differ. That a connection is of a call is its word, too: it has to be a tag
/// of its own container.
pub(crate) const COLUMNS: &str = "e.id, e.ts, c.kernel, c.public, c.profile, e.op, e.verdict, e.flags, e.detail, e.target, e.pid,
    e.tgid, e.ppid, e.uid, e.start, e.call, e.generation, e.repeats, e.rule_kind, e.fixed, e.axes, e.family, e.port,
    e.addr, e.path, e.path2, e.exe, r.rule, r.file, r.line, r.key, r.text, e.moment, a.id,
    t.matched, a.contested, e.lineage, e.egress, coalesce(e.name, CASE WHEN e.addr BETWEEN
        x'00000000000000000000ffffc6120000' AND x'00000000000000000000ffffc613ffff' THEN
        (SELECT n.name FROM events n WHERE n.container = e.container AND n.addr = e.addr AND n.ts <= e.ts + 1000000
             AND n.name IS NOT NULL AND n.addr IS NOT NULL AND n.name <> '' ORDER BY n.ts DESC, n.id DESC LIMIT 1) END)
    FROM events e JOIN containers c ON c.id = e.container LEFT JOIN rules r ON r.id = e.rule
    LEFT JOIN call_tags t ON t.tag = e.call AND (e.name IS NULL OR t.container = c.public)
    LEFT JOIN agent_calls a ON a.row = t.call";

impl Reader {
    /// Opens a database.
    ///
    /// # Errors
    /// [`Error::Open`]: there is none yet, or it cannot be read.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(Self { connection: open_to_read(path)? })
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Highest id of an event.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn last_id(&self) -> Result<u64, Error> {
        self.connection
            .query_row("SELECT max(id) FROM events", [], |row| row.get::<_, Option<i64>>(0))
            .map(|id| id.map_or(0, i64::cast_unsigned))
            .map_err(sql("read the last event's number"))
    }

    /// The id to begin after, so that the newest `limit` of the events up to `last` come.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn begin(
        &self,
        viewer: Viewer,
        filter: &Filter,
        last: u64,
        limit: Option<u32>,
    ) -> Result<u64, Error> {
        let fail = sql("find where to begin");
        let mut begin = 0;
        if let Some(since) = filter.since {
            let first: Option<i64> = self
                .connection
                .query_row("SELECT min(id) FROM events WHERE ts >= ?1", [since], |row| row.get(0))
                .map_err(&fail)?;
            begin = first.map_or(last, |id| id.cast_unsigned() - 1);
        }
        if let Some(limit) = limit {
            if limit == 0 {
                return Ok(last);
            }
            let select = format!(
                "SELECT e.id FROM events e WHERE {} ORDER BY e.id DESC LIMIT 1 OFFSET ?6",
                condition(filter)
            );
            let first: Option<i64> = self
                .connection
                .query_row(&select, params_for(viewer, filter, begin, last, limit - 1), |row| row.get(0))
                .optional()
                .map_err(&fail)?;
            begin = first.map_or(begin, |id| id.cast_unsigned() - 1);
        }
        Ok(begin)
    }

    /// The next `page` events after `after`, up to `last`, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn events(
        &self,
        viewer: Viewer,
        filter: &Filter,
        after: u64,
        last: u64,
        page: u32,
    ) -> Result<Vec<Stored>, Error> {
        let select = format!("SELECT {COLUMNS} WHERE {} ORDER BY e.id LIMIT ?6", condition(filter));
        let values = params_for(viewer, filter, after, last, page);
        rows(&self.connection, &select, values, stored).map_err(sql("read events"))
    }

    /// One event, if it is there for this viewer.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn event(&self, viewer: Viewer, id: u64) -> Result<Option<Stored>, Error> {
        let select = format!("SELECT {COLUMNS} WHERE e.id = ?1 AND (?2 = 0 OR c.uid = ?2)");
        self.connection
            .query_row(&select, params![id.cast_signed(), viewer.0], stored)
            .optional()
            .map_err(sql("read an event"))
    }

    /// Rows and bytes in use.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn size(&self, viewer: Viewer) -> Result<(u64, u64), Error> {
        let fail = sql("measure itself");
        let rows: i64 = self
            .connection
            .query_row(
                "SELECT count(*) FROM events WHERE ?1 = 0 OR container IN (SELECT id FROM containers WHERE uid = ?1)",
                [viewer.0],
                |row| row.get(0),
            )
            .map_err(&fail)?;
        let bytes = bytes_in_use(&self.connection).map_err(sql("measure itself"))?;
        Ok((rows.cast_unsigned(), bytes))
    }

    /// What was lost, all in all.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn losses(&self) -> Result<Losses, Error> {
        let number = |row: &Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        self.connection
            .query_row(
                "SELECT coalesce(sum(denied), 0), coalesce(sum(ring_denied), 0), coalesce(sum(ring_allowed), 0),
                     coalesce(sum(store_denied), 0), coalesce(sum(store_allowed), 0),
                     coalesce(sum(max(0, denied - told - ring_denied - store_denied)), 0), total(egress_lost) FROM containers",
                [],
                |row| {
                    Ok(Losses {
                        denied: number(row, 0)?,
                        kernel_denied: number(row, 1)?,
                        kernel_other: number(row, 2)?,
                        store_denied: number(row, 3)?,
                        store_other: number(row, 4)?,
                        missing_denied: number(row, 5)?,
                        // A sum of what workers say, which is no number of 64 bits where many of them lie.
                        egress: row.get::<_, f64>(6)? as u64,
                    })
                },
            )
            .map_err(sql("read counters"))
    }

    /// What was lost, per container that lost anything.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn lost(&self, viewer: Viewer) -> Result<Vec<Lost>, Error> {
        let number = |row: &Row<'_>, at| row.get::<_, i64>(at).map(i64::cast_unsigned);
        let select = "SELECT public, profile, ring_denied, ring_allowed, store_denied, store_allowed,
                 max(0, denied - told - ring_denied - store_denied) AS missing, egress_lost
             FROM containers
             WHERE ring_denied + ring_allowed + store_denied + store_allowed + missing + egress_lost > 0 AND (?1 = 0 OR uid = ?1)
             ORDER BY id DESC LIMIT 1000";
        let lost = rows(&self.connection, select, [viewer.0], |row| {
            Ok(Lost {
                container: row.get(0)?,
                profile: row.get(1)?,
                ring_denied: number(row, 2)?,
                ring_allowed: number(row, 3)?,
                store_denied: number(row, 4)?,
                store_allowed: number(row, 5)?,
                missing_denied: number(row, 6)?,
                egress: number(row, 7)?,
            })
        });
        lost.map_err(sql("read counters"))
    }
}

/// Bytes of the database in use: free pages are not counted, they are used again.
pub(crate) fn bytes_in_use(connection: &Connection) -> rusqlite::Result<u64> {
    let number =
        |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
    Ok(number("page_count")?.saturating_sub(number("freelist_count")?).saturating_mul(number("page_size")?))
}

/// What was counted and what was lost, over all containers that the database knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Denied operations.
    pub denied: u64,
    /// Of those: in no event, since the kernel had no room.
    pub kernel_denied: u64,
    /// Others that the kernel had no room for.
    pub kernel_other: u64,
    /// Denials that could not be stored.
    pub store_denied: u64,
    /// Others that could not be stored.
    pub store_other: u64,
    /// Denials that did not come, see [`Lost::missing_denied`].
    pub missing_denied: u64,
    /// Connections by name and questions for names that are in no event.
    pub egress: u64,
}

/// What [`params_for`] is for. The plus signs keep SQLite in the order of ids.
pub(crate) fn condition(filter: &Filter) -> String {
    let mut text = "e.id > ?1 AND e.id <= ?2 AND +e.ts >= ?3 AND ((?4 = 0 AND ?5 = '') OR +e.container IN
         (SELECT id FROM containers
          WHERE (?4 = 0 OR uid = ?4) AND (substr(public, 1, length(?5)) = ?5 OR profile = ?5)))"
        .to_owned();
    if filter.refused {
        text += " AND e.verdict <> 1";
    }
    if filter.egress || filter.name.is_some() {
        // The last of the parameters is there in any case.
        text += " AND e.name IS NOT NULL AND (?7 IS NULL OR +e.name = ?7
             OR (?7 LIKE '*.%' AND substr(+e.name, 1 - length(?7)) = substr(?7, 2) AND length(e.name) > length(?7) - 1))";
    } else {
        text += " AND ?7 IS NULL";
    }
    text
}

/// After, last, since, uid, container, the number for LIMIT or OFFSET, and the host.
fn params_for(viewer: Viewer, filter: &Filter, after: u64, last: u64, number: u32) -> impl rusqlite::Params {
    (
        after.cast_signed(),
        last.cast_signed(),
        filter.since.unwrap_or(i64::MIN),
        viewer.0,
        filter.container.clone().unwrap_or_default(),
        number,
        filter.name.as_ref().map(|name| name.to_ascii_lowercase()),
    )
}

/// Births of ancestors, as `kept` in `write.rs` has them.
fn lineage(kept: Option<&[u8]>) -> [u64; LINEAGE] {
    let (words, _) = kept.unwrap_or_default().as_chunks();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u64::from_le_bytes(*word)))
}

fn tie(row: &Row<'_>) -> rusqlite::Result<Tie> {
    let (matched, contested): (Option<bool>, Option<bool>) = (row.get(34)?, row.get(35)?);
    Ok(match (contested, matched) {
        (Some(true), _) => Tie::Contested,
        (_, Some(true)) => Tie::Matched,
        _ => Tie::Exact,
    })
}

pub(crate) fn stored(row: &Row<'_>) -> rusqlite::Result<Stored> {
    let unsigned = |at| row.get::<_, i64>(at).map(i64::cast_unsigned);
    let rule_kind: u32 = row.get(18)?;
    let fixed: u32 = row.get(19)?;
    let decider = match rule_kind {
        rule::DEFAULT => Decider::Default,
        rule::ALL => Decider::All,
        rule::FIXED => Decider::Fixed(fixed),
        _ => match row.get::<_, Option<String>>(27)? {
            None => Decider::Unknown,
            Some(id) => Decider::Rule(Arc::new(RuleText {
                id,
                file: row.get::<_, Option<String>>(28)?.filter(|file| !file.is_empty()),
                line: row.get(29)?,
                key: row.get(30)?,
                text: row.get(31)?,
            })),
        },
    };
    let (egress, name): (Option<String>, Option<String>) = (row.get(37)?, row.get(38)?);
    // Of another version, it may be what this one cannot read: then its numbers are there, and the host.
    let told = egress.and_then(|egress| serde_json::from_str(&egress).ok());
    let egress = told.map(|told| Box::new(Egress { name: name.clone().unwrap_or_default(), told }));
    Ok(Stored {
        id: unsigned(0)?,
        ts: row.get(1)?,
        container: row.get(3)?,
        profile: row.get(4)?,
        call: row.get(33)?,
        tie: tie(row)?,
        decider,
        name: name.filter(|name| !name.is_empty()),
        record: Decoded {
            container: unsigned(2)?,
            time: unsigned(32)?,
            op: row.get(5)?,
            verdict: row.get(6)?,
            flags: row.get(7)?,
            detail: row.get(8)?,
            target: row.get(9)?,
            pid: row.get(10)?,
            tgid: row.get(11)?,
            ppid: row.get(12)?,
            uid: row.get(13)?,
            start: unsigned(14)?,
            lineage: lineage(row.get_ref(36)?.as_blob_or_null()?),
            call: unsigned(15)?,
            generation: row.get(16)?,
            repeats: row.get(17)?,
            rule_kind,
            rule: fixed,
            axes: row.get(20)?,
            family: row.get(21)?,
            port: row.get(22)?,
            addr: row.get::<_, Option<[u8; 16]>>(23)?.unwrap_or_default(),
            path: row.get(24)?,
            path2: row.get(25)?,
            exe: row.get(26)?,
            egress,
        },
    })
}
