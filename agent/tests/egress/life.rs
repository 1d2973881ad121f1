//! The worker itself: policies that change, its line to the auditor, its end; and what is refused whatever is said.

use crate::{
    servers::{Server, Tls},
    support::{A, Core, PATIENCE, TXT, eventually, is_refused, local, names, rest_of, say, wait_until},
};
use ringfence_wire::{
    conn::Conn,
    egress::{
        EgressCause, EgressOutcome, EgressRecord, FromEgress, MAX_QUESTION, NameOptions, NameOutcome, Names,
        ToEgress,
    },
    mcp::McpReply,
    message::Failure,
};
use std::{
    io::{Read, Write},
    net::Ipv4Addr,
    os::{fd::AsFd, unix::net::UnixStream},
};

/// A server that sends back what it is sent, and how it is granted.
fn echo() -> (Server, String) {
    let server = Server::echo();
    let rule = format!("tcp:localhost:{}", server.port);
    (server, rule)
}

fn goes_round(mut stream: &std::net::TcpStream) {
    stream.write_all(b"ping").unwrap();
    let mut back = [0; 4];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"ping");
}

#[test]
fn a_worker_is_confined_and_says_so_if_it_cannot_be_one() {
    let core = Core::start(names(&["a.example"]));
    assert_eq!((core.status("NoNewPrivs").as_str(), core.status("Seccomp").as_str()), ("1", "2"));
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&core.status(set), 16).unwrap(), 0, "{set}");
    }
    // Nobody but root looks into it.
    let maps = std::fs::metadata(format!("/proc/{}/environ", core.pid())).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::uid(&maps), 0);
    let alone = std::process::Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .arg("egress-worker")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert!(!alone.status.success());
    let said = String::from_utf8(alone.stderr).unwrap();
    assert!(said.contains("started by the daemon"), "{said}");
}

#[test]
fn connections_that_nobody_governed_made_are_reset() {
    let (server, rule) = echo();
    let core = Core::start(local(&[&rule]));
    let address = core.ask("localhost", A).1.unwrap();
    assert!(is_refused(&core.connect_as(None)), "an ungoverned process");
    // Addresses that stand for no name, and another container's.
    for address in [[198, 18, 7, 2], [198, 18, 7, 200], [198, 18, 7, 0], [198, 18, 8, 1], [127, 0, 0, 1]] {
        let stream = core.connect(Ipv4Addr::from(address), server.port);
        assert!(is_refused(&stream), "{address:?}");
    }
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NotGranted));
    wait_until("each but the first is on record", || core.all_connections() == 5);
    assert_eq!(server.connections(), 0);
    goes_round(&core.connect(address, server.port));
}

#[test]
fn another_policy_ends_what_it_does_not_grant_and_nothing_else() {
    let ((one, rule), (two, other)) = (echo(), echo());
    let core = Core::start(local(&[&rule, &other]));
    let (first, second) = (core.open("localhost", one.port), core.open("localhost", two.port));
    goes_round(&first);
    goes_round(&second);
    core.order(&ToEgress::Policy { names: local(&[&other, "new.example"]), audit: false });
    assert!(is_refused(&first));
    goes_round(&second);
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
    assert!(matches!(record, EgressRecord::Connection { sent: 4, received: 4, .. }), "{record:?}");
    assert_eq!(core.ask("localhost", A).1, Some(Ipv4Addr::new(198, 18, 7, 1)), "it keeps its address");
    assert_eq!(core.ask("new.example", A).1, Some(Ipv4Addr::new(198, 18, 7, 2)));
    let mut names = local(&[&rule, &other]);
    names.denies = self::names(&["localhost"]).rules;
    names.denies[0].rule = 9;
    core.order(&ToEgress::Policy { names, audit: false });
    assert!(is_refused(&second), "a deny is stronger");
    wait_until("the rule is on record", || {
        let is_it = |record: &EgressRecord| matches!(record, EgressRecord::Connection { rule: Some(9), .. });
        core.connections().iter().any(is_it)
    });
    assert_eq!(core.ask("localhost", A).1, None);
}

#[test]
fn an_address_that_is_denied_later_ends_what_goes_there() {
    let (server, rule) = echo();
    let core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", server.port);
    goes_round(&stream);
    let mut names = local(&[&rule]);
    core.order(&ToEgress::Policy { names: names.clone(), audit: false });
    goes_round(&stream);
    names.addresses.clear();
    core.order(&ToEgress::Policy { names, audit: false });
    assert!(is_refused(&stream));
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
}

#[test]
fn a_container_sends_a_name_no_more_than_it_may() {
    let (server, rule) = echo();
    let options = NameOptions { max_upload: Some(100_000), ..NameOptions::default() };
    let core = Core::start(Names { options, ..local(&[&rule]) });
    let first = core.open("localhost", server.port);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = rest_of(&first);
        });
        say(&first, &[7; 60_000]);
        // The server has it all before more is sent.
        wait_until("it went", || {
            let mut second = core.open("localhost", server.port);
            second.write_all(b"x").is_ok() && second.read(&mut [0]).is_ok_and(|count| count == 1)
        });
        say(&first, &[7; 60_000]);
    });
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::TooMuch));
    let EgressRecord::Connection { sent, .. } = record else { unreachable!() };
    assert!((60_000..=100_000).contains(&sent), "{sent}");
    let sent = || -> u64 {
        let of = |record| if let EgressRecord::Connection { sent, .. } = record { sent } else { 0 };
        core.connections().into_iter().map(of).sum()
    };
    let more = core.open("localhost", server.port);
    say(&more, b"more");
    assert!(is_refused(&more));
    wait_until("both are on record", || sent() == 100_000);
}

#[test]
fn in_audit_mode_what_would_be_refused_passes_and_is_recorded() {
    let tls = Tls::new(&["localhost", "other.example"]);
    // Neither the other name nor loopback is granted.
    let core = Core::start_audit(names(&["granted.example"]));
    assert_eq!(core.ask("localhost", TXT).0, 5);
    let stream = core.open("localhost", tls.server.port);
    assert_eq!(Tls::talk(tls.client("other.example"), stream, "hello").unwrap(), "hello");
    let record = core.recorded(EgressOutcome::WouldDeny, Some(EgressCause::NotGranted));
    assert!(
        matches!(&record, EgressRecord::Connection { name, dialled: Some(_), .. } if name == "localhost"),
        "{record:?}"
    );
    assert_eq!(core.asked("localhost", NameOutcome::WouldDeny), 1);
    let core = Core::start_audit(local(&["localhost"]));
    let stream = core.open("localhost", tls.server.port);
    assert_eq!(Tls::talk(tls.client("other.example"), stream, "hello").unwrap(), "hello");
    core.recorded(EgressOutcome::WouldDeny, Some(EgressCause::OtherName));
    let (server, _) = echo();
    let mut stream = core.open("localhost", server.port);
    stream.write_all(&[1, 2]).unwrap();
    let mut back = [0; 2];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, [1, 2], "neither TLS nor HTTP");
    drop(stream);
    core.recorded(EgressOutcome::WouldDeny, Some(EgressCause::NotTls));
    let greeting = Server::new(|mut stream| drop(stream.write_all(b"hi")));
    assert_eq!(rest_of(&core.open("localhost", greeting.port)), b"hi", "a server that speaks first");
}

#[test]
fn records_wait_for_a_line_and_those_without_room_are_counted() {
    let core = Core::start_mute(names(&["*.w.example"]), false);
    for at in 0..100 {
        core.ask(&format!("{at}.w.example"), A);
    }
    wait_until("a line is asked for", || core.heard().contains(&FromEgress::Line));
    let line = core.line();
    wait_until("all are there", || core.reports().len() == 100);
    line.shutdown(std::net::Shutdown::Both).unwrap();
    let asked = || core.heard().iter().filter(|said| **said == FromEgress::Line).count();
    let before = asked();
    // To an address that stands for no name, at more ports than are followed, and many times at another.
    for port in 1..=1000 {
        drop(core.connect(Ipv4Addr::new(198, 18, 7, 255), port));
    }
    core.rest(Ipv4Addr::new(198, 18, 7, 255), 443);
    for _ in 0..4000 {
        // It may be reset before it is there.
        drop(std::net::TcpStream::connect(core.tcp));
    }
    wait_until("all were refused", || {
        let counts = core.heard().into_iter().rev().find_map(|said| match said {
            FromEgress::Counts(counts) => Some(counts),
            _ => None,
        });
        counts.is_some_and(|counts| counts.refused == 5000 && counts.connections == 5000)
    });
    wait_until("another is asked for", || asked() > before);
    let _line = core.line();
    let lost = || -> usize {
        let lost = |record| if let EgressRecord::Lost { count } = record { count } else { 0 };
        core.reports().into_iter().map(|report| lost(report.record) as usize).sum()
    };
    wait_until("each is there or counted", || core.all_connections() as usize + lost() == 5000);
    assert!(core.connections().len() <= 4096);
}

#[test]
fn a_complaint_about_the_line_is_over_when_there_is_one() {
    let core = Core::start_mute(names(&["*.w.example"]), false);
    let (ours, theirs) = UnixStream::pair().unwrap();
    Conn::new(core.link(), PATIENCE, MAX_QUESTION)
        .send_with_descriptors(&ToEgress::Line, &[theirs.as_fd()])
        .unwrap();
    drop(theirs);
    let mut auditor = Conn::new(ours, PATIENCE, MAX_QUESTION);
    auditor.send(&McpReply::Failed(Failure::new("too many"))).unwrap();
    drop(auditor);
    let complaint = eventually("it complains", || {
        core.heard().into_iter().find_map(|said| match said {
            FromEgress::Complaint(why) => Some(why),
            _ => None,
        })
    });
    assert!(complaint.contains("too many"), "{complaint}");
    let over = FromEgress::Over(complaint);
    assert!(!core.heard().contains(&over));
    let _line = core.line();
    wait_until("it is over", || core.heard().contains(&over));
}

#[test]
fn a_worker_that_is_told_to_stop_puts_all_on_record_first() {
    let (server, rule) = echo();
    let mut core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", server.port);
    goes_round(&stream);
    core.ask("evil.example", A);
    core.ask("evil.example", A);
    core.order(&ToEgress::Stop);
    assert!(core.ended().success());
    assert!(is_refused(&stream));
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
    wait_until("the second time, too", || core.asked("evil.example", NameOutcome::Refused) == 2);
}

#[test]
fn a_worker_ends_with_its_core_and_one_that_is_killed_takes_its_connections_along() {
    let (server, rule) = echo();
    let mut core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", server.port);
    goes_round(&stream);
    core.leave();
    assert!(core.ended().success());
    assert!(is_refused(&stream));
    let mut core = Core::start(local(&[&rule]));
    let stream = core.open("localhost", server.port);
    goes_round(&stream);
    wait_until("that it was there is on record already", || core.begun() == 1);
    core.kill();
    assert!(is_refused(&stream));
    assert_eq!((core.begun(), core.connections().len()), (1, 0));
}
