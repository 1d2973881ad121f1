//! Calls that end before their provider told what they cost: hanging up does not make them free.

use crate::{
    http::{connect, hello, home, post, request},
    mock::{Answer, Gate, Mock, anthropic_events, chunk, openai, says, text_block},
    support::{Client, Daemon, Home, away_from_midnight, eventually, turn, user},
};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

/// A call over HTTP that says so much.
fn saying(text: &str) -> Value {
    let mut body = hello();
    body["messages"][0]["content"] = json!(text);
    body
}

/// Waits until so many calls over HTTP are over.
fn calls_over(daemon: &Daemon<'_>, calls: u64) {
    eventually("the call is over", || (daemon.status("a")["worker"]["http_calls"] == calls).then_some(()));
}

/// A client that asks, and hangs up when it has seen `word`.
fn hangs_up(home: &Home, path: &str, body: &Value, word: &str) {
    let mut stream: UnixStream = connect(home);
    stream.write_all(&request("POST", path, "Host: x\r\n", body.to_string().as_bytes())).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains(word) {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0, "{}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..n]);
    }
}

#[test]
fn a_client_that_hangs_up_on_a_provider_that_tells_at_the_end_has_used_what_it_sent() {
    away_from_midnight();
    let gate = Arc::new(Gate::default());
    let whole = openai(&[chunk(json!({ "content": "begun" }), None), chunk(json!({}), Some("stop"))]);
    let first = whole.windows(2).position(|end| end == b"\n\n").unwrap() + 2;
    let gated = || Answer::Gated(whole[..first].to_vec(), Arc::clone(&gate), whole[first..].to_vec());
    let mock = Mock::with([gated(), gated()]);
    let home = home(&mock, "openai", "http = true", "[limits]\ntokens_per_day = 200");
    let daemon = home.start();
    let path = "/v1/chat/completions";
    // The control: a short one leaves room for another.
    hangs_up(&home, path, &saying("short"), "begun");
    calls_over(&daemon, 1);
    let used = daemon.status("a")["worker"]["input_tokens"].as_u64().unwrap();
    assert!((10..100).contains(&used), "{used}");
    hangs_up(&home, path, &saying(&"long ".repeat(200)), "begun");
    calls_over(&daemon, 2);
    let refused = post(&home, path, &saying("short"));
    assert_eq!(refused.status, 429);
    assert!(refused.json().to_string().contains("200 tokens a day"), "{}", refused.json());
    assert_eq!(mock.asked().len(), 2);
    // On record, so that a restart does not forget it.
    gate.open();
    daemon.stop();
    let _daemon = home.start();
    assert_eq!(post(&home, path, &saying("short")).status, 429);
}

#[test]
fn an_answer_that_does_not_stream_is_counted_though_nobody_waits_for_it() {
    let answer = json!({ "id": "m", "content": [{ "type": "text", "text": "x" }], "stop_reason": "end_turn",
        "usage": { "input_tokens": 40, "output_tokens": 2 } });
    let header = "Content-Type: application/json\r\n";
    let mock = Mock::with([Answer::Whole(200, header.into(), answer.to_string().into_bytes())]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let mut body = hello();
    body["stream"] = json!(false);
    let mut stream = connect(&home);
    stream.write_all(&request("POST", "/v1/messages", "Host: x\r\n", body.to_string().as_bytes())).unwrap();
    eventually("the provider is asked", || (mock.asked().len() == 1).then_some(()));
    drop(stream);
    calls_over(&daemon, 1);
    let worker = daemon.status("a")["worker"].clone();
    assert_eq!((&worker["input_tokens"], &worker["output_tokens"]), (&json!(40), &json!(2)), "{worker}");
}

#[test]
fn a_runtime_that_hangs_up_has_used_what_the_provider_told() {
    away_from_midnight();
    let gate = Arc::new(Gate::default());
    let events = anthropic_events(&[text_block(&["first", "second"])], "end_turn");
    let gated = || Answer::Gated(events[..4].concat(), Arc::clone(&gate), events[4..].concat());
    let mock = Mock::with([gated(), gated(), says(&["never"])]);
    let home = Home::empty();
    // Told before the text are 14: 10 read, 3 of the cache, 1 written.
    home.agent("a", &mock, "[limits]\ntokens_per_day = 20");
    let daemon = home.start();
    for turns in 1..=2 {
        let mut runtime = Client::runtime(&home.socket("a"));
        runtime.write(&turn(1, json!([user("x")])));
        let frame = runtime.expect();
        assert_eq!(frame["method"], "output", "the second is asked, too: 14 of 20 are used: {frame}");
        drop(runtime);
        eventually("the turn is over", || (daemon.status("a")["worker"]["turns"] == turns).then_some(()));
    }
    let refused = Client::runtime(&home.socket("a")).says(1, "x");
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("20 tokens a day (28 are used)"), "{message}");
    assert_eq!(mock.asked().len(), 2);
    gate.open();
}

/// So many calls of an agent may be under way.
const CALLS: usize = 64;

#[test]
fn calls_whose_clients_hung_up_have_a_bound() {
    let gate = Arc::new(Gate::default());
    let mock = Mock::with((0..CALLS).map(|_| Answer::Held(Arc::clone(&gate))));
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    for number in 1..=CALLS {
        let mut stream = connect(&home);
        let body = saying("x").to_string();
        stream.write_all(&request("POST", "/v1/messages", "Host: x\r\n", body.as_bytes())).unwrap();
        mock.wait_asked(number);
    }
    let refused = post(&home, "/v1/messages", &saying("one too many"));
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("retry-after: 2"), "{}", refused.head);
    assert!(refused.json().to_string().contains("64 calls of this agent"), "{}", refused.json());
    assert_eq!(mock.asked().len(), CALLS);
    gate.open();
    calls_over(&daemon, CALLS as u64);
    mock.then([says(&["room"])]);
    assert_eq!(post(&home, "/v1/messages", &saying("x")).status, 200);
}

#[test]
fn calls_at_once_are_not_each_the_last_one() {
    away_from_midnight();
    let gate = Arc::new(Gate::default());
    let mock = Mock::with([Answer::Held(Arc::clone(&gate))]);
    let home = home(&mock, "anthropic", "http = true", "[limits]\ntokens_per_day = 200");
    let daemon = home.start();
    let mut stream = connect(&home);
    let long = saying(&"long ".repeat(200)).to_string();
    stream.write_all(&request("POST", "/v1/messages", "Host: x\r\n", long.as_bytes())).unwrap();
    mock.wait_asked(1);
    let refused = post(&home, "/v1/messages", &saying("short"));
    assert_eq!(refused.status, 429);
    assert!(refused.head.contains("retry-after: 10"), "{}", refused.head);
    assert!(refused.json().to_string().contains("calls under way"), "{}", refused.json());
    // A provider that breaks off before it answers has not told that it did anything.
    gate.open();
    calls_over(&daemon, 1);
    mock.then([says(&["room"])]);
    assert_eq!(post(&home, "/v1/messages", &saying("short")).status, 200);
}

#[test]
fn an_answer_whose_provider_does_not_tell_its_tokens_has_some() {
    let json = "Content-Type: application/json\r\n".to_owned();
    let whole =
        json!({ "content": [{ "type": "text", "text": "x" }], "stop_reason": "end_turn" }).to_string();
    let mut told: Value = serde_json::from_str(&whole).unwrap();
    told["usage"] = json!({ "input_tokens": 3, "output_tokens": 2 });
    let mock = Mock::with([
        Answer::Whole(200, json.clone(), told.to_string().into_bytes()),
        Answer::Whole(200, json.clone(), whole.into_bytes()),
        Answer::Whole(400, json, b"{}".to_vec()),
    ]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let mut used = Vec::new();
    for call in 1..=3 {
        post(&home, "/v1/messages", &saying(&"x".repeat(400)));
        calls_over(&daemon, call);
        used.push(daemon.status("a")["worker"]["input_tokens"].as_u64().unwrap());
    }
    assert!(used[0] == 3 && used[1] > 100 && used[2] == used[1], "{used:?}");
}
