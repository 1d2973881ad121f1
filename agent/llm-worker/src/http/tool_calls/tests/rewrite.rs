//! What goes on of an answer is the same to clients that join what they should not.

use super::*;

/// The pieces of calls as they go on.
fn rewritten(events: &[Value]) -> Vec<Value> {
    let mut found = ToolCalls::default();
    let mut pieces = Vec::new();
    for event in events {
        let mut event = event.clone();
        found.event(OpenAi, "", &event).unwrap();
        let before = event.clone();
        assert_eq!(found.rewrite(&mut event), event != before, "{before}");
        let delta = &event["choices"][0]["delta"];
        pieces.extend(delta["tool_calls"].as_array().into_iter().flatten().cloned());
        pieces.extend(delta.get("function_call").cloned());
    }
    pieces
}

fn list(calls: &[Value]) -> Value {
    json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls } }] })
}

#[test]
fn each_call_goes_on_with_an_index_of_its_own() {
    let call = |index: Value, id: &str| json!({ "index": index, "id": id, "function": { "name": "t", "arguments": "{}" } });
    let bare = |id: &str| json!({ "id": id, "function": { "name": "t", "arguments": "{}" } });
    let two = [call(json!(0), "a"), call(json!(1), "b")];
    for index in [json!(0), json!(null)] {
        let same = [call(index.clone(), "a"), call(index.clone(), "b")];
        assert_eq!(rewritten(&[list(&same)]), two);
        assert_eq!(rewritten(&[list(&same[..1]), list(&same[1..])]), two);
    }
    assert_eq!(rewritten(&[list(&[bare("a")]), list(&[bare("b")])]), two);
    assert_eq!(rewritten(&[list(&[bare(""), bare("")])]), [call(json!(0), ""), call(json!(1), "")]);
    // What is as it should be stays.
    assert_eq!(rewritten(&[list(&two)]), two);
    // A lone one that is counted from 1, in pieces; pieces without an index; one behind those that share one.
    let piece = |index: u64| json!({ "index": index, "function": { "arguments": "}" } });
    let begun = |index: u64, id: &str| json!({ "index": index, "id": id, "function": { "name": "t", "arguments": "{" } });
    assert_eq!(rewritten(&[list(&[begun(1, "a")]), list(&[piece(1)])]), [begun(0, "a"), piece(0)]);
    let unindexed = |mut call: Value| {
        call.as_object_mut().unwrap().remove("index");
        call
    };
    assert_eq!(
        rewritten(&[list(&[unindexed(begun(0, "a"))]), list(&[unindexed(piece(0))])]),
        [begun(0, "a"), piece(0)]
    );
    let behind = [
        list(&[call(json!(0), "a")]),
        list(&[call(json!(0), "b")]),
        list(&[begun(1, "c")]),
        list(&[piece(1)]),
    ];
    assert_eq!(rewritten(&behind), [call(json!(0), "a"), call(json!(1), "b"), begun(2, "c"), piece(2)]);
}

#[test]
fn nothing_is_said_twice_of_a_call() {
    let function = |function: Value| list(&[json!({ "index": 0, "id": "a", "function": function })]);
    let later = |function: Value| json!({ "index": 0, "function": function });
    let events = [
        list(&[json!({ "index": 0, "id": "a" })]),
        function(json!({ "name": "t", "arguments": "{" })),
        function(json!({ "name": "t", "arguments": "}" })),
        list(&[json!({ "index": 0, "id": "", "function": { "name": "", "arguments": " " } })]),
        list(&[json!({ "index": 0, "id": null, "function": { "name": null } })]),
        list(&[
            json!({ "index": 1 }),
            json!({ "index": 2, "id": "", "function": { "name": "", "arguments": "" } }),
        ]),
        list(&[json!({ "index": 1, "id": "b", "custom": { "name": "p", "input": "x" } })]),
        list(&[json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": " " } })]),
        list(&[json!({ "index": 1, "id": "b", "custom": { "name": "p", "input": "y" } })]),
        json!({ "choices": [{ "index": 0, "delta": { "function_call": { "name": "old", "arguments": "{" } } }] }),
        json!({ "choices": [{ "index": 0, "delta": { "function_call": { "name": "old", "arguments": "}" } } }] }),
    ];
    let expected = [
        json!({ "index": 0, "id": "a" }),
        later(json!({ "name": "t", "arguments": "{" })),
        later(json!({ "arguments": "}" })),
        later(json!({ "arguments": " " })),
        json!({ "index": 0, "id": null, "function": { "name": null } }),
        json!({ "index": 1, "id": "b", "custom": { "name": "p", "input": "x" } }),
        json!({ "index": 1, "custom": { "input": "y" } }),
        json!({ "name": "old", "arguments": "{" }),
        json!({ "arguments": "}" }),
    ];
    assert_eq!(rewritten(&events), expected);
}

/// What a client has that joins every text of what has one index, or of what comes behind the newest.
fn crude(pieces: &[Value], by_last: bool) -> Vec<(String, String, String)> {
    let mut calls: Vec<(Value, (String, String, String))> = Vec::new();
    for piece in pieces {
        let is_known = |index: &Value| *index == piece["index"];
        let at = match by_last {
            true => calls.last().filter(|(index, _)| is_known(index)).map(|_| calls.len() - 1),
            false => calls.iter().position(|(index, _)| is_known(index)),
        };
        let at = at.unwrap_or_else(|| {
            calls.push((piece["index"].clone(), Default::default()));
            calls.len() - 1
        });
        let said = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let call = &mut calls[at].1;
        call.0 += &said(&piece["id"]);
        call.1 += &said(&piece["function"]["name"]);
        call.2 += &said(&piece["function"]["arguments"]);
    }
    let named = calls.into_iter().map(|(_, call)| call).filter(|(_, name, _)| !name.is_empty());
    named.map(|(id, name, input)| (id, name, json(input).get().to_owned())).collect()
}

proptest! {
    #[test]
    fn clients_that_join_whatever_they_can_have_the_calls_on_record(
        steps in prop::collection::vec(
            (prop::option::of(0u64..3), prop::option::of("[ab]?"), prop::option::of("|t|u"), "|\\{|\\}|\\{\\}"), 0..8),
    ) {
        let (mut found, mut pieces) = (ToolCalls::default(), Vec::new());
        for (index, id, name, input) in steps {
            let call = json!({ "index": index, "id": id, "function": { "name": name, "arguments": input } });
            let mut event = list(&[call]);
            if found.event(OpenAi, "", &event).is_err() {
                return Ok(());
            }
            found.rewrite(&mut event);
            pieces.push(event["choices"][0]["delta"]["tool_calls"][0].clone());
        }
        prop_assume!(found.complete().is_ok());
        let mut recorded: Vec<_> =
            found.finish().into_iter().map(|call| (call.id, call.name, call.input.get().to_owned())).collect();
        let (mut by_index, mut by_last) = (crude(&pieces, false), crude(&pieces, true));
        for calls in [&mut recorded, &mut by_index, &mut by_last] {
            calls.sort();
        }
        prop_assert_eq!(&by_index, &recorded);
        prop_assert_eq!(&by_last, &recorded);
    }
}

#[test]
fn an_empty_input_waits_for_its_pieces() {
    for empty in [json!({}), json!(""), json!(null)] {
        let block = json!({ "type": "tool_use", "id": "a", "name": "t", "input": empty });
        let events = [start(json!(0), block), piece(json!(0), "{\"x\":"), piece(json!(0), "1}")];
        assert_eq!(calls(Anthropic, &events), [call("a", "t", "{\"x\":1}")]);
    }
    let block = json!({ "type": "tool_use", "id": "a", "name": "t", "input": { "x": 1 } });
    assert!(refused(Anthropic, &[start(json!(0), block), piece(json!(0), "{}")]));
}
