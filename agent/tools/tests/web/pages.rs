//! What a page comes out as, and what is told of us to get it.

use crate::support::{Names, Server, Session, fetch, fetch_named, ok};
use ringfence_tools::web::WebFetch;
use serde_json::json;

const ARTICLE: &str = "<!doctype html><html><head><title> An\n article </title><script>x()</script></head><body>\
    <nav><a href=/home>Home</a><a href=/about>About</a></nav><article><h1>Heading</h1>\
    <p>First paragraph with a <a href='more?x=1'>link</a>, some <b>bold</b> and a comma, which readers of pages like, \
    as they look for sentences that are long enough to be content and not navigation.</p>\
    <p>Second paragraph, with <code>code</code>, which is also long enough to be taken for content by whoever counts \
    the characters, the commas, and the words of this page.</p><ul><li>one</li><li>two</li></ul></article></body></html>";

#[test]
fn a_page_is_its_title_and_its_content_as_markdown() {
    let server = Server::page("text/html; charset=utf-8", ARTICLE);
    let page = fetch(&["127.0.0.1"], &server.url("/a/b#c")).unwrap();
    assert_eq!(page["url"], server.url("/a/b#c"));
    assert_eq!(page["final_url"], server.url("/a/b#c"));
    assert_eq!((&page["status"], &page["title"]), (&json!(200), &json!("An article")));
    assert_eq!((&page["cut"], &page["enforcement"]), (&json!(null), &json!({"net": "gate"})));
    let markdown = page["markdown"].as_str().unwrap();
    for part in
        [&format!("[link]({})", server.url("/a/more?x=1")), "**bold**", "`code`", "one\n", "Second paragraph"]
    {
        assert!(markdown.contains(part), "{markdown}: no {part:?}");
    }
    for part in ["x()", "<p>", "<html", "About"] {
        assert!(!markdown.contains(part), "{markdown}: has {part:?}");
    }
}

#[test]
fn a_short_page_is_all_of_it() {
    let server =
        Server::page("text/html", "<title>T</title><h1>Example Domain</h1><p>For use in documents.</p>");
    let page = fetch(&["127.0.0.1"], &server.url("/")).unwrap();
    assert_eq!(page["markdown"], "## Example Domain\n\nFor use in documents.");
}

#[test]
fn text_and_json_are_as_they_are_and_the_rest_is_named() {
    for (content_type, body, markdown) in [
        ("text/plain", &b"a  *b*\n<p>"[..], "a  *b*\n<p>"),
        ("application/json", br#"{"a": [1]}"#, r#"{"a": [1]}"#),
        ("text/plain; charset=latin1", b"caf\xe9", "caf\u{e9}"),
        ("image/png", b"\x89PNG\0\0", "[binary: image/png, 6 bytes]"),
        ("application/zip", b"", ""),
    ] {
        let page = fetch(&["127.0.0.1"], &Server::page(content_type, body).url("/")).unwrap();
        assert_eq!((&page["markdown"], &page["title"]), (&json!(markdown), &json!(null)), "{content_type}");
        assert_eq!(page["bytes"], body.len());
    }
}

#[test]
fn an_error_page_is_a_page() {
    let server =
        Server::saying("HTTP/1.1 404 No\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\ngone");
    let page = fetch(&["127.0.0.1"], &server.url("/")).unwrap();
    assert_eq!((&page["status"], &page["markdown"]), (&json!(404), &json!("gone")));
}

#[test]
fn gzip_is_unpacked() {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(b"packed text").unwrap();
    let packed = encoder.finish().unwrap();
    let server = Server::saying(ok("Content-Type: text/plain\r\nContent-Encoding: gzip\r\n", &packed));
    assert_eq!(fetch(&["127.0.0.1"], &server.url("/")).unwrap()["markdown"], "packed text");
}

#[test]
fn nothing_is_told_but_what_is_asked_for() {
    let server = Server::new(|head, stream| {
        use std::io::Write;
        let answer = match head.starts_with("GET /first") {
            true => "HTTP/1.1 302 F\r\nLocation: /second?q#f\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n",
            false => {
                "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nSet-Cookie: c=d\r\nContent-Length: 2\r\n\r\nok"
            }
        };
        let _ = stream.write_all(answer.as_bytes());
    });
    let names = Names::default().with("a.example", &[&["127.0.0.1"]]);
    let session = Session::new(&["a.example", "127.0.0.1"], WebFetch::default().with_resolver(names));
    let url = format!("http://A.example.:{}/first", server.port());
    for _ in 0..2 {
        let page = session.call(json!({ "url": url })).unwrap();
        assert_eq!(page["final_url"], format!("http://a.example:{}/second?q#f", server.port()));
    }
    let asked = server.asked();
    assert_eq!(asked.len(), 4);
    for (head, path) in asked.iter().zip(["/first", "/second?q", "/first", "/second?q"]) {
        let mut lines = head.trim_end().split("\r\n");
        assert_eq!(lines.next(), Some(&*format!("GET {path} HTTP/1.1")));
        let fields: Vec<String> = lines.map(|line| line.split(':').next().unwrap().to_lowercase()).collect();
        assert_eq!(fields, ["host", "user-agent", "accept", "accept-encoding", "connection"]);
        assert!(head.contains(&format!("\r\nhost: a.example:{}\r\n", server.port())), "{head}");
    }
}

#[test]
fn every_spelling_of_a_granted_address_is_granted() {
    let server = Server::page("text/plain", "here");
    for host in
        ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::ffff:127.0.0.1]", "127.0.0.1."]
    {
        let page = fetch(&["127.0.0.1"], &format!("http://{host}:{}/", server.port()));
        assert_eq!(page.unwrap()["markdown"], "here", "{host}");
    }
}

#[test]
fn addresses_of_ipv6_work() {
    // A machine may have no IPv6 at all: there is nothing to test then.
    let Ok(server) = Server::at("[::1]:0", |_, stream| {
        use std::io::Write;
        let _ = stream.write_all(&ok("Content-Type: text/plain\r\n", b"six"));
    }) else {
        return;
    };
    let url = format!("http://[::1]:{}/", server.port());
    assert_eq!(fetch(&["::1"], &url).unwrap()["markdown"], "six");
    assert_eq!(fetch(&[&format!("[::1]:{}", server.port())], &url).unwrap()["markdown"], "six");
    fetch(&["127.0.0.1"], &url).unwrap_err();
}

#[test]
fn international_names_are_looked_up_in_ascii() {
    let server = Server::page("text/plain", "here");
    let names = Names::default().with("xn--bcher-kva.example", &[&["127.0.0.1"]]);
    let url = format!("http://B\u{fc}cher.example:{}/", server.port());
    let page = fetch_named(&["xn--bcher-kva.example", "127.0.0.1"], &names, &url).unwrap();
    assert_eq!(page["markdown"], "here");
    assert_eq!(names.looked_up(), ["xn--bcher-kva.example"]);
}

#[test]
fn the_first_address_that_answers_is_taken() {
    let server = Server::page("text/plain", "here");
    // Nobody listens at the first.
    let names = Names::default().with("a.example", &[&["127.0.0.9", "127.0.0.1"]]);
    let url = format!("http://a.example:{}/", server.port());
    let page = fetch_named(&["a.example", "127.0.0.0/8"], &names, &url).unwrap();
    assert_eq!(page["markdown"], "here");
}

#[test]
fn arguments_that_make_no_sense_are_said() {
    let session = Session::new(&["all"], WebFetch::default().with_resolver(Names::default()));
    for (args, said) in [
        (json!([]), "not an object"),
        (json!({}), "`url` is missing"),
        (json!({"url": 1}), "`url` is not a string"),
        (json!({"url": "http://a.example", "method": "POST"}), "`method` is unknown"),
        (json!({"url": "http://a.example", "max_bytes": 0}), "`max_bytes`"),
        (json!({"url": "http://a.example", "max_bytes": 26_214_401}), "`max_bytes`"),
        (json!({"url": "http://a.example", "max_bytes": -1}), "`max_bytes`"),
        (json!({"url": "http://a.example", "max_bytes": "9"}), "`max_bytes`"),
        (json!({"url": "a.example"}), "not an absolute URL"),
        (json!({"url": "http://a.example/\u{0}"}), "control character"),
        (json!({"url": "x".repeat(1 << 20)}), "more than 8192 bytes"),
    ] {
        let error = session.call(args.clone()).unwrap_err();
        assert!(error.contains(said), "{args}: {error}");
    }
}
