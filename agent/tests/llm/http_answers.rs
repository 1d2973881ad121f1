//! Answers that the HTTP endpoint has whole before a client gets them: how many bytes of them are held.

use crate::{
    http::{hello, home, post, read, request},
    mock::{Answer, Mock, says},
    support::{Home, PATIENCE, eventually},
};
use serde_json::{Value, json};
use std::{fs, io::Write, os::unix::net::UnixStream};

/// Bytes of a long answer. Four of them have room with one agent, six with all.
const LONG: usize = 31 << 20;

fn long() -> Answer {
    Answer::Whole(200, "Content-Type: text/plain\r\n".into(), vec![b'x'; LONG])
}

/// A client that has asked and does not read.
fn asks(home: &Home, agent: &str, path: &str) -> UnixStream {
    let socket = home.path(&format!(".config/ringfence/sockets/{agent}/http.sock"));
    let mut stream = eventually("the HTTP socket is there", || UnixStream::connect(&socket).ok());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&request("POST", path, "Host: x\r\n", b"{}")).unwrap();
    stream
}

#[test]
fn answers_that_nobody_reads_have_a_bound_together_and_one_agent_leaves_room() {
    let mock = Mock::new();
    let home = home(&mock, "anthropic", "http = true", "");
    let url = &mock.url;
    home.profile(
        "b",
        &format!("http = true\n[llm.m]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"{url}/v1\""),
    );
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
    for number in 1..=2 {
        mock.then([long()]);
        held.push(of_b());
        calls("b", number);
    }
    mock.then([long()]);
    let got = read(of_b());
    assert_eq!(got.status, 503);
    let said = got.json();
    let message = said["error"]["message"].as_str().unwrap();
    assert!(message.contains("answers") && message.contains("all agents"), "{message}");
    // The provider was asked, and the record has what came of it.
    assert_eq!(mock.asked().len(), 8);
    assert_eq!(daemon.status("a")["worker"]["failed"], 1);
    let record = fs::read_to_string(home.path(".local/share/ringfence/logs/a/http.ndjson")).unwrap();
    let line: Value = serde_json::from_str(record.lines().last().unwrap()).unwrap();
    assert_eq!(line["status"], 503, "{line}");
    assert!(line["error"].as_str().unwrap().contains("this agent's answers"), "{line}");
    // The positive control: what is little has room, what streams needs none, and what is held is whole.
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
