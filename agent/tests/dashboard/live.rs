//! The dashboard's WebSocket: who may listen, and what is heard.

use crate::{
    auditor_support::PATIENCE,
    support::{Home, eventually},
};
use serde_json::Value;
use std::{
    io::{Read, Write},
    net::TcpStream,
    thread,
    time::Instant,
};

/// Asks for a WebSocket; the head of the answer, and the stream behind it.
fn upgrade(home: &Home, headers: &[(&str, &str)]) -> (String, TcpStream) {
    let mut stream = home.connect();
    let mut request =
        "GET /ws/live HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            .to_owned();
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).expect("a head") == 1 {
        head.push(byte[0]);
    }
    (String::from_utf8(head).expect("text"), stream)
}

fn listen(home: &Home) -> TcpStream {
    let host = format!("127.0.0.1:{}", home.port);
    let offered = format!("ringfence.live, ringfence.token.{}", home.token);
    let origin = format!("http://{host}");
    let headers =
        [("Host", host.as_str()), ("Origin", origin.as_str()), ("Sec-WebSocket-Protocol", offered.as_str())];
    let (head, stream) = upgrade(home, &headers);
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.to_ascii_lowercase().contains("sec-websocket-protocol: ringfence.live\r\n"), "{head}");
    assert!(!head.contains(&home.token), "the token comes back: {head}");
    stream
}

/// The next text message, within [`PATIENCE`]. Frames of a server are not masked.
fn hear(stream: &mut TcpStream) -> Value {
    let until = Instant::now() + PATIENCE;
    loop {
        // Pings come for ever, and each would begin the stream's own patience anew.
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "nothing but pings in {PATIENCE:?}");
        stream.set_read_timeout(Some(left)).expect("a timeout");
        let mut head = [0; 2];
        stream.read_exact(&mut head).expect("a frame");
        let length = match head[1] & 0x7f {
            126 => {
                let mut long = [0; 2];
                stream.read_exact(&mut long).expect("a length");
                usize::from(u16::from_be_bytes(long))
            }
            127 => panic!("a message of more than 64 KiB"),
            short => usize::from(short),
        };
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("a body");
        if head[0] & 0x0f == 9 {
            // An empty pong, masked with zeros.
            stream.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).expect("sent");
        }
        if head[0] & 0x0f == 1 {
            return serde_json::from_slice(&body).expect("JSON");
        }
    }
}

/// A page, and all that it has heard: news of different things come in any order, each once.
struct Page {
    stream: TcpStream,
    heard: Vec<Value>,
}

impl Page {
    fn hear(&mut self) -> &Value {
        self.heard.push(hear(&mut self.stream));
        &self.heard[self.heard.len() - 1]
    }

    /// What was heard, or is heard next, of that kind.
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        for at in 0..100 {
            if at == self.heard.len() {
                self.hear();
            }
            if wanted(&self.heard[at]) {
                return self.heard[at].clone();
            }
        }
        panic!("not within 100 messages: {what}: {:?}", self.heard);
    }
}

#[test]
fn calls_decisions_and_sessions_are_heard() {
    let home = Home::new();
    let mut page = Page { stream: listen(&home), heard: Vec::new() };
    assert_eq!(page.hear()["type"], "waiting", "what waits comes first");
    let mut session = home.session("files", &[]);
    page.until("the session", |m| m["type"] == "session" && m["session"]["server_name"] == "files");
    session.call("delete_thing", r#"{"key":7}"#);
    let heard = page.until("the call", |m| m["type"] == "call");
    assert_eq!(
        (heard["call"]["tool_name"].as_str(), heard["call"]["policy_action"].as_str()),
        (Some("delete_thing"), Some("pause"))
    );
    let heard = page.until("it waits", |m| m["type"] == "waiting" && m["calls"][0]["id"].is_string());
    let call = heard["calls"][0]["id"].as_str().expect("an id");
    assert_eq!(home.ask("POST", &format!("/api/tool-calls/{call}/approve"), Some("{}")).status, 200);
    page.until("approved and answered", |m| {
        m["type"] == "call" && m["call"]["decision"] == "approved" && !m["call"]["responded_at"].is_null()
    });
    session.end();
    page.until("the end", |m| m["type"] == "session" && !m["session"]["ended_at"].is_null());
}

#[test]
fn a_flood_is_behind_and_then_news_come_again() {
    let home = Home::new();
    let mut page = listen(&home);
    let mut session = home.session("files", &[]);
    let reading = thread::spawn(move || {
        let (mut behind, mut calls) = (0, 0);
        loop {
            let message = hear(&mut page);
            behind += usize::from(message["type"] == "behind");
            calls += usize::from(message["type"] == "call");
            if message["call"]["tool_name"] == "read_last" {
                return (behind, calls);
            }
        }
    });
    for n in 0..2000 {
        session.call("read_thing", "{}");
        if n % 50 == 49 {
            (0..50).for_each(|_| drop(session.line()));
        }
    }
    eventually("all calls are stored", || (home.json("/api/stats")["total_calls"] == 2000).then_some(()));
    // One that comes on the heels of the flood may be part of what is `behind`.
    eventually("news come again", || {
        session.call("read_last", "{}");
        session.line();
        reading.is_finished().then_some(())
    });
    let (behind, calls) = reading.join().expect("news after the flood");
    assert!(behind > 0 || calls >= 2000, "{calls} calls came, and nothing said that some did not");
}

#[test]
fn other_sites_and_strangers_do_not_listen() {
    let home = Home::new();
    let host = format!("127.0.0.1:{}", home.port);
    let right = format!("ringfence.live, ringfence.token.{}", home.token);
    let status = |headers: &[(&str, &str)]| {
        let mut all = vec![("Host", host.as_str())];
        all.extend_from_slice(headers);
        upgrade(&home, &all).0.split(' ').nth(1).unwrap_or_default().to_owned()
    };
    assert_eq!(status(&[("Sec-WebSocket-Protocol", &right)]), "101", "the control");
    let bearer = format!("Bearer {}", home.token);
    assert_eq!(status(&[("Authorization", &bearer)]), "101", "a program may say it in a header");
    for origin in ["null", "http://evil.example", "https://127.0.0.1"] {
        assert_eq!(status(&[("Sec-WebSocket-Protocol", &right), ("Origin", origin)]), "403", "{origin}");
    }
    for protocols in
        ["ringfence.live", "ringfence.live, ringfence.token.", "ringfence.live, ringfence.token.wrong"]
    {
        assert_eq!(status(&[("Sec-WebSocket-Protocol", protocols)]), "401", "{protocols}");
    }
    assert_eq!(status(&[]), "401");
    let (head, _) = upgrade(&home, &[("Host", "evil.example"), ("Sec-WebSocket-Protocol", &right)]);
    assert!(head.starts_with("HTTP/1.1 403"), "{head}");
    let plain = home.ask("GET", "/ws/live", None);
    assert!((400..500).contains(&plain.status), "{plain:?}");
    assert!(!plain.error().is_empty());
}

#[test]
fn pages_are_counted_and_a_talkative_one_is_dropped() {
    let home = Home::new();
    let pages: Vec<_> = (0..128).map(|_| listen(&home)).collect();
    let host = format!("127.0.0.1:{}", home.port);
    let offered = format!("ringfence.live, ringfence.token.{}", home.token);
    let headers = [("Host", host.as_str()), ("Sec-WebSocket-Protocol", offered.as_str())];
    assert!(upgrade(&home, &headers).0.starts_with("HTTP/1.1 503"), "one too many");
    drop(pages);
    let mut page = eventually("there is room again", || {
        let (head, stream) = upgrade(&home, &headers);
        head.starts_with("HTTP/1.1 101").then_some(stream)
    });
    // A masked text frame of 64 KiB, which no page sends.
    let mut frame = vec![0x81, 0xff];
    frame.extend_from_slice(&(64_u64 << 10).to_be_bytes());
    frame.extend_from_slice(&[0; 4 + (64 << 10)]);
    let _ = page.write_all(&frame);
    let mut rest = Vec::new();
    let _ = page.read_to_end(&mut rest);
    assert!(rest.len() < 4096, "it was dropped");
    assert_eq!(home.ask("GET", "/api/stats", None).status, 200);
}
