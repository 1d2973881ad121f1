//! SQL in a tool call's arguments: parsed, not searched. Pure.

use ringfence_wire::tool_call::Operation;
use serde_json::Value;
use sqlparser::{
    ast::{
        AlterTableOperation, BinaryOperator, Expr, MergeAction, Query, SetExpr, Statement, UnaryOperator,
        Value as Literal, Visit, Visitor, visit_expressions,
    },
    dialect::{Dialect, GenericDialect, MsSqlDialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect},
    keywords::Keyword,
    parser::Parser,
    tokenizer::{Token, TokenWithSpan, Tokenizer},
};
use std::{ops::ControlFlow, panic, thread};

/// Most levels of a tree of expressions. Of a deeper text, as of one that is [too long](LONGEST), only the words count.
const DEEPEST: usize = 1000;
/// The stack that a text of that depth is parsed and visited on, bytes: the parser goes at most 50 levels down, and a level of it
/// has up to 40 KiB in a build without optimisation. Only what is used of it becomes memory. It is a thread's: that one cannot be had
/// is an error and no panic.
const STACK: usize = 8 << 20;
/// Longest text that is parsed, bytes.
const LONGEST: usize = 256 * 1024;
/// Argument names that hold SQL and nothing else.
const SQL_KEYS: &[&str] = &["sql", "statement", "stmt"];
/// Argument names that may hold SQL.
const QUERY_KEYS: &[&str] = &["query", "q", "queries", "statements", "commands"];
/// Words of a tool's name that say the same.
const SQL_WORDS: &[&str] = &["sql", "query", "db", "database", "postgres", "mysql", "sqlite", "statement"];

/// Words of a tool whose `query` is prose: `delete my account` is a question there, though it parses as SQL.
const SEARCHES: &[&str] = &["search", "find", "lookup", "ask", "web", "docs", "grep"];

/// Words that statements begin with.
const STATEMENTS: &[&str] = &[
    "alter", "analyze", "begin", "call", "copy", "create", "declare", "delete", "do", "drop", "exec",
    "execute", "explain", "grant", "if", "insert", "load", "merge", "pragma", "prepare", "purge", "rename",
    "replace", "revoke", "select", "set", "show", "start", "table", "truncate", "update", "upsert", "use",
    "vacuum", "values", "while", "with",
];
/// Words that do something wherever they stand in SQL that no dialect parses, and what.
const DEEDS: [(Operation, &[&str]); 3] = [
    (Operation::Delete, &["delete", "drop", "purge", "truncate"]),
    (Operation::Execute, &["call", "declare", "do", "exec", "execute", "prepare"]),
    (
        Operation::Write,
        &[
            "alter", "copy", "create", "grant", "insert", "into", "load", "merge", "rename", "replace",
            "revoke", "update", "upsert",
        ],
    ),
];

/// What the SQL of one call does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Findings {
    /// The gravest statement.
    pub operation: Operation,
    /// An UPDATE or DELETE without a WHERE, or with one that is always true; a TRUNCATE.
    pub unbounded: bool,
    /// Rows of the largest INSERT ... VALUES.
    pub rows: usize,
}

/// Looks at every argument that may be SQL, at any depth. Text under a key that holds nothing else (`sql`) and does not
/// parse counts as an execution at least: what a database makes of it is not known.
pub fn find(tool: &[String], arguments: &Value) -> Option<Findings> {
    let named = tool.iter().any(|word| SQL_WORDS.contains(&word.as_str()));
    let prose = !named && tool.iter().any(|word| SEARCHES.contains(&word.as_str()));
    let mut search = Search { named, prose, texts: Vec::new() };
    search.value(arguments, Likelihood::None);
    judged(&search.texts, STACK)
}

/// What a text does that a database's client is given: SQL, or a command of the client's own.
pub(crate) fn statements(text: &str) -> Option<Findings> {
    judged(&[(text, false)], STACK)
}

/// The gravest of what these texts do; each is with whether it is certainly SQL.
fn judged(texts: &[(&str, bool)], stack: usize) -> Option<Findings> {
    let each = |parse: fn(&str) -> Option<Findings>| {
        let found =
            texts.iter().filter_map(|(text, certain)| parse(text).or_else(|| unparsed(text, *certain)));
        found.reduce(Findings::with)
    };
    if !texts.iter().any(|(text, _)| may_parse(text)) {
        return each(|_| None);
    }
    let parsed = thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(stack).spawn_scoped(scope, || each(parse)).ok()?;
        Some(thread.join().unwrap_or_else(|why| panic::resume_unwind(why)))
    });
    // Where there is no room for the parser, the words count.
    parsed.unwrap_or_else(|| each(|_| None))
}

/// Whether a value is SQL, as far as its key tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Likelihood {
    /// Holds no SQL.
    None,
    /// May hold some.
    Possible,
    /// Holds nothing else.
    Certain,
}

/// Texts that may be SQL, each with whether it is nothing else.
struct Search<'a> {
    named: bool,
    prose: bool,
    texts: Vec<(&'a str, bool)>,
}

impl<'a> Search<'a> {
    /// Depth is bounded by the line judge's limit.
    fn value(&mut self, value: &'a Value, likelihood: Likelihood) {
        match value {
            Value::String(text) if likelihood != Likelihood::None => {
                self.texts.push((text, likelihood == Likelihood::Certain))
            }
            Value::Array(items) => items.iter().for_each(|item| self.value(item, likelihood)),
            Value::Object(members) => {
                for (key, member) in members {
                    self.value(member, self.likelihood(&key.to_lowercase(), likelihood));
                }
            }
            _ => {}
        }
    }

    fn likelihood(&self, key: &str, around: Likelihood) -> Likelihood {
        let possible = self.named || around != Likelihood::None || !self.prose && QUERY_KEYS.contains(&key);
        match (SQL_KEYS.contains(&key), possible) {
            (true, _) => Likelihood::Certain,
            (false, true) => Likelihood::Possible,
            (false, false) => Likelihood::None,
        }
    }
}

impl Findings {
    const NONE: Self = Self { operation: Operation::Unknown, unbounded: false, rows: 0 };

    /// The graver of each.
    fn with(self, other: Self) -> Self {
        Self {
            operation: self.operation.max(other.operation),
            unbounded: self.unbounded || other.unbounded,
            rows: self.rows.max(other.rows),
        }
    }
}

fn may_parse(text: &str) -> bool {
    text.len() <= LONGEST && !text.trim().is_empty()
}

/// What the text does in that dialect in which it does the gravest: which one the database speaks is not known, and a
/// string of one may hold the statement of another. On a stack of [`STACK`].
fn parse(text: &str) -> Option<Findings> {
    if !may_parse(text) {
        return None;
    }
    let dialects: [&dyn Dialect; 5] =
        [&GenericDialect {}, &PostgreSqlDialect {}, &MySqlDialect {}, &SQLiteDialect {}, &MsSqlDialect {}];
    let mut gravest: Option<Findings> = None;
    for dialect in dialects {
        let Ok(tokens) = Tokenizer::new(dialect, text).tokenize_with_location() else { continue };
        if is_deep(&tokens) {
            return None;
        }
        let parsed = Parser::new(dialect).with_tokens_with_locations(tokens).parse_statements();
        let Ok(statements) = parsed else { continue };
        if statements.is_empty() {
            continue;
        }
        let mut reader = Reader { findings: Findings::NONE };
        for statement in &statements {
            let _ = statement.visit(&mut reader);
        }
        gravest = Some(gravest.map_or(reader.findings, |all| all.with(reader.findings)));
    }
    gravest
}

/// Whether a tree of these tokens could be too deep. The parser bounds its own recursion, but not the depth of what it
/// builds in loops: each `OR 1` puts the whole chain before it one level down, and freeing, visiting or reading the tree
/// goes down all of them. A chain of operators ends at a comma, one of set operators does not.
fn is_deep(tokens: &[TokenWithSpan]) -> bool {
    // Tokens that may be a level, in each of the brackets that are open; their sum; set operators, all of them.
    let (mut open, mut levels, mut sets) = (vec![0usize], 0usize, 0usize);
    for token in tokens {
        let mut add = false;
        match &token.token {
            Token::LParen | Token::LBracket | Token::LBrace => {
                if let Some(around) = open.last_mut() {
                    *around += 1;
                }
                levels += 1;
                open.push(0);
            }
            Token::RParen | Token::RBracket | Token::RBrace if open.len() > 1 => {
                levels -= open.pop().unwrap_or_default();
            }
            Token::Comma | Token::SemiColon => {
                if let Some(here) = open.last_mut() {
                    levels -= std::mem::take(here);
                }
            }
            Token::Word(word) => match word.keyword {
                Keyword::NoKeyword => {}
                Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS => sets += 1,
                _ => add = true,
            },
            Token::Whitespace(_) | Token::Number(..) | Token::SingleQuotedString(_) | Token::EOF => {}
            _ => add = true,
        }
        if add && let Some(here) = open.last_mut() {
            *here += 1;
            levels += 1;
        }
        if levels + sets > DEEPEST {
            return true;
        }
    }
    false
}

/// What a text does that no dialect parses, or that is too long or too deep: the gravest of its words, in strings and comments too.
/// Where its WHERE belongs cannot be told, so there is none. `None` for what is no SQL.
fn unparsed(text: &str, certain: bool) -> Option<Findings> {
    if !certain && !STATEMENTS.iter().any(|word| first_word(text).eq_ignore_ascii_case(word)) {
        return None;
    }
    let operation = if certain { Operation::Execute } else { Operation::Read };
    let mut found = Findings { operation, ..Findings::NONE };
    for word in text.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()) {
        let is = |known: &&str| word.eq_ignore_ascii_case(known);
        if let Some((operation, _)) = DEEDS.iter().find(|(_, words)| words.iter().any(is)) {
            found.operation = found.operation.max(*operation);
        }
        found.unbounded |= ["delete", "update", "truncate"].iter().any(is);
    }
    Some(found)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first word behind white space, brackets and comments. MySQL runs what stands in `/*! ... */`.
fn first_word(text: &str) -> &str {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || "(;{\u{feff}\0".contains(c));
        let after = if let Some(hint) = rest.strip_prefix("/*!") {
            Some(hint.trim_start_matches(|c: char| c.is_ascii_digit()))
        } else if let Some(comment) = rest.strip_prefix("/*") {
            comment.split_once("*/").map(|(_, after)| after)
        } else if rest.starts_with("--") || rest.starts_with('#') {
            rest.split_once('\n').map(|(_, after)| after)
        } else {
            let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
            return &rest[..end];
        };
        rest = after.unwrap_or_default();
        if rest.is_empty() {
            return "";
        }
    }
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
            Statement::Drop { .. }
            | Statement::DropFunction { .. }
            | Statement::DropProcedure { .. }
            | Statement::DropDomain { .. }
            | Statement::DropSecret { .. }
            | Statement::DropPolicy { .. }
            | Statement::DropConnector { .. }
            | Statement::DropExtension { .. }
            | Statement::DropOperator { .. }
            | Statement::DropOperatorFamily { .. }
            | Statement::DropOperatorClass { .. }
            | Statement::DropTrigger { .. } => (Operation::Delete, false),
            Statement::Merge(merge)
                if merge.clauses.iter().any(|clause| matches!(clause.action, MergeAction::Delete { .. })) =>
            {
                (Operation::Delete, false)
            }
            Statement::AlterTable(alter) if alter.operations.iter().any(drops) => (Operation::Delete, false),
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

fn drops(operation: &AlterTableOperation) -> bool {
    use AlterTableOperation as Op;
    matches!(
        operation,
        Op::DropColumn { .. }
            | Op::DropConstraint { .. }
            | Op::DropForeignKey { .. }
            | Op::DropIndex { .. }
            | Op::DropPartitions { .. }
            | Op::DropPrimaryKey { .. }
            | Op::DropProjection { .. }
    )
}

fn boundless(condition: Option<&Expr>) -> bool {
    condition.is_none_or(|condition| matches!(truth(condition), Truth::True | Truth::Unknown))
}

/// What a condition is, as far as it can be told without a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    True,
    False,
    /// The same for every row, and not known: it counts as true.
    Unknown,
    /// It depends on the row.
    Row,
}

impl Truth {
    fn of(truth: bool) -> Self {
        if truth { Self::True } else { Self::False }
    }
}

fn truth(expression: &Expr) -> Truth {
    let found = match expression {
        Expr::Nested(inner) => return truth(inner),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => {
            return match truth(expr) {
                Truth::True => Truth::False,
                Truth::False => Truth::True,
                other => other,
            };
        }
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => {
            return match (truth(left), truth(right)) {
                (Truth::True, _) | (_, Truth::True) => Truth::True,
                (Truth::Unknown, _) | (_, Truth::Unknown) => Truth::Unknown,
                (Truth::False, other) | (other, Truth::False) => other,
                (Truth::Row, Truth::Row) => Truth::Row,
            };
        }
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => {
            return match (truth(left), truth(right)) {
                (Truth::False, _) | (_, Truth::False) => Truth::False,
                (Truth::Row, _) | (_, Truth::Row) => Truth::Row,
                (Truth::True, other) | (other, Truth::True) => other,
                (Truth::Unknown, Truth::Unknown) => Truth::Unknown,
            };
        }
        Expr::Value(value) => match &value.value {
            Literal::Boolean(truth) => Some(*truth),
            literal => number(literal).map(|n| n != 0.0),
        },
        Expr::BinaryOp { left, op, right } => compare(left, op, right),
        Expr::Like { negated: false, pattern, .. } => {
            matches!(pattern.as_ref(), Expr::Value(v) if v.value.clone().into_string().as_deref() == Some("%"))
                .then_some(true)
        }
        _ => None,
    };
    match found {
        Some(truth) => Truth::of(truth),
        None if mentions_row(expression) => Truth::Row,
        None => Truth::Unknown,
    }
}

/// Whether a column is named anywhere in it.
fn mentions_row(expression: &Expr) -> bool {
    visit_expressions(expression, |part| match part {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::MatchAgainst { .. } => {
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    })
    .is_break()
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
mod tests;
