//! What a request's headers say of who asks: the host that it means, the page that it comes from, the token. Pure.

use super::refusal::Refusal;
use axum::http::{
    HeaderMap, HeaderName, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, ORIGIN, SEC_WEBSOCKET_PROTOCOL},
};

/// What a page offers beside its token; the answer names this one, never the token.
pub(super) const LIVE_PROTOCOL: &str = "ringfence.live";
const TOKEN_PROTOCOL: &str = "ringfence.token.";

/// The one value of a header; an error where there are several.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Refusal::new(StatusCode::FORBIDDEN, format!("The header {name} came more than once.")));
    }
    let unreadable = |_| Refusal::new(StatusCode::FORBIDDEN, format!("The header {name} is not plain text."));
    first.map(|value| value.to_str().map_err(unreadable)).transpose()
}

/// The request's host, if it is ours by a name that only this machine has. A name that somebody pointed at 127.0.0.1
/// (DNS rebinding) is none.
pub fn same_host<'a>(headers: &'a HeaderMap, authority: Option<&str>, port: u16) -> Result<&'a str, Refusal> {
    let host = only(headers, &HOST)?.unwrap_or_default();
    let ours = |host: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|name| {
            host.strip_prefix(name).is_some_and(|rest| {
                rest.strip_prefix(':').is_some_and(|digits| digits == port.to_string())
                    || (port == 80 && rest.is_empty())
            })
        })
    };
    if ours(host) && authority.is_none_or(|authority| authority == host) {
        return Ok(host);
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        format!("The dashboard answers only to 127.0.0.1:{port}, localhost:{port} and [::1]:{port}."),
    ))
}

/// Refuses a request of a page of another origin than the dashboard's own.
pub fn same_origin(headers: &HeaderMap, host: &str) -> Result<(), Refusal> {
    match only(headers, &ORIGIN)? {
        None => Ok(()),
        Some(origin) if origin.strip_prefix("http://") == Some(host) => Ok(()),
        Some(_) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "The dashboard does not answer to pages of other origins.",
        )),
    }
}

/// The token of the `Authorization` header.
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = only(headers, &AUTHORIZATION).ok()??;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// The token among the protocols that a WebSocket offers: a browser lets a page set no other header there.
pub fn offered(headers: &HeaderMap) -> Option<&str> {
    let value = only(headers, &SEC_WEBSOCKET_PROTOCOL).ok()??;
    value.split(',').find_map(|protocol| protocol.trim().strip_prefix(TOKEN_PROTOCOL))
}

/// A form of another site can be sent as text or form data, never as this.
pub fn is_json(headers: &HeaderMap) -> bool {
    let value = only(headers, &CONTENT_TYPE).ok().flatten().unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

#[cfg(test)]
mod tests {
    use super::{is_json, offered, same_host, same_origin};
    use axum::http::{HeaderMap, HeaderName, HeaderValue};

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn only_loopback_names_with_the_port_are_our_host() {
        let ok = |host: &str, port| same_host(&headers(&[("host", host)]), None, port).is_ok();
        for host in ["127.0.0.1:8080", "localhost:8080", "[::1]:8080"] {
            assert!(ok(host, 8080), "{host}");
        }
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "127.0.0.1:8080.evil.example",
            "evil.example:8080",
            "localhost:08080",
            "",
            "127.0.0.1:8080:8080",
            "localhost.evil.example:8080",
            "0.0.0.0:8080",
            "127.1:8080",
            "LOCALHOST:8080",
        ] {
            assert!(!ok(host, 8080), "{host}");
        }
        assert!(ok("localhost", 80) && ok("localhost:80", 80));
        let twice = headers(&[("host", "127.0.0.1:8080"), ("host", "127.0.0.1:8080")]);
        assert!(same_host(&twice, None, 8080).is_err());
        let absolute = headers(&[("host", "127.0.0.1:8080")]);
        assert!(same_host(&absolute, Some("127.0.0.1:8080"), 8080).is_ok());
        assert!(same_host(&absolute, Some("evil.example"), 8080).is_err());
        assert!(same_host(&headers(&[]), None, 8080).is_err());
    }

    #[test]
    fn an_origin_is_the_hosts_own_or_refused() {
        let ok = |origins: &[&str]| {
            let pairs: Vec<_> = origins.iter().map(|origin| ("origin", *origin)).collect();
            same_origin(&headers(&pairs), "127.0.0.1:8080").is_ok()
        };
        assert!(ok(&[]) && ok(&["http://127.0.0.1:8080"]));
        for origin in [
            "null",
            "",
            "https://127.0.0.1:8080",
            "http://localhost:8080",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1",
        ] {
            assert!(!ok(&[origin]), "{origin}");
        }
        assert!(!ok(&["http://127.0.0.1:8080", "http://127.0.0.1:8080"]));
        assert!(!ok(&["http://127.0.0.1:8080", "null"]));
    }

    #[test]
    fn tokens_and_types_are_found_where_they_belong() {
        let protocols = headers(&[("sec-websocket-protocol", "ringfence.live, ringfence.token.abc")]);
        assert_eq!(offered(&protocols), Some("abc"));
        assert!(is_json(&headers(&[("content-type", "Application/JSON; charset=utf-8")])));
        for kind in ["text/plain", "application/json-seq", "application/x-www-form-urlencoded", ""] {
            assert!(!is_json(&headers(&[("content-type", kind)])), "{kind}");
        }
    }
}
