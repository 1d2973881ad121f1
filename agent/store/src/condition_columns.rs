//! The columns of `policy_rules` that hold conditions, each of them by its name.
//!
//! Which there are and what is in them is said where conditions are matched (`ringfence_session::conditions`). Migrations
//! made those of the first conditions; a database that lacks a later one's gets it when it is opened, so that a new
//! condition is no migration. A Ringfence from before the condition passes its column over, and has a rule about more
//! calls: rules of the database only tighten.

use super::mcp_schema::SCHEMA;
use ringfence_session::conditions::{self, Cell};
use ringfence_wire::mcp::Conditions;
use rusqlite::{Connection, Row, TransactionBehavior, types::Value};

/// The columns that migrations made.
const MIGRATED: &[&str] = &["tool_pattern", "server_pattern", "min_risk_score", "operation_types"];

/// The tables of MCP sessions as SQL: what a database of them is made with.
pub fn mcp_schema_sql() -> String {
    SCHEMA.concat() + &added_to(|name| MIGRATED.contains(&name))
}

/// Gives each condition its column.
pub(crate) fn add(connection: &mut Connection) -> rusqlite::Result<()> {
    if lacking(connection)?.is_empty() {
        return Ok(());
    }
    // Asked again within: another connection may have just done it.
    let step = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let text = lacking(&step)?;
    step.execute_batch(&text)?;
    step.commit()
}

/// What adds the columns that a database lacks.
fn lacking(connection: &Connection) -> rusqlite::Result<String> {
    let statement = connection.prepare("SELECT * FROM policy_rules")?;
    Ok(added_to(|name| statement.column_index(name).is_ok()))
}

/// What adds the columns that a table with some lacks.
fn added_to(has: impl Fn(&str) -> bool) -> String {
    let columns = conditions::columns(&Conditions::default());
    let lacking = columns.into_iter().filter(|(name, _)| !has(name));
    lacking
        .map(|(name, cell)| {
            let kind = match cell {
                Cell::Text(_) => "TEXT",
                Cell::Number(_) => "INTEGER",
            };
            format!("\n    ALTER TABLE policy_rules ADD COLUMN {name} {kind};\n")
        })
        .collect()
}

/// Conditions for a row.
pub(crate) fn values(conditions: &Conditions) -> Vec<(&'static str, Value)> {
    let value = |cell: Cell| match cell {
        Cell::Text(text) => text.map_or(Value::Null, Value::Text),
        Cell::Number(number) => Value::Integer(number.into()),
    };
    conditions::columns(conditions).into_iter().map(|(name, cell)| (name, value(cell))).collect()
}

/// The conditions of a row.
///
/// # Errors
/// A column has another type than its condition.
pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Conditions> {
    conditions::from_columns(|name| row.get(name), |name| row.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SessionReader, SessionWriter};
    use ringfence_wire::mcp::StoredRule;
    use serde_json::json;

    #[test]
    fn a_new_database_has_a_column_for_each_condition_and_so_has_what_is_exported() {
        let folder = tempfile::tempdir().expect("a folder");
        let opened = crate::open_existing(&folder.path().join("audit.db")).expect("opens");
        let exported = Connection::open_in_memory().expect("opens");
        exported.execute_batch(&mcp_schema_sql()).expect("runs");
        for connection in [&opened, &exported] {
            assert_eq!(lacking(connection).expect("asked"), "");
        }
    }

    #[test]
    fn a_database_from_before_a_condition_gets_its_column_and_keeps_its_rules() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let rule = |name: &str| {
            let conditions = json!({ "tool_pattern": "a_*", "server_pattern": "c", "min_risk_score": 7 });
            StoredRule {
                name: name.into(),
                description: String::new(),
                conditions: serde_json::from_value(conditions).expect("conditions"),
                action: "block".into(),
                exception: None,
            }
        };
        let add = |name: &str, now| {
            let mut writer = SessionWriter::new(path.clone(), None);
            writer.add_rule(5, &rule(name), now).expect("stored").expect("new");
        };
        add("before", 0);
        let connection = Connection::open(&path).expect("opens");
        for name in ["server_pattern", "min_risk_score"] {
            let text = format!("ALTER TABLE policy_rules DROP COLUMN {name}");
            connection.execute_batch(&text).expect("dropped");
        }
        assert_eq!(lacking(&connection).expect("asked").matches("ADD COLUMN").count(), 2, "the control");
        drop(connection);
        add("after", 1);
        let reader = SessionReader::open(&path).expect("opens");
        let mut before = rule("before");
        before.conditions.server_pattern = None;
        before.conditions.min_risk_score = 0;
        assert_eq!(reader.stored_rules(5).expect("read"), [before, rule("after")]);
    }
}
