//! TLS: the server's name in the ClientHello.

use crate::{
    servers::{Server, Tls},
    support::{Core, is_refused, local, names, rest_of, say, wait_until},
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, EgressRecord, NameOptions, Names};
use rustls::{AlertDescription, Error, pki_types::ServerName};
use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Instant,
};

/// A server for `localhost`, and a worker that grants that and another name there.
fn two_names(options: NameOptions) -> (Tls, Core) {
    let tls = Tls::new(&["localhost", "other.example"]);
    let granted = [format!("localhost:{}", tls.server.port), format!("other.example:{}", tls.server.port)];
    let names = local(&[&granted[0], &granted[1]]);
    (tls, Core::start(Names { options, ..names }))
}

/// The alert that a client is told.
fn alert(error: &std::io::Error) -> Option<AlertDescription> {
    match error.get_ref()?.downcast_ref::<Error>()? {
        Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

#[test]
fn a_client_of_the_granted_name_passes() {
    let (tls, core) = two_names(NameOptions::default());
    let stream = core.open("localhost", tls.server.port);
    assert_eq!(Tls::talk(tls.client("localhost"), stream, "hello").unwrap(), "hello");
    let EgressRecord::Connection { name, port, dialled, tls: is_tls, sent, received, rule, .. } =
        core.recorded(EgressOutcome::Passed, None)
    else {
        unreachable!()
    };
    assert_eq!((name.as_str(), port, is_tls, rule), ("localhost", tls.server.port, true, Some(0)));
    assert_eq!(dialled.unwrap(), format!("127.0.0.1:{port}").parse().unwrap());
    assert!(sent > 200 && received > 200, "{sent} {received}");
    let report = &core.reports()[1];
    assert_eq!(report.flow.map(|flow| (flow.call, flow.pid)), Some((7, 4711)));
    assert!(report.at > 1_700_000_000_000_000);
}

#[test]
fn a_client_of_another_name_is_told_so_and_reaches_nobody() {
    let (tls, core) = two_names(NameOptions::default());
    let port = tls.server.port;
    let error = Tls::talk(tls.client("other.example"), core.open("localhost", port), "hello").unwrap_err();
    assert_eq!(alert(&error), Some(AlertDescription::UnrecognisedName), "{error}");
    let EgressRecord::Connection { reason, name, .. } =
        core.recorded(EgressOutcome::Refused, Some(EgressCause::OtherName))
    else {
        unreachable!()
    };
    assert!(reason.unwrap().contains("other.example") && name == "localhost");
    // Without a name.
    let mut config = (*tls.client).clone();
    config.enable_sni = false;
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let error = Tls::talk(client, core.open("localhost", port), "hello").unwrap_err();
    assert_eq!(alert(&error), Some(AlertDescription::UnrecognisedName), "{error}");
    assert_eq!(tls.server.connections(), 0);
    Tls::talk(tls.client("localhost"), core.open("localhost", port), "the control").unwrap();
}

/// A hello with one more extension.
fn extended(hello: &[u8], kind: u16, content: &[u8]) -> Vec<u8> {
    let mut body = hello[9..].to_vec();
    // Version, random; the session's id, ciphers, compression.
    let mut at = 34;
    at += 1 + usize::from(body[at]);
    at += 2 + usize::from(u16::from_be_bytes([body[at], body[at + 1]]));
    at += 1 + usize::from(body[at]);
    let before = u16::from_be_bytes([body[at], body[at + 1]]);
    let length = |count: usize| u16::try_from(count).unwrap().to_be_bytes();
    body[at..at + 2].copy_from_slice(&length(usize::from(before) + 4 + content.len()));
    let extension = [&kind.to_be_bytes()[..], &length(content.len()), content].concat();
    // Not last: a pre-shared key would have to be.
    body.splice(at + 2..at + 2, extension);
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    let mut records = Vec::new();
    for part in message.chunks(16_000) {
        records.extend([&[22, 3, 1][..], &length(part.len()), part].concat());
    }
    records
}

const ECH: u16 = 0xfe0d;

/// An outer one: key derivation, encryption, the key's number, what is encapsulated, what is encrypted.
fn ech() -> Vec<u8> {
    [&[0, 0, 1, 0, 1, 7, 0, 32][..], &[1; 32], &[0, 64], &[2; 64]].concat()
}

/// A hello for `localhost` with another one in it.
pub(crate) fn hello_with_ech(tls: &Tls) -> Vec<u8> {
    extended(&Tls::hello(&mut tls.client("localhost")), ECH, &ech())
}

#[test]
fn an_encrypted_hello_passes_where_the_profile_says_so() {
    let (tls, core) = two_names(NameOptions::default());
    let hello = extended(&Tls::hello(&mut tls.client("localhost")), ECH, &ech());
    let stream = core.open("localhost", tls.server.port);
    say(&stream, &hello);
    assert_eq!(rest_of(&stream), [21, 3, 3, 0, 2, 2, 49], "access_denied");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::Ech));
    assert_eq!(tls.server.connections(), 0);
    let (tls, core) = two_names(NameOptions { ech: true, ..NameOptions::default() });
    let mut stream = core.open("localhost", tls.server.port);
    say(&stream, &hello);
    let mut first = [0];
    stream.read_exact(&mut first).unwrap();
    assert_eq!((first[0], tls.server.connections()), (22, 1), "the server answers");
}

#[test]
fn a_hello_may_come_byte_by_byte_and_not_be_huge() {
    let (tls, core) = two_names(NameOptions::default());
    let port = tls.server.port;
    let mut client = tls.client("localhost");
    let hello = Tls::hello(&mut client);
    let mut stream = core.open("localhost", port);
    for byte in &hello {
        stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(Tls::talk(client, stream, "in pieces").unwrap(), "in pieces");
    let huge = extended(&hello, 0x0015, &vec![0; 20_000]);
    let stream = core.open("localhost", port);
    say(&stream, &huge);
    assert_eq!(rest_of(&stream), [21, 3, 3, 0, 2, 2, 50], "decode_error");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::Malformed));
    let large = extended(&hello, 0x0015, &vec![0; 12_000]);
    let mut stream = core.open("localhost", port);
    say(&stream, &large);
    stream.read_exact(&mut [0]).unwrap();
    assert_eq!(tls.server.connections(), 2, "the controls");
}

#[test]
fn clients_that_say_nothing_or_not_all_or_something_else_are_refused() {
    let (tls, core) = two_names(NameOptions::default());
    let port = tls.server.port;
    let begun = Instant::now();
    let silent = core.open("localhost", port);
    let slow = core.open("localhost", port);
    say(&slow, &[22, 3, 1]);
    let early = core.open("localhost", port);
    say(&early, &[22, 3, 1]);
    early.shutdown(std::net::Shutdown::Write).unwrap();
    let ssh = core.open("localhost", port);
    say(&ssh, b"\0SSH");
    assert!(is_refused(&ssh));
    let ssh = core.open("localhost", port);
    say(&ssh, b"SSH-2.0-OpenSSH_10.0\r\n");
    let _ = rest_of(&ssh);
    assert!(begun.elapsed().as_secs() < 20, "it does not wait for the end of a request");
    let _ = rest_of(&early);
    assert!(is_refused(&silent), "a client of a server that speaks first");
    assert!(begun.elapsed().as_secs() >= 9);
    assert_eq!(rest_of(&slow), [21, 3, 3, 0, 2, 2, 50]);
    assert!(begun.elapsed().as_secs() >= 29);
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NotTls));
    core.recorded(EgressOutcome::Refused, Some(EgressCause::Malformed));
    wait_until("each is on record", || core.all_connections() == 5);
    assert_eq!(tls.server.connections(), 0);
}

#[test]
fn what_is_not_looked_at_is_any_protocol() {
    let greeting = Server::new(|mut stream| {
        stream.write_all(b"220 ready\r\n").unwrap();
        let mut read = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut read, &mut stream);
    });
    let rule = format!("tcp:localhost:{}", greeting.port);
    let core = Core::start(local(&[&rule]));
    let mut stream = core.open("localhost", greeting.port);
    let mut said = [0; 11];
    stream.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"220 ready\r\n");
    // Each end closes its own direction.
    stream.write_all(b"MAIL").unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rest_of(&stream), b"MAIL");
    let record = core.recorded(EgressOutcome::Passed, None);
    assert!(
        matches!(record, EgressRecord::Connection { sent: 4, received: 15, tls: false, .. }),
        "{record:?}"
    );
}

#[test]
fn a_name_that_leads_to_loopback_is_refused_unless_that_is_granted() {
    let tls = Tls::new(&["localhost"]);
    let core = Core::start(names(&["localhost", "no-such-name.invalid"]));
    let error =
        Tls::talk(tls.client("localhost"), core.open("localhost", tls.server.port), "no").unwrap_err();
    assert_eq!(alert(&error), Some(AlertDescription::AccessDenied), "{error}");
    let record = core.recorded(EgressOutcome::Refused, Some(EgressCause::NotPublic));
    let EgressRecord::Connection { dialled: Some(dialled), reason: Some(reason), .. } = record else {
        panic!("{record:?}")
    };
    assert!(dialled.ip().is_loopback() && reason.contains("loopback"), "{reason}");
    assert_eq!(tls.server.connections(), 0);
    // One that leads nowhere.
    let stream: TcpStream = core.open("no-such-name.invalid", 443);
    let error = Tls::talk(tls.client("no-such-name.invalid"), stream, "no").unwrap_err();
    assert_eq!(alert(&error), Some(AlertDescription::InternalError), "{error}");
    core.recorded(EgressOutcome::Failed, Some(EgressCause::Unresolved));
}
