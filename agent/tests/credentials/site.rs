//! A server of a test's own authority, that answers each request as the test says.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto::ring, pki_types::PrivateKeyDer};
use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

/// A request, as it came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub(crate) method: String,
    pub(crate) target: String,
    /// In lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Asked {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }
}

type Tls = StreamOwned<ServerConnection, TcpStream>;

/// See the module.
pub(crate) struct Site {
    pub(crate) port: u16,
    /// The authority's certificate, as PEM.
    pub(crate) root: String,
    asked: Arc<Mutex<Vec<Asked>>>,
    /// Connections that got through the handshake.
    shaken: Arc<Mutex<usize>>,
}

impl Site {
    /// A server with a certificate for this name. `answer` writes the whole answer; false: the connection ends.
    pub(crate) fn new(
        name: &str,
        answer: impl Fn(&Asked, &mut Tls) -> io::Result<bool> + Send + Sync + 'static,
    ) -> Self {
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = pem(authority.self_signed(&key).unwrap().der());
        let issuer = Issuer::new(authority, key);
        let own_key = KeyPair::generate().unwrap();
        let own = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&own_key, &issuer).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], PrivateKeyDer::Pkcs8(own_key.serialize_der().into()))
            .unwrap();
        let (config, answer) = (Arc::new(config), Arc::new(answer));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (asked, shaken) = (Arc::<Mutex<Vec<Asked>>>::default(), Arc::<Mutex<usize>>::default());
        let (kept, counted) = (Arc::clone(&asked), Arc::clone(&shaken));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (config, answer, kept, counted) =
                    (Arc::clone(&config), Arc::clone(&answer), Arc::clone(&kept), Arc::clone(&counted));
                thread::spawn(move || {
                    stream.set_nodelay(true).unwrap();
                    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), stream);
                    while let Some(asked) = read(&mut stream) {
                        if kept.lock().unwrap().is_empty() {
                            *counted.lock().unwrap() += 1;
                        }
                        kept.lock().unwrap().push(asked.clone());
                        if !answer(&asked, &mut stream).is_ok_and(|goes_on| goes_on) {
                            return;
                        }
                    }
                });
            }
        });
        Self { port, root, asked, shaken }
    }

    /// One that answers each request with a text.
    pub(crate) fn answering(name: &str, answer: impl Fn(&Asked) -> String + Send + Sync + 'static) -> Self {
        Self::new(name, move |asked, stream| {
            let body = answer(asked);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
            stream.flush().map(|()| true)
        })
    }

    /// All requests so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Whether anybody got through the handshake and asked for anything.
    pub(crate) fn was_told(&self) -> bool {
        *self.shaken.lock().unwrap() > 0
    }
}

fn pem(der: &[u8]) -> String {
    let encoded = STANDARD.encode(der);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}

fn line(stream: &mut Tls) -> Option<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        line.push(byte[0]);
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).ok()
}

fn read(stream: &mut Tls) -> Option<Asked> {
    let first = line(stream)?;
    let mut words = first.split(' ');
    let mut asked = Asked { method: words.next()?.into(), target: words.next()?.into(), ..Asked::default() };
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        asked.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if let Some(length) = asked.header("content-length") {
        asked.body = vec![0; length.parse().ok()?];
        stream.read_exact(&mut asked.body).ok()?;
    } else if asked.header("transfer-encoding") == Some("chunked") {
        loop {
            let size = usize::from_str_radix(&line(stream)?, 16).ok()?;
            let mut chunk = vec![0; size];
            stream.read_exact(&mut chunk).ok()?;
            asked.body.extend(chunk);
            line(stream)?;
            if size == 0 {
                break;
            }
        }
    }
    Some(asked)
}
