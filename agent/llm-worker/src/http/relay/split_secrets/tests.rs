//! A credential reaches nobody in pieces, and what is none goes out as it came.

use super::super::Relay;
use crate::{provider::Wire, redact::Redactor};
use Wire::{ChatCompletions as OpenAi, GenerateContent as Gemini, Messages as Anthropic, Responses};
use proptest::prelude::*;
use ringfence_credentials::Secret;
use serde_json::{Value, json};

const KEY: &str = "sk-secret-0123456789";

fn redactor() -> Redactor {
    Redactor::new([&Secret::from(KEY.to_owned())])
}

/// An event as it goes out.
fn event(kind: Wire, data: &Value) -> String {
    match kind {
        Anthropic | Responses => {
            format!("event: {}\ndata: {data}\n\n", data["type"].as_str().unwrap_or_default())
        }
        Wire::ChatCompletions | Wire::GenerateContent => format!("data: {data}\n\n"),
    }
}

/// What goes out of a stream, event by event, and what at its end; or why it breaks off.
fn relayed(kind: Wire, events: &[Value]) -> Result<Vec<String>, String> {
    let mut relay = Relay::new(kind, false, true);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let mut out = Vec::new();
    for data in events {
        out.push(text(relay.feed(event(kind, data).as_bytes(), &redactor())?));
    }
    let (rest, outcome) = relay.finish(true, &redactor());
    out.push(text(rest));
    outcome.refused.map_or(Ok(out), Err)
}

fn sent(kind: Wire, events: &[Value]) -> String {
    events.iter().map(|data| event(kind, data)).collect()
}

/// The text of a field, as a client joins it.
fn joined(out: &str, pointer: &str) -> String {
    let data = out.lines().filter_map(|line| line.strip_prefix("data: "));
    let events = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
    events.filter_map(|event| Some(event.pointer(pointer)?.as_str()?.to_owned())).collect()
}

/// A form in which pieces of something come: what stands before them, one of them, what stands behind; and where a client
/// finds it.
type Form = (Wire, Vec<Value>, fn(&str) -> Value, Vec<Value>, &'static str);

fn block(block: Value) -> Vec<Value> {
    vec![json!({ "type": "content_block_start", "index": 0, "content_block": block })]
}

fn delta(delta: Value) -> Value {
    json!({ "type": "content_block_delta", "index": 0, "delta": delta })
}

fn chunk(delta: Value) -> Value {
    json!({ "id": "c", "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] })
}

fn part(says: &str, piece: &str) -> Value {
    json!({ "type": says, "output_index": 0, "content_index": 0, "delta": piece })
}

fn item(kind: &str, key: &str) -> Value {
    let item = json!({ "type": kind, "id": "a", "call_id": "a", "name": "t", key: "" });
    json!({ "type": "response.output_item.added", "output_index": 0, "item": item })
}

/// Where Gemini's clients find a text.
const TEXT: &str = "/candidates/0/content/parts/0/text";

fn parts(parts: Value) -> Value {
    json!({ "candidates": [{ "content": { "parts": parts } }] })
}

fn gemini_end() -> Vec<Value> {
    vec![json!({ "candidates": [{ "finishReason": "STOP" }] })]
}

fn completed() -> Vec<Value> {
    vec![json!({ "type": "response.completed", "response": {} })]
}

/// Forms of what is a text, and of what is JSON.
fn forms() -> (Vec<Form>, Vec<Form>) {
    let stop =
        || vec![json!({ "type": "content_block_stop", "index": 0 }), json!({ "type": "message_stop" })];
    let end = || vec![json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] })];
    let named = |form: &str| {
        let call = json!({ "index": 0, "id": "a", "type": form, form: { "name": "t" } });
        vec![chunk(json!({ "tool_calls": [call] }))]
    };
    let tool = |kind: &str| block(json!({ "type": kind, "id": "a", "name": "t", "input": {} }));
    let texts: Vec<Form> = vec![
        (
            Anthropic,
            block(json!({ "type": "text", "text": "" })),
            |piece| delta(json!({ "type": "text_delta", "text": piece })),
            stop(),
            "/delta/text",
        ),
        (
            Anthropic,
            block(json!({ "type": "thinking", "thinking": "" })),
            |piece| delta(json!({ "type": "thinking_delta", "thinking": piece })),
            stop(),
            "/delta/thinking",
        ),
        (OpenAi, vec![], |piece| chunk(json!({ "content": piece })), end(), "/choices/0/delta/content"),
        (
            OpenAi,
            vec![],
            |piece| chunk(json!({ "new": [{ "index": 3, "x": piece }] })),
            end(),
            "/choices/0/delta/new/0/x",
        ),
        (
            OpenAi,
            named("custom"),
            |piece| chunk(json!({ "tool_calls": [{ "index": 0, "custom": { "input": piece } }] })),
            end(),
            "/choices/0/delta/tool_calls/0/custom/input",
        ),
        (Gemini, vec![], |piece| parts(json!([{ "text": piece }])), gemini_end(), TEXT),
        (Gemini, vec![], |piece| parts(json!([{ "text": piece, "thought": true }])), gemini_end(), TEXT),
        (Responses, vec![], |piece| part("response.output_text.delta", piece), completed(), "/delta"),
        (Responses, vec![], |piece| part("response.refusal.delta", piece), completed(), "/delta"),
        (
            Responses,
            vec![],
            |piece| json!({ "type": "response.reasoning_summary_text.delta", "output_index": 0, "summary_index": 1, "delta": piece }),
            completed(),
            "/delta",
        ),
        (
            Responses,
            vec![item("custom_tool_call", "input")],
            |piece| part("response.custom_tool_call_input.delta", piece),
            completed(),
            "/delta",
        ),
        (
            Responses,
            vec![item("new", "x")],
            |piece| json!({ "type": "response.new.delta", "output_index": 0, "delta": { "x": piece } }),
            completed(),
            "/delta/x",
        ),
    ];
    let inputs: Vec<Form> = vec![
        (
            Anthropic,
            tool("tool_use"),
            |piece| delta(json!({ "type": "input_json_delta", "partial_json": piece })),
            stop(),
            "/delta/partial_json",
        ),
        (
            Anthropic,
            tool("server_tool_use"),
            |piece| delta(json!({ "type": "input_json_delta", "partial_json": piece })),
            stop(),
            "/delta/partial_json",
        ),
        (
            OpenAi,
            named("function"),
            |piece| chunk(json!({ "tool_calls": [{ "index": 0, "function": { "arguments": piece } }] })),
            end(),
            "/choices/0/delta/tool_calls/0/function/arguments",
        ),
        (
            OpenAi,
            vec![chunk(json!({ "function_call": { "name": "t" } }))],
            |piece| chunk(json!({ "function_call": { "arguments": piece } })),
            end(),
            "/choices/0/delta/function_call/arguments",
        ),
        (
            Responses,
            vec![item("function_call", "arguments")],
            |piece| part("response.function_call_arguments.delta", piece),
            completed(),
            "/delta",
        ),
        (
            Responses,
            vec![item("mcp_call", "arguments")],
            |piece| part("response.mcp_call_arguments.delta", piece),
            completed(),
            "/delta",
        ),
    ];
    (texts, inputs)
}

/// A text, in pieces of so many bytes.
fn pieces(form: &Form, text: &str, size: usize) -> Vec<Value> {
    let (_, before, piece, behind, _) = form;
    let characters: Vec<char> = text.chars().collect();
    let cut = characters.chunks(size).map(|chunk| piece(&chunk.iter().collect::<String>()));
    before.iter().cloned().chain(cut).chain(behind.iter().cloned()).collect()
}

#[test]
fn a_credential_in_pieces_is_taken_out() {
    let (texts, inputs) = forms();
    for form in &texts {
        let text = format!("is {KEY}, s and sk-secr {KEY}{KEY} sk");
        let clean = "is [redacted], s and sk-secr [redacted][redacted] sk";
        for size in 1..text.len() {
            let out = relayed(form.0, &pieces(form, &text, size)).unwrap().concat();
            assert_eq!(joined(&out, form.4), clean, "{size}: {out}");
        }
    }
    for hidden in [KEY.to_owned(), KEY.replace("sk", r"\u0073\u006B"), KEY.replace('-', r"\u002d")] {
        for form in &inputs {
            let text = format!(r#"{{"a":"\n{hidden}","{hidden} s":"\ud83e\udd80"}}"#);
            let clean = r#"{"a":"\n[redacted]","[redacted] s":"\ud83e\udd80"}"#;
            for size in 1..text.len() + 1 {
                let out = relayed(form.0, &pieces(form, &text, size)).unwrap().concat();
                assert_eq!(joined(&out, form.4), clean, "{size}: {out}");
            }
        }
    }
}

#[test]
fn what_is_no_credential_goes_out_as_it_came() {
    let (texts, inputs) = forms();
    for form in texts.iter().chain(&inputs) {
        let is_json = inputs.iter().any(|input| std::ptr::eq(input, form));
        let text =
            if is_json { r#"{"a":"files sk-secret-0\u0073","s":1.50}"# } else { "files sk-secret-0123 s" };
        for size in 1..text.len() + 1 {
            let events = pieces(form, text, size);
            let out = relayed(form.0, &events).unwrap();
            assert_eq!(out.concat(), sent(form.0, &events), "{size}");
            // Nothing waits behind the end of what it is part of.
            if form.0 != Gemini {
                assert!(!out[out.len() - 2].is_empty() && out[out.len() - 1].is_empty(), "{out:?}");
            }
        }
    }
}

#[test]
fn an_event_waits_only_while_it_may_be_continued() {
    let of = |index: u64, delta: Value| json!({ "choices": [{ "index": index, "delta": delta }] });
    let tool = |index: u64, input: &str| {
        let function = json!({ "name": "t", "arguments": input });
        of(0, json!({ "tool_calls": [{ "index": index, "function": function }] }))
    };
    let text = || of(0, json!({ "content": "files" }));
    for (next, goes) in [
        (of(0, json!({ "content": " and" })), true),
        (of(0, json!({ "reasoning": "x" })), true),
        (tool(0, "{}"), true),
        (of(0, json!({})), true),
        (json!({ "error": { "message": "x" } }), true),
        (of(1, json!({ "content": "x" })), false),
        (json!({ "choices": [], "usage": {} }), false),
        (of(0, json!({ "content": "k-sec" })), false),
    ] {
        let events = [text(), next.clone()];
        let out = relayed(OpenAi, &events).unwrap();
        assert_eq!((out[0].as_str(), out.concat()), ("", sent(OpenAi, &events)));
        let first = if out[1].is_empty() { &out[2] } else { &out[1] };
        assert!(first.starts_with(&event(OpenAi, &events[0])), "{next}");
        assert_eq!(!out[1].is_empty(), goes, "{next}");
    }
    // A call's end is out when the next begins.
    let events = [tool(0, "7s"), tool(1, "{}")];
    let out = relayed(OpenAi, &events).unwrap();
    assert_eq!((out[0].as_str(), out[1].as_str()), ("", sent(OpenAi, &events).as_str()));
    // However much comes that decides nothing, it is not kept for ever.
    let ping = json!({ "type": "ping" });
    let begun = block(json!({ "type": "text", "text": "s" }));
    let events: Vec<Value> = begun.into_iter().chain(std::iter::repeat_n(ping, super::MOST)).collect();
    let out = relayed(Anthropic, &events).unwrap();
    assert!(out[..super::MOST].iter().all(String::is_empty));
    assert_eq!(out[super::MOST], sent(Anthropic, &events));
}

#[test]
fn what_cannot_be_taken_out_any_more_breaks_the_stream() {
    let (first, rest) = KEY.split_at(9);
    let of = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta }] });
    let apart = |between: Value, rest: &str| {
        relayed(OpenAi, &[of(json!({ "content": first })), between, of(json!({ "content": rest }))])
    };
    let text = |index: u64, text: &str| json!({ "type": "content_block_start", "index": index, "content_block": { "type": "text", "text": text } });
    for between in [of(json!({ "reasoning": "x" })), of(json!({})), of(json!({ "x": "" }))] {
        assert_eq!(apart(between.clone(), rest).unwrap_err(), super::SPLIT, "{between}");
        assert!(apart(between, "and so on").is_ok(), "the control");
    }
    let finished =
        json!({ "choices": [{ "index": 0, "delta": { "content": first }, "finish_reason": "stop" }] });
    assert!(relayed(OpenAi, &[finished.clone(), of(json!({ "content": rest }))]).is_err());
    assert!(relayed(OpenAi, &[finished, of(json!({ "content": "." }))]).is_ok(), "the control");
    // Some clients join the texts of all blocks.
    assert!(relayed(Anthropic, &[text(0, first), text(1, rest)]).is_err());
    assert!(relayed(Anthropic, &[text(0, first), text(1, "x")]).is_ok(), "the control");
}

#[test]
fn parts_of_the_newer_form_are_joined_as_their_clients_do() {
    let (first, rest) = KEY.split_at(9);
    let text = |index: u64, text: &str| json!({ "type": "response.output_text.delta", "output_index": 0, "content_index": index, "delta": text });
    let begun = |text: &str| json!({ "type": "response.content_part.added", "output_index": 0, "content_index": 0, "part": { "type": "output_text", "text": text } });
    let message = |content: Value| json!({ "type": "response.output_item.added", "output_index": 0, "item": { "type": "message", "id": "m", "content": content } });
    // A part may begin with the beginning.
    for begin in [begun(first), message(json!([{ "type": "output_text", "text": first }]))] {
        let out =
            relayed(Responses, &[begin.clone(), text(0, rest), completed().remove(0)]).unwrap().concat();
        assert!(!out.contains(first) && !out.contains(rest), "{out}");
        assert_eq!(
            relayed(Responses, &[begin.clone(), text(0, ".")]).unwrap().concat(),
            sent(Responses, &[begin, text(0, ".")])
        );
    }
    // Some clients join the texts of all parts.
    let out = relayed(Responses, &[text(0, first), text(1, rest)]).unwrap().concat();
    assert!(joined(&out, "/delta") == "[redacted]", "{out}");
    assert_eq!(relayed(Responses, &[text(1, "x"), text(0, "x")]).unwrap_err(), super::BACK);
    let between = json!({ "type": "response.in_progress", "response": {} });
    assert_eq!(
        relayed(Responses, &[text(0, first), between.clone(), text(0, rest)]).unwrap_err(),
        super::SPLIT
    );
    assert!(relayed(Responses, &[text(0, first), between, text(0, ".")]).is_ok(), "the control");
    // And do so of what is said again as a whole.
    let content = |texts: [&str; 2]| texts.map(|text| json!({ "type": "output_text", "text": text }));
    let said = |texts| json!({ "type": "message", "id": "m", "content": content(texts) });
    for (texts, fits) in [([first, rest], false), ([first, "."], true), (["a [redacted]", " b"], true)] {
        let done = json!({ "type": "response.output_item.done", "output_index": 0, "item": said(texts) });
        let completed = json!({ "type": "response.completed", "response": { "output": [said(texts)] } });
        for event in [done, completed] {
            assert_eq!(relayed(Responses, std::slice::from_ref(&event)).is_ok(), fits, "{event}");
        }
    }
    // What is said again as a whole has none either, and is the same as what its pieces are.
    let arguments = |says: &str, key: &str, text: &str| json!({ "type": format!("response.function_call_arguments.{says}"), "output_index": 0, key: text });
    let input = format!(r#"{{"k":"{KEY}"}}"#);
    let stream = [
        item("function_call", "arguments"),
        arguments("delta", "delta", &input[..12]),
        arguments("delta", "delta", &input[12..]),
        arguments("done", "arguments", &input),
        completed().remove(0),
    ];
    let out = relayed(Responses, &stream).unwrap().concat();
    assert_eq!(
        (joined(&out, "/delta").as_str(), joined(&out, "/arguments").as_str()),
        (r#"{"k":"[redacted]"}"#, r#"{"k":"[redacted]"}"#)
    );
}

#[test]
fn what_waits_goes_to_nobody_when_the_stream_is_refused() {
    let mut relay = Relay::new(OpenAi, false, false);
    let first = event(OpenAi, &chunk(json!({ "content": &KEY[..9] })));
    assert!(relay.feed(first.as_bytes(), &redactor()).unwrap().is_empty());
    assert!(relay.feed(b"data: 7\n\n", &redactor()).is_err());
    assert!(relay.finish(false, &redactor()).0.is_empty());
    // Where the provider breaks off, it is the last that there is.
    let mut relay = Relay::new(OpenAi, false, false);
    relay.feed(first.as_bytes(), &redactor()).unwrap();
    assert_eq!(relay.finish(false, &redactor()).0, first.as_bytes());
}

#[test]
fn undecided_ends_have_a_bound() {
    let many = |count: usize| {
        let items: Vec<Value> = (0..count).map(|_| json!("s")).collect();
        relayed(OpenAi, &[chunk(json!({ "x": items }))])
    };
    assert_eq!(many(super::MOST_FIELDS + 1).unwrap_err(), super::TOO_MANY);
    assert!(many(super::MOST_FIELDS).is_ok(), "the control");
}

proptest! {
    /// Whatever comes between: no field that a client joins has a credential, and no event is lost or comes twice.
    #[test]
    fn no_field_has_one(steps in prop::collection::vec((0usize..3, 0u64..2, prop::sample::select(vec!["", "s", "sk-secret", "-0123456789", "x"])), 0..12)) {
        let events: Vec<Value> = steps
            .iter()
            .map(|(field, index, piece)| {
                let delta = match field {
                    0 => json!({ "content": piece }),
                    1 => json!({ "reasoning": piece }),
                    _ => json!({ "x": [{ "index": 7, "text": piece }] }),
                };
                json!({ "choices": [{ "index": index, "delta": delta }] })
            })
            .collect();
        let Ok(out) = relayed(OpenAi, &events) else { return Ok(()) };
        let out = out.concat();
        prop_assert_eq!(out.matches("data: ").count(), events.len());
        for pointer in ["/choices/0/delta/content", "/choices/0/delta/reasoning", "/choices/0/delta/x/0/text"] {
            for index in 0..2 {
                let of: String = out.lines().filter(|line| line.contains(&format!("\"index\":{index}}}"))).map(|line| format!("{line}\n")).collect();
                let text = joined(&of, pointer);
                prop_assert!(!text.contains(KEY), "{}", out);
            }
        }
        if !steps.iter().any(|(_, _, piece)| piece.contains("0123")) {
            prop_assert_eq!(out, sent(OpenAi, &events));
        }
    }
}
