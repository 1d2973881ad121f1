//! Connections to hosts that have a credential: handed to the process that has it, which the tests play.

use crate::{
    servers::{Http, Tls, answer},
    support::{Core, PATIENCE, is_refused, local, rest_of, say},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_credentials::Secret;
use ringfence_wire::{
    conn::Conn,
    credentials::{
        CredentialPlace, CredentialsStart, FromCredentials, FromLink, HostCredential, MAX_TAKE, Otherwise,
        SecretFor, Take, TakenRefusal, ToCredentials,
    },
    egress::{EgressCause, EgressOutcome, EgressRecord, Names, ToEgress},
};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    process::Command,
    sync::Arc,
};

fn with_credential(names: Names, port: u16) -> Names {
    let credential = HostCredential {
        host: "localhost".into(),
        port,
        place: CredentialPlace::Bearer,
        allow: vec!["* /**".parse().unwrap()],
        otherwise: Otherwise::Refuse,
        cookies: false,
    };
    Names { credentials: vec![credential], ..names }
}

/// The process that has the credentials.
struct Holder(Conn);

impl Holder {
    fn new(core: &Core) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        Conn::new(core.link(), PATIENCE, MAX_TAKE)
            .send_with_descriptors(&ToEgress::Credentials { id: 1 }, &[theirs.as_fd()])
            .unwrap();
        Self(Conn::new(ours, PATIENCE, MAX_TAKE))
    }

    /// The next connection: its client and its server.
    fn take(&mut self) -> (Take, TcpStream, TcpStream) {
        let (take, mut sockets): (Take, _) = self.0.receive_with_descriptors().unwrap();
        assert_eq!(sockets.len(), 2);
        let (server, client): (TcpStream, TcpStream) =
            (sockets.pop().unwrap().into(), sockets.pop().unwrap().into());
        for socket in [&server, &client] {
            // As the worker left them, which has them, too.
            socket.set_nonblocking(false).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        (take, client, server)
    }
}

/// A connection that waits at the holder: it, its client's end, and what of it was handed over.
fn handed(core: &Core, holder: &mut Holder, tls: &Tls) -> (TcpStream, (Take, TcpStream, TcpStream)) {
    let client = core.open("localhost", tls.server.port);
    let hello = Tls::hello(&mut tls.client("localhost"));
    say(&client, &hello);
    let taken = holder.take();
    assert_eq!(STANDARD.decode(&taken.0.said).unwrap(), hello);
    assert_eq!((taken.0.host.as_str(), taken.0.port), ("localhost", tls.server.port));
    (client, taken)
}

#[test]
fn a_connection_goes_to_who_has_the_credential_with_all_that_was_taken_of_it() {
    let (tls, other) = (Tls::new(&["localhost"]), Tls::new(&["localhost"]));
    let names =
        local(&[&format!("localhost:{}", tls.server.port), &format!("localhost:{}", other.server.port)]);
    let core = Core::start(with_credential(names, tls.server.port));
    let mut holder = Holder::new(&core);
    let (mut client, (take, mut theirs, server)) = handed(&core, &mut holder, &tls);
    assert_eq!(server.peer_addr().unwrap().port(), tls.server.port);
    theirs.write_all(b"to the client").unwrap();
    let mut said = [0; 13];
    client.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"to the client");
    client.write_all(b"back").unwrap();
    let mut back = [0; 4];
    theirs.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"back", "nobody else reads it");
    let refused = TakenRefusal { cause: EgressCause::NoRule, reason: "no rule\nof it".into() };
    holder.0.send(&FromLink::Over { id: take.id, sent: 500, received: 700, refused: Some(refused) }).unwrap();
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::NoRule));
    let EgressRecord::Connection { sent, received, tls: true, reason: Some(reason), .. } = record else {
        panic!()
    };
    assert_eq!((sent, received, reason.as_str()), (500, 700, "no rule?of it"));
    assert!(is_refused(&client), "it is over, whoever still has the sockets");
    assert_eq!(core.begun(), 1);
    // Others pass as ever.
    assert_eq!(
        Tls::talk(other.client("localhost"), core.open("localhost", other.server.port), "hello").unwrap(),
        "hello"
    );
    core.recorded(EgressOutcome::Passed, None);
}

#[test]
fn a_hello_for_another_name_and_what_is_no_tls_are_not_handed_over() {
    let (tls, http) = (Tls::new(&["localhost"]), Http::new());
    let rules = [format!("localhost:{}", tls.server.port), format!("localhost:{}", http.port())];
    let core = Core::start(with_credential(local(&[&rules[0], &rules[1]]), tls.server.port));
    let mut holder = Holder::new(&core);
    let stream = core.open("localhost", tls.server.port);
    say(&stream, &Tls::hello(&mut tls.client("other.example")));
    rest_of(&stream);
    core.recorded(EgressOutcome::Refused, Some(EgressCause::OtherName));
    let stream = core.open("localhost", tls.server.port);
    say(&stream, format!("GET / HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", tls.server.port).as_bytes());
    let said = String::from_utf8(rest_of(&stream)).unwrap();
    assert!(said.starts_with("HTTP/1.1 403 ") && said.contains("does not speak TLS"), "{said}");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NotTls));
    let stream = core.open("localhost", http.port());
    say(&stream, format!("GET /x HTTP/1.1\r\nHost: localhost:{}\r\n\r\n", http.port()).as_bytes());
    assert_eq!(answer(&stream).1, "/x", "the control");
    assert_eq!(tls.server.connections(), 0);
    let (_client, (take, ..)) = handed(&core, &mut holder, &tls);
    assert_eq!(take.id, 1, "the first that was handed over");
}

#[test]
fn without_the_process_nothing_passes_to_its_hosts() {
    let tls = Tls::new(&["localhost"]);
    let core =
        Core::start(with_credential(local(&[&format!("localhost:{}", tls.server.port)]), tls.server.port));
    let refused =
        || Tls::talk(tls.client("localhost"), core.open("localhost", tls.server.port), "no").unwrap_err();
    refused();
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NoCredential));
    assert_eq!(tls.server.connections(), 0);
    // It ends in the middle of a connection.
    let mut holder = Holder::new(&core);
    let (client, taken) = handed(&core, &mut holder, &tls);
    drop(holder);
    assert!(is_refused(&client), "its sockets are shut, though somebody has them");
    drop(taken);
    core.recorded(EgressOutcome::Ended, Some(EgressCause::NoCredential));
    refused();
    let mut holder = Holder::new(&core);
    let (_client, (take, ..)) = handed(&core, &mut holder, &tls);
    assert_eq!(take.host, "localhost", "the next one serves");
    // One that says what none says is gone, too.
    holder.0.stream().try_clone().unwrap().write_all(b"\xff\xff\xff\xff").unwrap();
    let mut byte = [0];
    while holder.0.stream().read(&mut byte).is_ok_and(|count| count > 0) {}
    refused();
}

#[test]
fn a_policy_that_takes_the_host_away_ends_what_was_handed_over() {
    let tls = Tls::new(&["localhost"]);
    let core =
        Core::start(with_credential(local(&[&format!("localhost:{}", tls.server.port)]), tls.server.port));
    let mut holder = Holder::new(&core);
    let (client, (take, mut theirs, mut server)) = handed(&core, &mut holder, &tls);
    core.order(&ToEgress::Policy { names: local(&["localhost:1"]), audit: false });
    assert!(is_refused(&client));
    let mut byte = [0];
    assert!(matches!(theirs.read(&mut byte), Ok(0)) && matches!(server.read(&mut byte), Ok(0)));
    assert!(theirs.write_all(&[0; 1 << 16]).is_err() && server.write_all(&[0; 1 << 16]).is_err());
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
    // What is said of it afterwards is nobody's.
    holder.0.send(&FromLink::Over { id: take.id, sent: 1, received: 1, refused: None }).unwrap();
    holder.0.stream().shutdown(Shutdown::Write).unwrap();
    let over = core.connections().len();
    assert_eq!(over, 1);
}

/// Both processes as they are: from a client's first byte to the server that has the credential.
#[test]
fn a_request_has_the_credential_though_neither_its_client_nor_the_worker_has() {
    const KEY: &str = "ghp/0123456789+abcdef";
    let tls = Tls::serving(&["localhost"], |stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            if stream.read_exact(&mut byte).is_err() {
                return;
            }
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        stream.write_all(answer.as_bytes()).and_then(|()| stream.flush()).unwrap();
    });
    let names = with_credential(local(&[&format!("localhost:{}", tls.server.port)]), tls.server.port);
    let (core, dir) = (Core::start(names.clone()), tempfile::tempdir().unwrap());
    let roots = dir.path().join("roots.pem");
    std::fs::write(&roots, pem(&tls.root)).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut process = Command::new(env!("CARGO_BIN_EXE_ringfence"))
        .arg("egress-credentials")
        .stdin(OwnedFd::from(theirs))
        .env_clear()
        .env("SSL_CERT_FILE", &roots)
        .spawn()
        .unwrap();
    let mut holder = Conn::new(ours, PATIENCE, MAX_TAKE);
    let (container, profile, hosts): (String, String, Vec<HostCredential>) =
        ("0123456789ab".into(), "tested".into(), names.credentials);
    let of = SecretFor::from(&hosts[0]);
    holder.send(&ToCredentials::Start(CredentialsStart { container, profile, hosts })).unwrap();
    let secret = Secret::from(KEY.to_owned()).pipe().unwrap();
    holder.send_with_descriptors(&ToCredentials::Secret(of), &[secret.as_fd()]).unwrap();
    let FromCredentials::Ready { certificate } = holder.receive().unwrap() else { panic!() };
    let (one, other) = UnixStream::pair().unwrap();
    holder.send_with_descriptors(&ToCredentials::Link { id: 1 }, &[one.as_fd()]).unwrap();
    Conn::new(core.link(), PATIENCE, MAX_TAKE)
        .send_with_descriptors(&ToEgress::Credentials { id: 1 }, &[other.as_fd()])
        .unwrap();
    drop((one, other));
    // Who trusts the server's own certificate alone does not trust what is shown in its place.
    let stream = core.open("localhost", tls.server.port);
    let error = Tls::talk(tls.client("localhost"), stream, "GET").unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    core.recorded(EgressOutcome::Refused, Some(EgressCause::UntrustedCa));
    let mut trusted = RootCertStore::empty();
    trusted.add(CertificateDer::from_pem_slice(certificate.as_str().as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(trusted)
        .with_no_client_auth();
    let client = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    let mut client = StreamOwned::new(client, core.open("localhost", tls.server.port));
    let ask = format!("GET /a HTTP/1.1\r\nHost: localhost:{}\r\nConnection: close\r\n\r\n", tls.server.port);
    client.write_all(ask.as_bytes()).unwrap();
    let mut said = String::new();
    let _ = client.read_to_string(&mut said);
    let masked = format!("authorization: Bearer {}\r\n", "*".repeat(KEY.len()));
    assert!(said.starts_with("HTTP/1.1 200 ") && said.contains(&masked), "{said}");
    // Its answer has the credential.
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::Reflects));
    let EgressRecord::Connection { sent, received, .. } = record else { panic!() };
    assert!(sent > 300 && received > 300, "{sent} {received}");
    process.kill().unwrap();
    process.wait().unwrap();
    let stream = core.open("localhost", tls.server.port);
    assert!(Tls::talk(tls.client("localhost"), stream, "GET").is_err());
    core.recorded(EgressOutcome::Refused, Some(EgressCause::NoCredential));
}

fn pem(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
