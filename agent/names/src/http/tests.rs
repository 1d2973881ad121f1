//! Streams of requests: what passes as it came, and what ends a connection.

use super::*;
use proptest::prelude::*;

const GET: &str = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n";

fn requests() -> Requests {
    Requests::new("a.example", 80)
}

fn fed(stream: &str) -> Fed {
    requests().feed(stream.as_bytes())
}

fn passes(stream: &str) {
    assert_eq!(fed(stream), Fed { forward: stream.len(), refused: None }, "{stream:?}");
}

/// A request with these lines after its host.
fn with(lines: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a.example\r\n{lines}\r\n")
}

fn refused(stream: &str) -> Refused {
    let Fed { forward, refused } = fed(stream);
    assert_eq!(forward, 0, "{stream:?}");
    refused.unwrap_or_else(|| panic!("{stream:?} is not refused"))
}

#[test]
fn requests_for_the_host_pass_as_they_came() {
    for request in [
        GET,
        "GET / HTTP/1.1\r\nhOsT:   A.Example  \r\nAccept: */*\r\n\r\n",
        "GET /?q=http://b.example/ HTTP/1.1\r\nHost: a.example:80\r\n\r\n",
        "GET http://a.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET HTTP://A.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET http://a.example?q HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.0\r\nHost: a.example\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nab",
        "PROPFIND / HTTP/1.1\r\nHost: a.example\r\nConnection: keep-alive, TE, X-Header\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nX: caf\u{e9}\r\nEmpty:\r\n\r\n",
        &with("Content-Length: 0\r\n"),
        &(with("Content-Length: 5\r\n") + "GET /"),
        &(with("Transfer-Encoding: chunked\r\n") + "5\r\nGET /\r\n00A\r\n0123456789\r\n0\r\n\r\n"),
        &(with("transfer-encoding: Chunked\r\n") + "0\r\n\r\n"),
    ] {
        passes(request);
        passes(&[request, GET, request].concat());
    }
}

#[test]
fn a_head_waits_until_it_is_whole_and_a_body_does_not() {
    let post = with("Content-Length: 5\r\n");
    for end in 0..post.len() {
        assert_eq!(fed(&post[..end]), Fed { forward: 0, refused: None });
    }
    assert_eq!(fed(&(post.clone() + "12")).forward, post.len() + 2);
    let mut requests = requests();
    assert_eq!(requests.feed((post.clone() + "12").as_bytes()).forward, post.len() + 2);
    assert_eq!(requests.feed(format!("345{}", &GET[..20]).as_bytes()).forward, 3);
    assert_eq!(requests.feed(GET.as_bytes()).forward, GET.len());
}

#[test]
fn a_request_for_another_host_ends_the_connection() {
    let host = |value: &str| refused(&format!("GET / HTTP/1.1\r\nHost: {value}\r\n\r\n"));
    assert_eq!(host("b.example"), Refused::AnotherHost("b.example".to_owned()));
    assert_eq!(host("x.a.example"), Refused::AnotherHost("x.a.example".to_owned()));
    assert_eq!(host("a.example:8080"), Refused::AnotherPort);
    assert_eq!(host("a.example:080"), Refused::AnotherPort);
    assert_eq!(host("a.example:"), Refused::AnotherPort);
    assert_eq!(host("a.example:80:80"), Refused::AnotherPort);
    assert_eq!(host(""), Refused::Host(NotAHost::Empty));
    assert_eq!(host("a.example."), Refused::Host(NotAHost::FinalDot));
    assert_eq!(host("a.example, b.example"), Refused::Host(NotAHost::Byte(b',')));
    assert_eq!(host("a.example b.example"), Refused::Host(NotAHost::Byte(b' ')));
    assert_eq!(host("user@a.example"), Refused::Host(NotAHost::Byte(b'@')));
    assert_eq!(host("127.0.0.1"), Refused::Host(NotAHost::Address));
    assert_eq!(host("[::1]"), Refused::Host(NotAHost::Byte(b'[')));
    let target = |target: &str| refused(&format!("GET {target} HTTP/1.1\r\nHost: a.example\r\n\r\n"));
    assert_eq!(target("http://b.example/"), Refused::AnotherHost("b.example".to_owned()));
    assert_eq!(target("http://a.example:81/"), Refused::AnotherPort);
    assert_eq!(target("http://a.example@b.example/"), Refused::Host(NotAHost::Byte(b'@')));
    assert_eq!(target("http://a.example\\@b.example/"), Refused::Host(NotAHost::Byte(b'\\')));
    for other in
        ["https://a.example/", "a.example", "*", "a.example:80", "http:/a.example/", "?q", "ftp://a.example"]
    {
        assert_eq!(target(other), Refused::Target, "{other}");
    }
    assert_eq!(refused("CONNECT a.example:80 HTTP/1.1\r\nHost: a.example\r\n\r\n"), Refused::Connect);
    assert_eq!(refused("connect / HTTP/1.1\r\nHost: a.example\r\n\r\n"), Refused::Connect);
    assert_eq!(refused("GET / HTTP/1.1\r\nX: y\r\n\r\n"), Refused::NoHost);
    assert_eq!(refused("GET / HTTP/1.0\r\n\r\n"), Refused::NoHost);
    assert_eq!(refused(&with("Host: a.example\r\n")), Refused::SeveralHosts);
    assert_eq!(refused(&with("host: b.example\r\n")), Refused::SeveralHosts);
    // The first request was fine, and goes on; the second does not.
    let second = "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let Fed { forward, refused } = fed(&[GET, second].concat());
    assert_eq!((forward, refused), (GET.len(), Some(Refused::AnotherHost("b.example".to_owned()))));
}

#[test]
fn request_smuggling_ends_the_connection() {
    for (lines, why) in [
        ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", Refused::Lengths),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", Refused::Lengths),
        ("Content-Length: 5\r\nContent-Length: 5\r\n", Refused::Lengths),
        ("Content-Length: 5\r\nContent-length: 6\r\n", Refused::Lengths),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Refused::Lengths),
        ("Content-Length: 5, 5\r\n", Refused::Length),
        ("Content-Length: +5\r\n", Refused::Length),
        ("Content-Length: -5\r\n", Refused::Length),
        ("Content-Length: 05\r\n", Refused::Length),
        ("Content-Length: 0x5\r\n", Refused::Length),
        ("Content-Length: 5 \t5\r\n", Refused::Length),
        ("Content-Length:\r\n", Refused::Length),
        ("Content-Length: 1000000000000000000\r\n", Refused::Length),
        ("Transfer-Encoding: gzip, chunked\r\n", Refused::Encoding),
        ("Transfer-Encoding: chunked, chunked\r\n", Refused::Encoding),
        ("Transfer-Encoding: xchunked\r\n", Refused::Encoding),
        ("Transfer-Encoding: identity\r\n", Refused::Encoding),
        ("Transfer-Encoding:\r\n", Refused::Encoding),
        ("Transfer-Encoding : chunked\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        (" Transfer-Encoding: chunked\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        ("X: y\r\n z: Transfer-Encoding\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        ("X: y\r\n\tfolded\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        ("Transfer-Encoding\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        (": y\r\n", Refused::Malformed(httparse::Error::HeaderName)),
        ("X: a\0b\r\n", Refused::Malformed(httparse::Error::HeaderValue)),
        ("Transfer-Encoding: \u{b}chunked\r\n", Refused::Malformed(httparse::Error::HeaderValue)),
        ("X: y\nTransfer-Encoding: chunked\r\n", Refused::BareLf),
        ("X: y\n\r\n", Refused::BareLf),
        ("X: y\rTransfer-Encoding: chunked\r\n", Refused::BareCr),
        ("X: y\r\r\n", Refused::BareCr),
        ("Transfer_Encoding: chunked\r\n", Refused::Confusable("transfer-encoding")),
        ("Content_length: 5\r\n", Refused::Confusable("content-length")),
        ("Connection: close, Content-Length\r\n", Refused::TakenAway("content-length")),
        ("Connection: HOST\r\n", Refused::TakenAway("host")),
        ("Expect: 200-ok\r\n", Refused::Expectation),
        ("Expect: 100-continue\r\nExpect: x\r\n", Refused::Expectation),
    ] {
        assert_eq!(refused(&with(lines)), why, "{lines:?}");
    }
    passes(&with("X: y\r\nX_Host: b.example\r\nConnection: x\r\n"));
    assert_eq!(
        refused("POST / HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n"),
        Refused::Encoding
    );
}

#[test]
fn what_is_not_http_1_ends_the_connection_before_a_head_is_whole() {
    for (stream, why) in [
        ("PRI * HTTP/2.0\r\n", Refused::Http2),
        ("GET / HTTP/2.0\r\n", Refused::Http2),
        ("SSH-2.0-OpenSSH_9.2\r\n", Refused::NotHttp),
        ("GET /\r\n", Refused::NotHttp),
        ("GET / HTTP/1.2\r\n", Refused::NotHttp),
        ("GET / HTTP/1.1 \r\n", Refused::NotHttp),
        ("EHLO a.example\r\n", Refused::NotHttp),
        ("\r\nGET / HTTP/1.1\r\n", Refused::NotHttp),
        (" GET / HTTP/1.1\r\n", Refused::NotHttp),
        ("\u{16}\u{3}\u{1}", Refused::NotHttp),
        ("GET / HTTP/1.1\n", Refused::BareLf),
        ("GET\r/ HTTP/1.1\r\n", Refused::BareCr),
    ] {
        assert_eq!(refused(stream), why, "{stream:?}");
    }
    for head in
        ["GET  / HTTP/1.1\r\n", "GET / x HTTP/1.1\r\n", "G{T / HTTP/1.1\r\n", "GET /\u{1} HTTP/1.1\r\n"]
    {
        assert!(fed(&format!("{head}Host: a.example\r\n\r\n")).refused.is_some(), "{head:?}");
    }
    // Between requests as before the first.
    assert_eq!(
        fed(&[GET, "\r\n", GET].concat()),
        Fed { forward: GET.len(), refused: Some(Refused::NotHttp) }
    );
}

#[test]
fn chunks_are_read_strictly() {
    let head = with("Transfer-Encoding: chunked\r\n");
    let chunk = |body: &str| match fed(&(head.clone() + body)).refused {
        Some(Refused::Chunk(why)) => why,
        other => panic!("{body:?}: {other:?}"),
    };
    for (body, why) in [
        ("5;ext=1\r\n", "extensions"),
        ("5 \r\n", "hexadecimal"),
        (" 5\r\n", "hexadecimal"),
        ("+5\r\n", "hexadecimal"),
        ("-1\r\n", "hexadecimal"),
        ("0x5\r\n", "hexadecimal"),
        ("\r\n", "hexadecimal"),
        ("5\n", "hexadecimal"),
        ("5\r5\r\n", "CR and LF"),
        ("000000005\r\n", "digits"),
        ("ffffffff\r\n", "2 GiB"),
        ("80000000\r\n", "2 GiB"),
        ("2\r\nabc", "where its size says"),
        ("2\r\nab\n", "where its size says"),
        ("2\r\nab\r\r", "where its size says"),
        ("0\r\nX: y\r\n\r\n", "after the last chunk"),
        ("0\r\nGET / HTTP/1.1\r\n", "after the last chunk"),
        ("0\r\n\n", "after the last chunk"),
    ] {
        assert!(chunk(body).contains(why), "{body:?}: {}", chunk(body));
    }
    let most = head.clone() + "7fffffff\r\n";
    passes(&most);
    assert_eq!(fed(&(head.clone() + "5\r")).forward, head.len(), "a size waits for the end of its line");
}

#[test]
fn a_head_has_a_limit() {
    let head = |length: usize| {
        let empty = with("X: \r\n").len();
        with(&format!("X: {}\r\n", "y".repeat(length - empty)))
    };
    passes(&head(MAX_HEAD));
    let longer = head(MAX_HEAD + 1);
    assert_eq!(refused(&longer), Refused::Long);
    assert_eq!(refused(&longer[..MAX_HEAD]), Refused::Long, "no byte more has to come");
    assert_eq!(fed(&longer[..MAX_HEAD - 1]), Fed { forward: 0, refused: None });
    let many = "X: y\r\n".repeat(127);
    passes(&with(&many));
    assert_eq!(refused(&with(&(many + "X: y\r\n"))), Refused::Malformed(httparse::Error::TooManyHeaders));
}

const UPGRADE: &str =
    "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\r\n\x01\x02";

#[test]
fn a_web_socket_passes_once_the_server_has_switched() {
    let mut requests = requests();
    let early = [UPGRADE, "\u{1}\u{2}frame"].concat();
    assert_eq!(requests.feed(early.as_bytes()), Fed { forward: UPGRADE.len(), refused: None });
    assert_eq!(requests.feed(b"\x01\x02frame"), Fed { forward: 0, refused: None });
    assert!(requests.awaits_response() && !requests.is_tunnel());
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n";
    for piece in [interim, &SWITCHING[..30], &SWITCHING[30..]] {
        assert!(requests.awaits_response());
        assert_eq!(requests.response(piece.as_bytes()), Ok(()));
    }
    assert!(requests.is_tunnel() && !requests.awaits_response());
    assert_eq!(requests.feed(b"\x01\x02frame"), Fed { forward: 7, refused: None });
}

#[test]
fn an_upgrade_that_the_server_does_not_make_leaves_the_check_on() {
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.0 400 Bad Request\r\n\r\n",
        "HTTP/1.1 426\r\n\r\n",
    ] {
        let mut requests = requests();
        let other = "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n";
        assert_eq!(requests.feed([UPGRADE, other].concat().as_bytes()).forward, UPGRADE.len());
        assert_eq!(requests.response(answer.as_bytes()), Ok(()));
        assert!(!requests.awaits_response() && !requests.is_tunnel());
        assert_eq!(requests.feed(GET.as_bytes()), Fed { forward: GET.len(), refused: None }, "the control");
        assert_eq!(
            requests.feed(other.as_bytes()).refused,
            Some(Refused::AnotherHost("b.example".to_owned()))
        );
    }
}

#[test]
fn only_the_first_request_can_upgrade_and_only_to_web_socket() {
    let h2c = UPGRADE.replace("websocket", "h2c");
    for protocol in ["h2c", "TLS/1.0", "", "websocket, h2c"] {
        let mut requests = requests();
        assert_eq!(requests.feed(h2c.as_bytes()).forward, h2c.len());
        let answer = SWITCHING.replace("WebSocket", protocol);
        assert_eq!(requests.response(answer.as_bytes()), Err(Refused::Switched(protocol.to_owned())));
        assert!(requests.feed(GET.as_bytes()).refused.is_some() && !requests.awaits_response());
    }
    // Java's client asks with each request for HTTP/2, and goes on where it gets none.
    passes(&[GET, &h2c, GET].concat());
    let mut later = requests();
    assert_eq!(later.feed([GET, UPGRADE].concat().as_bytes()).forward, GET.len() + UPGRADE.len());
    assert!(!later.awaits_response());
    assert_eq!(later.response(SWITCHING.as_bytes()), Ok(()), "it is nothing that is asked for");
    assert_eq!(later.feed(b"\x01\x02").refused, Some(Refused::NotHttp));
    for garbage in
        ["SSH-2.0-OpenSSH\r\n\r\n", "HTTP/1.1 099 X\r\n\r\n", "HTTP/1.1 101\r\nUpgrade : websocket\r\n\r\n"]
    {
        let mut requests = requests();
        assert_eq!(requests.feed(UPGRADE.as_bytes()).forward, UPGRADE.len());
        assert!(matches!(requests.response(garbage.as_bytes()), Err(Refused::Response(_))), "{garbage:?}");
    }
}

#[test]
fn the_body_of_an_upgrade_comes_before_what_is_switched_to() {
    let post = UPGRADE.replace("GET", "POST").replace("\r\n\r\n", "\r\nContent-Length: 4\r\n\r\n");
    let mut requests = requests();
    assert_eq!(requests.feed(format!("{post}12").as_bytes()).forward, post.len() + 2);
    assert_eq!(requests.response(SWITCHING.as_bytes()), Ok(()));
    assert!(!requests.is_tunnel());
    assert_eq!(requests.feed(b"34\x00frame"), Fed { forward: 8, refused: None });
    assert!(requests.is_tunnel());
}

#[test]
fn a_body_that_the_server_has_to_ask_for_waits_for_that() {
    let post = with("Content-Length: 5\r\nExpect: 100-Continue\r\n");
    let asked = |answer: &str| {
        let mut requests = requests();
        assert_eq!(requests.feed([post.as_str(), "12345", GET].concat().as_bytes()).forward, post.len());
        assert!(requests.awaits_response());
        requests.response(answer.as_bytes()).unwrap();
        assert!(!requests.awaits_response());
        requests.feed(["12345", GET].concat().as_bytes())
    };
    let whole = Fed { forward: 5 + GET.len(), refused: None };
    assert_eq!(asked("HTTP/1.1 100 Continue\r\n\r\n"), whole);
    assert_eq!(asked("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\n\n"), whole);
    for answer in
        ["HTTP/1.1 417 Expectation Failed\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"]
    {
        assert_eq!(asked(answer), Fed { forward: 0, refused: Some(Refused::NotAskedFor) }, "{answer:?}");
    }
    // Where nothing has to be asked for, the header means nothing.
    passes(&(with("Expect: 100-continue\r\n") + GET));
    passes(&(GET.to_owned() + &with("Expect: 100-continue\r\n") + GET));
}

#[test]
fn a_later_request_cannot_wait_for_an_answer_that_an_earlier_body_could_hold() {
    // The client put this file onto the server before, and now it is the body of the first answer.
    let file = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    for body in ["Content-Length: 33\r\n", "Transfer-Encoding: chunked\r\n"] {
        let post = with(&format!("{body}Expect: 100-continue\r\n"));
        let mut first = requests();
        assert_eq!(first.feed(post.as_bytes()), Fed { forward: post.len(), refused: None }, "the control");
        let mut later = requests();
        assert_eq!(later.feed(GET.as_bytes()), Fed { forward: GET.len(), refused: None });
        assert_eq!(later.feed(post.as_bytes()), Fed { forward: 0, refused: Some(Refused::LateExpectation) });
        assert_eq!(later.response(file), Err(Refused::LateExpectation), "nothing brings it back");
        assert_eq!(later.feed(post.as_bytes()).forward, 0);
    }
}

/// A stream of requests, good ones for the most part.
fn stream() -> impl Strategy<Value = String> {
    let request = prop_oneof![
        8 => Just(GET.to_owned()),
        4 => "[a-zA-Z0-9 \r\n]{0,40}".prop_map(|body| with(&format!("Content-Length: {}\r\n", body.len())) + &body),
        4 => prop::collection::vec("[a-z\r\n]{1,20}", 0..4).prop_map(|chunks| {
            let chunks = chunks.iter().map(|chunk| format!("{:x}\r\n{chunk}\r\n", chunk.len())).collect::<String>();
            with("Transfer-Encoding: chunked\r\n") + &chunks + "0\r\n\r\n"
        }),
        1 => Just("GET / HTTP/1.1\r\nHost: b.example\r\n\r\n".to_owned()),
        1 => Just(with("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n")),
        1 => Just(UPGRADE.to_owned()),
        1 => Just(with("Content-Length: 3\r\nExpect: 100-continue\r\n") + "abc"),
        1 => "[ -~\r\n]{0,60}".prop_map(|text| text),
    ];
    prop::collection::vec(request, 0..6).prop_map(|requests| requests.concat())
}

proptest! {
    /// Wherever a stream is split, and whatever a byte of it is: the same bytes go on, and the verdict is the same.
    #[test]
    fn splits_change_nothing(
        stream in stream(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut stream = stream.into_bytes();
        for (at, byte) in changes {
            if !stream.is_empty() {
                let at = at.index(stream.len());
                stream[at] = byte;
            }
        }
        let whole = requests().feed(&stream);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut requests, mut gone) = (requests(), 0);
        let mut refused = None;
        for cut in cuts.into_iter().chain([stream.len()]) {
            let fed = requests.feed(&stream[gone..cut.max(gone)]);
            gone += fed.forward;
            refused = fed.refused;
        }
        prop_assert_eq!(Fed { forward: gone, refused }, whole);
    }

    #[test]
    fn nothing_breaks_it(
        client in prop::collection::vec(any::<u8>(), 0..200),
        server in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut requests = requests();
        let _ = requests.feed(&client);
        let _ = requests.response(&server);
        let _ = requests.feed(&client);
    }
}

/// What goes on of a stream that comes in pieces of `size` bytes, where bodies go on without being looked at.
fn unread(stream: &[u8], size: usize) -> (usize, Option<Refused>) {
    let mut requests = requests();
    let (mut gone, mut come) = (0, 0);
    while come < stream.len() {
        let is_held = gone < come;
        come = (come + size).min(stream.len());
        if !is_held {
            let opaque = requests.opaque().min((come - gone) as u64);
            requests.passed(opaque);
            gone += opaque as usize;
        }
        let fed = requests.feed(&stream[gone..come]);
        gone += fed.forward;
        if fed.refused.is_some() {
            return (gone, fed.refused);
        }
    }
    (gone, None)
}

#[test]
fn a_body_that_is_not_looked_at_ends_where_one_does_that_is() {
    let post = with("Content-Length: 21\r\n") + "GET / HTTP/1.1\r\n\r\nabc";
    let chunks = with("Transfer-Encoding: chunked\r\n") + "5\r\nGET /\r\n00A\r\n0123456789\r\n0\r\n\r\n";
    let other = GET.replace("a.example", "b.example");
    for stream in [
        [&post[..], &chunks, GET, &post].concat(),
        [&post[..], &chunks, &other].concat(),
        [&chunks[..], "x"].concat(),
        chunks.replace("GET /\r\n", "GET /x\r\n"),
    ] {
        let Fed { forward, refused } = fed(&stream);
        for size in 1..stream.len() {
            assert_eq!(unread(stream.as_bytes(), size), (forward, refused.clone()), "{stream:?} by {size}");
        }
    }
    // What waits for the server's word does not pass, and nothing does that was refused.
    let mut waits = requests();
    let _ = waits.feed((with("Content-Length: 5\r\nExpect: 100-continue\r\n") + "ab").as_bytes());
    assert_eq!(waits.opaque(), 0);
    waits.response(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
    assert_eq!(waits.opaque(), 5);
    let mut refused = requests();
    assert!(refused.feed((with("Transfer-Encoding: chunked\r\n") + "5;x\r\n").as_bytes()).refused.is_some());
    assert_eq!(refused.opaque(), 0);
}

#[test]
fn an_answers_head_takes_what_is_said_beforehand() {
    let mut requests = requests();
    let _ = requests.feed(with("Upgrade: websocket\r\n").as_bytes());
    let mut told = 0;
    for piece in [&b"HTTP/1.1 101 Switching Protocols\r\nX: "[..], &[b'x'; 3000], &[b'y'; 1], b"\r\n"] {
        told = requests.kept_with(piece.len());
        requests.response(piece).unwrap();
        assert!((1..=told).contains(&requests.kept()) && told < requests.kept() + 512, "{told}");
    }
    assert!(told > 3000, "{told}");
    requests.response(b"Upgrade: websocket\r\n\r\n").unwrap();
    assert!(requests.is_tunnel());
    assert_eq!(requests.kept(), 0);
}
