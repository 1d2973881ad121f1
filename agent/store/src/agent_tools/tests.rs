//! What workers of agents list, beside what sessions of the same user have.

use super::{AgentServer, MOST_OF_AGENT, MOST_OF_USER, OfAgent};
use crate::{Decided, Position, SessionReader, SessionWriter, Viewer};
use ringfence_pins::{
    Definition,
    definition::{hash_of_before, name_digest},
};
use ringfence_session::{
    journal::ListedTool,
    rows::ingest::{Row, ToolsRow},
};
use ringfence_wire::agent_tools::{SeenDefinition, SeenTool};
use serde_json::{Value, json};

const SECOND: i64 = 1_000_000;

struct Store {
    _folder: tempfile::TempDir,
    writer: SessionWriter,
    reader: SessionReader,
}

fn definition(name: &str, description: &str) -> SeenDefinition {
    let whole = Definition::of_parts(name, description, &json!({"type": "object"})).expect("a definition");
    SeenDefinition { sha256: whole.sha256, text: Some(whole.text) }
}

fn tool(name: &str, description: &str) -> SeenTool {
    SeenTool { name: name.into(), now: definition(name, description), trusted: None }
}

const fn server<'a>(uid: u32, agent: &'a str, name: &'a str) -> AgentServer<'a> {
    AgentServer { uid, agent, of_daemon: true, name, address: "https://example.org/mcp" }
}

impl Store {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("audit.db");
        let mut writer = SessionWriter::new(path.clone(), None);
        writer.connection().expect("open");
        Self { _folder: folder, writer, reader: SessionReader::open(&path).expect("opens") }
    }

    fn list(&mut self, of: &AgentServer<'_>, at: i64, tools: &[SeenTool]) -> i64 {
        self.writer.agent_tools(of, tools, (at * SECOND, true, at * SECOND)).expect("stored").expect("room")
    }

    fn waits(&self, uid: u32) -> Vec<Value> {
        self.reader.pending_tools(Viewer(uid), None).expect("reads")
    }

    fn pins(&self, viewer: u32, agent: &str) -> Vec<Value> {
        self.reader.agent_pins(Viewer(viewer), (agent, true), 0).expect("reads")
    }

    /// What the worker is told is trusted of a tool.
    fn told(&self, server: i64, tool: &str) -> Option<String> {
        let pinned = self.reader.pinned_tools(server).expect("reads");
        pinned.into_iter().find(|pinned| pinned.name == name_digest(tool)).map(|pinned| pinned.sha256)
    }

    fn decide(&mut self, server: i64, tool: &str, sha256: &str, approve: bool) -> Decided {
        let of = (server, tool, sha256);
        self.writer.decide_tool(Viewer(0), of, ("uid 0", approve), 9 * SECOND).expect("decides")
    }

    /// A session of the user's with a server of this name, which lists one tool.
    fn session(&mut self, id: &str, uid: u32, name: &str, tool: &str, description: &str) {
        let (_, epoch) = self.writer.lines(id, uid).expect("read").expect("one's own");
        let place =
            Position { session: id, uid, journal: "", lines: 2, head: "h", bytes: 9, read_to: 0, epoch };
        let SeenDefinition { sha256, text } = definition(tool, description);
        let listed = ListedTool {
            name: tool.into(),
            sha256: Some(sha256),
            held: None,
            definition: text,
            parts: Default::default(),
            flags: Vec::new(),
        };
        let start = Row::Session {
            server_name: name.into(),
            server_command: "npx".into(),
            started_at: SECOND,
            client: None,
        };
        let key = ringfence_pins::definition::server_key(name, &["npx".to_owned()]);
        let tools = ToolsRow { at: SECOND, tools: vec![listed], whole: Some(SECOND), counts: true };
        let rows =
            [start, Row::Server { key: Some(key), info: None, at: SECOND }, Row::Tools(Box::new(tools))];
        self.writer.write(&place, &rows).expect("stored");
    }
}

#[test]
fn what_is_listed_first_is_pinned_and_a_change_waits_until_a_person_decides() {
    let mut store = Store::new();
    let github = server(5, "reviewer", "github");
    let id = store.list(&github, 1, &[tool("a", "Adds"), tool("b", "Takes away")]);
    let first = store.told(id, "a").expect("pinned");
    assert!(store.waits(5).is_empty());
    assert_eq!(store.list(&github, 2, &[tool("a", "Adds, and more"), tool("b", "Takes away")]), id);
    assert_eq!(store.told(id, "a"), Some(first.clone()), "what the worker trusts is what it was");
    let waits = store.waits(5);
    assert_eq!((waits.len(), &waits[0]["tool"], &waits[0]["agent"]), (1, &json!("a"), &json!("reviewer")));
    assert!(store.waits(6).is_empty(), "another user's");
    let inventory = store.reader.inventory(Viewer(5), Some("reviewer/github")).expect("reads");
    let a = &inventory[0]["tools"][0];
    assert_eq!((&a["name"], &inventory[0]["agent"]), (&json!("a"), &json!("reviewer")));
    assert_eq!(a["held"], "its description changed since it was pinned");
    let pins = store.pins(5, "reviewer");
    assert_eq!((&pins[0]["tool"], &pins[1]["tool"]), (&json!("a"), &json!("b")), "what waits is first");
    assert!(pins[0]["changed_definition"].as_str().expect("a text").contains("and more"));
    assert!(store.pins(6, "reviewer").is_empty(), "another user's");
    assert_eq!(store.pins(0, "reviewer").len(), 2, "root sees the daemon's");

    let changed = waits[0]["sha256"].as_str().expect("a hash").to_owned();
    assert_eq!(store.decide(id, "a", &first, true), Decided::Another);
    assert_eq!(store.decide(id, "a", &changed, false), Decided::Done);
    assert_eq!(store.told(id, "a"), Some(first), "rejected: not trusted");
    assert!(store.waits(5).is_empty(), "and waits no more");
    assert_eq!(store.decide(id, "a", &changed, true), Decided::Done, "thought again");
    assert_eq!(store.told(id, "a"), Some(changed));
    // Listed again, it is as it was approved; the other is gone.
    store.list(&github, 10, &[tool("a", "Adds, and more")]);
    assert!(store.waits(5).is_empty());
    let inventory = store.reader.inventory(Viewer(5), Some("github")).expect("reads");
    let tools = inventory[0]["tools"].as_array().expect("tools");
    assert!(tools[0]["held"].is_null() && tools[1]["gone_at"].is_string(), "{tools:?}");
}

#[test]
fn what_a_worker_trusted_before_anybody_was_told_is_what_is_pinned_once() {
    let mut store = Store::new();
    let of = server(5, "reviewer", "github");
    let now = SeenTool { trusted: Some(definition("a", "Adds")), ..tool("a", "Adds, and sends keys") };
    let id = store.list(&of, 1, std::slice::from_ref(&now));
    assert_eq!(store.told(id, "a"), Some(definition("a", "Adds").sha256));
    assert_eq!(store.waits(5).len(), 1);
    // Another word on what it trusted changes nothing.
    let again = SeenTool { trusted: Some(now.now.clone()), ..now.clone() };
    store.list(&of, 2, &[again]);
    assert_eq!(store.told(id, "a"), Some(definition("a", "Adds").sha256));
    // Forgotten by a person, it is pinned as it is then, whatever its worker remembers, in each part of that list.
    store.writer.forget_server(Viewer(0), id, "uid 0", 3 * SECOND).expect("forgets");
    let other = SeenTool { trusted: Some(definition("b", "Takes")), ..tool("b", "Takes keys") };
    let mut part = |tool: &SeenTool, is_whole| {
        let times = (4 * SECOND, is_whole, 4 * SECOND);
        store.writer.agent_tools(&of, std::slice::from_ref(tool), times).expect("stored").expect("room")
    };
    part(&now, false);
    let id = part(&other, true);
    let told = [store.told(id, "a"), store.told(id, "b")];
    assert_eq!(told, [Some(now.now.sha256.clone()), Some(other.now.sha256)]);
    // Once: where the row goes otherwise, what was trusted is still trusted.
    store
        .writer
        .connection()
        .expect("open")
        .execute_batch("DELETE FROM tool_pins; DELETE FROM mcp_servers")
        .expect("lost");
    let id = store.list(&of, 5, std::slice::from_ref(&now));
    assert_eq!(store.told(id, "a"), Some(definition("a", "Adds").sha256));
    assert_eq!(store.waits(5).len(), 1);
}

#[test]
fn what_an_earlier_version_s_hash_names_is_the_same_tool_and_nothing_else_is() {
    let mut store = Store::new();
    let of = server(5, "reviewer", "github");
    let sha256 = hash_of_before("Adds", &json!({"type": "object"}));
    let trusted = SeenDefinition { sha256: sha256.clone(), ..definition("a", "Adds") };
    let changed = SeenTool { trusted: Some(trusted), ..tool("a", "Adds, and sends keys") };
    let id = store.list(&of, 1, std::slice::from_ref(&changed));
    assert_eq!((store.told(id, "a"), store.waits(5).len()), (Some(sha256.clone()), 1));
    store.list(&of, 2, &[tool("a", "Adds, and sends more")]);
    assert_eq!((store.told(id, "a"), store.waits(5).len()), (Some(sha256), 1), "the control");
    let back = tool("a", "Adds");
    store.list(&of, 3, std::slice::from_ref(&back));
    assert_eq!((store.told(id, "a"), store.waits(5).len()), (Some(back.now.sha256.clone()), 0));
    store.list(&of, 4, &[tool("a", "Adds, and sends keys")]);
    let waits = store.waits(5);
    assert_eq!((store.told(id, "a"), waits.len()), (Some(back.now.sha256), 1), "as ever");
    assert!(waits[0]["pinned"].as_str().expect("what it said").contains("Adds"));
}

#[test]
fn what_has_no_text_is_pinned_by_its_hash_and_approved_by_nobody() {
    let mut store = Store::new();
    let of = server(5, "reviewer", "github");
    let without = |description: &str| SeenDefinition { text: None, ..definition("a", description) };
    let first = SeenTool { now: without("Adds"), ..tool("a", "") };
    let id = store.list(&of, 1, &[first.clone(), tool("b", "x")]);
    assert_eq!(store.told(id, "a"), Some(first.now.sha256.clone()));
    let changed = SeenTool { now: without("Adds keys"), ..tool("a", "") };
    store.list(&of, 2, &[changed.clone(), tool("b", "y")]);
    assert_eq!(store.told(id, "a"), Some(first.now.sha256), "held");
    assert_eq!(store.decide(id, "a", &changed.now.sha256, true), Decided::NotKept);
    assert_eq!(store.decide(id, "b", &tool("b", "y").now.sha256, true), Decided::Done, "the control");
}

#[test]
fn about_an_agent_of_the_daemon_root_alone_decides() {
    let mut store = Store::new();
    let of = server(5, "reviewer", "github");
    for (of_daemon, decided) in [(true, Decided::Roots), (false, Decided::Done)] {
        let of = AgentServer { of_daemon, ..of };
        let id = store.list(&of, 1, &[tool("a", "Adds")]);
        let changed = tool("a", "Adds, and more");
        store.list(&of, 2, std::slice::from_ref(&changed));
        let named = (id, "a", &*changed.now.sha256);
        for approve in [false, true] {
            let done =
                store.writer.decide_tool(Viewer(5), named, ("uid 5", approve), 3 * SECOND).expect("decides");
            assert_eq!(done, decided, "{of_daemon} {approve}");
        }
        let forgotten = store.writer.forget_server(Viewer(5), id, "uid 5", 4 * SECOND).expect("decides");
        assert_eq!(forgotten, decided, "{of_daemon}");
        let stranger = store.writer.forget_server(Viewer(6), id, "uid 6", 4 * SECOND).expect("decides");
        assert_eq!(stranger, Decided::Unknown);
    }
}

#[test]
fn an_agent_changes_nothing_of_another_s_nor_of_the_user_s_own_servers() {
    let mut store = Store::new();
    store.session("s1", 5, "github", "create_issue", "Creates one");
    let (mine, other) = (server(5, "reviewer", "github"), server(5, "coder", "github"));
    let by_user = AgentServer { of_daemon: false, ..mine };
    let theirs = server(6, "reviewer", "github");
    let ids: Vec<i64> = [mine, other, by_user, theirs]
        .iter()
        .map(|of| store.list(of, 2, &[tool("create_issue", "Creates another, see drop_everything")]))
        .collect();
    assert!(ids.iter().enumerate().all(|(at, id)| !ids[..at].contains(id)), "{ids:?}");
    let own = store.reader.inventory(Viewer(5), Some("github")).expect("reads");
    let own: Vec<&Value> = own.iter().filter(|row| row["agent"].is_null()).collect();
    assert_eq!(own.len(), 1, "the session's");
    let own = own[0]["id"].as_i64().expect("an id");
    assert_eq!(store.told(own, "create_issue"), Some(definition("create_issue", "Creates one").sha256));
    store.list(&mine, 3, &[tool("create_issue", "Something else"), tool("drop_everything", "Drops it")]);
    for id in &ids[1..] {
        assert!(store.told(*id, "drop_everything").is_none());
        assert_ne!(
            store.told(*id, "create_issue"),
            Some(definition("create_issue", "Something else").sha256)
        );
    }
    // What an agent's servers are called makes nobody else's tools odd: they would wait for a person.
    store.session("s2", 5, "files", "drop_file", "Better than drop_everything");
    store.list(&server(5, "coder", "more"), 4, &[tool("drop_more", "Better than drop_everything")]);
    let odd: Vec<Value> = store.waits(5).into_iter().filter(|row| row["changed"] == false).collect();
    assert!(odd.is_empty(), "{odd:?}");
    let same = tool("drop_too", "Better than drop_everything");
    store.list(&server(5, "reviewer", "more"), 5, &[same]);
    let odd = store.waits(5).into_iter().filter(|row| row["changed"] == false).count();
    assert_eq!(odd, 1, "the control: of the same agent it does");
    let of = store.reader.agent_of_server(ids[0]).expect("reads");
    let expected = OfAgent { uid: 5, agent: "reviewer".into(), of_daemon: true, server: "github".into() };
    assert_eq!(of, Some(expected));
    assert_eq!(store.reader.agent_of_server(own).expect("reads"), None);
}

#[test]
fn an_agent_has_so_many_servers_and_makes_room_among_its_own() {
    let mut store = Store::new();
    let kept = store.list(&server(5, "coder", "s"), 1, &[tool("t", "x")]);
    store.session("s1", 5, "own", "t", "x");
    let decided = store.list(&server(5, "reviewer", "decided"), 1, &[tool("t", "x")]);
    store.list(&server(5, "reviewer", "decided"), 2, &[tool("t", "y")]);
    for n in 0..2 * MOST_OF_AGENT {
        store.list(&server(5, "reviewer", &format!("s{n}")), 3 + n, &[tool("t", "x")]);
    }
    let all = store.reader.inventory(Viewer(5), None).expect("reads");
    let of = |agent: Value| all.iter().filter(|row| row["agent"] == agent).count() as i64;
    assert_eq!((of(json!("reviewer")), of(json!("coder")), of(Value::Null)), (MOST_OF_AGENT, 1, 1));
    for id in [kept, decided] {
        assert!(store.told(id, "t").is_some(), "not made room of: {id}");
    }
}

#[test]
fn a_user_s_agents_have_so_many_servers_and_those_go_that_nobody_has_seen_for_long() {
    let mut store = Store::new();
    let now = ringfence_base::clock::now_micros() / SECOND;
    let names: Vec<String> = (0..=MOST_OF_USER / 8).map(|n| format!("a{n}")).collect();
    let servers: Vec<String> = (0..8).map(|n| format!("s{n}")).collect();
    let last = names.last().expect("one").clone();
    for agent in &names[..names.len() - 1] {
        for name in &servers {
            store.list(&server(5, agent, name), now, &[tool("t", "x")]);
        }
    }
    let mut has_room = |of: &AgentServer<'_>| {
        let times = (now * SECOND, true, now * SECOND);
        store.writer.agent_tools(of, &[tool("t", "x")], times).expect("stored").is_some()
    };
    let more = server(5, &last, "s");
    assert!(!has_room(&more), "all are in use");
    assert!(has_room(&AgentServer { of_daemon: false, ..more }), "counted apart");
    assert!(has_room(&AgentServer { uid: 6, ..more }), "another user's");
    let old = "UPDATE mcp_servers SET last_seen = '2020-01-01T00:00:00Z' WHERE uid = 5 AND of_daemon AND agent IN ('a0', 'a1') AND name = 's0';
        UPDATE tool_pins SET approved_at = '2020-01-01T00:00:00Z' WHERE server = (SELECT id FROM mcp_servers WHERE agent = 'a0' AND name = 's0')";
    store.writer.connection().expect("open").execute_batch(old).expect("aged");
    let mut has_room = |of: &AgentServer<'_>| {
        let times = (now * SECOND, true, now * SECOND);
        store.writer.agent_tools(of, &[tool("t", "x")], times).expect("stored").is_some()
    };
    assert!(has_room(&more), "one was not seen for long");
    assert!(!has_room(&server(5, &last, "s2")), "the other was decided about");
    let pins = |agent: &str| store.pins(5, agent).len();
    assert_eq!((pins("a0"), pins("a1")), (8, 7));
}

#[test]
fn a_list_in_parts_is_one_list() {
    let mut store = Store::new();
    let of = server(5, "reviewer", "github");
    let id = store.list(&of, 1, &[tool("gone", "x")]);
    let mut part = |at: i64, name: &str, is_whole: bool| {
        let times = (5 * SECOND, is_whole, at * SECOND);
        store.writer.agent_tools(&of, &[tool(name, "x")], times).expect("stored");
        let row = store.reader.inventory(Viewer(5), Some("github")).expect("reads").remove(0);
        let tools = row["tools"].as_array().expect("tools");
        tools
            .iter()
            .filter(|tool| tool["gone_at"].is_null())
            .map(|tool| tool["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(part(5, "a", false), ["a", "gone"], "there may be more");
    assert_eq!(part(6, "b", false), ["a", "b", "gone"]);
    assert_eq!(part(7, "c", true), ["a", "b", "c"]);
    // Of the first list of all, no part is news.
    let other = server(5, "reviewer", "another");
    for (at, name, is_whole) in [(8, "a", false), (9, "b", true)] {
        let times = (8 * SECOND, is_whole, at * SECOND);
        store.writer.agent_tools(&other, &[tool(name, "x")], times).expect("stored");
    }
    let row = store.reader.inventory(Viewer(5), Some("another")).expect("reads").remove(0);
    assert_eq!(row["changes"], json!([]));
    assert!(store.told(id, "c").is_some());
}
