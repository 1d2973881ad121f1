//! Who may ask: the checks before any handler, and the headers of every answer.
//!
//! A page of another site can make the browser send requests here. It cannot name our host and leave out its origin, so
//! both are compared exactly; and it does not have the token. Each of the three alone would refuse it.

use super::{Dashboard, api::Refusal};
use crate::{auditor::store::Viewer, quota::For, serving::Standing};
use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{
            AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, ORIGIN,
            REFERRER_POLICY, SEC_WEBSOCKET_PROTOCOL, X_CONTENT_TYPE_OPTIONS,
        },
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::{Arc, atomic::Ordering};

/// What a page offers beside its token; the answer names this one, never the token.
pub(super) const LIVE_PROTOCOL: &str = "ringfence.live";
const TOKEN_PROTOCOL: &str = "ringfence.token.";

/// Refuses what must not reach a handler; dresses what comes back.
pub(super) async fn pass(
    State(dashboard): State<Arc<Dashboard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let mut response = match check(&dashboard, &request) {
        Ok(viewer) => {
            // Absent for the page's own files: a handler that needs it has none to give away.
            viewer.and_then(|viewer| request.extensions_mut().insert(viewer));
            let wanted = if request.method() == Method::POST { For::Decision } else { For::Question };
            let _turn = match viewer {
                Some(viewer) => Some(dashboard.turns.take(viewer.0, wanted).await),
                None => None,
            };
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    };
    dress(response.headers_mut());
    response
}

/// Who asks, where that matters.
fn check(dashboard: &Dashboard, request: &Request) -> Result<Option<Viewer>, Refusal> {
    let headers = request.headers();
    let host = same_host(headers, request.uri().authority().map(|a| a.as_str()), dashboard.port)?;
    same_origin(headers, host)?;
    let path = request.uri().path();
    let (api, live) =
        (path == "/api" || path.starts_with("/api/"), path == "/ws" || path.starts_with("/ws/"));
    if !api && !live && path != "/metrics" {
        return Ok(None);
    }
    let given = bearer(headers).or_else(|| live.then(|| offered(headers)).flatten());
    let Some(viewer) = given.and_then(|given| dashboard.sessions.holder(given)) else {
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "This needs the dashboard's token. Open the link that `ringfence dashboard` prints; each start of the auditor makes a new one.",
        ));
    };
    let standing = request.extensions().get::<Arc<Standing>>();
    if !standing.is_some_and(|standing| standing.identify(viewer.0)) {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many connections to the dashboard with this token; close some and try again.",
        ));
    }
    dashboard.sessions.used.store(true, Ordering::Relaxed);
    if request.method() == Method::POST && !is_json(headers) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "A POST needs the header Content-Type: application/json.",
        ));
    }
    Ok(Some(viewer))
}

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
fn same_host<'a>(headers: &'a HeaderMap, authority: Option<&str>, port: u16) -> Result<&'a str, Refusal> {
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

fn same_origin(headers: &HeaderMap, host: &str) -> Result<(), Refusal> {
    match only(headers, &ORIGIN)? {
        None => Ok(()),
        Some(origin) if origin.strip_prefix("http://") == Some(host) => Ok(()),
        Some(_) => Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "The dashboard does not answer to pages of other origins.",
        )),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = only(headers, &AUTHORIZATION).ok()??;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// The token among the protocols that a WebSocket offers: a browser lets a page set no other header there.
fn offered(headers: &HeaderMap) -> Option<&str> {
    let value = only(headers, &SEC_WEBSOCKET_PROTOCOL).ok()??;
    value.split(',').find_map(|protocol| protocol.trim().strip_prefix(TOKEN_PROTOCOL))
}

/// A form of another site can be sent as text or form data, never as this.
fn is_json(headers: &HeaderMap) -> bool {
    let value = only(headers, &CONTENT_TYPE).ok().flatten().unwrap_or_default();
    value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// Nothing but the page's own files; no text becomes HTML (Chromium holds that), no frame holds the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

fn dress(headers: &mut HeaderMap) {
    let fixed = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
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
