//! SQL in a tool call's arguments: parsed, not searched. Pure.

use super::classify::Operation;
use serde_json::Value;
use sqlparser::{
    ast::{BinaryOperator, Expr, Query, SetExpr, Statement, UnaryOperator, Value as Literal, Visit, Visitor},
    dialect::{GenericDialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect},
    parser::Parser,
};
use std::ops::ControlFlow;

/// Longest text that is tried as SQL, bytes.
const LONGEST: usize = 256 * 1024;
/// Argument names that hold SQL and nothing else.
const SQL_KEYS: &[&str] = &["sql", "statement", "stmt"];
/// Argument names that may hold SQL.
const QUERY_KEYS: &[&str] = &["query", "q", "queries", "statements", "commands"];
/// Words of a tool's name that say the same.
const SQL_WORDS: &[&str] = &["sql", "query", "db", "database", "postgres", "mysql", "sqlite", "statement"];

/// Words of a tool whose `query` is prose: `delete my account` is a question there, though it parses as SQL.
const SEARCHES: &[&str] = &["search", "find", "lookup", "ask", "web", "docs", "grep"];

/// What the SQL of one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Findings {
    /// The gravest statement.
    pub(crate) operation: Operation,
    /// An UPDATE or DELETE without a WHERE, or with one that is always true; a TRUNCATE.
    pub(crate) unbounded: bool,
    /// Rows of the largest INSERT ... VALUES.
    pub(crate) rows: usize,
}

/// The gravest operation of any SQL in the arguments; `None` where there is none.
pub(crate) fn gravest(tool: &[String], arguments: &Value) -> Option<Operation> {
    find(tool, arguments).map(|findings| findings.operation)
}

/// Looks at every argument that may be SQL. Text under a key that holds nothing else (`sql`) and does not parse counts
/// as an execution: what a database makes of it is not known.
pub(crate) fn find(tool: &[String], arguments: &Value) -> Option<Findings> {
    let mut all: Option<Findings> = None;
    let named = tool.iter().any(|word| SQL_WORDS.contains(&word.as_str()));
    let prose = !named && tool.iter().any(|word| SEARCHES.contains(&word.as_str()));
    let Value::Object(members) = arguments else { return None };
    for (key, value) in members {
        let key = key.to_lowercase();
        let certain = SQL_KEYS.contains(&key.as_str());
        if !certain && !named && (prose || !QUERY_KEYS.contains(&key.as_str())) {
            continue;
        }
        let texts: Vec<&str> = match value {
            Value::String(text) => vec![text],
            Value::Array(items) => items.iter().filter_map(Value::as_str).collect(),
            _ => continue,
        };
        for text in texts {
            let unread = Findings { operation: Operation::Execute, unbounded: false, rows: 0 };
            let Some(found) = parse(text).or(certain.then_some(unread)) else { continue };
            all = Some(all.map_or(found, |all| Findings {
                operation: all.operation.max(found.operation),
                unbounded: all.unbounded || found.unbounded,
                rows: all.rows.max(found.rows),
            }));
        }
    }
    all
}

fn parse(text: &str) -> Option<Findings> {
    if text.len() > LONGEST || text.trim().is_empty() {
        return None;
    }
    let dialects: [&dyn sqlparser::dialect::Dialect; 4] =
        [&GenericDialect {}, &PostgreSqlDialect {}, &MySqlDialect {}, &SQLiteDialect {}];
    let statements = dialects.iter().find_map(|dialect| Parser::parse_sql(*dialect, text).ok())?;
    if statements.is_empty() {
        return None;
    }
    let mut reader =
        Reader { findings: Findings { operation: Operation::Unknown, unbounded: false, rows: 0 } };
    for statement in &statements {
        let _ = statement.visit(&mut reader);
    }
    Some(reader.findings)
}

/// Visits every statement, also those inside a CTE or behind EXPLAIN.
struct Reader {
    findings: Findings,
}

impl Visitor for Reader {
    type Break = ();

    fn pre_visit_statement(&mut self, statement: &Statement) -> ControlFlow<()> {
        let (operation, unbounded) = match statement {
            Statement::Query(_) | Statement::Explain { .. } | Statement::ExplainTable { .. } => {
                (Operation::Read, false)
            }
            Statement::Update(update) => (Operation::Write, boundless(update.selection.as_ref())),
            Statement::Delete(delete) => (Operation::Delete, boundless(delete.selection.as_ref())),
            Statement::Truncate { .. } => (Operation::Delete, true),
            Statement::Drop { .. } | Statement::DropFunction { .. } | Statement::DropProcedure { .. } => {
                (Operation::Delete, false)
            }
            Statement::Call(_) | Statement::Execute { .. } => (Operation::Execute, false),
            Statement::ShowTables { .. }
            | Statement::ShowColumns { .. }
            | Statement::ShowVariable { .. }
            | Statement::ShowDatabases { .. } => (Operation::Read, false),
            // Everything else changes something: INSERT, MERGE, COPY, CREATE, ALTER, GRANT, SET ...
            _ => (Operation::Write, false),
        };
        self.findings.operation = self.findings.operation.max(operation);
        self.findings.unbounded |= unbounded;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        match query.body.as_ref() {
            SetExpr::Values(values) => self.findings.rows = self.findings.rows.max(values.rows.len()),
            SetExpr::Select(select) if select.into.is_some() => {
                self.findings.operation = self.findings.operation.max(Operation::Write);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

fn boundless(condition: Option<&Expr>) -> bool {
    condition.is_none_or(|condition| constant(condition) == Some(true))
}

/// The truth of an expression that does not depend on the row, as far as it can be told without a database.
fn constant(expression: &Expr) -> Option<bool> {
    match expression {
        Expr::Nested(inner) => constant(inner),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => constant(expr).map(|truth| !truth),
        Expr::Value(value) => match &value.value {
            Literal::Boolean(truth) => Some(*truth),
            Literal::Number(number, _) => number.to_string().parse::<f64>().ok().map(|n| n != 0.0),
            _ => None,
        },
        Expr::IsNotNull(inner) => matches!(inner.as_ref(), Expr::Value(v) if v.value != Literal::Null).then_some(true),
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => match (constant(left), constant(right)) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), other) | (other, Some(false)) => other,
            _ => None,
        },
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => match (constant(left), constant(right)) {
            (Some(true), other) | (other, Some(true)) => other,
            (Some(false), _) | (_, Some(false)) => Some(false),
            _ => None,
        },
        Expr::BinaryOp { left, op, right } => compare(left, op, right),
        Expr::Like { negated: false, pattern, .. } => {
            matches!(pattern.as_ref(), Expr::Value(v) if v.value.clone().into_string().as_deref() == Some("%"))
                .then_some(true)
        }
        _ => None,
    }
}

/// Two equal sides are equal whatever they are (but for NULL, which deletes nothing); two literals are compared.
fn compare(left: &Expr, op: &BinaryOperator, right: &Expr) -> Option<bool> {
    let same = left == right;
    match op {
        BinaryOperator::Eq | BinaryOperator::GtEq | BinaryOperator::LtEq if same => return Some(true),
        BinaryOperator::NotEq | BinaryOperator::Gt | BinaryOperator::Lt if same => return Some(false),
        _ => {}
    }
    let (Expr::Value(left), Expr::Value(right)) = (left, right) else { return None };
    let ordering = match (number(&left.value), number(&right.value)) {
        (Some(left), Some(right)) => left.partial_cmp(&right)?,
        _ => left.value.clone().into_string()?.cmp(&right.value.clone().into_string()?),
    };
    match op {
        BinaryOperator::Eq => Some(ordering.is_eq()),
        BinaryOperator::NotEq => Some(ordering.is_ne()),
        BinaryOperator::Gt => Some(ordering.is_gt()),
        BinaryOperator::GtEq => Some(ordering.is_ge()),
        BinaryOperator::Lt => Some(ordering.is_lt()),
        BinaryOperator::LtEq => Some(ordering.is_le()),
        _ => None,
    }
}

fn number(value: &Literal) -> Option<f64> {
    match value {
        Literal::Number(number, _) => number.to_string().parse().ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::find;
    use serde_json::json;

    fn unbounded(sql: &str) -> bool {
        find(&[], &json!({ "sql": sql })).is_some_and(|findings| findings.unbounded)
    }

    #[test]
    fn a_where_that_is_always_true_is_none() {
        for sql in [
            "DELETE FROM t",
            "UPDATE t SET a = 1",
            "DELETE FROM t WHERE 1=1",
            "DELETE FROM t WHERE TRUE",
            "DELETE FROM t WHERE id = id",
            "DELETE FROM t WHERE (id = 3) OR 'a' = 'a'",
            "DELETE FROM t WHERE NOT (1 = 2)",
            "DELETE FROM t WHERE 2 > 1",
            "DELETE FROM t WHERE name LIKE '%'",
            "DELETE FROM t -- WHERE id = 1",
            "DELETE FROM t /* somewhere */",
            "TRUNCATE TABLE t",
        ] {
            assert!(unbounded(sql), "{sql}");
        }
    }

    #[test]
    fn a_real_where_is_one() {
        for sql in [
            "DELETE FROM t WHERE id = 1",
            "UPDATE t SET a = 1 WHERE b > 2 AND 1 = 1",
            "SELECT * FROM t",
            "DELETE FROM t WHERE 1 = 2",
            "INSERT INTO t VALUES ('DELETE FROM t')",
        ] {
            assert!(!unbounded(sql), "{sql}");
        }
    }

    #[test]
    fn rows_are_counted_and_prose_is_no_sql() {
        let rows = (0..12).map(|i| format!("({i})")).collect::<Vec<_>>().join(",");
        let found = find(&[], &json!({ "sql": format!("INSERT INTO t VALUES {rows}") }));
        assert_eq!(found.map(|f| f.rows), Some(12));
        assert_eq!(find(&[], &json!({ "query": "what is a table?" })), None);
        assert_eq!(find(&[], &json!({ "text": "DELETE FROM t" })), None);
        assert!(find(&[], &json!({ "sql": "not sql at all ((" })).is_some());
    }
}
