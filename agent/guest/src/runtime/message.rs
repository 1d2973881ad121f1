//! Messages of the socket protocol, as far as the runtime sends and receives them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

/// A person's message is passed on as it came: its blocks are the provider's business.
pub type Content = Box<RawValue>;

/// One message of a turn.
#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message<'a> {
    /// A person's message.
    User {
        /// Its blocks, as they came.
        content: &'a RawValue,
    },
    /// A tool's result.
    Tool {
        /// Which call it is of.
        tool_call_id: &'a str,
        /// The result.
        content: [Text<'a>; 1],
        /// Whether the tool failed.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        is_error: bool,
    },
}

/// A block of text.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "text")]
pub struct Text<'a> {
    /// The text.
    pub text: &'a str,
}

/// The params of `turn`.
#[derive(Debug, Serialize)]
pub struct Turn<'a> {
    /// The system prompt, with the first turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<&'a str>,
    /// The tools that the model may call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<&'a Value>,
    /// What is new.
    pub messages: &'a [Message<'a>],
    /// Why this is the last turn for a message, whatever the model would say next: the daemon answers it with this stop
    /// reason and asks no provider. A daemon that does not know it asks the model, which then has to do without tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<&'static str>,
}

/// The params of `tag`.
#[derive(Debug, Serialize)]
pub struct Tag<'a> {
    /// Which call a process is tagged for.
    pub call: &'a str,
}

/// A JSON-RPC request or notification.
#[derive(Debug, Serialize)]
pub struct Call<'a, P> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'a str,
    params: P,
}

impl<'a, P: Serialize> Call<'a, P> {
    /// A request; without an id, a notification.
    pub fn new(id: Option<u64>, method: &'a str, params: P) -> Self {
        Self { jsonrpc: "2.0", id, method, params }
    }
}

/// A frame from the daemon.
#[derive(Debug, Deserialize)]
struct Frame {
    id: Option<Value>,
    method: Option<String>,
    params: Option<Box<RawValue>>,
    result: Option<Box<RawValue>>,
    error: Option<RpcError>,
}

/// A JSON-RPC error.
#[derive(Debug, Deserialize)]
pub struct RpcError {
    /// JSON-RPC's number for it.
    pub code: i64,
    /// What went wrong.
    #[serde(default)]
    pub message: String,
}

/// A turn's answer.
#[derive(Debug, Deserialize)]
pub struct Answer {
    /// Why the model stopped.
    pub stop_reason: String,
    /// What it wants run.
    #[serde(default)]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// The daemon takes `tag` for these calls. One that knows no tags does not say so, and is not asked.
    #[serde(default)]
    pub tags: bool,
}

/// A tool that the model wants run.
#[derive(Debug, Deserialize)]
pub struct ToolCall {
    /// The daemon's id for it.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    #[serde(default)]
    pub input: Value,
}

/// A frame from the daemon.
#[derive(Debug)]
pub enum Incoming {
    /// A person's message.
    HumanMessage(Content),
    /// The answer to a request; without an id where the daemon could not read one.
    Answered(Option<u64>, Result<Box<RawValue>, RpcError>),
    /// Output as it streams, and methods of later versions.
    Ignored,
}

/// Why a frame is not one of the protocol's.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what it is about")]
pub enum Error {
    #[error("the daemon sent what is not JSON-RPC")]
    Json(#[source] serde_json::Error),
    #[error("the daemon sent a human_message without content")]
    NoContent,
    #[error("the daemon sent an answer with neither result nor error")]
    NoResult,
    #[error("the daemon answered a turn with what is no answer")]
    Answer(#[source] serde_json::Error),
}

/// The params of `human_message`.
#[derive(Deserialize)]
struct Human {
    content: Content,
}

/// Understands a frame.
pub fn parse(bytes: &[u8]) -> Result<Incoming, Error> {
    let frame: Frame = serde_json::from_slice(bytes).map_err(Error::Json)?;
    match frame {
        Frame { method: Some(method), params, .. } if method == "human_message" => {
            let human = params.and_then(|params| serde_json::from_str::<Human>(params.get()).ok());
            let content = human.ok_or(Error::NoContent)?.content;
            match content.get().as_bytes().first() {
                Some(b'[') => Ok(Incoming::HumanMessage(content)),
                _ => Err(Error::NoContent),
            }
        }
        Frame { method: Some(_), .. } => Ok(Incoming::Ignored),
        Frame { id, error: Some(failure), .. } => {
            Ok(Incoming::Answered(id.and_then(|id| id.as_u64()), Err(failure)))
        }
        Frame { id, result: Some(result), .. } => {
            Ok(Incoming::Answered(id.and_then(|id| id.as_u64()), Ok(result)))
        }
        Frame { .. } => Err(Error::NoResult),
    }
}

/// Understands a turn's result.
pub fn parse_answer(result: &RawValue) -> Result<Answer, Error> {
    serde_json::from_str(result.get()).map_err(Error::Answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parsed(value: Value) -> Result<Incoming, Error> {
        parse(value.to_string().as_bytes())
    }

    #[test]
    fn a_message_s_content_is_not_touched() {
        let text = r#"{"jsonrpc":"2.0","method":"human_message","params":{"content":[{"type":"x",  "big":12345678901234567890123}]}}"#;
        let Ok(Incoming::HumanMessage(content)) = parse(text.as_bytes()) else { panic!("not a message") };
        assert_eq!(content.get(), r#"[{"type":"x",  "big":12345678901234567890123}]"#);
        let messages = [Message::User { content: &content }];
        let turn = Turn { system: None, tools: None, messages: &messages, stop: None };
        let said = serde_json::to_string(&Call::new(Some(7), "turn", turn)).unwrap();
        assert_eq!(
            said,
            r#"{"jsonrpc":"2.0","id":7,"method":"turn","params":{"messages":[{"role":"user","content":[{"type":"x",  "big":12345678901234567890123}]}]}}"#
        );
    }

    #[test]
    fn a_tool_s_result_is_a_message_of_the_protocol() {
        let said = |is_error| {
            serde_json::to_value(Message::Tool {
                tool_call_id: "tc-1",
                content: [Text { text: "x" }],
                is_error,
            })
            .unwrap()
        };
        let block = json!([{"type": "text", "text": "x"}]);
        assert_eq!(said(false), json!({"role": "tool", "tool_call_id": "tc-1", "content": block}));
        assert_eq!(
            said(true),
            json!({"role": "tool", "tool_call_id": "tc-1", "content": block, "is_error": true})
        );
    }

    #[test]
    fn frames_that_make_no_sense_are_errors() {
        assert!(matches!(parse(b"\xff"), Err(Error::Json(_))));
        assert!(matches!(parsed(json!([])), Err(Error::Json(_) | Error::NoResult)));
        assert!(matches!(parsed(json!({"id": 1})), Err(Error::NoResult)));
        assert!(matches!(parsed(json!({"method": "human_message"})), Err(Error::NoContent)));
        assert!(matches!(
            parsed(json!({"method": "human_message", "params": {"content": 3}})),
            Err(Error::NoContent)
        ));
        assert!(matches!(parsed(json!({"method": "later"})), Ok(Incoming::Ignored)));
        assert!(matches!(
            parsed(json!({"id": null, "error": {"code": -32700}})),
            Ok(Incoming::Answered(None, Err(RpcError { code: -32700, .. })))
        ));
    }

    #[test]
    fn an_answer_may_leave_out_what_providers_leave_out() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        let calls =
            parse_answer(&raw(r#"{"stop_reason":"tool_use","tool_calls":[{"id":"a","name":"bash"}]}"#))
                .unwrap();
        assert!(calls.tool_calls.unwrap()[0].input.is_null());
        assert!(
            parse_answer(&raw(r#"{"stop_reason":"end_turn","tool_calls":null}"#))
                .unwrap()
                .tool_calls
                .is_none()
        );
        assert!(parse_answer(&raw(r#"{"content":[]}"#)).is_err());
    }

    proptest! {
        #[test]
        fn no_frame_makes_it_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            pieces in prop::collection::vec(prop::sample::select(vec![
                "{", "}", "[", "]", ",", ":", "1", "-1e999", "null", "\"id\"", "\"method\"", "\"human_message\"",
                "\"params\"", "\"content\"", "\"result\"", "\"error\"", "\"code\"", "\"\\ud800\"",
            ]), 0..24),
        ) {
            let _ = parse(&bytes);
            let text = pieces.concat();
            if let Ok(Incoming::Answered(_, Ok(result))) = parse(text.as_bytes()) {
                let _ = parse_answer(&result);
            }
        }
    }
}
