//! Rules of the database.

use super::{Error, SessionReader, Viewer, condition_columns, connection::rows, sql};
use ringfence_session::ledger::RuleState;
use ringfence_wire::mcp::StoredRule;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde_json::Value;
use std::collections::HashMap;

/// Names whose hits are read at once, the last named first: more than are kept of one user.
const MOST_NAMES: u32 = 2000;

/// Rows of rules as [`SessionReader::rules`] has them, those of the viewer `?1`.
const ROWS: &str =
    "SELECT r.*, row_number() OVER (PARTITION BY uid ORDER BY position, created_at, id) AS place,
         coalesce((SELECT sum(hits) FROM rule_hits h WHERE h.name = r.name AND (?1 = 0 OR h.uid = ?1)
             AND (r.uid = 0 OR h.uid = r.uid)), 0) AS hits,
         (SELECT max(last) FROM rule_hits h WHERE h.name = r.name AND (?1 = 0 OR h.uid = ?1)
             AND (r.uid = 0 OR h.uid = r.uid)) AS last_hit
     FROM policy_rules r WHERE (?1 = 0 OR uid IN (0, ?1))";

/// A rule of the database, and whose sessions it binds: everybody's for 0.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) id: String,
    pub(crate) uid: u32,
    pub(crate) state: RuleState,
}

/// The rules of the database that bind the sessions of `uid`, those that are off included: root's first, then in their order.
pub(crate) fn binding(connection: &Connection, uid: u32) -> rusqlite::Result<Vec<Owned>> {
    let text = "SELECT *, row_number() OVER (PARTITION BY uid ORDER BY position, created_at, id) AS place
         FROM policy_rules WHERE uid IN (0, ?1) ORDER BY uid, place";
    rows(connection, text, [uid], owned)
}

fn owned(row: &Row<'_>) -> rusqlite::Result<Owned> {
    let state = RuleState {
        version: row.get("version")?,
        place: row.get("place")?,
        enabled: row.get("enabled")?,
        rule: stored(row)?,
    };
    Ok(Owned { id: row.get("id")?, uid: row.get("uid")?, state })
}

fn stored(row: &Row<'_>) -> rusqlite::Result<StoredRule> {
    Ok(StoredRule {
        name: row.get("name")?,
        description: row.get::<_, Option<String>>("description")?.unwrap_or_default(),
        conditions: condition_columns::read(row)?,
        action: row.get::<_, String>("action")?.into(),
        // What cannot be read excepts nothing: its action is none that a rule has.
        exception: row
            .get::<_, Option<String>>("exception")?
            .and_then(|text| serde_json::from_str(&text).ok()),
    })
}

impl SessionReader {
    /// The rules of the database that are switched on and bind the sessions of `uid`, in their order.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn stored_rules(&self, uid: u32) -> Result<Vec<StoredRule>, Error> {
        let text = "SELECT * FROM policy_rules WHERE enabled AND uid IN (0, ?1)
             ORDER BY uid, position, created_at, id";
        rows(self.connection(), text, [uid], stored).map_err(sql("read the rules"))
    }

    /// The rows of the rules that bind the viewer's sessions, in their order; for root, of all. `place` is a rule's among those
    /// of its owner, from 1; `hits` is how many calls of the viewer's have a verdict that names it, and `last_hit` when the last
    /// of them was asked for.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn rules(&self, viewer: Viewer) -> Result<Vec<Value>, Error> {
        self.rows(&format!("{ROWS} ORDER BY uid, place LIMIT 1000"), &[&viewer.0])
    }

    /// The same of one rule, however many there are.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn rule(&self, viewer: Viewer, id: &str) -> Result<Option<Value>, Error> {
        // Of its owner's all: a rule's place is among those.
        let text = format!(
            "SELECT * FROM ({ROWS} AND uid = (SELECT uid FROM policy_rules WHERE id = ?2)) WHERE id = ?2"
        );
        self.rows(&text, &[&viewer.0, &id]).map(|mut rows| rows.pop())
    }

    /// The rule of that id that binds the viewer's sessions; for root, of any.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn stored_rule(&self, viewer: Viewer, id: &str) -> Result<Option<StoredRule>, Error> {
        let text = "SELECT * FROM policy_rules WHERE id = ?2 AND (?1 = 0 OR uid IN (0, ?1))";
        let found = self.connection().query_row(text, params![viewer.0, id], stored).optional();
        found.map_err(sql("read a rule"))
    }

    /// How many calls of the viewer's have a verdict that names each rule, and when the last of them was asked for.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn rule_hits(&self, viewer: Viewer) -> Result<HashMap<String, (i64, String)>, Error> {
        let text = "SELECT name, sum(hits), max(last) FROM rule_hits WHERE ?1 = 0 OR uid = ?1
             GROUP BY name ORDER BY max(last) DESC LIMIT ?2";
        let hit = |row: &Row<'_>| Ok((row.get(0)?, (row.get(1)?, row.get(2)?)));
        rows(self.connection(), text, params![viewer.0, MOST_NAMES], hit)
            .map(HashMap::from_iter)
            .map_err(sql("read how often rules applied"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionWriter;
    use ringfence_wire::mcp::Conditions;
    use serde_json::json;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let conditions = json!({ "tool_pattern": "a_*,b", "server_pattern": "c", "min_risk_score": 7,
            "operation_types": ["read", "write", "fly"] });
        let conditions: Conditions = serde_json::from_value(conditions).expect("conditions");
        let rule = |name: &str, conditions| StoredRule {
            name: name.into(),
            description: "d".into(),
            conditions,
            action: "block".into(),
            exception: None,
        };
        let rules = [rule("every", conditions), rule("none", Conditions::default())];
        let mut writer = SessionWriter::new(path.clone(), None);
        for (now, rule) in (0..).zip(&rules) {
            writer.add_rule(5, rule, now).expect("stored").expect("new");
        }
        assert_eq!(writer.add_rule(5, &rules[0], 9).expect("asked"), None, "there is one of that name");
        let reader = SessionReader::open(&path).expect("opens");
        assert_eq!(reader.stored_rules(5).expect("read"), rules);
        let of_root = writer.add_rule(0, &rule("root's", Conditions::default()), 10).expect("stored");
        let of_root = of_root.expect("new");
        for viewer in [0, 5, 6].map(Viewer) {
            for row in reader.rules(viewer).expect("read") {
                let id = row["id"].as_str().expect("an id");
                assert_eq!(reader.rule(viewer, id).expect("read"), Some(row.clone()), "as it is listed");
                assert!(
                    reader.rule(Viewer(6), id).expect("read").is_none() || id == of_root,
                    "another user's"
                );
            }
        }
        assert_eq!(reader.rules(Viewer(0)).expect("read").len(), 3);
        assert_eq!(reader.stored_rules(6).expect("read").len(), 1, "root's, and not another user's");
    }
}
