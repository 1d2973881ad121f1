//! A request as it is written anew: what goes on of it, and whether the credential is put in. Pure.

use crate::{disguise, hosts::Host, refusal::Refusal};
use http_body::Body;
use hyper::{
    HeaderMap, Method, Request, Uri, Version,
    header::{
        ACCEPT_CHARSET, ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST,
        HeaderName, HeaderValue, IF_RANGE, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, RANGE,
        SEC_WEBSOCKET_EXTENSIONS, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
    },
    http::request::Parts,
};
use ringfence_wire::{credentials::Otherwise, egress::EgressCause, requests::Target};

/// Headers that are about one connection, and how a message ends on it: both sides have their own.
const OF_CONNECTION: [HeaderName; 8] =
    [CONNECTION, CONTENT_LENGTH, EXPECT, PROXY_AUTHENTICATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE];
/// The same, that have no constant.
const OLD: [&str; 3] = ["keep-alive", "proxy-connection", "http2-settings"];
/// Headers in which services take a credential, beside `Authorization`: one of a client's could be anybody's.
const CREDENTIALS: [&str; 33] = [
    "access-token",
    "api-key",
    "apikey",
    "auth-token",
    "circle-token",
    "dd-api-key",
    "dd-application-key",
    "deploy-token",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "x-access-token",
    "x-amz-security-token",
    "x-api-key",
    "x-api-token",
    "x-apikey",
    "x-auth",
    "x-auth-key",
    "x-auth-token",
    "x-authorization",
    "x-consul-token",
    "x-figma-token",
    "x-functions-key",
    "x-gitlab-token",
    "x-goog-api-key",
    "x-jfrog-art-api",
    "x-nomad-token",
    "x-nuget-apikey",
    "x-redmine-api-key",
    "x-registry-auth",
    "x-shopify-access-token",
    "x-token",
    "x-vault-token",
];
/// Ports that a `Host` need not name.
const HTTPS: u16 = 443;

/// A request, as it goes on.
#[derive(Debug)]
pub(crate) struct Anew {
    pub(crate) head: Request<()>,
    /// It has the credential.
    pub(crate) has_credential: bool,
    /// It asks for a WebSocket.
    pub(crate) is_upgrade: bool,
}

/// A request as it goes on to the server.
///
/// # Errors
/// It does not.
pub(crate) fn anew(request: &Parts, host: &Host) -> Result<Anew, Refusal> {
    let rules = &host.rules;
    is_for(request, &rules.host, rules.port)?;
    disguise::judge_headers(&request.headers)?;
    let text = request.uri.path_and_query().map_or("", |target| target.as_str());
    let malformed = |reason: &str| Refusal::new(EgressCause::Malformed, reason);
    let target = Target::read(text)
        .map_err(|why| malformed(&format!("the request's target cannot be judged: {why}")))?;
    let (method, path) = (&request.method, target.path());
    if [Method::TRACE, Method::CONNECT].contains(method) {
        return Err(Refusal::new(EgressCause::NoRule, &format!("{method} is never let through")));
    }
    let has_credential = rules.allow.iter().any(|rule| rule.allows(method.as_str(), &target));
    if !has_credential && rules.otherwise == Otherwise::Refuse {
        let reason =
            format!("no rule of `allow` in [net.credentials.\"{}\"] has {method} {path}", rules.host);
        return Err(Refusal::new(EgressCause::NoRule, &reason));
    }
    if has_credential {
        disguise::judge_parameters(request, &target, &rules.allow)?;
    }
    let is_upgrade = is_upgrade(request);
    let mut headers = kept(&request.headers);
    let own = [AUTHORIZATION, PROXY_AUTHORIZATION, host.value.0.clone()];
    own.iter().map(HeaderName::as_str).chain(CREDENTIALS).for_each(|name| remove(&mut headers, name));
    if !rules.cookies {
        remove(&mut headers, COOKIE.as_str());
    }
    let authority = match rules.port {
        HTTPS => rules.host.clone(),
        port => format!("{}:{port}", rules.host),
    };
    let authority = HeaderValue::from_str(&authority).map_err(|_| malformed("the host is none"))?;
    headers.insert(HOST, authority);
    if is_upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    // What comes back is searched, also of requests without: nothing may hide in it, and no piece be asked for alone.
    for name in [ACCEPT_CHARSET, ACCEPT_ENCODING, RANGE, IF_RANGE, SEC_WEBSOCKET_EXTENSIONS] {
        remove(&mut headers, name.as_str());
    }
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if has_credential {
        let (name, value) = host.value.clone();
        headers.insert(name, value);
    }
    let mut head = Request::new(());
    *head.method_mut() = method.clone();
    *head.uri_mut() = text.parse::<Uri>().map_err(|_| malformed("the request's target is none"))?;
    *head.version_mut() = Version::HTTP_11;
    *head.headers_mut() = headers;
    Ok(Anew { head, has_credential, is_upgrade })
}

/// Says how the body of a request ends where the writer of heads would say nothing: that it is empty, or that it comes in chunks, of
/// which that writer knows nothing with a GET.
pub(crate) fn frame(head: &mut Request<()>, came: &HeaderMap, body: &impl Body) {
    let is_expected = ![Method::GET, Method::HEAD, Method::OPTIONS, Method::DELETE].contains(head.method());
    if body.is_end_stream() {
        if is_expected || came.contains_key(CONTENT_LENGTH) {
            head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
        }
    } else if body.size_hint().exact().is_none() {
        head.headers_mut().insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
}

/// Whether it is for the host that was judged, and that the credential is for.
fn is_for(request: &Parts, host: &str, port: u16) -> Result<(), Refusal> {
    let other = |reason: &str| Err(Refusal::new(EgressCause::OtherName, reason));
    if request.uri.authority().is_some() {
        return other("the request's target has a host in it");
    }
    let mut hosts = request.headers.get_all(HOST).into_iter();
    let (Some(one), None) = (hosts.next(), hosts.next()) else {
        return other("the request has no `Host`, or several");
    };
    let one = one.as_bytes().to_ascii_lowercase();
    let with_port = format!("{host}:{port}");
    if one == with_port.as_bytes() || (port == HTTPS && one == host.as_bytes()) {
        return Ok(());
    }
    other(&format!("the request is for another host than {host}"))
}

fn is_upgrade(request: &Parts) -> bool {
    let has = |name: HeaderName, word: &str| {
        let values = request.headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
    };
    request.method == Method::GET && has(CONNECTION, "upgrade") && has(UPGRADE, "websocket")
}

/// The headers that are about the message itself.
pub(crate) fn kept(headers: &HeaderMap) -> HeaderMap {
    let named: Vec<String> = headers
        .get_all(CONNECTION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .collect();
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let is_of_connection = OF_CONNECTION.iter().any(|of| is_one(name, of.as_str()))
            || is_among(name, &OLD)
            || named.iter().any(|of| of == name.as_str());
        if !is_of_connection {
            kept.append(name, value.clone());
        }
    }
    kept
}

/// Whether it is a header of this name to any server: to some, all that is no letter and no digit is the same.
pub(crate) fn is_one(name: &HeaderName, of: &str) -> bool {
    let fold = |byte: u8| if byte.is_ascii_alphanumeric() { byte } else { b'-' };
    name.as_str().bytes().map(fold).eq(of.bytes().map(fold))
}

pub(crate) fn is_among(name: &HeaderName, of: &[&str]) -> bool {
    of.iter().any(|of| is_one(name, of))
}

/// Takes every header of this name out.
fn remove(headers: &mut HeaderMap, of: &str) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_one(name, of)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_credentials::Secret;
    use ringfence_wire::credentials::{CredentialPlace, HostCredential};

    const KEY: &str = "secret-token-0123";

    fn host(place: CredentialPlace, otherwise: Otherwise) -> Host {
        let allow = vec!["GET /repos/**".parse().unwrap(), "POST /a".parse().unwrap()];
        let rules =
            HostCredential { host: "a.org".into(), port: 443, place, allow, otherwise, cookies: false };
        Host::new(rules, &Secret::from(KEY.to_owned())).unwrap()
    }

    fn refusing() -> Host {
        host(CredentialPlace::Bearer, Otherwise::Refuse)
    }

    /// Head lines as a client writes them; `Host` beside them, unless there is one.
    fn parts(head: &str) -> Parts {
        let (line, headers) = head.split_once('\n').unwrap_or((head, ""));
        let (method, target) = line.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(target);
        for line in headers.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            request = request.header(name, value);
        }
        if !format!("\n{headers}").to_ascii_lowercase().contains("\nhost: ") {
            request = request.header("host", "a.org");
        }
        request.body(()).unwrap().into_parts().0
    }

    fn written(head: &str, host: &Host) -> (String, bool) {
        let anew = anew(&parts(head), host).unwrap_or_else(|refusal| panic!("{head}: {refusal:?}"));
        let mut lines: Vec<String> = anew
            .head
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect();
        lines.sort();
        (format!("{} {} | {}", anew.head.method(), anew.head.uri(), lines.join(" | ")), anew.has_credential)
    }

    fn refused(head: &str) -> EgressCause {
        anew(&parts(head), &refusing()).unwrap_err().cause
    }

    #[test]
    fn a_request_that_a_rule_has_gets_the_credential_and_no_other() {
        let (head, has) = written(
            "GET /repos/x?y=z\nAuthorization: Bearer other-token\naccept: */*\nAccept-Encoding: gzip\nRange: bytes=0-3",
            &refusing(),
        );
        assert!(has);
        assert_eq!(
            head,
            "GET /repos/x?y=z | accept-encoding: identity | accept: */* | authorization: Bearer secret-token-0123 | host: a.org"
        );
        let own = host(CredentialPlace::header("X-Token").unwrap(), Otherwise::Refuse);
        let (head, _) = written("POST /a\nAuthorization: Bearer other\nx-token: other\nX_Token: other", &own);
        assert_eq!(head, "POST /a | accept-encoding: identity | host: a.org | x-token: secret-token-0123");
    }

    #[test]
    fn others_are_refused_or_go_on_without_any() {
        assert_eq!(refused("DELETE /repos/x"), EgressCause::NoRule);
        assert_eq!(refused("GET /other"), EgressCause::NoRule);
        let passing = host(CredentialPlace::Bearer, Otherwise::Pass);
        let (head, has) = written("DELETE /repos/x\nauthorization: Bearer other\nrange: bytes=0-3", &passing);
        assert!(!has);
        assert_eq!(head, "DELETE /repos/x | accept-encoding: identity | host: a.org");
    }

    #[test]
    fn what_another_server_could_take_for_another_request_is_refused() {
        for head in [
            "TRACE /repos/x",
            "GET /repos/x\nX-HTTP-Method-Override: DELETE",
            "GET /repos/x\nx_http_method_override: DELETE",
            "GET /repos/x\nX-HTTP-Method.Override: DELETE",
            "GET /repos/x\nX-Forwarded-Method: DELETE",
            "GET /repos/x\nX~Original~Method: DELETE",
            "GET /repos/x\nX-Forwarded-Uri: /admin",
            "GET /repos/x\nX-Forwarded-Path: /admin",
            "GET /repos/x\nX-Forwarded-Host: b.org",
            "GET /repos/x\nX-Original-URL: /admin",
            "GET /repos/x\nDestination: https://a.org/admin",
            "GET /repos/x\nX_Goog_Copy_Source: /payroll/all.csv",
        ] {
            assert_eq!(refused(head), EgressCause::NoRule, "{head}");
        }
        for head in ["GET /repos/../admin", "GET /repos/%2e%2e/admin", "GET /repos//x", "OPTIONS *"] {
            assert_eq!(refused(head), EgressCause::Malformed, "{head}");
        }
        for head in [
            "GET /repos/x\nHost: b.org",
            "GET /repos/x\nHost: a.org\nHost: a.org",
            "GET /repos/x\nHost: a.org:8443",
            "GET https://a.org/repos/x",
            "GET https://b.org/repos/x",
        ] {
            assert_eq!(refused(head), EgressCause::OtherName, "{head}");
        }
        let mut none = parts("GET /repos/x");
        none.headers.remove(HOST);
        assert_eq!(anew(&none, &refusing()).unwrap_err().cause, EgressCause::OtherName);
        assert!(anew(&parts("GET /repos/x\nHost: A.org:443"), &refusing()).is_ok(), "the control");
    }

    #[test]
    fn neither_other_accounts_go_on_nor_what_would_hide_an_answer() {
        let asked = concat!(
            "GET /repos/x\nPRIVATE-TOKEN: a\nprivate_token: a\nJob-Token: a\nX-Api-Key: a\nX-Auth-Token: a\nx.api.key: a\n",
            "Cookie: session=other\nAccept-Charset: utf-16"
        );
        let fine = "GET /repos/x | accept-encoding: identity | authorization: Bearer secret-token-0123 | host: a.org";
        assert_eq!(written(asked, &refusing()).0, fine);
        let mut cookies = refusing();
        cookies.rules.cookies = true;
        assert_eq!(
            written(asked, &cookies).0,
            fine.replace(" | host", " | cookie: session=other | host"),
            "where the table says so"
        );
        let passing = host(CredentialPlace::Bearer, Otherwise::Pass);
        let asked = asked.replace("/repos", "/other");
        assert_eq!(written(&asked, &passing).0, "GET /other/x | accept-encoding: identity | host: a.org");
        assert!(CREDENTIALS.is_sorted());
    }

    #[test]
    fn what_frames_a_message_is_not_the_client_s_to_say() {
        let (head, _) = written(
            concat!(
                "GET /repos/x\nConnection: close, x-secret\nx-secret: 1\nTransfer-Encoding: chunked\ntransfer_encoding: chunked\n",
                "Content-Length: 3\nTE: trailers\nTrailer: x\nKeep-Alive: 5\nUpgrade: h2c\nHTTP2-Settings: x\nExpect: 100-continue\n",
                "Proxy-Authorization: x\nx-kept: 1"
            ),
            &refusing(),
        );
        assert_eq!(
            head,
            "GET /repos/x | accept-encoding: identity | authorization: Bearer secret-token-0123 | host: a.org | x-kept: 1"
        );
    }

    #[test]
    fn a_websocket_is_asked_for_without_what_would_hide_its_bytes() {
        let ask = "GET /repos/x\nConnection: keep-alive, Upgrade\nUpgrade: WebSocket\nSec-WebSocket-Extensions: permessage-deflate\nsec-websocket-key: k";
        let (head, _) = written(ask, &refusing());
        assert_eq!(
            head,
            "GET /repos/x | accept-encoding: identity | authorization: Bearer secret-token-0123 | connection: upgrade | host: a.org | sec-websocket-key: k | upgrade: websocket"
        );
        assert!(anew(&parts(ask), &refusing()).unwrap().is_upgrade);
    }

    #[test]
    fn a_port_that_is_not_https_is_in_the_host() {
        let mut host = refusing();
        host.rules.port = 8443;
        let (head, _) = written("GET /repos/x\nHost: a.org:8443", &host);
        assert!(head.ends_with("host: a.org:8443"), "{head}");
        assert!(anew(&parts("GET /repos/x\nHost: a.org"), &host).is_err());
    }
}
