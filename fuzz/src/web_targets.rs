//! What is tried on the dashboard: requests of anybody on loopback, and of any page in the user's browser.

use axum::{
    extract::Query,
    http::{HeaderMap, HeaderName, HeaderValue, Uri},
};
use ringfence_auditor::web::{
    headers,
    params::{self, CallParams, Confirmation, StderrParams},
    rule_form::{self, NewRule},
};
use ringfence_session::{conditions::Facts, risk, rules, ruleset};
use ringfence_wire::mcp::{MAX_MESSAGE, MAX_STORED_RULES, StoredRule};
use serde_json::Value;

/// What a listener's requests may name as its host.
const NAMES: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];

/// A request: its target, its headers, an empty line, its body. Whatever they are, only who names the very host and port,
/// and no other origin, passes; what is asked for is text that was sent; a rule that is taken is one that interceptors can
/// read, that fits with all others into a message, and that loosens nothing.
pub fn dashboard(data: &[u8]) {
    let end = data.windows(2).position(|two| two == b"\n\n");
    let (head, body) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + 2..]));
    if let Ok(head) = std::str::from_utf8(head) {
        let (target, lines) = head.split_once('\n').unwrap_or((head, ""));
        let uri = Uri::try_from(target).ok();
        who_asks(uri.as_ref(), &header_map(lines));
        if let Some(uri) = uri {
            parameters(&uri);
        }
    }
    posted(body);
}

/// Lines of `name: value`, as far as they are headers.
fn header_map(lines: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines.lines().take(100).filter_map(|line| line.split_once(':')) {
        let name = HeaderName::from_bytes(name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value.trim())) {
            headers.append(name, value);
        }
    }
    headers
}

fn who_asks(uri: Option<&Uri>, headers: &HeaderMap) {
    let all = |name: &str| {
        headers.get_all(name).iter().map(|value| value.to_str().unwrap_or("\n")).collect::<Vec<_>>()
    };
    let authority = uri.and_then(Uri::authority).map(|authority| authority.as_str());
    for port in [80, 8080] {
        let Ok(host) = headers::same_host(headers, authority, port) else { continue };
        assert_eq!(all("host"), [host]);
        let ours = |name: &&str| host == format!("{name}:{port}") || (port == 80 && host == *name);
        assert!(NAMES.iter().any(ours), "{host}");
        assert!(authority.is_none_or(|authority| authority == host));
        if headers::same_origin(headers, host).is_ok() {
            let origins = all("origin");
            assert!(origins.is_empty() || origins == [format!("http://{host}")], "{origins:?}");
        }
    }
    if let Some(token) = headers::bearer(headers) {
        let [value] = all("authorization")[..] else { panic!("one token of several") };
        assert!(value.to_ascii_lowercase().starts_with("bearer ") && value.ends_with(token));
    }
    if let Some(token) = headers::offered(headers) {
        let [value] = all("sec-websocket-protocol")[..] else { panic!("one token of several") };
        assert!(value.contains(&format!("ringfence.token.{token}")) && !token.contains(','));
    }
    if headers::is_json(headers) {
        let [value] = all("content-type")[..] else { panic!("one type of several") };
        assert!(value.to_ascii_lowercase().trim_start().starts_with("application/json"));
    }
}

fn parameters(uri: &Uri) {
    if let Ok(filter) = params::filter(Query::<CallParams>::try_from_uri(uri)) {
        let given = uri.query().map_or(0, |query| query.split('&').filter(|part| !part.is_empty()).count());
        let texts =
            [filter.verdict, filter.session, filter.server, filter.tool, filter.container, filter.before];
        let longest = uri.query().map_or(0, str::len);
        // A byte that is no text becomes a character of three.
        assert!(texts.iter().flatten().all(|text| !text.is_empty() && text.len() <= 3 * longest));
        assert!(texts.iter().flatten().count() + usize::from(filter.risk.is_some()) <= given);
        assert!(!filter.flagged);
    }
    if let Ok((after, _)) = params::stderr_page(Query::<StderrParams>::try_from_uri(uri)) {
        assert!((0..=i64::from(u32::MAX)).contains(&after));
    }
}

fn posted(body: &[u8]) {
    if params::empty(body, "approve").is_ok() && !body.is_empty() {
        let value: Value = serde_json::from_slice(body).expect("it was understood");
        assert!(
            value.as_object().is_some_and(serde_json::Map::is_empty) || value == Value::Array(Vec::new())
        );
    }
    if let Ok(Confirmation { path, sha256 }) = serde_json::from_slice(body) {
        assert!(path.len() + sha256.len() <= body.len());
    }
    let Ok(Ok(rule)) = serde_json::from_slice::<NewRule>(body).map(rule_form::validate) else { return };
    assert!(rule.name.bytes().all(|byte| byte.is_ascii_graphic()) && (1..=100).contains(&rule.name.len()));
    let text = serde_json::to_string(&rule).expect("a rule can be written");
    assert!(text.len() < MAX_MESSAGE / MAX_STORED_RULES, "{} bytes", text.len());
    let read: StoredRule = serde_json::from_str(&text).expect("a rule can be read");
    assert_eq!(read, rule);
    let written = ruleset::rule_spec(&read).expect("an interceptor can read it");
    let compiled = rules::compile(written).expect("an interceptor can use it");
    for (server, tool) in [("db", "delete_x"), ("", ""), ("fs", "read_file")] {
        let risk = risk::assess(tool, &Value::Null, false);
        let facts = Facts::new(server, tool, &risk);
        let with = rules::judge(std::slice::from_ref(&compiled), facts);
        assert!(with.action >= rules::judge(&[], facts).action);
    }
}
