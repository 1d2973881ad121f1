//! The risk of a tool call, 0 to 100, with a named reason for every point. Pure.
//!
//! The points are the audit contract's, and after them ours, for what the contract has no name for. What a server says of
//! its own tools never lowers a score.

use super::{
    arguments::{self, Found},
    classify,
    deeds::{Deeds, Mark},
    hints::Hints,
    mentions::Mentions,
    sql,
    word_list::WordList,
};
use ringfence_wire::tool_call::Operation;
use serde_json::Value;

/// More records than this are a bulk operation.
const BULK: usize = 10;

/// Whole words of a tool's name that mean a message to somebody outside.
const MESSAGES: WordList = WordList::of(&[
    "send", "post", "email", "mail", "sms", "tweet", "notify", "slack", "message", "publish", "reply",
]);

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
    /// That of a connection to a host which its container's profile neither grants nor denies: it waits for a person, unless a rule
    /// or an exception decides.
    pub fn of_connection() -> Self {
        let (points, reason) = NAME_NOT_GRANTED;
        Self { operation: Operation::Unknown, score: points.try_into().unwrap_or(100), reasons: vec![reason] }
    }

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
    assess_named(&ToolName::of(tool), arguments, first, hints)
}

/// What the name of a tool says of each of its calls. Whoever judges many keeps it.
#[derive(Debug)]
pub struct ToolName {
    words: Vec<String>,
    /// Without what the call's arguments say.
    operation: Operation,
    is_shell: bool,
    is_message: bool,
    mentions: Mentions,
}

impl ToolName {
    /// Of this name.
    pub fn of(tool: &str) -> Self {
        let words = ringfence_redact::words::words(tool);
        let mut mentions = Mentions::default();
        mentions.look_at(&words);
        Self {
            operation: classify::named(&words),
            is_shell: classify::is_shell(&words),
            is_message: words.iter().any(|word| MESSAGES.contains(word)),
            mentions,
            words,
        }
    }
}

/// Scores one call of a tool whose name was looked at before.
pub fn assess_named(name: &ToolName, arguments: &Value, first: bool, hints: Hints) -> Risk {
    let statements = sql::find(&name.words, arguments);
    let named = classify::with_sql(name.operation, &name.words, statements.map(|found| found.operation));
    let Found { mut deeds, mut mentions, longest_list } = arguments::look(arguments, named, name.is_shell);
    mentions.add(name.mentions);
    if statements.is_some_and(|found| found.unbounded) {
        deeds.mark(Mark::Unbounded);
    }
    deeds.mark_if(longest_list > BULK || statements.is_some_and(|found| found.rows > BULK), Mark::Bulk);
    deeds.mark_if(mentions.credentials, Mark::Credentials);
    let (operation, hinted) = hints.raise(named.max(deeds.operation));
    let changes = matches!(operation, Operation::Write | Operation::Delete | Operation::Execute);
    deeds.mark_if(mentions.settings, Mark::Settings);
    deeds.mark_if(operation != Operation::Read && name.is_message, Mark::Message);
    let mut sum = Sum::default();
    sum.named(operation == Operation::Write, WRITE);
    sum.named(operation == Operation::Delete, DESTRUCTIVE);
    sum.named(operation == Operation::Execute, EXECUTE);
    sum.marks(deeds, &CONTRACT[..3]);
    sum.named(changes && deeds.is(Mark::Settings), SETTINGS);
    sum.marks(deeds, &CONTRACT[3..]);
    sum.named(first, FIRST_USE);
    sum.marks(deeds, &OURS);
    sum.add(hinted > 0, hinted, SERVER_HINT);
    Risk { operation, score: u8::try_from(sum.score.min(100)).unwrap_or(100), reasons: sum.reasons }
}

/// Points and names of what is no mark.
const WRITE: (u32, &str) = (20, "write");
const DESTRUCTIVE: (u32, &str) = (40, "destructive");
const EXECUTE: (u32, &str) = (30, "execute");
const SETTINGS: (u32, &str) = (20, "modifies_config");
const FIRST_USE: (u32, &str) = (10, "first_use");
/// What makes a connection wait that is no call: the fewest points that do.
const NAME_NOT_GRANTED: (u32, &str) = (61, "name_not_granted");
/// What a server says of a tool: its points are not always the same.
const SERVER_HINT: &str = "server_hint";
/// The most of those.
const MOST_HINTED: u32 = 20;

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

/// Every reason with its points, [`SERVER_HINT`] with the most that it has.
fn points() -> impl Iterator<Item = (&'static str, u32)> {
    let plain =
        [WRITE, DESTRUCTIVE, EXECUTE, SETTINGS, FIRST_USE, NAME_NOT_GRANTED, (MOST_HINTED, SERVER_HINT)];
    let marks = CONTRACT.iter().chain(&OURS).map(|(_, points, name)| (*name, *points));
    plain.into_iter().map(|(points, name)| (name, points)).chain(marks)
}

/// The names of all reasons.
pub fn reasons() -> impl Iterator<Item = &'static str> {
    points().map(|(name, _)| name)
}

/// Reasons that say that something is lost for good, or that nobody knows what is run: no exception has one of them that does
/// not name it.
pub const GRAVE: &[&str] =
    &["destructive", "sql_without_where", "wide_target", "stops_system", "unseen_code", "opens_access"];

/// What the score of a call would be if some of its reasons counted nothing. Where the points of a reason are not known, because
/// the score ended at 100 or another version wrote it, they are taken for the most.
pub fn score_without<R: AsRef<str>>(score: u8, reasons: &[R], excepted: impl Fn(&str) -> bool) -> u8 {
    let known = |name: &str| points().find(|(known, _)| *known == name).map(|(_, points)| points);
    let fixed = |name: &&str| *name != SERVER_HINT && known(name).is_some();
    let all: Vec<&str> = reasons.iter().map(AsRef::as_ref).collect();
    let sum = |names: &mut dyn Iterator<Item = &str>| names.filter_map(known).sum::<u32>();
    let of_fixed = sum(&mut all.iter().copied().filter(fixed));
    // What is left of the score is that of the others together.
    let of_others = if score < 100 { u32::from(score).saturating_sub(of_fixed) } else { 100 };
    let kept_fixed = sum(&mut all.iter().copied().filter(fixed).filter(|name| !excepted(name)));
    let mut others = all.iter().copied().filter(|name| !fixed(name));
    let kept_others = if others.clone().all(&excepted) {
        0
    } else if others.all(|name| name == SERVER_HINT) {
        of_others.min(MOST_HINTED)
    } else {
        of_others
    };
    u8::try_from((kept_fixed + kept_others).min(u32::from(score))).unwrap_or(score)
}

/// What the score of a call was before these reasons counted nothing: at most that.
pub fn score_with<R: AsRef<str>>(score: u8, excepted: &[R]) -> u8 {
    let of = |name: &R| points().find(|(known, _)| *known == name.as_ref()).map_or(0, |(_, points)| points);
    let sum = excepted.iter().map(of).fold(u32::from(score), u32::saturating_add);
    u8::try_from(sum.min(100)).unwrap_or(100)
}

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

    fn named(&mut self, applies: bool, (points, reason): (u32, &'static str)) {
        self.add(applies, points, reason);
    }

    fn marks(&mut self, deeds: Deeds, marks: &[(Mark, u32, &'static str)]) {
        marks.iter().for_each(|(mark, points, reason)| self.add(deeds.is(*mark), *points, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::{GRAVE, assess, assess_hinted, points, reasons, score_without};
    use crate::hints::Hints;
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
    fn a_score_is_the_sum_of_its_reasons_and_without_some_of_them_of_the_others() {
        let hints = [
            Hints::default(),
            Hints { destructive: true, ..Hints::default() },
            Hints { open_world: true, ..Hints::default() },
        ];
        let calls = [
            ("bash", json!({"command": "sudo reboot"})),
            ("bash", json!({"command": "chmod 777 a"})),
            ("query", json!({"sql": "DELETE FROM t"})),
            ("send_email", json!({"body": "my password is in .env"})),
            ("read_file", json!({"path": "/home/a/.npmrc"})),
            ("update_settings", json!({})),
        ];
        for (tool, arguments) in &calls {
            for hints in hints {
                let risk = assess_hinted(tool, arguments, true, hints);
                let text = format!("{tool} {:?} {}", risk.reasons, risk.score);
                assert_eq!(score_without(risk.score, &risk.reasons, |_| false), risk.score, "{text}");
                assert_eq!(score_without(risk.score, &risk.reasons, |_| true), 0, "{text}");
                for reason in &risk.reasons {
                    let Some((_, most)) = points().find(|(name, _)| name == reason) else { panic!("{text}") };
                    let without = score_without(risk.score, &risk.reasons, |name| name == *reason);
                    assert!(without < risk.score || risk.score == 100, "{text}: {reason}");
                    assert!(u32::from(risk.score) <= u32::from(without) + most, "{text}: {reason}");
                }
            }
        }
        assert_eq!(reasons().count(), 17);
        assert!(GRAVE.iter().all(|grave| reasons().any(|reason| reason == *grave)));
    }

    #[test]
    fn of_a_score_that_ended_at_100_what_is_left_is_taken_for_the_most() {
        let all = ["destructive", "bulk_operation", "wide_target", "server_hint"];
        assert_eq!(score_without(100, &all, |name| name == "wide_target"), 80);
        assert_eq!(score_without(100, &all, |name| name == "nothing"), 100);
        // Of a reason that only another version knows nobody knows the points.
        assert_eq!(score_without(70, &["destructive", "of_later"], |name| name == "destructive"), 30);
        assert_eq!(score_without(70, &["destructive", "of_later"], |name| name == "of_later"), 40);
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
