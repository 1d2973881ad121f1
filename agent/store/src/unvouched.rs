//! What of the rows that no journal makes somebody else than the auditor wrote.

use super::{Error, SessionReader, SessionWriter, Viewer, sql, turn, vouched};
use ringfence_wire::mcp::COPYING;
use rusqlite::params;
use serde_json::{Value, json};

/// A place among all that is compared is the number of the query, and this many bits of the row's number in it.
const ROW_BITS: u32 = 48;
/// Highest number of a row.
const MOST_ROW: i64 = (1 << ROW_BITS) - 1;
/// Most rows with numbers of no row of the auditor's that one query tells of.
const MOST_ODD: u32 = 10;

impl SessionReader {
    /// Intents, their calls, rules and rule files that are not what the auditor wrote: `kind`, `id`, and `how`: `changed`,
    /// `added` or `removed`. Rules of everybody's are shown to everybody. Up to `limit` rows are compared that come behind
    /// `after`, 0 at first. The last row of an answer has no `kind`: its `_rowid` is where to go on, and with `end` nothing
    /// is left; who goes on behind that has no more rows. While rows of before there
    /// were copies are being copied, nothing is compared: one row says so, which has [`ringfence_wire::mcp::COPYING`] as `how`.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn unvouched(&self, viewer: Viewer, after: i64, limit: u32) -> Result<Vec<Value>, Error> {
        let fail = sql("compare intents and rules with what was written");
        if !vouched::is_whole(self.connection()).map_err(&fail)? {
            let says = json!({ "_rowid": i64::MAX - 1, "kind": "copies", "id": "", "how": COPYING });
            let all = vec![says, json!({ "_rowid": i64::MAX, "end": true })];
            return Ok(if after < i64::MAX { all } else { Vec::new() });
        }
        let all = vouched::comparisons(self.connection()).map_err(&fail)?;
        let (query, mut row) = (after >> ROW_BITS, after & MOST_ROW);
        let Ok(at) = usize::try_from(query) else { return Ok(Vec::new()) };
        if at >= all.len() {
            return Ok(Vec::new());
        }
        let (mut found, mut room) = (Vec::new(), limit.max(1));
        for (query, (kind, text)) in (0i64..).zip(&all).skip(at) {
            let mut statement = self.connection().prepare(text).map_err(&fail)?;
            let mut compare = |from: i64, to: i64, most: u32| -> rusqlite::Result<Vec<Compared>> {
                let rows = statement.query_map(params![viewer.0, from, most, to], |row| {
                    // Who wrote it may have given it an id of another type.
                    let id = row.get(1).unwrap_or_else(|_| "of no text".to_owned());
                    Ok(Compared { row: row.get(0)?, id, how: row.get(2)? })
                });
                rows?.collect()
            };
            let told = |row: i64, id: String, how: &str| json!({ "_rowid": place(query, row), "kind": kind, "id": id, "how": how });
            if row == 0 {
                // Numbers that no row of the auditor's has. That there are such rows is all that is told of them.
                for (from, to) in [(i64::MIN, 0), (MOST_ROW + 1, i64::MAX)] {
                    for odd in compare(from, to, MOST_ODD).map_err(&fail)? {
                        found.push(told(0, odd.id, odd.how.as_deref().unwrap_or("changed")));
                    }
                }
            }
            for compared in compare(row + 1, MOST_ROW, room).map_err(&fail)? {
                row = compared.row;
                room = room.saturating_sub(1);
                if let Some(how) = compared.how {
                    found.push(told(row, compared.id, &how));
                }
            }
            if room == 0 {
                found.push(json!({ "_rowid": place(query, row) }));
                return Ok(found);
            }
            row = 0;
        }
        found.push(json!({ "_rowid": i64::MAX, "end": true }));
        Ok(found)
    }
}

impl SessionWriter {
    /// Copies some of the rows that there were before there were copies; whether there may be more.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn copy_older(&mut self) -> Result<bool, Error> {
        let _turn = turn::wait();
        vouched::copy_some(self.connection()?).map_err(sql("copy rows of before"))
    }
}

/// One row that was compared.
struct Compared {
    row: i64,
    id: String,
    /// What was done to it; `None`: it is what the auditor wrote.
    how: Option<String>,
}

/// Where a row of a query is among all.
fn place(query: i64, row: i64) -> i64 {
    (query << ROW_BITS) | row
}

#[cfg(test)]
mod tests {
    use crate::{SessionReader, SessionWriter, Viewer};
    use ringfence_wire::mcp::{COPYING, Conditions, RuleFile, StoredRule};
    use rusqlite::Connection;
    use serde_json::Value;

    /// An intent of one call.
    const INTENT: &str = "
        INSERT INTO sessions (id, server_name, server_command, started_at, uid) VALUES ('s', '', '', '', 5);
        INSERT INTO messages (id, session_id, direction, timestamp, raw) VALUES ('m', 's', '', '', '');
        INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at)
            VALUES ('c', 's', 'm', 't', '{}', 'read', '');
        INSERT OR IGNORE INTO intent_contexts (id, session_id, created_at) VALUES ('i', 's', '');
        INSERT OR IGNORE INTO intent_tool_calls VALUES ('i', 'c', 1);";

    #[test]
    fn what_somebody_else_writes_is_told_from_what_the_auditor_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open").execute_batch(INTENT).expect("an intent");
        let rule = StoredRule {
            name: "r".into(),
            description: "it's; x='1'".into(),
            conditions: Conditions::default(),
            action: "block".into(),
            exception: None,
        };
        writer.add_rule(5, &rule, 0).expect("stored").expect("new");
        let file = RuleFile { path: "/f".into(), text: "rules: []".into(), trusted: false };
        writer.offer_rules(5, &file, 0).expect("taken");
        let reader = SessionReader::open(&path).expect("opens");
        let found = |viewer: u32| -> Vec<String> {
            different(&reader, viewer, 99)
                .iter()
                .map(|row| format!("{} {}", row["kind"].as_str().unwrap(), row["how"].as_str().unwrap()))
                .collect()
        };
        let none = Vec::<String>::new;
        assert_eq!(found(0), none());
        // The auditor's own changes are none.
        let own = "UPDATE intent_contexts SET source = 'client'; UPDATE intent_tool_calls SET sequence_order = 2;
            UPDATE policy_rules SET enabled = 0; INSERT OR IGNORE INTO intent_contexts (id, session_id, created_at) VALUES ('i', 's', 'x');
            INSERT OR REPLACE INTO intent_tool_calls VALUES ('i', 'c', 3)";
        writer.connection().expect("open").execute_batch(own).expect("changed");
        assert_eq!(found(0), none());
        let other = Connection::open(&path).expect("opens");
        let changes = [
            ("UPDATE intent_contexts SET human_prompt = 'something harmless'", "intent changed"),
            (
                "INSERT INTO intent_contexts (id, session_id, created_at) VALUES ('j', 's', '')",
                "intent added",
            ),
            ("UPDATE intent_tool_calls SET sequence_order = 9", "link changed"),
            ("DELETE FROM intent_tool_calls", "link removed"),
            ("UPDATE policy_rules SET action = 'pass'", "rule changed"),
            ("UPDATE policy_rules SET description = CAST('x' AS BLOB)", "rule changed"),
            ("DELETE FROM policy_rules", "rule removed"),
            ("UPDATE rule_files SET text = ''", "rule file changed"),
            ("DELETE FROM rule_files", "rule file removed"),
        ];
        for (change, what) in changes {
            other.execute_batch(&format!("SAVEPOINT s; {change}; RELEASE s")).expect("changed");
            assert!(found(0).contains(&what.to_owned()), "{change}: {:?}", found(0));
            assert_eq!(found(5), found(0), "they are that user's");
            assert_eq!(found(6), none(), "and nobody else's");
        }
        // Another connection of the auditor's does not take them for its own.
        drop(writer);
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open");
        assert!(found(0).contains(&"rule removed".to_owned()));
        // Page by page they are the same, however long a page is.
        for limit in [0, 1, 2, 3, 7] {
            assert_eq!(different(&reader, 0, limit), different(&reader, 0, 99), "{limit}");
        }
    }

    #[test]
    fn a_page_compares_no_more_rows_than_it_may_and_none_of_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open").execute_batch(INTENT).expect("an intent");
        let many = |uid: u32| {
            format!(
                "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 500)
                 INSERT INTO policy_rules (id, name, action, created_at, uid) SELECT '{uid} ' || n, 'x', 'block', '', {uid} FROM n"
            )
        };
        let other = Connection::open(&path).expect("opens");
        other.execute_batch(&many(6)).expect("rules of another's");
        other.execute_batch(&many(5)).expect("rules");
        let reader = SessionReader::open(&path).expect("opens");
        let first = reader.unvouched(Viewer(5), 0, 100).expect("compared");
        // One intent and one link are what they were.
        assert_eq!((first.len(), first.last().map(|row| row.get("kind"))), (99, Some(None)), "{first:?}");
        assert_eq!((different(&reader, 5, 100).len(), different(&reader, 0, 100).len()), (500, 1000));
        assert!(different(&reader, 7, 100).is_empty());
    }

    #[test]
    fn a_row_that_was_given_to_somebody_else_is_missed_by_its_owner() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open").execute_batch(INTENT).expect("an intent");
        let rule = StoredRule {
            name: "r".into(),
            description: String::new(),
            conditions: Conditions::default(),
            action: "block".into(),
            exception: None,
        };
        writer.add_rule(5, &rule, 0).expect("stored").expect("new");
        let reader = SessionReader::open(&path).expect("opens");
        let other = Connection::open(&path).expect("opens");
        other.execute_batch("PRAGMA foreign_keys = OFF").expect("set");
        assert_eq!(different(&reader, 5, 9), Vec::<Value>::new(), "the control");
        for (change, kind) in [
            ("UPDATE policy_rules SET uid = 6", "rule"),
            ("UPDATE intent_contexts SET session_id = 'none', human_prompt = 'harmless'", "intent"),
        ] {
            other.execute_batch(change).expect("changed");
            let found = different(&reader, 5, 9);
            assert!(
                found.iter().any(|row| row["kind"] == kind && row["how"] == "removed"),
                "{change}: {found:?}"
            );
        }
    }

    #[test]
    fn a_row_with_a_number_of_no_row_of_the_auditors_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open").execute_batch(INTENT).expect("an intent");
        let reader = SessionReader::open(&path).expect("opens");
        let other = Connection::open(&path).expect("opens");
        for number in [i64::MIN, -1, 0, 1 << 48, i64::MAX] {
            for change in ["", ", human_prompt = 'x'"] {
                for limit in [1, 100] {
                    assert!(different(&reader, 5, limit).is_empty(), "the control");
                    other
                        .execute(&format!("UPDATE intent_contexts SET rowid = ?1{change}"), [number])
                        .expect("moved");
                    assert_eq!(different(&reader, 5, limit).len(), 1, "{number}{change}");
                    other
                        .execute("UPDATE intent_contexts SET rowid = 1, human_prompt = NULL", [])
                        .expect("as it was");
                }
            }
        }
    }

    /// All rows that differ, by pages of so many rows.
    fn different(reader: &SessionReader, viewer: u32, limit: u32) -> Vec<Value> {
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let rows = reader.unvouched(Viewer(viewer), after, limit).expect("compared");
            let Some(last) = rows.last() else { break all };
            let next = last["_rowid"].as_i64().expect("a number");
            assert!(next > after, "{last}");
            after = next;
            all.extend(rows.into_iter().filter(|row| row.get("kind").is_some()).map(|mut row| {
                row["_rowid"].take();
                row
            }));
        }
    }

    #[test]
    fn bytes_behind_a_nul_are_part_of_a_copy() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        let rule = StoredRule {
            name: "r".into(),
            description: "x".into(),
            conditions: Conditions { tool_pattern: Some("delete*".into()), ..Conditions::default() },
            action: "block".into(),
            exception: None,
        };
        writer.add_rule(0, &rule, 0).expect("stored").expect("new");
        let reader = SessionReader::open(&path).expect("opens");
        let found = || different(&reader, 0, 9).len();
        let other = Connection::open(&path).expect("opens");
        for value in ["tool_pattern || char(0) || 'x'", "char(0)", "CAST(tool_pattern AS BLOB)", "''"] {
            let change = format!("UPDATE policy_rules SET tool_pattern = {value}");
            assert_eq!(found(), 0, "the control");
            other.execute_batch(&change).expect("changed");
            assert_eq!(found(), 1, "{change}");
            other.execute_batch("UPDATE policy_rules SET tool_pattern = 'delete*'").expect("as it was");
        }
    }

    #[test]
    fn rows_of_before_are_taken_for_what_they_are_some_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open").execute_batch(INTENT).expect("an intent");
        let more = "
            WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 5000)
            INSERT INTO intent_contexts (rowid, id, session_id, created_at) SELECT 3 * n, n, 's', '' FROM n;
            DELETE FROM vouched";
        writer.connection().expect("open").execute_batch(more).expect("as it was before");
        drop(writer);
        let reader = SessionReader::open(&path).expect("opens");
        let found = || different(&reader, 0, 9);
        let mut steps = 0;
        // A new writer each time, as if the auditor was started again.
        while SessionWriter::new(path.clone(), None).copy_older().expect("copied") {
            assert_eq!((found().len(), &found()[0]["how"]), (1, &COPYING.into()), "nothing is compared yet");
            steps += 1;
            if steps == 1 {
                // What the auditor has written meanwhile is known, whoever changes it before its turn has come.
                let mut writer = SessionWriter::new(path.clone(), None);
                let own = "UPDATE intent_contexts SET source = 'client' WHERE id = '4999'";
                writer.connection().expect("open").execute_batch(own).expect("changed");
                let other = "UPDATE intent_contexts SET source = 'time' WHERE id = '4999'";
                Connection::open(&path).expect("opens").execute_batch(other).expect("changed");
            }
        }
        assert_eq!(steps, 4, "three for the intents, one for the links");
        let rows = found();
        assert_eq!((rows.len(), &rows[0]["id"], &rows[0]["how"]), (1, &"4999".into(), &"changed".into()));
    }
}
