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

#[test]
fn what_is_empty_or_comes_in_chunks_is_said_to_the_server() {
    let site = echo();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    proxy.curl("/with/star", &["-X", "PUT"]);
    proxy.curl("/with/none", &["-X", "POST", "-H", "Content-Length: 0"]);
    proxy.curl("/with/plain", &[]);
    let (said, _) = proxy.curl(
        "/with/search",
        &["-X", "GET", "-H", "Transfer-Encoding: chunked", "--data-binary", "{\"query\":1}"],
    );
    assert!(said.contains("query"), "the body of a GET goes on: {said}");
    let asked = site.asked();
    let lengths: Vec<_> = asked.iter().map(|asked| asked.header("content-length")).collect();
    assert_eq!(lengths, [Some("0"), Some("0"), None, None]);
    assert_eq!(asked[3].body, b"{\"query\":1}");
}

#[test]
fn a_session_does_not_come_of_the_credential() {
    let site = Site::new(HOST, |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nSet-Cookie: session=1\r\nContent-Length: 2\r\n\r\nok")?;
        stream.flush().map(|()| true)
    });
    let asks = |rules: &Rules, target: &str| {
        let proxy = Proxy::start(rules, site.port, &site.root);
        let (said, _) = proxy.curl(target, &["-i", "-H", "Cookie: session=0"]);
        let asked = site.asked().pop().unwrap();
        (said.contains("set-cookie: session=1"), asked.header("cookie").is_some())
    };
    let passing = Rules { otherwise: Otherwise::Pass, ..Rules::default() };
    assert_eq!(asks(&Rules::default(), "/with/a"), (false, false));
    assert_eq!(asks(&passing, "/other"), (true, false));
    assert_eq!(asks(&Rules { cookies: true, ..Rules::default() }, "/with/a"), (true, true));
}

#[test]
fn a_client_learns_that_the_server_ends_the_connection() {
    let site = Site::new(HOST, |asked, stream| {
        let connection = if asked.target == "/with/last" { "Connection: close\r\n" } else { "" };
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{connection}\r\nok")?;
        stream.flush().map(|()| true)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let (said, _) = proxy.curl("/with/last", &["-i"]);
    assert!(said.contains("connection: close"), "{said}");
    let (said, _) = proxy.curl("/with/first", &["-i"]);
    assert!(said.starts_with("HTTP/1.1 200 ") && !said.contains("connection: close"), "the control: {said}");
}

/// What one client reads at once, and in which records: sizes and their order.
fn framing(proxy: &Proxy, target: &str) -> Vec<usize> {
    let mut stream = crate::clients::trusting(proxy);
    write!(stream, "GET {target} HTTP/1.1\r\nHost: {HOST}:{}\r\nConnection: close\r\n\r\n", proxy.port)
        .unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let text = String::from_utf8_lossy(&said).into_owned();
    let (_, body) = text.split_once("\r\n\r\n").unwrap();
    let (mut sizes, mut rest) = (Vec::new(), body);
    while let Some((size, behind)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap_or_else(|_| panic!("no chunk: {text}"));
        sizes.push(size);
        if size == 0 {
            break;
        }
        rest = &behind[size + 2..];
    }
    sizes
}

#[test]
fn how_an_answer_comes_does_not_say_whether_a_guess_is_right() {
    // Each guess is a part of a body whose pieces come one after the other: the agent chose what ends them.
    let site = Site::new(HOST, |asked, stream| {
        let guess = asked.target.rsplit_once('=').unwrap().1;
        write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        for piece in [format!("{}{guess}", "x".repeat(500)), format!("behind{guess}")] {
            write!(stream, "{:x}\r\n{piece}\r\n", piece.len())?;
            stream.flush()?;
        }
        write!(stream, "0\r\n\r\n")?;
        stream.flush().map(|()| false)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let whole = |sizes: &[usize]| sizes.iter().sum::<usize>();
    for known in [5, 10, 20] {
        let right = &KEY[..known];
        let wrong = format!("{}~", &KEY[..known - 1]);
        let hex: String = right.bytes().map(|byte| format!("{byte:02x}")).collect();
        let not = format!("{}g", &hex[..hex.len() - 1]);
        for (right, wrong) in [(right, wrong.as_str()), (&hex, &not)] {
            let of = |guess: &str| framing(&proxy, &format!("/with/raw?guess={guess}"));
            let (one, two) = (of(right), of(wrong));
            assert_eq!(whole(&one), 500 + 6 + 2 * right.len());
            // What came in one read or in two is the network's; the last of it waited all the same.
            assert_eq!(one[one.len() - 2..], two[two.len() - 2..], "{right}: {one:?} {two:?}");
        }
    }
}

/// A server that says hello, and then what it hears, in messages of a word: the credential for `key!`, and `none` in no message.
fn chat() -> Site {
    Site::new(HOST, |asked, stream| {
        assert_eq!(
            (asked.header("upgrade"), asked.header("sec-websocket-extensions")),
            (Some("websocket"), None)
        );
        let key = asked.header("authorization").unwrap_or("none").to_owned();
        let extension = match asked.target.as_str() {
            "/with/deflate" => "Sec-WebSocket-Extensions: permessage-deflate\r\n",
            _ => "",
        };
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{extension}\r\n"
        )?;
        stream.write_all(&frame(HELLO))?;
        stream.flush()?;
        let mut word = [0; 4];
        while stream.read_exact(&mut word).is_ok() {
            let said = match &word {
                b"none" => word.to_vec(),
                b"key!" => frame(key.as_bytes()),
                _ => frame(&word),
            };
            stream.write_all(&said)?;
            stream.flush()?;
        }
        Ok(false)
    })
}

/// What it says first.
const HELLO: &[u8] = b"hello";

/// A server's message.
fn frame(payload: &[u8]) -> Vec<u8> {
    [&[0x81, u8::try_from(payload.len()).unwrap()][..], payload].concat()
}

#[test]
fn a_websocket_passes_and_its_messages_are_searched() {
    let site = chat();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut stream = crate::clients::trusting(&proxy);
    ask_for_websocket(&mut stream, &proxy, "/with/ws");
    let said = until_first_message(&mut stream);
    // What could be the beginning of the credential comes as soon as what could not.
    for word in [b"ping", b"ghp/"] {
        stream.write_all(word).unwrap();
        let mut back = [0; 6];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(back[..], frame(word));
    }
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.starts_with("HTTP/1.1 101 ") && said.contains("upgrade: websocket"), "{said}");
    stream.write_all(b"none").unwrap();
    assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "what is no frame ends it");
    let mut refused = crate::clients::trusting(&proxy);
    ask_for_websocket(&mut refused, &proxy, "/with/deflate");
    refused.read_exact(&mut [0; 12]).unwrap();
    drop(refused);
    assert!(proxy.refused(EgressCause::Reflects).contains("extension"));
}

#[test]
fn a_websocket_ends_with_the_message_that_had_a_credential() {
    let site = chat();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut stream = crate::clients::trusting(&proxy);
    ask_for_websocket(&mut stream, &proxy, "/with/ws");
    until_first_message(&mut stream);
    stream.write_all(b"pingkey!ping").unwrap();
    let mut said = Vec::new();
    let _ = stream.read_to_end(&mut said);
    let masked = frame(format!("Bearer {}", "*".repeat(KEY.len())).as_bytes());
    assert!(said.starts_with(&[frame(b"ping"), masked].concat()), "{}", String::from_utf8_lossy(&said));
    assert!(proxy.refused(EgressCause::Reflects).contains("sent a credential back"));
}

#[test]
fn a_websocket_ends_when_no_rule_gives_it_the_credential_any_more() {
    let site = chat();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let rules = |id, allow, otherwise| {
        let hosts = vec![Rules { allow: vec![allow], otherwise, ..Rules::default() }.at(proxy.port)];
        proxy.order(&ToCredentials::Rules { id, hosts });
        wait_until("the rules", || proxy.heard.lock().unwrap().contains(&FromCredentials::InForce { id }));
    };
    let mut back = [0; 6];
    // Where others pass without it, what has it ends as well.
    for (id, otherwise) in [(1, Otherwise::Refuse), (4, Otherwise::Pass)] {
        rules(id, "* /with/**", otherwise);
        let mut stream = crate::clients::trusting(&proxy);
        ask_for_websocket(&mut stream, &proxy, "/with/ws");
        until_first_message(&mut stream);
        rules(id + 1, "GET /with/ws", otherwise);
        stream.write_all(b"ping").unwrap();
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back[2..], b"ping", "one that is still allowed goes on");
        rules(id + 2, "GET /with/other", otherwise);
        assert!(!matches!(stream.read(&mut back), Ok(1..)), "it ends");
    }
    proxy.refused(EgressCause::Revoked);
}

pub(crate) fn ask_for_websocket(stream: &mut impl Write, proxy: &Proxy, target: &str) {
    write!(
        stream,
        "GET {target} HTTP/1.1\r\nHost: {HOST}:{}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n",
        proxy.port
    )
    .unwrap();
}

/// What comes until the server's first message.
fn until_first_message(stream: &mut impl Read) -> Vec<u8> {
    let (mut said, mut byte) = (Vec::new(), [0]);
    let first = frame(HELLO);
    while !said.ends_with(&first) {
        stream.read_exact(&mut byte).unwrap();
        said.push(byte[0]);
        assert!(said.len() < 1000, "{}", String::from_utf8_lossy(&said));
    }
    said
}
