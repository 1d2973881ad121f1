//! HTTP/1: the host of every request.

use crate::{
    servers::{Http, Server, answer},
    support::{Core, is_refused, local, rest_of, say},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord};
use std::{
    io::{Read, Write},
    net::Shutdown,
};

fn served() -> (Http, Core) {
    let http = Http::new();
    let granted = [format!("localhost:{}", http.port()), format!("other.example:{}", http.port())];
    let core = Core::start(local(&[&granted[0], &granted[1]]));
    (http, core)
}

fn get(host: &str, port: u16, target: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n")
}

#[test]
fn each_request_of_a_connection_is_for_its_host() {
    let (http, core) = served();
    let port = http.port();
    let stream = core.open("localhost", port);
    for target in ["/1", "/2", "/3"] {
        say(&stream, get("localhost", port, target).as_bytes());
        assert_eq!(answer(&stream).1, target);
    }
    say(&stream, b"POST /4 HTTP/1.1\r\nHost: LOCALHOST:");
    say(&stream, format!("{port}\r\nContent-Length: 5\r\n\r\nhello").as_bytes());
    assert_eq!(answer(&stream).1, "/4", "in pieces, with a body");
    // One that is right and one that is not, together.
    let both = [get("localhost", port, "/5"), get("other.example", port, "/6")].concat();
    say(&stream, both.as_bytes());
    let _ = rest_of(&stream);
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::OtherName));
    assert!(
        matches!(&record, EgressRecord::Connection { tls: false, sent, .. } if *sent > 100),
        "{record:?}"
    );
    let heads = http.heads();
    assert!(heads.iter().all(|head| head.to_ascii_lowercase().contains("host: localhost")), "{heads:?}");
    assert!(heads.len() >= 4);
}

#[test]
fn a_first_request_for_another_host_has_an_answer_that_says_why() {
    let (http, core) = served();
    let port = http.port();
    let stream = core.open("localhost", port);
    say(&stream, get("other.example", port, "/").as_bytes());
    let (head, body) = answer(&stream);
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
    assert!(head.contains("x-ringfence-error: other-name\r\n"), "{head}");
    assert!(
        body.contains("localhost") && body.contains("other.example") && body.contains("tested"),
        "{body}"
    );
    assert!(is_refused(&stream), "nothing after it");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::OtherName));
    for wrong in [
        "GET / HTTP/1.1\r\n\r\n".to_owned(),
        format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nHost: other.example\r\n\r\n"),
        format!("GET http://other.example/ HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"),
        "CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n".to_owned(),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let stream = core.open("localhost", port);
        say(&stream, wrong.as_bytes());
        assert!(answer(&stream).0.starts_with("HTTP/1.1 403"), "{wrong}");
    }
    assert_eq!(http.server.connections(), 0);
    let stream = core.open("localhost", port);
    say(&stream, get("localhost", port, "/control").as_bytes());
    assert_eq!(answer(&stream).1, "/control");
}

#[test]
fn what_is_not_granted_has_an_answer_that_says_what_would_allow_it() {
    let (http, core) = served();
    let stream = core.open("localhost", http.port() ^ 1);
    say(&stream, get("localhost", http.port() ^ 1, "/").as_bytes());
    let (head, body) = answer(&stream);
    assert!(head.contains("x-ringfence-error: not-granted"), "{head}");
    assert!(body.contains(&format!("\"localhost:{}\"", http.port() ^ 1)), "{body}");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NotGranted));
}

#[test]
fn a_websocket_goes_both_ways_once_its_server_switches() {
    let socket = Server::new(|mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream
            .write_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nfirst",
            )
            .unwrap();
        let mut read = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut read, &mut stream);
    });
    let port = socket.port;
    let rule = format!("localhost:{port}");
    let core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", port);
    let upgrade = format!(
        "GET / HTTP/1.1\r\nHost: localhost:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    );
    // What follows waits for the server's word, and is no request.
    say(&stream, &[upgrade.as_bytes(), &[0x82, 0x03, 1, 2, 3]].concat());
    assert!(answer(&stream).0.starts_with("HTTP/1.1 101"));
    let mut said = [0; 10];
    (&stream).read_exact(&mut said).unwrap();
    assert_eq!(&said, b"first\x82\x03\x01\x02\x03");
    let noise: Vec<u8> = (0..300_000_u32).map(|at| at.to_le_bytes()[at as usize % 3]).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            say(&stream, &noise);
            stream.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(rest_of(&stream), noise);
    });
    core.recorded(EgressOutcome::Passed, None);
}

#[test]
fn a_body_waits_for_the_server_where_it_was_asked_for() {
    let http = Server::new(|mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
        let mut body = [0; 5];
        stream.read_exact(&mut body).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n").unwrap();
        stream.write_all(&body).unwrap();
    });
    let port = http.port;
    let rule = format!("localhost:{port}");
    let core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", port);
    let head = format!(
        "POST / HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    );
    say(&stream, head.as_bytes());
    assert!(answer(&stream).0.starts_with("HTTP/1.1 100"));
    say(&stream, b"hello");
    assert_eq!(answer(&stream).1, "hello");
}

#[test]
fn a_large_body_goes_through_as_it_is() {
    let length = 5_000_000;
    let http = Server::new(move |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).unwrap();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(&body).unwrap();
    });
    let port = http.port;
    let rule = format!("localhost:{port}");
    let core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", port);
    let body: Vec<u8> =
        (0..u32::try_from(length).unwrap()).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let head = format!(
        "PUT / HTTP/1.1\r\nHost: localhost:{port}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    std::thread::scope(|scope| {
        scope.spawn(|| say(&stream, &[head.as_bytes(), &body].concat()));
        let back = rest_of(&stream);
        let start = back.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
        assert!(back[start..] == body[..], "{} bytes came back", back.len() - start);
    });
}
