//! The connection: registering, turns, what goes wrong with the other side.

use crate::daemon::{Scene, eventually, human, results};
use serde_json::{Value, json};
use std::{io::Write, thread, time::Duration};

#[test]
fn the_first_turn_introduces_and_later_ones_do_not() {
    let scene = Scene::with_tools("bash, list_directory", &[]);
    let mut daemon = scene.registered();
    let content =
        json!([{"type": "text", "text": "Hello"}, {"type": "image", "source": {"data": "AA=="}, "n": 1.50}]);
    daemon.say(&json!({"jsonrpc": "2.0", "method": "human_message", "params": {"content": content}}));
    let turn = daemon.receive();
    assert_eq!((&turn["jsonrpc"], &turn["method"]), (&json!("2.0"), &json!("turn")));
    assert!(turn["id"].is_u64());
    let params = turn["params"].as_object().unwrap();
    assert_eq!(params.keys().collect::<Vec<_>>(), ["messages", "system", "tools"]);
    assert_eq!(params["system"], "You are a tést.\n");
    let names: Vec<&Value> = params["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["bash", "list_directory"]);
    for tool in params["tools"].as_array().unwrap() {
        assert!(tool["description"].is_string());
        assert_eq!(tool["parameters"]["type"], "object");
    }
    assert_eq!(params["messages"], json!([{"role": "user", "content": content}]));

    let text = json!({"stream": "content", "data": {"type": "text", "text": "The src"}});
    daemon.say(&json!({"jsonrpc": "2.0", "method": "output", "params": text}));
    daemon.say(&json!({"jsonrpc": "2.0", "method": "of_a_later_version", "params": null}));
    daemon.call(&turn, &[("a", "bash", json!({"command": "echo hi"}))]);
    let second = daemon.receive();
    assert_ne!(second["id"], turn["id"]);
    assert_eq!(
        second["params"],
        json!({"messages": [{"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "hi\n"}]}]})
    );
    daemon.answer(&second, &json!({"stop_reason": "max_tokens", "content": []}));
    daemon.human("again");
    let third = daemon.receive();
    assert_eq!(third["params"].as_object().unwrap().keys().collect::<Vec<_>>(), ["messages"]);
}

/// The frames of the protocol's own document, and the same with the keys of each object the other way round.
#[test]
fn the_documents_frames_are_understood_in_any_order_of_their_keys() {
    let text = "The src directory contains main.rs and lib.rs.";
    let as_it_stands = [
        r#"{"jsonrpc": "2.0", "method": "human_message", "params": {"content": [{"type": "text", "text": "Hello"}]}}"#.to_owned(),
        r#"{"jsonrpc": "2.0", "method": "output", "params": {"stream": "content", "data": {"type": "text", "text": "The src"}}}"#.to_owned(),
        r#"{"jsonrpc": "2.0", "id": ID, "result": {"stop_reason": "tool_use", "tool_calls": [{"id": "tc-001", "name": "bash", "input": {"command": "echo src/"}}]}}"#.to_owned(),
        format!(r#"{{"jsonrpc": "2.0", "id": ID, "result": {{"stop_reason": "end_turn", "content": [{{"type": "text", "text": "{text}"}}]}}}}"#),
        r#"{"jsonrpc": "2.0", "id": ID, "error": {"code": 429, "message": "Rate limit exceeded."}}"#.to_owned(),
    ];
    let reversed = [
        r#"{"params": {"content": [{"text": "Hello", "type": "text"}]}, "method": "human_message", "jsonrpc": "2.0"}"#.to_owned(),
        r#"{"params": {"data": {"text": "The src", "type": "text"}, "stream": "content"}, "method": "output", "jsonrpc": "2.0"}"#.to_owned(),
        r#"{"result": {"tool_calls": [{"input": {"command": "echo src/"}, "name": "bash", "id": "tc-001"}], "stop_reason": "tool_use"}, "id": ID, "jsonrpc": "2.0"}"#.to_owned(),
        format!(r#"{{"result": {{"content": [{{"text": "{text}", "type": "text"}}], "stop_reason": "end_turn"}}, "id": ID, "jsonrpc": "2.0"}}"#),
        r#"{"error": {"message": "Rate limit exceeded.", "code": 429}, "id": ID, "jsonrpc": "2.0"}"#.to_owned(),
    ];
    for [human, output, calls, end, error] in [as_it_stands, reversed] {
        let (_scene, mut daemon) = Scene::with_daemon(&[]);
        let say = |daemon: &mut crate::daemon::Peer, frame: &str, turn: &Value| {
            daemon.say_bytes(frame.replace("ID", &turn["id"].to_string()).as_bytes());
        };
        daemon.say_bytes(human.as_bytes());
        let turn = daemon.receive();
        assert_eq!(
            turn["params"]["messages"],
            json!([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
        );
        daemon.say_bytes(output.as_bytes());
        say(&mut daemon, &calls, &turn);
        let turn = daemon.receive();
        assert_eq!(
            turn["params"],
            json!({"messages": [{"role": "tool", "tool_call_id": "tc-001", "content": [{"type": "text", "text": "src/\n"}]}]})
        );
        say(&mut daemon, &end, &turn);
        daemon.say_bytes(human.as_bytes());
        let turn = daemon.receive();
        say(&mut daemon, &error, &turn);
        // It waits for the next message.
        assert_eq!(daemon.bash("echo on").0, "on\n");
    }
}

#[test]
fn frames_may_come_in_any_pieces() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    for text in ["first", "второй 日本語"] {
        let payload = human(text).to_string().into_bytes();
        let mut frame = (payload.len() as u32).to_be_bytes().to_vec();
        frame.extend(payload);
        for byte in frame {
            daemon.stream.write_all(&[byte]).unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        let turn = daemon.receive();
        assert_eq!(turn["params"]["messages"][0]["content"][0]["text"], text);
        // Two frames in one write.
        let note = json!({"jsonrpc": "2.0", "method": "output", "params": {}}).to_string();
        let answer =
            json!({"jsonrpc": "2.0", "id": turn["id"], "result": {"stop_reason": "end_turn"}}).to_string();
        let mut both = Vec::new();
        for payload in [note, answer] {
            both.extend((payload.len() as u32).to_be_bytes());
            both.extend(payload.into_bytes());
        }
        daemon.stream.write_all(&both).unwrap();
    }
}

#[test]
fn a_provider_s_error_is_survived() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let turn = daemon.asked("one");
    let error = json!({"code": 429, "message": "Rate limit\nexceeded.", "data": {"retry_after": 3}});
    daemon.say(&json!({"jsonrpc": "2.0", "id": turn["id"], "error": error}));
    let turn = daemon.asked("two");
    // The first turn may not have been taken in: it introduces itself again.
    assert_eq!(turn["params"]["system"], "You are a tést.\n");
    assert_eq!(turn["params"]["messages"].as_array().unwrap().len(), 1);
    daemon.call(&turn, &[("a", "bash", json!({"command": "true"}))]);
    let turn = daemon.receive();
    assert_eq!(results(&turn)[0].1, "[no output]");
    daemon.say(
        &json!({"jsonrpc": "2.0", "id": turn["id"], "error": {"code": -32603, "message": "broken stream"}}),
    );
    daemon.human("three");
    assert!(daemon.receive()["params"].get("system").is_none());
    assert!(scene.stderr().contains("Rate limit exceeded. (429)"), "{}", scene.stderr());
}

#[test]
fn after_a_restart_of_the_daemon_it_registers_and_introduces_itself_again() {
    let mut scene = Scene::new(&[]);
    let mut daemon = scene.registered();
    let turn = daemon.asked("one");
    daemon.end(&turn);
    // In the middle of a turn, and away for a while.
    daemon.human("two");
    daemon.receive();
    scene.close();
    drop(daemon);
    eventually("a failed connection", || scene.stderr().contains("No such file").then_some(()));
    // A few more tries.
    thread::sleep(Duration::from_millis(700));
    scene.listen();
    let mut daemon = scene.registered();
    let turn = daemon.asked("three");
    assert_eq!(turn["params"]["system"], "You are a tést.\n");
    assert_eq!(turn["params"]["tools"].as_array().unwrap().len(), 6);
    assert_eq!(turn["params"]["messages"][0]["content"][0]["text"], "three");
    daemon.end(&turn);
    let said = scene.stderr();
    assert!(said.contains("closed the connection") && said.contains("No such file"), "{said}");
    // One line for each thing that happened, not for each try.
    assert!(said.lines().count() <= 3, "{said}");
}

#[test]
fn a_refused_registration_is_said_and_tried_again() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    daemon.say(&json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "a runtime is registered"}}));
    drop(daemon);
    let mut daemon = scene.registered();
    assert!(scene.stderr().contains("a runtime is registered (-32600)"));
    // While the other one lives it hears the same at each attempt, and says it once.
    for _ in 0..2 {
        daemon.say(&json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32600, "message": "a runtime is registered"}}));
        drop(daemon);
        daemon = scene.registered();
    }
    assert_eq!(scene.stderr().matches("a runtime is registered").count(), 1, "{}", scene.stderr());
    assert_eq!(daemon.tool("bash", json!({"command": "echo on"})), ("on\n".to_owned(), false));
}

#[test]
fn a_daemon_that_speaks_nonsense_is_left_and_found_again() {
    let scene = Scene::new(&[]);
    let frames: [&[u8]; 6] = [
        &[0, 0, 0, 0],
        &[0xff, 0xff, 0xff, 0xff],
        b"\0\0\0\x03abc",
        b"\0\0\0\x02[]",
        b"\0\0\0\x29{\"method\":\"human_message\",\"params\":{\"x\":1}",
        b"\0\0\0\x08{\"id\":1} ",
    ];
    for frame in frames {
        let mut daemon = scene.registered();
        daemon.stream.write_all(frame).unwrap();
        assert!(daemon.receive_bytes().is_none(), "{frame:?}");
    }
    let mut daemon = scene.registered();
    let turn = daemon.asked("x");
    daemon.answer(&turn, &json!({"content": "no stop reason"}));
    assert!(daemon.receive_bytes().is_none());
    let mut daemon = scene.registered();
    assert_eq!(daemon.bash("echo still here").0, "still here\n");
}

#[test]
fn messages_that_come_during_a_turn_wait() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    let turn = daemon.asked("one");
    daemon.human("two");
    daemon.human("three");
    daemon.end(&turn);
    for text in ["two", "three"] {
        let turn = daemon.receive();
        assert_eq!(
            turn["params"]["messages"],
            json!([{"role": "user", "content": [{"type": "text", "text": text}]}])
        );
        daemon.end(&turn);
    }
}

#[test]
fn a_flood_of_messages_during_a_turn_is_bounded_and_said() {
    let (scene, mut daemon) = Scene::with_daemon(&[]);
    let turn = daemon.asked("first");
    let long = "x".repeat(10 << 20);
    for _ in 0..6 {
        daemon.human(&long);
    }
    daemon.end(&turn);
    // 32 MiB of them wait: three.
    for _ in 0..3 {
        let turn = daemon.receive();
        assert_eq!(turn["params"]["messages"][0]["content"][0]["text"].as_str().unwrap().len(), long.len());
        daemon.end(&turn);
    }
    daemon.human("last");
    assert_eq!(daemon.receive()["params"]["messages"][0]["content"][0]["text"], "last");
    assert_eq!(scene.stderr().matches("a message was dropped: 3 wait already").count(), 3);
}

#[test]
fn an_answer_to_something_else_is_not_the_turn_s() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    let turn = daemon.asked("one");
    daemon.say(&json!({"jsonrpc": "2.0", "id": 4711, "result": {"stop_reason": "end_turn"}}));
    daemon.human("two");
    daemon.call(&turn, &[("a", "bash", json!({"command": "echo ok"}))]);
    assert_eq!(results(&daemon.receive())[0].1, "ok\n");
}

#[test]
fn it_ends_on_sigterm_wherever_it_is() {
    use rustix::process::Signal;
    let mut waiting = Scene::new(&[]);
    let _daemon = waiting.registered();
    waiting.signal(Signal::TERM);
    assert!(waiting.exit().success());

    let mut connecting = Scene::new(&[]);
    connecting.close();
    eventually("a failed connection", || connecting.stderr().contains("cannot connect").then_some(()));
    connecting.signal(Signal::INT);
    assert!(connecting.exit().success());
}

#[test]
fn a_daemon_that_stops_within_a_frame_does_not_hold_it_for_ever() {
    let (_scene, mut daemon) = Scene::with_daemon(&[]);
    daemon.stream.write_all(&[0, 0, 1, 0, b'{']).unwrap();
    let start = std::time::Instant::now();
    assert!(daemon.receive_bytes().is_none());
    assert!(start.elapsed() < Duration::from_secs(120));
}
