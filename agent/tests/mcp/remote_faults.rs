//! `ringfence mcp --url`: what a reviewer found to go wrong, each with its control.

use crate::{
    http_server::{HttpServer, Reply},
    remote::{begin, call, done, initialize, initialized, line, manners},
    support::{Client, Home},
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

const TOKEN: &str = "tok-3f9a8b7c6d5e4f30";

fn cancelled(id: impl Into<Value>) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id.into()}})
}

#[test]
fn no_proxy_gets_what_goes_to_loopback() {
    let proxy = HttpServer::start(|_, reply| reply.json("{}"));
    let server = HttpServer::start(|request, reply| assert!(manners(request, reply), "{request:?}"));
    let home = Home::new();
    let mut interceptor = home.interceptor(&["--url", &server.url(), "--token-env", "TOKEN"]);
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"] {
        interceptor.env(name, &proxy.origin);
    }
    let mut client = Client::start(interceptor.env("TOKEN", TOKEN));
    client.send(line(&initialize()));
    assert!(client.out.line().contains("2025-06-18"));
    assert!(client.end().success());
    assert_eq!(proxy.received().len(), 0);
    assert_eq!(server.received()[0].header("authorization"), format!("Bearer {TOKEN}"), "the control");
}

#[test]
fn ordinary_headers_stay_in_messages_and_credentials_do_not() {
    let server = HttpServer::start(|request, reply| match request.json()["params"]["name"].as_str() {
        Some("read_long") => {
            let text = TOKEN.repeat(50_000);
            let result = json!({"content": [{"type": "text", "text": text}]});
            reply.json(json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result}).to_string());
        }
        Some("read_kind") => {
            reply.whole("200 OK", &[("Content-Type", &format!("text/{TOKEN}"))], "");
        }
        Some(_) => {
            let text = format!("{} {}", request.header("x-mcp-tools"), request.header("authorization"));
            let result = json!({"content": [{"type": "text", "text": text}]});
            reply.json(json!({"jsonrpc": "2.0", "id": request.json()["id"], "result": result}).to_string());
        }
        None => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let url = server.url();
    let mut interceptor =
        home.interceptor(&["--url", &url, "--token-env", "TOKEN", "--header", "X-MCP-Tools=env:TOOLS"]);
    let mut client = Client::start(interceptor.env("TOKEN", TOKEN).env("TOOLS", "create_pull_request"));
    client.send(line(&initialize()) + &line(&initialized()));
    client.out.line();
    client.send(line(&call(1, "read_it")));
    let answer = client.out.line();
    assert!(answer.contains("create_pull_request Bearer [redacted]"), "{answer}");
    client.send(line(&call(2, "read_long")));
    let answer = client.out.line();
    assert_eq!((answer.matches("[redacted]").count(), answer.contains(TOKEN)), (50_000, false));
    client.send(line(&call(3, "read_kind")));
    let answer = client.out.line();
    assert!(answer.contains("text/[redacted]") && !answer.contains(TOKEN), "{answer}");
    assert!(client.end().success());
}

#[test]
fn the_id_of_a_request_that_was_called_off_is_free() {
    let server = HttpServer::start(|request, reply| {
        if !manners(request, reply) {
            reply.json(done(&request.json()["id"]).to_string());
        }
    });
    let home = Home::new();
    let mut client = Client::start(&mut home.interceptor(&["--url", &server.url()]));
    let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28"});
    let ping = |id: &str, n: u32| json!({"jsonrpc": "2.0", "id": id, "method": "ping", "params": {"n": n, "_meta": meta}});
    // Whatever the order in which the pipe is read, the second of a name is answered, by its own answer.
    for round in 0..20 {
        let id = format!("r{round}");
        client.send(line(&ping(&id, 1)) + &line(&cancelled(id.clone())) + &line(&ping("next", round)));
        let mut answer = client.out.line();
        if answer == line(&done(&json!(id))) {
            answer = client.out.line();
        }
        assert_eq!(answer, line(&done(&json!("next"))));
        client.send(line(&ping(&id, 2)));
        assert_eq!(client.out.line(), line(&done(&json!(id))));
    }
    assert!(client.end().success());
    let all = server.received();
    assert!(all.iter().filter(|request| request.json()["params"]["n"] == 2).count() >= 20);
}

#[test]
fn a_lost_session_ends_whatever_id_its_error_has() {
    let server = HttpServer::start(|request, reply| match request.json()["id"].as_u64() {
        Some(8) => {
            let error =
                json!({"jsonrpc": "2.0", "id": 8, "error": {"code": -32001, "message": "Session not found"}});
            reply.whole("404 Not Found", &[("Content-Type", "application/json")], error.to_string());
        }
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(8, "read_it")));
    let answer = client.out.line();
    assert!(answer.contains("Session not found"), "{answer}");
    assert_eq!(client.wait().code(), Some(1), "the client begins anew");
}

#[test]
fn a_redirect_says_where_to() {
    let server = HttpServer::start(|request, reply| match request.json()["params"]["name"].as_str() {
        Some("read_within") => reply.whole("301 Moved Permanently", &[("Location", "/mcp/?key=s3cr3t")], ""),
        Some("read_away") => {
            reply.whole("302 Found", &[("Location", "https://other.example/x?k=s3cr3t")], "")
        }
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    client.send(line(&call(1, "read_within")));
    let answer = client.out.line();
    assert!(
        answer.contains(&format!("HTTP 301 Moved Permanently: it redirects to {}/; give", server.url())),
        "{answer}"
    );
    client.send(line(&call(2, "read_away")));
    let answer = client.out.line();
    assert!(
        answer.contains("https://other.example/x, another origin") && !answer.contains("s3cr3t"),
        "{answer}"
    );
    assert!(client.end().success());
}

fn not_found(reply: &mut Reply, code: i64) {
    let error = json!({"jsonrpc": "2.0", "id": 8, "error": {"code": code, "message": "not here"}});
    reply.whole("404 Not Found", &[("Content-Type", "application/json")], error.to_string());
}

#[test]
fn a_server_that_says_not_found_of_a_method_keeps_its_session() {
    let server = HttpServer::start(|request, reply| match request.json()["id"].as_u64() {
        Some(8) => not_found(reply, -32601),
        Some(9) => reply.json(done(&json!(9)).to_string()),
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    // The control: `a_lost_session_ends_whatever_id_its_error_has`.
    client.send(line(&call(8, "read_it")));
    let answer = client.out.line();
    assert!(answer.contains("-32601") && answer.contains("not here"), "{answer}");
    client.send(line(&call(9, "read_it")));
    assert_eq!(client.out.line(), line(&done(&json!(9))));
    assert!(client.end().success());
}

#[test]
fn a_server_that_knows_no_get_keeps_its_session_and_one_that_forgot_it_loses_it() {
    for was_open in [false, true] {
        let gets = AtomicUsize::new(0);
        let server = HttpServer::start(move |request, reply| match request.method.as_str() {
            "GET" if was_open && gets.fetch_add(1, Ordering::Relaxed) == 0 => {
                reply.events();
                reply.raw("retry: 1\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"n\"}\n\n");
                reply.end();
            }
            "GET" => reply.whole("404 Not Found", &[("Content-Type", "text/html")], "Cannot GET /mcp"),
            _ if request.json()["id"] == 1 => reply.json(done(&json!(1)).to_string()),
            _ => assert!(manners(request, reply), "{request:?}"),
        });
        let home = Home::new();
        let mut client = begin(&home, &server.url(), &[]);
        server.wait_for("the first GET", |request| request.method == "GET");
        if was_open {
            assert!(client.out.line().contains("\"n\""));
            assert_eq!(client.wait().code(), Some(1));
            assert!(client.errors.rest().contains("does not know this session"));
        } else {
            // Its answer may still be under way: what says that the session goes on is that none of these fails.
            for _ in 0..20 {
                client.send(line(&call(1, "read_it")));
                assert_eq!(client.out.line(), line(&done(&json!(1))));
            }
            assert!(client.end().success());
        }
    }
}

#[test]
fn a_server_that_answers_no_notification_holds_a_call_up_once() {
    let server = HttpServer::start(move |request, reply| match request.asks() {
        asks if asks.starts_with("notifications/") => reply.until_closed(),
        asks if asks == "tools/call" => reply.json(done(&json!(1)).to_string()),
        _ => assert!(manners(request, reply), "{request:?}"),
    });
    let home = Home::new();
    let mut client = begin(&home, &server.url(), &[]);
    // Each would be waited for for ten seconds, and the answer not for as long as all of them.
    for _ in 0..50 {
        client.send(line(&json!({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})));
    }
    client.send(line(&call(1, "read_it")));
    assert_eq!(client.out.line(), line(&done(&json!(1))));
    assert!(client.end().success());
}
