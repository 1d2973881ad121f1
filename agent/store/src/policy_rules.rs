//! Rules of the database.

use super::{
    Error, SessionReader, SessionWriter, condition_columns, connection::rows, session_writer::of_user, sql,
    turn,
};
use ringfence_base::clock::rfc3339;
use ringfence_wire::mcp::{MAX_STORED_RULES, StoredRule};
use rusqlite::{Row, ToSql};

/// Rules for the sessions of each user id.
const RULES_BY_UID: &str = "SELECT uid, count(*) FROM policy_rules GROUP BY uid";

impl SessionReader {
    /// The rules of the database that are switched on and bind the sessions of `uid`, oldest first.
    ///
    /// # Errors
    /// [`Error::Sql`].
    pub fn stored_rules(&self, uid: u32) -> Result<Vec<StoredRule>, Error> {
        let text = "SELECT * FROM policy_rules WHERE enabled AND uid IN (0, ?1) ORDER BY created_at, id";
        let rule = |row: &Row<'_>| {
            Ok(StoredRule {
                name: row.get("name")?,
                description: row.get::<_, Option<String>>("description")?.unwrap_or_default(),
                conditions: condition_columns::read(row)?,
                action: row.get::<_, String>("action")?.into(),
            })
        };
        rows(self.connection(), text, [uid], rule).map_err(sql("read the rules"))
    }
}

impl SessionWriter {
    /// Adds a rule for the sessions of `uid`, or of everybody for 0. Gives its id, or nothing where one of that name
    /// binds some of them already.
    ///
    /// # Errors
    /// [`Error`].
    pub fn add_rule(&mut self, uid: u32, rule: &StoredRule, now: i64) -> Result<Option<String>, Error> {
        let _turn = turn::wait();
        let id = uuid::Uuid::new_v4().to_string();
        let owners = self.owners.clone();
        let connection = self.connection()?;
        let owner = owners.of(uid);
        let count = of_user(connection, &owners, owner, RULES_BY_UID).map_err(sql("count rules"))?;
        if count >= MAX_STORED_RULES as u64 {
            return Err(Error::TooManyRules);
        }
        let conditions = condition_columns::values(&rule.conditions);
        let (action, created_at) = (rule.action.as_str(), rfc3339(now));
        let others: [(&str, &dyn ToSql); 6] = [
            ("uid", &uid),
            ("name", &rule.name),
            ("id", &id),
            ("description", &rule.description),
            ("action", &action),
            ("created_at", &created_at),
        ];
        let conditions = conditions.iter().map(|(name, value)| (*name, value as &dyn ToSql));
        let columns: Vec<(&str, &dyn ToSql)> = others.into_iter().chain(conditions).collect();
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let numbers: Vec<String> = (1..=columns.len()).map(|number| format!("?{number}")).collect();
        let text = format!(
            "INSERT INTO policy_rules ({}) SELECT {}
             WHERE NOT EXISTS (SELECT 1 FROM policy_rules WHERE name = ?2 AND (uid = ?1 OR uid = 0 OR ?1 = 0))",
            names.join(", "),
            numbers.join(", ")
        );
        let values: Vec<&dyn ToSql> = columns.iter().map(|(_, value)| *value).collect();
        let inserted = connection.execute(&text, values.as_slice());
        Ok((inserted.map_err(sql("store a rule"))? == 1).then_some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
        };
        let rules = [rule("every", conditions), rule("none", Conditions::default())];
        let mut writer = SessionWriter::new(path.clone(), None);
        for (now, rule) in (0..).zip(&rules) {
            writer.add_rule(5, rule, now).expect("stored").expect("new");
        }
        assert_eq!(writer.add_rule(5, &rules[0], 9).expect("asked"), None, "there is one of that name");
        let reader = SessionReader::open(&path).expect("opens");
        assert_eq!(reader.stored_rules(5).expect("read"), rules);
        assert!(reader.stored_rules(6).expect("read").is_empty(), "another user's");
    }
}
