//! The risk of a tool call, 0 to 100, with a named reason for every point. Pure.
//!
//! The points are the audit contract's. What a server says of its own tools (`readOnlyHint`) never lowers a score.

use super::{classify, sql};
use ringfence_wire::tool_call::Operation;
use serde_json::Value;

/// Values longer than this many bytes are not searched for sensitive words: prose and source code hold them all.
const LONGEST_VALUE: usize = 512;
/// More records than this are a bulk operation.
const BULK: usize = 10;

/// Whole words that mean credentials.
const CREDENTIALS: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "tokens",
    "credential",
    "credentials",
    "apikey",
    "auth",
    "oauth",
    "authorization",
    "login",
    "ssh",
    "gpg",
    "keychain",
    "keyring",
    "vault",
    "htpasswd",
    "shadow",
    "netrc",
    "pem",
    "jwt",
    "2fa",
    "otp",
    "totp",
];
/// Pairs of words that mean credentials together.
const CREDENTIAL_PAIRS: &[(&str, &str)] = &[
    ("api", "key"),
    ("private", "key"),
    ("access", "key"),
    ("id", "rsa"),
    ("id", "ed25519"),
    ("service", "account"),
];
/// Whole words that mean configuration.
const SETTINGS: &[&str] = &[
    "config",
    "configs",
    "configuration",
    "setting",
    "settings",
    "preferences",
    "prefs",
    "conf",
    "dotfile",
    "env",
];
/// Whole words of a tool's name that mean a message to somebody outside.
const MESSAGES: &[&str] =
    &["send", "post", "email", "mail", "sms", "tweet", "notify", "slack", "message", "publish", "reply"];

/// A score and what made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Risk {
    /// What the call does.
    pub operation: Operation,
    /// 0..=100.
    pub score: u8,
    /// Names of what added points, in the order of the contract's table.
    pub reasons: Vec<&'static str>,
}

/// Scores one call. `first` is whether this server's tool was never seen before.
pub fn assess(tool: &str, arguments: &Value, first: bool) -> Risk {
    let words = ringfence_redact::words::words(tool);
    let statements = sql::find(&words, arguments);
    let operation = classify::operation(&words, statements.map(|found| found.operation));
    let mut score = 0u32;
    let mut reasons = Vec::new();
    let mut add = |applies: bool, points: u32, reason: &'static str| {
        if applies {
            score += points;
            reasons.push(reason);
        }
    };
    add(operation == Operation::Write, 20, "write");
    add(operation == Operation::Delete, 40, "destructive");
    add(operation == Operation::Execute, 30, "execute");
    let bulk = longest_list(arguments) > BULK || statements.is_some_and(|found| found.rows > BULK);
    add(bulk, 20, "bulk_operation");
    let mut mentions = Mentions::default();
    mentions.look_at(&words);
    mentions.look_into(arguments, 0);
    add(mentions.credentials, 30, "sensitive_data");
    add(statements.is_some_and(|found| found.unbounded), 30, "sql_without_where");
    let changes = matches!(operation, Operation::Write | Operation::Delete | Operation::Execute);
    add(changes && mentions.settings, 20, "modifies_config");
    let message = operation != Operation::Read && words.iter().any(|word| MESSAGES.contains(&word.as_str()));
    add(message, 15, "external_message");
    add(first, 10, "first_use");
    Risk { operation, score: u8::try_from(score.min(100)).unwrap_or(100), reasons }
}

/// What a call's words are about.
#[derive(Debug, Default)]
struct Mentions {
    credentials: bool,
    settings: bool,
}

impl Mentions {
    fn look_at(&mut self, words: &[String]) {
        self.credentials |= words.iter().any(|word| CREDENTIALS.contains(&word.as_str()))
            || words.windows(2).any(|pair| CREDENTIAL_PAIRS.contains(&(pair[0].as_str(), pair[1].as_str())));
        self.settings |= words.iter().any(|word| SETTINGS.contains(&word.as_str()));
    }

    /// The words of every key and short text. Depth is bounded by the line judge's own limit; this only follows it.
    fn look_into(&mut self, value: &Value, depth: usize) {
        if depth > super::strict::MAX_DEPTH || self.credentials && self.settings {
            return;
        }
        match value {
            Value::String(text) if text.len() <= LONGEST_VALUE => {
                self.look_at(&ringfence_redact::words::words(text))
            }
            Value::Array(items) => items.iter().for_each(|item| self.look_into(item, depth + 1)),
            Value::Object(members) => {
                for (key, member) in members {
                    self.look_at(&ringfence_redact::words::words(key));
                    self.look_into(member, depth + 1);
                }
            }
            _ => {}
        }
    }
}

/// Length of the longest array anywhere in the arguments.
fn longest_list(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(longest_list).max().unwrap_or(0).max(items.len()),
        Value::Object(members) => members.values().map(longest_list).max().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::assess;
    use serde_json::{Value, json};

    fn score(tool: &str, arguments: Value) -> (u8, Vec<&'static str>) {
        let risk = assess(tool, &arguments, false);
        (risk.score, risk.reasons)
    }

    #[test]
    fn the_contracts_points() {
        let ids: Vec<u32> = (0..11).collect();
        let cases = [
            ("read_file", json!({"path": "/tmp/x"}), 0, vec![]),
            ("create_issue", json!({}), 20, vec!["write"]),
            ("delete_file", json!({}), 40, vec!["destructive"]),
            ("run_job", json!({}), 30, vec!["execute"]),
            ("delete_records", json!({ "ids": ids }), 60, vec!["destructive", "bulk_operation"]),
            ("read_file", json!({"path": "/home/a/.ssh/id_rsa"}), 30, vec!["sensitive_data"]),
            ("get_api_key", json!({}), 30, vec!["sensitive_data"]),
            ("query", json!({"sql": "DELETE FROM t"}), 70, vec!["destructive", "sql_without_where"]),
            ("update_settings", json!({}), 40, vec!["write", "modifies_config"]),
            ("send_email", json!({}), 35, vec!["write", "external_message"]),
        ];
        for (tool, arguments, expected, reasons) in cases {
            assert_eq!(score(tool, arguments), (expected, reasons), "{tool}");
        }
        assert_eq!(assess("read_file", &json!({}), true).score, 10);
    }

    #[test]
    fn words_are_whole_and_scores_end_at_100() {
        assert_eq!(score("read_file", json!({"path": "/src/tokenizer.rs"})).0, 0);
        assert_eq!(score("read_file", json!({"path": "authors.txt"})).0, 0);
        let (points, reasons) = score(
            "delete_and_send",
            json!({"sql": "DELETE FROM settings", "password": "x", "rows": vec![0; 11]}),
        );
        assert_eq!((points, reasons.len()), (100, 6));
    }
}
