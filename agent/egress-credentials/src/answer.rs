//! An answer's head as it is written anew: what goes on of it, without credentials. Pure.

use crate::{
    mask::Mask,
    refusal::Refusal,
    request::{is_one, kept, remove},
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

/// Says what of an answer's head is not there.
const WITHHELD: &str = "x-ringfence-withheld";

/// What an answer is to.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) method: Method,
    /// It asked for a WebSocket.
    pub(crate) is_upgrade: bool,
    /// It had the credential.
    pub(crate) has_credential: bool,
}

/// An answer's head as it goes on to the client.
///
/// # Errors
/// It does not: what could be in its body would not be found there.
pub(crate) fn anew(answer: &Parts, asked: &Asked, mask: &Mask) -> Result<Response<()>, Refusal> {
    let has_other = |name: HeaderName, than: &[u8]| {
        answer.headers.get_all(name).into_iter().any(|value| !value.as_bytes().eq_ignore_ascii_case(than))
    };
    // Also where the request had no credential: an earlier one had, and a server may have kept it.
    if has_other(CONTENT_ENCODING, b"identity") || has_other(TRANSFER_ENCODING, b"chunked") {
        let reason = "the server encoded its answer, although it was asked not to, so that the credential could come back in it unseen";
        return Err(Refusal::new(EgressCause::Reflects, reason));
    }
    let is_switched = answer.status == StatusCode::SWITCHING_PROTOCOLS;
    if is_switched && !asked.is_upgrade {
        return Err(Refusal::new(
            EgressCause::Reflects,
            "the server went on to a protocol that nobody asked for",
        ));
    }
    if is_switched && answer.headers.keys().any(|name| is_one(name, SEC_WEBSOCKET_EXTENSIONS.as_str())) {
        let reason = "the server chose an extension of WebSockets that nobody asked for, so that the credential could come back unseen";
        return Err(Refusal::new(EgressCause::Reflects, reason));
    }
    let mut headers = HeaderMap::with_capacity(answer.headers.len());
    for (name, value) in &kept(&answer.headers) {
        if mask.masked(name.as_str().as_bytes()).is_some() {
            continue;
        }
        let value = match mask.masked(value.as_bytes()) {
            None => value.clone(),
            Some(masked) => HeaderValue::from_bytes(&masked).unwrap_or(HeaderValue::from_static("")),
        };
        headers.append(name, value);
    }
    // Another way to the host, by a protocol that is refused.
    headers.remove(ALT_SVC);
    if asked.has_credential && headers.keys().any(|name| is_one(name, SET_COOKIE.as_str())) {
        // A session is the account itself, on every path, and without the rules.
        remove(&mut headers, SET_COOKIE.as_str());
        headers.insert(HeaderName::from_static(WITHHELD), HeaderValue::from_static("set-cookie"));
    }
    if is_closing(answer) {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if asked.method == Method::HEAD || answer.status == StatusCode::NOT_MODIFIED {
        // It has no body that says how long it would be.
        if let Some(length) = answer.headers.get(CONTENT_LENGTH) {
            headers.insert(CONTENT_LENGTH, length.clone());
        }
    }
    if is_switched {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    let mut head = Response::new(());
    *head.status_mut() = answer.status;
    *head.headers_mut() = headers;
    Ok(head)
}

/// Whether the server's connection ends with this answer: then so does the client's, which has to know before it asks again.
fn is_closing(answer: &Parts) -> bool {
    answer.version < Version::HTTP_11
        || answer
            .headers
            .get_all(CONNECTION)
            .into_iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|word| word.trim().eq_ignore_ascii_case("close"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Secret;

    fn asked() -> Asked {
        Asked { method: Method::GET, is_upgrade: false, has_credential: false }
    }

    fn of(status: u16, headers: &[(&str, &str)], asked: &Asked) -> Result<Vec<String>, EgressCause> {
        let mut answer = Response::builder().status(status);
        for (name, value) in headers {
            answer = answer.header(*name, *value);
        }
        let mask = Mask::new(&[Secret::from("secret-token-1".to_owned())]);
        let anew =
            anew(&answer.body(()).unwrap().into_parts().0, asked, &mask).map_err(|refusal| refusal.cause)?;
        let lines = anew.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()));
        Ok(lines.collect())
    }

    #[test]
    fn a_credential_in_a_head_is_masked() {
        let headers = [
            ("location", "https://a.org/?token=secret-token-1&x"),
            ("x-echo", "Basic dTpzZWNyZXQtdG9rZW4tMQ=="),
            ("secret-token-1", "x"),
            ("set-cookie", "a=b"),
        ];
        let lines = of(302, &headers, &asked()).unwrap();
        assert_eq!(lines[0], "location: https://a.org/?token=**************&x");
        assert!(lines[1].starts_with("x-echo: Basic d") && lines[1].contains("******"), "{lines:?}");
        assert_eq!(lines[2..], ["set-cookie: a=b"], "of a request without the credential");
    }

    #[test]
    fn a_session_is_not_given_for_the_credential() {
        let with = Asked { has_credential: true, ..asked() };
        let headers = [("Set-Cookie", "session=1"), ("set_cookie", "b=2"), ("etag", "e")];
        assert_eq!(of(200, &headers, &with).unwrap(), ["etag: e", "x-ringfence-withheld: set-cookie"]);
        assert_eq!(of(200, &[("etag", "e")], &with).unwrap(), ["etag: e"], "the control");
    }

    #[test]
    fn a_connection_that_ends_says_so() {
        assert_eq!(of(200, &[("connection", "x, Close")], &asked()).unwrap(), ["connection: close"]);
        assert!(of(200, &[("connection", "keep-alive")], &asked()).unwrap().is_empty());
        let mut old =
            Response::builder().status(200).version(Version::HTTP_10).body(()).unwrap().into_parts().0;
        assert!(is_closing(&old));
        old.version = Version::HTTP_11;
        assert!(!is_closing(&old));
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
        let unasked = [("sec-websocket-extensions", "permessage-deflate")];
        assert_eq!(of(101, &unasked, &upgrade), Err(EgressCause::Reflects));
    }
}
