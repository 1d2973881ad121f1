//! The ledger of MCP sessions in the database: written in the transaction that writes the rows it is about.

use super::{
    Error, Position, Retention, SessionWriter,
    connection::{begin, rows},
    sql, turn,
};
use ringfence_base::{clock::now_micros, quota::Owners};
use ringfence_session::{
    journal::GENESIS,
    ledger::{self, Entry, fold},
    rows::ingest::Row,
};
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

/// Entries that are folded at once.
const MOST_FOLDED: usize = 1_000;
/// A ledger is left alone up to here, however many of its user's there are.
const SHORTEST: usize = 4;
/// How long one look may fold.
const AT_ONCE: Duration = Duration::from_millis(20);
/// How long it is believed that a ledger cannot be folded: its oldest session is still there.
const UNFOLDABLE: Duration = Duration::from_secs(600);

/// Every ledger's first and last number, without a look at what is between.
const LENGTHS: &str = "
    WITH RECURSIVE each (uid) AS (
        SELECT min(uid) FROM ledger
        UNION ALL SELECT (SELECT min(uid) FROM ledger WHERE uid > each.uid) FROM each WHERE each.uid IS NOT NULL)
    SELECT uid, (SELECT min(seq) FROM ledger l WHERE l.uid = each.uid), (SELECT max(seq) FROM ledger l WHERE l.uid = each.uid)
    FROM each WHERE uid IS NOT NULL";

/// Appends to a user's ledger.
pub(crate) fn append(step: &Transaction<'_>, uid: u32, entry: &Entry) -> rusqlite::Result<()> {
    let last: Option<(i64, String)> = step
        .prepare_cached("SELECT seq, hash FROM ledger WHERE uid = ?1 ORDER BY seq DESC LIMIT 1")?
        .query_row([uid], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (seq, head) = last.unwrap_or((0, GENESIS.to_owned()));
    let json = serde_json::to_string(entry)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    let hash = ledger::hash(&head, &json);
    let removed = match entry {
        Entry::Removed(checkpoint) => Some(&checkpoint.session),
        _ => None,
    };
    step.prepare_cached("INSERT INTO ledger (uid, seq, entry, hash, session) VALUES (?1, ?2, ?3, ?4, ?5)")?
        .execute(params![uid, seq + 1, json, hash, removed])
        .map(drop)
}

/// Notes how much of a session's journal is in the database, and when that was written, for retention. Of a journal that begins
/// no session nothing is there, and nothing could be removed.
pub(crate) fn bytes(step: &Transaction<'_>, at: &Position<'_>) -> rusqlite::Result<()> {
    step.prepare_cached(
        "INSERT INTO session_bounds (session_id, bytes, written) SELECT id, ?2, ?3 FROM sessions WHERE id = ?1
         ON CONFLICT DO UPDATE SET bytes = excluded.bytes, written = excluded.written",
    )?
    .execute(params![at.session, at.bytes.cast_signed(), now_micros()])
    .map(drop)
}

/// Notes that a session's journal is about to be in the database up to a position: at its first rows and its last.
pub(crate) fn reached(step: &Transaction<'_>, at: &Position<'_>, rows: &[Row]) -> rusqlite::Result<()> {
    let ended = rows.iter().any(|row| matches!(row, Row::End { .. }));
    let found: Option<(i64, Option<bool>)> = step
        .prepare_cached("SELECT journal_lines, outcomes FROM sessions WHERE id = ?1")?
        .query_row([at.session], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((lines, outcomes)) = found.filter(|(lines, _)| *lines == 0 || ended) else { return Ok(()) };
    let entry = Entry::Reached {
        at: now_micros(),
        session: at.session.to_owned(),
        lines: at.lines,
        head: at.head.to_owned(),
        ended,
        // Of the row only before anybody else could change it.
        outcomes: lines == 0 && outcomes == Some(true),
    };
    append(step, at.uid, &entry)
}

/// Whether a ledger has the checkpoint of a session.
pub(crate) fn is_removed(connection: &Connection, session: &str) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("SELECT 1 FROM ledger WHERE session = ?1 LIMIT 1")?
        .query_row([session], |_| Ok(()))
        .optional()
        .map(|found| found.is_some())
}

impl SessionWriter {
    /// Folds ledgers that have become long, for a while.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn fold_ledgers(&mut self, retention: &Retention, now: i64) -> Result<(), Error> {
        let began = Instant::now();
        self.unfoldable.retain(|_, at| at.elapsed() < UNFOLDABLE);
        let owners = self.owners.clone();
        let long =
            long(self.connection()?, &owners, retention.ledger_entries).map_err(sql("fold a ledger"))?;
        for (uid, least, most) in long {
            if self.unfoldable.contains_key(&uid) {
                continue;
            }
            if !self.fold_ledger(uid, (least, most), now)? {
                self.unfoldable.insert(uid, Instant::now());
            }
            if began.elapsed() >= AT_ONCE {
                break;
            }
        }
        Ok(())
    }

    /// Folds a ledger's oldest entries, as far as they can go, if those are enough. Only this connection writes ledgers: they are looked at
    /// before it is its turn.
    fn fold_ledger(&mut self, uid: u32, (least, most): (usize, usize), now: i64) -> Result<bool, Error> {
        let fail = sql("fold a ledger");
        let connection = self.connection()?;
        let rows = oldest(connection, uid, most + 1).map_err(&fail)?;
        let is_removed = |session: &str| {
            connection
                .prepare_cached("SELECT 1 FROM ledger WHERE session = ?1 AND +uid = ?2 LIMIT 1")?
                .exists(params![session, uid])
        };
        let Some(entry) = fold(&rows, is_removed, least, now).map_err(&fail)? else { return Ok(false) };
        let Entry::Folded { upto, .. } = &entry else { return Ok(false) };
        let _turn = turn::wait();
        let step = begin(connection)?;
        append(&step, uid, &entry)
            .and_then(|()| {
                step.execute(
                    "DELETE FROM ledger WHERE uid = ?1 AND seq <= ?2",
                    params![uid, upto.cast_signed()],
                )
            })
            .map_err(&fail)?;
        step.commit().map_err(sql("commit"))?;
        Ok(true)
    }

    /// Entries that the host's journal does not have yet, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn unpublished(&mut self, limit: u32) -> Result<Vec<ledger::Row>, Error> {
        let text = "SELECT uid, seq, entry, hash FROM ledger WHERE told = 0 ORDER BY uid, seq LIMIT ?1";
        rows(self.connection()?, text, [limit], row).map_err(sql("read the ledger of sessions"))
    }

    /// The host's journal has a user's entries up to this one.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn mark_published(&mut self, uid: u32, seq: u64) -> Result<(), Error> {
        let _turn = turn::wait();
        self.connection()?
            .execute(
                "UPDATE ledger SET told = 1 WHERE told = 0 AND uid = ?1 AND seq <= ?2",
                params![uid, seq.cast_signed()],
            )
            .map(drop)
            .map_err(sql("note which heads are kept elsewhere"))
    }
}

fn row(row: &rusqlite::Row<'_>) -> rusqlite::Result<ledger::Row> {
    let seq: i64 = row.get(1)?;
    Ok(ledger::Row { uid: row.get(0)?, seq: seq.cast_unsigned(), entry: row.get(2)?, hash: row.get(3)? })
}

/// The oldest of a ledger's rows, in order.
fn oldest(connection: &Connection, uid: u32, most: usize) -> rusqlite::Result<Vec<ledger::Row>> {
    let text = "SELECT uid, seq, entry, hash FROM ledger WHERE uid = ?1 ORDER BY seq LIMIT ?2";
    rows(connection, text, params![uid, most as i64], row)
}

/// Ledgers that are longer than they may be, and how many entries of each are to go at once, at least and at most. Users'
/// ledgers are chains for each user id: those of one user may together have `limit` entries.
fn long(
    connection: &Connection,
    owners: &Owners,
    limit: usize,
) -> rusqlite::Result<Vec<(u32, usize, usize)>> {
    let lengths: Vec<(u32, i64, i64)> =
        rows(connection, LENGTHS, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let mut users: HashMap<u32, Vec<(u32, usize)>> = HashMap::new();
    for (uid, first, last) in lengths {
        let length = usize::try_from(last.saturating_sub(first).saturating_add(1)).unwrap_or(0);
        users.entry(owners.of(uid)).or_default().push((uid, length));
    }
    let too_long = users.into_values().filter(|ledgers| {
        ledgers.iter().fold(0, |sum: usize, (_, length)| sum.saturating_add(*length)) > limit
    });
    Ok(too_long
        .flat_map(|ledgers| {
            let share = (limit / ledgers.len()).max(SHORTEST);
            let long = ledgers.into_iter().filter(move |(_, length)| *length > share);
            // Every fold is an entry, too: few at once would not make a ledger shorter.
            let least = (share / 2).clamp(2, MOST_FOLDED);
            long.map(move |(uid, length)| (uid, least, (length - share + least).min(MOST_FOLDED)))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::{MOST_FOLDED, append};
    use crate::{Retention, SessionWriter};
    use ringfence_base::quota::Owners;
    use ringfence_session::ledger::{Checkpoint, Entry, Why};

    fn reached(session: String) -> Entry {
        Entry::Reached { at: 1, session, lines: 1, head: "h".into(), ended: false, outcomes: false }
    }

    fn removed(session: String) -> Entry {
        Entry::Removed(Checkpoint {
            at: 2,
            session,
            server: "s".into(),
            began: "b".into(),
            ended: "e".into(),
            first: 1,
            last: 9,
            head: "h".into(),
            calls: 3,
            why: Why::Age,
            broken: None,
        })
    }

    /// Ledgers of these users, each with so many sessions that came and went, and one that is there before the last.
    fn writer(folder: &tempfile::TempDir, ledgers: &[(u32, usize)]) -> SessionWriter {
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let step = writer.connection().expect("open").transaction().expect("begun");
        for (uid, sessions) in ledgers {
            for number in 0..*sessions {
                let session = format!("{uid}-{number}");
                append(&step, *uid, &reached(session.clone())).expect("appended");
                if number + 2 != *sessions {
                    append(&step, *uid, &removed(session)).expect("appended");
                }
            }
        }
        step.commit().expect("committed");
        writer
    }

    fn length(writer: &mut SessionWriter, uid: u32) -> usize {
        let query = "SELECT count(*) FROM ledger WHERE uid = ?1";
        let count = writer.connection().expect("open").query_row(query, [uid], |row| row.get(0));
        count.map(|count: i64| count as usize).expect("counts")
    }

    #[test]
    fn a_long_ledger_is_folded_a_little_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder, &[(5, 3 * MOST_FOLDED), (6, 9)]);
        let retention = Retention { ledger_entries: 4 * MOST_FOLDED, ..Retention::default() };
        let mut before = length(&mut writer, 5);
        let mut folds = 0;
        loop {
            writer.fold_ledgers(&retention, 7).expect("folds");
            let now = length(&mut writer, 5);
            if now == before {
                break;
            }
            assert_eq!(before - now, MOST_FOLDED - 1, "of which a fold is left");
            (before, folds) = (now, folds + 1);
        }
        assert!(folds == 3 && before <= 4 * MOST_FOLDED, "{folds} folds, {before} entries");
        assert_eq!(length(&mut writer, 6), 17, "it is short");
        let rows = super::oldest(writer.connection().expect("open"), 5, usize::MAX >> 1).expect("reads");
        ringfence_session::ledger::Ledger::read(&rows).expect("whole");
    }

    #[test]
    fn a_ledger_that_cannot_be_folded_is_left_alone_for_a_while() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder, &[(5, 3), (6, 60)]);
        // Of a session that is still there: the first entry of all.
        let retention = Retention { ledger_entries: 4, ..Retention::default() };
        for _ in 0..100 {
            writer.fold_ledgers(&retention, 7).expect("folds");
        }
        assert_eq!((length(&mut writer, 5), length(&mut writer, 6)), (4, 4), "as far as that session");
        assert!(writer.unfoldable.is_empty(), "both are short");
        let step = writer.connection().expect("open").transaction().expect("begun");
        append(&step, 6, &reached("more".into())).expect("appended");
        step.commit().expect("committed");
        writer.fold_ledgers(&retention, 7).expect("looks");
        assert_eq!(writer.unfoldable.keys().collect::<Vec<_>>(), [&6]);
        // What came since would let it; for a while nobody looks.
        let step = writer.connection().expect("open").transaction().expect("begun");
        append(&step, 6, &removed("6-58".into())).expect("appended");
        step.commit().expect("committed");
        writer.fold_ledgers(&retention, 7).expect("looks");
        assert_eq!(length(&mut writer, 6), 6);
        writer.unfoldable.clear();
        writer.fold_ledgers(&retention, 7).expect("folds");
        assert!(length(&mut writer, 6) < 6);
    }

    #[test]
    fn a_user_s_ledgers_are_counted_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let owners = Owners::parse("5:100:10\n", |name| name.parse().ok());
        let ledgers: Vec<(u32, usize)> = (100..110).map(|uid| (uid, 20)).chain([(6, 20)]).collect();
        let mut writer = writer(&folder, &ledgers).with_owners(owners);
        let retention = Retention { ledger_entries: 100, ..Retention::default() };
        for _ in 0..100 {
            writer.fold_ledgers(&retention, 7).expect("folds");
        }
        let of_one: usize = (100..110).map(|uid| length(&mut writer, uid)).sum();
        assert!(of_one <= 100, "{of_one}");
        assert_eq!(length(&mut writer, 6), 39);
    }

    #[test]
    fn lengths_are_known_without_a_look_at_what_is_between() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = writer(&folder, &[(5, 3), (6, 4), (70_000, 1)]);
        let connection = writer.connection().expect("open");
        let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {}", super::LENGTHS)).expect("plans");
        let plan: Vec<String> =
            plan.query_map([], |row| row.get(3)).and_then(Iterator::collect).expect("reads");
        // The one step over all of a table is for the least number of an index.
        let scans = plan.iter().filter(|step| step.starts_with("SCAN") && !step.starts_with("SCAN each"));
        assert!({ scans }.all(|step| !step.contains("ledger")), "{plan:?}");
        let all = super::long(connection, &Owners::default(), 0).expect("reads");
        assert_eq!(all.len(), 2, "{all:?}");
    }
}
