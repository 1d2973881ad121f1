//! What interceptors, the command line and the auditor say to each other about MCP sessions.
//!
//! A connection begins with one [`McpRequest`]. [`McpRequest::Session`] makes it a session's link: after
//! [`McpReply::Welcome`] the interceptor sends [`SessionUpdate`] and the auditor [`SessionOrder`], until either closes.
//! Every other request gets one [`McpReply`].

use crate::{
    approvals::{Fingerprint, Standing},
    egress::EgressLine,
    egress_asks::WaitingConnection,
    exception::Exception,
    message::Failure,
    tool_call::{Action, Operation, Recorded},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The daemon's socket for MCP sessions, below [`crate::message::RUNTIME_DIR`]; mode 0666, the auditor looks at the uid.
pub const MCP_SOCKET: &str = "mcp.sock";

/// Longest message, bytes. Payloads travel in journals, never here.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Longest [`McpRequest`], bytes: who sends one may be anybody, and many may at once. One with [`MAX_OFFERED`] ids fits.
pub const MAX_FIRST: usize = 128 << 10;

/// Longest [`SessionUpdate`], bytes: the longest rule file there is, as JSON, and its path.
pub const MAX_UPDATE: usize = 3 << 20;

/// Longest path of a journal, bytes.
pub const MAX_PATH: usize = 4096;

/// The first message of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum McpRequest {
    /// An interceptor's link. Its journal, open for reading, travels beside it (SCM_RIGHTS).
    Session {
        /// The session's id, a UUID.
        session: String,
        /// The journal's path, for people.
        journal: String,
        /// Its client speaks HTTP to an endpoint: the interceptor's parent is that, and which process the client is nobody knows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        http: bool,
    },
    /// The line of an agent's worker, on which it tells of its tools ([`crate::agent_tools`]): [`McpReply::Linked`].
    AgentTools {
        /// The agent.
        agent: String,
        /// The user whose agent it is, by the daemon's word, which alone may say so; without it, it is the asking user's own,
        /// served by `ringfence agent start`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<u32>,
    },
    /// The line of a container's egress worker, on which it tells what was connected to by name, and what a person is asked
    /// about ([`crate::egress_asks::EgressSaid`]): [`McpReply::Linked`]. The daemon alone has one made.
    Egress(EgressLine),
    /// What is pinned of the tools of an agent's servers: [`McpReply::Rows`], one for each tool.
    AgentPins {
        /// The agent.
        agent: String,
        /// It is the daemon's; else one that `ringfence agent start` serves.
        of_daemon: bool,
        /// Without the first so many: an answer has as many as fit, none at the end.
        #[serde(default)]
        after: u32,
    },
    /// Calls that wait for approval: [`McpReply::Waiting`].
    Waiting,
    /// Approves or denies a call that waits: [`McpReply::Decided`].
    Decide {
        /// The call's id, or the beginning of one that is unique among those that wait.
        call: String,
        /// `true` lets it go on.
        approve: bool,
    },
    /// Approves a call that waits, and calls like it: [`McpReply::Stands`].
    ApproveFor {
        /// The call's id, or the beginning of one, as for a decision.
        call: String,
        /// Which calls, until when.
        standing: Standing,
    },
    /// Approvals that stand, newest first: [`McpReply::Rows`].
    Approvals,
    /// Ends an approval that stands: [`McpReply::Revoked`].
    Revoke {
        /// Its id, or the beginning of one that is unique among those that stand.
        approval: String,
    },
    /// Calls, newest first: [`McpReply::Rows`].
    Calls {
        /// Only calls of at least this score.
        #[serde(default)]
        risk: Option<u8>,
        /// Only calls with this policy action, decision or outcome; any text, as other versions may have recorded others.
        #[serde(default)]
        verdict: Option<String>,
        /// Only calls with this outcome, likewise.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        outcome: Option<String>,
        /// Only this session's: its id, or the beginning of one that is unique.
        #[serde(default)]
        session: Option<String>,
        /// Only those of servers in this container: its public id, or the beginning of it.
        #[serde(default)]
        container: Option<String>,
        /// At most so many.
        limit: u32,
    },
    /// One call, whole, with what the kernel saw of it as `events`: [`McpReply::Rows`] with one row, or none.
    Call {
        /// The call's id, or the beginning of one that is unique.
        call: String,
    },
    /// Sessions, newest first: [`McpReply::Rows`].
    Sessions {
        /// At most so many.
        limit: u32,
    },
    /// The standard error of a session's server, in its order: [`McpReply::Rows`], each with `number`,
    /// `timestamp`, `text` and `dropped` (bytes that were left out before it). No rows: the end.
    Stderr {
        /// The session's id, or the beginning of one that is unique.
        session: String,
        /// Only what has a higher number.
        after: i64,
        /// At most so many.
        limit: u32,
    },
    /// Rows of a whole table in the order they came, each with its number as `_rowid`; calls and sessions carry their
    /// `uid` and calls their server's name. [`McpReply::Rows`]; no rows: the end. A name that is not known is refused.
    Table {
        /// `sessions`, `messages`, `tool_calls`, `intent_contexts`, `intent_tool_calls`, `policy_rules`, `stderr` or `ledger`; or
        /// `unvouched`: rows that somebody else than the auditor wrote, of which a page may have none, and whose last page
        /// ends with a row that has `end`.
        table: String,
        /// Only rows with a higher number.
        after: i64,
        /// At most so many.
        limit: u32,
        /// Columns of JSON are the very texts that are stored, and not what they say.
        #[serde(default)]
        as_text: bool,
    },
    /// Totals: [`McpReply::Rows`] with one row.
    Stats,
    /// Changes of rule files that wait for a confirmation: [`McpReply::Rows`], each with `uid`, `path`, `text` (in force),
    /// `pending` (the file's), `sha256` (of that), `since`, and how many more wait than there are rows as `left_out`.
    PendingRules,
    /// Confirms a change of a rule file: [`McpReply::Confirmed`].
    ConfirmRules {
        /// The file.
        path: String,
        /// Hex SHA-256 of the text that was shown: another one is not confirmed.
        sha256: String,
    },
    /// The rules of the database that bind the asking user's sessions, in their order: [`McpReply::Rows`].
    Rules,
    /// Changes one rule of the database: [`McpReply::RuleChanged`], or [`McpReply::Loosens`] where that has to be agreed to.
    ChangeRule {
        /// What is changed.
        change: RuleChange,
        /// A person agreed that calls are judged more mildly.
        #[serde(default)]
        agreed: bool,
    },
    /// What a change of a rule would have meant for calls on record: [`McpReply::Rows`] with one row.
    TryRule {
        /// The change.
        change: RuleChange,
        /// Of the last so many days.
        days: u32,
    },
    /// Servers that the asking user's sessions had, each with its tools: [`McpReply::Rows`].
    Inventory {
        /// Only servers of this name, or with this id, and what changed in them as well.
        #[serde(default)]
        server: Option<String>,
    },
    /// Tools that wait for somebody to look: they changed, or their descriptions are odd: [`McpReply::Rows`], each with
    /// `server`, `server_name`, `tool`, `sha256`, `definition`, `flags`, and of a changed one `pinned` (that definition)
    /// and `difference`.
    PendingTools {
        /// Only those of this server, by its name or number; or this tool, as `SERVER/TOOL`, also where its change was rejected.
        #[serde(default)]
        named: Option<String>,
    },
    /// Approves what a tool says now, or says that it is not to be approved: [`McpReply::ToolDecided`].
    DecideTool {
        /// The server's id in the inventory.
        server: i64,
        /// The tool.
        tool: String,
        /// Hash of the definition that was shown: another one is not decided about.
        sha256: String,
        /// `true` trusts it.
        approve: bool,
    },
    /// Forgets a server and what is pinned of it: [`McpReply::ToolDecided`].
    ForgetServer {
        /// The server's id in the inventory.
        server: i64,
    },
    /// The present heads of ledgers and journals: [`McpReply::Rows`], each with the text of one as `head`.
    Heads,
    /// Where the dashboard is, and the asking user's token that opens it: [`McpReply::Dashboard`].
    Dashboard,
    /// Sessions whose journals the peer has and no interceptor writes any more: [`McpReply::Wanted`].
    Offer {
        /// Ids, at most [`MAX_OFFERED`].
        sessions: Vec<String>,
    },
    /// A journal that was wanted, open for reading beside the message (SCM_RIGHTS): [`McpReply::Taken`].
    Journal {
        /// The session's id, a UUID.
        session: String,
        /// The journal's path, for people.
        journal: String,
    },
}

/// Most sessions in one [`McpRequest::Offer`].
pub const MAX_OFFERED: usize = 2000;

/// An answer to a [`McpRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum McpReply {
    /// The link is up.
    Welcome {
        /// The dashboard's port on loopback; 0: none.
        port: u16,
        /// The rules of the database, in force beside those of the interceptor's own file.
        #[serde(default)]
        rules: Vec<StoredRule>,
        /// [`SessionOrder::Tools`] follows, for an interceptor that says what its server is.
        #[serde(default)]
        tools: bool,
    },
    /// The line of an agent's worker is up.
    Linked,
    /// The calls that wait, oldest first.
    Waiting {
        /// The calls.
        calls: Vec<WaitingCall>,
    },
    /// It was done.
    Decided {
        /// The call's whole id.
        call: String,
    },
    /// A call was approved, and others like it are from now on.
    Stands {
        /// The call's whole id.
        call: String,
        /// The approval, as lists have it.
        approval: serde_json::Value,
    },
    /// An approval stands no longer.
    Revoked {
        /// Its whole id.
        approval: String,
    },
    /// The rules are in force in every session that has that file.
    Confirmed,
    /// The rule is changed, and in force as it is now.
    RuleChanged {
        /// The rule as lists have it; null where it was deleted.
        rule: serde_json::Value,
    },
    /// The change loosens a rule, and nobody has agreed to that: nothing was changed.
    Loosens {
        /// The rule.
        rule: String,
    },
    /// What is pinned is changed, and in force in every session of that server.
    ToolDecided,
    /// Rows, each a JSON object.
    Rows {
        /// The rows.
        rows: Vec<serde_json::Value>,
    },
    /// The dashboard.
    Dashboard {
        /// Address with the token.
        url: String,
    },
    /// Of the offered sessions, those of which something is missing.
    Wanted {
        /// Their ids.
        sessions: Vec<String>,
        /// Of the offered, those that retention removed: their journals are the owner's to delete.
        #[serde(default)]
        removed: Vec<String>,
    },
    /// All of a journal is in the database.
    Taken,
    /// It cannot be done.
    Failed(Failure),
}

/// What a row of the table `unvouched` has as `how` while nothing can be compared yet: copies of older rows are being made.
pub const COPYING: &str = "copying";

/// Most rules that a database holds; with the bounds on their texts they fit into one message.
pub const MAX_STORED_RULES: usize = 200;

/// A rule of the database, as a rule file would have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredRule {
    /// Shown in verdicts; unique within the database.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub description: String,
    /// Which calls it is about.
    #[serde(flatten)]
    pub conditions: Conditions,
    /// `flag`, `pause` or `block`; [`EXCEPT`](crate::exception::EXCEPT) for an exception.
    pub action: Recorded<Action>,
    /// What an exception is about; it has no conditions. Whoever does not know exceptions does not know their action either, and
    /// passes the rule over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Exception>,
}

/// A change of one rule of the database. What is changed has a version that counts up: a change of another version than the
/// present one is refused, so that of two people who change a rule at once neither undoes what the other did.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum RuleChange {
    /// A new rule, after all others.
    Add {
        /// The rule.
        rule: StoredRule,
    },
    /// Another description, other conditions or another action. The name stays: verdicts on record name the rule by it.
    Edit {
        /// The rule's id.
        id: String,
        /// The version that was looked at.
        version: i64,
        /// The rule as it is to be, with the name that it has.
        rule: StoredRule,
    },
    /// Switched on or off.
    Switch {
        /// The rule's id.
        id: String,
        /// The version that was looked at.
        version: i64,
        /// On.
        enabled: bool,
    },
    /// Put at another place among the rules of its owner. No verdict depends on it but in the order of the names.
    Move {
        /// The rule's id.
        id: String,
        /// The version that was looked at.
        version: i64,
        /// From 1; what is beyond the last place is the last.
        place: u32,
    },
    /// Removed.
    Delete {
        /// The rule's id.
        id: String,
        /// The version that was looked at.
        version: i64,
    },
}

/// Which calls a rule is about: those that meet every condition. Whoever uses conditions names all of them, so that the
/// compiler leads to each place that must learn of a new one. What is said of them here is in the manual, too.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// Globs over the tool's name, separated by commas; `*` matches any characters; case and Unicode width do not
    /// matter. Absent: all tools.
    #[serde(default)]
    pub tool_pattern: Option<String>,
    /// The same over the server's name. Absent: all servers.
    #[serde(default)]
    pub server_pattern: Option<String>,
    /// Only calls with this score or a higher one, 0 to 100. Absent: 0.
    #[serde(default)]
    pub min_risk_score: u8,
    /// A list (in a file also a text with commas) of `read`, `write`, `delete`, `execute`, `unknown`. Absent: all.
    #[serde(default)]
    pub operation_types: Option<Vec<Recorded<Operation>>>,
}

/// A rule file, as an interceptor read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleFile {
    /// Where it is.
    pub path: String,
    /// What is in it; rules that can be read.
    pub text: String,
    /// Nobody but root can have written it.
    pub trusted: bool,
}

/// A call that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingCall {
    /// Its id.
    pub id: String,
    /// The session.
    pub session: String,
    /// The server.
    pub server: String,
    /// The tool.
    pub tool: String,
    /// Its arguments as JSON, redacted; long ones are cut, and are no JSON then.
    pub arguments: String,
    /// Of how many bytes the arguments are the beginning, where they are cut. [`McpRequest::Call`] has all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arguments_bytes: Option<u64>,
    /// 0..=100.
    pub score: u8,
    /// What added points.
    pub reasons: Vec<String>,
    /// The rules that asked.
    pub rules: Vec<String>,
    /// When it was asked for: microseconds since 1970.
    pub since: i64,
    /// When it is denied by itself: microseconds since 1970.
    pub until: i64,
    /// It is no call of a tool, but a connection of a container to a host that its profile does not grant. Then the session is the
    /// container, and the server the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<WaitingConnection>,
}

/// What an interceptor reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "news", rename_all = "snake_case")]
pub enum SessionUpdate {
    /// The journal grew.
    Grew,
    /// A call waits. The journal has it already.
    Paused {
        /// The call.
        call: String,
        /// When it is denied by itself: microseconds since 1970.
        until: i64,
        /// What tells whether a later call is the same. None: an interceptor of an earlier version.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fingerprint: Option<Fingerprint>,
    },
    /// A call no longer waits.
    Released {
        /// The call.
        call: String,
    },
    /// The session's rule file: sent when the link is up, and whenever the file changes. [`SessionOrder::RuleFile`] answers.
    RuleFile {
        /// Counts up; the answer names it.
        number: u32,
        /// The file.
        file: RuleFile,
    },
    /// The session is over and the journal whole: [`SessionOrder::Committed`] answers.
    Ended,
}

/// What the auditor orders an interceptor to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "snake_case")]
pub enum SessionOrder {
    /// A person decided.
    Decide {
        /// The call.
        call: String,
        /// `true` lets it go on.
        approve: bool,
        /// Who.
        by: String,
    },
    /// What of a rule file is in force.
    RuleFile {
        /// The number of the update that this answers; none where a person confirmed.
        answers: Option<u32>,
        /// The file; a session that has another one passes this over.
        path: String,
        /// The text that is in force.
        text: String,
        /// The first rule that the file as it is loosens: it waits for a confirmation.
        held: Option<String>,
    },
    /// The whole journal is in the database.
    Committed,
    /// The rules of the database are these now.
    Rules {
        /// All of them.
        rules: Vec<StoredRule>,
    },
    /// What is pinned of the session's server, only for interceptors whose journals say which that is. Tools that are not
    /// in it are as the interceptor knows them.
    Tools {
        /// The tools.
        tools: Vec<PinnedTool>,
    },
}

/// A tool as it is pinned, in as few bytes as it takes to compare it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedTool {
    /// Digest of its name, 32 hex digits.
    pub name: String,
    /// Hash of its definition.
    pub sha256: String,
    /// Short hashes of the definition's parts, by their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, String>,
    /// What is odd about it was not approved by anybody.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub flagged: bool,
    /// Its server listed it otherwise when it was seen last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// A person refused that change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rejected: bool,
}

#[cfg(test)]
mod tests {
    use super::Conditions;
    use std::{collections::BTreeSet, env, fs};

    const MANUAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/mcp.md");

    /// The fields of [`Conditions`], each with what is said of it.
    fn described() -> Vec<(&'static str, String)> {
        let (_, rest) = include_str!("mcp.rs").split_once("pub struct Conditions {").expect("the conditions");
        let (fields, _) = rest.split_once("\n}\n").expect("their end");
        let (mut described, mut lines) = (Vec::new(), Vec::new());
        for line in fields.lines().map(str::trim) {
            if let Some(words) = line.strip_prefix("/// ") {
                lines.push(words);
            } else if let Some((name, _)) = line.strip_prefix("pub ").and_then(|rest| rest.split_once(':')) {
                described.push((name, lines.join(" ")));
                lines.clear();
            }
        }
        described
    }

    #[test]
    fn the_manual_says_of_each_condition_what_is_said_of_it_here() {
        let described = described();
        let written = serde_json::to_value(Conditions::default()).expect("JSON");
        let written: BTreeSet<&str> =
            written.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(described.iter().map(|(name, _)| *name).collect::<BTreeSet<_>>(), written);

        let rows: Vec<String> =
            described.iter().map(|(name, text)| format!("\n| `{name}` | {text} |")).collect();
        let table = format!("| condition | meaning |\n|---|---|{}", rows.concat());
        let page = fs::read_to_string(MANUAL).expect("the manual");
        let (begin, end) = ("<!-- conditions -->\n", "\n<!-- end of conditions -->");
        let (before, rest) = page.split_once(begin).expect("the table's beginning");
        let (_, after) = rest.split_once(end).expect("its end");
        let current = format!("{before}{begin}{table}{end}{after}");
        if env::var_os("UPDATE_DOCS").is_some() {
            fs::write(MANUAL, &current).expect("the manual is written");
        } else {
            assert!(
                page == current,
                "docs/mcp.md is out of date; UPDATE_DOCS=1 cargo test -p ringfence-wire the_manual writes it"
            );
        }
    }
}
