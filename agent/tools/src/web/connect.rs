//! One connection for one request, to an address that was screened: there is no pool, no proxy and no second look-up.

use super::{
    error::{Phase, WebError},
    target::{Host, Target},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, crypto::CryptoProvider, pki_types::CertificateDer, pki_types::ServerName};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::{Instant, timeout, timeout_at},
};

/// Most addresses of a name that are tried.
const MAX_ADDRESSES: usize = 8;

/// How long one of several addresses may take to answer before the next is tried.
const ADDRESS_TIME: Duration = Duration::from_secs(4);

/// A connection, with or without TLS.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// What servers' certificates are checked by: made when first needed, as reading the system's roots takes a while.
#[derive(Debug, Default)]
pub(super) struct Tls {
    config: OnceLock<Arc<ClientConfig>>,
    extra_roots: Vec<CertificateDer<'static>>,
}

impl Tls {
    pub(super) fn trusting(extra_roots: Vec<CertificateDer<'static>>) -> Self {
        Self { config: OnceLock::new(), extra_roots }
    }

    fn config(&self) -> Result<Arc<ClientConfig>, rustls::Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let provider: Arc<CryptoProvider> = rustls::crypto::ring::default_provider().into();
        let roots = self.extra_roots.iter().cloned();
        let verifier = rustls_platform_verifier::Verifier::new_with_extra_roots(roots, provider.clone())?;
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            // So it is named: the platform's verifier in the place of a list of roots.
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // Nothing that a server gives is shown to it again.
        config.resumption = rustls::client::Resumption::disabled();
        Ok(self.config.get_or_init(|| config.into()).clone())
    }
}

/// Connects to the first of `addrs` that answers, which are `target`'s and were screened.
pub(super) async fn connect(
    target: &Target,
    addrs: &[IpAddr],
    tls: &Tls,
    deadline: Instant,
) -> Result<TokioIo<Box<dyn Stream>>, WebError> {
    let tcp = Phase::Connect.within(deadline, first(target, addrs)).await??;
    // What is asked is one small write.
    let _ = tcp.set_nodelay(true);
    if !target.tls() {
        return Ok(TokioIo::new(Box::new(tcp)));
    }
    let name = match &target.host {
        Host::Name(name) => ServerName::try_from(name.clone()).map_err(|source| WebError::Handshake {
            host: name.clone(),
            source: io::Error::new(io::ErrorKind::InvalidInput, source),
        })?,
        Host::Addr(addr) => ServerName::IpAddress((*addr).into()),
    };
    let connector = tokio_rustls::TlsConnector::from(tls.config().map_err(WebError::Tls)?);
    let handshake = Phase::Handshake.within(deadline, connector.connect(name, tcp)).await?;
    let stream = handshake.map_err(|source| WebError::Handshake { host: target.host.to_string(), source })?;
    Ok(TokioIo::new(Box::new(stream)))
}

async fn first(target: &Target, addrs: &[IpAddr]) -> Result<TcpStream, WebError> {
    let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
    let several = addrs.len() > 1;
    for addr in addrs.iter().take(MAX_ADDRESSES) {
        let connecting = TcpStream::connect(SocketAddr::new(*addr, target.port));
        // One address alone may take what time there is.
        let connected = match several {
            false => connecting.await,
            true => timeout(ADDRESS_TIME, connecting).await.unwrap_or(Err(io::ErrorKind::TimedOut.into())),
        };
        match connected {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(WebError::Connect { host: target.host.to_string(), port: target.port, source: last })
}

impl Phase {
    /// What `work` gives, unless the deadline comes first.
    pub(super) async fn within<T>(
        self,
        deadline: Instant,
        work: impl Future<Output = T>,
    ) -> Result<T, WebError> {
        timeout_at(deadline, work).await.map_err(|_| WebError::Deadline { phase: self })
    }
}
