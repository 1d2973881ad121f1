//! Requests of a login: bounded, in time and in bytes, and by no other way than the one that was checked.

use super::metadata::Reach;
use reqwest::{Client, RequestBuilder, Response, StatusCode, header::ACCEPT};
use ringfence_base::error::root;
use ringfence_http::client::within_origin;
use std::time::Duration;
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

impl Fetch {
    pub(super) fn new() -> reqwest::Result<Self> {
        // Whoever came first has set it: there is one provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = || {
            Client::builder()
                .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIME)
                .timeout(TIME)
                // A code or a secret goes where it was checked that it may go, and nowhere else.
                .redirect(within_origin())
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
