//! Hellos made by hand, and what makes them none. What real clients send is in `handshakes.rs`.

use super::*;
use proptest::prelude::*;
use rustls::server::Acceptor;

pub(super) const SERVER_NAME: u16 = 0;

/// An extension.
pub(super) type Extension = (u16, Vec<u8>);

/// Bytes after their length of two bytes.
pub(super) fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat()
}

pub(super) fn name(name: &[u8]) -> Extension {
    (SERVER_NAME, long(&[&[0][..], &long(name)].concat()))
}

/// A ClientHello as a handshake message.
pub(super) fn hello(extensions: &[Extension]) -> Vec<u8> {
    let extensions: Vec<u8> = extensions
        .iter()
        .flat_map(|(kind, content)| [kind.to_be_bytes().to_vec(), long(content)].concat())
        .collect();
    let body = [&[3, 3][..], &[7; 32], &[0], &[0, 2, 0x13, 1], &[1, 0], &long(&extensions)].concat();
    message(1, &body)
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_be_bytes();
    [&[kind][..], &length[1..], body].concat()
}

pub(super) fn record(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, 3, 1][..], &long(content)].concat()
}

/// A hello in records with at most so many bytes each.
fn split(message: &[u8], size: usize) -> Vec<u8> {
    message.chunks(size).flat_map(|piece| record(HANDSHAKE, piece)).collect()
}

fn fed(bytes: &[u8]) -> Result<(State, Option<Hello>), Refused> {
    let mut client = Client::new();
    let state = client.feed(bytes)?;
    Ok((state, client.hello().cloned()))
}

fn refused(bytes: &[u8]) -> Refused {
    fed(bytes).unwrap_err()
}

#[test]
fn a_hello_is_read_however_it_is_split() {
    let alpn = (16, long(b"\x02h2\x08http/1.1"));
    let message = hello(&[name(b"Example.ORG"), alpn, (0xff01, vec![0])]);
    let expected = Hello { server_name: Some("example.org".to_owned()), ech: false, early_data: false };
    for size in [1, 2, 3, 4, 5, 7, 40, message.len() - 1, message.len()] {
        let bytes = split(&message, size);
        assert_eq!(fed(&bytes), Ok((State::Watching, Some(expected.clone()))), "records of {size}");
        let mut client = Client::new();
        for byte in &bytes[..bytes.len() - 1] {
            assert_eq!(client.feed(&[*byte]), Ok(State::Reading), "records of {size}");
            assert_eq!(client.hello(), None);
        }
        assert_eq!(client.feed(&bytes[bytes.len() - 1..]), Ok(State::Watching));
        assert_eq!(client.hello(), Some(&expected));
    }
}

#[test]
fn ech_and_what_looks_like_it_are_seen() {
    for kind in [0xfe0d, 0xffce] {
        let (_, hello) =
            fed(&record(HANDSHAKE, &hello(&[name(b"public.example"), (kind, vec![0; 200])]))).unwrap();
        assert!(hello.unwrap().ech);
    }
    let (_, without) =
        fed(&record(HANDSHAKE, &hello(&[name(b"public.example"), (0xfe0c, vec![0])]))).unwrap();
    assert!(!without.unwrap().ech, "the control");
}

#[test]
fn a_hello_without_a_name_has_none() {
    for message in [hello(&[]), hello(&[(16, long(b"\x02h2"))]), {
        // As before TLS 1.2: no extensions at all.
        let whole = hello(&[]);
        message(1, &whole[4..whole.len() - 2])
    }] {
        let (state, hello) = fed(&record(HANDSHAKE, &message)).unwrap();
        assert_eq!((state, hello.unwrap().server_name), (State::Watching, None));
    }
}

#[test]
fn a_name_that_two_servers_could_read_differently_is_refused() {
    let with = |extension: Extension| refused(&record(HANDSHAKE, &hello(&[extension])));
    for (bytes, why) in [
        (&b"example.org."[..], NotAHost::FinalDot),
        (b"example.org\0.other.example", NotAHost::Byte(0)),
        (b"ex\xc3\xa4mple.org", NotAHost::Byte(0xc3)),
        (b"127.0.0.1", NotAHost::Address),
        (b"::1", NotAHost::Byte(b':')),
        (b"", NotAHost::Empty),
        (b"example..org", NotAHost::EmptyLabel),
        (&[b'a'; 64], NotAHost::LongLabel),
    ] {
        assert_eq!(with(name(bytes)), Refused::Name(why), "{bytes:?}");
    }
    let one = [&[0][..], &long(b"a.example")].concat();
    let other_type = [&[1][..], &long(b"a.example")].concat();
    for (content, why) in [
        (long(&[one.clone(), [&[0][..], &long(b"b.example")].concat()].concat()), "several"),
        (long(&[one.clone(), other_type.clone()].concat()), "several"),
        (long(&[other_type.clone(), one.clone()].concat()), "no known type"),
        (long(&other_type), "no known type"),
        ([long(&one), vec![0]].concat(), "behind the list"),
        (Vec::new(), "longer than what it is in"),
        (long(&[]), "longer than what it is in"),
        (long(&[0, 0, 200, b'a']), "longer than what it is in"),
    ] {
        let refused = with((SERVER_NAME, content)).to_string();
        assert!(refused.contains(why), "{refused} is not {why}");
    }
    let twice = hello(&[name(b"a.example"), (16, long(b"\x02h2")), name(b"b.example")]);
    assert_eq!(refused(&record(HANDSHAKE, &twice)), Refused::Twice(SERVER_NAME));
    let twice = hello(&[name(b"a.example"), (0x1234, vec![]), (0x1234, vec![])]);
    assert_eq!(refused(&record(HANDSHAKE, &twice)), Refused::Twice(0x1234));
}

#[test]
fn records_that_are_not_the_beginning_of_tls_are_refused() {
    let message = hello(&[name(b"a.example")]);
    let whole = record(HANDSHAKE, &message);
    assert!(fed(&whole).is_ok(), "the control");
    assert_eq!(refused(b"GET / HTTP/1.1"), Refused::NotAHandshake(b'G'));
    assert_eq!(refused(&[0x80, 0x2e, 1, 3, 1]), Refused::Sslv2);
    for kind in [CHANGE_CIPHER_SPEC, ALERT, APPLICATION_DATA, 24] {
        assert_eq!(refused(&record(kind, &message)), Refused::NotAHandshake(kind));
        let between =
            [record(HANDSHAKE, &message[..9]), record(kind, &[1]), record(HANDSHAKE, &message[9..])].concat();
        assert_eq!(refused(&between), Refused::Interleaved(kind));
    }
    for version in [[3, 0], [3, 4], [2, 0], [0xfe, 0xfd]] {
        let mut other = whole.clone();
        other[1..3].copy_from_slice(&version);
        assert_eq!(refused(&other), Refused::RecordVersion(u16::from_be_bytes(version)));
    }
    let empty =
        [record(HANDSHAKE, &message[..9]), record(HANDSHAKE, &[]), record(HANDSHAKE, &message[9..])].concat();
    assert_eq!(refused(&empty), Refused::RecordLength(0));
    assert_eq!(refused(&[22, 3, 1, 0x40, 1]), Refused::RecordLength(16_385));
    assert_eq!(refused(&record(HANDSHAKE, &[2])), Refused::NotAHello(2), "at its first byte");
    // Another message in the last record, or a byte of one.
    for behind in [&message[..], &[0]] {
        assert_eq!(refused(&record(HANDSHAKE, &[&message, behind].concat())), Refused::Behind);
    }
    let mut announced = whole.clone();
    announced[4] += 1;
    assert_eq!(refused(&announced), Refused::Behind, "before the byte itself is there");
}

#[test]
fn a_hello_has_a_limit() {
    let padded = |padding: usize| hello(&[name(b"a.example"), (21, vec![0; padding])]);
    let rest = padded(0).len() - 4;
    let most = padded(MAX_HELLO - rest);
    assert_eq!(fed(&split(&most, 9000)).map(|(state, _)| state), Ok(State::Watching));
    let more = padded(MAX_HELLO - rest + 1);
    assert_eq!(refused(&split(&more, 9000)), Refused::Long(MAX_HELLO + 1));
    assert_eq!(
        refused(&record(HANDSHAKE, &[1, 0xff, 0xff, 0xff])),
        Refused::Long(0xff_ffff),
        "before it comes"
    );
}

#[test]
fn fields_that_are_not_as_the_protocol_has_them_are_refused() {
    let whole = hello(&[name(b"a.example")]);
    let body = &whole[4..];
    let changed = |change: fn(&mut Vec<u8>)| {
        let mut body = body.to_vec();
        change(&mut body);
        refused(&record(HANDSHAKE, &message(1, &body))).to_string()
    };
    for (change, why) in [
        ((|body| body[1] = 4) as fn(&mut Vec<u8>), "version"),
        (|body| body[0] = 2, "version"),
        (
            |body| {
                body[34] = 33;
                body.splice(35..35, [0; 33]);
            },
            "session id",
        ),
        (|body| body[36] = 0, "cipher suites"),
        (
            |body| {
                body.insert(39, 0);
                body[36] = 3
            },
            "cipher suites",
        ),
        (|body| body[40] = 1, "uncompressed"),
        (|body| body.push(0), "behind its extensions"),
        (|body| body.truncate(20), "longer than what it is in"),
        (
            |body| {
                body.pop();
            },
            "longer than what it is in",
        ),
        (|body| body[42] -= 1, "longer than what it is in"),
    ] {
        let refused = changed(change);
        assert!(refused.contains(why), "{refused} is not {why}");
    }
    for (extensions, why) in [
        (vec![(41, vec![0; 4]), name(b"a.example")], "pre-shared key"),
        (vec![(16, vec![])], "longer than"),
        (vec![(16, long(&[]))], "ALPN"),
        (vec![(16, long(b"\x00"))], "without a name"),
        (vec![(16, long(b"\x09h2"))], "longer than"),
        (vec![(16, [long(b"\x02h2"), vec![0]].concat())], "ALPN"),
    ] {
        let refused = refused(&record(HANDSHAKE, &hello(&extensions))).to_string();
        assert!(refused.contains(why), "{refused} is not {why}");
    }
    let last = hello(&[name(b"a.example"), (41, vec![0; 4])]);
    assert!(fed(&record(HANDSHAKE, &last)).is_ok(), "the control");
}

#[test]
fn a_second_hello_must_name_the_same_server() {
    let first = record(HANDSHAKE, &hello(&[name(b"a.example")]));
    let spec = record(CHANGE_CIPHER_SPEC, &[1]);
    let alert = record(ALERT, &[1, 90]);
    let after = |rest: &[u8]| {
        let mut client = Client::new();
        assert_eq!(client.feed(&first), Ok(State::Watching));
        let whole = client.feed(rest);
        // One byte after the other comes to the same.
        let mut client = Client::new();
        assert_eq!(client.feed(&first), Ok(State::Watching));
        let mut state = Ok(State::Watching);
        for byte in rest {
            state = client.feed(&[*byte]);
        }
        assert_eq!(whole, state);
        whole
    };
    let same = hello(&[name(b"A.example"), (44, vec![0; 6])]);
    let other = hello(&[name(b"b.example")]);
    let with_ech = hello(&[name(b"a.example"), (0xfe0d, vec![0; 9])]);
    let refused = |name: &str| Err(Refused::AnotherName(Some(name.to_owned())));
    for before in [vec![], spec.clone(), [spec, alert].concat()] {
        for size in [1, 3, 4, 5, 6, 1000] {
            assert_eq!(after(&[before.clone(), split(&same, size)].concat()), Ok(State::Done));
            assert_eq!(after(&[before.clone(), split(&other, size)].concat()), refused("b.example"));
            assert_eq!(after(&[before.clone(), split(&with_ech, size)].concat()), refused("a.example"));
        }
    }
    assert_eq!(after(&record(HANDSHAKE, &hello(&[]))), Err(Refused::AnotherName(None)));
    // What goes on with TLS 1.2, or is encrypted: no hello.
    let spec = record(CHANGE_CIPHER_SPEC, &[1]);
    let finished = |first: &[u8]| [&spec[..], &record(HANDSHAKE, &[first, &[7; 37]].concat())].concat();
    for goes_on in [
        record(HANDSHAKE, &message(16, &[0; 33])),
        record(HANDSHAKE, &message(11, &[0; 3])),
        record(APPLICATION_DATA, &[1; 40]),
        [spec.clone(), record(APPLICATION_DATA, &[1; 40])].concat(),
        finished(&[0, 0, 0]),
        finished(&[9, 1, 1]),
    ] {
        assert_eq!(after(&goes_on), Ok(State::Done));
    }
    assert_eq!(after(&record(24, &[1])), Err(Refused::RecordType(24)));
    assert_eq!(after(&record(ALERT, &[])), Err(Refused::RecordLength(0)));
    assert_eq!(after(&record(CHANGE_CIPHER_SPEC, &[1, 1])), Err(Refused::RecordLength(2)));
    for kind in [0, 2, 5, 20, 24, 254] {
        let plain = record(HANDSHAKE, &message(kind, &[0; 33]));
        assert_eq!(after(&plain), Err(Refused::NotAfterHello(kind)), "no cipher was changed to");
    }
}

/// OpenSSL takes any version above SSLv3 in the second hello, and its name.
#[test]
fn a_second_hello_is_told_by_its_type_alone() {
    let first = record(HANDSHAKE, &hello(&[name(b"a.example"), (43, b"\x02\x03\x04".to_vec())]));
    let after = |rest: &[u8]| {
        let mut client = Client::new();
        assert_eq!(client.feed(&first), Ok(State::Watching));
        client.feed(rest)
    };
    let spec = record(CHANGE_CIPHER_SPEC, &[1]);
    let data = record(APPLICATION_DATA, &[1; 40]);
    for before in [&[][..], &spec] {
        for version in [[4, 4], [3, 4], [0xff, 0xff], [0, 0], [0xfe, 0xfd]] {
            let mut other = hello(&[name(b"b.example")]);
            other[4..6].copy_from_slice(&version);
            for size in [1, 4, 5, 6, 1000] {
                let refused = after(&[before, &split(&other, size)].concat()).unwrap_err();
                assert!(matches!(refused, Refused::Malformed(why) if why.contains("version")), "{refused}");
            }
        }
        // One that is longer than servers read, or that some server may read.
        for length in [[2, 0, 0], [4, 0, 0], [0xff, 0xff, 0xff]] {
            let long = [&[1][..], &length, &[3, 3], &[7; 40]].concat();
            assert_eq!(after(&[before, &record(HANDSHAKE, &long)].concat()), Ok(State::Watching));
            let more = [before, &split(&long, 20)].concat();
            assert!(matches!(after(&more), Err(Refused::Long(_))), "its second record");
            // What is encrypted may look like the beginning of one. Data come next, and no server has read a hello by then.
            let encrypted = [before, &record(HANDSHAKE, &long), &data].concat();
            assert_eq!(after(&encrypted), Ok(State::Done));
            let alert = [before, &record(HANDSHAKE, &long), &record(ALERT, &[1, 90])].concat();
            assert_eq!(after(&alert), Err(Refused::Interleaved(ALERT)));
        }
    }
    // With early data a server may pass over the data, and read on.
    let early = record(HANDSHAKE, &hello(&[name(b"a.example"), (42, vec![])]));
    let mut client = Client::new();
    assert_eq!(client.feed(&early), Ok(State::Watching));
    let begun = [record(HANDSHAKE, &hello(&[name(b"b.example")])[..9]), data].concat();
    assert_eq!(client.feed(&begun), Err(Refused::Interleaved(APPLICATION_DATA)));
}

#[test]
fn a_hello_takes_no_more_room_than_it_announces() {
    let whole = hello(&[name(b"a.example"), (21, vec![0; MAX_HELLO - 80])]);
    assert!(whole.len() > MAX_HELLO - 80 && whole.len() <= MAX_HELLO + MESSAGE_HEAD);
    for size in [100, 5000, MAX_PLAIN] {
        let mut client = Client::new();
        for byte in &split(&whole, size)[..whole.len() - 1] {
            assert_eq!(client.feed(&[*byte]), Ok(State::Reading));
            assert!(client.message.capacity() <= whole.len(), "{}", client.message.capacity());
        }
    }
}

#[test]
fn a_client_with_early_data_is_watched_to_the_end() {
    let first = record(HANDSHAKE, &hello(&[name(b"a.example"), (42, vec![])]));
    let mut client = Client::new();
    assert_eq!(client.feed(&first), Ok(State::Watching));
    assert!(client.hello().unwrap().early_data);
    for _ in 0..1000 {
        assert_eq!(client.feed(&record(APPLICATION_DATA, &[22; 300])), Ok(State::Watching));
    }
    let other = record(HANDSHAKE, &hello(&[name(b"b.example")]));
    assert_eq!(client.feed(&other), Err(Refused::AnotherName(Some("b.example".to_owned()))));
    assert!(client.feed(&record(APPLICATION_DATA, &[1])).is_err(), "refused once, refused for good");
}

#[test]
fn early_data_need_not_be_looked_at_and_what_follows_is() {
    let early = record(HANDSHAKE, &hello(&[name(b"a.example"), (42, Vec::new())]));
    let data = record(APPLICATION_DATA, &[22; 300]);
    let other = record(HANDSHAKE, &hello(&[name(b"b.example")]));
    let mut client = Client::new();
    assert_eq!((client.feed(&early), client.opaque()), (Ok(State::Watching), 0));
    for _ in 0..2 {
        assert_eq!((client.feed(&data[..7]), client.opaque()), (Ok(State::Watching), 298));
        client.passed(98);
        assert_eq!((client.feed(&data[105..110]), client.opaque()), (Ok(State::Watching), 195));
        client.passed(195);
        assert_eq!(client.opaque(), 0);
    }
    assert_eq!(client.feed(&other), Err(Refused::AnotherName(Some("b.example".to_owned()))));
    // The content of no other record is.
    for (first, kind) in [(&early, ALERT), (&early, HANDSHAKE), (&other, APPLICATION_DATA)] {
        let mut client = Client::new();
        client.feed(first).unwrap();
        let _ = client.feed(&record(kind, &[1; 300])[..7]);
        assert_eq!(client.opaque(), 0, "{kind}");
    }
}

#[test]
fn a_message_takes_what_is_said_beforehand() {
    let bytes = split(&hello(&[name(b"a.example"), (21, vec![0; 12_000])]), 5000);
    let mut client = Client::new();
    for piece in bytes[..bytes.len() - 1].chunks(700) {
        let told = client.kept_with(piece.len());
        assert_eq!(client.feed(piece), Ok(State::Reading));
        assert!(client.kept() <= told && told < client.kept() + 1024, "{told} {}", client.kept());
    }
    assert!((12_000..13_000).contains(&client.kept()));
    assert_eq!(client.feed(&bytes[bytes.len() - 1..]), Ok(State::Watching));
    assert_eq!(client.kept(), 0);
}

/// The name that rustls reads: none if it refuses, or wants more.
fn acceptor(mut bytes: &[u8]) -> Option<Option<String>> {
    let mut acceptor = Acceptor::default();
    while !bytes.is_empty() {
        acceptor.read_tls(&mut bytes).ok()?;
        if let Some(accepted) = acceptor.accept().ok()? {
            return Some(accepted.client_hello().server_name().map(str::to_ascii_lowercase));
        }
    }
    None
}

#[test]
fn the_two_readers_are_told_the_same() {
    // What rustls asks of a hello beside the name.
    let needed = [
        (43, b"\x02\x03\x04".to_vec()),
        (10, long(&[0, 29])),
        (13, long(&[4, 3])),
        (51, long(&[&[0, 29][..], &long(&[9; 32])].concat())),
    ];
    let message = hello(&[&[name(b"a.example"), (16, long(b"\x02h2"))][..], &needed].concat());
    assert_eq!(acceptor(&split(&message, 50)), Some(Some("a.example".to_owned())));
}

proptest! {
    /// Whatever is changed in a hello, and wherever it is split: the verdict is the same, and a name that is read here is the
    /// name that a server reads.
    #[test]
    fn what_is_read_is_what_a_server_reads(
        labels in prop::collection::vec("[a-z0-9-]{1,20}", 1..4),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        size in 1..300_usize,
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
    ) {
        let needed = [
            (43, b"\x02\x03\x04".to_vec()),
            (10, long(&[0, 29])),
            (13, long(&[4, 3])),
            (51, long(&[&[0, 29][..], &long(&[9; 32])].concat())),
        ];
        let first = [name(labels.join(".").as_bytes()), (16, long(b"\x02h2"))];
        let mut bytes = split(&hello(&[&first[..], &needed].concat()), size);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = fed(&bytes);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        cuts.sort_unstable();
        let (mut client, mut from, mut last) = (Client::new(), 0, Ok(State::Reading));
        for cut in cuts.into_iter().chain([bytes.len()]) {
            last = client.feed(&bytes[from..cut]);
            from = cut;
        }
        prop_assert_eq!(last.map(|state| (state, client.hello().cloned())), whole.clone());
        if let (Ok((_, Some(hello))), Some(server_name)) = (whole, acceptor(&bytes)) {
            // rustls has no name for what it takes for none.
            prop_assert_eq!(hello.server_name, server_name);
        }
    }

    #[test]
    fn nothing_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..300), first in any::<bool>()) {
        let bytes = if first { record(HANDSHAKE, &bytes) } else { bytes };
        let _ = fed(&bytes);
        let _ = fed(&[record(HANDSHAKE, &hello(&[name(b"a.example")])), bytes].concat());
    }
}
