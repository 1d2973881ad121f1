//! Kernel events under the calls they belong to: made-up journals and records of one clock, real auditor, real questions.

use crate::{
    auditor_support::{Core, Made, PATIENCE, denied, manifest, uid},
    crowd::link,
    support::{Home, eventually},
};
use ringfence_wire::{
    audit::{AgentReport, Payload, run_agent},
    conn::Conn,
    mcp::{McpReply, McpRequest, SessionOrder, SessionUpdate},
};
use serde_json::{Value, json, value::to_raw_value};
use sha2::{Digest, Sha256};
use std::{
    fs::File,
    io::Write,
    os::fd::AsFd,
    path::Path,
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const SESSION: &str = "11111111-1111-4111-8111-111111111111";
const OTHER: &str = "22222222-2222-4222-8222-222222222222";
/// Seconds since boot, in the clock's nanoseconds.
const SECOND: u64 = 1_000_000_000;

/// Microseconds since 1970 of a moment of the made-up clock: of late, for what is older than a month is removed the next
/// time the auditor looks, ten seconds after its start.
fn wall(boot: u64) -> u64 {
    static ZERO: LazyLock<SystemTime> = LazyLock::new(|| SystemTime::now() - Duration::from_secs(3600));
    let zero = ZERO.duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
    u64::try_from(zero).expect("a time") + boot / 1000
}

/// A journal as an interceptor writes it.
struct Journal {
    file: File,
    head: String,
    lines: u32,
}

impl Journal {
    fn create(path: &Path, session: &str, container: &str) -> Self {
        let mut journal =
            Self { file: File::create(path).expect("a journal"), head: "0".repeat(64), lines: 0 };
        journal.line(&json!({ "kind": "start", "session": session, "at": wall(0), "server_name": "files",
            "server_command": ["files"], "pid": 1, "version": "0" }));
        journal.line(
            &json!({ "kind": "governed", "at": wall(1), "profile": "coder", "enforcement": "kernel", "container": container }),
        );
        journal
    }

    fn line(&mut self, entry: &Value) {
        let json = entry.to_string();
        let hash: String = Sha256::digest([self.head.as_bytes(), json.as_bytes()].concat())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        writeln!(self.file, "{hash} {json}").expect("written");
        self.head = hash;
        self.lines += 1;
    }

    fn message(&mut self, boot: u64, direction: &str, raw: &Value, calls: &Value) {
        let id = format!("{:08}-0000-4000-8000-{:012}", self.lines, boot % 1_000_000);
        self.line(
            &json!({ "kind": "message", "id": id, "at": wall(boot), "boot": boot, "direction": direction,
            "raw": raw.to_string(), "bytes": 1, "sha256": "", "calls": calls }),
        );
    }

    fn asked(&mut self, second: u64, id: u32, call: &str) {
        let raw = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": { "name": "t", "arguments": {} } });
        let judged = json!([{ "call": call, "index": 0, "tool": "t", "operation": "read", "score": 0, "reasons": [],
            "action": "pass", "rules": [] }]);
        self.message(second * SECOND, "client_to_server", &raw, &judged);
    }

    fn answered(&mut self, second: u64, id: u32) {
        let raw = json!({ "jsonrpc": "2.0", "id": id, "result": { "content": [] } });
        self.message(second * SECOND, "server_to_client", &raw, &json!([]));
    }

    fn end(&mut self) {
        self.line(&json!({ "kind": "end", "at": wall(9), "status": 0 }));
    }
}

fn call(n: u32) -> String {
    format!("{n:08}-0000-4000-8000-000000000000")
}

/// What a process born in one second did in another.
fn did(path: &str, born: u64, at: u64) -> Made {
    Made { time: at * SECOND, start: born * SECOND, ..denied(path) }
}

/// Hands a journal to the auditor, as whoever finds one does.
fn hand_over(core: &Core, session: &str, path: &Path) {
    let mut conn = Conn::connect(&core.dir.path().join("mcp.sock"), PATIENCE).expect("connects");
    let file = File::open(path).expect("the journal");
    let request = McpRequest::Journal { session: session.into(), journal: path.display().to_string() };
    conn.send_with_descriptors(&request, &[file.as_fd()]).expect("sent");
    assert_eq!(conn.receive::<McpReply>().expect("an answer"), McpReply::Taken);
}

/// `attribution`, `tool_call` and `candidates` of the event about a path.
fn tie(events: &str, path: &str) -> (String, Value, Value) {
    let event = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .find(|event| event["path"] == path)
        .unwrap_or_else(|| panic!("no event about {path} in {events}"));
    (
        event["attribution"].as_str().expect("a word").to_owned(),
        event["tool_call"].clone(),
        event["candidates"].clone(),
    )
}

#[test]
fn events_stand_under_the_call_that_they_belong_to() {
    let mut home = Home::new();
    let path = home.path("one.journal");
    let mut journal = Journal::create(&path, SESSION, "0123456789ab");
    journal.asked(100, 1, &call(1));
    journal.answered(200, 1);
    journal.asked(300, 2, &call(2));
    journal.asked(350, 3, &call(3));
    journal.answered(400, 2);
    journal.answered(450, 3);
    journal.end();
    let core = home.core();
    core.records([
        did("/sole", 120, 150),
        did("/older", 50, 150),
        did("/left-behind", 120, 250),
        did("/idle", 50, 260),
        did("/before-the-second", 310, 320),
        did("/two", 360, 370),
        did("/born-in-two", 360, 420),
        did("/server", 50, 370),
    ]);
    // Not yet known whose they are: nothing is claimed of them but what holds without sessions.
    core.settle();
    let (before, _, _) = core.run(&["events", "--json"]);
    assert_eq!(tie(&before, "/sole").1, Value::Null);
    hand_over(core, SESSION, &path);
    let (events, _, _) = core.run(&["events", "--json"]);
    let sole = |n| ("sole".to_owned(), json!(call(n)), Value::Null);
    let ambiguous = |all: &[u32]| {
        let all: Vec<String> = all.iter().map(|n| call(*n)).collect();
        ("ambiguous".to_owned(), Value::Null, json!(all))
    };
    let none = ("none".to_owned(), Value::Null, Value::Null);
    assert_eq!(tie(&events, "/sole"), sole(1));
    assert_eq!(tie(&events, "/older"), ambiguous(&[1]));
    assert_eq!(tie(&events, "/left-behind"), none);
    assert_eq!(tie(&events, "/idle"), none);
    assert_eq!(tie(&events, "/before-the-second"), sole(2));
    assert_eq!(tie(&events, "/two"), ambiguous(&[2, 3]));
    assert_eq!(tie(&events, "/born-in-two"), ambiguous(&[2, 3]));
    assert_eq!(tie(&events, "/server"), ambiguous(&[2, 3]));

    let (one, _, _) = core.run(&["mcp", "calls", &call(2)[..9], "--json"]);
    let row: Value = serde_json::from_str(&one).expect("one call");
    let paths: Vec<&str> =
        row["events"].as_array().expect("events").iter().filter_map(|event| event["path"].as_str()).collect();
    assert_eq!(paths, ["/before-the-second", "/two", "/server"]);
    let (text, _, _) = core.run(&["mcp", "calls", &call(1)]);
    assert!(text.contains("sole       denied      open      /sole"), "{text}");
    let why = core.run(&["events", "why", "1", "--json"]).0;
    assert_eq!(serde_json::from_str::<Value>(&why).expect("JSON")["event"]["tool_call"], call(1));

    let shown = home.json(&format!("/api/tool-calls/{}", call(1)));
    assert_eq!(shown["events"].as_array().map(Vec::len), Some(2), "{shown}");
    assert_eq!((&shown["container"], &shown["enforcement"]), (&json!("0123456789ab"), &json!("kernel")));
    let found =
        |query: &str| home.json(&format!("/api/tool-calls?container={query}")).as_array().map_or(0, Vec::len);
    assert_eq!((found("0123456789ab"), found("0123"), found("ffff"), found("")), (3, 3, 0, 3));
}

#[test]
fn a_container_that_somebody_else_enrolled_is_not_the_sessions() {
    let mut home = Home::new();
    let path = home.path("one.journal");
    let mut journal = Journal::create(&path, OTHER, "ba9876543210");
    journal.asked(100, 1, &call(9));
    journal.answered(200, 1);
    journal.end();
    let core = home.core();
    core.announce(manifest(0x2006, "ba9876543210", "coder", uid() + 1));
    core.records([Made { container: 0x2006, ..did("/theirs", 120, 150) }]);
    core.settle();
    hand_over(core, OTHER, &path);
    let (events, _, _) = core.run(&["events", "--json"]);
    if uid() == 0 {
        assert_eq!(tie(&events, "/theirs"), ("none".to_owned(), Value::Null, Value::Null));
    }
    let (one, _, _) = core.run(&["mcp", "calls", &call(9), "--json"]);
    let row: Value = serde_json::from_str(&one).expect("one call");
    assert_eq!(row["events"], json!([]));
}

#[test]
fn what_the_journal_may_not_have_told_yet_is_ambiguous() {
    let mut home = Home::new();
    let path = home.path("one.journal");
    let mut journal = Journal::create(&path, SESSION, "0123456789ab");
    journal.asked(100, 1, &call(1));
    // No end: whoever wrote it was killed.
    let core = home.core();
    core.records([did("/known", 90, 100), did("/later", 120, 150)]);
    core.settle();
    hand_over(core, SESSION, &path);
    let (events, _, _) = core.run(&["events", "--json"]);
    assert_eq!(tie(&events, "/later"), ("ambiguous".to_owned(), Value::Null, json!([call(1)])));
    // A call that went by unseen makes everything doubtful.
    let path = home.path("two.journal");
    let mut journal = Journal::create(&path, OTHER, "0123456789ab");
    journal.line(&json!({ "kind": "gap", "at": 5 }));
    journal.end();
    hand_over(home.core(), OTHER, &path);
    let events = eventually("the events", || Some(home.core().run(&["events", "--json"]).0));
    assert_eq!(tie(&events, "/known").0, "ambiguous");
}

#[test]
fn a_call_that_waits_and_is_not_on_record_is_denied_at_once() {
    let mut home = Home::new();
    let path = home.path("one.journal");
    Journal::create(&path, SESSION, "0123456789ab");
    let mut conn = link(&home.core().dir.path().join("mcp.sock"), SESSION, &path);
    let until = i64::try_from(wall(7_200 * SECOND)).expect("a time");
    conn.send(&SessionUpdate::Paused { call: call(1), until, fingerprint: None }).expect("sent");
    let by = "the auditor: it has no record of this call".to_owned();
    assert_eq!(
        conn.receive::<SessionOrder>().expect("an order"),
        SessionOrder::Decide { call: call(1), approve: false, by }
    );
}

#[test]
fn a_session_releases_its_own_calls_only() {
    let mut home = Home::new();
    let mut files = home.session("files", &[]);
    files.call("delete_thing", "{}");
    let waiting = home.waiting();
    let path = home.path("one.journal");
    let mut journal = Journal::create(&path, SESSION, "0123456789ab");
    let mut conn = link(&home.core().dir.path().join("mcp.sock"), SESSION, &path);
    conn.send(&SessionUpdate::Released { call: waiting.clone() }).expect("sent");
    journal.end();
    conn.send(&SessionUpdate::Ended).expect("sent");
    // What was said before was heard before.
    assert_eq!(conn.receive::<SessionOrder>().expect("an order"), SessionOrder::Committed);
    assert_eq!(home.waiting(), waiting, "ids are no secret");
    assert_eq!(home.ask("POST", &format!("/api/tool-calls/{waiting}/approve"), Some("{}")).status, 200);
    assert!(files.line().contains(r#""id":1"#), "it went on");
    eventually("nothing waits", || (home.json("/api/waiting")[0].is_null()).then_some(()));
}

/// What a run of this user's reports, beginning with its container.
fn reports(said: impl IntoIterator<Item = Value>) -> Vec<AgentReport> {
    let report = |(n, payload): (usize, Payload)| AgentReport {
        agent: run_agent("claude", uid()),
        uid: uid(),
        container: Some("0123456789ab".into()),
        // Before what the journal has.
        at: i64::try_from(wall(SECOND)).expect("a time") + i64::try_from(n).expect("few"),
        payload,
    };
    let said = said.into_iter().map(|event| Payload::Event(to_raw_value(&event).expect("serialises")));
    std::iter::once(Payload::LineOpened).chain(said).enumerate().map(report).collect()
}

#[test]
fn all_calls_are_in_one_list_whatever_carried_them() {
    let mut home = Home::new();
    let path = home.path("one.journal");
    let mut journal = Journal::create(&path, SESSION, "0123456789ab");
    journal.asked(100, 1, &call(1));
    journal.answered(200, 1);
    journal.end();
    let core = home.core();
    let wanted = |key: &str, id: &str, tool: &str| json!({ "said": "call", "key": key, "id": id, "intent": null, "tool": tool, "server": null, "input": "{}", "moment": 1 });
    core.reports(reports([
        wanted("a", "toolu_1", "Edit"),
        wanted("b", "toolu_2", "Bash"),
        json!({ "said": "hook_done", "key": "a", "session": "s\u{1b}[2J", "failed": true, "moment": 2 }),
        wanted("c", "toolu_3", "Web\nFetch"),
        json!({ "said": "hook_done", "key": "c", "failed": false, "moment": 3 }),
    ]));
    core.settle();
    hand_over(core, SESSION, &path);

    let (out, err, ok) = core.run(&["events", "calls", "--json"]);
    assert!(ok && err.is_empty(), "{err}");
    let list: Value = serde_json::from_str(&out).expect("JSON");
    let shown = |list: &Value| -> Vec<Value> {
        let calls = list["calls"].as_array().expect("calls").iter();
        calls.map(|call| json!([call["tool"], call["by"], call["result"], call["tie"]])).collect()
    };
    let agents = [
        json!(["Web\nFetch", "endpoint+hook", "ok", "none"]),
        json!(["Bash", "endpoint", "waiting", "none"]),
        json!(["Edit", "endpoint+hook", "failed", "none"]),
    ];
    assert_eq!(shown(&list), [&[json!(["t", "mcp", "ok", "none"])], &agents[..]].concat());
    assert_eq!(list["more"], false);
    let edit = &list["calls"][3];
    let whose = (&edit["agent"], &edit["container"], &edit["hook"]["session"], &edit["call"]);
    assert_eq!(
        whose,
        (&json!(run_agent("claude", uid())), &json!("0123456789ab"), &json!("s\u{1b}[2J"), &json!("toolu_1"))
    );
    let mcp = &list["calls"][0];
    assert_eq!(
        (&mcp["mcp_session"], &mcp["server"], &mcp["key"]),
        (&json!(SESSION), &json!("files"), &json!(call(1)))
    );

    let (out, ..) = core.run(&["events", "calls", "--json", "--agent", "claude", "--limit", "2"]);
    let list: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((shown(&list), &list["more"]), (agents[..2].to_vec(), &json!(true)));
    let (out, ..) = core.run(&["events", "calls"]);
    assert_eq!(out.lines().count(), 5, "{out}");
    assert!(out.contains(r"Web\x0aFetch") && !out.contains('\u{1b}'), "{out}");
    let (out, err, ok) = core.run(&["events", "calls", "--agent", "another"]);
    assert!(ok && out.is_empty() && err.contains("no such call"), "{out}{err}");

    let (out, ..) = core.run(&["events", "trace", "toolu_1", "--json"]);
    let trace: Value = serde_json::from_str(&out).expect("JSON");
    let traced = &trace["intents"][0]["calls"][0];
    assert_eq!((&traced["hook"], &traced["is_error"]), (&edit["hook"], &edit["is_error"]));
    assert_eq!(traced["hook"]["failed"], true);
    for (id, shown) in [
        ("toolu_1", "Edit toolu_1  local  failed  hook  {}"),
        ("toolu_2", "Bash toolu_2  local  waiting  {}"),
        ("toolu_3", "toolu_3  local  ok  hook  {}"),
    ] {
        let (out, ..) = core.run(&["events", "trace", id]);
        assert!(out.contains(shown), "{out}");
    }
}
