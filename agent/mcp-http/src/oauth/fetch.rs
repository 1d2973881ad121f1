//! Requests of a login: bounded, in time and in bytes, and by no other way than the one that was checked.

use super::metadata::{Reach, is_loopback_ip};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    dns::{Addrs, Name, Resolve, Resolving},
    header::ACCEPT,
};
use ringfence_base::{error::root, loopback};
use ringfence_http::client::within_origin;
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
    vec::IntoIter,
};
use url::Url;
use zeroize::Zeroizing;

/// How long a connection, and a whole answer, may take.
const CONNECT_TIME: Duration = Duration::from_secs(20);
const TIME: Duration = Duration::from_secs(60);

/// The client of one login.
pub(super) struct Fetch {
    client: Client,
    /// For addresses in the clear, which are loopback's: by no proxy, which the environment may name.
    near: Client,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: Zeroizing<Vec<u8>>,
}

/// Looks names up, and finds no service of this machine by them: a name of anybody's may lead here.
#[derive(Clone, Copy)]
struct Names(Reach);

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let reach = self.0;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(allowed(reach, name.as_str(), found)?) as Addrs)
        })
    }
}

/// Those of a name's addresses that a login may lead to. A name that says itself that it is this machine's is a proxy's of the user's:
/// a server's own was checked before.
fn allowed(
    reach: Reach,
    name: &str,
    found: impl Iterator<Item = SocketAddr>,
) -> io::Result<IntoIter<SocketAddr>> {
    let is_ours = reach.loopback || loopback::is_name(name);
    let is_allowed = |ip: IpAddr| is_ours || !is_loopback_ip(ip);
    let left: Vec<SocketAddr> = found.filter(|address| is_allowed(address.ip())).collect();
    if left.is_empty() {
        let why = "its name has no address, or leads to this machine, where no login of another machine's server goes";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(left.into_iter())
}

impl Fetch {
    pub(super) fn new(reach: Reach) -> reqwest::Result<Self> {
        // Whoever came first has set it: there is one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIME)
                .timeout(TIME)
                // A code or a secret goes where it was checked that it may go, and nowhere else.
                .redirect(within_origin())
                .dns_resolver(Arc::new(Names(reach)))
                // Between two requests a user logs in: by then a connection may be gone.
                .pool_max_idle_per_host(0)
                .http1_only()
        };
        Ok(Self { client: builder().build()?, near: builder().no_proxy().build()? })
    }

    fn to(&self, url: &Url) -> &Client {
        if url.scheme() == "http" { &self.near } else { &self.client }
    }

    pub(super) fn get(&self, url: &Url) -> RequestBuilder {
        self.to(url).get(url.clone()).header(ACCEPT, "application/json")
    }

    pub(super) fn post(&self, url: &Url) -> RequestBuilder {
        self.to(url).post(url.clone()).header(ACCEPT, "application/json")
    }
}

/// Sends a request.
///
/// # Errors
/// In words: there is no answer.
pub(super) async fn send(request: RequestBuilder) -> Result<Response, String> {
    request.send().await.map_err(|error| format!("it cannot be reached: {}", said(error)))
}

/// The whole of an answer.
///
/// # Errors
/// In words: there is none, or it has more than `max` bytes.
pub(super) async fn whole(request: RequestBuilder, max: usize) -> Result<Answer, String> {
    let mut response = send(request).await?;
    let status = response.status();
    // Room for most of them at once: a vector that grows leaves copies behind.
    let mut body = Zeroizing::new(Vec::with_capacity(32 << 10));
    while let Some(chunk) =
        response.chunk().await.map_err(|error| format!("its answer breaks off: {}", said(error)))?
    {
        if body.len() + chunk.len() > max {
            return Err(format!("its answer has more than {max} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer { status, body })
}

/// The library's own text names the address, which may hold a secret.
fn said(error: reqwest::Error) -> String {
    root(&error.without_url()).to_string()
}

/// An address as a message may show it.
pub(super) fn shown(url: &Url) -> String {
    crate::config::address(url)
}

/// A name of a server's, as a message may show it: if it is an address that a login may lead to.
pub(super) fn shown_name(name: &str, reach: Reach) -> String {
    reach.url(name).map_or_else(|_| "what it names".to_owned(), |url| shown(&url))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_no_service_of_this_machine() {
        let (far, near) = (Reach { loopback: false }, Reach { loopback: true });
        let of = |reach, name: &str, ips: &[&str]| {
            let found = ips.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0));
            allowed(reach, name, found).map(|left| left.map(|address| address.ip().to_string()).collect())
        };
        let only = |ip: &str| vec![ip.to_owned()];
        for local in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"] {
            of(far, "x.example", &[local]).map(|left: Vec<String>| panic!("{left:?}")).unwrap_err();
            assert_eq!(of(far, "x.example", &[local, "192.0.2.1"]).unwrap(), only("192.0.2.1"));
            // The controls: a server that is here itself, and a proxy.
            for (reach, name) in [(near, "x.example"), (far, "localhost")] {
                assert_eq!(of(reach, name, &[local]).unwrap().len(), 1, "{local} {name}");
            }
        }
    }
}
