//! Others who are slow, silent or many, and the one who is not held up by them.
//!
//! What is asserted is who is served, not how fast: where time counts, what the test allows is a fraction of what the
//! others' stalls add up to if anybody waits for them.

use crate::{
    auditor_support::PATIENCE,
    support::{Home, Session, eventually},
};
use ringfence_wire::{
    conn::Conn,
    mcp::{McpReply, McpRequest},
};
use serde_json::json;
use std::{
    fs::File,
    io::{Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Connections that send much, read nothing, and have no token.
fn mute(home: &Home, count: usize) -> Vec<TcpStream> {
    let request = format!("GET /app.js HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n", home.port).repeat(2000);
    let open = || {
        let mut stream = home.connect();
        stream.set_nonblocking(true).expect("a flag");
        // As much as fits; what is asked for is far more than fits the way back.
        let _ = stream.write(request.as_bytes());
        stream
    };
    (0..count).map(|_| open()).collect()
}

/// For how long a connection may rest, whoever's it is: `LIMITS` of the dashboard.
const REST: Duration = Duration::from_secs(10);

/// A connection that has shown the token.
struct Known<'a> {
    home: &'a Home,
    stream: TcpStream,
    /// When it last asked.
    asked: Instant,
}

impl<'a> Known<'a> {
    fn new(home: &'a Home) -> Self {
        Self { home, stream: home.connect(), asked: Instant::now() }
    }

    /// Asks something, and has an answer: who has shown the token is not the one to go. It may have been closed for its
    /// rest alone, which a slow machine makes long enough; then it comes again.
    fn ask(&mut self) {
        let asked = Instant::now();
        let head = match self.answer() {
            Err(error) if self.asked.elapsed() > REST => {
                eprintln!("# rested for too long ({error}): connects again");
                self.stream = self.home.connect();
                self.answer().expect("an answer on a new connection")
            }
            head => head.expect("who has shown the token is not the one to go"),
        };
        assert!(head.starts_with("http/1.1 200"), "{head}");
        self.asked = asked;
    }

    /// Sends a question and reads its answer, of which the head is given.
    fn answer(&mut self) -> std::io::Result<String> {
        let (port, token) = (self.home.port, &self.home.token);
        let ask = format!(
            "GET /api/stats HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        self.stream.write_all(ask.as_bytes())?;
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            self.stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).expect("text").to_ascii_lowercase();
        let length = head.split_once("content-length: ").and_then(|(_, rest)| rest.lines().next());
        let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
        self.stream.read_exact(&mut body)?;
        Ok(head)
    }
}

#[test]
fn strangers_who_read_nothing_keep_nobody_from_the_dashboard() {
    let home = Home::new();
    // Somebody who was there before, and shows the token.
    let mut before = Known::new(&home);
    before.ask();
    let mut held = Vec::new();
    for _ in 0..40 {
        held.extend(mute(&home, 10));
        before.ask();
    }
    for round in 0..5 {
        // A connection that is refused or never answered is an error here.
        assert_eq!(home.ask("GET", "/api/stats", None).status, 200, "round {round}");
        before.ask();
    }
    // They are ended, though they never read: their connections are reset or at their end.
    eventually("all strangers are gone", || held.iter().all(is_over).then_some(()));
}

/// Whether the other side closed it; what came before is read.
fn is_over(mut stream: &TcpStream) -> bool {
    let mut piece = vec![0; 1 << 20];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

/// The socket about MCP sessions of whoever serves.
fn socket(home: &Home) -> PathBuf {
    if crate::DAEMON {
        return home.runtime().join("mcp.sock");
    }
    let found = std::fs::read_dir(home.path("ringfence")).expect("a folder").flatten();
    found
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "sock"))
        .expect("a socket")
}

/// A link to whoever serves, as an interceptor has it, of a session with this journal.
pub(crate) fn link(socket: &Path, session: &str, journal: &Path) -> Conn {
    let mut conn = Conn::connect(socket, PATIENCE).expect("connects");
    let file = File::open(journal).expect("the journal");
    let request =
        McpRequest::Session { session: session.into(), journal: journal.display().to_string(), http: false };
    conn.send_with_descriptors(&request, &[file.as_fd()]).expect("sent");
    let welcome = conn.receive::<McpReply>().expect("an answer");
    assert!(matches!(welcome, McpReply::Welcome { .. }), "{welcome:?}");
    conn
}

/// Links of sessions that never read what they are sent.
fn unread(home: &Home, count: usize) -> Vec<Conn> {
    let journal = home.path("unread.journal");
    File::create(&journal).expect("a file");
    (0..count).map(|_| link(&socket(home), &uuid(), &journal)).collect()
}

fn uuid() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/uuid").expect("a number").trim().to_owned()
}

/// Adds a long rule by the dashboard, which goes to every session.
fn add_rule(home: &Home, number: usize) {
    let rule = json!({
        "name": format!("long-{number}"), "action": "flag", "tool_pattern": format!("nothing-{number}"),
        "description": "x".repeat(990),
    });
    let answer = home.ask("POST", "/api/rules", Some(&rule.to_string()));
    assert!([200, 201].contains(&answer.status), "{answer:?}");
}

/// Asks for a call that has to be approved, approves it, and waits until it was run; the call.
pub(crate) fn approved(home: &Home, session: &mut Session) -> String {
    let request = session.call("delete_thing", "{}");
    let call = home.waiting();
    let answer = home.ask("POST", &format!("/api/tool-calls/{call}/approve"), Some("{}"));
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(session.line().contains(&format!(r#""id":{request},"result""#)));
    call
}

#[test]
fn links_that_are_not_read_hold_up_neither_rules_nor_approvals() {
    let home = Home::new();
    let mut session = home.session("files", &[]);
    approved(&home, &mut session);
    let links = unread(&home, 60);
    let begin = Instant::now();
    for number in 0..40 {
        // Together far more than a socket takes.
        add_rule(&home, number);
    }
    approved(&home, &mut session);
    let took = begin.elapsed();
    // A wait of five seconds for each of them, once, would be five minutes.
    assert!(took < Duration::from_secs(100), "{took:?}");
    eprintln!("40 rules to 60 links that are not read, and an approval: {took:?}");
    drop(links);
    session.end();
}
