//! Tests of the list of calls: what each shows, who sees it, by which indexes it is found.

use super::super::{FILE, Incoming, Writer, open};
use super::*;
use ringfence_events::report::{CheckedPayload, CheckedReport};
use ringfence_wire::trace::AgentEvent;

const CONTAINER: &str = "0123456789ab";

struct Rig {
    dir: tempfile::TempDir,
    writer: Writer,
    at: i64,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
        writer.hello("s", "boot").expect("greets");
        Self { dir, writer, at: 1_700_000_000_000_000 }
    }

    fn payload(&mut self, agent: &str, uid: u32, payload: CheckedPayload) {
        self.at += 1;
        let container = agent.contains('@').then(|| CONTAINER.to_owned());
        let reported = CheckedReport { agent: agent.to_owned(), uid, container, at: self.at, payload };
        self.writer.write(&[Incoming::Report(Box::new(reported))]).expect("writes");
    }

    fn says(&mut self, agent: &str, event: AgentEvent) {
        let uid = agent.split_once('@').map_or(0, |(_, uid)| uid.parse().expect("a user"));
        self.payload(agent, uid, CheckedPayload::Event(event));
    }

    fn calls(&mut self, agent: &str, key: &str) {
        self.says(
            agent,
            AgentEvent::Call {
                key: key.into(),
                id: format!("id of {key}"),
                renamed: None,
                intent: None,
                tool: "Edit".into(),
                server: None,
                input: "{}".into(),
                paths: None,
                moment: 1,
            },
        );
    }

    fn ended(&mut self, agent: &str, key: &str, is_error: bool) {
        let output = "text".to_owned();
        self.says(agent, AgentEvent::CallEnded { key: key.into(), is_error, output, moment: 2 });
    }

    fn hook(&mut self, agent: &str, key: &str, failed: Option<bool>) {
        let session = Some("a session".to_owned());
        self.says(agent, AgentEvent::HookDone { key: key.into(), session, failed, moment: 3 });
    }

    /// A user's MCP session, with these calls: of the same clock, after all that was said before.
    fn session(&mut self, uid: u32, calls: &[(&str, &str)]) {
        let insert = |text: String| self.writer.connection().execute_batch(&text).expect("inserts");
        insert("PRAGMA foreign_keys = OFF".to_owned());
        insert(format!(
            "INSERT INTO sessions (id, server_name, server_command, started_at, uid, container)
             VALUES ('session of {uid}', 'files', 's', '{}', {uid}, '{CONTAINER}')",
            rfc3339(self.at)
        ));
        for (id, columns) in calls {
            self.at += 1;
            insert(format!(
                "INSERT INTO tool_calls (id, session_id, request_msg_id, tool_name, arguments, operation_type, requested_at)
                 VALUES ('{id}', 'session of {uid}', 'm', 'write', '{{}}', 'write', '{}');
                 UPDATE tool_calls SET {columns} WHERE id = '{id}'",
                rfc3339(self.at)
            ));
        }
    }

    fn listed(&self, uid: u32, agent: Option<&str>, limit: u32) -> (Vec<ListedCall>, bool) {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let query = CallsQuery { agent: agent.map(str::to_owned), limit: Some(limit) };
        reader.call_list(Viewer(uid), &query).expect("reads")
    }

    fn keys(&self, uid: u32, agent: Option<&str>, limit: u32) -> (Vec<String>, bool) {
        let (calls, more) = self.listed(uid, agent, limit);
        (calls.into_iter().map(|call| call.key.expect("a key")).collect(), more)
    }
}

#[test]
fn a_call_says_what_it_is_known_by_and_what_came_of_it() {
    let mut rig = Rig::new();
    for key in ["answered", "failed", "said", "said to fail", "not said", "open"] {
        rig.calls("claude@7", key);
    }
    rig.ended("claude@7", "answered", false);
    rig.ended("claude@7", "failed", true);
    rig.hook("claude@7", "said", Some(false));
    rig.hook("claude@7", "said to fail", Some(true));
    rig.hook("claude@7", "not said", None);
    // What is said again changes nothing, and another agent's word is about its own calls.
    rig.hook("claude@7", "said", Some(true));
    rig.hook("claude@8", "answered", Some(true));
    let (calls, more) = rig.listed(7, None, 50);
    let shown: Vec<_> = calls
        .iter()
        .map(|call| (call.key.as_deref().expect("a key"), call.by.to_string(), call.result.to_string()))
        .collect();
    let expected = [
        ("open", "endpoint", "waiting"),
        ("not said", "endpoint+hook", "none"),
        ("said to fail", "endpoint+hook", "failed"),
        ("said", "endpoint+hook", "ok"),
        ("failed", "endpoint", "failed"),
        ("answered", "endpoint", "ok"),
    ];
    assert_eq!(shown, expected.map(|(key, by, result)| (key, by.to_owned(), result.to_owned())));
    assert!(!more);
    let said = calls[2].hook.as_ref().map(|hook| (hook.failed, hook.session.as_deref()));
    assert_eq!((calls[2].is_error, said), (None, Some((Some(true), Some("a session")))));
    assert_eq!((calls[5].is_error, calls[5].hook.as_ref()), (Some(false), None));
    let open = &calls[0];
    let said = (open.agent.as_deref(), open.container.as_deref(), open.call.as_deref(), open.tool.as_str());
    assert_eq!(said, (Some("claude@7"), Some(CONTAINER), Some("id of open"), "Edit"));
}

#[test]
fn a_tie_is_as_sure_as_its_tag() {
    let mut rig = Rig::new();
    for (tag, key) in [(1, "exact"), (2, "matched"), (3, "ambiguous")] {
        rig.calls("claude@7", key);
        rig.payload("claude@7", 7, CheckedPayload::Tagged { tag, container: CONTAINER.into() });
        rig.says("claude@7", AgentEvent::Tagged { key: key.into(), tag, matched: key == "matched" });
    }
    rig.calls("claude@7", "none");
    rig.says("claude@7", AgentEvent::Contested { key: "ambiguous".into() });
    for call in rig.listed(7, None, 50).0 {
        assert_eq!(Some(call.tie.to_string()), call.key);
    }
}

#[test]
fn mcp_calls_are_in_the_same_list() {
    let mut rig = Rig::new();
    rig.calls("coder", "before");
    let now = "responded_at = '2026'";
    let long = format!("{now}, result = '[\"' || hex(zeroblob({MOST_RESULT})) || '\"]'");
    rig.session(
        7,
        &[
            ("ok", &format!("{now}, result = '{{\"content\":[]}}', tool_use = 'toolu_1'")),
            ("failed", &format!("{now}, result = '{{\"isError\":true}}'")),
            ("failed too", &format!("{now}, error = '{{}}'")),
            ("odd", &format!("{now}, result = 'no JSON'")),
            ("long", &long),
            ("denied", &format!("{now}, error = '{{}}', decision = 'blocked'")),
            ("cancelled", "decision = 'cancelled'"),
            ("waiting", "policy_action = 'pause'"),
        ],
    );
    rig.calls("coder", "after");
    let (calls, _) = rig.listed(0, None, 50);
    let shown: Vec<_> =
        calls.iter().map(|call| (call.key.as_deref().expect("a key"), call.result.to_string())).collect();
    let expected = [
        ("after", "waiting"),
        ("waiting", "waiting"),
        ("cancelled", "none"),
        ("denied", "denied"),
        ("long", "none"),
        ("odd", "ok"),
        ("failed too", "failed"),
        ("failed", "failed"),
        ("ok", "ok"),
        ("before", "waiting"),
    ];
    assert_eq!(shown, expected.map(|(key, result)| (key, result.to_owned())));
    let ok = &calls[8];
    assert_eq!(
        (ok.by.clone(), ok.call.as_deref(), ok.agent.as_deref()),
        (KnownBy::Mcp, Some("toolu_1"), None)
    );
    assert_eq!((ok.server.as_deref(), ok.mcp_session.as_deref()), (Some("files"), Some("session of 7")));
    rig.writer.connection().execute_batch("UPDATE sessions SET ended_at = '2026'").expect("ends");
    assert_eq!(rig.listed(7, None, 1).0[0].result, CallResult::None, "nobody answers it any more");
}

#[test]
fn a_journal_of_the_future_stands_above_none_that_came_later() {
    let mut rig = Rig::new();
    rig.session(
        7,
        &[("a", ""), ("b", ""), ("now", "")]
            .map(|(id, _)| (id, "requested_at = '9999-01-01T00:00:00.000000Z'")),
    );
    rig.writer
        .connection()
        .execute_batch(&format!(
            "UPDATE tool_calls SET requested_at = '{}' WHERE id = 'now';
             INSERT INTO calls_by_user (uid, requested_at, id, flagged)
                 SELECT 7, requested_at, id, 0 FROM tool_calls WHERE true ON CONFLICT DO NOTHING;
             INSERT INTO session_bounds (session_id, bytes, written) VALUES ('session of 7', 1, {})",
            rfc3339(rig.at + 1),
            rig.at + 1
        ))
        .expect("changes");
    rig.at += 2;
    rig.calls("claude@7", "later");
    for uid in [0, 7] {
        assert_eq!(rig.keys(uid, None, 4).0, ["later", "b", "a", "now"]);
        let (calls, more) = rig.listed(uid, None, 1);
        assert_eq!((calls[0].key.as_deref(), more), (Some("later"), true));
        assert!(rig.listed(uid, None, 4).0[1].ts.starts_with("2023-"), "{calls:?}");
    }
}

#[test]
fn users_see_their_own_and_root_sees_all() {
    let mut rig = Rig::new();
    for agent in ["claude@7", "claude@8", "codex@7", "claude", "claudette"] {
        rig.calls(agent, &format!("of {agent}"));
    }
    rig.session(7, &[("mcp of 7", "tool_name = 'read'")]);
    rig.session(8, &[("mcp of 8", "tool_name = 'read'")]);
    let keys = |uid, agent, limit| rig.keys(uid, agent, limit);
    let of = |names: &[&str], more| (names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), more);
    assert_eq!(keys(7, None, 50), of(&["mcp of 7", "of codex@7", "of claude@7"], false));
    assert_eq!(keys(8, None, 50), of(&["mcp of 8", "of claude@8"], false));
    assert_eq!(keys(9, None, 50), of(&[], false));
    assert_eq!(keys(0, None, 3), of(&["mcp of 8", "mcp of 7", "of claudette"], true));
    assert_eq!(keys(0, Some("claude"), 50), of(&["of claude", "of claude@8", "of claude@7"], false));
    assert_eq!(keys(0, Some("claude"), 2), of(&["of claude", "of claude@8"], true));
    assert_eq!(keys(0, Some("claude@8"), 50), of(&["of claude@8"], false));
    assert_eq!(keys(7, Some("claude"), 50), of(&["of claude@7"], false));
    assert_eq!(keys(7, Some("claude@8"), 50), of(&[], false));
}

#[test]
fn the_newest_are_found_without_a_look_at_the_others() {
    let rig = Rig::new();
    let plan = |question: String, values: &[&dyn rusqlite::ToSql]| -> Vec<String> {
        let mut plan =
            rig.writer.connection().prepare(&format!("EXPLAIN QUERY PLAN {question}")).expect("plans");
        plan.query_map(values, |row| row.get(3)).and_then(Iterator::collect).expect("a plan")
    };
    let has = |plan: &[String], step: &str| assert!(plan.iter().any(|one| one == step), "{step}: {plan:?}");
    for (which, step) in [
        (ALL, "SCAN agent_calls"),
        (USERS, "SEARCH agent_calls USING COVERING INDEX agent_calls_by_user (uid=?)"),
        (
            USERS_NAMED,
            "SEARCH agent_calls USING COVERING INDEX agent_calls_by_user_and_agent (uid=? AND agent=?)",
        ),
        (NAMED, "SEARCH agent_calls USING COVERING INDEX agent_calls_by_age (agent=?)"),
        (NAMED, "SEARCH agent_calls USING COVERING INDEX agent_calls_by_age (agent>? AND agent<?)"),
    ] {
        let plan = plan(of_agents(which), params![7, "a", 5]);
        has(&plan, step);
        has(&plan, "SEARCH a USING INTEGER PRIMARY KEY (rowid=?)");
    }
    for which in [USERS, USERS_NAMED] {
        let plan = plan(which.to_owned(), params![7, "a", 5]);
        let none = |word: &str| assert!(!plan.iter().any(|step| step.contains(word)), "{word}: {plan:?}");
        none("SCAN agent_calls");
        none("TEMP B-TREE");
    }
    for (which, step) in [
        (ALL_MCP, "SEARCH tool_calls USING INDEX idx_tool_calls_time (requested_at<?)"),
        (ALL_MCP, "SEARCH tool_calls USING INDEX idx_tool_calls_time (requested_at>?)"),
        (USERS_MCP, "SEARCH calls_by_user USING PRIMARY KEY (uid=? AND requested_at<?)"),
        (USERS_MCP, "SEARCH calls_by_user USING PRIMARY KEY (uid=? AND requested_at>?)"),
    ] {
        let plan = plan(of_mcp(which), params![7, 5, "2026"]);
        has(&plan, step);
        has(&plan, "SEARCH c USING INDEX sqlite_autoindex_tool_calls_1 (id=?)");
    }
}
