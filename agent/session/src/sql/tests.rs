//! What SQL does, and what is none.

use super::{LONGEST, Operation, STACK, find, judged};
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
        "DELETE FROM t WHERE 1 IN (1)",
        "DELETE FROM t WHERE EXISTS (SELECT 1)",
        "DELETE FROM t WHERE 1 BETWEEN 0 AND 2",
        "DELETE FROM t WHERE '1'",
        "DELETE FROM t WHERE \"1\"",
        "DELETE FROM t WHERE true IS TRUE",
        "DELETE FROM t WHERE id = 3 OR NOT (1 IN (2))",
        "DELETE FROM t WHERE length('a') > 0 AND 1 = 1",
        "UPDATE t SET a = 1 WHERE 1 + 1 = 2",
    ] {
        assert!(unbounded(sql), "{sql}");
    }
}

#[test]
fn where_there_is_no_room_for_the_parser_the_words_count() {
    let text = "DELETE FROM t WHERE id = 1";
    let on =
        |stack| judged(&[("", true), (text, false)], stack).map(|found| (found.operation, found.unbounded));
    assert_eq!(on(STACK), Some((Operation::Delete, false)), "the control");
    // More than any address space has.
    assert_eq!(on(1 << 56), Some((Operation::Delete, true)));
}

#[test]
fn a_real_where_is_one() {
    for sql in [
        "DELETE FROM t WHERE id = 1",
        "UPDATE t SET a = 1 WHERE b > 2 AND 1 = 1",
        "SELECT * FROM t",
        "DELETE FROM t WHERE 1 = 2",
        "DELETE FROM t WHERE id IN (1, 2) AND 1 IN (1)",
        "DELETE FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.id = t.id)",
        "INSERT INTO t VALUES ('DELETE FROM t')",
    ] {
        assert!(!unbounded(sql), "{sql}");
    }
}

fn operation(sql: &str) -> Option<Operation> {
    find(&[], &json!({ "query": sql })).map(|findings| findings.operation)
}

#[test]
fn what_no_dialect_parses_is_as_grave_as_its_words() {
    let padded = format!("/*{}*/ DELETE FROM users", "x".repeat(LONGEST));
    for sql in [
        "DELETE FROM users NOT INDEXED",
        "DO $$ BEGIN DELETE FROM users; END $$",
        "-- look\n/*!50000 delete from users nonsense nonsense */",
        &padded,
    ] {
        let found = find(&[], &json!({ "query": sql })).expect("SQL");
        let shown = &sql[..sql.len().min(60)];
        assert_eq!((found.operation, found.unbounded), (Operation::Delete, true), "{shown}");
    }
    assert_eq!(operation("update users set a b c"), Some(Operation::Write));
    assert_eq!(operation("select what you like best, please!"), Some(Operation::Read));
    assert_eq!(operation("how do I delete a table?"), None);
    assert_eq!(operation("/* DELETE FROM t"), None);
}

#[test]
fn the_dialect_in_which_it_is_gravest_counts() {
    for sql in [
        r"SELECT 'a\''; DELETE FROM users; -- '",
        "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN DELETE",
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t DROP CONSTRAINT a",
        "DROP TRIGGER a ON t",
    ] {
        assert_eq!(operation(sql), Some(Operation::Delete), "{sql}");
    }
    assert_eq!(
        operation("MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET a = 1"),
        Some(Operation::Write)
    );
    assert_eq!(operation("ALTER TABLE t ADD COLUMN a INT"), Some(Operation::Write));
}

#[test]
fn sql_is_found_at_any_depth() {
    for arguments in [
        json!({"input": {"sql": "DROP TABLE t"}}),
        json!({"queries": [{"sql": "DROP TABLE t"}]}),
        json!({"queries": [{"text": "DROP TABLE t"}]}),
        json!({"a": [{"b": [{"statement": ["DROP TABLE t"]}]}]}),
    ] {
        let found = find(&[], &arguments).map(|findings| findings.operation);
        assert_eq!(found, Some(Operation::Delete), "{arguments}");
    }
    assert_eq!(find(&[], &json!({"input": {"text": "DROP TABLE t"}})), None);
    assert_eq!(find(&["search".to_owned()], &json!({"filter": {"query": "drop table t"}})), None);
}

#[test]
fn no_chain_of_operators_is_too_long() {
    for (begin, link) in [
        ("DELETE FROM t WHERE id = 1", " OR 1=1"),
        ("DELETE FROM t WHERE id = 1", "+1"),
        ("DELETE FROM t WHERE id = 1", " OR f(1,1)"),
        ("DELETE FROM t WHERE id = 1", "::int"),
        ("DELETE FROM t WHERE id = a", "[1]"),
        ("DELETE FROM t WHERE id IN (SELECT 1, 2", " UNION SELECT 1, 2"),
        ("DELETE FROM t WHERE id = ", "NOT "),
        ("DELETE FROM t WHERE id = ", "("),
        ("DELETE FROM t WHERE id = ", "- "),
        ("DELETE FROM t WHERE id = ", "(SELECT 1 FROM a WHERE b = "),
        ("DELETE FROM t WHERE id IN (SELECT 1 FROM ", "(SELECT 1 FROM "),
        ("DELETE FROM t WHERE id = ", "CASE WHEN 1 = 1 THEN "),
        ("DELETE FROM t WHERE id = ", "ARRAY[f("),
        ("DELETE FROM t USING ", "(a JOIN "),
    ] {
        for length in [300, 1000, 5000, 200_000 / link.len()] {
            let found = find(&[], &json!({ "sql": format!("{begin}{}", link.repeat(length)) }));
            assert_eq!(found.map(|f| f.operation), Some(Operation::Delete), "{begin} {link} {length}");
        }
    }
    let terms = |count| format!("DELETE FROM t WHERE id = 1{}", " OR id = 2".repeat(count));
    assert!(!unbounded(&terms(200)), "people write such");
    assert!(unbounded(&terms(20_000)));
}

#[test]
fn many_rows_are_no_depth() {
    let rows = vec!["(-1, NULL, 'a', 1.5)"; 5000].join(",");
    let found = find(&[], &json!({ "sql": format!("INSERT INTO t VALUES {rows}") }));
    assert_eq!(found.map(|f| (f.operation, f.rows)), Some((Operation::Write, 5000)));
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
