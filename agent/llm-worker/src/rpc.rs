//! JSON-RPC 2.0 as the agent's socket speaks it: what comes in, and every frame that goes out.

use super::message::{Block, Message, ToolCall};
use bytes::Bytes;
use ringfence_wire::frame::{HEADER, MAX_FRAME};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// Not JSON, or no frame.
pub(crate) const PARSE: i64 = -32700;
/// Not a request that may be made, or not now.
pub(crate) const INVALID_REQUEST: i64 = -32600;
/// No such method.
pub(crate) const UNKNOWN_METHOD: i64 = -32601;
/// A method's parameters are wrong.
pub(crate) const INVALID_PARAMS: i64 = -32602;
/// Something went wrong here, or at the provider without a status of its own.
pub const INTERNAL: i64 = -32603;
/// There is nobody to deliver to.
pub const NO_RUNTIME: i64 = -32000;
/// This peer may not do this.
pub const FORBIDDEN: i64 = -32003;
/// Too many messages wait already.
pub(crate) const QUEUE_FULL: i64 = -32001;

/// A request's id: a number or a string, returned as it came.
#[derive(Debug, Clone)]
pub struct Id(Box<RawValue>);

impl Id {
    /// The number or string itself.
    pub fn raw(&self) -> &RawValue {
        &self.0
    }
}

/// An error as it is answered.
#[derive(Debug, Clone, PartialEq, thiserror::Error, Serialize)]
#[error("{message} (code {code})")]
pub struct RpcError {
    /// One of this module's, or a provider's HTTP status.
    pub code: i64,
    /// What happened, in a sentence.
    pub message: String,
    /// `retry_after` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<serde_json::Value>,
}

impl RpcError {
    /// An error without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

/// A request or notification.
#[derive(Debug)]
pub struct Request<'a> {
    /// None: a notification.
    pub id: Option<Id>,
    /// The method.
    pub method: Cow<'a, str>,
    /// Its parameters.
    pub params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Option<&'a RawValue>,
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    #[serde(borrow)]
    method: Option<&'a RawValue>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// Reads one frame's body. The error comes with the id, where there was one.
pub fn parse(body: &[u8]) -> Result<Request<'_>, (Option<Id>, RpcError)> {
    let envelope: Envelope<'_> = serde_json::from_slice(body).map_err(|error| {
        let (code, what) = match error.classify() {
            serde_json::error::Category::Data if whole(body) => (INVALID_REQUEST, "not a JSON-RPC request"),
            _ => (PARSE, "not JSON"),
        };
        (None, RpcError::new(code, format!("{what}: {error}")))
    })?;
    let id = match envelope.id.map(|id| id.get().as_bytes()[0]) {
        None => None,
        Some(b'"' | b'-' | b'0'..=b'9') => envelope.id.map(|id| Id(id.to_owned())),
        Some(_) => {
            return Err((None, RpcError::new(INVALID_REQUEST, "the id is neither a number nor a string")));
        }
    };
    let invalid = |what: &str| (id.clone(), RpcError::new(INVALID_REQUEST, what));
    if envelope.jsonrpc.is_none_or(|version| version.get() != "\"2.0\"") {
        return Err(invalid("jsonrpc is not \"2.0\""));
    }
    let method = envelope.method.ok_or_else(|| invalid("there is no method"))?;
    let method = serde_json::from_str(method.get()).map_err(|_| invalid("the method is not a string"))?;
    Ok(Request { id, method, params: envelope.params })
}

/// Whether bytes are JSON at all: serde reports a wrong type where it meets it, before it has seen the rest.
fn whole(body: &[u8]) -> bool {
    serde_json::from_slice::<serde::de::IgnoredAny>(body).is_ok()
}

/// Parameters of a method.
///
/// # Errors
/// -32600 where there are none, -32602 where they are wrong.
pub fn params<'a, T: Deserialize<'a>>(request: &Request<'a>) -> Result<T, RpcError> {
    let method = &request.method;
    let params =
        request.params.ok_or_else(|| RpcError::new(INVALID_REQUEST, format!("{method} needs params")))?;
    serde_json::from_str(params.get())
        .map_err(|error| RpcError::new(INVALID_PARAMS, format!("the params of {method} are wrong: {error}")))
}

/// `register`.
#[derive(Debug, Deserialize)]
pub struct RegisterParams<'a> {
    /// `runtime`.
    #[serde(borrow)]
    pub role: Cow<'a, str>,
}

/// `send`.
#[derive(Debug, Deserialize)]
pub struct SendParams {
    /// What the human says.
    pub content: Vec<Block>,
}

/// `tag`: a process, whose pidfd comes beside the frame, is to be tied to a tool call. Not of the seed.
#[derive(Debug, Deserialize)]
pub struct TagParams<'a> {
    /// The provider's id of the call.
    #[serde(borrow)]
    pub call: Cow<'a, str>,
}

/// `turn`.
#[derive(Debug, Deserialize)]
pub struct TurnParams {
    /// The system prompt; absent: as before.
    pub system: Option<String>,
    /// The runtime's tools; absent: as before.
    pub tools: Option<Vec<Tool>>,
    /// What is new.
    pub messages: Vec<Message>,
    /// Why the runtime takes this message no further (`max_iterations`): no provider is asked, and the turn is answered
    /// with this stop reason. Not of the seed: a runtime that never sends it is bounded by `max_rounds`.
    pub stop: Option<String>,
}

/// A tool as the runtime describes it.
#[derive(Debug, Clone, Deserialize)]
pub struct Tool {
    /// Unique.
    pub name: String,
    /// For the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of its arguments.
    #[serde(default = "any_object", alias = "input_schema", alias = "inputSchema")]
    pub parameters: Box<RawValue>,
    /// All that an MCP server says of it: what is pinned.
    #[serde(skip)]
    pub whole: Option<Box<RawValue>>,
}

fn any_object() -> Box<RawValue> {
    super::message::raw(&serde_json::json!({ "type": "object" }))
}

/// What a turn came to.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct TurnResult {
    /// Why the model stopped: the provider's word, `tool_use`, or `max_iterations`.
    pub stop_reason: String,
    /// What it said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<Block>>,
    /// Tools that the runtime shall call.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// A process of the runtime's can be tied to each of these calls by `tag`. Not of the seed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tags: bool,
}

/// What streams while the model speaks.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Output<'a> {
    /// A piece of text.
    Text {
        /// The piece.
        text: &'a str,
    },
    /// A tool's call begins.
    ToolUseStart {
        /// The call.
        id: &'a str,
        /// The tool.
        name: &'a str,
    },
    /// A piece of its arguments' JSON.
    ToolUseInput {
        /// The piece.
        text: &'a str,
    },
}

#[derive(Serialize)]
struct Out<'a, P> {
    jsonrpc: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    method: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<P>,
}

#[derive(Serialize)]
struct Response<'a, R> {
    jsonrpc: &'a str,
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<R>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcError>,
}

/// A frame that answers a request with a result.
pub fn result(id: &Id, result: &impl Serialize) -> Bytes {
    framed(&Response { jsonrpc: "2.0", id: Some(id.raw()), result: Some(result), error: None })
        .unwrap_or_else(|error| self::error(Some(id), &error))
}

/// A frame that answers a request, or a broken one, with an error.
pub fn error(id: Option<&Id>, error: &RpcError) -> Bytes {
    let frame = |error: &RpcError| {
        framed(&Response::<()> { jsonrpc: "2.0", id: id.map(Id::raw), result: None, error: Some(error) })
    };
    frame(error).or_else(|too_long| frame(&too_long)).unwrap_or_default()
}

/// A frame that notifies.
pub fn notification(method: &str, params: Option<&impl Serialize>) -> Bytes {
    framed(&Out { jsonrpc: "2.0", method: Some(method), params })
        .unwrap_or_else(|error| self::error(None, &error))
}

/// A frame without parameters that notifies.
pub fn plain(method: &str) -> Bytes {
    notification(method, None::<&()>)
}

/// `human_message`.
pub fn human_message(content: &[Block]) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a> {
        content: &'a [Block],
    }
    notification("human_message", Some(&Params { content }))
}

/// `output`.
pub fn output(data: &Output<'_>) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a, 'b> {
        stream: &'a str,
        data: &'a Output<'b>,
    }
    notification("output", Some(&Params { stream: "content", data }))
}

/// An `end_turn` for another reason than that the model is done.
pub fn ended(stop_reason: &str) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a> {
        stop_reason: &'a str,
    }
    notification("end_turn", Some(&Params { stop_reason }))
}

/// The `error` that a subscriber is told.
pub fn failed(message: &str) -> Bytes {
    #[derive(Serialize)]
    struct Params<'a> {
        message: &'a str,
    }
    notification("error", Some(&Params { message }))
}

fn framed(message: &impl Serialize) -> Result<Bytes, RpcError> {
    let mut frame = vec![0; HEADER];
    serde_json::to_writer(&mut frame, message)
        .map_err(|error| RpcError::new(INTERNAL, format!("the answer cannot be put into JSON: {error}")))?;
    let length = frame.len() - HEADER;
    let header = u32::try_from(length).ok().filter(|_| length <= MAX_FRAME).ok_or_else(|| {
        RpcError::new(INTERNAL, format!("the answer has {length} bytes, {MAX_FRAME} is the most of a frame"))
    })?;
    frame[..HEADER].copy_from_slice(&header.to_be_bytes());
    Ok(frame.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(body: &str) -> (Option<String>, i64) {
        let (id, error) = parse(body.as_bytes()).unwrap_err();
        (id.map(|id| id.raw().get().to_owned()), error.code)
    }

    #[test]
    fn every_broken_envelope_has_its_code() {
        for body in ["", "{", "nope", "\u{0}", "[1", r#"{"jsonrpc":"2.0"} x"#] {
            assert_eq!(code(body), (None, PARSE), "{body}");
        }
        for body in ["[]", "1", "null", r#""x""#, r#"{"jsonrpc":"2.0","id":{},"method":"turn"}"#] {
            assert_eq!(code(body), (None, INVALID_REQUEST), "{body}");
        }
        assert_eq!(code(r#"{"jsonrpc":"1.0","id":3,"method":"turn"}"#), (Some("3".into()), INVALID_REQUEST));
        assert_eq!(code(r#"{"id":"a","method":"turn"}"#), (Some("\"a\"".into()), INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":"a"}"#), (Some("\"a\"".into()), INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":"a","method":1}"#), (Some("\"a\"".into()), INVALID_REQUEST));
    }

    #[test]
    fn an_id_comes_back_with_its_type() {
        for id in ["1", "\"1\"", "-7", "1.5", "12345678901234567890123", "\"\\u00e9\""] {
            let body = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"turn"}}"#);
            let request = parse(body.as_bytes()).unwrap();
            let frame = result(request.id.as_ref().unwrap(), &1);
            assert_eq!(&frame[HEADER..], format!(r#"{{"jsonrpc":"2.0","id":{id},"result":1}}"#).as_bytes());
            assert_eq!(frame[..HEADER], u32::try_from(frame.len() - HEADER).unwrap().to_be_bytes());
        }
    }

    #[test]
    fn missing_and_wrong_params_differ() {
        let request = parse(br#"{"jsonrpc":"2.0","id":1,"method":"turn"}"#).unwrap();
        assert_eq!(params::<TurnParams>(&request).unwrap_err().code, INVALID_REQUEST);
        let request = parse(br#"{"jsonrpc":"2.0","id":1,"method":"turn","params":{"messages":7}}"#).unwrap();
        assert_eq!(params::<TurnParams>(&request).unwrap_err().code, INVALID_PARAMS);
    }

    proptest::proptest! {
        #[test]
        fn no_request_panics(body: Vec<u8>, params in "[\\[\\]{}\",:0-9a-z\\\\ ]{0,60}") {
            let _ = parse(&body);
            let body = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"turn","params":{{"messages":[{params}]}}}}"#);
            if let Ok(request) = parse(body.as_bytes()) {
                let _ = super::params::<TurnParams>(&request);
            }
        }
    }

    #[test]
    fn an_answer_too_long_for_a_frame_is_an_error_frame() {
        let request = parse(br#"{"jsonrpc":"2.0","id":1,"method":"turn"}"#).unwrap();
        let frame = result(request.id.as_ref().unwrap(), &"x".repeat(MAX_FRAME));
        let answer: serde_json::Value = serde_json::from_slice(&frame[HEADER..]).unwrap();
        assert_eq!(answer["error"]["code"], INTERNAL);
        assert_eq!(answer["id"], 1);
    }
}
