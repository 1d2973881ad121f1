//! Servers on loopback, and what their clients trust.

use crate::support::PATIENCE;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// A server that does with each connection what a test says.
pub(crate) struct Server {
    pub(crate) port: u16,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicUsize::new(0));
        let (counted, serve) = (Arc::clone(&connections), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), serve) = (stream, Arc::clone(&serve)) else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                stream.set_nodelay(true).unwrap();
                thread::spawn(move || serve(stream));
            }
        });
        Self { port, connections }
    }

    /// Sends back what it is sent, until the end.
    pub(crate) fn echo() -> Self {
        Self::new(|mut stream| {
            let mut read = stream.try_clone().unwrap();
            let _ = std::io::copy(&mut read, &mut stream);
        })
    }

    /// How many connections it had.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// A server of HTTP/1.1 that answers each request with its target, and keeps the heads.
pub(crate) struct Http {
    pub(crate) server: Server,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Http {
    pub(crate) fn new() -> Self {
        let heads = Arc::<Mutex<Vec<String>>>::default();
        let kept = Arc::clone(&heads);
        let server = Server::new(move |mut stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            loop {
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let before = head.len();
                    if reader.read_line(&mut head).is_ok_and(|read| read == 0) {
                        return;
                    }
                    if let Some(of) = head[before..].to_ascii_lowercase().strip_prefix("content-length:") {
                        length = of.trim().parse().unwrap();
                    }
                }
                let mut body = vec![0; length];
                if reader.read_exact(&mut body).is_err() {
                    return;
                }
                let target = head.split(' ').nth(1).unwrap().to_owned();
                kept.lock().unwrap().push(head);
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{target}", target.len());
                if stream.write_all(answer.as_bytes()).is_err() {
                    return;
                }
            }
        });
        Self { server, heads }
    }

    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// Reads one answer with a Content-Length: its head and its body.
pub(crate) fn answer(stream: &TcpStream) -> (String, String) {
    let mut reader = OneByOne(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(reader.next());
    }
    let length = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ").map(str::to_owned));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    (head, (0..length).map(|_| reader.next()).collect())
}

/// Takes nothing that belongs to what comes later.
struct OneByOne<'a>(&'a TcpStream);

impl OneByOne<'_> {
    fn next(&mut self) -> char {
        let mut byte = [0];
        self.0.read_exact(&mut byte).expect("an answer");
        char::from(byte[0])
    }
}

/// A server with a certificate of a test's own authority, which sends back what it is sent; and who trusts it.
pub(crate) struct Tls {
    pub(crate) server: Server,
    pub(crate) client: Arc<ClientConfig>,
    /// The authority's certificate.
    pub(crate) root: CertificateDer<'static>,
}

type Spoken = StreamOwned<ServerConnection, TcpStream>;

impl Tls {
    pub(crate) fn new(names: &[&str]) -> Self {
        Self::serving(names, |stream| {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = stream.read(&mut bytes) {
                if stream.write_all(&bytes[..count]).and_then(|()| stream.flush()).is_err() {
                    return;
                }
            }
        })
    }

    /// The same, that does with each connection what a test says.
    pub(crate) fn serving(names: &[&str], serve: impl Fn(&mut Spoken) + Send + Sync + 'static) -> Self {
        let mut authority = CertificateParams::new(Vec::<String>::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let root = authority.self_signed(&key).unwrap();
        let issuer = Issuer::new(authority, key);
        let own_key = KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let own = CertificateParams::new(names).unwrap().signed_by(&own_key, &issuer).unwrap();
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.der().clone()], PrivateKeyDer::Pkcs8(own_key.serialize_der().into()))
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = Arc::new(server);
        let server = Server::new(move |stream| {
            serve(&mut StreamOwned::new(ServerConnection::new(Arc::clone(&server)).unwrap(), stream));
        });
        Self { server, client: Arc::new(client), root: root.der().clone() }
    }

    /// A client for this server name.
    pub(crate) fn client(&self, name: &str) -> ClientConnection {
        ClientConnection::new(Arc::clone(&self.client), ServerName::try_from(name.to_owned()).unwrap())
            .unwrap()
    }

    /// Speaks TLS over a connection: what comes back of `text`.
    ///
    /// # Errors
    /// As the handshake.
    pub(crate) fn talk(client: ClientConnection, stream: TcpStream, text: &str) -> std::io::Result<String> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(client, stream);
        stream.write_all(text.as_bytes())?;
        let mut back = vec![0; text.len()];
        stream.read_exact(&mut back)?;
        Ok(String::from_utf8(back).unwrap())
    }

    /// The bytes of a client's ClientHello.
    pub(crate) fn hello(client: &mut ClientConnection) -> Vec<u8> {
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        hello
    }
}
