//! What of the rows that no journal makes somebody else than the auditor wrote.

use super::{Error, SessionReader, SessionWriter, Shown, Viewer, sql, turn, vouched};
use ringfence_wire::mcp::COPYING;
use rusqlite::params;
use serde_json::{Value, json};

impl SessionReader {
    /// Intents, their calls, rules and rule files that are not what the auditor wrote, up to `limit` of them: `kind`, `id`,
    /// and `how`: `changed`, `added` or `removed`. Rules of everybody's are shown to everybody. While rows of before there were
    /// copies are being copied, nothing is compared: a single row says so, which has [`ringfence_wire::mcp::COPYING`] as `how`.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn unvouched(&self, viewer: Viewer, limit: u32) -> Result<Vec<Value>, Error> {
        let fail = sql("compare intents and rules with what was written");
        if !vouched::is_whole(self.connection()).map_err(&fail)? {
            return Ok(vec![json!({ "_rowid": 1, "kind": "copies", "id": "", "how": COPYING })]);
        }
        let all = vouched::differing(self.connection()).map_err(&fail)?;
        let text = format!(
            "SELECT 1 AS _rowid, kind, id, how FROM ({all}) WHERE ?1 = 0 OR uid = ?1 OR (uid = 0 AND kind = 'rule') LIMIT ?2"
        );
        self.page(&text, params![viewer.0, limit], Shown::Parsed)
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

#[cfg(test)]
mod tests {
    use crate::{SessionReader, SessionWriter, Viewer};
    use ringfence_wire::mcp::{COPYING, Conditions, RuleFile, StoredRule};
    use rusqlite::Connection;

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
        };
        writer.add_rule(5, &rule, 0).expect("stored").expect("new");
        let file = RuleFile { path: "/f".into(), text: "rules: []".into(), trusted: false };
        writer.offer_rules(5, &file, 0).expect("taken");
        let reader = SessionReader::open(&path).expect("opens");
        let found = |viewer: u32| -> Vec<String> {
            let rows = reader.unvouched(Viewer(viewer), 99).expect("compared");
            rows.iter()
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
        assert_eq!(reader.unvouched(Viewer(0), 2).expect("compared").len(), 2);
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
        };
        writer.add_rule(0, &rule, 0).expect("stored").expect("new");
        let reader = SessionReader::open(&path).expect("opens");
        let found = || reader.unvouched(Viewer(0), 9).expect("compared").len();
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
        let found = || reader.unvouched(Viewer(0), 9).expect("compared");
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
