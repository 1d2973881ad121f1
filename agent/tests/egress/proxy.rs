//! The worker as a proxy, which has no kernel to ask: what its clients ask for, by HTTP and SOCKS5, is all it knows.

use crate::{
    servers::{Http, Server, Tls, answer},
    support::{Core, is_refused, local, names, rest_of, say, wait_until},
};
use ringfence_wire::egress::{AddressRule, EgressCause, EgressOutcome, EgressRecord};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream},
    sync::{Arc, Mutex},
};

const TOKEN: &str = "00112233445566778899aabbccddeeff";
/// `ringfence:TOKEN`, as `Proxy-Authorization` has it.
const BASIC: &str = "Basic cmluZ2ZlbmNlOjAwMTEyMjMzNDQ1NTY2Nzc4ODk5YWFiYmNjZGRlZWZm";

fn proxy(granted: &[&str]) -> Core {
    Core::start_proxy(local(granted), TOKEN)
}

/// A client of the run's, as far as the launcher can tell.
fn client(core: &Core) -> TcpStream {
    core.connect(Ipv4Addr::LOCALHOST, 0)
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
    let passed = |record: &EgressRecord| {
        matches!(record, EgressRecord::Connection { outcome: EgressOutcome::Passed, .. })
    };
    assert_eq!(core.connections().iter().filter(|record| passed(record)).count(), 1);
}

#[test]
fn a_client_is_told_that_it_is_connected_once_there_is_a_server_which_hears_nothing_before_it_is_judged() {
    let heard = Arc::<Mutex<Vec<u8>>>::default();
    let hears = Arc::clone(&heard);
    let server = Server::new(move |stream| {
        let said = rest_of(&stream);
        hears.lock().unwrap().extend(said);
    });
    let port = server.port;
    // Nobody's: it is bound, and not listened at.
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let granted =
        [format!("localhost:{port}"), format!("localhost:{nobody}"), format!("nowhere.invalid:{port}")];
    let core = proxy(&granted.each_ref().map(String::as_str));
    for (to, cause) in [(&granted[1], "unreachable"), (&granted[2], "unresolved")] {
        let (stream, head) = tunnel(&core, to, &authorized());
        let is_told =
            head.starts_with("HTTP/1.1 502 ") && head.contains(&format!("x-ringfence-error: {cause}"));
        assert!(is_told, "{to}: {head}");
        assert!(String::from_utf8(rest_of(&stream)).unwrap().contains("could not connect to"));
        let (name, port) = to.split_once(':').unwrap();
        let stream = client(&core);
        say(&stream, &socks(TOKEN, name, port.parse().unwrap()));
        assert_eq!(rest_of(&stream)[..6], [5, 2, 1, 0, 5, 4], "{to}: host unreachable");
    }
    core.recorded(EgressOutcome::Failed, Some(EgressCause::Unreachable));
    for said in [&b"SSH-2.0-x\r\n"[..], b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"] {
        let (stream, head) = tunnel(&core, &granted[0], &authorized());
        assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
        say(&stream, said);
        rest_of(&stream);
    }
    wait_until("both", || server.connections() == 2);
    core.recorded(EgressOutcome::Refused, Some(EgressCause::OtherName));
    let (stream, _) = tunnel(&core, &granted[0], &authorized());
    say(&stream, b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    drop(stream);
    wait_until("the control", || heard.lock().unwrap().starts_with(b"GET /x "));
    // What leads where it may not is refused before it is dialled.
    let core = Core::start_proxy(names(&[&granted[0]]), TOKEN);
    let (_, head) = tunnel(&core, &granted[0], &authorized());
    assert!(head.starts_with("HTTP/1.1 403 ") && head.contains("x-ringfence-error: not-public"), "{head}");
    assert_eq!(server.connections(), 3);
}

#[test]
fn connections_of_other_users_are_not_served_whatever_they_say() {
    let http = Http::new();
    let to = format!("localhost:{}", http.port());
    let core = proxy(&[&to]);
    let request = format!("GET http://{to}/x HTTP/1.1\r\nHost: {to}\r\n{}\r\n", authorized());
    // The launcher says that they are nobody's.
    let others: Vec<_> = (0..300).map(|_| core.connect_as(None)).collect();
    say(&others[0], request.as_bytes());
    assert!(others.iter().all(is_refused));
    assert_eq!((http.server.connections(), core.reports()), (0, Vec::new()));
    let stream = client(&core);
    say(&stream, request.as_bytes());
    assert_eq!(answer(&stream).1, "/x", "the control");
}

#[test]
fn who_says_nothing_is_let_go_where_others_come() {
    let http = Http::new();
    let to = format!("localhost:{}", http.port());
    let core = proxy(&[&to]);
    let silent: Vec<_> = (0..400).map(|_| client(&core)).collect();
    silent.iter().for_each(|stream| say(stream, b"G"));
    for _ in 0..3 {
        let (stream, head) = tunnel(&core, &to, &authorized());
        assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
        say(&stream, format!("GET /x HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes());
        assert_eq!(answer(&stream).1, "/x");
    }
    assert!(silent.iter().all(is_refused));
}

#[test]
fn addresses_that_are_granted_are_dialled_and_no_others() {
    let (server, http) = (Server::echo(), Http::new());
    let (port, plain) = (server.port, http.port());
    let rule = |net: &str, port, allow| AddressRule { net: net.parse().unwrap(), port, allow };
    let mut granted = names(&["other.example:1"]);
    granted.addresses = vec![
        rule("127.0.0.0/8", Some(port), true),
        rule("127.0.0.1/32", Some(plain), true),
        rule("127.0.0.2/32", None, false),
    ];
    let core = Core::start_proxy(granted, TOKEN);
    let (stream, head) = tunnel(&core, &format!("127.0.0.1:{port}"), &authorized());
    assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
    // As to a connection that goes there by itself: whatever is spoken there.
    goes_round(&stream);
    let (stream, _) = tunnel(&core, &format!("[::ffff:127.0.0.1]:{port}"), &authorized());
    goes_round(&stream);
    let stream = client(&core);
    let named = socks(TOKEN, "", port);
    let literal = [&named[..named.len() - 4], &[1, 127, 0, 0, 1], &port.to_be_bytes()].concat();
    say(&stream, &literal);
    assert_eq!(take(&stream), [5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    goes_round(&stream);
    let stream = client(&core);
    let to = format!("127.0.0.1:{plain}");
    let request = format!("GET http://{to}/x HTTP/1.1\r\nHost: {to}\r\n{}\r\n", authorized());
    say(&stream, request.as_bytes());
    assert_eq!(answer(&stream).1, "/x");
    say(&stream, request.as_bytes());
    assert!(is_refused(&stream), "one request, and no more");
    let before = (server.connections(), http.heads().len());
    assert_eq!(before.1, 1);
    for (to, cause) in [
        (format!("127.0.0.1:{}", port ^ 1), "not-granted"),
        (format!("127.0.0.2:{port}"), "denied"),
        (format!("[::ffff:127.0.0.2]:{port}"), "denied"),
        (format!("127.0.0.3:{plain}"), "not-granted"),
        // Which the kernel takes for 127.0.0.1 and ::1.
        (format!("0.0.0.0:{}", port ^ 1), "not-granted"),
        (format!("[::]:{port}"), "not-granted"),
        (format!("[::1]:{port}"), "not-granted"),
        // A port of names is none of addresses.
        ("127.0.0.1:1".to_owned(), "not-granted"),
    ] {
        let (_, head) = tunnel(&core, &to, &authorized());
        let is_refused = head.starts_with("HTTP/1.1 403 ") && head.contains(&format!("error: {cause}\r\n"));
        assert!(is_refused, "{to}: {head}");
    }
    assert_eq!((server.connections(), http.heads().len()), before);
    // A name that may lead there is not looked up, and the client learns what it can do.
    let (stream, head) = tunnel(&core, &format!("db.example:{port}"), &authorized());
    let said = String::from_utf8(rest_of(&stream)).unwrap();
    assert!(
        head.contains("403") && said.contains("ask for the address") && said.contains("NO_PROXY"),
        "{said}"
    );
    let (stream, _) = tunnel(&core, "db.example:1", &authorized());
    assert!(
        !String::from_utf8(rest_of(&stream)).unwrap().contains("NO_PROXY"),
        "none is granted at that port"
    );
}

#[test]
fn what_follows_a_plain_request_reaches_no_server_though_its_host_may_be_spoken_to_freely() {
    let http = Http::new();
    let own = format!("localhost:{}", http.port());
    let core = proxy(&[&format!("tcp:{own}")]);
    let request = |host: &str, path: &str| {
        format!("GET http://{host}/{path} HTTP/1.1\r\nHost: {host}\r\nCookie: a\r\n{}\r\n", authorized())
    };
    let stream = client(&core);
    say(&stream, request(&own, "first").as_bytes());
    assert_eq!(answer(&stream).1, "/first");
    // The server keeps the connection open, and so would have it.
    say(&stream, request("other.example", "second").as_bytes());
    assert!(is_refused(&stream));
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Malformed));
    let stream = client(&core);
    let both = [request(&own, "first"), request("other.example", "second")].concat();
    say(&stream, both.as_bytes());
    rest_of(&stream);
    wait_until("both heads", || http.heads().len() == 2);
    for head in http.heads() {
        assert!(head.starts_with("GET /first ") && !head.contains("Basic"), "{head}");
    }
}

#[test]
fn a_final_dot_and_a_missing_host_of_an_old_client_are_no_obstacle() {
    let tls = Tls::new(&["localhost"]);
    let http = Http::new();
    let (port, plain) = (tls.server.port, http.port());
    let core = proxy(&[&format!("localhost:{port}"), &format!("localhost:{plain}")]);
    let (stream, head) = tunnel(&core, &format!("localhost.:{port}"), &authorized());
    assert_eq!(head, "HTTP/1.1 200 Connection established\r\n\r\n");
    assert_eq!(Tls::talk(tls.client("localhost"), stream, "hello").unwrap(), "hello");
    for request in [
        format!("GET http://localhost.:{plain}/x HTTP/1.1\r\nHost: localhost.:{plain}\r\n"),
        format!("GET http://localhost:{plain}/x HTTP/1.0\r\n"),
    ] {
        let stream = client(&core);
        say(&stream, format!("{request}{}\r\n", authorized()).as_bytes());
        assert_eq!(answer(&stream).1, "/x", "{request}");
    }
    assert!(http.heads().iter().all(|head| head.contains(&format!("\r\nHost: localhost:{plain}\r\n"))));
    let (_, head) = tunnel(&core, &format!("localhost..:{port}"), &authorized());
    assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
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
    let mut granted = local(&[&format!("tcp:localhost:{port}")]);
    granted.addresses.iter_mut().for_each(|rule| rule.port = Some(port));
    let addressless = Core::start_proxy(names(&[&format!("tcp:localhost:{port}")]), TOKEN);
    let core = Core::start_proxy(granted, TOKEN);
    for (core, to) in [
        (&core, format!("localhost:{}", port ^ 1)),
        (&core, format!("evil.example:{port}")),
        // It is not, by a name that leads there.
        (&addressless, format!("127.0.0.1:{port}")),
        (&addressless, format!("[::1]:{port}")),
    ] {
        let (stream, head) = tunnel(core, &to, &authorized());
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
    let stream = client(&addressless);
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
    // Its host is that of its address, whatever else it says.
    let stream = client(&core);
    say(&stream, request(&format!("http://{own}/d"), &format!("other.example:{port}")).as_bytes());
    assert_eq!(answer(&stream).1, "/d");
    assert!(http.heads()[1].contains(&format!("Host: {own}\r\n")) && !http.heads()[1].contains("other"));
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Malformed));
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
    assert_eq!(http.heads().len(), 2);
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
