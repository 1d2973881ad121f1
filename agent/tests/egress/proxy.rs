//! The worker as a proxy, which has no kernel to ask: what its clients ask for, by HTTP and SOCKS5, is all it knows.

use crate::{
    servers::{Http, Server, Tls, answer},
    support::{Core, is_refused, local, rest_of, say, wait_until},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
};

const TOKEN: &str = "00112233445566778899aabbccddeeff";
/// `ringfence:TOKEN`, as `Proxy-Authorization` has it.
const BASIC: &str = "Basic cmluZ2ZlbmNlOjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZm";

fn proxy(granted: &[&str]) -> Core {
    Core::start_proxy(local(granted), TOKEN)
}

fn client(core: &Core) -> TcpStream {
    core.connect_as(None)
}

/// Asks for a tunnel: the head of the answer.
fn tunnel(core: &Core, to: &str, authorization: &str) -> (TcpStream, String) {
    let stream = client(core);
    say(&stream, format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n").as_bytes());
    let head = head(&stream);
    (stream, head)
}

fn head(mut stream: &TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

fn authorized() -> String {
    format!("Proxy-Authorization: {BASIC}\r\n")
}

/// What a client of SOCKS5 says, with a name.
fn socks(password: &str, name: &str, port: u16) -> Vec<u8> {
    let user = b"ringfence";
    let mut said = vec![5, 2, 0, 2, 1, u8::try_from(user.len()).unwrap()];
    said.extend(user);
    said.push(u8::try_from(password.len()).unwrap());
    said.extend(password.as_bytes());
    said.extend([5, 1, 0, 3, u8::try_from(name.len()).unwrap()]);
    said.extend(name.as_bytes());
    said.extend(port.to_be_bytes());
    said
}

fn take<const N: usize>(mut stream: &TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn goes_round(mut stream: &TcpStream) {
    stream.write_all(b"ping").unwrap();
    assert_eq!(&take(stream), b"ping");
}

#[test]
fn a_tunnel_to_a_granted_name_passes_and_what_is_said_in_it_is_held_to_that() {
    let tls = Tls::new(&["localhost", "other.example"]);
    let port = tls.server.port;
    let core = proxy(&[&format!("localhost:{port}"), &format!("other.example:{port}")]);
    let (stream, head) = tunnel(&core, &format!("LOCALHOST:{port}"), &authorized());
    assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
    assert_eq!(Tls::talk(tls.client("localhost"), stream, "hello").unwrap(), "hello");
    let EgressRecord::Connection { name, port: of, dialled, tls: is_tls, rule, .. } =
        core.recorded(EgressOutcome::Passed, None)
    else {
        unreachable!()
    };
    assert_eq!((name.as_str(), of, is_tls, rule), ("localhost", port, true, Some(0)));
    assert_eq!(dialled.unwrap().port(), port);
    assert!(core.reports().iter().all(|report| report.flow.is_none()), "nobody knows whose it is");
    // Another granted name, and no name at all.
    let (stream, _) = tunnel(&core, &format!("localhost:{port}"), &authorized());
    assert!(Tls::talk(tls.client("other.example"), stream, "hello").is_err());
    core.recorded(EgressOutcome::Refused, Some(EgressCause::OtherName));
    let (stream, _) = tunnel(&core, &format!("localhost:{port}"), &authorized());
    say(&stream, b"SSH-2.0-x\r\n");
    rest_of(&stream);
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NotTls));
    assert_eq!(tls.server.connections(), 1);
}

#[test]
fn who_has_no_token_or_another_is_told_nothing_and_goes_nowhere() {
    let http = Http::new();
    let port = http.port();
    let core = proxy(&[&format!("localhost:{port}")]);
    let wrong = BASIC.replace("ZWZm", "ZWZn");
    assert_ne!(wrong, BASIC);
    let to = format!("localhost:{port}");
    for authorization in [
        String::new(),
        format!("Proxy-Authorization: {wrong}\r\n"),
        "Proxy-Authorization: Basic \r\n".to_owned(),
        format!("Proxy-Authorization: Bearer {TOKEN}\r\n"),
        format!("Authorization: {BASIC}\r\n"),
    ] {
        let (stream, head) = tunnel(&core, &to, &authorization);
        assert!(head.starts_with("HTTP/1.1 407 ") && head.contains("Proxy-Authenticate: Basic"), "{head}");
        assert!(!String::from_utf8(rest_of(&stream)).unwrap().contains(TOKEN));
        let stream = client(&core);
        let plain = format!("GET http://{to}/x HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
        say(&stream, plain.as_bytes());
        assert!(answer(&stream).0.starts_with("HTTP/1.1 407 "));
    }
    for password in ["", "00112233445566778899aabbccddeefe", "0"] {
        let stream = client(&core);
        say(&stream, &socks(password, "localhost", port));
        assert_eq!(rest_of(&stream), [5, 2, 1, 1], "{password}");
    }
    let stream = client(&core);
    say(&stream, &[5, 1, 0]);
    assert_eq!(rest_of(&stream), [5, 0xff], "without a password");
    assert_eq!((http.server.connections(), core.reports()), (0, Vec::new()));
    let stream = client(&core);
    say(&stream, format!("GET http://{to}/x HTTP/1.1\r\nHost: {to}\r\n{}\r\n", authorized()).as_bytes());
    assert_eq!(answer(&stream).1, "/x", "the control");
}

#[test]
fn what_is_not_granted_is_refused_with_the_line_that_would_allow_it() {
    let server = Server::echo();
    let port = server.port;
    let core = proxy(&[&format!("tcp:localhost:{port}")]);
    for to in [
        format!("localhost:{}", port ^ 1),
        format!("evil.example:{port}"),
        // However it is granted: only a name is a name.
        format!("127.0.0.1:{port}"),
        format!("[::1]:{port}"),
    ] {
        let (stream, head) = tunnel(&core, &to, &authorized());
        assert!(
            head.starts_with("HTTP/1.1 403 ") && head.contains("x-ringfence-error: not-granted"),
            "{head}"
        );
        let said = String::from_utf8(rest_of(&stream)).unwrap();
        assert!(said.contains(&format!("put \"{to}\" into `net`")), "{said}");
        wait_until(&to, || {
            let is_it = |record: &EgressRecord| match record {
                EgressRecord::Connection { name, port, cause: Some(EgressCause::NotGranted), .. } => {
                    format!("{name}:{port}") == to
                }
                _ => false,
            };
            core.connections().iter().any(is_it)
        });
    }
    let stream = client(&core);
    say(&stream, &socks(TOKEN, "evil.example", port));
    assert_eq!(rest_of(&stream)[..6], [5, 2, 1, 0, 5, 2], "not allowed by ruleset");
    let stream = client(&core);
    let named = socks(TOKEN, "", port);
    let literal = [&named[..named.len() - 4], &[1, 127, 0, 0, 1], &port.to_be_bytes()].concat();
    say(&stream, &literal);
    assert_eq!(rest_of(&stream)[..6], [5, 2, 1, 0, 5, 2], "an address");
    assert_eq!(server.connections(), 0);
    let stream = client(&core);
    say(&stream, &socks(TOKEN, "localhost", port));
    assert_eq!(take(&stream), [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0], "the control");
    goes_round(&stream);
}

#[test]
fn a_plain_request_reaches_its_host_without_what_was_for_the_proxy() {
    let http = Http::new();
    let port = http.port();
    let core = proxy(&[&format!("localhost:{port}"), &format!("other.example:{port}")]);
    let request = |target: &str, host: &str| {
        format!(
            "POST {target} HTTP/1.1\r\nHost: {host}\r\nProxy-Connection: keep-alive\r\n{}Content-Length: 3\r\n\r\nabc",
            authorized()
        )
    };
    let own = format!("localhost:{port}");
    let stream = client(&core);
    say(&stream, request(&format!("http://{own}/a?b"), &own).as_bytes());
    assert_eq!(answer(&stream).1, "/a?b");
    // The next request would be for the proxy again, and not for this server, which should have ended the connection.
    say(&stream, request(&format!("http://{own}/c"), &own).as_bytes());
    assert!(is_refused(&stream), "one request, and no more");
    let [head] = &http.heads()[..] else { panic!("{:?}", http.heads()) };
    assert_eq!(
        *head,
        format!("POST /a?b HTTP/1.1\r\nHost: {own}\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
    );
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Malformed));
    let other = format!("other.example:{port}");
    for (target, host) in [(&own, &other), (&other, &own)] {
        let stream = client(&core);
        say(&stream, request(&format!("http://{target}/"), host).as_bytes());
        let (head, _) = answer(&stream);
        assert!(
            head.contains("403") && head.contains("x-ringfence-error: other-name"),
            "{target} {host}: {head}"
        );
    }
    for (target, status) in [
        (format!("http://localhost:{}/", port ^ 1), "403"),
        ("http://evil.example/".to_owned(), "403"),
        (format!("https://{own}/"), "400"),
        (format!("ftp://{own}/"), "400"),
        ("/".to_owned(), "400"),
        (format!("http://a@{own}/"), "400"),
    ] {
        let stream = client(&core);
        say(&stream, request(&target, &own).as_bytes());
        assert!(answer(&stream).0.starts_with(&format!("HTTP/1.1 {status} ")), "{target}");
    }
    assert_eq!(http.heads().len(), 1);
}

#[test]
fn socks_goes_on_however_it_is_split_and_only_connects() {
    let server = Server::echo();
    let core = proxy(&[&format!("tcp:localhost:{}", server.port)]);
    let said = socks(TOKEN, "localhost", server.port);
    for size in [1, 7, said.len()] {
        let stream = client(&core);
        said.chunks(size).for_each(|some| say(&stream, some));
        // What follows at once is the server's.
        say(&stream, b"early");
        assert_eq!(take(&stream), [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0], "{size}");
        assert_eq!(&take(&stream), b"early");
        goes_round(&stream);
    }
    let bind = said.iter().copied().enumerate();
    let at = said.len() - "localhost".len() - 2 - 4;
    let bind: Vec<u8> = bind.map(|(place, byte)| if place == at { 3 } else { byte }).collect();
    let stream = client(&core);
    say(&stream, &bind);
    assert_eq!(rest_of(&stream)[..6], [5, 2, 1, 0, 5, 7], "UDP is no command of this proxy's");
    for odd in [&b"\x04\x01\x00\x50\x7f\0\0\x01\0"[..], b"\x16\x03\x01\x00\x05", b"\0", b"\xff\xff"] {
        let stream = client(&core);
        say(&stream, odd);
        say(&stream, b"\r\n\r\n");
        let said = rest_of(&stream);
        assert!(said.is_empty() || said.starts_with(b"HTTP/1.1 400 "), "{odd:?}: {said:?}");
    }
}

#[test]
fn a_client_that_does_not_say_where_it_wants_to_go_is_let_go() {
    let core = proxy(&["localhost"]);
    let (silent, begun, half) = (client(&core), client(&core), client(&core));
    say(&begun, b"CONNECT localhost:443 HTTP/1.1\r\n");
    say(&half, &[5, 1, 2]);
    assert!(is_refused(&silent) && is_refused(&begun));
    assert_eq!(rest_of(&half), [5, 2]);
    let long = client(&core);
    say(&long, b"CONNECT localhost:443 HTTP/1.1\r\nX: ");
    say(&long, &vec![b'x'; 70_000]);
    let (head, body) = answer(&long);
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("longer than"), "{head}{body}");
}

#[test]
fn who_has_no_token_takes_nothing_of_what_others_pass_with() {
    let http = Http::new();
    let own = format!("localhost:{}", http.port());
    // Of which 7 MiB can be borrowed by those who pass.
    let core = Core::start_proxy_within(local(&[&own]), TOKEN, Some(28 << 20));
    let part = format!("CONNECT {own} HTTP/1.1\r\nX: {}", "x".repeat(60_000));
    let greedy: Vec<_> = (0..140).map(|_| client(&core)).collect();
    greedy.iter().for_each(|stream| say(stream, part.as_bytes()));
    for _ in 0..3 {
        let (stream, head) = tunnel(&core, &own, &authorized());
        assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
        let cookies = "x".repeat(20_000);
        say(&stream, format!("GET /x HTTP/1.1\r\nHost: {own}\r\nCookie: {cookies}\r\n\r\n").as_bytes());
        assert_eq!(answer(&stream).1, "/x");
    }
    assert!(greedy.iter().all(is_refused), "and nobody waits for them for long");
}

#[test]
fn a_long_plain_request_is_written_anew_within_what_is_counted() {
    let http = Http::new();
    let own = format!("localhost:{}", http.port());
    let core = proxy(&[&own]);
    for length in [100, 3_000, 7_000, 30_000] {
        let stream = client(&core);
        let lines: String = (0..100).map(|at| format!("X-{at}:\r\n")).collect();
        let more = "x".repeat(length);
        let request = format!(
            "GET http://{own}/{length} HTTP/1.1\r\nHost:{own}\r\n{}{lines}Y:{more}\r\n\r\n",
            authorized()
        );
        say(&stream, request.as_bytes());
        assert_eq!(answer(&stream).1, format!("/{length}"));
    }
    assert!(http.heads().iter().all(|head| head.contains("X-99: \r\nY: xxx") && !head.contains("Basic")));
}

#[test]
fn a_proxy_is_confined_as_any_worker_and_its_token_is_nowhere_to_be_read() {
    let core = proxy(&["localhost"]);
    assert_eq!((core.status("NoNewPrivs").as_str(), core.status("Seccomp").as_str()), ("1", "2"));
    for place in ["cmdline", "environ"] {
        let bytes = fs::read(format!("/proc/{}/{place}", core.pid())).unwrap_or_default();
        assert!(!String::from_utf8_lossy(&bytes).contains(TOKEN), "{place}");
    }
}
