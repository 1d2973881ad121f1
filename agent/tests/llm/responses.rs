//! OpenAI's Responses at the HTTP endpoint: what holds for the older forms holds for it.

use crate::{
    http::{connect, home, post, read, request},
    mock::{Answer, Gate, Mock, function_item, message_item, response, response_events},
    played_core::Core,
    support::{Home, PATIENCE, away_from_midnight, eventually},
};
use ringfence_wire::trace::AgentEvent;
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
};

const PATH: &str = "/v1/responses";
const KEY: &str = "sk-secret-key-of-a";
const JSON: &str = "Content-Type: application/json\r\n";

/// What Codex asks, and nothing else of it.
fn asked() -> Value {
    json!({ "model": "theirs", "stream": true, "instructions": "Be brief.", "store": false, "parallel_tool_calls": true,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "reasoning": { "effort": "low" },
        "tools": [{ "type": "function", "name": "bash", "parameters": { "type": "object" } }, { "type": "local_shell" },
            { "type": "custom", "name": "patch" }],
        "input": [{ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }] })
}

fn whole(body: &Value) -> Answer {
    Answer::Whole(
        200,
        format!("{JSON}x-ratelimit-remaining-tokens: 9\r\nopenai-organization: us\r\n"),
        body.to_string().into(),
    )
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The last call on record.
fn recorded(home: &Home) -> Value {
    let record = fs::read_to_string(home.path(".local/share/ringfence/logs/a/http.ndjson")).unwrap();
    serde_json::from_str(record.lines().last().unwrap()).unwrap()
}

#[test]
fn a_stream_passes_with_our_key_and_model_and_is_counted_and_on_record() {
    let events = response_events(&[
        message_item(&["h\u{e9}", "llo"]),
        function_item("c1", "bash", &["{\"x\"", ":1}"]),
    ]);
    let mock = Mock::with([Answer::Pieces(events.concat().chunks(7).map(<[u8]>::to_vec).collect())]);
    let home = home(&mock, "openai", "http = true", "");
    let daemon = home.start();
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.whole), (200, true));
    assert_eq!(text(&got.body), text(&events.concat()));
    let sent = mock.last();
    assert_eq!(
        (sent.line.as_str(), sent.header("authorization")),
        ("POST /responses", Some("Bearer sk-secret-key-of-a"))
    );
    let mut expected = asked();
    (expected["model"], expected["max_output_tokens"]) = (json!("fixed"), json!(500));
    assert_eq!(sent.body, expected, "nothing else is changed");
    let worker = eventually("the call is counted", || {
        let worker = daemon.status("a")["worker"].clone();
        (worker["http_calls"] == 1).then_some(worker)
    });
    assert_eq!(
        (&worker["turns"], &worker["input_tokens"], &worker["output_tokens"]),
        (&json!(1), &json!(7), &json!(5))
    );
    let line = recorded(&home);
    assert_eq!(
        (&line["path"], &line["stop_reason"], &line["stream"]),
        (&json!(PATH), &json!("tool_use"), &json!(true))
    );
    assert_eq!(
        (&line["usage"]["cache_read_tokens"], &line["content"][0]["text"]),
        (&json!(4), &json!("h\u{e9}llo"))
    );
    assert_eq!(line["tool_calls"], json!([{ "id": "c1", "name": "bash", "input": { "x": 1 } }]));
    assert_eq!(line["last"]["content"][0]["text"], "hi");
}

#[test]
fn a_whole_answer_and_errors_are_as_they_are() {
    let mut answer = response(&[message_item(&["done"]).0], "completed");
    answer["echo"] = json!(KEY);
    let limited = json!({ "error": { "message": "slow down", "type": "rate_limit_error", "param": null, "code": "x" } });
    let mock = Mock::with([
        whole(&answer),
        Answer::Whole(429, format!("{JSON}Retry-After: 7\r\n"), limited.to_string().into()),
    ]);
    let home = home(&mock, "openai", "http = true", "");
    let daemon = home.start();
    let got = post(&home, PATH, &json!({ "input": "hi" }));
    answer["echo"] = json!("[redacted]");
    assert_eq!((got.status, got.json()), (200, answer));
    assert!(
        got.head.contains("x-ratelimit-remaining-tokens: 9") && !got.head.contains("organization"),
        "{}",
        got.head
    );
    let sent = json!({ "model": "fixed", "max_output_tokens": 500, "store": false, "input": "hi" });
    assert_eq!(mock.last().body, sent, "nothing is kept at the provider");
    let line = recorded(&home);
    assert_eq!((&line["stop_reason"], &line["last"]["content"]), (&json!("completed"), &json!("hi")));
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.json()), (429, limited));
    assert!(got.head.contains("retry-after: 7"), "{}", got.head);
    let worker = daemon.status("a")["worker"].clone();
    assert_eq!((&worker["input_tokens"], &worker["failed"]), (&json!(7), &json!(1)));
}

#[test]
fn what_the_profile_does_not_allow_is_refused_in_the_provider_s_form() {
    let mock = Mock::new();
    let home = home(&mock, "openai", "http = true", "models = [\"small\"]");
    let _daemon = home.start();
    let image = json!([{ "type": "image_generation", "model": "big" }]);
    for (body, words) in [
        (json!({ "model": "big", "input": "x" }), "has \"fixed\", \"small\", and no model \"big\""),
        (
            json!({ "model": "small", "input": "x", "previous_response_id": "resp_1" }),
            "refers to what the provider keeps",
        ),
        (
            json!({ "model": "small", "input": [{ "type": "item_reference", "id": "x" }] }),
            "refers to what the provider keeps",
        ),
        (json!({ "model": "small", "input": "x", "background": true }), "never passes this endpoint"),
        (json!({ "model": "small", "input": "x", "tools": image }), "may not name a model"),
        (
            json!({ "model": "small", "input": "x", "tools": [{ "type": "web_search" }] }),
            "provider_tools = [",
        ),
        (json!({ "model": "small", "input": "x", "stream": "true" }), "stream is to be true or false"),
    ] {
        let got = post(&home, PATH, &body);
        let error = got.json()["error"].clone();
        assert_eq!((got.status, error["type"].as_str()), (400, Some("invalid_request_error")), "{body}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    for (method, path, status) in [
        ("GET", "/v1/responses/resp_1", 404),
        ("POST", "/v1/responses/resp_1/cancel", 404),
        ("GET", PATH, 405),
    ] {
        let mut stream = connect(&home);
        stream.write_all(&request(method, path, "Host: x\r\n", b"{}")).unwrap();
        let got = read(stream);
        assert_eq!(
            (got.status, got.json()["error"]["type"].as_str()),
            (status, Some("not_found_error")),
            "{path}"
        );
    }
    assert!(mock.asked().is_empty());
    // The control: what it may ask for, with less than the most, or more.
    for (most, sent) in [(json!(7), 7), (json!(5000), 500), (json!("5000"), 500)] {
        mock.then([whole(&response(&[], "completed"))]);
        let got = post(
            &home,
            PATH,
            &json!({ "model": "small", "input": "x", "max_output_tokens": most, "store": true }),
        );
        let body = mock.last().body;
        assert_eq!(
            (got.status, &body["model"], &body["max_output_tokens"]),
            (200, &json!("small"), &json!(sent))
        );
        assert_eq!(body["store"], false);
    }
}

#[test]
fn an_answer_that_breaks_off_never_looks_whole_and_costs() {
    let events = response_events(&[message_item(&["half of it", " and the rest"])]);
    let failed = json!({ "type": "response.failed", "response": { "status": "failed", "output": [],
        "error": { "code": "server_error", "message": "it broke" }, "usage": { "input_tokens": 30, "output_tokens": 2 } } });
    let failed = format!("event: response.failed\ndata: {failed}\n\n").into_bytes();
    let failed = [events[..4].concat(), failed].concat();
    let mock = Mock::with([Answer::Broken(events[..4].concat()), Answer::Stream(failed.clone())]);
    let home = home(&mock, "openai", "http = true", "");
    let daemon = home.start();
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.whole), (200, false));
    assert!(text(&got.body).contains("half of it"));
    let line = recorded(&home);
    assert!(line["error"].as_str().unwrap().contains("broke off"), "{line}");
    assert!(
        line["usage"]["input_tokens"].as_u64().unwrap() > 50 && line["usage"]["output_tokens"] == 2,
        "{line}"
    );
    // One that says that it failed is as it is, and counted with what it says.
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.whole, text(&got.body)), (200, true, text(&failed)));
    let line = recorded(&home);
    assert_eq!((&line["error"], &line["usage"]["input_tokens"]), (&json!("it broke"), &json!(30)), "{line}");
    assert_eq!(daemon.status("a")["worker"]["failed"], 2);
    // The control; and what is behind the end is nothing.
    let behind = [events.concat(), events[2].clone()].concat();
    mock.then([Answer::Stream(behind)]);
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.whole, text(&got.body)), (200, true, text(&events.concat())));
    assert_eq!(recorded(&home)["error"], Value::Null);
}

#[test]
fn a_client_that_hangs_up_has_used_what_it_sent() {
    away_from_midnight();
    let gate = Arc::new(Gate::default());
    let events = response_events(&[message_item(&["begun", " and done"])]);
    let mock = Mock::with([Answer::Gated(events[..4].concat(), Arc::clone(&gate), events[4..].concat())]);
    let home = home(&mock, "openai", "http = true", "[limits]\ntokens_per_day = 300");
    let daemon = home.start();
    let mut body = asked();
    body["input"] = json!("long ".repeat(300));
    let mut stream = connect(&home);
    stream.write_all(&request("POST", PATH, "Host: x\r\n", body.to_string().as_bytes())).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("begun") {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0);
        seen.extend_from_slice(&piece[..n]);
    }
    drop(stream);
    eventually("the call is over", || (daemon.status("a")["worker"]["http_calls"] == 1).then_some(()));
    let refused = post(&home, PATH, &asked());
    assert_eq!((refused.status, refused.json()["error"]["type"].as_str()), (429, Some("rate_limit_error")));
    gate.open();
}

#[test]
fn a_credential_across_pieces_is_held_back() {
    let (first, rest) = KEY.split_at(9);
    let input = format!(r#"{{"key":"{KEY}"}}"#);
    let items = response_events(&[
        message_item(&["is ", first, rest, "."]),
        function_item("c1", "bash", &[&input[..14], &input[14..]]),
    ]);
    let mock = Mock::with([Answer::Stream(items.concat())]);
    let home = home(&mock, "openai", "http = true", "");
    let _daemon = home.start();
    let got = post(&home, PATH, &asked());
    let out = text(&got.body);
    assert_eq!((got.status, got.whole), (200, true), "{}", recorded(&home));
    assert!(!out.contains(KEY) && !out.contains(first) && !out.contains(rest), "{out}");
    let deltas =
        out.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let joined: String = deltas.filter_map(|event| Some(event["delta"].as_str()?.to_owned())).collect();
    assert_eq!(joined, r#"is [redacted].{"key":"[redacted]"}"#);
    let line = recorded(&home);
    assert!(
        !line.to_string().contains(first) && line["tool_calls"][0]["input"]["key"] == "[redacted]",
        "{line}"
    );
}

#[test]
fn an_answer_that_clients_read_differently_is_refused() {
    let mock = Mock::new();
    let home = home(&mock, "openai", "http = true", "");
    let _daemon = home.start();
    let call = || function_item("c1", "bash", &["{\"x\":1}"]);
    let other = function_item("c1", "bash", &["{}"]).0;
    let good = response_events(&[call()]);
    let as_event = |kind: &str, key: &str, value: &Value| {
        let data = json!({ "type": kind, "output_index": 0, key: value });
        format!("event: {kind}\ndata: {data}\n\n").into_bytes()
    };
    let with = |at: usize, event: Vec<u8>| {
        let mut events = good.clone();
        events[at] = event;
        events.concat()
    };
    for stream in [
        with(2, Vec::new()),
        with(3, as_event("response.function_call_arguments.done", "arguments", &json!("{}"))),
        with(4, as_event("response.output_item.done", "item", &other)),
        with(
            5,
            as_event("response.completed", "response", &response(std::slice::from_ref(&other), "completed")),
        ),
        with(0, b"event: response.created\ndata: {\"type\":\"response.output_item.done\"}\n\n".to_vec()),
    ] {
        mock.then([Answer::Stream(stream)]);
        let got = post(&home, PATH, &asked());
        assert_eq!((got.status, got.whole), (200, false), "{}", text(&got.body));
        assert!(
            recorded(&home)["error"].as_str().unwrap().contains("the provider sent"),
            "{}",
            recorded(&home)
        );
    }
    for odd in [
        json!({ "output": { "0": other } }),
        json!({ "output": [], "choices": [{ "message": { "tool_calls": [other] } }] }),
    ] {
        mock.then([whole(&odd)]);
        let got = post(&home, PATH, &json!({ "input": "x" }));
        assert_eq!((got.status, got.json()["error"]["type"].as_str()), (502, Some("api_error")), "{odd}");
    }
    mock.then([Answer::Stream(good.concat())]);
    assert!(post(&home, PATH, &asked()).whole, "the control");
}

#[test]
fn a_stream_of_which_too_much_would_be_kept_ends_with_the_api_s_own_event() {
    let long = "x".repeat(1 << 20);
    let pieces = [long.as_str(); 40];
    let mock = Mock::with([Answer::Stream(response_events(&[message_item(&pieces)]).concat())]);
    let home = home(&mock, "openai", "http = true", "");
    let _daemon = home.start();
    let got = post(&home, PATH, &asked());
    assert_eq!((got.status, got.whole), (200, false));
    let end = String::from_utf8_lossy(&got.body[got.body.len() - 400..]).into_owned();
    let data = end.rsplit_once("event: error\ndata: ").map(|(_, data)| data.trim()).expect("an error");
    let data: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&data["type"], &data["code"]), (&json!("error"), &json!("api_error")));
    assert!(data["message"].as_str().unwrap().contains("would have to be kept"), "{data}");
}

/// Asks a served agent, whose container this is, and gives the answer.
fn ask(core: &Core, input: Value) -> String {
    let mut socket = UnixStream::connect(core.http_socket()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut body = asked();
    body["input"] = input;
    socket.write_all(&request("POST", PATH, "Host: x\r\n", body.to_string().as_bytes())).unwrap();
    std::io::read_to_string(socket).unwrap()
}

#[test]
fn a_client_s_calls_and_results_are_tied_to_what_it_was_asked() {
    let patch =
        json!({ "type": "custom_tool_call", "id": "ct", "call_id": "c2", "name": "patch", "input": "rm x" });
    let shell = json!({ "type": "local_shell_call", "id": "ls", "call_id": "c3", "status": "completed",
        "action": { "type": "exec", "command": ["ls"] } });
    let calls = [
        function_item("c1", "bash", &["{\"x\":1}"]),
        (patch.clone(), &["rm ", "x"][..]),
        (shell.clone(), &[][..]),
    ];
    let mock = Mock::with([
        Answer::Stream(response_events(&calls).concat()),
        Answer::Stream(response_events(&[message_item(&["Done."])]).concat()),
    ]);
    let core = Core::start_as(&mock, "OpenAi");
    core.peer(0, Some(true));
    let words = |text: &str| json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": text }] });
    let developer = json!({ "type": "message", "role": "developer", "content": "Be brief." });
    ask(&core, json!([developer, words("tidy up")]));
    let result =
        |kind: &str, call: &str, output: Value| json!({ "type": kind, "call_id": call, "output": output });
    let said = [
        developer,
        words("tidy up"),
        json!({ "type": "reasoning", "summary": [], "encrypted_content": "x" }),
        calls[0].0.clone(),
        // As they come of calls that ran at the same time.
        result("function_call_output", "c1", json!("of c1")),
        patch,
        shell,
        result("custom_tool_call_output", "c2", json!([{ "type": "input_text", "text": "of c2" }])),
        result("function_call_output", "c3", json!("of c3")),
    ];
    assert!(ask(&core, json!(said)).contains("Done."));
    let said = eventually("the reports", || {
        let said = core.said();
        let ended = said.iter().filter(|said| matches!(said, AgentEvent::IntentEnded { .. })).count();
        (ended == 1).then_some(said)
    });
    let told: Vec<(String, String, String)> = said
        .iter()
        .filter_map(|event| match event {
            AgentEvent::Call { key, tool, input, .. } => {
                let output = said.iter().find_map(|said| match said {
                    AgentEvent::CallEnded { key: of, output, .. } if *of == *key => Some(output.clone()),
                    _ => None,
                });
                Some((tool.clone(), input.clone(), output.expect("a result")))
            }
            _ => None,
        })
        .collect();
    let call = |tool: &str, input: &str, output: &str| (tool.to_owned(), input.to_owned(), output.to_owned());
    assert_eq!(
        told,
        [
            call("bash", r#"{"x":1}"#, "of c1"),
            call("patch", r#""rm x""#, "of c2"),
            call("local_shell", r#"{"action":{"command":["ls"],"type":"exec"}}"#, "of c3"),
        ]
    );
    let asked: Vec<&AgentEvent> =
        said.iter().filter(|said| matches!(said, AgentEvent::Intent { .. })).collect();
    assert!(asked.len() == 1 && format!("{asked:?}").contains("tidy up"), "{asked:?}");
}
