//! Servers' certificates: checked against the name in the URL, whoever is connected to.

use crate::support::{Names, PATIENCE, Session};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use ringfence_tools::web::WebFetch;
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::{Value, json};
use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::Arc,
    thread,
};

/// A server with a certificate for `name`: its port, and the certificate.
fn serve(name: &str) -> (u16, Vec<u8>) {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(stream), config) = (stream, config.clone()) else { return };
            thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let mut buffer = [0; 4096];
                if stream.read(&mut buffer).is_ok() {
                    let _ = stream.write_all(
                        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nsecret",
                    );
                    let _ = stream.flush();
                }
            });
        }
    });
    (port, cert.der().to_vec())
}

fn fetch(url: &str, roots: Vec<Vec<u8>>) -> Result<Value, String> {
    let names = Names::default().with("a.example", &[&["127.0.0.1"]]).with("b.example", &[&["127.0.0.1"]]);
    let tool = WebFetch::default().with_resolver(names).with_roots(roots).with_timeout(PATIENCE);
    let port = url.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let granted = [format!("a.example:{port}"), format!("b.example:{port}"), "127.0.0.1".into()];
    let granted: Vec<&str> = granted.iter().map(String::as_str).collect();
    Session::new(&granted, tool).call(json!({ "url": url }))
}

#[test]
fn only_a_certificate_for_the_name_from_a_known_root_is_good() {
    let (port, cert) = serve("a.example");
    let page = fetch(&format!("https://a.example:{port}/"), vec![cert.clone()]).unwrap();
    assert_eq!(page["markdown"], "secret");
    let (_, other) = serve("a.example");
    let unknown = fetch(&format!("https://a.example:{port}/"), vec![other]).unwrap_err();
    assert!(unknown.contains("no TLS with \"a.example\"") && unknown.contains("certificate"), "{unknown}");
    let misnamed = fetch(&format!("https://b.example:{port}/"), vec![cert.clone()]).unwrap_err();
    assert!(misnamed.contains("no TLS with \"b.example\""), "{misnamed}");
    let by_address = fetch(&format!("https://127.0.0.1:{port}/"), vec![cert]).unwrap_err();
    assert!(by_address.contains("no TLS with \"127.0.0.1\""), "{by_address}");
}

#[test]
fn an_address_may_have_a_certificate() {
    let (port, cert) = serve("127.0.0.1");
    let page = fetch(&format!("https://127.0.0.1:{port}/"), vec![cert]).unwrap();
    assert_eq!(page["markdown"], "secret");
}

#[test]
fn http_where_tls_is_and_tls_where_http_is_are_errors() {
    let (port, cert) = serve("a.example");
    fetch(&format!("http://a.example:{port}/"), vec![cert.clone()]).unwrap_err();
    let plain = crate::support::Server::page("text/plain", "x");
    let error = fetch(&format!("https://a.example:{}/", plain.port()), vec![cert]).unwrap_err();
    assert!(error.contains("no TLS with"), "{error}");
}
