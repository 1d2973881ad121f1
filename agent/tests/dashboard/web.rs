//! The dashboard's door: who may ask, from where, in what form.

use crate::support::Home;
use std::io::Write;

const GUARDED: [&str; 7] = [
    "/api/sessions",
    "/api/tool-calls",
    "/api/tool-calls/flagged",
    "/api/rules",
    "/api/waiting",
    "/api/stats",
    "/metrics",
];

#[test]
fn nothing_is_told_without_the_token() {
    let home = Home::new();
    let host = format!("127.0.0.1:{}", home.port);
    let half = &home.token[..home.token.len() / 2];
    for path in GUARDED {
        assert_eq!(home.ask("GET", path, None).status, 200, "the control: {path}");
        for given in [
            None,
            Some("Bearer ".to_owned()),
            Some("Bearer wrong".to_owned()),
            Some(format!("Bearer {half}")),
            Some(format!("Bearer {}x", home.token)),
            Some(format!("Basic {}", home.token)),
            Some(home.token.clone()),
        ] {
            let mut headers = vec![("Host", host.as_str())];
            headers.extend(given.as_deref().map(|value| ("Authorization", value)));
            let answer = home.raw("GET", path, &headers, "");
            assert_eq!(answer.status, 401, "{path} with {given:?}");
            assert!(answer.error().contains("ringfence dashboard"), "{answer:?}");
            assert!(!answer.body.contains(&home.token) && !answer.head.contains(&home.token));
        }
        let in_query = format!("{path}?token={0}&access_token={0}", home.token);
        assert_eq!(
            home.raw("GET", &in_query, &[("Host", &host)], "").status,
            401,
            "a token in the address is none"
        );
        let (first, second) = ("Bearer wrong", format!("Bearer {}", home.token));
        let twice = [("Host", host.as_str()), ("Authorization", first), ("Authorization", second.as_str())];
        assert_eq!(home.raw("GET", path, &twice, "").status, 401, "two tokens are none");
    }
    for path in ["/", "/app.js", "/conditions.js", "/style.css", "/icon.svg"] {
        let answer = home.raw("GET", path, &[("Host", &host)], "");
        assert_eq!(answer.status, 200, "the page itself holds nothing: {path}");
        assert!(!answer.body.contains(&home.token));
    }
}

#[test]
fn foreign_hosts_and_origins_are_refused() {
    let home = Home::new();
    let bearer = format!("Bearer {}", home.token);
    let ours = format!("127.0.0.1:{}", home.port);
    let get = |path: &str, more: &[(&str, &str)]| {
        let mut headers = vec![("Authorization", bearer.as_str())];
        headers.extend_from_slice(more);
        home.raw("GET", path, &headers, "").status
    };
    for name in ["127.0.0.1", "localhost", "[::1]"] {
        let host = format!("{name}:{}", home.port);
        assert_eq!(get("/api/stats", &[("Host", &host)]), 200, "{host}");
        let origin = format!("http://{host}");
        assert_eq!(get("/api/stats", &[("Host", &host), ("Origin", &origin)]), 200, "{origin}");
    }
    let port = home.port;
    for host in [
        "evil.example".to_owned(),
        format!("evil.example:{port}"),
        format!("127.0.0.1.evil.example:{port}"),
        "127.0.0.1".to_owned(),
        format!("127.0.0.1:{}", port.wrapping_add(1)),
        format!("0.0.0.0:{port}"),
        format!("localhost.:{port}"),
        format!("user@127.0.0.1:{port}"),
        String::new(),
    ] {
        for path in ["/api/stats", "/", "/metrics", "/ws/live"] {
            assert_eq!(get(path, &[("Host", &host)]), 403, "{host:?} {path}");
        }
    }
    assert_eq!(get("/api/stats", &[("Host", &ours), ("Host", &ours)]), 403, "two hosts");
    assert!([400, 403].contains(&get("/api/stats", &[])), "no host");
    for origin in ["null", "http://evil.example", "https://127.0.0.1", "file://", "http://127.0.0.1", ""] {
        for path in ["/api/stats", "/", "/ws/live"] {
            assert_eq!(get(path, &[("Host", &ours), ("Origin", origin)]), 403, "{origin:?} {path}");
        }
    }
    let good = format!("http://{ours}");
    assert_eq!(
        get("/api/stats", &[("Host", &ours), ("Origin", &good), ("Origin", &good)]),
        403,
        "two origins"
    );
    assert_eq!(get("/api/stats", &[("Host", &ours), ("Origin", &good), ("Origin", "null")]), 403);
    let absolute = format!("http://evil.example:{port}/api/stats");
    assert_eq!(get(&absolute, &[("Host", &ours)]), 403, "another host in the request's line");
}

#[test]
fn every_answer_carries_the_safe_headers() {
    let home = Home::new();
    for path in ["/", "/app.js", "/api/stats", "/api/nothing", "/nothing", "/metrics"] {
        let answer = home.ask("GET", path, None);
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'; form-action 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cache-control: no-store",
        ] {
            assert!(answer.head.contains(header), "{path} lacks {header:?}: {}", answer.head);
        }
        assert!(!answer.head.contains("unsafe-"), "{}", answer.head);
        assert!(!answer.head.contains("access-control-"), "no other origin is let in: {}", answer.head);
    }
    let page = home.ask("GET", "/", None).body;
    for forbidden in ["http://", "https://", "<style", " style=", " onclick", "<script>"] {
        assert!(!page.contains(forbidden), "the page has {forbidden:?}");
    }
}

#[test]
fn a_form_or_a_get_changes_nothing() {
    let home = Home::new();
    let mut session = home.session("files", &[]);
    let request = session.call("delete_thing", "{}");
    let call = home.waiting();
    let (host, bearer) = (format!("127.0.0.1:{}", home.port), format!("Bearer {}", home.token));
    let approve = format!("/api/tool-calls/{call}/approve");

    for kind in [
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data; boundary=x",
        "application/jsonx",
    ] {
        let headers = [("Host", host.as_str()), ("Authorization", bearer.as_str()), ("Content-Type", kind)];
        assert_eq!(home.raw("POST", &approve, &headers, "{}").status, 415, "{kind}");
    }
    let without = [("Host", host.as_str()), ("Authorization", bearer.as_str())];
    assert_eq!(home.raw("POST", &approve, &without, "").status, 415, "no type");
    let foreign = [
        ("Host", host.as_str()),
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
        ("Origin", "http://evil.example"),
    ];
    assert_eq!(
        home.raw("POST", &approve, &foreign, "{}").status,
        403,
        "another site's page, even with the token"
    );
    let unknown = [("Host", host.as_str()), ("Content-Type", "application/json")];
    assert_eq!(home.raw("POST", &approve, &unknown, "{}").status, 401, "a page without the token");
    for method in ["GET", "HEAD", "PUT", "DELETE", "PATCH"] {
        assert_eq!(home.ask(method, &approve, None).status, 405, "{method}");
    }
    assert_eq!(home.ask("POST", &approve, Some(r#"{"all":true}"#)).status, 400);
    assert_eq!(home.json("/api/waiting")[0]["id"], call.as_str(), "it still waits");

    let answer = home.ask("POST", &approve, Some("{}"));
    assert_eq!((answer.status, answer.json()["outcome"].as_str()), (200, Some("approved")));
    assert!(session.line().contains(&format!(r#""id":{request},"result""#)), "the control: it went on");
}

#[test]
fn big_slow_and_broken_requests_harm_nobody() {
    let home = Home::new();
    let big = format!(r#"{{"name":"a","action":"flag","description":"{}"}}"#, "x".repeat(100_000));
    assert_eq!(home.ask("POST", "/api/rules", Some(&big)).status, 413);
    let host = format!("127.0.0.1:{}", home.port);
    let long = "x".repeat(60_000);
    let status = home.raw("GET", "/", &[("Host", &host), ("Cookie", &long)], "").status;
    assert!([0, 400, 431].contains(&status), "{status}");
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"\r\n\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let status = home.bytes(garbage).status;
        assert!([0, 400, 403, 505].contains(&status), "{garbage:?}: {status}");
    }
    // Heads that never end hold their connections, and nobody else's.
    let _held: Vec<_> = (0..60)
        .map(|_| {
            let mut stream = home.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1").expect("sent");
            stream
        })
        .collect();
    assert_eq!(home.ask("GET", "/api/stats", None).status, 200);
}

#[test]
fn a_port_that_is_taken_is_exchanged_for_the_next() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let home = Home::on_port(port);
    assert_ne!(home.port, port);
    let page = home.ask("GET", "/", None);
    assert!(page.body.contains("<title>Ringfence</title>"), "{page:?}");
}
