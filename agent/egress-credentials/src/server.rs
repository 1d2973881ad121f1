//! The other side of a connection: TLS to the server that the egress worker dialled, and HTTP over that.

use crate::{
    authority::ALPN,
    body::Forwarded,
    refusal::Refusal,
    stream::{Counted, Counts, Socket},
};
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use ringfence_wire::egress::EgressCause;
use rustls::{
    ClientConfig,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::ServerName,
};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, client::TlsStream};

/// How long a server may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// Bytes of the head of an answer.
const LONGEST_HEAD: usize = 64 << 10;

/// How servers' certificates are checked: by the platform's roots, which are read now.
///
/// # Errors
/// There are none.
pub(crate) fn trusted() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider: Arc<CryptoProvider> = ring::default_provider().into();
    let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(&provider))?;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        // So it is named: the platform's verifier in the place of a list of roots.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config.into())
}

/// A server's side of a connection.
pub(crate) type Served = Connection<TokioIo<TlsStream<Counted>>, Forwarded>;

/// Makes sure that a socket's other end is this host, and speaks HTTP with it.
///
/// # Errors
/// It is not, or does not.
pub(crate) async fn open(
    trusted: &Arc<ClientConfig>,
    host: &str,
    socket: Socket,
    counts: Arc<Counts>,
) -> Result<(SendRequest<Forwarded>, Served), Refusal> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Refusal::new(EgressCause::ServerTls, "no certificate can name it"))?;
    let shaken = TlsConnector::from(Arc::clone(trusted)).connect(name, Counted::new(socket, counts));
    let tls = match timeout(HANDSHAKE, shaken).await {
        Ok(Ok(tls)) => tls,
        Ok(Err(error)) => return Err(failed(host, &error)),
        Err(_) => {
            let reason =
                format!("the server did not finish the TLS handshake within {} s", HANDSHAKE.as_secs());
            return Err(Refusal::new(EgressCause::Unreachable, &reason));
        }
    };
    let spoken = http1::Builder::new().max_buf_size(LONGEST_HEAD).handshake(TokioIo::new(tls)).await;
    spoken.map_err(|error| {
        Refusal::new(EgressCause::Unreachable, &format!("HTTP/1.1 cannot be spoken with the server: {error}"))
    })
}

fn failed(host: &str, error: &std::io::Error) -> Refusal {
    match error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::InvalidCertificate(why)) => Refusal::new(
            EgressCause::ServerTls,
            &format!(
                "the server's certificate is not one of {host} that this host trusts, so it was told nothing: {why}"
            ),
        ),
        Some(error) => {
            Refusal::new(EgressCause::ServerTls, &format!("TLS cannot be spoken with the server: {error}"))
        }
        None => Refusal::new(
            EgressCause::Unreachable,
            &format!("the server ended the connection in the TLS handshake: {error}"),
        ),
    }
}
