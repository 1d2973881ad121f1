//! Answers on the HTTP endpoint's way to a client: in which form they go out, where they end, and how many bytes of those
//! are held that it has whole before a client gets them.

use crate::{
    http::{connect_to, hello, home, openai_beside, post, read, read_if_any, request},
    mock::{Answer, Gate, Mock, anthropic_events, calls, says, text_block},
    support::{Home, eventually},
};
use serde_json::{Value, json};
use std::{fs, io::Write, os::unix::net::UnixStream, sync::Arc};

/// Bytes of a long answer. Four of them have room with one agent, six with all.
const LONG: usize = 31 << 20;

fn long() -> Answer {
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(LONG - 8));
    Answer::Whole(200, "Content-Type: application/json\r\n".into(), body.into_bytes())
}

/// A client that has asked and does not read.
fn asks(home: &Home, agent: &str, path: &str) -> UnixStream {
    let mut stream = connect_to(home, agent);
    stream.write_all(&request("POST", path, "Host: x\r\n", b"{}")).unwrap();
    stream
}

#[test]
fn answers_that_nobody_reads_have_a_bound_together_and_another_agent_has_its_own() {
    let mock = Mock::new();
    let home = home(&mock, "anthropic", "http = true", "");
    openai_beside(&home, &mock.url);
    let daemon = home.start();
    let of_a = || asks(&home, "a", "/v1/messages");
    let of_b = || asks(&home, "b", "/v1/chat/completions");
    let calls = |agent: &str, number: u64| {
        eventually("the answer is there", || {
            (daemon.status(agent)["worker"]["http_calls"] == number).then_some(())
        });
    };
    let mut held = Vec::new();
    for number in 1..=4 {
        mock.then([long()]);
        held.push(of_a());
        calls("a", number);
    }
    mock.then([long()]);
    let got = read(of_a());
    let said = got.json();
    assert_eq!((got.status, said["error"]["type"].as_str()), (503, Some("api_error")));
    let message = said["error"]["message"].as_str().unwrap();
    assert!(message.contains("this agent's answers"), "{message}");
    assert!(got.head.contains("retry-after: 2"), "{}", got.head);
    // Another's are its own process's.
    mock.then([long()]);
    held.push(of_b());
    calls("b", 1);
    assert_eq!(daemon.status("b")["worker"]["failed"], 0);
    // The provider was asked, and the record has what came of it.
    assert_eq!(mock.asked().len(), 6);
    assert_eq!(daemon.status("a")["worker"]["failed"], 1);
    let record = fs::read_to_string(home.path(".local/share/ringfence/logs/a/http.ndjson")).unwrap();
    let line: Value = serde_json::from_str(record.lines().last().unwrap()).unwrap();
    assert_eq!(line["status"], 503, "{line}");
    assert!(line["error"].as_str().unwrap().contains("this agent's answers"), "{line}");
    // The positive control: what is little has room, a stream of which little is kept needs none, and what is held is whole.
    let little = json!({ "content": [], "stop_reason": "end_turn" });
    mock.then([
        Answer::Whole(200, "Content-Type: application/json\r\n".into(), little.to_string().into()),
        says(&["streamed"]),
    ]);
    let got = post(&home, "/v1/messages", &json!({ "messages": [] }));
    assert_eq!((got.status, got.json()), (200, little));
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole), (200, true));
    let got = read(held.remove(0));
    assert_eq!((got.status, got.whole, got.body.len()), (200, true, LONG));
    // Read or given up, it makes room.
    let fits = |ask: &dyn Fn() -> UnixStream| {
        eventually("there is room again", || {
            mock.then([long()]);
            let got = read(ask());
            (got.status == 200 && got.body.len() == LONG).then_some(())
        });
    };
    fits(&of_a);
    drop(held);
    fits(&of_b);
}

/// The last call on record.
fn recorded(home: &Home) -> Value {
    let record = fs::read_to_string(home.path(".local/share/ringfence/logs/a/http.ndjson")).unwrap();
    serde_json::from_str(record.lines().last().unwrap()).unwrap()
}

#[test]
fn an_answer_goes_out_in_the_form_in_which_it_was_read_or_not_at_all() {
    let mock = Mock::new();
    let home = home(&mock, "anthropic", "http = true", "");
    let _daemon = home.start();
    let call = json!({ "content": [{ "type": "tool_use", "id": "t", "name": "n", "input": {} }], "stop_reason": "tool_use" })
        .to_string();
    let Answer::Stream(stream) = calls(&[("t", "n", "{}")]) else { panic!("a stream") };
    let joined = |before: &[u8], body: &[u8]| [before, body].concat();
    let (json, events) = ("application/json", "text/event-stream; charset=utf-8");
    for (said, body, form) in [
        ("application/json; charset=utf-7", call.clone().into_bytes(), json),
        ("text/plain", call.clone().into_bytes(), json),
        ("Text/Event-Stream; charset=utf-7", stream.clone(), events),
        ("application/json", stream.clone(), events),
    ] {
        mock.then([Answer::Whole(200, format!("Content-Type: {said}\r\n"), body.clone())]);
        let got = post(&home, "/v1/messages", &hello());
        assert_eq!((got.status, got.whole), (200, true), "{said}");
        assert_eq!(String::from_utf8(got.body), String::from_utf8(body), "{said}");
        let head = got.head + "\r\n";
        assert!(head.contains(&format!("content-type: {form}\r\n")), "{head}");
        assert_eq!(recorded(&home)["tool_calls"][0]["name"], "n", "{said}: {}", recorded(&home));
    }
    for (said, body) in [
        ("application/json", joined(b"\xef\xbb\xbf", call.as_bytes())),
        ("application/json", call.encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("application/json", joined(b"data: \xff\n\n", &stream)),
        ("application/json", joined(b": x\n\xef\xbb\xbf", &stream)),
        ("text/html", b"<html></html>".to_vec()),
    ] {
        mock.then([Answer::Whole(200, format!("Content-Type: {said}\r\n"), body)]);
        let got = post(&home, "/v1/messages", &hello());
        assert_eq!((got.status, got.json()["error"]["type"].as_str()), (502, Some("api_error")));
        let line = recorded(&home);
        assert!(
            line["status"] == 502 && line["error"].as_str().unwrap().contains("the provider sent"),
            "{line}"
        );
    }
    mock.then([Answer::Stream(joined(b": x\n\xef\xbb\xbf", &stream))]);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole, got.body), (200, false, Vec::new()));
    // An error may be anything that is neither.
    mock.then([Answer::Whole(502, "Content-Type: text/html\r\n".into(), b"<html></html>".to_vec())]);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.body.as_slice()), (502, &b"<html></html>"[..]));
    assert!(got.head.contains("content-type: text/plain"), "{}", got.head);
}

#[test]
fn an_answer_is_over_and_on_record_at_its_final_event() {
    let stream = anthropic_events(&[text_block(&["all"])], "end_turn").concat();
    let gate = Arc::new(Gate::default());
    let mock = Mock::with([Answer::Gated(stream.clone(), Arc::clone(&gate), b": for ever\n\n".to_vec())]);
    let home = home(&mock, "anthropic", "http = true", "");
    let _daemon = home.start();
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole, got.body), (200, true, stream));
    assert_eq!(recorded(&home)["content"][0]["text"], "all");
    gate.open();
    mock.then([says(&["more"])]);
    assert!(post(&home, "/v1/messages", &hello()).whole);
}

#[test]
fn a_stream_of_which_too_much_would_be_kept_ends_and_says_why() {
    let text = "x".repeat(1 << 20);
    let long = anthropic_events(&[text_block(&[text.as_str(); 40])], "end_turn").concat();
    let line = [&b"data: "[..], &[b'x'; 17 << 20]].concat();
    let mock = Mock::with([Answer::Stream(long), Answer::Stream(line)]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole), (200, false));
    let end = String::from_utf8_lossy(&got.body[got.body.len() - 300..]).into_owned();
    assert!(end.contains("event: error\ndata: ") && end.contains("would have to be kept"), "{end}");
    let line = recorded(&home);
    assert!(line["error"].as_str().unwrap().contains("would have to be kept"), "{}", line["error"]);
    // What came counts.
    assert!(line["usage"]["output_tokens"].as_u64().unwrap() > 7 << 20, "{}", line["usage"]);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole), (200, false));
    assert!(recorded(&home)["error"].as_str().unwrap().contains("an event of more than"));
    assert_eq!(daemon.status("a")["worker"]["failed"], 2);
    // The control: as much over HTTP, of which little is to be kept.
    let many = anthropic_events(&[text_block(&["x"; 20_000])], "end_turn").concat();
    mock.then([Answer::Stream(many.clone())]);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole, got.body.len()), (200, true, many.len()));
}

#[test]
fn what_cannot_be_written_down_is_kept_back() {
    let stream = anthropic_events(&[text_block(&["begun"])], "end_turn").concat();
    let whole = json!({ "content": [{ "type": "text", "text": "x" }], "stop_reason": "end_turn" });
    let answer = |body: &Value| {
        Answer::Whole(200, "Content-Type: application/json\r\n".into(), body.to_string().into_bytes())
    };
    let mock = Mock::with([Answer::Stream(stream.clone()), answer(&whole), answer(&whole)]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let log = home.path(".local/share/ringfence/logs/a/http.ndjson");
    eventually("the agent is served", || (daemon.status("a")["state"] == "running").then_some(()));
    fs::create_dir(&log).unwrap();
    let mut client = connect_to(&home, "a");
    client
        .write_all(&request("POST", "/v1/messages", "Host: x\r\n", hello().to_string().as_bytes()))
        .unwrap();
    // Where all of it comes at once, it breaks off before its head.
    if let Some(got) = read_if_any(client) {
        assert_eq!((got.status, got.whole), (200, false), "it has no end");
        assert!(!String::from_utf8_lossy(&got.body).contains("message_stop"));
    }
    let got = post(&home, "/v1/messages", &json!({ "messages": [] }));
    assert_eq!(got.status, 503);
    assert!(got.json().to_string().contains("cannot be written down"), "{}", got.json());
    assert_eq!(daemon.status("a")["worker"]["failed"], 2);
    // The control.
    fs::remove_dir(&log).unwrap();
    let got = post(&home, "/v1/messages", &json!({ "messages": [] }));
    assert_eq!((got.status, got.json()), (200, whole));
    assert_eq!(recorded(&home)["path"], "/v1/messages");
}
