//! The client: over TLS and without, directly, by way of the worker, or of a proxy.

use crate::worker::Worker;
use anyhow::{Context, Result, bail};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
};

/// How a connection is made.
pub(crate) enum Way<'w> {
    Direct(SocketAddr),
    /// As the kernel redirects it.
    Worker(&'w Worker),
    /// By `CONNECT`.
    Proxy(SocketAddr),
}

/// One server, and a way there.
pub(crate) struct Client<'w> {
    host: &'static str,
    way: Way<'w>,
    port: u16,
    config: Arc<ClientConfig>,
}

impl<'w> Client<'w> {
    /// Trusts the authorities in `folder`: the server's certificate, and the proxy's authority where there is one.
    pub(crate) fn new(folder: &Path, host: &'static str, way: Way<'w>, port: u16) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for name in ["server.pem", "mitmproxy-ca-cert.pem"] {
            let file = folder.join(name);
            if file.exists() {
                for certificate in CertificateDer::pem_file_iter(&file)? {
                    roots.add(certificate?)?;
                }
            }
        }
        let mut config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.resumption = Resumption::disabled();
        Ok(Self { host, way, port, config: Arc::new(config) })
    }

    fn connect(&self) -> Result<TcpStream> {
        let to = match &self.way {
            Way::Direct(to) | Way::Proxy(to) => *to,
            Way::Worker(worker) => worker.redirected(self.port),
        };
        let mut stream = TcpStream::connect(to)?;
        stream.set_nodelay(true)?;
        if let Way::Proxy(_) = self.way {
            write!(stream, "CONNECT localhost:{0} HTTP/1.1\r\nHost: localhost:{0}\r\n\r\n", self.port)?;
            let head = head(&mut stream)?;
            if !head.starts_with("HTTP/1.1 200") {
                bail!("the proxy says {head:?}");
            }
        }
        Ok(stream)
    }

    fn tls(&self) -> Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = ServerName::try_from(self.host)?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        Ok(StreamOwned::new(connection, self.connect()?))
    }

    fn request(&self, body: u64) -> String {
        format!("GET /{body} HTTP/1.1\r\nHost: {}:{}\r\n\r\n", self.host, self.port)
    }

    /// Connects, and waits for the first byte of an answer over TLS.
    pub(crate) fn first_byte(&self) -> Result<()> {
        let mut stream = self.tls()?;
        stream.write_all(self.request(1).as_bytes())?;
        stream.read_exact(&mut [0])?;
        Ok(())
    }

    /// A whole body over TLS.
    pub(crate) fn body_tls(&self, size: u64) -> Result<()> {
        let mut stream = self.tls()?;
        stream.write_all(self.request(size).as_bytes())?;
        whole(&mut stream, size)
    }

    /// A whole body without TLS.
    pub(crate) fn body(&self, size: u64) -> Result<()> {
        let mut stream = self.connect()?;
        stream.write_all(self.request(size).as_bytes())?;
        whole(&mut stream, size)
    }

    /// A connection without TLS that had an answer.
    pub(crate) fn kept(&self) -> Result<TcpStream> {
        let mut stream = self.connect()?;
        stream.write_all(self.request(1).as_bytes())?;
        whole(&mut stream, 1)?;
        Ok(stream)
    }
}

/// A head without a byte of what follows it.
fn head(stream: &mut impl Read) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).context("the head ends in the middle")?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn whole(stream: &mut impl Read, size: u64) -> Result<()> {
    let head = head(stream)?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("the answer is {head:?}");
    }
    let (mut bytes, mut left) = (vec![0; 256 << 10], size);
    while left > 0 {
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
        match stream.read(bytes.get_mut(..room).context("room")?)? {
            0 => bail!("{left} of {size} bytes did not come"),
            count => left -= count as u64,
        }
    }
    Ok(())
}
