//! Reading what servers wrote to standard error.

use super::{Error, SessionReader, Shown, Viewer, mcp_read::MOST, sql};
use serde_json::Value;

impl SessionReader {
    /// What the server of a session wrote, in its order: a page of pieces with a higher number than `after`, each with
    /// `number`, `timestamp`, `text` (lines) and `dropped` (bytes that were left out before it). No rows: the end.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn stderr(&self, viewer: Viewer, session: &str, after: i64, limit: u32) -> Result<Vec<Value>, Error> {
        let text = "SELECT e.number, e.timestamp, e.text, e.dropped FROM stderr e JOIN sessions s ON s.id = e.session_id
             WHERE (?1 = 0 OR s.uid = ?1) AND e.session_id = ?2 AND e.number > ?3 ORDER BY e.number LIMIT ?4";
        self.page(text, rusqlite::params![viewer.0, session, after, limit.min(MOST)], Shown::Text)
    }

    /// The whole id of the one session whose id begins with this; `None` where none or several do.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn whole_session(&self, viewer: Viewer, beginning: &str) -> Result<Option<String>, Error> {
        let text = "SELECT s.id FROM sessions s
             WHERE (?1 = 0 OR s.uid = ?1) AND s.id >= ?2 AND s.id < ?2 || 'g' AND length(?2) >= 4 LIMIT 2";
        self.only_id(viewer, beginning, text).map_err(sql("find a session"))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Position, SessionReader, SessionWriter, Viewer, mcp_schema, schema};
    use ringfence_session::rows::ingest::Row;
    use serde_json::Value;

    fn piece(number: u32, text: &str, dropped: u64) -> Row {
        Row::Stderr { number, at: i64::from(number), text: text.into(), dropped }
    }

    /// Stores rows of a session of uid 5.
    fn store(writer: &mut SessionWriter, session: &str, rows: &[Row]) {
        let (_, epoch) = writer.lines(session, 5).expect("read").expect("one's own");
        let at = Position { session, uid: 5, journal: "", lines: 2, head: "h", bytes: 9, read_to: 0, epoch };
        writer.write(&at, rows).expect("stored");
    }

    #[test]
    fn what_a_server_said_is_its_owners_and_counted_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(db.clone(), None);
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None };
        store(&mut writer, "abcdef01", &[start.clone(), piece(1, "one\n", 0), piece(2, "\u{1b}[2J\0\n", 7)]);
        // Read again, as after a crash.
        store(&mut writer, "abcdef01", &[piece(1, "one\n", 0), piece(2, "other", 9), piece(3, "end", 0)]);
        store(&mut writer, "abcd0000", &[start, piece(1, "another's\n", 0)]);
        let reader = SessionReader::open(&db).expect("open");
        let texts = |uid, after| -> Vec<String> {
            let rows = reader.stderr(Viewer(uid), "abcdef01", after, 10).expect("read");
            rows.iter().map(|row| row["text"].as_str().expect("text").to_owned()).collect()
        };
        for uid in [0, 5] {
            assert_eq!(texts(uid, 0), ["one\n", "\u{1b}[2J\0\n", "end"]);
        }
        assert_eq!(texts(5, 2), ["end"]);
        assert!(texts(6, 0).is_empty(), "another user's");
        let session = reader.session(Viewer(5), "abcdef01").expect("read").expect("there");
        assert_eq!(
            (session["stderr_bytes"].as_i64(), session["stderr_dropped"].as_i64()),
            (Some(13), Some(7))
        );
        let whole = |uid, id: &str| reader.whole_session(Viewer(uid), id).expect("read");
        assert_eq!(whole(5, "abcde").as_deref(), Some("abcdef01"));
        for (uid, id) in [(5, "abcd"), (5, "abc"), (5, ""), (6, "abcdef01"), (5, "abcdf")] {
            assert_eq!(whole(uid, id), None, "{uid} {id:?}");
        }
    }

    #[test]
    fn a_session_of_before_is_known_to_have_only_a_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("audit.db");
        let before =
            schema::MIGRATIONS.iter().position(|sql| *sql == mcp_schema::STDERR).expect("a migration");
        let old = rusqlite::Connection::open(&db).expect("open");
        schema::MIGRATIONS[..before].iter().for_each(|sql| old.execute_batch(sql).expect("a migration"));
        old.pragma_update(None, "application_id", schema::APPLICATION_ID).expect("ours");
        old.pragma_update(None, "user_version", before as i64).expect("its version");
        old.execute_batch("INSERT INTO sessions (id, server_name, server_command, started_at, uid) VALUES ('old1', 's', 's', 't', 5)")
            .expect("a session");
        drop(old);
        let mut writer = SessionWriter::new(db.clone(), None);
        store(&mut writer, "old1", &[piece(9, "from now on\n", 3)]);
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None };
        store(&mut writer, "new1", &[start, piece(1, "all\n", 3)]);
        let reader = SessionReader::open(&db).expect("open");
        for (session, bytes) in [("old1", None), ("new1", Some(4))] {
            let row = reader.session(Viewer(5), session).expect("read").expect("there");
            assert_eq!(row["stderr_bytes"].as_i64(), bytes, "{session}");
            assert_eq!(reader.stderr(Viewer(5), session, 0, 9).expect("read").len(), 1, "{session}");
        }
    }

    #[test]
    fn a_page_ends_where_an_answer_would_be_long() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(db.clone(), None);
        let start =
            Row::Session { server_name: "s".into(), server_command: "s".into(), started_at: 1, client: None };
        // Each byte takes six in JSON.
        let text = "\u{1}".repeat(128 << 10);
        let rows: Vec<Row> = std::iter::once(start).chain((1..=16).map(|n| piece(n, &text, 0))).collect();
        store(&mut writer, "session", &rows);
        let reader = SessionReader::open(&db).expect("open");
        let (mut after, mut pages, mut seen) = (0, 0, 0);
        loop {
            let page = reader.stderr(Viewer(5), "session", after, 1000).expect("read");
            let Some(last) = page.last() else { break };
            assert!(Value::from(page.clone()).to_string().len() < 4 << 20);
            after = last["number"].as_i64().expect("a number");
            (pages, seen) = (pages + 1, seen + page.len());
        }
        assert!(pages > 3 && seen == 16, "{pages} pages, {seen} rows");
    }
}
