//! What a request is, by its headers and its body. Pure.

use crate::{
    headers::{self, Marks},
    message::Message,
};
use axum::http::{
    HeaderMap, HeaderName, StatusCode,
    header::{ACCEPT, CONTENT_TYPE},
};
use ringfence_session::line::Id;
use serde_json::{Value, json};

/// The header with a session's id.
pub const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
/// The header with the protocol's version.
pub const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
/// The header that says where to resume a stream.
pub const LAST_EVENT: HeaderName = HeaderName::from_static("last-event-id");

/// The first version of the protocol without sessions, and the one whose streams begin with an event without data.
pub const STATELESS: &str = "2026-07-28";
const PRIMES: &str = "2025-11-25";
/// Those with sessions.
const WITH_SESSIONS: [&str; 4] = ["2024-11-05", "2025-03-26", "2025-06-18", PRIMES];

/// JSON-RPC's code for headers that say something else than the message, and for a session that is not known.
const MISMATCH: i32 = -32020;
const UNKNOWN: i32 = -32001;
const INVALID: i32 = -32600;
const PARSE: i32 = -32700;
const PARAMS: i32 = -32602;

/// Why a request is not taken, as HTTP and JSON-RPC have it.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// HTTP's.
    pub status: StatusCode,
    code: i32,
    why: String,
    id: Option<Id>,
}

impl Refusal {
    /// Under no id.
    pub fn new(status: StatusCode, why: impl Into<String>) -> Self {
        let code = if status == StatusCode::NOT_FOUND { UNKNOWN } else { INVALID };
        Self { status, code, why: why.into(), id: None }
    }

    /// The answer's body.
    pub fn body(&self) -> String {
        let error: Value = json!({ "code": self.code, "message": self.why });
        self.id.as_ref().unwrap_or(&Id::Null).answer("error", &error)
    }
}

/// What a message that was posted is.
#[derive(Debug, PartialEq, Eq)]
pub enum Posted {
    /// The first of a session.
    Begins,
    /// One of the session with this id; whether its stream begins with an event without data.
    Within(String, bool),
    /// One without sessions, of who says to be this.
    Stateless(String),
}

/// Whether an answer of this kind may be sent; a client that takes everything says so by `*/*`.
pub fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let given = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds =
        given.flat_map(|value| value.split(',')).filter_map(|one| one.split(';').next()).map(str::trim);
    kinds.any(|one| {
        let major = one.strip_suffix("/*").filter(|major| kind.starts_with(major));
        one.eq_ignore_ascii_case(kind)
            || one == "*/*"
            || major.is_some_and(|major| kind[major.len()..].starts_with('/'))
    })
}

/// The one value of a header.
///
/// # Errors
/// There are several, or it is not plain text.
pub fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, format!("the header {name} came more than once")));
    }
    let unreadable =
        |_| Refusal::new(StatusCode::BAD_REQUEST, format!("the header {name} is not plain text"));
    first.map(|value| value.to_str().map_err(unreadable)).transpose()
}

/// Checks the headers of a message that was posted, before its body is read.
///
/// # Errors
/// [`Refusal`].
pub fn check_headers(headers: &HeaderMap) -> Result<(), Refusal> {
    if !accepts(headers, "application/json") || !accepts(headers, "text/event-stream") {
        let why = "the client must accept both application/json and text/event-stream";
        return Err(Refusal::new(StatusCode::NOT_ACCEPTABLE, why));
    }
    let kind = only(headers, &CONTENT_TYPE)?.unwrap_or_default();
    if !kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json")) {
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "the body must be application/json"));
    }
    Ok(())
}

/// What the messages of a body are.
///
/// # Errors
/// [`Refusal`].
pub fn classify(headers: &HeaderMap, messages: &[Message<'_>], marks: &Marks) -> Result<Posted, Refusal> {
    let Some(first) = messages.first() else {
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, "the body is not a JSON-RPC message");
        return Err(Refusal { code: PARSE, ..refusal });
    };
    let of_first = |refusal: Refusal| Refusal { id: first.request_id(), ..refusal };
    let version = only(headers, &VERSION)?;
    let said = messages.iter().find_map(Message::version);
    let is_stateless =
        |version: &str| version >= STATELESS && version.starts_with(|first: char| first.is_ascii_digit());
    let begins = messages.iter().any(|message| message.method.as_deref() == Some("initialize"));
    // Only messages of the protocol without sessions say which version they are of, also of one that nobody knows.
    if version.is_some_and(is_stateless) || !begins && said.is_some() {
        return stateless(headers, messages, (version, said.as_deref()), marks).map_err(of_first);
    }
    if begins {
        if messages.len() != 1 || first.request_id().is_none() {
            let why = "initialize is a request of its own";
            return Err(of_first(Refusal::new(StatusCode::BAD_REQUEST, why)));
        }
        return Ok(Posted::Begins);
    }
    if let Some(unknown) = version.filter(|version| !WITH_SESSIONS.contains(version)) {
        let why = format!(
            "the protocol version {unknown:?} is not known here; these are: {}, {STATELESS}",
            WITH_SESSIONS.join(", ")
        );
        return Err(of_first(Refusal::new(StatusCode::BAD_REQUEST, why)));
    }
    match only(headers, &SESSION)? {
        Some(id) => Ok(Posted::Within(id.to_owned(), version.is_some_and(|version| version >= PRIMES))),
        None => {
            let why = "the header Mcp-Session-Id is missing: a session begins with initialize";
            Err(of_first(Refusal::new(StatusCode::BAD_REQUEST, why)))
        }
    }
}

/// Without sessions, the headers repeat what the message says: whoever stands between may have judged by them.
fn stateless(
    headers: &HeaderMap,
    messages: &[Message<'_>],
    (version, said): (Option<&str>, Option<&str>),
    marks: &Marks,
) -> Result<Posted, Refusal> {
    let mismatch = |why: String| {
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, format!("Header mismatch: {why}"));
        Refusal { code: MISMATCH, ..refusal }
    };
    let [message] = messages else {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "this version of the protocol has no batches"));
    };
    if message.is_response() {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            "in this version of the protocol clients send no answers",
        ));
    }
    let is_request = message.request_id().is_some();
    let invalid = |why: &str| {
        let refusal = Refusal::new(StatusCode::BAD_REQUEST, format!("Invalid params: {why}"));
        Refusal { code: PARAMS, ..refusal }
    };
    if is_request && said.is_none() {
        return Err(invalid("_meta lacks the protocol's version"));
    }
    if is_request && version != said {
        return Err(mismatch(format!(
            "MCP-Protocol-Version is {:?}, and the message says {:?}",
            version.unwrap_or_default(),
            said.unwrap_or_default()
        )));
    }
    if is_request && !message.has_capabilities() {
        return Err(invalid("_meta lacks the client's capabilities"));
    }
    if is_request {
        let expected = marks.headers(message).map_err(|error| mismatch(error.to_string()))?;
        for (name, value) in &expected {
            let of = HeaderName::from_bytes(name.as_bytes()).map_err(|_| mismatch(name.clone()))?;
            let given = only(headers, &of).map_err(|refusal| mismatch(refusal.why))?;
            match given {
                None => return Err(mismatch(format!("{name} is missing"))),
                Some(given) if !headers::same(given, value) => {
                    return Err(mismatch(format!("{name} is not what the message says")));
                }
                Some(_) => {}
            }
        }
        if let Some(extra) = marks.unexpected(message, &expected).find(|name| headers.contains_key(name)) {
            return Err(mismatch(format!("{extra} stands for an argument that the message does not have")));
        }
    }
    Ok(Posted::Stateless(message.client().map_or_else(String::new, |client| client.get().to_owned())))
}

/// HTTP's status for an answer of the protocol without sessions.
pub fn status_of(answer: &[u8]) -> StatusCode {
    let value: Option<Value> = serde_json::from_slice(answer).ok();
    let code = value.as_ref().and_then(|value| value.pointer("/error/code")).and_then(Value::as_i64);
    match code {
        Some(-32601) => StatusCode::NOT_FOUND,
        // Headers, capabilities, versions: the range that the protocol has for its own.
        Some(-32029..=-32020) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    fn of(pairs: &[(&str, &str)], body: &Value) -> Result<Posted, u16> {
        let text = body.to_string();
        let messages = Message::all(text.as_bytes());
        classify(&headers(pairs), &messages, &Marks::default()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn both_kinds_of_answers_must_be_welcome() {
        let check = |accept: &str, kind: &str| {
            check_headers(&headers(&[("accept", accept), ("content-type", kind)]))
                .map_err(|r| r.status.as_u16())
        };
        for fine in [
            "application/json, text/event-stream",
            "text/event-stream;q=1,application/json",
            "*/*",
            "application/*, text/*",
        ] {
            assert_eq!(check(fine, "application/json; charset=utf-8"), Ok(()), "{fine}");
        }
        for wrong in [
            "",
            "application/json",
            "text/event-stream",
            "app/*, text/*",
            "application/jsonx, text/event-stream",
        ] {
            assert_eq!(check(wrong, "application/json"), Err(406), "{wrong}");
        }
        for wrong in ["", "text/plain", "application/x-www-form-urlencoded"] {
            assert_eq!(check("*/*", wrong), Err(415), "{wrong}");
        }
    }

    #[test]
    fn a_session_begins_once_and_is_named_from_then_on() {
        let begins = json!({"id": 1, "method": "initialize", "params": {}});
        let call = json!({"id": 1, "method": "tools/list"});
        assert_eq!(of(&[], &begins), Ok(Posted::Begins));
        assert_eq!(of(&[], &json!([begins, call])), Err(400));
        assert_eq!(of(&[], &json!({"method": "initialize"})), Err(400));
        assert_eq!(of(&[], &call), Err(400));
        assert_eq!(of(&[], &json!("x")), Err(400));
        let named = ("mcp-session-id", "abc");
        assert_eq!(of(&[named], &call), Ok(Posted::Within("abc".into(), false)));
        assert_eq!(
            of(&[named, ("mcp-protocol-version", "2025-06-18")], &call),
            Ok(Posted::Within("abc".into(), false))
        );
        assert_eq!(
            of(&[named, ("mcp-protocol-version", "2025-11-25")], &call),
            Ok(Posted::Within("abc".into(), true))
        );
        assert_eq!(of(&[named, ("mcp-protocol-version", "1999-01-01")], &call), Err(400));
        assert_eq!(of(&[named, ("mcp-protocol-version", "x")], &call), Err(400));
        assert_eq!(of(&[named, named], &call), Err(400));
    }

    #[test]
    fn without_sessions_headers_and_message_say_the_same() {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "c"}, "io.modelcontextprotocol/clientCapabilities": {}});
        let call = json!({"id": 1, "method": "tools/call", "params": {"name": "ä", "_meta": meta}});
        let version = ("mcp-protocol-version", "2026-07-28");
        let (method, name) = (("mcp-method", "tools/call"), ("mcp-name", "=?base64?w6Q=?="));
        assert_eq!(of(&[version, method, name], &call), Ok(Posted::Stateless("{\"name\":\"c\"}".into())));
        for wrong in [
            &[version, method][..],
            &[version, name],
            &[method, name],
            &[version, ("mcp-method", "tools/list"), name],
            &[version, method, ("mcp-name", "a")],
            &[version, method, name, name],
            &[("mcp-protocol-version", "2026-07-29"), method, name],
        ] {
            assert_eq!(of(wrong, &call), Err(400), "{wrong:?}");
        }
        let mut unknown = call.clone();
        unknown["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("v9");
        let other = ("mcp-protocol-version", "v9");
        assert!(
            matches!(of(&[other, method, name], &unknown), Ok(Posted::Stateless(_))),
            "the server says which it knows"
        );
        for lacks in ["protocolVersion", "clientCapabilities"] {
            let mut lacking = call.clone();
            let meta = lacking["params"]["_meta"].as_object_mut().unwrap();
            meta.remove(&format!("io.modelcontextprotocol/{lacks}"));
            assert_eq!(of(&[version, method, name], &lacking), Err(400), "{lacks}");
        }
        assert_eq!(of(&[version], &json!([call, call])), Err(400));
        assert_eq!(of(&[version], &json!({"id": 1, "result": {}})), Err(400));
        let text = call.to_string();
        let refusal =
            classify(&headers(&[version]), &Message::all(text.as_bytes()), &Marks::default()).unwrap_err();
        let body: Value = serde_json::from_str(&refusal.body()).unwrap();
        assert_eq!((&body["id"], &body["error"]["code"]), (&json!(1), &json!(-32020)));
    }

    #[test]
    fn an_answer_s_status_is_the_protocol_s() {
        for (answer, status) in [
            (json!({"id": 1, "result": {}}), 200),
            (json!({"id": 1, "error": {"code": -32601}}), 404),
            (json!({"id": 1, "error": {"code": -32020}}), 400),
            (json!({"id": 1, "error": {"code": -32000}}), 200),
        ] {
            assert_eq!(status_of(answer.to_string().as_bytes()), status, "{answer}");
        }
    }
}
