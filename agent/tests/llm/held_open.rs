//! Answers that do not end: a client runs a tool call as soon as it has all of it, and what it ran is on record.

use crate::{
    http::request,
    mock::{Answer, Gate, Mock, anthropic_events, chunk, function_item, openai, response_events, tool_block},
    played_core::Core,
    support::{PATIENCE, eventually},
};
use ringfence_wire::trace::AgentEvent;
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

/// A client that has asked, and has read what there is up to `word`.
fn reads(core: &Core, path: &str, word: &str) -> UnixStream {
    let mut socket = UnixStream::connect(core.http_socket()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let asked = json!({ "stream": true, "max_tokens": 9, "messages": [{ "role": "user", "content": "go" }] });
    socket.write_all(&request("POST", path, "Host: x\r\n", asked.to_string().as_bytes())).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(word) {
        let mut piece = [0; 4096];
        let n = socket.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..n]);
    }
    socket
}

/// The calls that were reported: their ids, tools and arguments.
fn called(core: &Core) -> Vec<(String, String, Value)> {
    let call = |said: AgentEvent| match said {
        AgentEvent::Call { id, tool, input, .. } => Some((id, tool, serde_json::from_str(&input).unwrap())),
        _ => None,
    };
    core.said().into_iter().filter_map(call).collect()
}

#[test]
fn a_call_is_on_record_while_its_provider_holds_the_answer_open() {
    let input = json!({ "command": "ls", "key": "sk-handed-over-0123456789" });
    let text = input.to_string();
    let events = anthropic_events(
        &[tool_block("early", "bash", &[&text[..9], &text[9..]]), tool_block("late", "bash", &["{}"])],
        "tool_use",
    );
    let whole = events.iter().position(|event| event.windows(18).any(|word| word == b"content_block_stop"));
    let events = events.split_at(whole.unwrap() + 1);
    let of_anthropic = (events.0.concat(), events.1.concat());
    let function = |id: &str, index: u32, arguments: &str| {
        let call = json!({ "index": index, "id": id, "type": "function", "function": { "name": "bash", "arguments": arguments } });
        chunk(json!({ "tool_calls": [call] }), None)
    };
    let of_openai = openai(&[
        function("early", 0, &text),
        function("late", 1, "{}"),
        chunk(json!({}), Some("tool_calls")),
    ]);
    let first = of_openai.windows(2).position(|end| end == b"\n\n").unwrap() + 2;
    let of_openai = (of_openai[..first].to_vec(), of_openai[first..].to_vec());
    let events = response_events(&[
        function_item("early", "bash", &[&text[..9], &text[9..]]),
        function_item("late", "bash", &["{}"]),
    ]);
    // Some clients run it when its arguments are there, before its item is whole.
    let events = events.split_at(4);
    let of_responses = (events.0.concat(), events.1.concat());
    for (kind, path, (first, rest), word) in [
        ("OpenAi", "/v1/responses", of_responses, "arguments.delta"),
        ("Anthropic", "/v1/messages", of_anthropic, "content_block_stop"),
        ("OpenAi", "/v1/chat/completions", of_openai, "early"),
    ] {
        let gate = Arc::new(Gate::default());
        let mock = Mock::with([Answer::Gated(first, Arc::clone(&gate), rest)]);
        let core = Core::start_as(&mock, kind);
        core.peer(0, Some(true));
        let mut client = reads(&core, path, word);
        let clean = json!({ "command": "ls", "key": "[redacted]" });
        let early = ("early".to_owned(), "bash".to_owned(), clean);
        eventually("the call is on record", || (!called(&core).is_empty()).then_some(()));
        assert_eq!(called(&core), std::slice::from_ref(&early), "{kind}");
        // The rest is on record once, when the answer is over.
        gate.open();
        client.read_to_end(&mut Vec::new()).unwrap();
        eventually("both are on record", || (called(&core).len() > 1).then_some(()));
        assert_eq!(called(&core), [early, ("late".to_owned(), "bash".to_owned(), json!({}))], "{kind}");
        drop(mock);
    }
}

/// What is on record of the calls: how they ended, and what they cost.
fn recorded(core: &Core) -> Vec<Value> {
    let record = fs::read_to_string(core.own().join("log/http.ndjson")).unwrap_or_default();
    record.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Calls that nobody waits for: one that streams, and one that is not answered.
fn detached(core: &Core, mock: &Mock, gate: &Arc<Gate>) {
    core.peer(0, Some(true));
    let events = anthropic_events(&[tool_block("early", "bash", &["{}"])], "tool_use");
    mock.then([Answer::Gated(events[..5].concat(), Arc::clone(gate), events[5..].concat())]);
    let held = reads(core, "/v1/messages", "content_block_stop");
    mock.then([Answer::Held(Arc::clone(gate))]);
    let mut socket = UnixStream::connect(core.http_socket()).unwrap();
    let asked = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "x".repeat(400) }] });
    socket.write_all(&request("POST", "/v1/messages", "Host: x\r\n", asked.to_string().as_bytes())).unwrap();
    mock.wait_asked(2);
    // The one that streams ends with its client.
    drop((held, socket));
    eventually("it is over", || (recorded(core).len() == 1).then_some(()));
}

#[test]
fn a_call_that_nobody_waits_for_is_on_record_when_its_worker_ends() {
    for stop in [true, false] {
        let (gate, mock) = (Arc::new(Gate::default()), Mock::new());
        let mut core = Core::start_as(&mock, "Anthropic");
        detached(&core, &mock, &gate);
        if stop {
            core.stop()
        } else {
            core.leave()
        }
        let status = eventually("its end", || core.ended());
        assert!(status.success(), "{status}: {}", core.stderr());
        let lines = recorded(&core);
        assert!(lines[0]["error"].as_str().unwrap().contains("hung up"), "{lines:?}");
        assert!(lines[1]["error"].as_str().unwrap().contains("worker was stopped"), "{lines:?}");
        assert!(lines[1]["usage"]["input_tokens"].as_u64().unwrap() > 100, "{lines:?}");
        gate.open();
    }
}
