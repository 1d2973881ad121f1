//! The provider's own HTTP API, on a unix socket and on loopback.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, calls, chunk, openai, says, text_block},
    support::{Client, Home, PATIENCE, Port, eventually},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::PathBuf,
    sync::Arc,
};

/// An answer.
pub(crate) struct Got {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// It has its end.
    pub(crate) whole: bool,
}

impl Got {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }
}

pub(crate) fn request(method: &str, path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) fn read(stream: impl Read) -> Got {
    read_if_any(stream).expect("a head")
}

/// None: it broke off before there was a head.
pub(crate) fn read_if_any(mut stream: impl Read) -> Option<Got> {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let at = bytes.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..at].to_vec()).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut rest = &bytes[at + 4..];
    if !head.contains("transfer-encoding: chunked") {
        return Some(Got { status, head, body: rest.to_vec(), whole: read.is_ok() });
    }
    let (mut body, mut whole) = (Vec::new(), false);
    while let Some(line) = rest.windows(2).position(|w| w == b"\r\n") {
        let size = usize::from_str_radix(str::from_utf8(&rest[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            whole = true;
            break;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
    Some(Got { status, head, body, whole })
}

fn socket(home: &Home, agent: &str) -> PathBuf {
    home.path(&format!(".config/ringfence/sockets/{agent}/http.sock"))
}

pub(crate) fn connect_to(home: &Home, agent: &str) -> UnixStream {
    let stream = eventually("the HTTP socket is there", || UnixStream::connect(socket(home, agent)).ok());
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn connect(home: &Home) -> UnixStream {
    connect_to(home, "a")
}

pub(crate) fn ask(home: &Home, method: &str, path: &str, headers: &str, body: &[u8]) -> Got {
    let mut stream = connect(home);
    stream.write_all(&request(method, path, &format!("Host: x\r\n{headers}"), body)).unwrap();
    read(stream)
}

pub(crate) fn post(home: &Home, path: &str, body: &Value) -> Got {
    ask(home, "POST", path, "", body.to_string().as_bytes())
}

/// The agent `a`, with these lines before and behind its model's.
pub(crate) fn home(mock: &Mock, provider: &str, before: &str, behind: &str) -> Home {
    let home = Home::empty();
    profile(&home, mock, provider, before, behind);
    home
}

/// The agent `b` beside it, with an endpoint in OpenAI's form; its provider is at `url`.
pub(crate) fn openai_beside(home: &Home, url: &str) {
    home.profile(
        "b",
        &format!("http = true\n[llm.m]\nprovider = \"openai\"\nmodel = \"m\"\nbase_url = \"{url}/v1\""),
    );
}

fn profile(home: &Home, mock: &Mock, provider: &str, before: &str, behind: &str) {
    let url = &mock.url;
    let key = "api_key = \"sk-secret-key-of-a\"";
    home.profile(
        "a",
        &format!("{before}\n[llm.m]\nprovider = \"{provider}\"\nmodel = \"fixed\"\n{key}\nbase_url = \"{url}\"\nmax_tokens = 500\n{behind}\n"),
    );
}

pub(crate) fn hello() -> Value {
    json!({ "model": "theirs", "max_tokens": 9, "stream": true, "messages": [{ "role": "user", "content": "hi" }] })
}

#[test]
fn a_stream_passes_byte_for_byte_with_our_key_and_model_and_the_client_s_features() {
    let stream = anthropic_events(&[text_block(&["h\u{e9}", "llo"])], "end_turn").concat();
    let mock = Mock::with([Answer::Pieces(stream.chunks(7).map(<[u8]>::to_vec).collect())]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let headers = "x-api-key: sk-theirs\r\nAuthorization: Bearer sk-theirs\r\nanthropic-version: 2020-01-01\r\nanthropic-beta: a-1,b-2\r\nanthropic-dangerous-direct-browser-access: true\r\nanthropic-api-key: sk-theirs\r\nCookie: theirs\r\nX-Forwarded-Host: evil\r\n";
    let mut body = hello();
    body["metadata"] = json!({ "user_id": "user_0_account_1_session_0199-ab" });
    body["of_tomorrow"] = json!({ "deep": [1.50, null] });
    let got = ask(&home, "POST", "/v1/messages?beta=true", headers, body.to_string().as_bytes());
    assert_eq!((got.status, got.whole), (200, true));
    assert!(got.head.contains("content-type: text/event-stream"), "{}", got.head);
    assert_eq!(String::from_utf8(got.body).unwrap(), String::from_utf8(stream).unwrap());
    let asked = mock.last();
    assert_eq!(asked.line, "POST /v1/messages?beta=true");
    for (name, value) in [
        ("x-api-key", "sk-secret-key-of-a"),
        // What the body means depends on these.
        ("anthropic-version", "2020-01-01"),
        ("anthropic-beta", "a-1,b-2"),
        ("anthropic-dangerous-direct-browser-access", "true"),
    ] {
        assert_eq!(asked.header(name), Some(value));
    }
    let all = format!("{:?}", asked.headers);
    assert!(!all.contains("theirs") && !all.contains("evil"), "{all}");
    body["model"] = json!("fixed");
    assert_eq!(asked.body, body, "nothing else is changed");

    let worker = eventually("the call is counted", || {
        let worker = daemon.status("a")["worker"].clone();
        (worker["http_calls"] == 1).then_some(worker)
    });
    assert_eq!(
        (&worker["turns"], &worker["output_tokens"], &worker["failed"]),
        (&json!(1), &json!(7), &json!(0))
    );
    let log = home.path(".local/share/ringfence/logs/a/http.ndjson");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let line: Value = serde_json::from_str(fs::read_to_string(log).unwrap().trim()).unwrap();
    assert_eq!(
        (&line["status"], &line["stop_reason"], &line["messages"]),
        (&json!(200), &json!("end_turn"), &json!(1))
    );
    assert_eq!(line["session"], json!({ "id": "0199-ab", "from": "metadata.user_id" }));
    assert_eq!((&line["last"]["content"], &line["content"][0]["text"]), (&json!("hi"), &json!("h\u{e9}llo")));
}

#[test]
fn a_stream_comes_as_it_comes() {
    let gate = Arc::new(Gate::default());
    let events = anthropic_events(&[text_block(&["first", "second"])], "end_turn");
    let mock = Mock::with([Answer::Gated(events[..4].concat(), Arc::clone(&gate), events[4..].concat())]);
    let home = home(&mock, "anthropic", "http = true", "");
    let _daemon = home.start();
    let mut stream = connect(&home);
    stream
        .write_all(&request("POST", "/v1/messages", "Host: x\r\n", hello().to_string().as_bytes()))
        .unwrap();
    let mut seen = Vec::new();
    while !String::from_utf8_lossy(&seen).contains("first") {
        let mut piece = [0; 4096];
        let n = stream.read(&mut piece).unwrap();
        assert!(n > 0);
        seen.extend_from_slice(&piece[..n]);
    }
    gate.open();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("message_stop"));
}

#[test]
fn an_answer_in_one_piece_and_errors_are_as_they_are() {
    let whole = json!({ "id": "m", "content": [{ "type": "tool_use", "id": "t", "name": "n", "input": {} }], "stop_reason": "tool_use",
        "usage": { "input_tokens": 4, "output_tokens": 2 }, "echo": "sk-secret-key-of-a" });
    let limited = json!({ "type": "error", "error": { "type": "rate_limit_error", "message": "slow down" } });
    let mock = Mock::with([
        Answer::Whole(
            200,
            "Content-Type: application/json\r\nrequest-id: r1\r\nopenai-organization: us\r\n".into(),
            whole.to_string().into(),
        ),
        Answer::Whole(
            429,
            "Content-Type: application/json\r\nRetry-After: 7\r\n".into(),
            limited.to_string().into(),
        ),
        Answer::Whole(307, "Location: http://127.0.0.1:1/\r\n".into(), Vec::new()),
        Answer::Whole(200, "Content-Type: application/json\r\n".into(), br#"{"input_tokens":3}"#.to_vec()),
    ]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let got = post(&home, "/v1/messages", &json!({ "messages": [] }));
    let mut expected = whole;
    expected["echo"] = json!("[redacted]");
    assert_eq!((got.status, got.json()), (200, expected));
    assert!(got.head.contains("request-id: r1") && !got.head.contains("organization"), "{}", got.head);
    assert_eq!(mock.last().body["max_tokens"], 500, "the profile's, where the client says nothing");
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.json()), (429, limited));
    assert!(got.head.contains("retry-after: 7"), "{}", got.head);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.head.contains("location")), (307, false), "nobody is led to another host");
    let got = post(&home, "/v1/messages/count_tokens", &json!({ "model": "x", "messages": [] }));
    assert_eq!((got.status, mock.last().line.as_str()), (200, "POST /v1/messages/count_tokens"));
    assert_eq!(mock.last().body, json!({ "model": "fixed", "messages": [] }));
    let worker = daemon.status("a")["worker"].clone();
    assert_eq!(
        (&worker["turns"], &worker["failed"], &worker["input_tokens"], &worker["http_calls"]),
        (&json!(3), &json!(1), &json!(4), &json!(4)),
        "to count tokens is no turn"
    );
}

#[test]
fn a_stream_that_breaks_breaks_for_the_client_too() {
    let events = anthropic_events(&[text_block(&["half"])], "end_turn");
    let mock = Mock::with([Answer::Broken(events[..3].concat())]);
    let home = home(&mock, "anthropic", "http = true", "");
    let daemon = home.start();
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.whole), (200, false), "no end that looks like one");
    eventually("it is counted as failed", || (daemon.status("a")["worker"]["failed"] == 1).then_some(()));
    drop(mock);
    let port = Port::new();
    let nobody = format!("127.0.0.1:{}", port.number);
    openai_beside(&home, &format!("http://{nobody}"));
    let mut stream = connect_to(&home, "b");
    stream.write_all(&request("POST", "/v1/chat/completions", "Host: x\r\n", b"{}")).unwrap();
    let got = read(stream);
    assert_eq!(got.status, 502);
    let message = got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("cannot be reached") && !message.contains(&nobody), "{message}");
}

#[test]
fn openai_streams_count_their_tokens_and_hide_what_was_not_asked_for() {
    let text = [chunk(json!({ "content": "hi" }), None), chunk(json!({}), Some("stop"))];
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 11, "completion_tokens": 5 } });
    let mock = Mock::with([Answer::Stream(openai(&[&text[..], &[usage]].concat()))]);
    let home = home(&mock, "openai", "http = true", "");
    let daemon = home.start();
    let got = post(&home, "/v1/chat/completions", &hello());
    assert_eq!(String::from_utf8(got.body).unwrap(), String::from_utf8(openai(&text)).unwrap());
    assert_eq!(mock.last().body["stream_options"], json!({ "include_usage": true }));
    assert_eq!(mock.last().header("authorization"), Some("Bearer sk-secret-key-of-a"));
    assert_eq!(daemon.status("a")["worker"]["input_tokens"], 11);
    let models = ask(&home, "GET", "/v1/models", "", b"").json();
    assert_eq!(models["data"][0]["id"], "fixed");
    assert_eq!(ask(&home, "GET", "/v1/models/fixed", "", b"").json(), models["data"][0]);
    let other = ask(&home, "GET", "/v1/models/gpt-9", "", b"");
    let why = other.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(other.status == 404 && why.contains("\"fixed\", and no model \"gpt-9\""), "{why}");
    for path in ["/", "/v1", "/v1/models"] {
        let there = ask(&home, "HEAD", path, "", b"");
        assert_eq!((there.status, there.body.len()), (200, 0), "{path}");
    }
}

#[test]
fn what_is_no_call_is_refused_in_the_providers_form() {
    let mock = Mock::new();
    let home = home(&mock, "anthropic", "http = true", "");
    let _daemon = home.start();
    for (method, path, body, status, kind) in [
        ("POST", "/v1/messages", "{", 400, "invalid_request_error"),
        ("POST", "/v1/messages", "[1]", 400, "invalid_request_error"),
        ("POST", "/v1/files", "{}", 404, "not_found_error"),
        ("POST", "/v1/chat/completions", "{}", 404, "not_found_error"),
        ("GET", "/v1/messages", "", 405, "not_found_error"),
        ("POST", "/../../etc/passwd", "{}", 404, "not_found_error"),
    ] {
        let got = ask(&home, method, path, "", body.as_bytes());
        assert_eq!(
            (got.status, got.json()["error"]["type"].as_str()),
            (status, Some(kind)),
            "{method} {path}"
        );
    }
    let mut stream = connect(&home);
    let head = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        40 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    let piece = vec![b'x'; 1 << 20];
    // It hangs up before the end.
    let _ = (0..40).try_for_each(|_| stream.write_all(&piece));
    assert_eq!(read(stream).status, 413);
    assert_eq!(mock.asked().len(), 0);
}

#[test]
fn requests_have_a_bound_together_and_another_agent_has_its_own() {
    let mock = Mock::with([says(&["room"])]);
    let home = home(&mock, "anthropic", "http = true", "");
    openai_beside(&home, &mock.url);
    let daemon = home.start();
    let body = vec![b'x'; 31 << 20];
    let begin = |agent: &str, path: &str, more: usize| {
        let mut stream = connect_to(&home, agent);
        let length = body.len() + more;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
        stream
    };
    // They lack a byte: what came is held. Nobody reads the last pieces of it, which are in the socket.
    let held: Vec<_> = (0..4).map(|_| begin("a", "/v1/messages", 1)).collect();
    let got = read(begin("a", "/v1/messages", 0));
    let said = got.json();
    assert_eq!((got.status, said["error"]["type"].as_str()), (503, Some("api_error")));
    assert!(said["error"]["message"].as_str().unwrap().contains("this agent"), "{said}");
    assert!(got.head.contains("retry-after: 2"), "{}", got.head);
    // Another's are its own process's: this one is read to its end, which is no JSON.
    assert_eq!(read(begin("b", "/v1/chat/completions", 0)).status, 400);
    assert_eq!(mock.asked().len(), 0);
    // The positive control: what is little has room, and so has everything when they hang up.
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 200);
    assert_eq!(daemon.status("a")["worker"]["failed"], 1);
    drop(held);
    eventually("there is room again", || (read(begin("a", "/v1/messages", 0)).status == 400).then_some(()));
}

#[test]
fn loopback_wants_the_token_and_no_browser() {
    let kept = Port::new();
    let port = kept.number;
    let mock = Mock::with([says(&["ok"]), says(&["ok"])]);
    let home = home(&mock, "anthropic", &format!("http = true\nhttp_port = {port}"), "");
    let _daemon = home.start();
    let shown = home.run(&["agent", "show", "a"]).out;
    let file = home.path(".local/share/ringfence/state/a/http-token");
    assert!(
        shown.contains(&format!("http://127.0.0.1:{port}")) && shown.contains(file.to_str().unwrap()),
        "{shown}"
    );
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let token = fs::read_to_string(&file).unwrap().trim().to_owned();
    let ask = |headers: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(&request("POST", "/v1/messages", headers, hello().to_string().as_bytes())).unwrap();
        read(stream)
    };
    let host = format!("Host: 127.0.0.1:{port}\r\n");
    assert_eq!(ask(&format!("{host}x-api-key: {token}\r\n")).status, 200);
    assert_eq!(ask(&format!("Host: localhost:{port}\r\nAuthorization: Bearer {token}\r\n")).status, 200);
    assert!(!format!("{:?}", mock.asked()).contains(&token), "the token stays here");
    assert_eq!(ask(&host).status, 401);
    assert_eq!(ask(&format!("{host}x-api-key: sk-secret-key-of-a\r\n")).status, 401);
    assert_eq!(ask(&format!("{host}x-api-key: {token}\r\nOrigin: http://127.0.0.1:{port}\r\n")).status, 403);
    assert_eq!(ask(&format!("Host: evil.example:{port}\r\nx-api-key: {token}\r\n")).status, 403);
    assert_eq!(mock.asked().len(), 2);
}

#[test]
fn who_had_the_port_in_between_holds_no_token() {
    let kept = Port::new();
    let port = kept.number;
    let mock = Mock::with([says(&["ok"]), says(&["ok"]), says(&["ok"])]);
    let home = home(&mock, "anthropic", &format!("http = true\nhttp_port = {port}"), "");
    let file = home.path(".local/share/ringfence/state/a/http-token");
    let token_now = || fs::read_to_string(&file).unwrap().trim().to_owned();
    let ask = |token: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let headers = format!("Host: 127.0.0.1:{port}\r\nx-api-key: {token}\r\n");
        let body = hello().to_string();
        stream.write_all(&request("POST", "/v1/messages", &headers, body.as_bytes())).unwrap();
        read(stream).status
    };
    let daemon = home.start();
    let first = token_now();
    assert_eq!(ask(&first), 200);
    drop(daemon);
    // Another user's program: it may collect what clients show it, and they have nothing to show once it has the port.
    let squatter = TcpListener::bind(("127.0.0.1", port)).unwrap();
    fs::write(&file, format!("{first}\n")).unwrap();
    let daemon = home.start();
    assert!(!file.exists(), "clients would show the last token to whoever has the port");
    // Nor does it keep the agent from its own socket, and the user is told what it waits for.
    let status = daemon.status("a");
    let error = status["error"].as_str().unwrap_or_default();
    assert_eq!(status["state"], "running", "{status}");
    assert!(error.contains(&format!("http_port {port}")) && error.contains("tried again in"), "{status}");
    let mut runtime = Client::runtime(&home.socket("a"));
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "ok");
    assert!(!file.exists(), "still");
    drop(squatter);
    eventually("it is served once the port is free", || file.exists().then_some(()));
    eventually("and nothing is wrong any more", || daemon.status("a")["error"].is_null().then_some(()));
    let second = token_now();
    assert_ne!(first, second);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(ask(&first), 401);
    assert_eq!(ask(&second), 200);
}

#[test]
fn limits_hold_over_turns_and_calls_and_survive_a_change_of_the_profile() {
    crate::support::away_from_midnight();
    let mock = Mock::with([says(&["one"]), says(&["two"]), says(&["three"])]);
    let limits = "[limits]\nturns_per_minute = 2";
    let home = home(&mock, "anthropic", "http = true", limits);
    let (daemon, mut runtime) = home.serve();
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "one");
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 200);
    let got = post(&home, "/v1/messages", &hello());
    assert_eq!((got.status, got.json()["error"]["type"].as_str()), (429, Some("rate_limit_error")));
    assert!(got.head.contains("retry-after: "), "{}", got.head);
    let error = runtime.says(2, "x")["error"].clone();
    assert_eq!(error["code"], -32002, "{error}");
    assert!(error["message"].as_str().unwrap().contains("2 turns a minute"), "{error}");
    profile(&home, &mock, "anthropic", "http = true", "[limits]\ntokens_per_day = 30");
    eventually("the new limit holds", || {
        let error = runtime.says(3, "x")["error"]["message"].as_str().map(str::to_owned);
        error.filter(|e| e.contains("30 tokens a day"))
    });
    assert_eq!(mock.asked().len(), 2, "{}", daemon.log());
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 429);
    daemon.stop();
    let _daemon = home.start();
    assert_eq!(
        post(&home, "/v1/messages", &hello()).status,
        429,
        "a restart forgets neither turns nor calls"
    );
}

#[test]
fn the_endpoint_follows_the_profile() {
    let mock = Mock::with([says(&["ok"]), calls(&[])]);
    let home = home(&mock, "anthropic", "", "");
    let daemon = home.start();
    assert!(!socket(&home, "a").exists());
    profile(&home, &mock, "anthropic", "http = true", "");
    assert_eq!(post(&home, "/v1/messages", &hello()).status, 200);
    profile(&home, &mock, "anthropic", "", "");
    eventually("it is gone", || (!socket(&home, "a").exists()).then_some(()));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    profile(&home, &mock, "anthropic", &format!("http = true\nhttp_port = {port}"), "");
    eventually("it is said that the port is taken", || {
        daemon.status("a")["error"].as_str().filter(|e| e.contains("http_port")).map(drop)
    });
    profile(&home, &mock, "anthropic", "http_port = 70000", "");
    let checked = home.run(&["agent", "check", "a"]).err;
    assert!(checked.contains("70000") && checked.contains("65535"), "{checked}");
    profile(&home, &mock, "anthropic", "http_port = 7000", "");
    let checked = home.run(&["agent", "check", "a"]).err;
    assert!(checked.contains("without `http = true`"), "{checked}");
    daemon.stop();
    assert!(!home.path(".config/ringfence/sockets/a").exists());
}
