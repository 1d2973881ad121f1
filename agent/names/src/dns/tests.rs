//! Queries of other writers, answers to other readers (`simple-dns`), and what is no query.

use super::*;
use proptest::prelude::*;
use simple_dns::{
    CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE, rdata::OPT, rdata::RData,
};
use std::net::Ipv4Addr;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);

/// A query as resolvers write it.
fn query(name: &str, kind: TYPE, edns: Option<u16>) -> Vec<u8> {
    let mut packet = Packet::new_query(0xbeef);
    packet.set_flags(PacketFlag::RECURSION_DESIRED | PacketFlag::AUTHENTIC_DATA);
    let name = Name::new_unchecked(name);
    packet.questions.push(Question::new(name, QTYPE::TYPE(kind), QCLASS::CLASS(CLASS::IN), false));
    *packet.opt_mut() =
        edns.map(|udp_packet_size| OPT { opt_codes: Vec::new(), udp_packet_size, version: 0 });
    packet.build_bytes_vec().unwrap()
}

/// What every stub resolver asks of an answer, whatever is in it.
fn accepted<'a>(query: &[u8], answer: &'a [u8]) -> Packet<'a> {
    assert!(answer.len() <= 512, "{} bytes", answer.len());
    assert_eq!(answer[..2], query[..2], "the id");
    let (question, _) = split_question(query);
    assert_eq!(split_question(answer).0, question, "the question, byte for byte");
    let packet = Packet::parse(answer).unwrap();
    assert!(packet.has_flags(PacketFlag::RESPONSE | PacketFlag::RECURSION_AVAILABLE));
    let desired = PacketFlag::RECURSION_DESIRED;
    assert_eq!(packet.has_flags(desired), Packet::parse(query).unwrap().has_flags(desired));
    for flag in [PacketFlag::TRUNCATION, PacketFlag::AUTHENTIC_DATA, PacketFlag::AUTHORITATIVE_ANSWER] {
        assert!(!packet.has_flags(flag), "{flag:?}");
    }
    assert_eq!(
        packet.opt().is_some(),
        Packet::parse(query).unwrap().opt().is_some(),
        "EDNS where it is asked for"
    );
    packet
}

/// The bytes of the question, and what follows.
fn split_question(message: &[u8]) -> (&[u8], &[u8]) {
    let mut at = HEADER;
    while message[at] != 0 {
        at += 1 + usize::from(message[at]);
    }
    message[HEADER..].split_at(at + 5 - HEADER)
}

#[test]
fn a_query_is_read_as_it_was_written() {
    for (name, kind, edns, read_as) in [
        ("example.org", TYPE::A, None, "example.org"),
        ("eXaMple.ORG", TYPE::AAAA, Some(1232), "example.org"),
        ("_443._https.a.example", TYPE::HTTPS, Some(4096), "_443._https.a.example"),
        ("1.0.18.198.in-addr.arpa", TYPE::PTR, Some(512), "1.0.18.198.in-addr.arpa"),
        ("", TYPE::NS, None, "."),
    ] {
        let query = read(&query(name, kind, edns)).unwrap();
        assert_eq!((query.id, query.name.as_str(), query.kind), (0xbeef, read_as, Kind(u16::from(kind))));
        assert_eq!((query.class, query.edns), (1, edns));
    }
    // RFC 6891 reads all below 512 as 512.
    assert_eq!(read(&query("a.example", TYPE::A, Some(0))).unwrap().edns, Some(512));
}

#[test]
fn a_name_that_no_host_has_is_shown_and_never_granted() {
    let host = |labels: &[&[u8]]| {
        let mut bytes = query("", TYPE::A, None)[..HEADER].to_vec();
        for label in labels {
            bytes.push(label.len() as u8);
            bytes.extend_from_slice(label);
        }
        bytes.extend([0, 0, 1, 0, 1]);
        let query = read(&bytes).unwrap();
        (query.name.clone(), query.host().map(str::to_owned))
    };
    let name = Some("_a-1.x.example".to_owned());
    assert_eq!(host(&[b"_A-1", b"x", b"example"]), ("_a-1.x.example".to_owned(), name), "the control");
    for (label, shown) in [
        (&b"a@b"[..], "a@b.x.example"),
        (b"a.b", "a\\046b.x.example"),
        (b"$(id)", "$(id).x.example"),
        (b"a b", "a\\032b.x.example"),
        (b"*", "*.x.example"),
        (b"\xc3\xa4", "\\195\\164.x.example"),
    ] {
        assert_eq!(host(&[label, b"x", b"example"]), (shown.to_owned(), None));
    }
    assert_eq!(host(&[]), (".".to_owned(), None));
}

#[test]
fn options_of_edns_are_passed_over() {
    let mut with_cookie = query("a.example", TYPE::A, Some(1232));
    let at = with_cookie.len() - 2;
    with_cookie.splice(at.., [0, 12, 0, 10, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8]);
    let query = read(&with_cookie).unwrap();
    assert_eq!(query.edns, Some(1232));
    accepted(&with_cookie, &query.answer(Answer::Address(ADDRESS)));
    // DO asks for signatures: there are none, so it is not repeated.
    let mut with_do = self::query("a.example", TYPE::A, Some(1232));
    let at = with_do.len() - 4;
    with_do[at] = 0x80;
    let answer = read(&with_do).unwrap().answer(Answer::Empty);
    assert_eq!(answer[answer.len() - 11..], [0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_name_that_is_granted_has_an_address_and_nothing_else() {
    for (kind, treatment) in [
        (TYPE::A, Treatment::Address),
        (TYPE::AAAA, Treatment::Empty),
        (TYPE::HTTPS, Treatment::Empty),
        (TYPE::SVCB, Treatment::Empty),
        (TYPE::TXT, Treatment::Refused),
        (TYPE::SRV, Treatment::Refused),
        (TYPE::MX, Treatment::Refused),
        (TYPE::PTR, Treatment::Refused),
        (TYPE::CNAME, Treatment::Refused),
        (TYPE::NULL, Treatment::Refused),
        (TYPE::DS, Treatment::Refused),
        (TYPE::Unknown(65_280), Treatment::Refused),
    ] {
        assert_eq!(read(&query("a.example", kind, None)).unwrap().treatment(), treatment, "{kind:?}");
    }
    let mut any = query("a.example", TYPE::A, None);
    let end = any.len();
    any[end - 3] = 255;
    assert_eq!(read(&any).unwrap().treatment(), Treatment::Refused);
    assert_eq!(read(&any).unwrap().kind.to_string(), "ANY");
    let mut chaos = query("version.bind", TYPE::A, None);
    let end = chaos.len();
    chaos[end - 1] = 3;
    let chaos = read(&chaos).unwrap();
    assert_eq!((chaos.class, chaos.treatment()), (3, Treatment::Refused));
    let packet = chaos.answer(Answer::Address(ADDRESS));
    assert!(Packet::parse(&packet).unwrap().answers.is_empty(), "no address of another class");
}

#[test]
fn every_answer_is_one_that_resolvers_take() {
    for edns in [None, Some(1232)] {
        for name in
            ["eXaMpLe.oRg", "a", &["a".repeat(62), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".")]
        {
            let bytes = query(name, TYPE::A, edns);
            let query = read(&bytes).unwrap();
            for (answer, code) in [
                (Answer::Address(ADDRESS), RCODE::NoError),
                (Answer::Empty, RCODE::NoError),
                (Answer::NoSuchName, RCODE::NameError),
                (Answer::Refused, RCODE::Refused),
                (Answer::Failed, RCODE::ServerFailure),
            ] {
                let message = query.answer(answer);
                let packet = accepted(&bytes, &message);
                assert_eq!(packet.rcode(), code, "{answer:?}");
                assert_eq!(packet.answers.len(), usize::from(matches!(answer, Answer::Address(_))));
                for record in &packet.answers {
                    assert_eq!(record.name, packet.questions[0].qname);
                    assert_eq!((record.class, record.ttl), (CLASS::IN, TTL));
                    let RData::A(address) = &record.rdata else { panic!("{record:?}") };
                    assert_eq!(Ipv4Addr::from(address.address), ADDRESS);
                }
                let is_negative = matches!(answer, Answer::Empty | Answer::NoSuchName);
                assert_eq!(packet.name_servers.len(), usize::from(is_negative));
                for record in &packet.name_servers {
                    let RData::SOA(start) = &record.rdata else { panic!("{record:?}") };
                    assert_eq!((record.ttl, start.minimum), (NEGATIVE_TTL, NEGATIVE_TTL));
                    assert_eq!(record.name.get_labels().len(), 0, "a zone that has every name");
                }
                assert_eq!(
                    Packet::parse(&framed(&message)[2..]).unwrap().answers.len(),
                    packet.answers.len()
                );
            }
        }
    }
    // An address where none was asked for would be no answer.
    let aaaa = read(&query("a.example", TYPE::AAAA, None)).unwrap();
    assert_eq!(aaaa.answer(Answer::Address(ADDRESS)), aaaa.answer(Answer::Empty));
}

#[test]
fn bytes_that_no_granted_name_has_are_escaped() {
    let labels = |labels: &[&[u8]]| {
        let mut message = query("", TYPE::TXT, None);
        let mut name: Vec<u8> = Vec::new();
        for label in labels {
            name.push(label.len() as u8);
            name.extend(*label);
        }
        message.splice(HEADER..HEADER, name);
        read(&message).unwrap().name
    };
    assert_eq!(labels(&[b"a.b", b"example"]), "a\\046b.example");
    assert_eq!(labels(&[b"a\\", b"example"]), "a\\092.example");
    assert_eq!(labels(&[b"\0\xff", b" "]), "\\000\\255.\\032");
    assert_eq!(labels(&[b"*", b"Example"]), "*.example", "the control");
    assert!(labels(&[&[0; 63], &[0; 63], &[0; 63], &[0; 61]]).len() <= 1100, "bounded");
}

/// What is done to a query, why it is none then, and the code that it is answered with.
type Broken = (&'static str, fn(&mut Vec<u8>), Option<u8>);

const BROKEN: &[Broken] = &[
    ("shorter than a DNS header", |q| q.truncate(11), None),
    ("is an answer", |q| q[2] |= 0x80, None),
    ("no standard query", |q| q[2] |= 0x10, Some(4)),
    ("no standard query", |q| q[2] |= 0x28, Some(4)),
    ("longer than any query", |q| q.resize(MAX_QUERY + 1, 0), Some(1)),
    ("not one question", |q| q[5] = 0, Some(1)),
    ("not one question", |q| q[5] = 2, Some(1)),
    ("not one question", |q| q[4] = 1, Some(1)),
    ("records beside", |q| q[7] = 1, Some(1)),
    ("records beside", |q| q[9] = 1, Some(1)),
    ("records beside", |q| q[11] = 2, Some(1)),
    ("compressed", |q| q[12] = 0xc0, Some(1)),
    ("no known kind", |q| q[12] = 0x41, Some(1)),
    ("does not end", |q| q.truncate(20), Some(1)),
    ("not all there", |q| q.truncate(27), Some(1)),
    ("additional record is not all there", |q| q.truncate(31), Some(1)),
    ("bytes behind its end", |q| q[11] = 0, Some(1)),
    ("not all that is left", |q| q.push(0), Some(1)),
    ("records beside", |q| q[29] = 16, Some(1)),
    ("records beside", |q| q[30] = 1, Some(1)),
    (
        "options do not fit",
        |q| {
            q[39] = 3;
            q.extend([0, 10, 0])
        },
        Some(1),
    ),
    (
        "options do not fit",
        |q| {
            q[39] = 5;
            q.extend([0, 10, 0, 2, 0])
        },
        Some(1),
    ),
];

#[test]
fn what_is_no_query_is_answered_so_or_not_at_all() {
    let whole = query("a.example.c", TYPE::A, Some(1232));
    assert!(read(&whole).is_ok(), "the control");
    for (why, break_it, code) in BROKEN {
        let mut message = whole.clone();
        break_it(&mut message);
        let unreadable = read(&message).unwrap_err();
        assert!(unreadable.reason.contains(why), "{} is not {why}", unreadable.reason);
        let answered = unreadable.answer.map(|answer| {
            let packet = Packet::parse(&answer).unwrap();
            assert!(
                packet.has_flags(PacketFlag::RESPONSE)
                    && packet.id() == 0xbeef
                    && packet.questions.is_empty()
            );
            answer[3] & 0xf
        });
        assert_eq!(answered, *code, "{why}");
    }
    let mut long = query("", TYPE::A, None);
    long.splice(HEADER..HEADER, [b"\x3f".to_vec(), vec![b'a'; 63]].concat().repeat(4));
    assert!(read(&long).unwrap_err().reason.contains("longer than any"));
}

#[test]
fn a_later_version_of_edns_is_told_that_this_is_version_0() {
    let mut later = query("a.example", TYPE::A, Some(1232));
    let at = later.len() - 5;
    later[at] = 1;
    let answer = read(&later).unwrap_err().answer.unwrap();
    assert_eq!(split_question(&answer).0, split_question(&later).0);
    // The code 16: nothing in the header, 1 in the record.
    assert_eq!((answer[3] & 0xf, &split_question(&answer).1[5..7]), (0, &[1, 0][..]));
}

#[test]
fn messages_over_tcp_come_one_after_the_other() {
    let (first, second) = (query("a.example", TYPE::A, None), query("b.example", TYPE::A, Some(1232)));
    let stream = [framed(&first), framed(&second)].concat();
    for end in 0..2 + first.len() {
        assert_eq!(frame(&stream[..end]), Ok(None));
    }
    assert_eq!(frame(&stream), Ok(Some(&first[..])));
    assert_eq!(frame(&stream[2 + first.len()..]), Ok(Some(&second[..])));
    assert_eq!((frame(&[0, 11]), frame(&[4, 209])), (Err(BadFrame(11)), Err(BadFrame(1233))));
    assert_eq!(frame(&[4, 208]), Ok(None), "the control");
}

proptest! {
    /// Whatever the bytes: what is read is what another reader reads, and every answer to it is one.
    #[test]
    fn what_is_read_is_what_others_read(
        name in prop::collection::vec("[a-zA-Z0-9_-]{1,63}", 0..5),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        edns: Option<u16>,
    ) {
        let mut message = query(&name.join("."), TYPE::A, edns);
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        match read(&message) {
            // simple-dns knows fewer types and classes, and refuses the reserved bit, which others ignore.
            Ok(query) if message[3] & 0x40 != 0 || (query.kind, query.class) != (Kind::A, 1) => {
                prop_assert!(query.answer(Answer::NoSuchName).len() <= 512);
            }
            Ok(query) => {
                let other = Packet::parse(&message).unwrap();
                prop_assert_eq!(other.questions.len(), 1);
                prop_assert_eq!(other.opt().is_some(), query.edns.is_some());
                let named = other.questions[0].qname.to_string();
                if named.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\') && !named.is_empty() {
                    prop_assert_eq!(named.to_ascii_lowercase(), query.name.clone());
                }
                for answer in [Answer::Address(ADDRESS), Answer::Empty, Answer::NoSuchName, Answer::Failed] {
                    accepted(&message, &query.answer(answer));
                }
            }
            Err(unreadable) => {
                if let Some(answer) = unreadable.answer {
                    prop_assert!(answer.len() <= 512 && answer[..2] == message[..2] && answer[2] & 0x80 != 0);
                }
            }
        }
    }

    #[test]
    fn nothing_breaks_it(message in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = read(&message);
        let _ = frame(&message);
    }
}
