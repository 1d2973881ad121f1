//! Gemini's API: at the HTTP endpoint what holds for the other APIs holds for it, and turns speak it.

use crate::{
    http::{Got, ask, connect, home, post, read, request},
    mock::{Answer, Gate, Mock, candidate, gemini_events},
    played_core::Core,
    support::{Home, PATIENCE, Port, away_from_midnight, eventually, text_of, tool_result, turn},
};
use ringfence_wire::trace::AgentEvent;
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    sync::Arc,
};

const STREAM: &str = "/v1beta/models/theirs:streamGenerateContent?alt=sse";
const WHOLE: &str = "/v1beta/models/theirs:generateContent";
const KEY: &str = "sk-secret-key-of-a";
const JSON: &str = "Content-Type: application/json\r\n";

/// What gemini-cli asks, and nothing else of it.
fn asked() -> Value {
    json!({ "contents": [{ "role": "user", "parts": [{ "text": "hi" }] }],
        "systemInstruction": { "role": "user", "parts": [{ "text": "Be brief." }] },
        "tools": [{ "functionDeclarations": [{ "name": "bash", "parametersJsonSchema": { "type": "object" } }] }],
        "generationConfig": { "temperature": 1, "topP": 0.95, "thinkingConfig": { "includeThoughts": true } } })
}

fn text_part(text: &str) -> Value {
    json!({ "text": text })
}

fn call_part(name: &str, args: Value) -> Value {
    json!({ "functionCall": { "name": name, "args": args }, "thoughtSignature": "c2ln" })
}

fn whole(body: &Value) -> Answer {
    Answer::Whole(200, format!("{JSON}x-ratelimit-x: 9\r\nserver-timing: us\r\n"), body.to_string().into())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn code(got: &Got) -> (u16, Value, Value) {
    let error = got.json()["error"].clone();
    (got.status, error["code"].clone(), error["status"].clone())
}

/// The last call on record.
fn recorded(home: &Home) -> Value {
    let record = fs::read_to_string(home.path(".local/share/ringfence/logs/a/http.ndjson")).unwrap();
    serde_json::from_str(record.lines().last().unwrap()).unwrap()
}

#[test]
fn a_stream_passes_with_our_key_and_model_and_is_counted_and_on_record() {
    let thought = json!({ "text": "hm", "thought": true });
    let events = gemini_events(&[
        json!([thought, text_part("h\u{e9}")]),
        json!([text_part("llo")]),
        json!([
            call_part("bash", json!({ "x": 1 })),
            json!({ "functionCall": { "id": "c", "name": "bash" } })
        ]),
    ]);
    let bytes = events.concat();
    // As its servers end lines.
    let theirs = text(&bytes).replace('\n', "\r\n").into_bytes();
    let mock = Mock::with([Answer::Pieces(theirs.chunks(7).map(<[u8]>::to_vec).collect())]);
    let home = home(&mock, "gemini", "http = true", "");
    let daemon = home.start();
    let headers = "x-goog-api-key: sk-theirs\r\nAuthorization: Bearer sk-theirs\r\nx-goog-user-project: p\r\nx-gemini-session-id: s-1\r\n";
    let body = asked().to_string();
    let got = ask(&home, "POST", &format!("{STREAM}&key=sk-theirs&prettyPrint=1"), headers, body.as_bytes());
    assert_eq!((got.status, got.whole), (200, true));
    assert_eq!(text(&got.body), text(&bytes));
    let sent = mock.last();
    assert_eq!(sent.line, "POST /v1beta/models/fixed:streamGenerateContent?alt=sse");
    assert_eq!((sent.header("x-goog-api-key"), sent.header("authorization")), (Some(KEY), None));
    assert_eq!(sent.header("x-goog-user-project"), None);
    let mut expected = asked();
    expected["generationConfig"]["maxOutputTokens"] = json!(500);
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
        (&line["path"], &line["stop_reason"], &line["stream"], &line["session"]["id"]),
        (
            &json!("/v1beta/models/theirs:streamGenerateContent"),
            &json!("tool_use"),
            &json!(true),
            &json!("s-1")
        )
    );
    assert_eq!(
        (&line["usage"]["cache_read_tokens"], &line["content"][0]["text"]),
        (&json!(4), &json!("h\u{e9}llo"))
    );
    assert_eq!(
        line["tool_calls"],
        json!([{ "id": "bash#0", "name": "bash", "input": { "x": 1 } }, { "id": "c", "name": "bash", "input": {} }])
    );
    assert_eq!(line["last"]["parts"][0]["text"], "hi");
}

#[test]
fn a_whole_answer_counts_and_errors_are_as_they_are() {
    let mut answer = candidate(&json!([text_part("done")]), Some("STOP"));
    answer["echo"] = json!(KEY);
    let limited = json!({ "error": { "code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED" } });
    let counted = json!({ "totalTokens": 3 });
    let mock = Mock::with([
        whole(&answer),
        Answer::Whole(429, format!("{JSON}Retry-After: 7\r\n"), limited.to_string().into()),
        whole(&counted),
    ]);
    let home = home(&mock, "gemini", "http = true", "");
    let daemon = home.start();
    // Below /v1, too, and with the other spelling.
    let got =
        post(&home, "/v1/models/theirs:generateContent", &json!({ "contents": [], "generation_config": {} }));
    answer["echo"] = json!("[redacted]");
    assert_eq!((got.status, got.json()), (200, answer));
    assert!(!got.head.contains("server-timing"), "{}", got.head);
    let sent = mock.last();
    assert_eq!(sent.line, "POST /v1beta/models/fixed:generateContent");
    assert_eq!(sent.body, json!({ "contents": [], "generationConfig": { "maxOutputTokens": 500 } }));
    assert_eq!(recorded(&home)["stop_reason"], "STOP");
    let got = post(&home, WHOLE, &asked());
    assert_eq!((got.status, got.json()), (429, limited));
    assert!(got.head.contains("retry-after: 7"), "{}", got.head);
    let inner = json!({ "generateContentRequest": { "model": "models/big", "contents": [] } });
    let got = post(&home, "/v1beta/models/theirs:countTokens", &inner);
    assert_eq!((got.status, got.json()), (200, counted));
    let sent = mock.last();
    assert_eq!(sent.line, "POST /v1beta/models/fixed:countTokens");
    assert_eq!(sent.body["generateContentRequest"], json!({ "model": "models/fixed", "contents": [] }));
    let worker = daemon.status("a")["worker"].clone();
    assert_eq!(
        (&worker["turns"], &worker["input_tokens"], &worker["failed"]),
        (&json!(2), &json!(7), &json!(1)),
        "counting is no turn"
    );
    let listed = ask(&home, "GET", "/v1beta/models?pageSize=5", "", b"").json();
    assert_eq!(listed["models"][0]["name"], "models/fixed");
    let got = ask(&home, "GET", "/v1beta/models/fixed", "", b"");
    assert_eq!((got.status, &got.json()["supportedGenerationMethods"][0]), (200, &json!("generateContent")));
    assert_eq!(code(&ask(&home, "GET", "/v1/models/big", "", b"")), (404, json!(404), json!("NOT_FOUND")));
}

#[test]
fn what_the_profile_does_not_allow_is_refused_in_the_provider_s_form() {
    let mock = Mock::new();
    let home = home(&mock, "gemini", "http = true", "models = [\"small\"]");
    let _daemon = home.start();
    let small = "/v1beta/models/small:generateContent";
    let file = json!([{ "parts": [{ "fileData": { "fileUri": "https://e.org/x" } }] }]);
    for (path, body, words) in [
        ("/v1beta/models/big:generateContent", json!({}), "has \"fixed\", \"small\", and no model \"big\""),
        ("/v1/models/small%2F..%2Fbig:generateContent", json!({}), "and no model \"small/../big\""),
        (small, json!({ "cachedContent": "cachedContents/x" }), "refers to what the provider keeps"),
        (small, json!({ "tools": [{ "googleSearch": {} }] }), "\"google_search\" is run or fetched"),
        (small, json!({ "tools": [{ "code_execution": {} }] }), "\"code_execution\" is run or fetched"),
        (small, json!({ "contents": file }), "\"url\" is run or fetched"),
        ("/v1beta/models/small:streamGenerateContent", json!({}), "?alt=sse only"),
        ("/v1beta/models/small:streamGenerateContent?alt=sse&alt=json", json!({}), "?alt=sse only"),
        ("/v1beta/models/small:generateContent?alt=sse", json!({}), "?alt=sse only"),
    ] {
        let got = post(&home, path, &body);
        assert_eq!(code(&got), (400, json!(400), json!("INVALID_ARGUMENT")), "{path} {body}");
        let why = got.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(why.starts_with("ringfence: ") && why.contains(words), "{why}");
    }
    for (method, path, status) in [
        ("POST", "/v1beta/models/small:embedContent", 404),
        ("POST", "/v1beta/models/small:batchGenerateContent", 404),
        ("POST", "/v1beta/tunedModels/x:generateContent", 404),
        ("POST", "/v1beta/cachedContents", 404),
        ("POST", "/upload/v1beta/files", 404),
        ("POST", "/v1beta/models/:generateContent", 404),
        ("POST", "/v1beta/models/small", 405),
        ("GET", small, 405),
        ("POST", "/v1/chat/completions", 404),
    ] {
        let got = ask(&home, method, path, "", b"{}");
        assert_eq!(code(&got), (status, json!(status), json!("NOT_FOUND")), "{method} {path}");
    }
    assert!(mock.asked().is_empty());
    // The control: what it may ask for, with less than the most, or more, in either spelling.
    for (key, most, sent) in [
        ("maxOutputTokens", json!(7), 7),
        ("max_output_tokens", json!(5000), 500),
        ("maxOutputTokens", json!("5000"), 500),
    ] {
        mock.then([whole(&candidate(&json!([]), Some("STOP")))]);
        let how = json!({ key: most, "candidateCount": 4 });
        let got =
            post(&home, small, &json!({ "model": "models/big", "contents": [], "generationConfig": how }));
        let last = mock.last();
        assert_eq!((got.status, last.line.as_str()), (200, "POST /v1beta/models/small:generateContent"));
        let how = json!({ "maxOutputTokens": sent });
        assert_eq!(last.body, json!({ "contents": [], "generationConfig": how }));
    }
}

#[test]
fn what_the_provider_runs_passes_where_the_profile_has_it() {
    let mock = Mock::with([whole(&candidate(&json!([text_part("found")]), Some("STOP")))]);
    let home = home(&mock, "gemini", "http = true", "provider_tools = [\"google_search\", \"url_context\"]");
    let _daemon = home.start();
    let tools = json!([{ "googleSearch": {} }, { "url_context": {} }]);
    assert_eq!(post(&home, WHOLE, &json!({ "contents": [], "tools": tools })).status, 200);
    assert_eq!(mock.last().body["tools"], tools);
    let other = json!({ "contents": [], "tools": [{ "googleMaps": {} }] });
    assert_eq!(post(&home, WHOLE, &other).status, 400);
}

#[test]
fn loopback_takes_its_token_as_google_s_key_and_never_in_an_address() {
    let mock = Mock::with([whole(&candidate(&json!([text_part("hi")]), Some("STOP")))]);
    let port = Port::new();
    let home = home(&mock, "gemini", &format!("http = true\nhttp_port = {}", port.number), "");
    let _daemon = home.start();
    let file = home.path(".local/share/ringfence/state/a/http-token");
    let token = eventually("the token", || fs::read_to_string(&file).ok());
    let token = token.trim();
    let on_loopback = |path: &str, headers: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port.number)).unwrap();
        let headers = format!("Host: 127.0.0.1:{}\r\n{headers}", port.number);
        stream.write_all(&request("POST", path, &headers, b"{\"contents\":[]}")).unwrap();
        read(stream)
    };
    assert_eq!(code(&on_loopback(WHOLE, "")), (401, json!(401), json!("UNAUTHENTICATED")));
    assert_eq!(on_loopback(&format!("{WHOLE}?key={token}"), "").status, 401);
    assert_eq!(on_loopback(WHOLE, &format!("x-goog-api-key: {token}\r\n")).status, 200);
    assert_eq!(mock.asked().len(), 1);
    assert_eq!(mock.last().header("x-goog-api-key"), Some(KEY));
}

#[test]
fn an_answer_that_ends_without_a_reason_never_looks_whole_and_costs() {
    let events = gemini_events(&[json!([text_part("half of it")]), json!([text_part(" and the rest")])]);
    let failed =
        b"data: {\"error\":{\"code\":500,\"message\":\"it broke\",\"status\":\"INTERNAL\"}}\n\n".to_vec();
    let failed = [events[0].clone(), failed].concat();
    let mock = Mock::new();
    let home = home(&mock, "gemini", "http = true", "");
    let daemon = home.start();
    for (answer, words) in [
        (Answer::Broken(events[..1].concat()), "broke off"),
        (Answer::Stream(events[..2].concat()), "before its final event"),
        // It went on behind its reason.
        (Answer::Stream([events[2].clone(), events[0].clone()].concat()), "before its final event"),
        (Answer::Stream([events[0].clone(), b"data: [DONE]\n\n".to_vec()].concat()), "no JSON"),
    ] {
        mock.then([answer]);
        let got = post(&home, STREAM, &asked());
        assert_eq!((got.status, got.whole), (200, false), "{words}");
        let line = recorded(&home);
        assert!(line["error"].as_str().unwrap().contains(words), "{line}");
        assert!(line["usage"]["input_tokens"].as_u64().unwrap() > 0, "{line}");
    }
    // What breaks off has no reason either.
    mock.then([Answer::Broken(events.concat())]);
    let got = post(&home, STREAM, &asked());
    assert!(!got.whole && !text(&got.body).contains("finishReason"), "{}", text(&got.body));
    assert!(text(&got.body).contains("and the rest"));
    // One that says that it failed is as it is.
    mock.then([Answer::Stream(failed.clone())]);
    let got = post(&home, STREAM, &asked());
    assert_eq!((got.status, got.whole, text(&got.body)), (200, true, text(&failed)));
    assert_eq!(recorded(&home)["error"], "it broke");
    assert_eq!(daemon.status("a")["worker"]["failed"], 6);
    // The controls: with what else comes at the end, and a prompt that was blocked.
    let usage = b"data: {\"usageMetadata\":{\"promptTokenCount\":3}}\n\n".to_vec();
    let blocked = b"data: {\"promptFeedback\":{\"blockReason\":\"SAFETY\"}}\n\n".to_vec();
    for stream in [events.concat(), [events.concat(), usage].concat(), blocked] {
        mock.then([Answer::Stream(stream.clone())]);
        let got = post(&home, STREAM, &asked());
        assert_eq!((got.status, got.whole, text(&got.body)), (200, true, text(&stream)));
        assert_eq!(recorded(&home)["error"], Value::Null);
    }
}

#[test]
fn comments_do_not_reach_clients_that_know_none() {
    let events = gemini_events(&[json!([text_part("x")])]);
    let commented =
        [b": ping\n\n".to_vec(), events[0].clone(), b":\n\ndata:\n\n".to_vec(), events[1].clone()];
    let mock = Mock::with([Answer::Stream(commented.concat())]);
    let home = home(&mock, "gemini", "http = true", "");
    let _daemon = home.start();
    let got = post(&home, STREAM, &asked());
    assert_eq!((got.whole, text(&got.body)), (true, text(&events.concat())));
}

#[test]
fn a_client_that_hangs_up_has_used_what_it_sent() {
    away_from_midnight();
    let gate = Arc::new(Gate::default());
    let event = |text: &str| {
        let data = json!({ "candidates": [{ "content": { "parts": [{ "text": text }] } }] });
        format!("data: {data}\n\n").into_bytes()
    };
    let mock = Mock::with([Answer::Gated(event("begun"), Arc::clone(&gate), event("done"))]);
    let home = home(&mock, "gemini", "http = true", "[limits]\ntokens_per_day = 300");
    let daemon = home.start();
    let mut body = asked();
    body["contents"][0]["parts"][0]["text"] = json!("long ".repeat(300));
    let mut stream = connect(&home);
    stream.write_all(&request("POST", STREAM, "Host: x\r\n", body.to_string().as_bytes())).unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("begun") {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0);
        seen.extend_from_slice(&piece[..n]);
    }
    drop(stream);
    eventually("the call is over", || (daemon.status("a")["worker"]["http_calls"] == 1).then_some(()));
    assert_eq!(code(&post(&home, STREAM, &asked())), (429, json!(429), json!("RESOURCE_EXHAUSTED")));
    gate.open();
}

#[test]
fn a_credential_across_events_and_parts_is_held_back() {
    let (first, rest) = KEY.split_at(9);
    let (second, third) = rest.split_at(4);
    let thought = |text: &str| json!({ "text": text, "thought": true });
    let events = gemini_events(&[
        json!([thought(first)]),
        json!([thought(rest), text_part("is "), text_part(first), text_part(second)]),
        json!([text_part(third)]),
        json!([text_part("."), call_part("bash", json!({ "key": KEY }))]),
    ]);
    let mock = Mock::with([Answer::Stream(events.concat())]);
    let home = home(&mock, "gemini", "http = true", "");
    let _daemon = home.start();
    let got = post(&home, STREAM, &asked());
    let out = text(&got.body);
    assert_eq!((got.status, got.whole), (200, true), "{}", recorded(&home));
    assert!(!out.contains(first) && !out.contains(rest) && !out.contains(third), "{out}");
    let events =
        out.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let parts: Vec<Value> = events
        .filter_map(|event| event.pointer("/candidates/0/content/parts")?.as_array().cloned())
        .flatten()
        .collect();
    let joined = |is_thought: bool| -> String {
        let of = parts.iter().filter(|part| part.get("thought").is_some() == is_thought);
        of.filter_map(|part| part["text"].as_str()).collect()
    };
    assert_eq!((joined(false), joined(true)), ("is [redacted].".into(), "[redacted]".into()));
    let line = recorded(&home);
    assert!(
        !line.to_string().contains(first) && line["tool_calls"][0]["input"]["key"] == "[redacted]",
        "{line}"
    );
}

#[test]
fn an_answer_that_clients_read_differently_is_refused() {
    let mock = Mock::new();
    let home = home(&mock, "gemini", "http = true", "");
    let _daemon = home.start();
    let good = gemini_events(&[json!([call_part("bash", json!({}))])]);
    let event = |data: Value| format!("data: {data}\n\n").into_bytes();
    for odd in [
        event(
            json!({ "candidates": [{ "content": { "parts": [{ "function_call": { "name": "bash" } }] } }] }),
        ),
        event(
            json!({ "candidates": [{ "index": 3, "content": { "parts": [call_part("bash", json!({}))] } }] }),
        ),
        event(json!({ "functionCalls": [{ "name": "bash" }] })),
        b"event: other\ndata: {\"candidates\":[]}\n\n".to_vec(),
    ] {
        mock.then([Answer::Stream([odd, good.concat()].concat())]);
        let got = post(&home, STREAM, &asked());
        assert_eq!((got.status, got.whole), (200, false), "{}", text(&got.body));
        assert!(
            recorded(&home)["error"].as_str().unwrap().contains("the provider sent"),
            "{}",
            recorded(&home)
        );
    }
    mock.then([whole(
        &json!({ "candidates": [{ "content": { "parts": [{ "functionCall": { "args": {} } }] } }] }),
    )]);
    assert_eq!(code(&post(&home, WHOLE, &asked())), (502, json!(502), json!("UNAVAILABLE")));
    mock.then([Answer::Stream(good.concat())]);
    assert!(post(&home, STREAM, &asked()).whole, "the control");
}

#[test]
fn a_client_s_calls_and_results_are_tied_to_what_it_was_asked() {
    let calls = json!([
        call_part("bash", json!({ "x": 1 })),
        call_part("read", json!({})),
        call_part("bash", json!({ "x": 2 }))
    ]);
    let mock = Mock::with([
        Answer::Stream(gemini_events(std::slice::from_ref(&calls)).concat()),
        Answer::Stream(gemini_events(&[json!([text_part("Done.")])]).concat()),
    ]);
    let core = Core::start_as(&mock, "Gemini");
    core.peer(0, Some(true));
    let ask = |contents: Value| {
        let mut socket = UnixStream::connect(core.http_socket()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut body = asked();
        body["contents"] = contents;
        socket.write_all(&request("POST", STREAM, "Host: x\r\n", body.to_string().as_bytes())).unwrap();
        std::io::read_to_string(socket).unwrap()
    };
    let context = "<session_context>\nToday is a day.\n</session_context>";
    let words = json!({ "role": "user", "parts": [text_part(context), text_part("tidy up")] });
    ask(json!([words]));
    // The client gives ids of its own, and answers in another order.
    let result = |name: &str, response: Value| json!({ "functionResponse": { "id": format!("{name}_own"), "name": name, "response": response } });
    let results = json!([
        result("read", json!({ "error": "no file" })),
        result("bash", json!({ "output": "of 1" })),
        result("bash", json!({ "output": "of 2" }))
    ]);
    let said = json!([words, { "role": "model", "parts": calls }, { "role": "user", "parts": results }]);
    assert!(ask(said).contains("Done."));
    let said = eventually("the reports", || {
        let said = core.said();
        let ended = said.iter().filter(|said| matches!(said, AgentEvent::IntentEnded { .. })).count();
        (ended == 1).then_some(said)
    });
    let outcome = |key: &_| {
        said.iter().find_map(|said| match said {
            AgentEvent::CallEnded { key: of, output, is_error, .. } if of == key => {
                Some((output.clone(), *is_error))
            }
            _ => None,
        })
    };
    let told: Vec<_> = said
        .iter()
        .filter_map(|event| match event {
            AgentEvent::Call { key, tool, input, .. } => Some((tool.as_str(), input.as_str(), outcome(key)?)),
            _ => None,
        })
        .collect();
    assert_eq!(
        told,
        [
            ("bash", r#"{"x":1}"#, ("of 1".into(), false)),
            ("read", "{}", ("no file".into(), true)),
            ("bash", r#"{"x":2}"#, ("of 2".into(), false)),
        ]
    );
    let asked: Vec<&AgentEvent> =
        said.iter().filter(|said| matches!(said, AgentEvent::Intent { .. })).collect();
    let shown = format!("{asked:?}");
    assert!(asked.len() == 1 && shown.contains("tidy up") && !shown.contains("Today"), "{shown}");
}

#[test]
fn turns_speak_it_and_results_go_back_under_their_names() {
    let call = json!({ "functionCall": { "name": "bash", "args": { "command": "ls" } }, "thoughtSignature": "c2ln" });
    let mock = Mock::with([
        Answer::Stream(
            gemini_events(&[json!([text_part("Let me look")]), json!([call, call_part("date", json!({}))])])
                .concat(),
        ),
        Answer::Stream(gemini_events(&[json!([text_part("done")])]).concat()),
        // Without a reason it is none.
        Answer::Stream(gemini_events(&[json!([text_part("half")])])[..1].concat()),
    ]);
    let home = home(&mock, "gemini", "", "");
    let (daemon, mut runtime) = home.serve();
    let tool = json!({ "name": "bash", "description": "Run", "parameters": { "type": "object" } });
    let user = json!({ "role": "user", "content": [{ "type": "text", "text": "what?" }] });
    runtime.write(&json!({ "jsonrpc": "2.0", "id": 1, "method": "turn", "params": { "system": "Be brief.", "tools": [tool],
        "messages": [user] } }));
    let (answer, streamed) = runtime.answer();
    assert_eq!(
        (&answer["result"]["stop_reason"], &answer["result"]["content"]),
        (&json!("tool_use"), &json!([{ "type": "text", "text": "Let me look" }]))
    );
    assert_eq!(text_of(&streamed), "Let me look{\"command\":\"ls\"}{}");
    let ids: Vec<String> = answer["result"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect();
    assert!(ids.len() == 2 && ids[0] != ids[1] && ids.iter().all(|id| !id.is_empty()), "{ids:?}");
    let asked = mock.last();
    assert_eq!(asked.line, "POST /v1beta/models/fixed:streamGenerateContent?alt=sse");
    assert_eq!(asked.header("x-goog-api-key"), Some(KEY));
    assert_eq!(asked.body["generationConfig"], json!({ "maxOutputTokens": 500 }));
    let mut failed = tool_result(&ids[1], "no date");
    failed["is_error"] = json!(true);
    runtime.write(&turn(2, json!([failed, tool_result(&ids[0], "main.rs")])));
    assert_eq!(runtime.answer().0["result"]["stop_reason"], "end_turn");
    let contents = mock.last().body["contents"].clone();
    assert_eq!(contents[1]["parts"][1]["thoughtSignature"], "c2ln");
    assert_eq!(
        contents[2],
        json!({ "role": "user", "parts": [
            { "functionResponse": { "id": ids[0], "name": "bash", "response": { "output": "main.rs" } } },
            { "functionResponse": { "id": ids[1], "name": "date", "response": { "error": "no date" } } } ] })
    );
    let worker = eventually("two turns", || {
        let worker = daemon.status("a")["worker"].clone();
        (worker["turns"] == 2).then_some(worker)
    });
    assert_eq!(
        [&worker["input_tokens"], &worker["output_tokens"], &worker["cache_read_tokens"]],
        [14, 10, 8]
    );
    runtime.write(&turn(3, json!([user])));
    let error = runtime.answer().0["error"].clone();
    assert!(error["message"].as_str().unwrap().contains("provider's stream"), "{error}");
}
