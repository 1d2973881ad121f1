//! Servers that send too much, too slowly, or nonsense.

use crate::support::{Names, PATIENCE, Server, Session, fetch, ok};
use ringfence_tools::web::WebFetch;
use serde_json::{Value, json};
use std::{
    io::Write,
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Sends until nobody takes it any more, or `most` bytes; counts.
fn pour(stream: &mut TcpStream, most: u64, sent: &AtomicU64) {
    let piece = [b'x'; 64 << 10];
    while sent.load(Ordering::SeqCst) < most && stream.write_all(&piece).is_ok() {
        sent.fetch_add(piece.len() as u64, Ordering::SeqCst);
    }
}

#[test]
fn of_a_gigabyte_the_limit_is_read_and_that_is_said() {
    const GB: u64 = 1 << 30;
    for (headers, announced) in [(format!("Content-Length: {GB}\r\n"), true), (String::new(), false)] {
        let sent = Arc::new(AtomicU64::new(0));
        let count = sent.clone();
        let server = Server::new(move |_, stream| {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n{headers}\r\n");
            let _ = stream.write_all(head.as_bytes());
            pour(stream, GB, &count);
        });
        let session = Session::new(&["127.0.0.1"], WebFetch::default().with_timeout(PATIENCE));
        for (args, limit) in [
            (json!({"url": server.url("/")}), 5 << 20),
            (json!({"url": server.url("/"), "max_bytes": 1000}), 1000),
        ] {
            let page = session.call(args).unwrap();
            assert_eq!(
                (page["bytes"].as_u64(), page["markdown"].as_str().map(str::len)),
                (Some(limit), Some(limit as usize))
            );
            let cut = page["cut"].as_str().unwrap();
            assert!(cut.contains(&format!("more than {limit} bytes")), "{cut}");
            assert_eq!(cut.contains(&format!("announced {GB}")), announced, "{cut}");
        }
        assert!(sent.load(Ordering::SeqCst) < 64 << 20, "it went on reading: {sent:?}");
    }
}

#[test]
fn a_body_of_exactly_the_limit_is_whole() {
    let server = Server::page("text/plain", "x".repeat(1000));
    let session = Session::new(&["127.0.0.1"], WebFetch::default().with_timeout(PATIENCE));
    let page = session.call(json!({"url": server.url("/"), "max_bytes": 1000})).unwrap();
    assert_eq!((&page["bytes"], &page["cut"]), (&json!(1000), &Value::Null));
    let page = session.call(json!({"url": server.url("/"), "max_bytes": 999})).unwrap();
    assert!(page["cut"].as_str().unwrap().contains("999"));
}

#[test]
fn a_bomb_is_defused() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..256 {
        encoder.write_all(&zeros).unwrap();
    }
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    let server = Server::saying(ok("Content-Type: text/html\r\nContent-Encoding: gzip\r\n", &bomb));
    let page = fetch(&["127.0.0.1"], &server.url("/")).unwrap();
    assert_eq!(page["bytes"], 5 << 20);
    assert!(page["cut"].as_str().unwrap().contains("more than 5242880 bytes"));
}

/// Where it drips, and what is said of it.
#[test]
fn a_drip_ends_at_the_deadline() {
    for (first, drip, said) in [
        ("", "", "waiting for the server's answer"),
        ("HTTP/1.1 200 OK\r\n", "X: y\r\n", "waiting for the server's answer"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", "x", "reading the body"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", "reading the body"),
        ("", "HTTP/1.1 103 Hints\r\n\r\n", "waiting for the server's answer"),
    ] {
        let server = Server::new(move |_, stream| {
            let _ = stream.write_all(first.as_bytes());
            while stream.write_all(drip.as_bytes()).is_ok() {
                thread::sleep(Duration::from_millis(50));
            }
        });
        let over = |time| {
            let session = Session::new(&["127.0.0.1"], WebFetch::default().with_timeout(time));
            let error = session.call(json!({"url": server.url("/")})).unwrap_err();
            assert!(error.contains("time for this fetch was used up"), "{drip:?}: {error}");
            error
        };
        // A busy machine may not be as far as the dripping when the first one is over.
        let mut errors = [Duration::from_millis(700), Duration::from_secs(5), PATIENCE].into_iter().map(over);
        assert!(errors.any(|error| error.contains(said)), "{drip:?}: it never was {said}");
    }
}

#[test]
fn a_drip_over_many_hops_ends_at_the_same_deadline() {
    let server = Server::new(|_, stream| {
        thread::sleep(Duration::from_millis(300));
        let _ = stream.write_all(crate::support::redirect(302, "/again").as_bytes());
    });
    let session = Session::new(&["127.0.0.1"], WebFetch::default().with_timeout(Duration::from_millis(1000)));
    let error = session.call(json!({"url": server.url("/")})).unwrap_err();
    assert!(error.contains("time for this fetch was used up"), "{error}");
}

#[test]
fn a_look_up_that_never_ends_ends() {
    struct Never;
    impl ringfence_tools::web::resolve::Resolve for Never {
        fn resolve<'a>(&'a self, _: &'a str) -> ringfence_tools::web::resolve::Lookup<'a> {
            Box::pin(std::future::pending())
        }
    }
    let tool = WebFetch::default().with_resolver(Never).with_timeout(Duration::from_millis(200));
    let error = Session::new(&["all"], tool).call(json!({"url": "http://a.example/"})).unwrap_err();
    assert!(error.contains("looking up the host"), "{error}");
}

#[test]
fn what_is_not_http_is_an_error() {
    for answer in [
        &b""[..],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\0\xff\0\xff",
        b"HTTP/1.1 999999 X\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nplain",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 5\r\n\r\nplain",
        b"HTTP/1.1 302 F\r\nLocation: /\xff\xfe\r\n\r\n",
    ] {
        let error = fetch(&["127.0.0.1"], &Server::saying(answer).url("/"))
            .expect_err(&String::from_utf8_lossy(answer));
        assert!(error.starts_with("web_fetch failed: "), "{error}");
    }
}

#[test]
fn heads_without_end_are_an_error() {
    let many: String = (0..100_000).map(|n| format!("X-{n}: y\r\n")).collect();
    let long = format!("X: {}\r\n", "y".repeat(1 << 20));
    for headers in [many, long] {
        let server = Server::saying(format!("HTTP/1.1 200 OK\r\n{headers}\r\n"));
        let error = fetch(&["127.0.0.1"], &server.url("/")).unwrap_err();
        assert!(error.contains("broke HTTP"), "{error}");
    }
}

#[test]
fn nobody_there_is_said() {
    // Bound, so that nobody else is there either; never listened at.
    let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = fetch(&["127.0.0.7"], &format!("http://127.0.0.7:{port}/")).unwrap_err();
    assert!(error.contains("cannot connect to 127.0.0.7"), "{error}");
    let error = Session::new(&["all"], WebFetch::default().with_resolver(Names::default()))
        .call(json!({"url": "http://nowhere.example/"}))
        .unwrap_err();
    assert!(error.contains("\"nowhere.example\" could not be looked up"), "{error}");
}

/// Pages made to overflow a stack, fill the memory, or run for minutes.
#[test]
fn hostile_html_is_read_as_far_as_it_goes() {
    let n = 100_000;
    for (html, at_least) in [
        (format!("<p>begin</p>{}deep", "<div>".repeat(n)), "begin"),
        (format!("<p>begin</p>{}deep{}", "<b>".repeat(n), "</b>".repeat(n)), "begin"),
        (format!("<p>begin</p>{}deep", "<ul><li>".repeat(n)), "begin"),
        (format!("<p>begin</p>{}", "<table><tr><td>".repeat(n)), "begin"),
        (format!("<p>begin</p>{}", "<p><b a=1>x".repeat(n)), "begin"),
        (format!("<p>begin</p>{}", "<a href=x>y".repeat(n)), "begin"),
        (format!("<p>begin</p>{}", "</p>".repeat(n)), "begin"),
        (format!("<p>begin</p>{}x", "<!--".repeat(n)), "begin"),
        (format!("<p>begin</p><p {}>x", (0..n).map(|i| format!("a{i}=1 ")).collect::<String>()), "begin"),
        (format!("<p>begin</p>{}", "&amp;&#x41;&notanentity;".repeat(n)), "begin"),
        (format!("<p>begin</p><pre>{}</pre>", "\n".repeat(n * 10)), "begin"),
        (format!("<p>begin</p>{}{}", "<blockquote>".repeat(300), "a<br>".repeat(n)), "begin"),
        (format!("<p>begin</p><table>{}</table>", "<tr><td colspan=100000>x".repeat(n / 10)), "begin"),
        (format!("<p>begin</p>{}", "\0\u{fffe}<\u{0}>".repeat(n)), "begin"),
    ] {
        let begun = Instant::now();
        let server = Server::page("text/html", &html);
        let start: String = html.chars().skip(12).take(40).collect();
        match fetch(&["127.0.0.1"], &server.url("/")) {
            Ok(page) => assert!(page["markdown"].as_str().unwrap().contains(at_least), "{start}"),
            // On a machine that is slow enough.
            Err(error) => assert!(error.contains("reading text out of the page"), "{start}: {error}"),
        }
        assert!(begun.elapsed() < PATIENCE * 3, "{start}: {:?}", begun.elapsed());
    }
}
