//! `ringfence mcp --listen`: clients that speak HTTP, each session of theirs on record.

use crate::support::{Home, SERVER, eventually, kill, signal, verified};
use serde_json::{Value, json};
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

/// An endpoint that runs.
struct Endpoint {
    child: Child,
    host: String,
    path: String,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        kill(i32::try_from(self.child.id()).expect("a pid"));
        let _ = self.child.wait();
    }
}

/// An answer, whole or as far as it was read.
struct Answer {
    status: u16,
    head: String,
    reading: BufReader<TcpStream>,
}

impl Answer {
    fn header(&self, name: &str) -> String {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines
            .filter(|(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.to_owned())
            .next()
            .unwrap_or_default()
    }

    /// The next event with data: its id, and its message.
    fn event(&mut self) -> (String, String) {
        let (mut id, mut data) = (String::new(), String::new());
        loop {
            let mut line = String::new();
            assert!(self.reading.read_line(&mut line).expect("a line") > 0, "the stream ended");
            let line = line.trim_end();
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("data: ") {
                data += value;
            } else if line.is_empty() && !data.is_empty() {
                return (id, data);
            }
        }
    }

    fn body(mut self) -> String {
        let length = self.header("content-length").parse().unwrap_or(0);
        let mut body = vec![0; length];
        self.reading.read_exact(&mut body).expect("the body");
        String::from_utf8(body).expect("text")
    }
}

impl Endpoint {
    fn start(home: &Home, options: &[&str], server: &[&str]) -> Self {
        std::fs::write(
            home.path("rules.yaml"),
            "rules: [{name: no_deleting, tool_pattern: 'delete_*', action: block}]\n",
        )
        .expect("written");
        let rules = home.text("rules.yaml");
        let mut command = home.interceptor(&["--rules", &rules, "--listen", "127.0.0.1:0"]);
        command.args(options).args(server).stdout(Stdio::piped()).stdin(Stdio::null());
        let mut child = command.spawn().expect("ringfence");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
        let url = line.trim().strip_prefix("listening on http://").expect("an address");
        let (host, path) = url.split_once('/').expect("a path");
        Self { child, host: host.to_owned(), path: format!("/{path}") }
    }

    fn of_keeping_server(home: &Home, options: &[&str]) -> Self {
        Self::start(home, options, &["--", "python3", SERVER, &home.text("received.log")])
    }

    fn raw(&self, request: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.host).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reading = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reading.read_line(&mut head).expect("the head") > 0, "no head: {head}");
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Answer { status, head, reading }
    }

    fn ask(&self, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request = format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", self.path, self.host);
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if method == "POST" {
            request += "Accept: application/json, text/event-stream\r\nContent-Type: application/json\r\n";
        }
        self.raw(&format!("{request}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// Begins a session; its id.
    fn begin(&self) -> String {
        let begins = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}});
        let mut answer = self.ask("POST", &[], &begins.to_string());
        assert_eq!(answer.status, 200, "{}", answer.head);
        answer.event();
        answer.header("mcp-session-id")
    }
}

fn call(id: impl Into<Value>, tool: &str) -> String {
    json!({"jsonrpc": "2.0", "id": id.into(), "method": "tools/call", "params": {"name": tool, "arguments": {}}}).to_string()
}

#[test]
fn each_session_of_a_client_is_one_on_record_and_is_judged() {
    let home = Home::new();
    let endpoint = Endpoint::of_keeping_server(&home, &[]);
    let (first, second) = (endpoint.begin(), endpoint.begin());
    assert_ne!(first, second);
    let mut answer = endpoint.ask("POST", &[("Mcp-Session-Id", &first)], &call(1, "read_it"));
    let (_, message) = answer.event();
    assert!(message.contains("\"id\":1"), "{message}");
    // The same id in another session is another call.
    let mut answer = endpoint.ask("POST", &[("Mcp-Session-Id", &second)], &call(1, "delete_it"));
    let (_, message) = answer.event();
    assert!(message.contains("no_deleting"), "{message}");
    let received = String::from_utf8(home.received()).expect("text");
    assert!(received.contains("read_it") && !received.contains("delete_it"), "{received}");
    assert_eq!(endpoint.ask("DELETE", &[("Mcp-Session-Id", &first)], "").status, 200);
    for (method, body) in [("POST", call(2, "read_it")), ("GET", String::new()), ("DELETE", String::new())] {
        let headers = [("Mcp-Session-Id", first.as_str()), ("Accept", "text/event-stream")];
        let headers = if method == "GET" { &headers[..] } else { &headers[..1] };
        assert_eq!(endpoint.ask(method, headers, &body).status, 404, "{method}");
    }
    let pid = i32::try_from(endpoint.child.id()).expect("a pid");
    signal(pid, rustix::process::Signal::TERM);
    eventually("the endpoint ends", || (!crate::support::lives(pid)).then_some(()));
    eventually("both sessions are on record", || {
        let sessions = home.output(&["mcp", "sessions", "--json", "--db", &home.text("audit.db")]);
        let rows: Vec<Value> = sessions.lines().map(|row| serde_json::from_str(row).expect("JSON")).collect();
        (rows.len() == 2 && rows.iter().all(|row| row["ended_at"].is_string())).then_some(())
    });
    assert_eq!(home.calls(&[]).len(), 2);
    assert!(verified(&home, 2));
}

#[test]
fn nobody_gets_in_without_the_secret() {
    let home = Home::new();
    let endpoint = Endpoint::of_keeping_server(&home, &[]);
    let (secret, host) = (endpoint.path.rsplit_once('/').expect("a secret").1, endpoint.host.as_str());
    let begins = json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}).to_string();
    let ask = |path: &str, host: &str, more: &str| {
        let head = "Accept: */*\r\nContent-Type: application/json\r\nConnection: close\r\n";
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\n{head}{more}Content-Length: {}\r\n\r\n{begins}",
            begins.len()
        );
        endpoint.raw(&request).status
    };
    for (path, named, more, status) in [
        ("/mcp", host, "", 401),
        ("/mcp/0123456789abcdef", host, "", 401),
        (&*endpoint.path, "evil.example", "", 403),
        (&*endpoint.path, host, "Origin: http://evil.example\r\n", 403),
        ("/.well-known/oauth-protected-resource", host, "", 404),
    ] {
        assert_eq!(ask(path, named, more), status, "{path} {named} {more}");
    }
    assert_eq!(crate::support::descendants(i32::try_from(endpoint.child.id()).expect("a pid")).len(), 0);
    assert_eq!(ask(&endpoint.path, host, ""), 200, "the control");
    assert_eq!(ask("/mcp", host, &format!("Authorization: Bearer {secret}\r\n")), 200);
}

#[test]
fn a_client_that_lost_its_stream_gets_what_it_missed() {
    let home = Home::new();
    // It answers late, and says something before.
    let server = r#"while IFS= read -r line; do case "$line" in
      *initialize*) printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}';;
      *tools/call*) printf '%s\n' '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}'
        while [ ! -e "$1" ]; do sleep 0.05; done
        printf '%s\n' '{"jsonrpc":"2.0","id":1,"result":{"content":[]}}';;
    esac; done"#;
    let endpoint = Endpoint::start(&home, &[], &["--", "sh", "-c", server, "late", &home.text("go")]);
    let session = endpoint.begin();
    let mut body: Value = serde_json::from_str(&call(1, "read_it")).expect("JSON");
    body["params"]["_meta"] = json!({"progressToken": "p"});
    let mut answer = endpoint.ask("POST", &[("Mcp-Session-Id", &session)], &body.to_string());
    let (id, message) = answer.event();
    assert!(message.contains("notifications/progress"), "{message}");
    drop(answer);
    std::fs::write(home.path("go"), "").expect("written");
    let headers = [
        ("Mcp-Session-Id", session.as_str()),
        ("Accept", "text/event-stream"),
        ("Last-Event-ID", id.as_str()),
    ];
    let mut rest = endpoint.ask("GET", &headers, "");
    let (_, message) = rest.event();
    assert!(message.contains("\"id\":1") && message.contains("result"), "{message}");
    let nonsense =
        [("Mcp-Session-Id", session.as_str()), ("Accept", "text/event-stream"), ("Last-Event-ID", "99-1")];
    assert_eq!(endpoint.ask("GET", &nonsense, "").status, 400);
}

#[test]
fn without_sessions_a_client_that_goes_calls_off_what_it_asked() {
    let home = Home::new();
    let server = r#"while IFS= read -r line; do printf '%s\n' "$line" >> "$1"; case "$line" in
      *'"id":"now"'*) printf '%s\n' '{"jsonrpc":"2.0","id":"now","error":{"code":-32601,"message":"no"}}';;
    esac; done"#;
    let endpoint =
        Endpoint::start(&home, &[], &["--", "sh", "-c", server, "kept", &home.text("received.log")]);
    let body = |id: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "c"}, "io.modelcontextprotocol/clientCapabilities": {}});
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/list", "params": {"_meta": meta}}).to_string()
    };
    let headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/list")];
    let answer = endpoint.ask("POST", &headers, &body("now"));
    assert_eq!((answer.status, answer.header("content-type")), (404, "application/json".to_owned()));
    assert!(answer.body().contains("-32601"));
    assert_eq!(endpoint.ask("POST", &headers[..1], &body("now")).status, 400, "a header is missing");
    let mut stream = TcpStream::connect(&endpoint.host).expect("a connection");
    let (late, host) = (body("late"), &endpoint.host);
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\nContent-Type: application/json\r\n",
        endpoint.path
    );
    let more = "MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\n";
    write!(stream, "{head}{more}Content-Length: {}\r\n\r\n{late}", late.len()).expect("sent");
    let received = || String::from_utf8_lossy(&home.received()).into_owned();
    eventually("the request", || received().contains("\"id\":\"late\"").then_some(()));
    drop(stream);
    eventually("it is called off", || received().contains("\"requestId\":\"late\"").then_some(()));
}

#[test]
fn a_session_that_does_nothing_ends() {
    let home = Home::new();
    // So long that a slow machine begins it before the end, too.
    let endpoint = Endpoint::of_keeping_server(&home, &["--idle-timeout", "20"]);
    let session = endpoint.begin();
    let ask = || {
        endpoint
            .ask(
                "POST",
                &[("Mcp-Session-Id", &session)],
                "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}",
            )
            .status
    };
    assert_eq!(ask(), 202, "the control");
    let pid = i32::try_from(endpoint.child.id()).expect("a pid");
    eventually("its processes are gone", || {
        let below = crate::support::descendants(pid);
        let auditors = home.auditors();
        below.iter().all(|pid| auditors.contains(pid)).then_some(())
    });
    assert_eq!(ask(), 404);
}

/// Whether a stream ends, with nothing but events without data in it.
fn ends(mut answer: Answer) -> bool {
    let mut line = String::new();
    while answer.reading.read_line(&mut line).expect("a line") > 0 && line.trim_end() != "0" {
        assert!(!line.contains("jsonrpc"), "{line}");
        line.clear();
    }
    true
}

#[test]
fn a_session_whose_calls_were_called_off_or_left_alone_ends() {
    let home = Home::new();
    let server = r#"while IFS= read -r line; do printf '%s\n' "$line" >> "$1"; case "$line" in
      *initialize*) printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}';;
      *read_now*) printf '%s\n' '{"jsonrpc":"2.0","id":6,"result":{"content":[]}}';;
    esac; done"#;
    // So long that a slow machine does what comes before the end, too.
    let options = ["--idle-timeout", "20"];
    let endpoint =
        Endpoint::start(&home, &options, &["--", "sh", "-c", server, "kept", &home.text("received.log")]);
    let received = |what: &str| {
        eventually(what, || String::from_utf8_lossy(&home.received()).contains(what).then_some(()));
    };
    let first = endpoint.begin();
    let call =
        |session: &str, id: u32, tool| endpoint.ask("POST", &[("Mcp-Session-Id", session)], &call(id, tool));
    let called_off = call(&first, 5, "read_never");
    received("read_never");
    let note = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}});
    let headers = [("Mcp-Session-Id", first.as_str())];
    assert_eq!(endpoint.ask("POST", &headers, &note.to_string()).status, 202);
    received("cancelled");
    assert!(ends(called_off));
    assert!(call(&first, 6, "read_now").event().1.contains("result"), "the control");
    assert_eq!(call(&first, 5, "read_now").status, 400, "its answer may still come");
    let second = endpoint.begin();
    let left_alone = call(&second, 5, "read_never_either");
    received("read_never_either");
    drop(left_alone);
    let pid = i32::try_from(endpoint.child.id()).expect("a pid");
    eventually("its processes are gone", || {
        let auditors = home.auditors();
        crate::support::descendants(pid).iter().all(|pid| auditors.contains(pid)).then_some(())
    });
    for session in [&first, &second] {
        assert_eq!(call(session, 7, "read_now").status, 404);
    }
}

#[test]
fn a_session_whose_server_reads_no_more_ends() {
    let home = Home::new();
    let server = r#"IFS= read -r line; printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18"}}'
      exec sleep 600"#;
    let endpoint = Endpoint::start(&home, &[], &["--", "sh", "-c", server]);
    let session = endpoint.begin();
    let headers = [("Mcp-Session-Id", session.as_str())];
    let mut waits = Vec::new();
    for id in 1..=2 {
        let mut body: Value = serde_json::from_str(&call(id, "read_it")).expect("JSON");
        body["params"]["arguments"]["a"] = json!("x".repeat(200_000));
        waits.push(endpoint.ask("POST", &headers, &body.to_string()));
    }
    assert_eq!(endpoint.ask("DELETE", &headers, "").status, 200);
    let pid = i32::try_from(endpoint.child.id()).expect("a pid");
    eventually("its processes are gone", || {
        let auditors = home.auditors();
        crate::support::descendants(pid).iter().all(|pid| auditors.contains(pid)).then_some(())
    });
    for (id, mut answer) in (1..).zip(waits) {
        let (_, message) = answer.event();
        assert!(message.contains(&format!("\"id\":{id}")) && message.contains("error"), "{message}");
    }
}

#[test]
fn an_answer_that_comes_late_is_not_that_of_the_next_client_with_its_id() {
    let home = Home::new();
    let server = r#"while IFS= read -r line; do printf '%s\n' "$line" >> "$1"; case "$line" in
      *notifications/cancelled*) sleep 2; printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"of":"the first"}}';;
      *'"of":"the second"'*) printf '%s\n' '{"jsonrpc":"2.0","id":0,"result":{"of":"the second"}}';;
    esac; done"#;
    let endpoint =
        Endpoint::start(&home, &[], &["--", "sh", "-c", server, "late", &home.text("received.log")]);
    let ask = |of: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "c"}, "io.modelcontextprotocol/clientCapabilities": {}});
        let body = json!({"jsonrpc": "2.0", "id": 0, "method": "resources/list", "params": {"of": of, "_meta": meta}}).to_string();
        let mut stream = TcpStream::connect(&endpoint.host).expect("a connection");
        let head = format!("POST {} HTTP/1.1\r\nHost: {}\r\nAccept: */*\r\n", endpoint.path, endpoint.host);
        let more = "Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: resources/list\r\n";
        write!(stream, "{head}{more}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len())
            .expect("sent");
        stream
    };
    let received = |what: &str| {
        eventually(what, || String::from_utf8_lossy(&home.received()).contains(what).then_some(()));
    };
    let first = ask("the first");
    received("the first");
    drop(first);
    received("\"requestId\":0");
    let mut answer = String::new();
    ask("the second").read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("200 OK") && answer.contains("the second"), "{answer}");
    assert!(!answer.contains("the first"), "{answer}");
}

#[test]
fn an_address_that_others_reach_is_refused_and_a_port_keeps_its_secret() {
    let home = Home::new();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let ran = home.interceptor(&["--listen", address, "--", "cat"]).output().expect("ringfence");
        let said = String::from_utf8_lossy(&ran.stderr).into_owned() + &String::from_utf8_lossy(&ran.stdout);
        assert!(!ran.status.success() && said.contains("127.0.0.1"), "{address}: {said}");
    }
    let port = free_port();
    let address = format!("127.0.0.1:{port}");
    let path = || {
        let mut child = home
            .interceptor(&["--listen", &address, "--", "cat"])
            .stdout(Stdio::piped())
            .stdin(Stdio::null())
            .spawn()
            .expect("ringfence");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("its address");
        let _ = child.kill();
        let _ = child.wait();
        line
    };
    let first = path();
    assert!(first.contains(&address), "{first}");
    assert_eq!(path(), first);
    use std::os::unix::fs::PermissionsExt as _;
    let file = home.path(&format!("listen-{port}.secret"));
    assert_eq!(std::fs::metadata(file).expect("the secret").permissions().mode() & 0o777, 0o600);
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn whoever_decides_for_an_http_client_is_on_record_as_one_who_may_be_it() {
    let home = Home::new();
    let endpoint = Endpoint::of_keeping_server(&home, &[]);
    std::fs::write(home.path("rules.yaml"), "rules: [{name: ask, tool_pattern: 'write_*', action: pause}]\n")
        .expect("written");
    let session = endpoint.begin();
    let mut held = None;
    // The endpoint's own rules are read by each session as it begins.
    std::thread::scope(|scope| {
        let (endpoint, session) = (&endpoint, &session);
        let calls = scope.spawn(move || {
            endpoint.ask("POST", &[("Mcp-Session-Id", session)], &call(7, "write_it")).event().1
        });
        let id = crate::approvals::waiting(&home);
        assert_eq!(crate::approvals::decide(&home, "approve", &id), Ok(format!("approved {id}\n")));
        held = Some(calls.join().expect("an answer"));
    });
    assert!(held.expect("an answer").contains("\"id\":7"));
    let calls = eventually("the decision is on record", || {
        home.calls(&[]).into_iter().find(|call| call["decided_by"].is_string())
    });
    assert!(calls["decided_by"].as_str().expect("text").ends_with("who may be the client"), "{calls}");
}
