//! What has some servers take a request for another one than it was judged as: by its headers, or by parameters in its query or its
//! form. Pure.

use crate::{
    refusal::Refusal,
    request::{self, is_among},
};
use hyper::{
    HeaderMap, Method,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HeaderName, TRANSFER_ENCODING},
    http::request::Parts,
};
use ringfence_wire::{
    egress::EgressCause,
    requests::{RequestRule, Target},
};

/// Headers that some servers take a request's method, target or host from, in the place of what was judged; and those by which it reads
/// or writes a second resource, which nobody judged: WebDAV's COPY and MOVE, copies within object stores, links and lists of parts there.
const OVERRIDING: [&str; 34] = [
    "destination",
    "forwarded",
    "x-amz-copy-source",
    "x-copy-from",
    "x-copy-from-account",
    "x-envoy-original-method",
    "x-envoy-original-path",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-path",
    "x-forwarded-prefix",
    "x-forwarded-server",
    "x-forwarded-uri",
    "x-forwarded-url",
    "x-goog-copy-source",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-http-path-override",
    "x-method",
    "x-method-override",
    "x-ms-copy-source",
    "x-ms-rename-source",
    "x-object-manifest",
    "x-original-host",
    "x-original-method",
    "x-original-path",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-uri",
    "x-rewrite-url",
    "x-symlink-target",
    "x-waws-unencoded-url",
];
/// Parameters that say a method or headers, as [`folded`] has them: `_method` of Rack, Symfony, Laravel and Spring, and others.
const PARAMETERS: [&str; 6] = [
    "_httpheaders",
    "_httpmethod",
    "_method",
    "x_http_method",
    "x_http_method_override",
    "x_method_override",
];
/// What a form could make of itself.
const OTHERS: [&str; 4] = ["GET", "PUT", "PATCH", "DELETE"];
/// How often a name may have been encoded.
const LAYERS: usize = 4;

/// # Errors
/// A header says another method, target or host.
pub(crate) fn judge_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    match headers.keys().find(|name| is_among(name, &OVERRIDING)) {
        None => Ok(()),
        Some(name) => {
            let reason = format!(
                "{name} could make it another request than the one that was judged, or one for something else besides"
            );
            Err(Refusal::new(EgressCause::NoRule, &reason))
        }
    }
}

/// For a request that rules give the credential.
///
/// # Errors
/// Its query could say another method, and no rule names that query; or its form could, and rules do not allow all of them.
pub(crate) fn judge_parameters(
    request: &Parts,
    target: &Target<'_>,
    allow: &[RequestRule],
) -> Result<(), Refusal> {
    let method = request.method.as_str();
    let is_named = || allow.iter().any(|rule| rule.has_query() && rule.allows(method, target));
    if let Some(name) = target.query().and_then(saying)
        && !is_named()
    {
        let reason = format!(
            "{name} in its query could make it another request than the one that was judged: a rule of `allow` has to have the whole query"
        );
        return Err(Refusal::new(EgressCause::NoRule, &reason));
    }
    let may_be = |method: &&str| allow.iter().any(|rule| rule.allows(method, target));
    if request.method == Method::POST
        && is_form(&request.headers)
        && let Some(other) = OTHERS.iter().find(|method| !may_be(method))
    {
        let reason = format!(
            "a form can have `_method` in it, by which some servers take a POST for a {other}, and no rule of `allow` has {other} {path}: send JSON (unless the server takes `_method` from that, too), or allow `* {path}`",
            path = target.path()
        );
        return Err(Refusal::new(EgressCause::NoRule, &reason));
    }
    Ok(())
}

/// The first parameter of a query that says a method or headers, or may do so to some servers, for a sentence.
fn saying(query: &str) -> Option<String> {
    query.split(['&', ';']).find_map(|parameter| {
        let mut name = parameter.split('=').next().unwrap_or_default().as_bytes().to_vec();
        // However often a server decodes it, `=` included.
        for _ in 0..=LAYERS {
            let bare = name.split(|byte| *byte == b'=').next().unwrap_or_default();
            let folded = folded(bare);
            // Names that end where C has them end, and escapes that servers know which this one does not.
            if bare.iter().any(u8::is_ascii_control) || has_odd_escape(bare) {
                return Some("a name that servers read differently".to_owned());
            }
            if let Some(known) = PARAMETERS.iter().find(|known| **known == folded) {
                return Some(format!("`{known}`"));
            }
            name = decoded(&name);
        }
        None
    })
}

/// A name as servers fold it: what is no letter and no digit is the same, blanks before it and brackets behind it are nothing.
fn folded(name: &[u8]) -> String {
    let fold = |byte: &u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'_' };
    let name: Vec<u8> = name.trim_ascii_start().iter().map(fold).collect();
    let text = String::from_utf8_lossy(&name).into_owned();
    let bare = text.trim_start_matches('_').trim_end_matches('_');
    let has_mark = text.starts_with('_') && !bare.starts_with("x_");
    if has_mark { format!("_{bare}") } else { bare.to_owned() }
}

/// Whether there is a `%` that no two digits follow, as in `%u002D`.
fn has_odd_escape(text: &[u8]) -> bool {
    let mut behind = text.split(|byte| *byte == b'%').skip(1);
    behind.any(|behind| !behind.get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)))
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, behind)) = rest.split_first() {
        let digits =
            behind.get(..2).filter(|_| *byte == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = behind.get(2..).unwrap_or_default();
            }
            None => {
                out.push(if *byte == b'+' { b' ' } else { *byte });
                rest = behind;
            }
        }
    }
    out
}

/// Whether servers look for parameters in the body. Some do in one that says nothing of its type.
fn is_form(headers: &HeaderMap) -> bool {
    let is_one = |text: String| {
        let text = text.trim().to_ascii_lowercase();
        text.is_empty() || text.contains("urlencoded") || text.contains("multipart")
    };
    // Also one that servers fold into the other.
    let is_type = |name: &HeaderName| request::is_one(name, CONTENT_TYPE.as_str());
    let mut types = headers.iter().filter(|(name, _)| is_type(name)).map(|(_, value)| value).peekable();
    if types.peek().is_some() {
        return types.any(|value| is_one(String::from_utf8_lossy(value.as_bytes()).into_owned()));
    }
    let is_empty = headers.get_all(CONTENT_LENGTH).into_iter().all(|length| length == "0");
    !is_empty || headers.contains_key(TRANSFER_ENCODING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn judged(method: &str, target: &str, headers: &[(&str, &str)], allow: &[&str]) -> Result<(), String> {
        let mut request = Request::builder().method(method).uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        let allow: Vec<RequestRule> = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        judge_parameters(&parts, &Target::read(target).unwrap(), &allow).map_err(|refusal| {
            assert_eq!(refusal.cause, EgressCause::NoRule);
            refusal.reason
        })
    }

    #[test]
    fn a_query_that_could_say_another_method_has_to_be_a_rule_s() {
        for query in [
            "_method=DELETE",
            "a=b&_METHOD=delete",
            "a=b;_method=PUT",
            "%5fmethod=PUT",
            "%255Fmethod=PUT",
            "_m%65thod%3DPUT",
            "+_method=PUT",
            "%20_method=PUT",
            ".method=PUT",
            "_method[]=PUT",
            "_method%5B%5D=PUT",
            "_method",
            "_method%00x=PUT",
            "_method%2500x=PUT",
            "X%u002DHTTP-Method-Override=PUT",
            "x-http-method-override=PUT",
            "X_HTTP_Method_Override=PUT",
            "$httpMethod=PUT",
            "%24httpHeaders=x",
        ] {
            let target = format!("/a?{query}");
            for method in ["POST", "GET"] {
                let said = judged(method, &target, &[], &["* /a"]).unwrap_err();
                assert!(said.contains("the whole query"), "{query}: {said}");
            }
            let named = format!("POST {target}");
            assert_eq!(judged("POST", &target, &[], &["* /a", &named]), Ok(()), "{query}");
        }
        assert!(judged("POST", "/a?_method=PUT", &[], &["* /a", "POST /a?_method=DELETE"]).is_err());
        for query in [
            "method=flickr.photos.search",
            "payment_method=card",
            "a=_method",
            "x=_method=y",
            "methods[]=a",
            "",
        ] {
            assert_eq!(
                judged("POST", &format!("/a?{query}"), &[], &["POST /a"]),
                Ok(()),
                "{query}: the control"
            );
        }
    }

    #[test]
    fn a_form_may_be_what_all_methods_may() {
        let form = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
        let parts = ("Content-Type", "Multipart/Form-Data; boundary=x");
        let length = ("content-length", "5");
        for headers in [
            &[form][..],
            &[parts],
            &[("content-type", "multipart/mixed")],
            &[length],
            &[("transfer-encoding", "chunked")],
            &[("content-type", " "), length],
            &[("content_type", "application/x-www-form-urlencoded"), ("content-type", "application/json")],
        ] {
            let said =
                judged("POST", "/a", headers, &["POST /a", "PUT /a", "PATCH /a", "GET /a"]).unwrap_err();
            assert!(said.contains("no rule of `allow` has DELETE /a"), "{said}");
            assert!(judged("POST", "/a", headers, &["POST /a", "* /b"]).is_err());
            for allow in [&["* /a"][..], &["POST /a", "PUT /a", "PATCH /a", "DELETE /a", "GET /**"]] {
                assert_eq!(judged("POST", "/a", headers, allow), Ok(()), "{headers:?}");
            }
            assert_eq!(judged("PUT", "/a", headers, &["PUT /a"]), Ok(()), "no server makes another of it");
        }
        let folded = [("content_type", "application/json"), ("content-type", "application/json")];
        let json = [("content-type", "application/json"), length];
        for headers in [&json[..], &folded, &[], &[("content-length", "0")]] {
            assert_eq!(judged("POST", "/a", headers, &["POST /a"]), Ok(()), "{headers:?}: the control");
        }
    }

    #[test]
    fn lists_are_in_order() {
        assert!(OVERRIDING.is_sorted() && PARAMETERS.is_sorted());
    }
}
