//! The process itself: how it is confined, what it takes, how it ends.

use crate::{
    site::Site,
    support::{Given, HOST, KEY, PATIENCE, Proxy, Rules, eventually},
};
use ringfence_test_support::wait::wait_until;
use ringfence_wire::credentials::{CredentialPlace, FromCredentials, SecretFor, ToCredentials};
use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
};

fn site() -> Site {
    Site::answering(HOST, |asked| asked.target.clone())
}

fn status(pid: u32, key: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{key}:"))).unwrap();
    line.trim().to_owned()
}

#[test]
fn it_is_confined_before_it_has_a_credential_and_holds_no_copy_where_others_look() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    for (key, value) in [
        ("CapEff", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
        ("Threads", "1"),
    ] {
        assert_eq!(status(proxy.pid(), key), value, "{key}");
    }
    let FromCredentials::Ready { certificate } = &proxy.said else { panic!() };
    assert!(certificate.as_str().starts_with("-----BEGIN CERTIFICATE-----\n"));
    for file in ["environ", "cmdline"] {
        let text = fs::read(format!("/proc/{}/{file}", proxy.pid())).unwrap_or_default();
        assert!(memchr::memmem::find(&text, KEY.as_bytes()).is_none(), "{file}");
    }
    assert_eq!(proxy.curl("/with/a", &[]).0, "/with/a", "and works");
}

#[test]
fn a_credential_that_would_be_found_everywhere_is_refused() {
    let site = site();
    for key in ["only-15-letters", "\u{1}\u{2}\u{3}4567890123456"] {
        let (said, ended) = Proxy::start_with(&Rules::default(), site.port, &site.root, key).err().unwrap();
        let FromCredentials::Complaint(why) = said else { panic!("{said:?}") };
        assert!(why.contains("the credential of a.example") && !why.contains(key), "{why}");
        assert!(!ended.success());
    }
}

#[test]
fn a_credential_of_another_host_is_not_taken() {
    let site = site();
    let strange = |host: &str| SecretFor { host: host.into(), port: 443, place: CredentialPlace::Bearer };
    let given = Given { of: Some(strange("b.example")), ..Given::default() };
    let (said, ended) =
        Proxy::start_after(&Rules::default(), site.port, &site.root, KEY, given).err().unwrap();
    let FromCredentials::Complaint(why) = said else { panic!("{said:?}") };
    assert!(why.contains("b.example:443") && !why.contains(KEY) && !ended.success(), "{why}");
}

#[test]
fn the_next_process_of_a_container_is_trusted_by_those_who_trust_the_one_before() {
    let site = site();
    let before = Proxy::start(&Rules::default(), site.port, &site.root);
    let start = |earlier, is_bad| {
        let given = Given { earlier: Some(earlier), is_bad, of: None };
        Proxy::start_after(&Rules::default(), site.port, &site.root, KEY, given).unwrap()
    };
    let kept = before.kept.try_clone().unwrap();
    let mut old = before.authority();
    let next = start(kept, false);
    assert_ne!(before.said, next.said, "it makes a certificate of its own");
    let trusts =
        |proxy: &Proxy, old: &std::path::Path| proxy.curl("/with/a", &["--cacert", old.to_str().unwrap()]);
    assert_eq!(trusts(&next, &old).0, "/with/a");
    // A third one, from what the second one kept.
    let third = start(next.kept.try_clone().unwrap(), false);
    assert_eq!(trusts(&third, &old).0, "/with/a");
    old = next.authority();
    assert_eq!(trusts(&third, &old).0, "/with/a");
    // What is no key makes another, which is said.
    let none = fs::File::open("/dev/null").unwrap().into();
    let other = start(none, true);
    assert!(matches!(&other.heard.lock().unwrap()[0], FromCredentials::Complaint(why) if why.contains("CA")));
    assert_ne!(trusts(&other, &old).1, 0, "the control");
    assert_eq!(other.curl("/with/a", &[]).0, "/with/a");
}

#[test]
fn without_roots_there_is_no_way_to_check_servers_so_it_does_not_run() {
    let (said, _) = Proxy::start_with(&Rules::default(), 1, "", KEY).err().unwrap();
    let FromCredentials::Complaint(why) = said else { panic!("{said:?}") };
    assert!(why.contains("ca-certificates"), "{why}");
}

#[test]
fn it_ends_with_the_core_and_connections_end_with_their_worker() {
    let site = site();
    let mut proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut open = crate::clients::trusting(&proxy);
    let ask = format!("GET /with/a HTTP/1.1\r\nHost: {HOST}:{}\r\n\r\n", proxy.port);
    open.write_all(ask.as_bytes()).unwrap();
    let mut byte = [0];
    open.read_exact(&mut byte).unwrap();
    proxy.link().shutdown(Shutdown::Both).unwrap();
    let mut rest = Vec::new();
    let _ = open.read_to_end(&mut rest);
    proxy.relink();
    assert_eq!(proxy.curl("/with/b", &[]).0, "/with/b", "the next worker's are served");
    proxy.core.shutdown(Shutdown::Both).unwrap();
    assert!(proxy.ended().success());
}

#[test]
fn it_stops_when_it_is_told_to() {
    let site = site();
    let mut proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    proxy.order(&ToCredentials::Stop);
    assert!(proxy.ended().success());
}

#[test]
fn a_worker_that_says_what_none_says_loses_its_link_and_nobody_else_anything() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let bare = br#"{"id":1,"host":"a.example","port":443,"said":""}"#;
    let without_sockets = [&u32::try_from(bare.len()).unwrap().to_be_bytes(), bare.as_slice()].concat();
    let strange = [b"\0\0\0\0".as_slice(), b"\xff\xff\xff\xff", b"\0\0\0\x02{}", &without_sockets];
    for (id, bytes) in (1..).zip(strange) {
        let mut link = proxy.link();
        link.set_read_timeout(Some(PATIENCE)).unwrap();
        let _ = link.write_all(bytes);
        let mut byte = [0];
        assert!(matches!(link.read(&mut byte), Ok(0)), "{bytes:?}");
        let ended = FromCredentials::LinkEnded { id };
        wait_until("another is asked for", || proxy.heard.lock().unwrap().contains(&ended));
        proxy.relink();
    }
    assert_eq!(proxy.curl("/with/a", &[]).0, "/with/a");
}

#[test]
fn crowds_and_silent_clients_leave_room_for_others() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    // Each says the first byte of a ClientHello and nothing more.
    let silent: Vec<_> = (0..200)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
            stream.write_all(&[22]).unwrap();
            stream
        })
        .collect();
    assert_eq!(proxy.curl("/with/a", &[]).0, "/with/a");
    let more: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
            stream.write_all(&[22]).unwrap();
            stream
        })
        .collect();
    let full = |over: &crate::support::Over| {
        over.refused
            .as_ref()
            .is_some_and(|refused| refused.cause == ringfence_wire::egress::EgressCause::Full)
    };
    eventually("those that are too many", || proxy.over().iter().any(full).then_some(()));
    drop((silent, more));
    wait_until("there is room again", || proxy.curl("/with/b", &[]).0 == "/with/b");
}
