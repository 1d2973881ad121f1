//! Words that say what a tool does, by operation, and the words around them that change how they are read.

use crate::word_list::WordList;
use ringfence_wire::tool_call::Operation;

/// Verbs of each operation. The first eight or so of each are the audit contract's; the rest are what servers in use
/// call the same things.
const VERBS: [(Operation, WordList); 4] = [
    (
        Operation::Delete,
        WordList::of(&[
            "delete",
            "remove",
            "drop",
            "destroy",
            "purge",
            "rm",
            "unlink",
            "truncate",
            "erase",
            "wipe",
            "clear",
            "cleanup",
            "del",
            "hdel",
            "srem",
            "zrem",
            "lrem",
            "xdel",
            "lpop",
            "rpop",
            "spop",
            "flush",
            "flushdb",
            "flushall",
            "prune",
            "rmdir",
            "reset",
            "revoke",
            "trash",
            "teardown",
            "deprovision",
            "terminate",
            "uninstall",
            "unpublish",
            "expunge",
            "discard",
            "recreate",
        ]),
    ),
    (
        Operation::Execute,
        WordList::of(&[
            "run", "exec", "execute", "invoke", "call", "trigger", "eval", "spawn", "launch", "evaluate",
            "start", "stop", "restart", "kill", "interact", "deploy", "install", "build", "play", "retry",
            "rerun", "reload", "reboot", "shutdown", "rollout", "forward", "upgrade", "audit",
        ]),
    ),
    (
        Operation::Write,
        WordList::of(&[
            "create",
            "update",
            "set",
            "add",
            "put",
            "edit",
            "modify",
            "write",
            "insert",
            "append",
            "move",
            "rename",
            "copy",
            "upload",
            "send",
            "post",
            "push",
            "merge",
            "replace",
            "patch",
            "save",
            "publish",
            "commit",
            "store",
            "hset",
            "sadd",
            "zadd",
            "xadd",
            "xack",
            "lpush",
            "rpush",
            "expire",
            "click",
            "type",
            "press",
            "fill",
            "drag",
            "select",
            "handle",
            "apply",
            "scale",
            "assign",
            "attach",
            "detach",
            "link",
            "unlock",
            "lock",
            "fork",
            "star",
            "unstar",
            "mark",
            "dismiss",
            "request",
            "manage",
            "transition",
            "reply",
            "reorder",
            "resolve",
            "approve",
            "unapprove",
            "reject",
            "complete",
            "prepare",
            "provision",
            "configure",
            "pause",
            "resume",
            "restore",
            "rebase",
            "clone",
            "convert",
            "promote",
            "demote",
            "protect",
            "unprotect",
            "archive",
            "unarchive",
            "mute",
            "unmute",
            "ban",
            "unban",
            "block",
            "unblock",
            "pin",
            "unpin",
            "invite",
            "join",
            "leave",
            "subscribe",
            "unsubscribe",
            "enable",
            "disable",
            "activate",
            "deactivate",
            "import",
            "load",
            "checkout",
            "pull",
            "finalize",
            "give",
            "resize",
            "emulate",
            "new",
            "migrate",
            "cancel",
            "connect",
            "disconnect",
            "alter",
        ]),
    ),
    (
        Operation::Read,
        WordList::of(&[
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
            "retrieve",
            "analyze",
            "analyse",
            "inspect",
            "explain",
            "compare",
            "validate",
            "verify",
            "peek",
            "download",
            "export",
            "scrape",
            "crawl",
            "extract",
            "map",
            "navigate",
            "wait",
            "hover",
            "take",
            "generate",
            "suggest",
            "recommend",
            "summarize",
            "aggregate",
            "ping",
            "whoami",
            "scan",
            "hget",
            "hgetall",
            "hexists",
            "llen",
            "lrange",
            "smembers",
            "xrange",
            "zrange",
            "dbsize",
            "poll",
            "browse",
            "preview",
        ]),
    ),
];

/// Verbs that are more often nouns: they count where a verb stands, at either end of a name, and nowhere between.
const NOUNS: WordList = WordList::of(&[
    "audit",
    "block",
    "build",
    "call",
    "cat",
    "clone",
    "commit",
    "complete",
    "copy",
    "count",
    "directory",
    "echo",
    "export",
    "fork",
    "forward",
    "head",
    "import",
    "install",
    "link",
    "lock",
    "map",
    "mark",
    "new",
    "open",
    "patch",
    "pin",
    "post",
    "pull",
    "query",
    "release",
    "reply",
    "request",
    "scale",
    "scan",
    "select",
    "star",
    "stat",
    "store",
    "tail",
    "type",
    "view",
]);

/// Those of them that the contract's table does not have: before another verb they are its object (`pull_request_read`).
const OBJECTS: WordList = WordList::of(&[
    "audit", "block", "build", "clone", "export", "fork", "forward", "import", "install", "link", "lock",
    "map", "new", "pin", "pull", "release", "reply", "request", "scale", "scan", "select", "star", "store",
    "type",
]);

/// Verbs that are nouns at the end of a name as well: `http_request`.
const FIRST_ONLY: WordList = WordList::of(&["block", "link", "map", "new", "request"]);

/// Words that a name ends with when it says what one looks at, and not what is done.
const LOOKED_AT: WordList = WordList::of(&[
    "blame",
    "config",
    "context",
    "contexts",
    "details",
    "diff",
    "diffs",
    "discussions",
    "docs",
    "graph",
    "history",
    "indexes",
    "info",
    "issues",
    "log",
    "logs",
    "messages",
    "metadata",
    "overview",
    "replies",
    "report",
    "requests",
    "schema",
    "screenshot",
    "size",
    "snapshot",
    "stats",
    "status",
    "summarizer",
    "summary",
    "tree",
    "version",
]);

/// Two words at the beginning of a name that are a product, though the first is a verb.
const PRODUCTS: &[(&str, &str)] = &[
    ("open", "ai"),
    ("open", "api"),
    ("open", "search"),
    ("open", "telemetry"),
    ("post", "hog"),
    ("post", "mark"),
    ("push", "bullet"),
    ("push", "over"),
    ("run", "pod"),
    ("send", "grid"),
];

/// Two words that are one thing, though the first is a verb.
const COMPOUNDS: &[(&str, &str)] = &[("merge", "request"), ("merge", "requests"), ("pull", "request")];

/// Words for work that runs: cancelling it leaves everything where it was. Whatever else is cancelled is gone.
const RUNS: WordList = WordList::of(&[
    "build",
    "crawl",
    "deployment",
    "execution",
    "export",
    "job",
    "pipeline",
    "query",
    "request",
    "run",
    "scan",
    "search",
    "task",
    "upload",
    "workflow",
]);

/// What a word does, if it is a verb.
pub(super) fn verb(word: &str) -> Option<Operation> {
    // No verb is longer, nor has other letters: most words of a name need no more than this.
    if !(2..=11).contains(&word.len()) {
        return None;
    }
    VERBS.iter().find(|(_, verbs)| verbs.contains(word)).map(|(operation, _)| *operation)
}

/// What a word does at the end of a name, if it is a verb there.
pub(super) fn last_verb(word: &str) -> Option<Operation> {
    verb(word).filter(|_| !FIRST_ONLY.contains(word))
}

/// Whether a verb is more often a noun.
pub(super) fn is_noun(word: &str) -> bool {
    NOUNS.contains(word)
}

/// Whether it is one before any other verb.
pub(super) fn is_object(word: &str) -> bool {
    OBJECTS.contains(word)
}

/// Whether a name that has no verb ends with what one looks at.
pub(super) fn is_looked_at(word: &str) -> bool {
    LOOKED_AT.contains(word)
}

/// How many of the first words are a product's name, as far as they could be taken for a verb.
pub(super) fn product(words: &[String]) -> usize {
    let is = |first: &str, second: &str| PRODUCTS.contains(&(first, second));
    match words {
        [first, second, _, ..] if is(first, second) => 2,
        _ => 0,
    }
}

/// Whether the word begins a thing of two words.
pub(super) fn begins_compound(word: &str, next: Option<&String>) -> bool {
    next.is_some_and(|next| COMPOUNDS.contains(&(word, next)))
}

/// Whether what is cancelled is work that runs.
pub(super) fn is_run(word: &str) -> bool {
    RUNS.contains(word) || word.strip_suffix('s').is_some_and(|one| RUNS.contains(one))
}
