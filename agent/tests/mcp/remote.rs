//! `ringfence mcp --url`: a remote server behind the interceptor, in both eras of streamable HTTP.

use crate::{
    http_server::{HttpServer, Reply, Request},
    support::{Client, Home, descendants, eventually, verified},
};
use serde_json::{Value, json};
use std::{fs, os::unix::fs::PermissionsExt as _};

const SESSION: &str = "5e551011-its-id";

pub(crate) fn line(value: &Value) -> String {
    format!("{value}\n")
}

pub(crate) fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-11-25", "capabilities": {},
        "clientInfo": {"name": "c", "version": "1"}}})
}

pub(crate) fn initialized() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/initialized"})
}

pub(crate) fn call(id: impl Into<Value>, tool: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": tool, "arguments": {}}})
}

pub(crate) fn done(id: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}})
}

/// What a server with sessions says to a beginning and an end; whether that was all.
pub(crate) fn manners(request: &Request, reply: &mut Reply) -> bool {
    match (request.method.as_str(), request.asks().as_str()) {
        ("POST", "initialize") => {
            let result = json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}});
            let answer = json!({"jsonrpc": "2.0", "id": 0, "result": result}).to_string();
            reply.whole(
                "200 OK",
                &[("Content-Type", "application/json"), ("Mcp-Session-Id", SESSION)],
                answer,
            );
        }
        ("POST", "notifications/initialized") => reply.accepted(),
        ("GET", _) => reply.whole("405 Method Not Allowed", &[], ""),
        ("DELETE", _) => reply.whole("200 OK", &[], ""),
        _ => return false,
    }
    true
}

/// A client whose session has begun. Nothing is held for a person.
pub(crate) fn begin(home: &Home, url: &str, options: &[&str]) -> Client {
    let rules = home.text("rules.yaml");
    fs::write(&rules, "rules: []\n").expect("written");
    let mut interceptor = home.interceptor(&["--rules", &rules, "--url", url]);
    let mut client = Client::start(interceptor.args(options));
    client.send(line(&initialize()));
    assert!(client.out.line().contains("2025-06-18"));
    client.send(line(&initialized()));
    client
}

/// The process that speaks HTTP.
fn speaker(client: &Client) -> i32 {
    eventually("the process that speaks HTTP", || {
        descendants(client.pid()).into_iter().find(|pid| {
            // Its guards name it behind their own words.
            fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| {
                line.ends_with(b"\0mcp-remote\0") && line.split(|byte| *byte == 0).count() == 3
            })
        })
    })
}

#[test]
fn a_session_is_carried_to_the_byte_and_is_on_record() {
    // White space, an unknown key and an escape that nobody else would write.
    const ODD: &str = r#"{"jsonrpc":"2.0" , "id":"a\u002fb","method":"tools/call","params":{"name":"read_it","arguments":{"n":1e2}},"x-unknown":[ ]}"#;
    const ANSWER: &str = "{ \"jsonrpc\":\"2.0\",\r\n \"id\":\"a/b\",\n\"result\":{\"content\":[],\"n\":1.50e1,\"\\u0061\":\"\\n\"}}";
    let server =
        HttpServer::start(|request, reply| match (request.method.as_str(), request.asks().as_str()) {
            ("POST", "tools/call") if request.json()["id"] == "a/b" => reply.json(ANSWER),
            // It asks in the middle of the call, and the answer comes by another way.
            ("POST", "tools/call") => {
                reply.events();
                reply.raw(": hello\nid: 1\nretry: 1\ndata:\n\n");
                let asks = json!({"jsonrpc": "2.0", "id": 9, "method": "roots/list"});
                reply.raw(format!("event: message\nid: 2\ndata: {asks}\n\nevent: other\ndata: no\n\n"));
                let (first, second) = ("{\"jsonrpc\":\"2.0\",\"id\":7,", "\"result\":{\"content\":[]}}");
                reply.raw(format!("data: {first}\ndata: {second}\n\n"));
                reply.end();
            }
            ("POST", "") => reply.accepted(),
            ("GET", _) => {
                reply.events();
                let note = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                reply.raw(format!("data: {note}\n\n"));
                reply.until_closed();
            }
            _ => assert!(manners(request, reply), "{request:?}"),
        });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    assert!(client.out.line().contains("list_changed"), "what the server says unasked");
    client.send(format!("{ODD}\n"));
    let expected = ANSWER.replace("\r\n", "  ").replace('\n', " ") + "\n";
    assert_eq!(client.out.line(), expected);
    client.send(line(&call(7, "read_it")));
    assert!(client.out.line().contains("roots/list"));
    assert_eq!(client.out.line(), "{\"jsonrpc\":\"2.0\",\"id\":7, \"result\":{\"content\":[]}}\n");
    let roots = json!({"jsonrpc": "2.0", "id": 9, "result": {"roots": []}});
    client.send(line(&roots));
    server.wait_for("the client's answer", |request| request.json() == roots);
    assert!(client.end().success());
    let end = server.wait_for("the end of the session", |request| request.method == "DELETE");
    let all = server.received();
    assert_eq!(all[0].body, line(&initialize()).trim_end().as_bytes());
    assert_eq!((all[0].header("mcp-session-id"), all[0].header("mcp-protocol-version")), ("", ""));
    for request in &all[1..] {
        assert_eq!(request.header("mcp-session-id"), SESSION, "{request:?}");
        assert_eq!(request.header("mcp-protocol-version"), "2025-06-18", "{request:?}");
        assert_eq!(request.header("mcp-method"), "");
    }
    let posted = all.iter().find(|request| request.json()["id"] == "a/b").expect("the call");
    assert_eq!(posted.body, ODD.as_bytes());
    assert_eq!(posted.header("accept"), "application/json, text/event-stream");
    assert_eq!((posted.target.as_str(), end.target.as_str()), ("/mcp", "/mcp"));
    let calls = home.calls(&[]);
    assert_eq!(calls.len(), 2);
    assert!(calls.iter().all(|call| call["responded_at"].is_string() && call["server_name"] == "127.0.0.1"));
    assert!(verified(&home, 1));
}

#[test]
fn without_sessions_every_request_says_in_headers_what_it_is() {
    let server = HttpServer::start(|request, reply| {
        let id = request.json()["id"].clone();
        match request.asks().as_str() {
            "tools/list" => {
                let region = json!({"type": "string", "x-mcp-header": "Region"});
                let schema = json!({"type": "object", "properties": {"region": region}});
                let bad =
                    json!({"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}});
                let tools = json!([{"name": "read_it", "inputSchema": schema}, {"name": "read_bad", "inputSchema": bad}]);
                reply.json(json!({"jsonrpc": "2.0", "id": id, "result": {"tools": tools}}).to_string());
            }
            "subscriptions/listen" => {
                reply.events();
                let note = json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged"});
                reply.raw(format!("data: {note}\n\n"));
                reply.until_closed();
            }
            "tools/missing" => {
                let error =
                    json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "not here"}});
                reply.whole("404 Not Found", &[("Content-Type", "application/json")], error.to_string());
            }
            _ => reply.json(done(&id).to_string()),
        }
    });
    let home = Home::new();
    let mut client = Client::start(&mut home.interceptor(&["--url", &server.url()]));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let request = |id: &str, method: &str, mut params: Value| {
        params["_meta"] = meta.clone();
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    };
    client.send(line(&request("l", "tools/list", json!({}))));
    assert!(client.out.line().contains("x-mcp-header"), "the list is what the server sent");
    let asked = request("c", "tools/call", json!({"name": "read_it", "arguments": {"region": "ü\r\nX: y"}}));
    client.send(line(&asked));
    assert_eq!(client.out.line(), line(&done(&json!("c"))));
    client.send(line(&request("m", "tools/missing", json!({}))));
    let missing: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!((&missing["id"], &missing["error"]["message"]), (&json!("m"), &json!("not here")));
    client.send(line(&request("b", "tools/call", json!({"name": "read_bad", "arguments": {}}))));
    let refused = client.out.line();
    assert!(refused.contains("\"b\"") && refused.contains("protocol forbids"), "{refused}");
    client.send(line(&request("s", "subscriptions/listen", json!({"notifications": {}}))));
    assert!(client.out.line().contains("acknowledged"));
    client.send(
        "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":\"s\"}}\n",
    );
    // Its place is free when it has ended.
    eventually("the subscription is closed", || {
        client.send(line(&request("s", "ping", json!({}))));
        (!client.out.line().contains("open already")).then_some(())
    });
    assert!(client.end().success());
    let all = server.received();
    assert!(
        all.iter().all(|request| request.method == "POST" && request.header("mcp-session-id").is_empty())
    );
    assert!(all.iter().all(|request| request.header("mcp-protocol-version") == "2026-07-28"));
    assert!(all.iter().all(|request| request.header("mcp-method") == request.asks()));
    assert!(
        all.iter().all(|request| request.asks() != "notifications/cancelled"),
        "the stream's end says it"
    );
    let sent = all.iter().find(|request| request.json()["id"] == "c").expect("the call");
    assert_eq!(sent.body, asked.to_string().as_bytes());
    assert_eq!(
        (sent.header("mcp-name"), sent.header("mcp-param-region")),
        ("read_it", "=?base64?w7wNClg6IHk=?=")
    );
    assert!(all.iter().all(|request| request.json()["id"] != "b"));
}

#[test]
fn a_stream_that_breaks_off_is_resumed_where_it_was() {
    let server = HttpServer::start(|request, reply| {
        let part = |n: u32| format!("id: e{n}\ndata: {{\"jsonrpc\":\"2.0\",\"method\":\"n{n}\"}}\n\n");
        match (request.method.as_str(), request.header("last-event-id")) {
            ("POST", _) if request.asks() == "tools/call" => {
                reply.events();
                reply.raw(format!("retry: 10\n{}data: {{\"cut\":", part(1)));
                reply.end();
            }
            ("GET", "e1") => {
                reply.events();
                reply.raw(part(2));
                reply.end();
            }
            ("GET", "e2") => {
                reply.events();
                reply.raw(format!("{}data: {}\n\n", part(3), done(&json!(7))));
                reply.end();
            }
            _ => assert!(manners(request, reply), "{request:?}"),
        }
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(7, "read_it")));
    for n in 1..=3 {
        assert_eq!(client.out.line(), format!("{{\"jsonrpc\":\"2.0\",\"method\":\"n{n}\"}}\n"));
    }
    assert_eq!(client.out.line(), line(&done(&json!(7))));
    assert!(client.end().success());
}

#[test]
fn a_stream_that_cannot_be_resumed_is_an_error_and_not_silence() {
    let server = HttpServer::start(|request, reply| match request.asks().as_str() {
        "tools/call" => {
            reply.events();
            reply.raw("data: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n");
            reply.end();
        }
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(7, "read_it")));
    client.out.line();
    let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!(answer["id"], 7);
    assert!(answer["error"]["message"].as_str().expect("text").contains("is not known"), "{answer}");
    assert!(client.end().success());
    assert_eq!(home.calls(&[])[0]["error"], answer["error"], "on record, too");
}

#[test]
fn a_session_that_the_server_forgot_ends_with_an_answer_to_all_that_is_open() {
    let server = HttpServer::start(|request, reply| match request.json()["id"].as_u64() {
        Some(7) => reply.until_closed(),
        Some(8) => {
            let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "Session not found"}});
            reply.whole("404 Not Found", &[("Content-Type", "application/json")], error.to_string());
        }
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(7, "read_it")));
    server.wait_for("the first call", |request| request.json()["id"] == 7);
    client.send(line(&call(8, "read_it")));
    let mut answered: Vec<Value> = (0..2)
        .map(|_| {
            let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
            assert!(answer["error"]["message"].as_str().expect("text").contains("reconnect"), "{answer}");
            answer["id"].clone()
        })
        .collect();
    answered.sort_by_key(Value::as_u64);
    assert_eq!(answered, [json!(7), json!(8)]);
    assert_eq!(client.out.rest(), "");
    assert_eq!(client.wait().code(), Some(1));
    assert!(server.received().iter().all(|request| request.method != "DELETE"));
}

#[test]
fn credentials_go_to_the_server_and_nowhere_else() {
    const TOKEN: &str = "tok-3f9a8b7c6d5e4f30";
    const KEY: &str = "key-0a1b2c3d4e5f6071";
    let elsewhere = HttpServer::start(|_, reply| reply.json("{}"));
    let other = elsewhere.url();
    let server = HttpServer::start(move |request, reply| match request.json()["params"]["name"].as_str() {
        Some("read_back") => {
            let text = format!("{} {}", request.header("authorization"), request.header("x-key"));
            let result = json!({"content": [{"type": "text", "text": text}]});
            reply.json(json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result}).to_string());
        }
        Some("read_away") => reply.whole("307 Temporary Redirect", &[("Location", &other)], ""),
        Some("read_within") if request.target == "/mcp?q=s3cr3t-query" => {
            reply.whole("307 Temporary Redirect", &[("Location", "/there")], "");
        }
        Some("read_within") => reply.json(done(&request.json()["id"]).to_string()),
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let file = home.path("token");
    fs::write(&file, format!("{TOKEN}\n")).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("its mode");
    let url = home.path("url");
    fs::write(&url, server.url() + "?q=s3cr3t-query\n").expect("written");
    fs::set_permissions(&url, fs::Permissions::from_mode(0o600)).expect("its mode");
    let start = || {
        let mut interceptor =
            home.interceptor(&["--url-file", &home.text("url"), "--token-file", &home.text("token")]);
        Client::start(interceptor.args(["--header", "X-Key=env:KEY"]).env("KEY", KEY))
    };
    let mut client = start();
    client.send(line(&initialize()) + &line(&initialized()));
    client.out.line();
    client.send(line(&call(1, "read_back")));
    let answer = client.out.line();
    assert!(answer.contains("Bearer [redacted] [redacted]"), "{answer}");
    client.send(line(&call(2, "read_away")));
    let answer = client.out.line();
    assert!(answer.contains("HTTP 307") && answer.contains("another origin"), "{answer}");
    client.send(line(&call(3, "read_within")));
    assert_eq!(client.out.line(), line(&done(&json!(3))), "the control");
    assert_eq!(elsewhere.received().len(), 0);
    for pid in descendants(client.pid()).into_iter().chain([client.pid()]) {
        let said = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        assert!(!said.contains(TOKEN) && !said.contains(KEY) && !said.contains("s3cr3t"), "{said}");
    }
    let status = fs::read_to_string(format!("/proc/{}/status", speaker(&client))).expect("its status");
    for (name, value) in [("Seccomp", "2"), ("NoNewPrivs", "1"), ("CapEff", "0000000000000000")] {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).expect("a line");
        assert!(line.ends_with(value), "{line}");
    }
    assert!(client.end().success());
    let all = server.received();
    assert!(
        all.iter()
            .all(|r| r.header("authorization") == format!("Bearer {TOKEN}") && r.header("x-key") == KEY)
    );
    let record = json!([home.journal(), home.calls(&[])]).to_string() + &client.errors.rest();
    let url = server.url();
    let origin = url.strip_suffix("/mcp").expect("a path");
    assert!(record.contains(origin), "where the server is is on record");
    assert!(!record.contains(&url), "of an address that is kept in a file, nothing else: {record}");
    assert!(!record.contains(TOKEN) && !record.contains(KEY) && !record.contains("s3cr3t"), "{record}");
    // A file that others can read is no place for a credential.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("its mode");
    let mut client = start();
    client.send(line(&initialize()));
    let refused = client.out.line();
    assert!(refused.contains("chmod 600"), "{refused}");
    assert_ne!(client.wait().code(), Some(0));
    assert_eq!(server.received().len(), all.len());
}

#[test]
fn a_call_that_is_blocked_never_leaves_the_host() {
    let server = HttpServer::start(|request, reply| {
        if !manners(request, reply) {
            reply.json(done(&request.json()["id"]).to_string());
        }
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(1, "read_it")));
    assert_eq!(client.out.line(), line(&done(&json!(1))), "the control");
    fs::write(home.path("rules.yaml"), "rules: [{name: none, action: block}]\n").expect("written");
    let mut id = 1;
    eventually("the rule is in force", || {
        id += 1;
        client.send(line(&call(id, "read_it")));
        client.out.line().contains("rule none").then_some(())
    });
    client.send(line(&json!({"jsonrpc": "2.0", "id": "last", "method": "ping"})));
    client.out.line();
    assert!(client.end().success());
    assert!(server.received().iter().all(|request| request.json()["id"] != id));
}

#[test]
fn what_a_hostile_server_sends_is_bounded_and_answered() {
    const MOST: usize = 100_000;
    let server = HttpServer::start(|request, reply| {
        let json = [("Content-Type", "application/json")];
        let id = &request.json()["id"];
        match request.json()["params"]["name"].as_str() {
            Some("read_html") => reply.whole("200 OK", &[("Content-Type", "text/html")], "<p>no</p>"),
            Some("read_long") => reply.whole("200 OK", &json, vec![b' '; MOST + 1]),
            Some("read_endless") => {
                reply.events();
                reply.raw("data: ");
                while reply.raw([b'x'; 4096]) {}
            }
            Some("read_broken") => reply.json("{\"jsonrpc\":\"2.0\",\"id\":\"a\nb\"}"),
            Some("read_nothing") => reply.accepted(),
            Some("read_other") => reply.json(done(&json!("another")).to_string()),
            Some("read_heads") => {
                reply.raw("HTTP/1.1 200 OK\r\n");
                while reply.raw(format!("X-{}: {}\r\n", "a".repeat(100), "b".repeat(4000))) {}
            }
            Some("read_garbage") => {
                reply.raw([0, 159, 146, 150, b'\n']);
                reply.end();
            }
            Some("read_denied") => reply.whole("401 Unauthorized", &[("WWW-Authenticate", "Bearer")], ""),
            Some("read_error") => {
                let error =
                    json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": "bad header"}});
                reply.whole("400 Bad Request", &json, error.to_string());
            }
            Some(_) => reply.json(done(id).to_string()),
            None => assert!(manners(request, reply), "{request:?}"),
        }
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &["--max-line", &MOST.to_string()]);
    for (id, (tool, expected)) in [
        ("read_html", "text/html"),
        ("read_long", "100000 bytes"),
        ("read_endless", "100000 bytes"),
        ("read_broken", "not one line"),
        ("read_nothing", "did not answer"),
        ("read_other", "did not answer"),
        ("read_heads", "cannot be reached"),
        ("read_garbage", "cannot be reached"),
        ("read_denied", "--token-file"),
        ("read_error", "bad header"),
    ]
    .into_iter()
    .enumerate()
    {
        client.send(line(&call(id, tool)));
        if tool == "read_other" {
            assert_eq!(client.out.line(), line(&done(&json!("another"))), "as it would come from any server");
        }
        let answer: Value = serde_json::from_str(&client.out.line()).expect("JSON");
        assert_eq!(answer["id"], id, "{tool}: {answer}");
        assert!(answer["error"]["message"].as_str().expect("text").contains(expected), "{tool}: {answer}");
        client.send(line(&call("ok", "read_it")));
        assert_eq!(client.out.line(), line(&done(&json!("ok"))), "after {tool}, the session goes on");
    }
    assert!(client.end().success());
}

#[test]
fn what_cannot_be_used_is_refused_in_words() {
    let home = Home::new();
    for (options, expected) in [
        (&["--url", "http://h.example/mcp?key=s3cr3t"][..], "use https"),
        (&["--url", "h.example"], "https://HOST/PATH"),
        (&["--url", "https://u:s3cr3t@h.example/", "--token-env", "T"], "leave one of them out"),
        (&["--url", "https://h.example/", "--header", "Host=env:H"], "not the name of a header"),
        (&["--insecure-http", "--", "cat"], "--url"),
    ] {
        let mut client = Client::start(&mut home.interceptor(options));
        client.send(line(&initialize()));
        let answer = client.out.line();
        assert!(answer.contains(expected) && !answer.contains("s3cr3t"), "{options:?}: {answer}");
        assert_eq!(client.wait().code(), Some(1));
    }
    for options in [
        &["--url", "https://h.example/", "--", "cat"][..],
        &["--url", "https://h.example/", "--profile", "coder"],
        &["--url", "https://h.example/", "--token-env", "A", "--token-file", "b"],
        &["--url", "https://h.example/", "--header", "X-Key=s3cr3t"],
    ] {
        let ran = home.interceptor(options).output().expect("ringfence");
        assert_eq!(ran.status.code(), Some(2), "{options:?}");
    }
    let mut client = Client::start(&mut home.interceptor(&["--url", "http://127.0.0.1:9/mcp"]));
    client.send(line(&initialize()));
    let answer = client.out.line();
    assert!(answer.contains("cannot be reached"), "{answer}");
    assert!(client.end().success());
}
