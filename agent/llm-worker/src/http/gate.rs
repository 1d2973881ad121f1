//! Who may call on loopback: whoever has the endpoint's token, and no page of a browser. Pure.
//!
//! Every user and every container with the host's network reaches loopback, and a page can make a browser send requests
//! there. It cannot leave out its origin, nor name our host where a name of its own leads here.

use axum::http::{
    HeaderMap,
    header::{AUTHORIZATION, HOST, ORIGIN},
};
use ringfence_http::own::is_own_host;
use std::net::SocketAddr;
use subtle::ConstantTimeEq as _;

/// The checks of one listener.
pub struct Gate {
    address: SocketAddr,
    token: String,
}

impl Gate {
    /// For an address of loopback and the token of its listener.
    pub fn new(address: SocketAddr, token: String) -> Self {
        Self { address, token }
    }

    /// Whether a request may pass.
    ///
    /// # Errors
    /// Status and reason.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), (u16, &'static str)> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        if hosts.next().is_some() || !is_own_host(self.address, host) {
            return Err((
                403,
                "this endpoint answers to its own address, 127.0.0.1, localhost and [::1] with its own port only",
            ));
        }
        if headers.contains_key(ORIGIN) {
            return Err((403, "this endpoint does not answer to pages in a browser"));
        }
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ").or(value.strip_prefix("bearer ")));
        // Never in a query, as Google's API takes it, too: addresses are logged.
        let keys = ["x-api-key", "x-goog-api-key"].map(|name| headers.get(name)?.to_str().ok());
        let is_it = |given: &str| bool::from(given.as_bytes().ct_eq(self.token.as_bytes()));
        if keys.into_iter().chain([bearer]).flatten().any(is_it) {
            return Ok(());
        }
        Err((
            401,
            "this endpoint wants its own token as the API key: `ringfence agent show` says where that is",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_at_our_own_name_passes() {
        let gate = Gate::new(([127, 82, 1, 2], 4321).into(), "ringfence-secret".into());
        let check = |headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name: axum::http::HeaderName = name.parse().unwrap();
                map.append(name, value.parse().unwrap());
            }
            gate.check(&map).err().map_or(200, |(status, _)| status)
        };
        let host = ("host", "127.0.0.1:4321");
        let key = ("x-api-key", "ringfence-secret");
        assert_eq!(check(&[host, key]), 200);
        assert_eq!(check(&[("host", "127.82.1.2:4321"), key]), 200, "by its own address");
        assert_eq!(check(&[("host", "localhost:4321"), ("authorization", "Bearer ringfence-secret")]), 200);
        assert_eq!(check(&[host, ("x-goog-api-key", "ringfence-secret")]), 200);
        assert_eq!(check(&[host]), 401);
        assert_eq!(check(&[host, ("x-goog-api-key", "sk-other")]), 401);
        assert_eq!(check(&[host, ("x-api-key", "sk-other")]), 401);
        assert_eq!(check(&[host, ("authorization", "Basic ringfence-secret")]), 401);
        assert_eq!(check(&[host, key, ("origin", "http://127.0.0.1:4321")]), 403);
        for evil in [
            "evil.example:4321",
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.1.evil.example:4321",
            "127.82.1.3:4321",
            ":4321",
            "[::1]",
            "",
        ] {
            assert_eq!(check(&[("host", evil), key]), 403, "{evil}");
        }
        assert_eq!(check(&[key]), 403);
        assert_eq!(check(&[host, ("host", "evil.example"), key]), 403);
    }
}
