//! Calls in an answer of OpenAI's, in either of its forms, where nothing reads them but some client. Pure.

use super::{Value, ambiguous};
use crate::http::request::folded;

/// What has calls in it, or is in what has.
const KEYS: [&str; 3] = ["choices", "tool_calls", "function_call"];

/// The same of the newer form.
const ITEMS: [&str; 5] = ["output", "item", "choices", "tool_calls", "function_call"];
/// What echoes the client's own words there, or has texts alone.
const ECHOES: [&str; 9] =
    ["error", "metadata", "tools", "tool_choice", "instructions", "input", "prompt", "text", "logprobs"];

/// Where in an answer something is.
#[derive(Clone, Copy)]
enum At {
    Answer,
    Choices,
    Choice,
    Message,
    Calls,
    Call,
    Function,
    Elsewhere,
}

/// Looks for calls where none belong: some clients take `chunk.choices` for `choices`. What a tool is called with may have any
/// key, and so may what echoes the client's own words, or has tokens for keys.
///
/// # Errors
/// There are some.
pub(crate) fn none_is_stray(answer: &Value) -> Result<(), String> {
    match is_in(At::Answer, answer) {
        true => ambiguous("tool calls where none belong"),
        false => Ok(()),
    }
}

/// The same of the newer form, whose calls are among an answer's items.
///
/// # Errors
/// There are some.
pub(crate) fn no_item_is_stray(answer: &Value) -> Result<(), String> {
    match is_item_in(true, answer) {
        true => ambiguous("tool calls where none belong"),
        false => Ok(()),
    }
}

/// `is_answer`: items have their place here.
fn is_item_in(is_answer: bool, value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| is_item_in(false, item)),
        Value::Object(fields) => fields.iter().any(|(key, value)| match key.as_str() {
            "output" | "item" if is_answer => false,
            key if ECHOES.contains(&key) => false,
            "response" if is_answer => is_item_in(true, value),
            key => (ITEMS.contains(&&*folded(key)) && has_any(value)) || is_item_in(false, value),
        }),
        _ => false,
    }
}

fn is_in(at: At, value: &Value) -> bool {
    match value {
        Value::Array(items) => {
            let inner = match at {
                At::Choices => At::Choice,
                At::Calls => At::Call,
                _ => At::Elsewhere,
            };
            items.iter().any(|item| is_in(inner, item))
        }
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            let inner = match (at, key.as_str()) {
                (At::Answer, "error" | "metadata" | "prompt_logprobs") | (At::Choice, "logprobs") => {
                    return false;
                }
                (At::Function, "arguments" | "input") => return false,
                (At::Answer, "choices") => At::Choices,
                (At::Choice, "delta" | "message") => At::Message,
                (At::Message, "tool_calls") => At::Calls,
                (At::Message, "function_call") | (At::Call, "function" | "custom") => At::Function,
                _ => At::Elsewhere,
            };
            let is_stray = matches!(inner, At::Elsewhere) && KEYS.contains(&&*folded(key));
            (is_stray && has_any(value)) || is_in(inner, value)
        }),
        _ => false,
    }
}

/// A text, a number and what is empty has no call.
fn has_any(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn calls_are_where_they_belong() {
        let call = || json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": "{}" } });
        let choice = || json!({ "index": 0, "delta": { "tool_calls": [call()] } });
        let with = |pointer: &str, key: &str, value: Value| {
            let mut chunk = json!({ "choices": [choice()], "usage": {} });
            chunk.pointer_mut(pointer).and_then(Value::as_object_mut).unwrap().insert(key.into(), value);
            chunk
        };
        let any = json!({ "choices": [choice()], "tool_calls": [call()], "function_call": { "name": "t" } });
        let (delta, function) = ("/choices/0/delta", "/choices/0/delta/tool_calls/0/function");
        for fine in [
            with("", "id", json!("x")),
            // The arguments themselves, whatever they have.
            with(function, "arguments", any.clone()),
            with(delta, "function_call", json!({ "name": "t", "arguments": any })),
            // Echoes of what the client said, and tokens.
            with("", "metadata", any.clone()),
            with("", "error", json!({ "message": "x", "input": any })),
            with("/choices/0", "logprobs", json!({ "top_logprobs": [{ "choices": { "x": 1 } }] })),
            with("", "prompt_logprobs", json!([any])),
            // What counts calls, or has none.
            with("/usage", "tool_calls", json!(2)),
            with("/choices/0", "tool_calls", json!(null)),
            with("/choices/0", "tool_calls", json!([])),
            with("", "function_call", json!("auto")),
            with(delta, "reasoning_details", json!([{ "type": "text", "text": "choices" }])),
        ] {
            assert_eq!(none_is_stray(&fine), Ok(()), "{fine}");
        }
        for odd in [
            json!({ "chunk": { "choices": [choice()] } }),
            json!({ "choices": [], "chunk": { "Choices": [choice()] } }),
            json!({ "message": { "tool_calls": [call()] } }),
            json!({ "data": [{ "x": { "choices": [choice()] } }] }),
            json!({ "choices": [[choice()]] }),
            with("", "tool_calls", json!([call()])),
            with("/choices/0", "tool_calls", json!([call()])),
            with("/choices/0", "function_call", json!({ "name": "t" })),
            with(delta, "choices", json!([choice()])),
            with(delta, "x", json!({ "Tool_Calls": [call()] })),
            with(function, "function_call", json!({ "name": "t" })),
            with("/usage", "tool_calls", json!({ "0": call() })),
        ] {
            assert!(none_is_stray(&odd).is_err(), "{odd}");
        }
    }
}
