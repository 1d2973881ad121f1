//! The servers, in a process of their own: HTTP/1.1 over TLS and without, whose bodies are as long as the path says.

use anyhow::{Context, Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{ServerConfig, crypto::ring, pki_types::PrivateKeyDer};
use std::{fs, io::BufRead, io::BufReader, net::Ipv4Addr, path::Path, process::Child, sync::Arc};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpListener,
    runtime,
};
use tokio_rustls::TlsAcceptor;

/// Longest head of a request, bytes.
const MAX_HEAD: usize = 4096;
static BODY: [u8; 64 << 10] = [b'x'; 64 << 10];

/// Serves until it is ended; prints both ports, the one with TLS first. Its certificate is `server.pem` in the folder.
pub(crate) fn serve(folder: &Path, host: &str, at: Ipv4Addr) -> Result<()> {
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed([host.to_owned()])?;
    let text = STANDARD.encode(cert.der());
    let pem = format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n");
    fs::write(folder.join("server.pem"), pem).context("cannot write the certificate")?;
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
    let config = ServerConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let (tls, plain) = (listener(at).await?, listener(at).await?);
        println!("{} {}", tls.local_addr()?.port(), plain.local_addr()?.port());
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            while let Ok((stream, _)) = plain.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        loop {
            let (stream, _) = tls.accept().await?;
            stream.set_nodelay(true)?;
            let acceptor = acceptor.clone();
            tokio::spawn(async move { answer(acceptor.accept(stream).await?).await });
        }
    })
}

async fn listener(at: Ipv4Addr) -> Result<TcpListener> {
    TcpListener::bind((at, 0)).await.with_context(|| format!("cannot listen on {at}"))
}

async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<()> {
    let mut head = Vec::with_capacity(MAX_HEAD);
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_HEAD || stream.read_buf(&mut head).await? == 0 {
                bail!("the request is not whole");
            }
        }
        let text = String::from_utf8_lossy(&head).into_owned();
        let path = text.split(' ').nth(1).and_then(|path| path.strip_prefix('/'));
        let mut left: usize = path.context("no path")?.parse().context("no size")?;
        head.clear();
        stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n").as_bytes()).await?;
        while left > 0 {
            let part = BODY.get(..left).unwrap_or(&BODY);
            stream.write_all(part).await?;
            left -= part.len();
        }
        stream.flush().await?;
    }
}

/// What a process that serves printed: the ports with and without TLS.
pub(crate) fn ports(server: &mut Child) -> Result<[u16; 2]> {
    let mut line = String::new();
    BufReader::new(server.stdout.take().context("no output")?).read_line(&mut line)?;
    let (tls, plain) = line.trim().split_once(' ').context("the servers did not start")?;
    Ok([tls.parse()?, plain.parse()?])
}
