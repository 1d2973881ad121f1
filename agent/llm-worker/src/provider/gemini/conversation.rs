//! A client's conversation in the form in which intents are followed: who speaks, what is said, which call a result is of.
//! Pure.
//!
//! Calls may have no ids, and some clients give them their own. So a result is known by its call's place: the first of
//! this name in the model's answer, the second.

use crate::{
    http::{
        denials::{Form, Room},
        intents::ToolResult,
    },
    message::{Block, raw},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use std::{borrow::Cow, collections::BTreeMap};

/// One of a conversation's contents, as far as it is looked at.
#[derive(Deserialize, Default)]
struct Content {
    #[serde(default)]
    role: Option<String>,
    #[serde(default)]
    parts: Vec<Part>,
}

#[derive(Deserialize, Default)]
struct Part {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    thought: Option<bool>,
    #[serde(default, rename = "functionCall", alias = "function_call")]
    call: Option<Called>,
    #[serde(default, rename = "functionResponse", alias = "function_response")]
    response: Option<Called>,
}

#[derive(Deserialize, Default)]
struct Called {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    name: String,
    #[serde(default)]
    response: Option<Value>,
}

/// What a call is known by that has no id, or one that its client may change: the `nth` of this name in its answer, from 0.
pub(crate) fn position(name: &str, nth: usize) -> String {
    format!("{name}#{nth}")
}

/// The conversation, content by content, each in its place. Those before the `most` newest are left out: `null`.
pub(super) fn in_common_form(contents: &[Box<RawValue>], most: usize) -> Vec<Box<RawValue>> {
    let skipped = contents.len().saturating_sub(most);
    // Those of the model's last answer.
    let mut calls: Vec<PlacedCall> = Vec::new();
    let mut is_model_s = false;
    let one = |(at, content): (usize, &RawValue)| {
        if at < skipped {
            return raw(&Value::Null);
        }
        // What cannot be read is the provider's to refuse.
        let content: Content = serde_json::from_str(content.get()).unwrap_or_default();
        let was_model_s = std::mem::replace(&mut is_model_s, content.role.as_deref() == Some("model"));
        if is_model_s {
            if !was_model_s {
                calls.clear();
            }
            calls.extend(places(&content));
            return raw(&json!({ "role": "assistant" }));
        }
        let blocks: Vec<Value> = content.parts.iter().filter_map(|part| block(part, &mut calls)).collect();
        raw(&json!({ "role": "user", "content": blocks }))
    };
    contents.iter().map(|content| &**content).enumerate().map(one).collect()
}

/// A call of the model's.
struct PlacedCall {
    id: String,
    name: String,
    place: String,
    is_answered: bool,
}

/// The calls of a content.
fn places(content: &Content) -> Vec<PlacedCall> {
    let mut named: BTreeMap<&str, usize> = BTreeMap::new();
    let mut placed = Vec::new();
    for Called { id, name, .. } in content.parts.iter().filter_map(|part| part.call.as_ref()) {
        let nth = named.entry(name.as_str()).or_default();
        let (id, place) = (id.clone().unwrap_or_default(), position(name, *nth));
        *nth += 1;
        placed.push(PlacedCall { id, name: name.clone(), place, is_answered: false });
    }
    placed
}

/// What somebody who is not the model says.
fn block(part: &Part, calls: &mut [PlacedCall]) -> Option<Value> {
    let Some(response) = &part.response else {
        let is_thought = part.thought.unwrap_or(false);
        let text = part.text.as_ref().filter(|_| !is_thought)?;
        return Some(json!({ "type": "text", "text": text }));
    };
    let id = response.id.as_deref().unwrap_or_default();
    let mut open = calls.iter().enumerate().filter(|(_, call)| !call.is_answered);
    let by_id = open.clone().find(|(_, call)| !id.is_empty() && call.id == id);
    let (at, _) = by_id.or_else(|| open.find(|(_, call)| call.name == response.name))?;
    let call = calls.get_mut(at)?;
    call.is_answered = true;
    let (text, is_error) = text(response.response.as_ref().unwrap_or(&Value::Null));
    Some(json!({
        "type": "tool_result",
        "tool_use_id": call.place,
        "is_error": is_error,
        "content": [{ "type": "text", "text": text }],
    }))
}

/// What a tool answered, and whether it failed.
fn text(said: &Value) -> (String, bool) {
    // Where clients say that.
    let error = said.get("error").filter(|error| !error.is_null());
    let whole = error.or(said.get("output")).unwrap_or(said);
    (whole.as_str().map_or_else(|| whole.to_string(), str::to_owned), error.is_some())
}

/// The results in a content that is not the model's, in their order, each by the place of a call of this name, and where it can
/// take more.
pub(super) fn rooms<'a>(content: &'a RawValue) -> Vec<(ToolResult, Room<'a>)> {
    #[derive(Deserialize)]
    struct Content<'a> {
        #[serde(default)]
        role: Option<Cow<'a, str>>,
        #[serde(borrow)]
        parts: Vec<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Part<'a> {
        #[serde(borrow, rename = "functionResponse", alias = "function_response")]
        response: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Answered<'a> {
        #[serde(borrow)]
        name: Cow<'a, str>,
        #[serde(default)]
        response: Value,
    }
    let content = serde_json::from_str::<Content<'_>>(content.get()).ok();
    let content = content.filter(|content| content.role.as_deref() != Some("model"));
    let one = |part: &'a RawValue| {
        let answered = serde_json::from_str::<Part<'_>>(part.get()).ok()?.response;
        let Answered { name, response } = serde_json::from_str(answered.get()).ok()?;
        let room = Room::in_field(answered, "response", Form::Object, Room::of_object);
        let (text, is_error) = text(&response);
        let (call, content) = (position(&name, 0), vec![Block::text(&text)]);
        Some((ToolResult { call, is_by_place: true, is_error, content }, room?))
    };
    content.into_iter().flat_map(|content| content.parts).filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(contents: &[Value]) -> Vec<Value> {
        let contents: Vec<_> = contents.iter().map(raw).collect();
        let read = in_common_form(&contents, 3);
        read.iter().map(|content| serde_json::from_str(content.get()).unwrap()).collect()
    }

    #[test]
    fn a_result_is_of_the_call_with_its_id_or_of_the_next_of_its_name() {
        let call = |name: &str, id: Value| json!({ "functionCall": { "name": name, "id": id, "args": {} } });
        let result = |name: &str, id: Value| json!({ "function_response": { "name": name, "id": id, "response": { "output": "x" } } });
        let null = || Value::Null;
        let ids = |calls: Vec<Value>, results: Vec<Value>| -> Vec<String> {
            let said = common(&[json!({ "role": "model", "parts": calls }), json!({ "parts": results })]);
            let blocks = said[1]["content"].as_array().unwrap();
            blocks.iter().map(|block| block["tool_use_id"].as_str().unwrap().to_owned()).collect()
        };
        let two = || vec![call("a", null()), call("b", null()), call("a", null())];
        // Some clients give ids of their own to results alone.
        let results = vec![result("a", json!("own")), result("a", null()), result("b", null())];
        assert_eq!(ids(two(), results), ["a#0", "a#1", "b#0"]);
        let calls = vec![call("a", json!("x")), call("a", json!("y"))];
        assert_eq!(ids(calls, vec![result("a", json!("y")), result("a", json!("x"))]), ["a#1", "a#0"]);
        // One of no call is none.
        assert!(ids(two(), vec![result("c", null()), result("a#0", null())]).is_empty());
        let twice = vec![result("b", null()), result("b", null())];
        assert_eq!(ids(two(), twice), ["b#0"]);
    }

    #[test]
    fn each_content_has_its_place_and_errors_are_told() {
        let text = |text: &str| json!({ "role": "user", "parts": [{ "text": text }] });
        let failed = json!({ "role": "function", "parts": [{ "functionResponse": { "name": "a", "response": { "error": "no" } } }] });
        let model = json!({ "role": "model", "parts": [{ "text": "t", "thought": true }, { "functionCall": { "name": "a" } }] });
        let said = common(&[text("old"), text("x"), model, failed]);
        assert_eq!((&said[0], said[1]["content"][0]["text"].as_str()), (&Value::Null, Some("x")));
        assert_eq!(said[2], json!({ "role": "assistant" }));
        assert_eq!(
            (&said[3]["content"][0]["is_error"], &said[3]["content"][0]["content"][0]["text"]),
            (&json!(true), &json!("no"))
        );
        assert_eq!(common(&[json!("x"), json!({ "parts": 7 })]).len(), 2);
    }
}
