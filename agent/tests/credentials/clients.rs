//! Who trusts the container's CA, and who does not.

use crate::{
    site::Site,
    support::{HOST, KEY, PATIENCE, Proxy, Rules},
};
use ringfence_wire::egress::EgressCause;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
    sync::Arc,
};

fn client(proxy: &Proxy, name: &str, alpn: &[&[u8]]) -> StreamOwned<ClientConnection, TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(proxy.authority()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    let stream = TcpStream::connect(("127.0.0.1", proxy.port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// A client that trusts the container's CA.
pub(crate) fn trusting(proxy: &Proxy) -> StreamOwned<ClientConnection, TcpStream> {
    client(proxy, HOST, &[b"http/1.1"])
}

fn site() -> Site {
    Site::answering(HOST, |asked| asked.target.clone())
}

#[test]
fn a_client_that_does_not_trust_the_ca_fails_and_the_record_says_why() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    assert_eq!(proxy.curl("/with/a", &[]).0, "/with/a", "the control");
    let own = proxy.dir().join("own.pem");
    std::fs::write(&own, &site.root).unwrap();
    let (said, status) = proxy.curl("/with/a", &["--cacert", own.to_str().unwrap()]);
    assert_ne!(status, 0, "{said}");
    let reason = proxy.refused(EgressCause::UntrustedCa);
    assert!(reason.contains("does not trust this container's CA") && reason.contains("pins"), "{reason}");
    let pinned = "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let (said, status) = proxy.curl("/with/a", &["--pinnedpubkey", pinned]);
    assert_ne!(status, 0, "{said}");
    let refusals = || proxy.over().into_iter().filter(|over| over.refused.is_some()).count();
    ringfence_test_support::wait::wait_until("the other", || refusals() == 2);
    assert_eq!(site.asked().len(), 1);
}

#[test]
fn a_connection_that_was_opened_for_nothing_is_not_said_to_distrust_the_ca() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut idle = trusting(&proxy);
    while idle.conn.is_handshaking() {
        idle.conn.complete_io(&mut idle.sock).unwrap();
    }
    // Longer than who pins a certificate takes to go.
    std::thread::sleep(std::time::Duration::from_secs(3));
    idle.conn.send_close_notify();
    let _ = idle.conn.complete_io(&mut idle.sock);
    drop(idle);
    ringfence_test_support::wait::wait_until("it is over", || !proxy.over().is_empty());
    assert_eq!(proxy.over()[0].refused, None);
}

#[test]
fn python_reads_the_ca_by_its_variable() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let script = concat!(
        "import socket, sys, urllib.request\n",
        "ask = socket.getaddrinfo\n",
        "socket.getaddrinfo = lambda host, *rest, **more: ask('127.0.0.1', *rest, **more)\n",
        "print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())\n",
    );
    let url = format!("https://{HOST}:{}/with/python", proxy.port);
    let run = |file: &std::path::Path| {
        let mut python = Command::new("python3");
        python.args(["-c", script, &url]).env("SSL_CERT_FILE", file).env("no_proxy", "*").output().unwrap()
    };
    let output = run(&proxy.authority());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "/with/python\n",
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let other = proxy.dir().join("other.pem");
    std::fs::write(&other, &site.root).unwrap();
    let output = run(&other);
    assert!(String::from_utf8_lossy(&output.stderr).contains("CERTIFICATE_VERIFY_FAILED"), "the control");
}

#[test]
fn the_ca_vouches_for_its_hosts_alone_and_no_other_name_is_served() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut other = client(&proxy, "b.example", &[b"http/1.1"]);
    let error = other.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap_err().to_string();
    assert!(error.contains("certificate") && error.contains("b.example"), "{error}");
    let text = Command::new("openssl")
        .args(["x509", "-noout", "-text", "-in", proxy.authority().to_str().unwrap()])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.contains("Excluded") && text.contains("IP:0.0.0.0/0.0.0.0"), "{text}");
    for part in ["CA:TRUE, pathlen:0", "Name Constraints: critical", "Ringfence container 0123456789ab", HOST]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(site.asked().is_empty());
}

#[test]
fn http_2_alone_is_refused_with_a_sentence() {
    let site = site();
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut h2 = client(&proxy, HOST, &[b"h2"]);
    assert!(h2.write_all(b"x").is_err());
    assert!(proxy.refused(EgressCause::Malformed).contains("does not speak HTTP/1.1"));
    let mut both = client(&proxy, HOST, &[b"h2", b"http/1.1"]);
    write!(both, "GET /with/a HTTP/1.1\r\nHost: {HOST}:{}\r\nConnection: close\r\n\r\n", proxy.port).unwrap();
    let mut said = String::new();
    let _ = both.read_to_string(&mut said);
    assert!(said.ends_with("/with/a"), "the control: {said}");
}

#[test]
fn a_server_that_is_not_the_host_is_told_nothing() {
    let (site, other) = (site(), Site::answering(HOST, |_| "other".to_owned()));
    let proxy = Proxy::start(&Rules::default(), other.port, &site.root);
    let (said, _) = proxy.curl("/with/a", &["-i"]);
    assert!(said.starts_with("HTTP/1.1 502 ") && said.contains("x-ringfence-error: server-tls"), "{said}");
    assert!(said.contains("told nothing") && !said.contains(KEY), "{said}");
    proxy.refused(EgressCause::ServerTls);
    let named = Site::answering("b.example", |_| "other".to_owned());
    let proxy = Proxy::start(&Rules::default(), named.port, &named.root);
    assert!(proxy.curl("/with/a", &["-i"]).0.contains("server-tls"), "a certificate for another name");
    assert!(!other.was_told() && !named.was_told());
}
