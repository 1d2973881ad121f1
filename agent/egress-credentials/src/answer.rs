//! An answer's head as it is written anew: what goes on of it, without credentials. Pure.

use crate::{
    mask::{Mask, Pieces},
    refusal::Refusal,
    request::{is_one, kept},
};
use hyper::{
    HeaderMap, Method, Response, StatusCode, Version,
    header::{
        ALT_SVC, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, HeaderName, HeaderValue,
        SEC_WEBSOCKET_EXTENSIONS, SET_COOKIE, TRANSFER_ENCODING, UPGRADE,
    },
    http::response::Parts,
};
use ringfence_wire::egress::EgressCause;

/// What an answer is to.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// It asked for a WebSocket.
    pub(crate) is_upgrade: bool,
    /// It had the credential, and a cookie for that would have no rules: a session is as good as a login.
    pub(crate) takes_cookies: bool,
}

/// An answer's head as it goes on to the client, and whether there was a credential in it.
///
/// # Errors
/// It does not: what could be in its body would not be found there.
pub(crate) fn anew(answer: &Parts, asked: &Asked, mask: &Mask) -> Result<(Response<()>, bool), Refusal> {
    let has_other = |name: HeaderName, than: &[u8]| {
        answer.headers.get_all(name).into_iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(than))
    };
    // Also where the request had no credential: an earlier one had, and a server may have kept it.
    if has_other(CONTENT_ENCODING, b"identity") || has_other(TRANSFER_ENCODING, b"chunked") {
        let reason = "the server encoded its answer, although it was asked not to, so that the credential could come back in it unseen";
        return Err(Refusal::new(EgressCause::Reflects, reason));
    }
    if !answer.headers.get_all(SEC_WEBSOCKET_EXTENSIONS).iter().all(HeaderValue::is_empty) {
        let reason = "the server's WebSocket has an extension that nobody asked for, so that the credential could come back in it unseen";
        return Err(Refusal::new(EgressCause::Reflects, reason));
    }
    let is_switched = answer.status == StatusCode::SWITCHING_PROTOCOLS;
    if is_switched && !asked.is_upgrade {
        return Err(Refusal::new(
            EgressCause::Reflects,
            "the server went on to a protocol that nobody asked for",
        ));
    }
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    // One for all of them: to clear what it keeps takes longer than most headers.
    let (mut search, mut has_reflected) = (Pieces::default(), false);
    let mut masked = |bytes: &[u8]| {
        let masked = search.all_of(mask, bytes);
        has_reflected |= masked.is_some();
        masked
    };
    for (name, value) in &kept(&answer.headers) {
        let is_cookie = is_one(name, SET_COOKIE.as_str()) || is_one(name, "set-cookie2");
        if masked(name.as_str().as_bytes()).is_some() || (asked.takes_cookies && is_cookie) {
            continue;
        }
        let value = match masked(value.as_bytes()) {
            None => value.clone(),
            Some(masked) => HeaderValue::from_bytes(&masked).unwrap_or(HeaderValue::from_static("")),
        };
        headers.append(name, value);
    }
    // Another way to the host, by a protocol that is refused.
    headers.remove(ALT_SVC);
    if asked.method == Method::HEAD || answer.status == StatusCode::NOT_MODIFIED {
        // It has no body that says how long it would be.
        if let Some(length) = answer.headers.get(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, length.clone());
        }
    }
    if has_reflected || ends_connection(answer, asked) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if is_switched {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    let mut head = Response::new(());
    *head.status_mut() = answer.status;
    *head.headers_mut() = headers;
    Ok((head, has_reflected))
}

/// Whether nothing can be asked on the server's connection behind this answer: it says so, or its body ends with it.
fn ends_connection(answer: &Parts, asked: &Asked) -> bool {
    let says = |word: &str| {
        let values = answer.headers.get_all(CONNECTION).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    let has_length = [CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| answer.headers.contains_key(name));
    let is_without_body = asked.method == Method::HEAD
        || answer.status.is_informational()
        || matches!(answer.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    says("close")
        || (answer.version < Version::HTTP_11 && !says("keep-alive"))
        || !(has_length || is_without_body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Secret;

    fn asked() -> Asked {
        Asked { method: Method::GET, is_upgrade: false, takes_cookies: false }
    }

    fn of(status: u16, headers: &[(&str, &str)], asked: &Asked) -> Result<Vec<String>, EgressCause> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        let mask = Mask::all(&[Secret::from("secret-token-0123".to_owned())]).unwrap();
        let (anew, _) =
            anew(&answer.body(()).unwrap().into_parts().0, asked, &mask).map_err(|refusal| refusal.cause)?;
        let lines = anew.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Ok(lines.collect())
    }

    #[test]
    fn a_credential_in_a_head_is_masked() {
        let headers = [
            ("location", "https://a.org/?token=secret-token-0123&x"),
            ("x-echo", "Basic dTpzZWNyZXQtdG9rZW4tMDEyMw=="),
            ("secret-token-0123", "x"),
            ("set-cookie", "a=b"),
            ("content-length", "0"),
        ];
        let lines = of(302, &headers, &asked()).unwrap();
        assert_eq!(lines[0], "location: https://a.org/?token=*****************&x");
        assert!(lines[1].starts_with("x-echo: Basic d") && lines[1].contains("******"), "{lines:?}");
        assert_eq!(lines[2..], ["set-cookie: a=b", "connection: close"]);
    }

    #[test]
    fn a_session_of_the_credential_s_is_not_the_client_s() {
        let headers = [
            ("set-cookie", "a=b"),
            ("Set-Cookie2", "c"),
            ("set_cookie", "d"),
            ("x-a", "1"),
            ("content-length", "0"),
        ];
        let had = Asked { takes_cookies: true, ..asked() };
        assert_eq!(of(200, &headers, &had).unwrap(), ["x-a: 1"]);
        assert_eq!(of(200, &headers, &asked()).unwrap().len(), 4, "the control");
    }

    #[test]
    fn a_connection_that_the_server_ends_is_said_to_end() {
        let ends = |headers: &[(&str, &str)]| {
            of(200, headers, &asked()).unwrap().contains(&"connection: close".to_owned())
        };
        assert!(ends(&[("content-length", "1"), ("connection", "x, Close")]));
        assert!(ends(&[]), "its body ends with the connection");
        assert!(!ends(&[("content-length", "1")]) && !ends(&[("transfer-encoding", "chunked")]));
        let mut old = Response::builder().header("content-length", "1").body(()).unwrap().into_parts().0;
        assert!(!ends_connection(&old, &asked()), "the control");
        old.version = Version::HTTP_10;
        assert!(ends_connection(&old, &asked()));
        old.headers.insert(CONNECTION, HeaderValue::from_static("keep-alive"));
        assert!(!ends_connection(&old, &asked()));
    }

    #[test]
    fn an_answer_in_which_it_could_not_be_found_does_not_go_on() {
        for headers in [
            [("content-encoding", "gzip")],
            [("content-encoding", "identity, br")],
            [("transfer-encoding", "gzip, chunked")],
        ] {
            assert_eq!(of(200, &headers, &asked()), Err(EgressCause::Reflects), "{headers:?}");
        }
        assert!(of(200, &[("transfer-encoding", "chunked")], &asked()).is_ok());
        assert!(of(200, &[("content-encoding", "Identity")], &asked()).is_ok());
        assert_eq!(of(101, &[("upgrade", "h2c")], &asked()), Err(EgressCause::Reflects));
        let upgrade = Asked { is_upgrade: true, ..asked() };
        let deflate = [("sec-websocket-extensions", "permessage-deflate")];
        assert_eq!(of(101, &deflate, &upgrade), Err(EgressCause::Reflects));
        assert!(of(101, &[], &upgrade).is_ok(), "the control");
    }

    #[test]
    fn lengths_and_connections_are_of_one_side() {
        let headers = [
            ("content-length", "7"),
            ("connection", "x-a"),
            ("x-a", "1"),
            ("alt-svc", "h3=\":443\""),
            ("etag", "e"),
        ];
        assert_eq!(of(200, &headers, &asked()).unwrap(), ["etag: e"]);
        assert_eq!(of(304, &headers, &asked()).unwrap(), ["etag: e", "content-length: 7"]);
        let head = Asked { method: Method::HEAD, ..asked() };
        assert_eq!(of(200, &headers, &head).unwrap(), ["etag: e", "content-length: 7"]);
        let upgrade = Asked { is_upgrade: true, ..asked() };
        assert_eq!(of(101, &[], &upgrade).unwrap(), ["connection: upgrade", "upgrade: websocket"]);
    }
}
