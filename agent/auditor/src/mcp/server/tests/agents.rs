//! Lines of agents' workers: who may have one, what comes back on it, and how much may be said.

use super::*;
use crate::mcp::tools::ToolDecision;
use ringfence_pins::{Definition, definition::name_digest};
use ringfence_wire::agent_tools::{SeenDefinition, SeenTool, ToolsPinned, ToolsSeen};
use serde_json::{Value, json};

/// A line of this agent's, asked for by `uid`, and the first answer.
fn line(sessions: &Arc<Sessions>, uid: u32, agent: &str, owner: Option<u32>) -> (Conn, McpReply) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let permit = Permits::within(Bounds::of(9, 9), Owners::default()).take(uid, || ()).expect("a permit");
    let shared = Arc::clone(sessions);
    thread::spawn(move || converse(ours, uid, &permit, &shared));
    let mut worker = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
    worker.send(&McpRequest::AgentTools { agent: agent.into(), owner }).expect("sent");
    let reply = worker.receive().expect("an answer");
    (worker, reply)
}

fn tool(name: &str, description: &str) -> SeenTool {
    let whole = Definition::of_parts(name, description, &json!({})).expect("a definition");
    SeenTool {
        name: name.into(),
        now: SeenDefinition { sha256: whole.sha256, text: Some(whole.text) },
        trusted: None,
    }
}

fn seen(number: u64, tools: Vec<SeenTool>) -> ToolsSeen {
    ToolsSeen { number, server: "github".into(), address: "https://x/mcp".into(), tools, more: false }
}

fn told(worker: &mut Conn, seen: &ToolsSeen) -> ToolsPinned {
    worker.send(seen).expect("sent");
    worker.receive().expect("what is pinned")
}

fn rows(sessions: &Arc<Sessions>, uid: u32) -> Vec<Value> {
    sessions.readers.ask(|reader| tools::pending(reader, Viewer(uid), None)).expect("reads")
}

#[test]
fn what_is_pinned_comes_back_and_a_decision_reaches_the_agent_s_own_lines_alone() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let (mut worker, linked) = line(&sessions, 0, "reviewer", Some(7));
    assert_eq!(linked, McpReply::Linked);
    let first = tool("a", "Adds");
    let pinned = told(&mut worker, &seen(3, vec![first.clone()]));
    assert_eq!((pinned.number, &*pinned.server, pinned.tools.len()), (3, "github", 1));
    assert_eq!(pinned.tools[0].sha256, first.now.sha256);
    // In parts, as long lists come.
    let changed = tool("a", "Adds, and more");
    worker.send(&ToolsSeen { more: true, ..seen(4, vec![changed.clone()]) }).expect("sent");
    let pinned = told(&mut worker, &seen(4, vec![tool("b", "x")]));
    assert_eq!((pinned.number, pinned.tools.len()), (4, 2));
    let of = |pinned: &ToolsPinned, name: &str| {
        let found = pinned.tools.iter().find(|tool| tool.name == name_digest(name));
        found.map(|tool| tool.sha256.clone())
    };
    assert_eq!(of(&pinned, "a"), Some(first.now.sha256), "it waits");

    let (mut same, _) = line(&sessions, 0, "reviewer", Some(7));
    let others = [("coder", 0, Some(7)), ("reviewer", 0, Some(8)), ("reviewer", 7, None)];
    let mut others: Vec<Conn> = others
        .map(|(agent, uid, owner)| line(&sessions, uid, agent, owner))
        .map(|(conn, reply)| {
            assert_eq!(reply, McpReply::Linked);
            conn
        })
        .into();
    let waits = rows(&sessions, 7);
    assert_eq!((waits.len(), rows(&sessions, 8).len()), (1, 0), "its owner's to see, and nobody else's");
    let decision = ToolDecision::Tool {
        server: waits[0]["server"].as_i64().expect("a number"),
        tool: "a".into(),
        sha256: changed.now.sha256.clone(),
        approve: true,
    };
    let decide = |uid: u32| {
        let lane = sessions.writer.wait(uid, || true).expect("a lane");
        sessions.decide_tool(Viewer(uid), &decision, "somebody", lane)
    };
    let refused = decide(7).expect_err("its runtime may be of this user").to_string();
    assert!(refused.contains("only root"), "{refused}");
    decide(0).expect("decided");
    for conn in [&mut worker, &mut same] {
        let pinned: ToolsPinned = conn.receive().expect("told");
        assert_eq!((pinned.number, of(&pinned, "a")), (0, Some(changed.now.sha256.clone())));
    }
    for conn in &mut others {
        // The next that they hear is the answer to what they say.
        let pinned = told(conn, &seen(9, vec![tool("a", "Another's")]));
        assert_eq!((pinned.number, of(&pinned, "a")), (9, Some(tool("a", "Another's").now.sha256)));
    }
}

#[test]
fn a_line_is_nobody_s_who_is_confined_and_the_daemon_alone_says_whose_an_agent_is() {
    let refused = |reply: McpReply| match reply {
        McpReply::Failed(failure) => failure.error,
        other => panic!("{other:?}"),
    };
    let (_folder, sessions) = sessions_of_everybody(true);
    for (uid, owner) in [(7, None), (0, Some(7)), (0, None)] {
        let (_, reply) = line(&sessions, uid, "reviewer", owner);
        assert!(refused(reply).contains("govern"), "{uid}");
    }
    let (_folder, sessions) = sessions_of_everybody(false);
    assert!(refused(line(&sessions, 7, "reviewer", Some(7)).1).contains("the daemon"));
    assert!(refused(line(&sessions, 7, "re viewer", None).1).contains("no name"));
    assert!(refused(line(&sessions, 7, &"r".repeat(200), None).1).contains("no name"));
    for (uid, owner) in [(7, None), (0, Some(7)), (0, None)] {
        assert_eq!(line(&sessions, uid, "reviewer", owner).1, McpReply::Linked, "the control");
    }
}

#[test]
fn a_worker_that_says_what_none_says_has_no_line_any_more() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let long = |text: &str| {
        let mut tool = tool("a", "x");
        tool.now.text = Some(text.repeat(1 << 20));
        tool
    };
    let hash = SeenTool { now: SeenDefinition { sha256: "0".into(), text: None }, ..tool("a", "x") };
    let many = (0..3000).map(|n| tool(&format!("t{n}"), "x")).collect();
    for (what, odd) in [
        ("a long definition", seen(1, vec![long("x")])),
        ("no hash", seen(1, vec![hash])),
        ("a long name", seen(1, vec![SeenTool { name: "n".repeat(300), ..tool("a", "x") }])),
        ("too many", seen(1, many)),
        ("no number", seen(0, Vec::new())),
        ("a long server", ToolsSeen { server: "s".repeat(200), ..seen(1, Vec::new()) }),
    ] {
        let (mut worker, _) = line(&sessions, 7, "reviewer", None);
        let _ = worker.send(&odd);
        assert!(worker.receive::<ToolsPinned>().is_err(), "{what}");
    }
    let (mut worker, _) = line(&sessions, 7, "reviewer", None);
    worker.send(&ToolsSeen { more: true, ..seen(1, Vec::new()) }).expect("sent");
    worker.send(&seen(2, Vec::new())).expect("sent");
    assert!(worker.receive::<ToolsPinned>().is_err(), "another list inside one");
    let (mut worker, _) = line(&sessions, 7, "reviewer", None);
    assert_eq!(told(&mut worker, &seen(1, vec![tool("a", "x")])).tools.len(), 1, "the control");
    assert!(sessions.agent_lines.count() <= 1, "those that ended are forgotten");
}
