//! The columns of `policy_rules` that hold conditions, each of them by its name.
//!
//! Which there are and what is in them is said where conditions are matched (`ringfence_session::conditions`).

use ringfence_session::conditions::{self, Cell};
use ringfence_wire::mcp::Conditions;
use rusqlite::{Row, types::Value};

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
