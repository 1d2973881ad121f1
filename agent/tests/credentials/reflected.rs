//! Servers that send a credential back.

use crate::{
    site::Site,
    support::{HOST, KEY, Proxy, Rules},
};
use ringfence_test_support::wait::wait_until;
use ringfence_wire::{credentials::Otherwise, egress::EgressCause};
use std::io::Write;

/// A server that shows the credential at `/with/echo`, in a list of tokens.
fn site() -> Site {
    Site::answering(HOST, |asked| match asked.target.as_str() {
        "/with/echo" => format!("[{{\"token\":\"{KEY}\"}},{{\"token\":\"another-{}\"}}]", "x".repeat(5000)),
        _ => "nothing".to_owned(),
    })
}

fn reflections(proxy: &Proxy) -> usize {
    let refused = |over: &crate::support::Over| {
        over.refused.as_ref().is_some_and(|refused| refused.cause == EgressCause::Reflects)
    };
    proxy.over().iter().filter(|over| refused(over)).count()
}

#[test]
fn an_answer_with_a_credential_is_given_whole_and_is_the_last_and_on_record() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let other = format!("https://{HOST}:{}/with/other", proxy.port);
    let without = format!("https://{HOST}:{}/without", proxy.port);
    let echo = format!("https://{HOST}:{}/with/echo", proxy.port);
    let (said, status) = proxy.curl("/with/a", &[&other]);
    assert_eq!((said.as_str(), status), ("nothingnothing", 0));
    wait_until("it is over", || proxy.over().len() == 1);
    assert_eq!((proxy.over()[0].refused.as_ref(), reflections(&proxy)), (None, 0), "the control");
    // What is asked behind it goes over another connection; a refusal before it hides nothing.
    let (said, status) = proxy.curl("/with/other", &[&without, &echo]);
    assert_eq!(status, 0, "{said}");
    assert!(said.contains(&format!("\"token\":\"{}\"", "*".repeat(KEY.len()))), "{said}");
    assert!(said.contains(&format!("{}\"}}]", "x".repeat(5000))), "all of it: {said}");
    wait_until("they are over", || reflections(&proxy) == 1);
    assert!(proxy.refused(EgressCause::Reflects).contains("a.example sent a credential back"));
}

#[test]
fn a_host_whose_ordinary_answers_have_the_credential_goes_on_being_asked() {
    let site = site();
    let rules = Rules { otherwise: Otherwise::Pass, ..Rules::default() };
    let proxy = Proxy::start(&rules, site.port, &site.root);
    for _ in 0..12 {
        assert!(proxy.curl("/with/echo", &[]).0.contains("***"));
    }
    for target in ["/with/other", "/other"] {
        assert_eq!(proxy.curl(target, &[]), ("nothing".to_owned(), 0));
    }
    wait_until("all are over", || proxy.over().len() == 14);
    assert_eq!(reflections(&proxy), 12, "each is on record");
}

/// Of an answer, and a multiple of the credential's.
const LENGTH: usize = KEY.len() * 120_000;

#[test]
fn a_stream_of_guesses_ends_behind_the_first_that_is_right() {
    let site = Site::new(HOST, |asked, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", LENGTH)?;
        let first = if asked.target == "/with/right" { KEY } else { "another-of-that-size-" };
        assert_eq!(first.len(), KEY.len());
        stream.write_all(first.as_bytes())?;
        for _ in 1..LENGTH / KEY.len() {
            stream.write_all(b"another-of-that-size\n")?;
        }
        stream.flush().map(|()| true)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let file = proxy.dir().join("answer");
    let get = |target: &str| {
        let (_, status) = proxy.curl(target, &["-o", file.to_str().unwrap()]);
        (std::fs::metadata(&file).unwrap().len(), status == 0)
    };
    assert_eq!(get("/with/wrong"), (LENGTH as u64, true), "the control");
    let (length, is_whole) = get("/with/right");
    assert!(length <= 1 << 20 && !is_whole, "{length}");
    wait_until("it is on record", || reflections(&proxy) == 1);
}
