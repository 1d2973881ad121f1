//! The container's resolver.

use crate::support::{A, AAAA, Core, PATIENCE, TXT, eventually, names, query, read_answer, wait_until};
use ringfence_wire::egress::{EgressRecord, NameOutcome};
use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpStream, UdpSocket},
    thread,
};

const NO_ERROR: u8 = 0;
const NO_SUCH_NAME: u8 = 3;
const REFUSED: u8 = 5;

fn own(last: u8) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::new(198, 18, 7, last))
}

#[test]
fn granted_names_have_addresses_and_others_do_not_exist() {
    let core = Core::start(names(&["b.example:443", "*.c.example", "a.example"]));
    assert_eq!(core.ask("b.example", A), (NO_ERROR, own(1)));
    assert_eq!(core.ask("A.Example", A), (NO_ERROR, own(2)), "the second that is granted whole");
    assert_eq!(core.ask("x.c.example", A), (NO_ERROR, own(128)));
    assert_eq!(core.ask("y.x.c.example", A), (NO_ERROR, own(129)));
    assert_eq!(core.ask("x.c.example", A), (NO_ERROR, own(128)), "again");
    assert_eq!(core.ask("b.example", AAAA), (NO_ERROR, None));
    for kind in [TXT, 255, 12, 10] {
        assert_eq!(core.ask("b.example", kind), (REFUSED, None), "{kind}");
    }
    for name in ["c.example", "d.example", "x.b.example", "b.example.evil.org", "org"] {
        for kind in [A, AAAA, TXT] {
            assert_eq!(core.ask(name, kind), (NO_SUCH_NAME, None), "{name} {kind}");
        }
    }
    wait_until("what was refused is on record", || core.asked("d.example", NameOutcome::Refused) == 3);
    wait_until("a TXT record, too", || core.asked("b.example", NameOutcome::Refused) == 4);
    let given = |name: &str| {
        let records = core.reports().into_iter().map(|report| report.record);
        let addresses = records.filter_map(|record| match record {
            EgressRecord::Name { name: of, outcome: NameOutcome::Answered, address, .. } if of == name => {
                Some(address)
            }
            _ => None,
        });
        addresses.collect::<Vec<_>>()
    };
    assert_eq!(given("b.example"), [own(1)], "once");
    assert_eq!(given("x.c.example"), [own(128)]);
}

#[test]
fn questions_are_answered_over_tcp_and_clients_that_say_nothing_hold_up_nobody() {
    let core = Core::start(names(&["a.example"]));
    // More than are served at once.
    let idle: Vec<_> = (0..100).map(|_| TcpStream::connect(core.dns).unwrap()).collect();
    assert_eq!(core.ask("a.example", A), (NO_ERROR, own(1)));
    drop(idle);
    let mut stream = eventually("one is served", || {
        let mut stream = TcpStream::connect(core.dns).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let framed = |name: &str| {
            let query = query(name, A);
            [u16::try_from(query.len()).unwrap().to_be_bytes().to_vec(), query].concat()
        };
        // Two at once, and in pieces.
        let both = [framed("a.example"), framed("b.example")].concat();
        for piece in both.chunks(7) {
            stream.write_all(piece).ok()?;
        }
        let mut length = [0; 2];
        stream.read_exact(&mut length).ok()?;
        let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(read_answer(&answer), (NO_ERROR, own(1)));
        Some(stream)
    });
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(read_answer(&answer), (NO_SUCH_NAME, None));
    // A length that no query has.
    stream.write_all(&[0xff, 0xff, 1]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

#[test]
fn a_flood_of_made_up_names_is_answered_in_order_and_counted() {
    let core = Core::start(names(&["a.example"]));
    let before: u64 = core.status("VmRSS").trim_end_matches(" kB").parse().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for at in 0..20_000_u32 {
        // Who sends faster than is read loses what the kernel has no room for.
        let _ = socket.send_to(&query(&format!("{at:08x}.tunnel.example"), A), core.udp);
        let _ = socket.send_to(&[0; 3], core.udp);
    }
    drop(socket);
    eventually("a question between them", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
        socket.send_to(&query("a.example", A), core.udp).unwrap();
        let mut answer = [0; 512];
        let count = socket.recv(&mut answer).ok()?;
        assert_eq!(read_answer(&answer[..count]), (NO_ERROR, own(1)));
        Some(())
    });
    let lost = || -> u64 {
        let lost = |record| if let EgressRecord::Lost { count } = record { count } else { 0 };
        core.reports().into_iter().map(|report| lost(report.record)).sum()
    };
    wait_until("what was not recorded is counted", || lost() > 1000);
    assert!(core.reports().len() < 5000, "{}", core.reports().len());
    let after: u64 = core.status("VmRSS").trim_end_matches(" kB").parse().unwrap();
    assert!(after < before + 20_000, "{before} kB, then {after} kB");
}

#[test]
fn names_under_a_wildcard_have_room_for_so_many_and_granted_ones_beside_them() {
    let core = Core::start(names(&["a.example", "*.w.example"]));
    for at in 0..127 {
        assert_eq!(core.ask(&format!("n{at}.w.example"), A).1, own(128 + at));
    }
    assert_eq!(core.ask("more.w.example", A), (2, None), "SERVFAIL: it may be asked for again");
    assert_eq!(core.ask("n5.w.example", A).1, own(133));
    assert_eq!(core.ask("a.example", A).1, own(1));
    wait_until("that is on record", || core.asked("more.w.example", NameOutcome::NoRoom) == 1);
}

#[test]
fn what_is_no_question_has_no_answer_or_one_that_says_so() {
    let core = Core::start(names(&["a.example"]));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut broken = query("a.example", A);
    broken.truncate(20);
    // An answer, an empty message, noise; and then half a question.
    let mut response = query("a.example", A);
    response[2] |= 0x80;
    for message in [&response[..], &[], &[0xff; 1300], &broken] {
        socket.send_to(message, core.udp).unwrap();
    }
    let mut answer = [0; 512];
    let count = socket.recv(&mut answer).unwrap();
    assert_eq!((answer[3] & 15, answer[..count].len() <= 512), (1, true), "FORMERR");
    thread::yield_now();
    assert_eq!(core.ask("a.example", A), (NO_ERROR, own(1)), "the control");
}
