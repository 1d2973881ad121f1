//! What kind of operation a tool call is, by the tool's name. Pure.
//!
//! A name is read as people write them: `verb_object`, `vendor_verb_object`, `object_verb`. Its words are looked at from
//! the left, and the first that can only be a verb says what is done: what follows is what it is done to, so that
//! `get_delete_status` reads and `aws_s3_delete_object` deletes. Words that are as often nouns (`post`, `commit`, `query`)
//! are verbs only where a verb stands, at either end of the name. Vendors need no list: a word that is no verb says
//! nothing.

mod verbs;

use crate::word_list::WordList;
use ringfence_wire::tool_call::Operation;
use verbs::{begins_compound, is_looked_at, is_noun, is_object, is_run, last_verb, product, verb};

/// Words of a name that join two verbs: `get_and_delete`, `find_or_create`.
const JOINING: WordList = WordList::of(&["and", "or", "then"]);

/// Words that mean a shell wherever they stand in a tool's name.
const SHELLS: WordList = WordList::of(&[
    "shell",
    "bash",
    "zsh",
    "sh",
    "powershell",
    "terminal",
    "cmd",
    "command",
    "subprocess",
    "script",
]);

/// Words of a name that are looked at, from either end: more is no name.
const MOST: usize = 64;

/// What the [words](words) of a tool's name say. A shell word anywhere makes it at least an execution.
pub(crate) fn named(words: &[String]) -> Operation {
    let operation = name(words);
    if is_shell(words) && operation != Operation::Delete { Operation::Execute } else { operation }
}

/// The operation of a call, by what the tool's name says and the gravest that SQL in its arguments does. SQL can only make it
/// graver, but for a tool that queries, which is as harmless as its query.
pub(crate) fn with_sql(named: Operation, words: &[String], sql: Option<Operation>) -> Operation {
    // A query tool is as harmless as its query: the name's guess gives way to what the statement does.
    match sql {
        Some(found) if named == Operation::Read || named == Operation::Unknown => found,
        Some(found)
            if named != Operation::Delete && words.iter().any(|word| word == "query" || word == "sql") =>
        {
            found
        }
        Some(found) => named.max(found),
        None => named,
    }
}

/// Whether a word of the name means a shell.
pub(crate) fn is_shell(words: &[String]) -> bool {
    words.iter().any(|word| SHELLS.contains(word))
}

/// What the words of a name say, or of an argument that names an action: `delete_item`, `POST`.
pub(crate) fn name(words: &[String]) -> Operation {
    let words = words.get(product(words)..).unwrap_or_default();
    let words = words.get(..MOST).unwrap_or(words);
    let mut operation = by_place(words);
    for pair in words.windows(2).filter(|pair| JOINING.contains(&pair[0])) {
        operation = operation.max(verb(&pair[1]).unwrap_or(Operation::Unknown));
    }
    operation
}

fn by_place(words: &[String]) -> Operation {
    let Some(first) = words.first() else { return Operation::Unknown };
    let last = words.last().filter(|_| words.len() > 1);
    let at_end = last.and_then(|word| last_verb(word));
    if let Some(operation) = verb(first) {
        if first == "cancel" && words.len() > 1 && !words.iter().any(|word| is_run(word)) {
            return Operation::Delete;
        }
        // `run_delete`, `merge_request_delete`: the first word is the object. `run_delete_job`: what runs is named.
        let object = is_noun(first) || operation == Operation::Execute;
        let object = object || begins_compound(first, words.get(1));
        let named = operation == Operation::Execute
            && words.get(1).is_some_and(|word| verb(word) == Some(Operation::Delete));
        return match at_end {
            _ if named => Operation::Delete,
            Some(end) if is_object(first) && !last.is_some_and(|word| is_noun(word)) => end,
            Some(end) if object && !last.is_some_and(|word| is_noun(word)) => operation.max(end),
            _ => operation,
        };
    }
    let inside = words.get(1..words.len() - 1).unwrap_or_default();
    let between = inside.iter().enumerate().find_map(|(at, word)| {
        let counts = !is_noun(word) && !begins_compound(word, words.get(at + 2));
        verb(word).filter(|_| counts)
    });
    match (between, at_end) {
        // `slack_get_post`: the last word is the object. `file_list_delete`: it is the verb.
        (Some(between), Some(_)) if last.is_some_and(|word| is_noun(word)) => between,
        (Some(between), Some(end)) => between.max(end),
        (Some(between), None) => between,
        (None, Some(end)) => end,
        // A vendor, and a word that could be either: `acme_post_note`.
        (None, None) => match inside.first().and_then(|word| verb(word)) {
            Some(operation) if !begins_compound(&inside[0], words.get(2)) => operation,
            _ if words.last().is_some_and(|word| is_looked_at(word)) => Operation::Read,
            _ => Operation::Unknown,
        },
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
        let sql = sql::find(&words, arguments).map(|found| found.operation);
        super::with_sql(super::named(&words), &words, sql)
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
    fn a_verb_is_found_behind_a_vendor_and_an_object() {
        let cases = [
            ("github_delete_repository", Operation::Delete),
            ("aws_s3_delete_object", Operation::Delete),
            ("git_create_branch", Operation::Write),
            ("browser_run_code", Operation::Execute),
            ("sendgrid_delete_contact", Operation::Delete),
            ("send_grid_delete_contact", Operation::Delete),
            ("open_ai_create_thread", Operation::Write),
            ("issue_list_delete", Operation::Delete),
            ("file_list_delete", Operation::Delete),
            ("merge_request_delete", Operation::Delete),
            ("run_delete", Operation::Delete),
            ("github_find_or_create_label", Operation::Write),
            ("acme_get_and_delete_item", Operation::Delete),
            ("acme_post_note", Operation::Write),
            ("cancel_subscription", Operation::Delete),
            ("cancel_pipeline", Operation::Write),
            ("mark_all_notifications_read", Operation::Write),
        ];
        for (name, expected) in cases {
            assert_eq!(operation(name, &json!({})), expected, "{name}");
        }
    }

    #[test]
    fn what_a_verb_is_about_is_not_done() {
        let names = [
            "get_delete_status",
            "github_get_delete_status",
            "list_runs",
            "search_code",
            "slack_get_post",
            "github_get_commit",
            "list_merge_requests",
            "gitlab_list_merge_requests",
            "pull_request_read",
            "build_list",
            "describe_drop_policy",
            "list_deleted_items",
            "get_reset_options",
            "git_status",
        ];
        for name in names {
            assert_eq!(operation(name, &json!({})), Operation::Read, "{name}");
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
        let more = json!({ "id": 7, "x": "SELECT 1" });
        assert_eq!(
            operation("delete_saved_query", &more),
            Operation::Delete,
            "the server decides what it reads"
        );
    }
}
