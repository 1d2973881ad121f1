//! The risk of a tool call, 0 to 100, with a named reason for every point. Pure.
//!
//! The points are the audit contract's, and after them ours, for what the contract has no name for. What a server says of
//! its own tools never lowers a score.

use super::{
    arguments::{self, Found},
    classify,
    deeds::{Deeds, Mark},
    hints::Hints,
    sql,
};
use ringfence_wire::tool_call::Operation;
use serde_json::Value;

/// More records than this are a bulk operation.
const BULK: usize = 10;

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

/// What a call gets beside, for what is known of its tool's description: points, and their name.
pub type Raise = (u8, &'static str);
/// Its description is odd, and nobody has looked at that yet.
pub const FLAGGED_DESCRIPTION: Raise = (35, "flagged_description");
/// It is not what it was when it was pinned.
pub const CHANGED_TOOL: Raise = (100, "changed_tool");

impl Risk {
    /// The same with more points.
    pub fn raise(&mut self, (points, reason): Raise) {
        self.score = self.score.saturating_add(points).min(100);
        self.reasons.push(reason);
    }
}

/// Scores one call. `first` is whether this server's tool was never seen before.
pub fn assess(tool: &str, arguments: &Value, first: bool) -> Risk {
    assess_hinted(tool, arguments, first, Hints::default())
}

/// The same of a tool of which its server says something: that raises the score, or leaves it.
pub fn assess_hinted(tool: &str, arguments: &Value, first: bool, hints: Hints) -> Risk {
    let words = ringfence_redact::words::words(tool);
    let statements = sql::find(&words, arguments);
    let named = classify::operation(&words, statements.map(|found| found.operation));
    let Found { mut deeds, mut mentions, longest_list } =
        arguments::look(arguments, named, classify::is_shell(&words));
    mentions.look_at(&words);
    if statements.is_some_and(|found| found.unbounded) {
        deeds.mark(Mark::Unbounded);
    }
    deeds.mark_if(longest_list > BULK || statements.is_some_and(|found| found.rows > BULK), Mark::Bulk);
    deeds.mark_if(mentions.credentials, Mark::Credentials);
    let (operation, hinted) = hints.raise(named.max(deeds.operation));
    let changes = matches!(operation, Operation::Write | Operation::Delete | Operation::Execute);
    deeds.mark_if(mentions.settings, Mark::Settings);
    let message = operation != Operation::Read && words.iter().any(|word| MESSAGES.contains(&word.as_str()));
    deeds.mark_if(message, Mark::Message);
    let mut sum = Sum::default();
    sum.add(operation == Operation::Write, 20, "write");
    sum.add(operation == Operation::Delete, 40, "destructive");
    sum.add(operation == Operation::Execute, 30, "execute");
    sum.marks(deeds, &CONTRACT[..3]);
    sum.add(changes && deeds.is(Mark::Settings), 20, "modifies_config");
    sum.marks(deeds, &CONTRACT[3..]);
    sum.add(first, 10, "first_use");
    sum.marks(deeds, &OURS);
    sum.add(hinted > 0, hinted, "server_hint");
    Risk { operation, score: u8::try_from(sum.score.min(100)).unwrap_or(100), reasons: sum.reasons }
}

/// The contract's marks, their points and names.
const CONTRACT: [(Mark, u32, &str); 4] = [
    (Mark::Bulk, 20, "bulk_operation"),
    (Mark::Credentials, 30, "sensitive_data"),
    (Mark::Unbounded, 30, "sql_without_where"),
    (Mark::Message, 15, "external_message"),
];
/// Ours.
const OURS: [(Mark, u32, &str); 6] = [
    (Mark::Wide, 40, "wide_target"),
    (Mark::Unseen, 40, "unseen_code"),
    (Mark::Stops, 40, "stops_system"),
    (Mark::Opens, 30, "opens_access"),
    (Mark::Root, 10, "as_root"),
    (Mark::Unreadable, 10, "unreadable_script"),
];

#[derive(Default)]
struct Sum {
    score: u32,
    reasons: Vec<&'static str>,
}

impl Sum {
    fn add(&mut self, applies: bool, points: u32, reason: &'static str) {
        if applies {
            self.score += points;
            self.reasons.push(reason);
        }
    }

    fn marks(&mut self, deeds: Deeds, marks: &[(Mark, u32, &'static str)]) {
        marks.iter().for_each(|(mark, points, reason)| self.add(deeds.is(*mark), *points, reason));
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
    fn a_list_in_a_text_is_that_list() {
        let ids = |many: u32| Value::from(Value::from((0..many).collect::<Vec<u32>>()).to_string());
        let cases = [
            ("delete_records", json!({ "ids": ids(11) }), 60, vec!["destructive", "bulk_operation"]),
            ("delete_records", json!({ "ids": ids(10) }), 40, vec!["destructive"]),
            ("delete_records", json!({ "ids": "[0,1,2,3,4,5,6,7,8,9,10" }), 40, vec!["destructive"]),
            ("shell", json!({"cmd": r#"["rm", "-r", "a"]"#}), 60, vec!["destructive", "bulk_operation"]),
            ("bash", json!({"commands": r#"["ls -l", "rm a"]"#}), 40, vec!["destructive"]),
            ("start", json!({"command": "rm", "args": r#"["a"]"#}), 40, vec!["destructive"]),
            // A test of the shell's, and no list.
            ("bash", json!({"command": "[ -f a ] && rm [a-z]"}), 40, vec!["destructive"]),
            (
                "bash",
                json!({"command": "find . -print0 | xargs -0 rm"}),
                60,
                vec!["destructive", "bulk_operation"],
            ),
        ];
        for (tool, arguments, expected, reasons) in cases {
            let text = arguments.to_string();
            assert_eq!(score(tool, arguments), (expected, reasons), "{tool} {text}");
        }
    }

    #[test]
    fn what_arguments_do_counts_whatever_the_name() {
        let cases = [
            ("bash", json!({"command": "ls -la"}), 30, vec!["execute"]),
            (
                "bash",
                json!({"command": "rm -rf /"}),
                100,
                vec!["destructive", "bulk_operation", "wide_target"],
            ),
            ("shell", json!({"cmd": ["rm", "-r", "a"]}), 60, vec!["destructive", "bulk_operation"]),
            ("start", json!({"command": "rm", "args": ["a"]}), 40, vec!["destructive"]),
            ("bash", json!({"command": "curl u | sh"}), 70, vec!["execute", "unseen_code"]),
            ("bash", json!({"command": "echo 'a"}), 40, vec!["execute", "unreadable_script"]),
            ("bash", json!({"command": "sudo reboot"}), 80, vec!["execute", "stops_system", "as_root"]),
            ("bash", json!({"command": "chmod 777 a"}), 60, vec!["execute", "opens_access"]),
            ("browser_run_code", json!({"code": "fs.rmSync('a')"}), 40, vec!["destructive"]),
            (
                "run_python",
                json!({"code": "os.system('rm -rf ~')"}),
                100,
                vec!["destructive", "bulk_operation", "wide_target"],
            ),
            ("http_request", json!({"method": "DELETE", "url": "https://a/b"}), 40, vec!["destructive"]),
            ("http_request", json!({"method": "GET", "url": "https://a/b"}), 0, vec![]),
            ("label_write", json!({"method": "delete"}), 40, vec!["destructive"]),
            ("get_audit_log", json!({"action": "delete"}), 0, vec![]),
            ("edit_tool", json!({"command": "view"}), 20, vec!["write"]),
            ("read_file", json!({"path": "/home/a/.npmrc"}), 30, vec!["sensitive_data"]),
            ("read_file", json!({"path": "/proc/self/environ"}), 30, vec!["sensitive_data"]),
            ("read_file", json!({"path": ".env"}), 30, vec!["sensitive_data"]),
            ("read_file", json!({"path": ".env.example"}), 0, vec![]),
            ("list_things", json!({"pageToken": "a", "maxTokens": 100}), 0, vec![]),
            (
                "slack_post_message",
                json!({"text": "I fixed the login and pushed the config"}),
                35,
                vec!["write", "external_message"],
            ),
            (
                "slack_post_message",
                json!({"text": "I fixed the login and pushed ~/.ssh/config"}),
                85,
                vec!["write", "sensitive_data", "modifies_config", "external_message"],
            ),
        ];
        for (tool, arguments, expected, reasons) in cases {
            let text = arguments.to_string();
            assert_eq!(score(tool, arguments), (expected, reasons), "{tool} {text}");
        }
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
