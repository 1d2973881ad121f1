//! Each hop is a fetch of its own: checked, looked up and screened as if it were the first.

use crate::support::{Names, Server, assert_denied, fetch, fetch_named, ok, redirect};
use std::io::Write;

/// A server whose `/to` redirects to `location`, and which has a page elsewhere.
fn redirecting(status: u16, location: &str) -> Server {
    let there = redirect(status, location);
    Server::new(move |head, stream| {
        let page = ok("Content-Type: text/plain\r\n", b"there");
        let _ = stream.write_all(if head.starts_with("GET /to ") { there.as_bytes() } else { &page });
    })
}

#[test]
fn each_kind_is_followed() {
    for status in [301, 302, 303, 307, 308] {
        let server = redirecting(status, "/there?x");
        let page = fetch(&["127.0.0.1"], &server.url("/to")).unwrap();
        assert_eq!(
            (&page["final_url"], &page["markdown"]),
            (&server.url("/there?x").into(), &"there".into())
        );
        assert_eq!(page["url"], server.url("/to"));
    }
    for status in [300, 304, 305, 306] {
        let page = fetch(&["127.0.0.1"], &redirecting(status, "/there").url("/to")).unwrap();
        assert_eq!(page["status"], status);
    }
}

#[test]
fn a_redirect_to_what_is_not_granted_is_denied() {
    let elsewhere = Server::page("text/plain", "elsewhere");
    let names = Names::default().with("a.example", &[&["127.0.0.1"]]).with("b.example", &[&["127.0.0.1"]]);
    let port = elsewhere.port();
    for (location, said) in [
        (format!("http://b.example:{port}/"), "net of \"b.example\""),
        (format!("//b.example:{port}/"), "net of \"b.example\""),
        (format!("http://127.0.0.2:{port}/"), "net of \"127.0.0.2\""),
        (format!("http://0x7f000002:{port}/"), "net of \"127.0.0.2\""),
        (format!("http://[::ffff:127.0.0.2]:{port}/"), "net of \"127.0.0.2\""),
        ("http://169.254.169.254/latest/meta-data/".into(), "net of \"169.254.169.254\""),
        ("http://[::1]/".into(), "net of \"::1\""),
    ] {
        let server = redirecting(302, &location);
        let url = format!("http://a.example:{}/to", server.port());
        assert_denied(fetch_named(&["a.example", "127.0.0.1"], &names, &url), &[said]);
        assert_eq!(server.asked().len(), 1);
    }
    assert_eq!(elsewhere.asked().len(), 0);
    // The control: granted, it is followed.
    let server = redirecting(302, &format!("http://b.example:{port}/"));
    let url = format!("http://a.example:{}/to", server.port());
    let page = fetch_named(&["a.example", "b.example", "127.0.0.1"], &names, &url).unwrap();
    assert_eq!(page["markdown"], "elsewhere");
}

#[test]
fn a_redirect_to_what_no_url_may_be_is_not_followed() {
    for (location, said) in [
        ("file:///etc/passwd", "the scheme \"file\""),
        ("ftp://127.0.0.1/", "the scheme \"ftp\""),
        ("data:text/plain,x", "the scheme \"data\""),
        ("http://user:pass@127.0.0.1/", "user or password"),
        ("http://127.0.0.1:0/", "port 0"),
        ("http://", "not an absolute URL"),
        ("//\\evil", "backslash"),
    ] {
        let error = fetch(&["127.0.0.1"], &redirecting(302, location).url("/to")).unwrap_err();
        assert!(error.contains(said), "{location}: {error}");
    }
}

#[test]
fn a_loop_ends() {
    let server = redirecting(302, "/to");
    let error = fetch(&["127.0.0.1"], &server.url("/to")).unwrap_err();
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert_eq!(server.asked().len(), 11);
}

#[test]
fn ten_redirects_are_followed() {
    let server = Server::new(|head, stream| {
        let hop: u32 = head.split(['/', ' ']).nth(2).and_then(|n| n.parse().ok()).unwrap_or(0);
        let answer = match hop {
            10 => ok("Content-Type: text/plain\r\n", b"there"),
            _ => redirect(302, &format!("/{}", hop + 1)).into_bytes(),
        };
        let _ = stream.write_all(&answer);
    });
    assert_eq!(fetch(&["127.0.0.1"], &server.url("/0")).unwrap()["markdown"], "there");
}

/// What DNS says at the second time is of no use to whoever rebinds a name: there is no second time in a hop.
#[test]
fn the_connection_goes_to_the_address_that_was_screened() {
    let names = Names::default().with("a.example", &[&["127.0.0.1"], &["127.0.0.2"]]);
    let server = Server::page("text/plain", "first");
    let second = Server::at(&format!("127.0.0.2:{}", server.port()), |_, stream| {
        drop(stream.write_all(&ok("Content-Type: text/plain\r\n", b"second")));
    });
    let url = format!("http://a.example:{}/", server.port());
    let granted = ["a.example", "127.0.0.0/8"];
    assert_eq!(fetch_named(&granted, &names, &url).unwrap()["markdown"], "first");
    assert_eq!(names.looked_up().len(), 1);
    // The control: the name did move.
    let Ok(_second) = second else { return };
    assert_eq!(fetch_named(&granted, &names, &url).unwrap()["markdown"], "second");
}

#[test]
fn a_name_that_moves_between_hops_is_screened_again() {
    let names = Names::default().with("a.example", &[&["127.0.0.1"], &["10.0.0.1"]]);
    let server = redirecting(302, "/there");
    let url = format!("http://a.example:{}/to", server.port());
    let granted = [format!("a.example:{}", server.port()), format!("127.0.0.1:{}", server.port())];
    let granted: Vec<&str> = granted.iter().map(String::as_str).collect();
    assert_denied(fetch_named(&granted, &names, &url), &["leads to 10.0.0.1 is private"]);
    assert_eq!(server.asked().len(), 1);
}
