//! Who may ask the endpoint: whoever has its secret, and no page of a browser. Pure.
//!
//! Every user and every container with the host's network reaches loopback, and a page can make a browser send requests there. It
//! cannot leave out its origin where it sends JSON, nor name our host where a name of its own leads here (DNS rebinding).

use axum::http::{
    HeaderMap, StatusCode,
    header::{AUTHORIZATION, HOST, ORIGIN},
};
use ringfence_http::own::is_own_host;
use std::net::SocketAddr;
use subtle::ConstantTimeEq as _;

/// The path that clients ask for, with the secret behind it or without.
pub const PATH: &str = "/mcp";

/// The checks of one listener.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    secret: String,
}

impl Gate {
    /// For an address of loopback and its secret.
    pub fn new(address: SocketAddr, secret: String) -> Self {
        Self { address, secret }
    }

    /// Whether a request may pass.
    ///
    /// # Errors
    /// Status and reason.
    pub fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().and_then(|host| host.to_str().ok()).unwrap_or_default();
        if hosts.next().is_some() || !is_own_host(self.address, host) {
            let why = "this endpoint answers to 127.0.0.1, localhost and [::1] with its own port only";
            return Err((StatusCode::FORBIDDEN, why));
        }
        let mut origins = headers.get_all(ORIGIN).iter();
        let origin = origins.next().map(|origin| origin.to_str().unwrap_or_default());
        let is_own =
            |origin: &str| origin.strip_prefix("http://").is_some_and(|of| is_own_host(self.address, of));
        if origins.next().is_some() || origin.is_some_and(|origin| !is_own(origin)) {
            return Err((StatusCode::FORBIDDEN, "this endpoint does not answer to pages of other origins"));
        }
        let Some(rest) = path.strip_prefix(PATH).filter(|rest| rest.is_empty() || rest.starts_with('/'))
        else {
            return Err((StatusCode::NOT_FOUND, "there is nothing here"));
        };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let bearer = bearer.and_then(|value| value.strip_prefix("Bearer ").or(value.strip_prefix("bearer ")));
        let given = rest.strip_prefix('/').filter(|rest| !rest.is_empty()).or(bearer).unwrap_or_default();
        if bool::from(given.as_bytes().ct_eq(self.secret.as_bytes())) {
            return Ok(());
        }
        let why = "this endpoint wants its secret: use the address that `ringfence mcp --listen` printed";
        Err((StatusCode::UNAUTHORIZED, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_at_our_own_name_passes() {
        let gate = Gate::new(([127, 0, 0, 1], 4321).into(), "ringfence-secret".into());
        let check = |path: &str, headers: &[(&str, &str)]| {
            let mut map = HeaderMap::new();
            for (name, value) in headers {
                let name: axum::http::HeaderName = name.parse().unwrap();
                map.append(name, value.parse().unwrap());
            }
            gate.check(path, &map).err().map_or(200, |(status, _)| status.as_u16())
        };
        let (host, with) = (("host", "127.0.0.1:4321"), "/mcp/ringfence-secret");
        let key = ("authorization", "Bearer ringfence-secret");
        assert_eq!(check(with, &[host]), 200);
        assert_eq!(check("/mcp", &[host, key]), 200);
        assert_eq!(check("/mcp/", &[host, key]), 200);
        for (name, origin) in
            [("localhost:4321", "http://localhost:4321"), ("[::1]:4321", "http://127.0.0.1:4321")]
        {
            assert_eq!(check(with, &[("host", name), ("origin", origin)]), 200);
        }
        for path in ["/mcp", "/mcp/", "/mcp/wrong", "/mcp/ringfence-secret2", "/mcp/ringfence-secre"] {
            assert_eq!(check(path, &[host]), 401, "{path}");
        }
        assert_eq!(check("/mcp", &[host, ("authorization", "Basic ringfence-secret")]), 401);
        assert_eq!(check("/mcpringfence-secret", &[host, key]), 404);
        assert_eq!(check("/.well-known/oauth-protected-resource", &[host, key]), 404);
        for wrong in ["evil.example:4321", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:4321", ""] {
            assert_eq!(check(with, &[("host", wrong)]), 403, "{wrong}");
        }
        assert_eq!(check(with, &[]), 403);
        assert_eq!(check(with, &[host, host]), 403);
        for wrong in ["http://evil.example", "null", "https://127.0.0.1:4321", "http://127.0.0.1:1", ""] {
            assert_eq!(check(with, &[host, ("origin", wrong)]), 403, "{wrong}");
        }
    }
}
