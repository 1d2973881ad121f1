//! What is never connected to. Each has its control: the same call where it is granted goes through.

use crate::support::{Names, PATIENCE, Server, Session, assert_denied, fetch, fetch_named};
use ringfence_tools::web::WebFetch;
use serde_json::json;

#[test]
fn a_host_that_is_not_granted_is_neither_asked_nor_looked_up() {
    let server = Server::page("text/plain", "here");
    let names = Names::default().with("a.example", &[&["127.0.0.1"]]);
    let url = format!("http://a.example:{}/", server.port());
    for granted in [&[][..], &["b.example"], &["127.0.0.1"], &["0.0.0.0/0"], &["example"], &["sub.a.example"]]
    {
        assert_denied(
            fetch_named(granted, &names, &url),
            &["net of \"a.example", "is not within the granted authority"],
        );
    }
    assert_eq!((server.asked().len(), names.looked_up().len()), (0, 0));
    fetch_named(&["a.example", "127.0.0.1"], &names, &url).unwrap();
}

#[test]
fn the_metadata_address_is_denied_under_any_grant_that_does_not_name_it() {
    for granted in [&["example.com"][..], &["all"], &["0.0.0.0/0"]] {
        assert_denied(fetch(granted, "http://169.254.169.254/latest/meta-data/"), &["169.254.169.254"]);
    }
}

#[test]
fn no_spelling_of_a_private_address_gets_through() {
    let server = Server::page("text/plain", "here");
    for host in [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0x7f.0.0.1",
        "0177.0.0.01",
        "127.1",
        "127.0.1",
        "0",
        "[::1]",
        "[::]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[64:ff9b:1::7f00:1]",
        "[2002:7f00:1::]",
        "[2002:7f00:1::1]",
        "[2001:0:0:0:0:0:80ff:fffe]",
        "[fe80::1]",
        "[fec0::1]",
        "[fc00::1]",
        "[fd00::1]",
        "[ff02::1]",
        "[100::1]",
        "[2001:db8::1]",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "100.64.0.1",
        "169.254.0.1",
        "192.0.0.1",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "0.0.0.0",
        "%31%32%37.0.0.1",
        "127\u{3002}0\u{3002}0\u{3002}1",
        "127.0.0.1.",
    ] {
        for url in [
            format!("http://{host}/"),
            format!("http://{host}:{}/", server.port()),
            format!("https://{host}/"),
        ] {
            assert_denied(fetch(&["all"], &url), &[]);
        }
        assert_denied(fetch(&["all"], &format!("http://{host}/")), &["RFC"]);
    }
    assert_eq!(server.asked().len(), 0);
    fetch(&["127.0.0.1"], &server.url("/")).unwrap();
}

#[test]
fn a_name_that_leads_to_a_private_address_is_denied() {
    for addr in [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:a00:1::",
        "2001::80ff:fffe",
        "fd00::1",
        "fe80::1",
        "0.0.0.0",
    ] {
        let names = Names::default().with("a.example", &[&[addr]]);
        for granted in [&["a.example"][..], &["all"], &["a.example", "0.0.0.0/0", "::/0"]] {
            assert_denied(
                fetch_named(granted, &names, "http://a.example/"),
                &["\"a.example\" leads to", "RFC"],
            );
        }
    }
}

#[test]
fn one_private_address_among_public_ones_denies_them_all() {
    let names = Names::default().with("a.example", &[&["93.184.216.34", "2606:4700::1111", "10.0.0.1"]]);
    assert_denied(fetch_named(&["all"], &names, "http://a.example/"), &["10.0.0.1 is private"]);
}

#[test]
fn a_private_address_must_itself_be_granted() {
    let server = Server::page("text/plain", "here");
    let names = Names::default().with("a.example", &[&["127.0.0.1"]]);
    let (named, addressed) = (format!("a.example:{}", server.port()), format!("127.0.0.1:{}", server.port()));
    let url = format!("http://{named}/");
    for (granted, is) in [
        (&[&*named][..], false),
        (&[&*named, "127.0.0.2"], false),
        (&[&*named, "127.0.0.1:1"], false),
        (&[&*named, "0.0.0.0/0"], false),
        (&[&*addressed], false),
        (&[&*named, "127.0.0.1"], true),
        (&[&*named, &*addressed], true),
        (&["a.example", &*addressed], true),
        (&["a.example", "127.0.0.0/8"], true),
    ] {
        let fetched = fetch_named(granted, &names, &url);
        assert_eq!(fetched.is_ok(), is, "{granted:?}: {fetched:?}");
    }
}

#[test]
fn other_ports_must_be_named() {
    let names = Names::default().with("a.example", &[&["93.184.216.34"]]);
    for granted in [&["all"][..], &["a.example"], &["a.example", "b.example:22"]] {
        for port in [22, 25, 6379, 8080, 65535] {
            let url = format!("http://a.example:{port}/");
            assert_denied(fetch_named(granted, &names, &url), &[&format!("port {port} of \"a.example\"")]);
        }
    }
    assert_eq!(names.looked_up().len(), 0);
}

#[test]
fn other_schemes_and_credentials_are_denied() {
    for (url, said) in [
        ("file:///etc/passwd", "\"file\""),
        ("ftp://a.example/", "\"ftp\""),
        ("data:text/html,<p>x", "\"data\""),
        ("gopher://a.example/", "\"gopher\""),
        ("http://user@a.example/", "user or password"),
        ("http://a.example:80@127.0.0.1/", "user or password"),
    ] {
        assert_denied(fetch(&["all"], url), &[said]);
    }
}

#[test]
fn every_denial_is_recorded_and_none_costs_a_call_that_did_nothing() {
    let names = Names::default().with("a.example", &[&["10.0.0.1"]]);
    let session =
        Session::new(&["a.example"], WebFetch::default().with_resolver(names).with_timeout(PATIENCE));
    let urls = ["file:///x", "http://b.example/", "http://a.example:22/", "http://a.example/"];
    let said: Vec<String> = urls.iter().map(|url| session.call(json!({ "url": url })).unwrap_err()).collect();
    assert_eq!(session.denials(), said);
}
