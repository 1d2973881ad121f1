//! What becomes of requests and answers.

use crate::{
    site::Site,
    support::{HOST, KEY, Proxy, Rules},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_test_support::wait::wait_until;
use ringfence_wire::{
    credentials::{CredentialPlace, FromCredentials, Otherwise, ToCredentials},
    egress::EgressCause,
};
use std::io::{Read, Write};

fn echo() -> Site {
    Site::answering(HOST, |asked| {
        format!("{} {} {:?}", asked.method, asked.target, String::from_utf8_lossy(&asked.body))
    })
}

#[test]
fn a_request_has_the_credential_where_a_rule_says_so_and_the_client_never() {
    let site = echo();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let (said, status) =
        proxy.curl("/with/a?b=c", &["-H", "Authorization: Bearer client-own", "--data", "hello"]);
    assert_eq!((said.as_str(), status), ("POST /with/a?b=c \"hello\"", 0));
    let asked = site.asked();
    assert_eq!(asked[0].header("authorization"), Some(format!("Bearer {KEY}").as_str()));
    assert_eq!(asked[0].headers.iter().filter(|(name, _)| name == "authorization").count(), 1);
    assert_eq!(asked[0].header("host"), Some(format!("{HOST}:{}", proxy.port).as_str()));

    let (said, _) = proxy.curl("/without", &["-i"]);
    assert!(said.starts_with("HTTP/1.1 403 ") && said.contains("x-ringfence-error: no-rule"), "{said}");
    assert!(
        said.contains("no rule of `allow` in [net.credentials.\"a.example\"] has GET /without"),
        "{said}"
    );
    let (said, _) = proxy.curl("/with/%2e%2e/without", &["--path-as-is"]);
    assert!(said.contains("cannot be judged"), "{said}");
    let (said, _) = proxy.curl("/with/a", &["-X", "TRACE"]);
    assert!(said.contains("TRACE is never let through"), "{said}");
    let (said, _) = proxy.curl("/with/a", &["-H", "Host: other.example"]);
    assert!(said.contains("for another host"), "{said}");
    assert_eq!(site.asked().len(), 1, "none of them reached the server");
    proxy.refused(EgressCause::NoRule);
    proxy.refused(EgressCause::OtherName);
}

#[test]
fn other_requests_pass_without_any_credential_where_the_profile_says_so() {
    let site = echo();
    let rules = Rules {
        otherwise: Otherwise::Pass,
        place: CredentialPlace::basic("me").unwrap(),
        ..Rules::default()
    };
    let proxy = Proxy::start(&rules, site.port, &site.root);
    let (said, _) = proxy.curl("/without", &["-H", "Authorization: Bearer client-own"]);
    assert_eq!(said, "GET /without \"\"");
    assert_eq!(site.asked()[0].header("authorization"), None);
    proxy.curl("/with/a", &[]);
    let basic = format!("Basic {}", STANDARD.encode(format!("me:{KEY}")));
    assert_eq!(site.asked()[1].header("authorization"), Some(basic.as_str()));
}

#[test]
fn several_requests_go_over_one_connection_and_rules_hold_for_each() {
    let site = echo();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let second = format!("https://{HOST}:{}/with/2", proxy.port);
    let third = format!("https://{HOST}:{}/no", proxy.port);
    let (said, _) = proxy.curl("/with/1", &[&second, &third]);
    assert!(
        said.contains("GET /with/2") && said.contains("GET /with/1") && said.contains("no rule of"),
        "{said}"
    );
    proxy.refused(EgressCause::NoRule);
    let over = proxy.over();
    assert_eq!(over.len(), 1, "{over:?}");
    assert!(over[0].id > 0 && over[0].sent > 100 && over[0].received > 100, "{over:?}");
    // Rules that changed hold for the next request.
    proxy.order(&ToCredentials::Rules {
        id: 1,
        hosts: vec![Rules { allow: vec!["GET /no"], ..Rules::default() }.at(proxy.port)],
    });
    let in_force = |id| {
        wait_until("the rules", || proxy.heard.lock().unwrap().contains(&FromCredentials::InForce { id }));
    };
    in_force(1);
    assert_eq!(proxy.curl("/no", &[]).0, "GET /no \"\"");
    assert!(proxy.curl("/with/1", &[]).0.contains("no rule of"));
    proxy.order(&ToCredentials::Rules { id: 2, hosts: Vec::new() });
    in_force(2);
    assert_ne!(proxy.curl("/no", &[]).1, 0);
    assert!(proxy.refused(EgressCause::NoCredential).contains("start it again"));
}

#[test]
fn the_credential_does_not_come_back() {
    let site = Site::new(HOST, |asked, stream| {
        let own = asked.header("authorization").unwrap_or_default().to_owned();
        let key = own.trim_start_matches("Bearer ");
        let body = match asked.target.as_str() {
            "/with/basic" => STANDARD.encode(format!("user:{key}")),
            "/with/json" => format!("{{\"token\":\"{key}\",\"escaped\":\"{}\"}}", key.replace('/', "\\/")),
            _ => format!("you sent {own}, {key}{key}"),
        };
        let encoding = if asked.target == "/with/gzip" { "Content-Encoding: gzip\r\n" } else { "" };
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nX-Echo: {own}\r\nLocation: /?t={key}\r\n{encoding}Transfer-Encoding: chunked\r\nTrailer: X-Late\r\n\r\n"
        )?;
        // In the smallest pieces there are.
        for byte in body.as_bytes() {
            stream.write_all(b"1\r\n")?;
            stream.write_all(&[*byte])?;
            stream.write_all(b"\r\n")?;
            stream.flush()?;
        }
        write!(stream, "0\r\nX-Late: {key}\r\n\r\n")?;
        stream.flush().map(|()| true)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    for (target, kept) in
        [("/with/plain", "you sent Bearer "), ("/with/basic", "dXNlc"), ("/with/json", "\"token\":\"")]
    {
        let (said, status) = proxy.curl(target, &["-i"]);
        assert_eq!(status, 0, "{said}");
        assert!(said.contains(kept) && said.contains("***********"), "{said}");
        for part in [&KEY[4..], &STANDARD.encode(format!("user:{KEY}"))[10..26], "0123456789"] {
            assert!(!said.contains(part), "{target}: {part} in {said}");
        }
    }
    assert_eq!(site.asked()[0].header("accept-encoding"), Some("identity"));
    let (said, _) = proxy.curl("/with/gzip", &["-i"]);
    assert!(said.starts_with("HTTP/1.1 502 ") && said.contains("encoded its answer"), "{said}");
    proxy.refused(EgressCause::Reflects);
}

#[test]
fn bodies_stream_both_ways_and_long_ones_are_whole() {
    let site = Site::new(HOST, |asked, stream| {
        if asked.method == "PUT" {
            let sum: u64 = asked.body.iter().map(|byte| u64::from(*byte)).sum();
            let body = format!("{} {sum}", asked.body.len());
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        } else {
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 20 << 20)?;
            let chunk: Vec<u8> = (0..=255).cycle().take(64 << 10).collect();
            for _ in 0..320 {
                stream.write_all(&chunk)?;
            }
        }
        stream.flush().map(|()| true)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let big = proxy.dir().join("big");
    let bytes: Vec<u8> = (0..5 << 20).map(|at: u32| u8::try_from(at % 251).unwrap()).collect();
    std::fs::write(&big, &bytes).unwrap();
    let sum: u64 = bytes.iter().map(|byte| u64::from(*byte)).sum();
    for extra in ["X-A: 1", "Transfer-Encoding: chunked", "Expect: 100-continue"] {
        let (said, status) = proxy.curl("/with/up", &["-T", big.to_str().unwrap(), "-H", extra]);
        assert_eq!((said.as_str(), status), (format!("{} {sum}", bytes.len()).as_str(), 0), "{extra}");
    }
    let down = proxy.dir().join("down");
    let (said, status) = proxy.curl("/with/down", &["-o", down.to_str().unwrap()]);
    assert_eq!(status, 0, "{said}");
    let got = std::fs::read(&down).unwrap();
    assert!(got.len() == 20 << 20 && got.iter().enumerate().all(|(at, byte)| usize::from(*byte) == at % 256));
    let (said, _) = proxy.curl("/with/down", &["-I"]);
    assert!(
        said.contains(&format!("content-length: {}", 20 << 20)),
        "a head says how long it would be: {said}"
    );
}

/// A server that says the credential first, and then what it hears, in messages of a word.
fn chat() -> Site {
    Site::new(HOST, |asked, stream| {
        assert_eq!(
            (asked.header("upgrade"), asked.header("sec-websocket-extensions")),
            (Some("websocket"), None)
        );
        let key = asked.header("authorization").unwrap().to_owned();
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Echo: {key}\r\n\r\n"
        )?;
        let (mut message, mut word) = (key.into_bytes(), [0; 4]);
        loop {
            stream.write_all(&[0x81, u8::try_from(message.len()).unwrap()])?;
            stream.write_all(&message)?;
            stream.flush()?;
            if stream.read_exact(&mut word).is_err() {
                return Ok(false);
            }
            message = word.to_vec();
        }
    })
}

#[test]
fn a_websocket_passes_and_its_bytes_are_searched() {
    let site = chat();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut stream = crate::clients::trusting(&proxy);
    ask_for_websocket(&mut stream, &proxy);
    let said = until_first_message(&mut stream);
    for word in [b"ping", b"ghp/"] {
        stream.write_all(word).unwrap();
        let mut back = [0; 6];
        // Whatever it could be the beginning of: a message goes out with its end.
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back[2..], word);
    }
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.starts_with("HTTP/1.1 101 ") && said.contains("upgrade: websocket"), "{said}");
}

#[test]
fn a_websocket_ends_when_no_rule_allows_it_any_more() {
    let site = chat();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut stream = crate::clients::trusting(&proxy);
    ask_for_websocket(&mut stream, &proxy);
    until_first_message(&mut stream);
    let rules = |id, allow| {
        let hosts = vec![Rules { allow: vec![allow], ..Rules::default() }.at(proxy.port)];
        proxy.order(&ToCredentials::Rules { id, hosts });
        wait_until("the rules", || proxy.heard.lock().unwrap().contains(&FromCredentials::InForce { id }));
    };
    rules(1, "GET /with/ws");
    stream.write_all(b"ping").unwrap();
    let mut back = [0; 6];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back[2..], b"ping", "one that is still allowed goes on");
    rules(2, "GET /with/other");
    assert!(!matches!(stream.read(&mut back), Ok(1..)), "it ends");
    assert!(proxy.refused(EgressCause::Revoked).contains("WebSocket"));
}

fn ask_for_websocket(stream: &mut impl Write, proxy: &Proxy) {
    write!(
        stream,
        "GET /with/ws HTTP/1.1\r\nHost: {HOST}:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        proxy.port
    )
    .unwrap();
}

/// What comes until the server's first message, which has the credential in it.
fn until_first_message(stream: &mut impl Read) -> Vec<u8> {
    let (mut said, mut byte) = (Vec::new(), [0]);
    let masked = format!("Bearer {}", "*".repeat(KEY.len()));
    let length = u8::try_from(masked.len()).unwrap();
    let end = [b"\r\n\r\n\x81", &[length][..], masked.as_bytes()].concat();
    while !said.ends_with(&end) {
        stream.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
        assert!(said.len() < 1000, "{}", String::from_utf8_lossy(&said));
    }
    said
}
