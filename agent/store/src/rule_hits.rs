//! How often verdicts named each rule, and when last.
//!
//! The names are in journals, which say what their users like. So a call counts for few rules, and of one user's names only so
//! many are kept: those that were named last, and rules of the database and those that ship before any other. Whether another
//! name is that of a rule of some file, nobody here knows.

use super::{Error, Retention, SessionWriter, sql, turn};
use ringfence_base::clock::rfc3339;
use ringfence_session::rules;
use rusqlite::{Transaction, params};
use std::sync::LazyLock;

/// Most names of one user, subordinate ids included: as many rules of the database as can bind a session, and some of files.
pub(crate) const MOST: usize = 512;
/// How many more are forgotten at once, so that not every call has to.
const SLACK: usize = 64;
/// Most names of one call that count.
const MOST_OF_CALL: usize = 32;
/// Bytes of a name that is kept.
const LONGEST_NAME: usize = 200;

/// Names of the rules that ship, as JSON.
static SHIPPED: LazyLock<String> = LazyLock::new(|| {
    let shipped = rules::read(rules::SHIPPED).unwrap_or_default();
    let names: Vec<String> = shipped.into_iter().map(|rule| rule.name).collect();
    serde_json::Value::from(names).to_string()
});

/// Counts a new call of `uid`, an id of the user `owner`, whose verdict has these names, or whose score exceptions of these names
/// lowered; `at`: when it was asked for.
pub(crate) fn count(
    step: &Transaction<'_>,
    (uid, owner): (u32, u32),
    names: &[&String],
    at: &str,
) -> rusqlite::Result<()> {
    let mut is_longer = false;
    for (index, name) in names.iter().copied().enumerate().take(MOST_OF_CALL) {
        if name.len() > LONGEST_NAME || names.iter().take(index).any(|earlier| *earlier == name) {
            continue;
        }
        let known = step
            .prepare_cached(
                "UPDATE rule_hits SET hits = hits + 1, last = max(last, ?3) WHERE uid = ?1 AND name = ?2",
            )?
            .execute(params![uid, name, at])?;
        if known == 0 {
            step.prepare_cached(
                "INSERT INTO rule_hits (uid, name, owner, hits, last) VALUES (?1, ?2, ?3, 1, ?4)",
            )?
            .execute(params![uid, name, owner, at])?;
            is_longer = true;
        }
    }
    if is_longer { bound(step, owner) } else { Ok(()) }
}

/// Forgets what is beyond the bound.
fn bound(step: &Transaction<'_>, owner: u32) -> rusqlite::Result<()> {
    let kept: i64 = step
        .prepare_cached("SELECT count(*) FROM rule_hits WHERE owner = ?1")?
        .query_row([owner], |row| row.get(0))?;
    if kept <= MOST as i64 {
        return Ok(());
    }
    step.prepare_cached(
        "DELETE FROM rule_hits WHERE (uid, name) IN (
             SELECT h.uid, h.name FROM rule_hits h WHERE h.owner = ?1
             ORDER BY h.name IN (SELECT value FROM json_each(?3))
                 OR EXISTS (SELECT 1 FROM policy_rules p WHERE p.name = h.name AND p.uid IN (0, h.uid)) DESC,
                 h.last DESC, h.uid, h.name
             LIMIT -1 OFFSET ?2)",
    )?
    .execute(params![owner, (MOST - SLACK) as i64, *SHIPPED])
    .map(drop)
}

impl SessionWriter {
    /// Forgets names that no verdict had for as long as sessions are kept, where no rule of the database has them and none that
    /// ships: most likely no rule does any more.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn forget_hits(&mut self, retention: &Retention, now: i64) -> Result<(), Error> {
        let _turn = turn::wait();
        self.connection()?
            .execute(
                "DELETE FROM rule_hits WHERE last < ?1 AND name NOT IN (SELECT value FROM json_each(?2))
                     AND NOT EXISTS (SELECT 1 FROM policy_rules p WHERE p.name = rule_hits.name)",
                params![rfc3339(now.saturating_sub(retention.age)), *SHIPPED],
            )
            .map(drop)
            .map_err(sql("forget how often rules applied"))
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, MOST_OF_CALL, SLACK};
    use crate::{Changed, Position, Retention, SessionReader, SessionWriter, Viewer, tests::call_rows};
    use ringfence_base::{clock::rfc3339, quota::Owners};
    use ringfence_session::rows::ingest::Row;
    use ringfence_wire::mcp::{Conditions, RuleChange, StoredRule};

    const SECOND: i64 = 1_000_000;

    fn rule(name: &str) -> StoredRule {
        StoredRule {
            name: name.into(),
            description: String::new(),
            conditions: Conditions::default(),
            action: "block".into(),
            exception: None,
        }
    }

    /// Stores a call of a user's session that was asked for at `at`, µs, and whose verdict has these names.
    fn store(writer: &mut SessionWriter, uid: u32, (id, at): (&str, i64), names: &[&str]) {
        let session = uid.to_string();
        let (_, epoch) = writer.lines(&session, uid).expect("read").expect("one's own");
        let place = Position {
            session: &session,
            uid,
            journal: "",
            lines: 2,
            head: "h",
            bytes: 9,
            read_to: 0,
            epoch,
        };
        let (message, mut call) = call_rows(id, at);
        call.judged.rules = names.iter().map(|name| (*name).to_owned()).collect();
        let start = Row::Session {
            server_name: "s".into(),
            server_command: "s".into(),
            started_at: at,
            client: None,
        };
        writer
            .write(&place, &[start, Row::Message(Box::new(message)), Row::Call(Box::new(call))])
            .expect("stored");
    }

    #[test]
    fn hits_are_those_of_a_users_calls_from_a_rules_beginning_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        let id = writer.add_rule(5, &rule("a"), 1).expect("stored").expect("new");
        for (number, names) in (1..).zip([&["a"][..], &["a", "of_a_file", "a"], &[]]) {
            store(&mut writer, 5, (&format!("call{number}"), number * SECOND), names);
        }
        // Read again after a restart.
        store(&mut writer, 5, ("call2", 2 * SECOND), &["a", "of_a_file"]);
        store(&mut writer, 6, ("other", 9 * SECOND), &["a"]);
        let reader = SessionReader::open(&path).expect("opens");
        let rows = reader.rules(Viewer(5)).expect("reads");
        assert_eq!(rows[0]["hits"], 2, "not another user's");
        assert_eq!(rows[0]["last_hit"], rfc3339(2 * SECOND));
        assert_eq!(reader.rule_hits(Viewer(5)).expect("reads")["of_a_file"].0, 1);
        assert_eq!(reader.rules(Viewer(0)).expect("reads")[0]["hits"], 2, "it binds one user's");

        let delete = RuleChange::Delete { id, version: 1 };
        let deleted = writer.change_rule(Viewer(5), &delete, ("somebody", true), 9).expect("asked");
        assert!(matches!(deleted, Changed::Done { .. }));
        writer.add_rule(5, &rule("a"), 1).expect("stored").expect("new");
        let hits = &reader.rules(Viewer(5)).expect("reads")[0]["hits"];
        assert_eq!(*hits, 0, "another rule of the name begins anew");
    }

    #[test]
    fn names_that_a_journal_makes_up_are_bounded_and_push_no_rule_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        // 7 is a subordinate id of 5.
        let owners = Owners::parse("user:7:1", |_| Some(5));
        let mut writer = SessionWriter::new(path.clone(), None).with_owners(owners);
        writer.add_rule(5, &rule("real"), 1).expect("stored").expect("new");
        store(&mut writer, 5, ("first", SECOND), &["real"]);
        store(&mut writer, 6, ("first of 6", SECOND), &["x"]);
        let long = "x".repeat(201);
        store(&mut writer, 5, ("long", SECOND), &[&long]);
        for number in 0..40 {
            let names: Vec<String> = (0..1000).map(|name| format!("{number}-{name}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let uid = if number % 2 == 0 { 5 } else { 7 };
            store(&mut writer, uid, (&number.to_string(), (number + 2) * SECOND), &names);
        }
        let connection = writer.connection().expect("open");
        let count = |condition: &str| -> i64 {
            let text = format!("SELECT count(*) FROM rule_hits WHERE {condition}");
            connection.query_row(&text, [], |row| row.get(0)).expect("counted")
        };
        let kept = count("owner = 5");
        assert!(((MOST - SLACK) as i64..=MOST as i64).contains(&kept), "{kept}");
        assert_eq!(count("name GLOB '39-*'"), MOST_OF_CALL as i64, "the last stay");
        assert_eq!(count("name GLOB '0-*'"), 0, "the first go");
        assert_eq!((count("name = 'real'"), count("uid = 6"), count("length(name) > 200")), (1, 1, 0));

        let retention = Retention { age: SECOND, ..Retention::default() };
        writer.forget_hits(&retention, 42 * SECOND).expect("forgotten");
        let hits = SessionReader::open(&path).expect("opens").rule_hits(Viewer(0)).expect("reads");
        assert_eq!(hits.len(), 1 + MOST_OF_CALL, "{:?}", hits.keys());
        assert!(hits.contains_key("real"), "it is a rule, however long ago it was named");
    }
}
