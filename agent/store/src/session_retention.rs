//! Retention of MCP sessions: whole sessions that ended, oldest first; a checkpoint in the ledger first,
//! then the rows, a few thousand at a time.

use super::{
    Error, Retention, SessionWriter,
    connection::{begin, rows},
    ledger, sql, turn,
};
use ringfence_base::{clock::rfc3339, quota::Owners};
use ringfence_session::ledger::{Checkpoint, Entry, Why};
use rusqlite::{Connection, OptionalExtension as _, ToSql, Transaction, params};
use std::{cmp::Reverse, collections::HashMap};

/// What a byte of a journal takes in all, about: itself, and its row, which has the line's text and its parts again. Lines that
/// make no rows count too: they are on the account of whoever wrote them, and of nobody else.
const COPIES: u64 = 3;
/// A session that nobody is linked to and that was not written for so long has ended, µs: whatever its journal says, and
/// whether it says so or not.
const SILENT: i64 = 7 * 24 * 3_600 * 1_000_000;

/// A session that is being removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removal {
    /// Its id.
    pub session: String,
    /// Its checkpoint was just written; otherwise an earlier run wrote it.
    pub fresh: bool,
}

impl SessionWriter {
    /// The next session to remove, if any: one whose removal was begun, or the oldest that ended and is beyond a bound; of
    /// all sessions' size, only of whoever has more than a fair share of it. Its checkpoint is in the ledger when this returns. `runs` tells whether a session's interceptor still runs.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn begin_removal(
        &mut self,
        retention: &Retention,
        now: i64,
        runs: impl Fn(&str) -> bool,
    ) -> Result<Option<Removal>, Error> {
        let fail = sql("look for sessions to remove");
        let begun: Option<String> = self
            .connection()?
            .query_row("SELECT session_id FROM session_bounds WHERE removing <> 0 LIMIT 1", [], |row| {
                row.get(0)
            })
            .optional()
            .map_err(&fail)?;
        if let Some(session) = begun {
            return Ok(Some(Removal { session, fresh: false }));
        }
        let owners = self.owners.clone();
        let connection = self.connection()?;
        let users = users_by_size(connection, &owners).map_err(&fail)?;
        let before = |time: i64| (now.saturating_sub(time), now.saturating_sub(time.max(SILENT)));
        let mut found = None;
        if sum(&users) > retention.session_bytes {
            // Whoever has the most makes room. Where nothing of theirs can go, all others keep theirs: nobody's record gives
            // way to another's.
            let fair = retention.session_bytes / users.len().max(1) as u64;
            for user in users.iter().filter(|user| user.bytes > fair) {
                let uids = serde_json::Value::from(user.uids.as_slice()).to_string();
                found = find(connection, before(retention.grace), Some(&uids), &runs).map_err(&fail)?;
                if found.is_some() {
                    break;
                }
            }
        }
        let (session, why) = match found {
            Some(session) => (session, Why::Size),
            None => {
                match find(connection, before(retention.age.max(retention.grace)), None, &runs)
                    .map_err(&fail)?
                {
                    Some(session) => (session, Why::Age),
                    None => return Ok(None),
                }
            }
        };
        let _turn = turn::wait();
        let step = begin(self.connection()?)?;
        let written = checkpoint(&step, &session, why, now).and_then(|()| {
            step.execute("UPDATE session_bounds SET removing = 1 WHERE session_id = ?1", [&session])
        });
        written.map_err(sql("write a checkpoint"))?;
        step.commit().map_err(sql("commit"))?;
        Ok(Some(Removal { session, fresh: true }))
    }
}

/// A session that ended before a time, or was not written for long, and does not run; of these users, or of all. Those that
/// run are passed over however many they are: each has a link.
fn find(
    connection: &Connection,
    (ended, silent): (i64, i64),
    users: Option<&str>,
    runs: impl Fn(&str) -> bool,
) -> rusqlite::Result<Option<String>> {
    let of = match users {
        Some(_) => "s.uid IN (SELECT value FROM json_each(?2))",
        None => "?2 IS NULL",
    };
    let by_end = format!("SELECT s.id FROM sessions s WHERE s.ended_at < ?1 AND {of} ORDER BY s.ended_at");
    let by_time = format!(
        "SELECT s.id FROM session_bounds b JOIN sessions s ON s.id = b.session_id
         WHERE b.written < ?1 AND {of} ORDER BY b.written"
    );
    let looks: [(&str, &dyn ToSql); 2] = [(&by_end, &rfc3339(ended)), (&by_time, &silent)];
    for (query, before) in looks {
        let mut statement = connection.prepare_cached(query)?;
        let mut found = statement.query(params![before, users])?;
        while let Some(row) = found.next()? {
            let session: String = row.get(0)?;
            if !runs(&session) {
                return Ok(Some(session));
            }
        }
    }
    Ok(None)
}

/// What a user has, subordinate ids included.
#[derive(Debug)]
struct UserBytes {
    owner: u32,
    /// Bytes of journals and rows.
    bytes: u64,
    uids: Vec<u32>,
}

/// Users, whoever has most first.
fn users_by_size(connection: &Connection, owners: &Owners) -> rusqlite::Result<Vec<UserBytes>> {
    let bytes = "SELECT s.uid, sum(b.bytes) FROM session_bounds b JOIN sessions s ON s.id = b.session_id
         GROUP BY s.uid";
    let by_uid: Vec<(u32, i64)> = rows(connection, bytes, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut users: HashMap<u32, UserBytes> = HashMap::new();
    for (uid, bytes) in by_uid {
        let owner = owners.of(uid);
        let user = users.entry(owner).or_insert_with(|| UserBytes { owner, bytes: 0, uids: Vec::new() });
        user.bytes = user.bytes.saturating_add(bytes.max(0).cast_unsigned().saturating_mul(COPIES));
        user.uids.push(uid);
    }
    let mut users: Vec<UserBytes> = users.into_values().collect();
    users.sort_unstable_by_key(|user| (Reverse(user.bytes), user.owner));
    Ok(users)
}

fn sum(users: &[UserBytes]) -> u64 {
    users.iter().fold(0, |sum, user| user.bytes.saturating_add(sum))
}

/// The user who must wait because sessions take so much more than `bound`, in spite of retention: whoever has most of it.
pub(crate) fn who_waits(
    connection: &Connection,
    owners: &Owners,
    bound: u64,
) -> rusqlite::Result<Option<u32>> {
    let users = users_by_size(connection, owners)?;
    Ok(users.first().filter(|_| sum(&users) > bound + bound / 4).map(|user| user.owner))
}

fn checkpoint(step: &Transaction<'_>, session: &str, why: Why, now: i64) -> rusqlite::Result<()> {
    let (uid, checkpoint) = step.query_row(
        "SELECT uid, server_name, started_at, ended_at, journal_lines, journal_head, broken,
             (SELECT count(*) FROM tool_calls c WHERE c.session_id = s.id),
             (SELECT written FROM session_bounds b WHERE b.session_id = s.id) FROM sessions s WHERE id = ?1",
        [session],
        |row| {
            let (ended, written): (Option<String>, Option<i64>) = (row.get(3)?, row.get(8)?);
            let unsigned = |index| row.get::<_, i64>(index).map(i64::cast_unsigned);
            Ok((
                row.get::<_, u32>(0)?,
                Checkpoint {
                    at: now,
                    session: session.to_owned(),
                    server: row.get(1)?,
                    began: row.get(2)?,
                    ended: ended.unwrap_or_else(|| rfc3339(written.unwrap_or(now))),
                    first: 1,
                    last: unsigned(4)?,
                    head: row.get(5)?,
                    calls: unsigned(7)?,
                    why,
                    broken: row.get(6)?,
                },
            ))
        },
    )?;
    ledger::append(step, uid, &Entry::Removed(checkpoint))
}

#[cfg(test)]
mod tests {
    use super::{Removal, SILENT, who_waits};
    use crate::{Error, Position, Retention, SessionWriter, schema, tests::call_rows};
    use ringfence_base::{clock::now_micros, quota::Owners};
    use ringfence_session::rows::ingest::Row;

    /// Stores a session that ended at `ended`, µs, with a journal of so many bytes.
    fn store(
        writer: &mut SessionWriter,
        (session, uid): (&str, u32),
        bytes: u64,
        ended: i64,
    ) -> Result<(), Error> {
        let (_, epoch) = writer.lines(session, uid)?.expect("one's own");
        let at = Position { session, uid, journal: "", lines: 2, head: "h", bytes, read_to: 0, epoch };
        let start = Row::Session {
            server_name: "s".into(),
            server_command: "s".into(),
            started_at: ended - 1,
            client: None,
        };
        writer.write(&at, &[start, Row::End { at: ended, status: Some(0) }])
    }

    /// Stores a session with one call, which was asked for and ended at `at`, µs.
    fn store_call(writer: &mut SessionWriter, session: &str, at: i64) -> Result<(), Error> {
        let (_, epoch) = writer.lines(session, 5)?.expect("one's own");
        let place =
            Position { session, uid: 5, journal: "", lines: 4, head: "h", bytes: 9, read_to: 0, epoch };
        let (message, call) = call_rows(&format!("call-{session}"), at);
        let start = Row::Session {
            server_name: "s".into(),
            server_command: "s".into(),
            started_at: at,
            client: None,
        };
        let rows = [
            start,
            Row::Message(Box::new(message)),
            Row::Call(Box::new(call)),
            Row::End { at, status: Some(0) },
        ];
        writer.write(&place, &rows)
    }

    #[test]
    fn an_intent_goes_on_when_the_session_that_began_it_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), Some(10_000));
        store_call(&mut writer, "first", 1_000_000).expect("stored");
        let retention = Retention { session_bytes: 0, grace: 0, ..Retention::default() };
        let removal = writer.begin_removal(&retention, 9_000_000, |_| false).expect("found").expect("one");
        while writer.remove_rows(&removal).expect("removed") {}
        store_call(&mut writer, "second", 2_000_000).expect("a call within the same intent");
    }

    #[test]
    fn whoever_has_most_makes_room_and_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), Some(10_000));
        store(&mut writer, ("small", 6), 10, 1_000_000).expect("stored");
        store(&mut writer, ("first", 5), 6_000, 2_000_000).expect("stored");
        store(&mut writer, ("second", 5), 6_000, 3_000_000).expect("stored");
        let retention = Retention { session_bytes: 20_000, grace: 0, age: i64::MAX, ..Retention::default() };
        let removal = |session: &str, fresh| Some(Removal { session: session.into(), fresh });
        let none = |_: &str| false;
        assert_eq!(
            writer.begin_removal(&retention, 9_000_000, |one| one == "first").expect("found"),
            removal("second", true)
        );
        assert_eq!(
            writer.begin_removal(&retention, 9_000_000, none).expect("found"),
            removal("second", false),
            "as begun"
        );
        let waits = who_waits(writer.connection().expect("open"), &Owners::default(), 10_000);
        assert_eq!(waits.expect("measured"), Some(5));
        std::thread::sleep(super::super::mcp_write::CROWDED);
        let more = store(&mut writer, ("third", 5), 1, 4_000_000);
        assert!(matches!(more, Err(Error::Crowded { uid: 5 })), "{more:?}");
        store(&mut writer, ("other", 6), 1, 4_000_000).expect("others are stored");
    }

    /// Stores a session of which nobody says that it ended.
    fn begin(writer: &mut SessionWriter, (session, uid): (&str, u32), bytes: u64) {
        let (_, epoch) = writer.lines(session, uid).expect("read").expect("one's own");
        let at = Position { session, uid, journal: "", lines: 2, head: "h", bytes, read_to: 0, epoch };
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None };
        writer.write(&at, &[start]).expect("stored");
    }

    #[test]
    fn whoever_ends_no_session_costs_nobody_else_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SessionWriter::new(folder.path().join("audit.db"), None);
        let now = now_micros();
        begin(&mut writer, ("greedy", 5), 50_000);
        store(&mut writer, ("far", 5), 50_000, now + (1 << 50)).expect("stored");
        store(&mut writer, ("large", 6), 5_000, now - 9).expect("stored");
        store(&mut writer, ("small", 7), 10, now - 9).expect("stored");
        let retention = Retention { session_bytes: 20_000, grace: 0, ..Retention::default() };
        let removal = |writer: &mut SessionWriter, now, linked: &[&str]| {
            let runs = |one: &str| linked.contains(&one);
            writer.begin_removal(&retention, now, runs).expect("looked").map(|removal| removal.session)
        };
        // Of three users each may have a third: of those who have more, whose sessions can go.
        assert_eq!(removal(&mut writer, now, &[]).as_deref(), Some("large"));
        while writer.remove_rows(&Removal { session: "large".into(), fresh: true }).expect("removed") {}
        assert_eq!(removal(&mut writer, now, &[]), None, "the small ones are no reason");
        // It is not written for long, and nobody is linked to it: it ended, whatever it says.
        let later = now + SILENT + 60_000_000;
        assert_eq!(removal(&mut writer, later, &["greedy", "far"]), None);
        assert_eq!(removal(&mut writer, later, &["far"]).as_deref(), Some("greedy"));
        while writer.remove_rows(&Removal { session: "greedy".into(), fresh: true }).expect("removed") {}
        assert_eq!(removal(&mut writer, later, &[]).as_deref(), Some("far"));
        let ended = "SELECT entry ->> 'ended' FROM ledger WHERE session = 'greedy'";
        let ended: String =
            writer.connection().expect("open").query_row(ended, [], |row| row.get(0)).expect("a checkpoint");
        assert!(ended.starts_with("20"), "when it was last written: {ended}");
    }

    #[test]
    fn what_a_user_has_under_many_ids_is_counted_together() {
        let folder = tempfile::tempdir().expect("a folder");
        let owners = Owners::parse("5:100:10\n", |name| name.parse().ok());
        let db = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(db, Some(10_000)).with_owners(owners.clone());
        store(&mut writer, ("other", 6), 3_000, 1_000_000).expect("stored");
        for uid in 100..104 {
            store(&mut writer, (&format!("of-{uid}"), uid), 2_000, i64::from(uid) * 1_000_000)
                .expect("stored");
        }
        let waits = who_waits(writer.connection().expect("open"), &owners, 10_000);
        assert_eq!(waits.expect("measured"), Some(5));
        let retention = Retention { session_bytes: 20_000, grace: 0, age: i64::MAX, ..Retention::default() };
        let removal = writer.begin_removal(&retention, 1_000_000_000, |_| false).expect("looked");
        assert_eq!(removal.map(|removal| removal.session).as_deref(), Some("of-100"));
        std::thread::sleep(super::super::mcp_write::CROWDED);
        let more = store(&mut writer, ("more", 109), 1, 4_000_000);
        assert!(matches!(more, Err(Error::Crowded { uid: 109 })), "{more:?}");
        store(&mut writer, ("again", 6), 1, 4_000_000).expect("others are stored");
    }

    #[test]
    fn sessions_of_before_count_from_now_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("audit.db");
        let before = schema::MIGRATIONS
            .iter()
            .position(|sql| sql.contains("session_bounds_by_time"))
            .expect("a migration");
        let old = rusqlite::Connection::open(&db).expect("open");
        schema::MIGRATIONS[..before].iter().for_each(|sql| old.execute_batch(sql).expect("a migration"));
        old.pragma_update(None, "application_id", schema::APPLICATION_ID).expect("ours");
        old.pragma_update(None, "user_version", before as i64).expect("its version");
        old.execute_batch(
            "INSERT INTO sessions (id, server_name, server_command, started_at, uid)
                 VALUES ('counted', 's', 's', 't', 5), ('uncounted', 's', 's', 't', 5);
             INSERT INTO session_bounds (session_id, bytes) VALUES ('counted', 7), ('nobody', 9)",
        )
        .expect("rows");
        drop(old);
        let mut writer = SessionWriter::new(db, None);
        let bounds: Vec<(String, i64, i64)> = writer
            .connection()
            .expect("open")
            .prepare("SELECT session_id, bytes, written FROM session_bounds ORDER BY session_id")
            .and_then(|mut s| s.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?.collect())
            .expect("reads");
        let sizes: Vec<_> = bounds.iter().map(|(session, bytes, _)| (session.as_str(), *bytes)).collect();
        assert_eq!(sizes, [("counted", 7), ("uncounted", 0)]);
        let now = now_micros();
        assert!(bounds.iter().all(|(.., written)| (now - written).abs() < 600_000_000), "{bounds:?}");
        let retention = Retention { session_bytes: 0, grace: 0, ..Retention::default() };
        assert_eq!(writer.begin_removal(&retention, now, |_| false).expect("looked"), None);
        let later =
            writer.begin_removal(&retention, now + retention.age + SILENT, |_| false).expect("looked");
        assert!(later.is_some_and(|removal| removal.fresh), "as if it had ended now");
    }
}
