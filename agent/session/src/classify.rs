//! What kind of operation a tool call is: by the tool's name, and by any SQL in its arguments. Pure.

use ringfence_wire::tool_call::Operation;

/// Verbs of each operation. The first eight or so of each are the audit contract's; the rest are what servers in use
/// call the same things.
const VERBS: [(Operation, &[&str]); 4] = [
    (
        Operation::Delete,
        &["delete", "remove", "drop", "destroy", "purge", "rm", "unlink", "truncate", "erase", "wipe"],
    ),
    (Operation::Execute, &["run", "exec", "execute", "invoke", "call", "trigger", "eval", "spawn", "launch"]),
    (
        Operation::Write,
        &[
            "create", "update", "set", "add", "put", "edit", "modify", "write", "insert", "append", "move",
            "rename", "copy", "upload", "send", "post", "push", "merge", "replace", "patch", "save",
            "publish", "commit",
        ],
    ),
    (
        Operation::Read,
        &[
            "get",
            "read",
            "list",
            "search",
            "describe",
            "show",
            "find",
            "fetch",
            "view",
            "query",
            "open",
            "count",
            "stat",
            "directory",
            "ls",
            "cat",
            "head",
            "tail",
            "grep",
            "lookup",
            "check",
            "echo",
        ],
    ),
];

/// Words of a name that join two verbs: `get_and_delete`, `find_or_create`.
const JOINING: &[&str] = &["and", "or", "then"];

/// Words that mean a shell wherever they stand in a tool's name.
const SHELLS: &[&str] =
    &["shell", "bash", "zsh", "sh", "powershell", "terminal", "cmd", "command", "subprocess", "script"];

/// The operation of a call, by the [words](words) of its tool's name and the gravest that SQL in its arguments does. The
/// name's first word decides, then its last, and with either the gravest verb that is joined to it; a shell word anywhere
/// makes it at least an execution; SQL can only make it
/// graver.
pub fn operation(words: &[String], sql: Option<Operation>) -> Operation {
    let verb = |word: Option<&String>| {
        let word = word?;
        VERBS.iter().find(|(_, verbs)| verbs.contains(&word.as_str())).map(|(operation, _)| *operation)
    };
    let mut operation = verb(words.first()).or_else(|| verb(words.last())).unwrap_or(Operation::Unknown);
    for pair in words.windows(2).filter(|pair| JOINING.contains(&pair[0].as_str())) {
        operation = operation.max(verb(pair.get(1)).unwrap_or(Operation::Unknown));
    }
    if words.iter().any(|word| SHELLS.contains(&word.as_str())) && operation != Operation::Delete {
        operation = Operation::Execute;
    }
    // A query tool is as harmless as its query: the name's guess gives way to what the statement does.
    match sql {
        Some(found) if operation == Operation::Read || operation == Operation::Unknown => found,
        Some(found) if words.iter().any(|word| word == "query" || word == "sql") => found,
        Some(found) => operation.max(found),
        None => operation,
    }
}

#[cfg(test)]
mod tests {
    use super::Operation;
    use crate::sql;
    use ringfence_redact::words::words;
    use serde_json::{Value, json};

    fn operation(name: &str, arguments: &Value) -> Operation {
        let words = words(name);
        super::operation(&words, sql::find(&words, arguments).map(|found| found.operation))
    }

    #[test]
    fn names_are_split_into_words() {
        assert_eq!(words("mcp__github__createIssue"), ["create", "issue"]);
        assert_eq!(words("delete-file"), ["delete", "file"]);
        assert_eq!(words("HTTPServer.runNow2"), ["http", "server", "run", "now2"]);
        assert_eq!(words("mcp__x"), ["mcp", "x"]);
        assert!(words("").is_empty());
    }

    #[test]
    fn names_decide() {
        let cases = [
            ("read_file", Operation::Read),
            ("get_workflow_run", Operation::Read),
            ("create_issue", Operation::Write),
            ("file_delete", Operation::Delete),
            ("purgeQueue", Operation::Delete),
            ("run_tests", Operation::Execute),
            ("bash", Operation::Execute),
            ("get_shell_output", Operation::Execute),
            ("frobnicate", Operation::Unknown),
            ("undelete_file", Operation::Unknown),
            ("get_and_delete_message", Operation::Delete),
            ("findOrCreateUser", Operation::Write),
            ("delete-or-list", Operation::Delete),
            ("read_terms_and_conditions", Operation::Read),
            ("and", Operation::Unknown),
            ("", Operation::Unknown),
        ];
        for (name, expected) in cases {
            assert_eq!(operation(name, &json!({})), expected, "{name}");
        }
    }

    #[test]
    fn sql_decides_where_there_is_some() {
        let cases = [
            ("SELECT * FROM users", Operation::Read),
            ("INSERT INTO t VALUES (1)", Operation::Write),
            ("UPDATE t SET a = 1 WHERE id = 2", Operation::Write),
            ("DROP TABLE t", Operation::Delete),
            ("SELECT 1; DELETE FROM t", Operation::Delete),
            ("WITH gone AS (DELETE FROM t RETURNING *) SELECT * FROM gone", Operation::Delete),
            ("TRUNCATE t", Operation::Delete),
        ];
        for (sql, expected) in cases {
            assert_eq!(operation("query", &json!({ "sql": sql })), expected, "{sql}");
        }
        assert_eq!(operation("search", &json!({"query": "delete my account"})), Operation::Read);
    }
}
