//! The tool calls in answers of Gemini.

use super::*;
use crate::provider::Wire;
use proptest::prelude::*;
use serde_json::json;

fn chunk(parts: &Value) -> Value {
    json!({ "candidates": [{ "content": { "role": "model", "parts": parts }, "index": 0 }] })
}

fn read(events: &[Value]) -> Result<ToolCalls, String> {
    let mut found = ToolCalls::default();
    events.iter().try_for_each(|event| found.event(Wire::GenerateContent, "", event))?;
    Ok(found)
}

fn calls(events: &[Value]) -> Vec<(String, String, String)> {
    let found = read(events).unwrap().finish().into_iter();
    found.map(|call| (call.id, call.name, call.input.get().to_owned())).collect()
}

#[test]
fn each_call_is_whole_and_has_an_id() {
    let call = |name: &str| json!({ "functionCall": { "name": name, "args": { "x": 1 } } });
    let own = json!({ "functionCall": { "id": "c", "name": "a" }, "thoughtSignature": "s" });
    let events = [chunk(&json!([{ "text": "hm" }, call("a"), call("b")])), chunk(&json!([own, call("a")]))];
    let got = calls(&events);
    let expected = [
        ("a#0", "a", r#"{"x":1}"#),
        ("b#0", "b", r#"{"x":1}"#),
        ("c", "a", "{}"),
        ("a#2", "a", r#"{"x":1}"#),
    ];
    let expected = expected.map(|(id, name, input)| (id.to_owned(), name.to_owned(), input.to_owned()));
    assert_eq!(got, expected);
    let mut found = read(&events[..1]).unwrap();
    assert_eq!((found.fresh(), found.completed().len(), found.completed().len()), (2, 2, 0));
}

#[test]
fn what_clients_read_differently_is_refused() {
    let call = || json!({ "functionCall": { "name": "a", "args": {} } });
    let part = |part: Value| chunk(&json!([part]));
    let ends = json!({ "candidates": [{ "content": { "parts": [] }, "finishReason": "STOP" }] });
    for odd in [
        vec![part(json!({ "function_call": { "name": "a" } }))],
        vec![part(json!({ "FunctionCall": { "name": "a" } }))],
        vec![part(json!({ "functionCall": { "Name": "a", "name": "b" } }))],
        vec![part(json!({ "functionCall": { "name": "" } }))],
        vec![part(json!({ "functionCall": { "args": {} } }))],
        vec![part(json!({ "functionCall": { "name": 7 } }))],
        vec![part(json!({ "functionCall": { "name": "a", "id": 7 } }))],
        vec![part(json!({ "functionCall": { "name": "a", "args": "{}" } }))],
        vec![part(json!({ "functionCall": { "name": "a", "args": [1] } }))],
        vec![part(json!({ "functionCall": [{ "name": "a" }] }))],
        vec![part(json!({ "functionCall": { "name": "a", "willContinue": true } }))],
        vec![part(json!({ "functionCall": { "name": "a", "partialArgs": [{}] } }))],
        vec![part(json!("text"))],
        vec![json!({ "candidates": { "0": {} } })],
        vec![json!({ "Candidates": [{ "content": { "parts": [call()] } }] })],
        vec![json!({ "candidates": [{ "content": [call()] }] })],
        vec![json!({ "candidates": [{ "content": { "parts": call() } }] })],
        vec![json!({ "candidates": [[{ "content": { "parts": [call()] } }]] })],
        vec![json!({ "candidates": [{ "index": 1, "content": { "parts": [call()] } }] })],
        vec![json!({ "candidates": [{}, { "content": { "parts": [call()] } }] })],
        vec![json!({ "candidates": [{ "finish_reason": "STOP" }] })],
        vec![json!({ "functionCalls": [{ "name": "a" }] })],
        vec![json!({ "chunk": { "candidates": [{}] } })],
        vec![json!({ "candidates": [{ "function_call": { "name": "a" } }] })],
        vec![part(json!({ "text": "x", "inner": { "functionCall": { "name": "a" } } }))],
        vec![ends.clone(), part(call())],
    ] {
        assert!(read(&odd).is_err(), "{odd:?}");
    }
    let mut found = ToolCalls::default();
    assert!(found.event(Wire::GenerateContent, "candidates", &part(call())).is_err(), "a name that is none");
    for fine in [
        part(json!({ "functionCall": null, "text": "x" })),
        part(
            json!({ "functionCall": { "name": "a", "willContinue": false, "args": { "candidates": [1], "functionCall": {} } } }),
        ),
        json!({ "candidates": [{ "content": { "role": "model" }, "finishReason": "MAX_TOKENS" }], "usageMetadata": {} }),
        json!({ "error": { "details": [{ "candidates": [1] }] } }),
        json!({ "candidates": [{ "index": 0 }, { "index": 1 }] }),
    ] {
        assert!(read(std::slice::from_ref(&fine)).is_ok(), "{fine}");
    }
}

#[test]
fn an_answer_may_end_where_each_candidate_said_why() {
    let with = |reason: &str, parts: Value| json!({ "candidates": [{ "content": { "parts": parts }, "finishReason": reason }] });
    let (text, ends) = (chunk(&json!([{ "text": "x" }])), with("STOP", json!([])));
    let blocked = json!({ "promptFeedback": { "blockReason": "SAFETY" } });
    for (events, may_end) in [
        (vec![], false),
        (vec![text.clone()], false),
        (vec![json!({ "usageMetadata": {} })], false),
        (vec![text.clone(), ends.clone()], true),
        (vec![ends.clone(), json!({ "usageMetadata": {} })], true),
        (vec![ends.clone(), chunk(&json!([]))], true),
        // It went on.
        (vec![ends.clone(), text.clone()], false),
        (vec![with("STOP", json!([{ "text": "x" }])), with("STOP", json!([{ "text": "y" }]))], true),
        (vec![json!({ "candidates": [{ "index": 0, "finishReason": "STOP" }, { "index": 1 }] })], false),
        (vec![blocked.clone()], true),
        (vec![text, blocked], false),
    ] {
        assert_eq!(read(&events).unwrap().may_end(), may_end, "{events:?}");
    }
}

proptest! {
    #[test]
    fn a_call_anywhere_is_on_record_or_refused(at in 0usize..6, key in "(functionCall|function_call|functioncall|FunctionCall|candidates|parts)") {
        let call = json!({ key.clone(): { "name": "a", "args": {} } });
        let event = match at {
            0 => call,
            1 => json!({ "candidates": [call] }),
            2 => json!({ "candidates": [{ "content": call }] }),
            3 => chunk(&json!([call])),
            4 => chunk(&json!([{ "text": "x", "deep": [call] }])),
            _ => json!({ "candidates": [], "x": [call] }),
        };
        let is_known = at == 3 && key == "functionCall";
        match read(&[event]) {
            Ok(found) => prop_assert_eq!(found.finish().len(), usize::from(is_known)),
            Err(_) => prop_assert!(!is_known),
        }
    }
}
