//! Requests of the newer form as they are sent on, and answers as they are counted.

use super::*;
use crate::{http::request::rewrite, provider::sse::Event, samples};
use ringfence_policy::agents::config::ProviderKind;
use serde_json::Map;
use std::collections::VecDeque;

fn llm() -> Llm {
    let options = Map::from_iter([("temperature".to_owned(), json!(0))]);
    Llm {
        provider: ProviderKind::OpenAi,
        model: "fixed".into(),
        max_tokens: 100,
        options,
        ..samples::config().llm
    }
}

fn rewritten(llm: &Llm, body: &str) -> Result<Value, String> {
    rewrite(llm, Route::Respond, body.as_bytes()).map(|done| serde_json::from_slice(&done.body).unwrap())
}

fn sent(body: Value) -> Result<Value, String> {
    rewritten(&llm(), &body.to_string())
}

#[test]
fn the_profile_fixes_what_it_does_of_the_other_form() {
    let asked = json!({ "model": "theirs", "temperature": 1, "input": [], "instructions": "x", "stream": true, "n": 3,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "models": ["a"], "stream_options": { "x": 1 },
        "tools": [{ "type": "function", "name": "f" }, { "type": "local_shell" }, { "type": "custom", "name": "c" }] });
    let mut expected = asked.clone();
    for key in ["n", "models"] {
        expected.as_object_mut().unwrap().remove(key);
    }
    (expected["model"], expected["temperature"]) = (json!("fixed"), json!(0));
    (expected["max_output_tokens"], expected["store"]) = (json!(100), json!(false));
    assert_eq!(sent(asked), Ok(expected));
    for (asked, limit) in
        [(json!(7), 7), (json!(5000), 100), (json!("5000"), 100), (json!(null), 100), (json!(1e9), 100)]
    {
        assert_eq!(
            sent(json!({ "max_output_tokens": asked })).unwrap()["max_output_tokens"],
            limit,
            "{asked}"
        );
    }
    // Another name of it is no limit here, and no more than one either.
    let other = sent(json!({ "max_tokens": 7, "max_completion_tokens": 5000 })).unwrap();
    assert_eq!((&other["max_output_tokens"], &other["max_tokens"]), (&json!(100), &json!(7)));
    assert_eq!(other["max_completion_tokens"], 100);
    let twice = rewritten(
        &llm(),
        r#"{"max_output_tokens":5,"max_output_tokens":500,"Max_Output_Tokens":500,"Input":"x"}"#,
    );
    let left = ["max_output_tokens", "model", "store", "temperature"];
    assert_eq!(twice.unwrap().as_object().unwrap().keys().collect::<Vec<_>>(), left);
}

#[test]
fn nothing_is_kept_at_the_provider_and_nothing_that_it_keeps_is_referred_to() {
    for store in [json!(true), json!(null), json!("true"), json!(1)] {
        assert_eq!(sent(json!({ "store": store })).unwrap()["store"], false, "{store}");
    }
    assert_eq!(sent(json!({ "Store": true })).unwrap().get("Store"), None);
    for (key, value) in [
        ("previous_response_id", json!("resp_1")),
        ("previous_response_id", json!("")),
        ("conversation", json!("conv_1")),
        ("conversation", json!({ "id": "conv_1" })),
        ("prompt", json!({ "id": "pmpt_1" })),
        ("background", json!(true)),
        ("background", json!("false")),
        ("input", json!([{ "type": "item_reference", "id": "msg_1" }])),
        ("input", json!([{ "id": "msg_1" }])),
        ("input", json!([{ "type": null, "id": "msg_1" }])),
        ("input", json!([{ "Type": "item_reference", "type": "message", "id": "msg_1" }])),
    ] {
        let error = sent(json!({ key: value })).unwrap_err();
        assert!(error.starts_with(key) && error.contains("this endpoint"), "{error}");
    }
    let last = rewritten(&llm(), r#"{"previous\u005fresponse_id":"x","previous_response_id":null}"#);
    assert!(last.is_ok(), "the last counts, and goes out alone");
    // Which type of an item counts is the provider's to say.
    for types in [
        r#""type":"item_reference","type":"message""#,
        r#""typ\u0065":"item\u005freference""#,
        r#""type":null,"type":null"#,
    ] {
        assert!(rewritten(&llm(), &format!(r#"{{"input":[{{{types},"id":"x"}}]}}"#)).is_err(), "{types}");
    }
    for fine in [
        json!({ "previous_response_id": null, "conversation": null, "background": false, "prompt": null, "input": "x" }),
        json!({ "input": [{ "role": "user", "content": "x" }, { "type": "function_call_output", "call_id": "c" }, 7] }),
        json!({ "background": null, "Conversation": "x", "input": [{ "type": "message", "role": "user", "content": "x" }] }),
    ] {
        assert!(sent(fine.clone()).is_ok(), "{fine}");
    }
    // The profile's own are its own.
    let mut own = llm();
    own.options.insert("store".into(), json!(true));
    own.options.insert("prompt".into(), json!({ "id": "pmpt_own" }));
    let done = rewritten(&own, r#"{"store":false,"prompt":{"id":"theirs"}}"#).unwrap();
    assert_eq!((&done["store"], &done["prompt"]["id"]), (&json!(true), &json!("pmpt_own")));
}

#[test]
fn no_tool_brings_another_model_wherever_it_is_listed() {
    let tool = || json!({ "type": "image_generation", "model": "big" });
    for body in [
        json!({ "tools": [tool()] }),
        json!({ "tools": [{ "type": "namespace", "name": "n", "tools": [tool()] }] }),
        json!({ "input": [{ "type": "tool_search_output", "call_id": "c", "tools": [tool()] }] }),
        json!({ "tool_choice": { "type": "allowed_tools", "tools": [tool()] } }),
        json!({ "tools": [{ "name": "n", "tools": [tool()] }] }),
        json!({ "input": [{ "type": "tool_search_output", "Tools": [tool()] }] }),
    ] {
        let error = sent(body.clone()).unwrap_err();
        assert!(error.contains("may not name a model"), "{body}: {error}");
    }
    let fine = json!({ "tools": [{ "type": "namespace", "name": "n", "tools": [{ "type": "function", "name": "model" }] }, { "type": "local_shell" }],
        "tool_choice": { "type": "function", "name": "model" } });
    assert!(sent(fine).is_ok());
}

#[test]
fn results_and_words_are_found_among_the_items() {
    let api = Responses;
    let results = |item: Value| {
        let message: ClientMessage = serde_json::from_value(item.clone()).unwrap();
        let found = api.tool_results(&message, &raw(&item));
        found
            .into_iter()
            .map(|result| (result.call, result.is_error, json!(result.content)))
            .collect::<Vec<_>>()
    };
    let text = |text: &str| json!([{ "type": "text", "text": text }]);
    for kind in ["function_call_output", "custom_tool_call_output", "shell_call_output"] {
        let found = results(json!({ "type": kind, "call_id": "c", "output": "done" }));
        assert_eq!(found, [("c".to_owned(), false, text("done"))]);
    }
    let found = results(
        json!({ "type": "local_shell_call_output", "id": "l", "output": [{ "type": "input_text", "text": "x" }] }),
    );
    assert_eq!(found, [("l".to_owned(), false, text("x"))]);
    let found = results(
        json!({ "type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": { "a": 1 } }),
    );
    assert_eq!(found, [("c".to_owned(), true, text(r#"{"a":1}"#))]);
    assert_eq!(results(json!({ "type": "message", "role": "user", "content": "x" })), []);
    assert_eq!(results(json!({ "type": "x_output", "role": "user", "call_id": "c", "output": "x" })), []);
    assert_eq!(results(json!({ "type": "function_call", "call_id": "c" })), []);
    assert_eq!(
        api.call_said(&raw(&json!({ "type": "function_call", "call_id": "c" }))).as_deref(),
        Some("c")
    );
    assert_eq!(api.call_said(&raw(&json!({ "type": "function_call_output", "call_id": "c" }))), None);
    let request = |body: Value| serde_json::from_value::<Fields>(body).unwrap();
    let of_text = api.messages(&request(json!({ "input": "go" })));
    assert_eq!(json!(of_text), json!([{ "role": "user", "content": "go" }]));
    assert_eq!(api.messages(&request(json!({ "input": [{ "a": 1 }, { "b": 2 }] }))).len(), 2);
    assert!(api.messages(&request(json!({ "input": 7, "messages": [1] }))).is_empty());
}

#[test]
fn an_answer_says_how_it_ended_and_what_it_cost() {
    let end = |events: &[Value]| {
        let mut decoder = Responses.decoder();
        for data in events {
            let event = Event { name: String::new(), data: data.to_string() };
            decoder.event(&event, &mut VecDeque::new()).map_err(|error| error.message)?;
        }
        let usage = decoder.reported_usage();
        decoder.is_done().then_some(()).ok_or("not done")?;
        decoder
            .finish()
            .map(|answer| (answer.stop_reason, json!(answer.content), usage))
            .map_err(|error| error.message)
    };
    let usage =
        json!({ "input_tokens": 11, "input_tokens_details": { "cached_tokens": 4 }, "output_tokens": 5 });
    let counted = Usage { input_tokens: 7, output_tokens: 5, cache_read_tokens: 4, cache_write_tokens: 0 };
    let last = |kind: &str, more: Value| json!({ "type": format!("response.{kind}"), "response": more });
    let said = json!({ "type": "response.output_text.delta", "delta": "hi" });
    let completed = last("completed", json!({ "status": "completed", "usage": usage }));
    let (reason, content, used) = end(&[said.clone(), completed.clone()]).unwrap();
    assert_eq!(
        (reason.as_str(), content, used),
        ("end_turn", json!([{ "type": "text", "text": "hi" }]), Some(counted))
    );
    let called = json!({ "type": "response.output_item.done", "item": { "type": "function_call" } });
    assert_eq!(end(&[called, completed.clone()]).unwrap().0, "tool_use");
    assert_eq!(
        end(&[json!({ "type": "response.refusal.delta", "delta": "no" }), completed]).unwrap().0,
        "refusal"
    );
    for (why, reason) in [("max_output_tokens", "max_tokens"), ("content_filter", "content_filter")] {
        let cut = json!({ "status": "incomplete", "incomplete_details": { "reason": why }, "usage": usage });
        let (stopped, _, used) = end(&[last("incomplete", cut)]).unwrap();
        assert_eq!((stopped.as_str(), used), (reason, Some(counted)));
    }
    let failed =
        last("failed", json!({ "error": { "code": "server_error", "message": "broken" }, "usage": usage }));
    assert_eq!(end(std::slice::from_ref(&failed)).unwrap_err(), "broken");
    assert_eq!(Responses.event_usage(&failed).0, Some(counted), "it is counted all the same");
    for error in [
        json!({ "type": "error", "code": "x", "message": "slow down" }),
        json!({ "type": "error", "error": { "message": "slow down" } }),
        json!({ "error": { "message": "slow down" } }),
    ] {
        assert_eq!(end(&[error]).unwrap_err(), "slow down");
    }
    assert_eq!(end(std::slice::from_ref(&said)).unwrap_err(), "not done");
    assert!(end(&[said, json!({ "type": "response.created", "response": {} })]).is_err());
}
