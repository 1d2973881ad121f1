//! What goes out of an answer, and what of it is on record.

use super::*;
use proptest::prelude::*;
use ringfence_credentials::Secret;
use serde_json::json;

const KEY: &str = "sk-secret-0123456789";

fn redactor() -> Redactor {
    Redactor::new([&Secret::from(KEY.to_owned())])
}

fn chunk(json: &str) -> String {
    format!("data: {json}\n\n")
}

/// An event of either's API.
fn event(data: &Value) -> String {
    let name = data["type"].as_str().map(|name| format!("event: {name}\n")).unwrap_or_default();
    name + &chunk(&data.to_string())
}

fn openai() -> String {
    [
        chunk(r#"{"choices":[{"index":0,"delta":{"content":"h\u00e9"}}]}"#),
        ": a comment\n\n".to_owned(),
        chunk(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#),
        chunk(r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat()
}

fn relay(kind: Wire) -> Relay {
    Relay::new(kind, false, false)
}

fn whole(kind: Wire, body: &[u8]) -> Whole {
    relay(kind).whole(false, body, &redactor())
}

/// What goes out of a stream, cut there; or why it breaks off.
fn fed(mut relay: Relay, bytes: &[u8], cuts: &[usize]) -> Result<(String, Outcome), String> {
    let (mut out, mut from) = (Vec::new(), 0);
    for cut in cuts.iter().copied().filter(|c| *c <= bytes.len()).chain([bytes.len()]) {
        if cut >= from {
            out.extend(relay.feed(&bytes[from..cut], &redactor())?);
            from = cut;
        }
    }
    let (rest, outcome) = relay.finish(true, &redactor());
    out.extend(rest);
    match outcome.refused.clone() {
        Some(why) => Err(why),
        None => Ok((String::from_utf8(out).unwrap(), outcome)),
    }
}

fn relayed(text: &str, hides: bool, cuts: &[usize]) -> (String, Outcome) {
    fed(Relay::new(Wire::ChatCompletions, hides, false), text.as_bytes(), cuts).unwrap()
}

fn names(outcome: &Outcome) -> Vec<&str> {
    outcome.tool_calls.iter().map(|call| call.name.as_str()).collect()
}

const CALL: &str = r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":""}}]}}],"x":X}"#;

/// A chunk that calls `t`.
fn call() -> String {
    CALL.replace('X', "1")
}

#[test]
fn usage_that_only_we_asked_for_is_read_and_hidden() {
    let (out, outcome) = relayed(&openai(), true, &[]);
    let as_it_goes = openai().replace(": a comment", ":");
    let hidden = chunk(r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#);
    assert_eq!(out, as_it_goes.replace(&hidden, ""));
    assert_eq!(outcome.usage.unwrap().input_tokens, 9);
    assert_eq!((outcome.stop_reason.as_deref(), outcome.error), (Some("end_turn"), None));
    assert_eq!(relayed(&openai(), false, &[]).0, as_it_goes);
}

#[test]
fn a_credential_is_taken_out_however_it_is_escaped() {
    for hidden in [KEY.to_owned(), KEY.replace("sk-", r"\u0073k-")] {
        let text = chunk(&format!(r#"{{"choices":[{{"delta":{{"content":"a {hidden} b"}}}}]}}"#));
        let (out, _) = relayed(&text, false, &[20]);
        assert!(out.contains("[redacted]") && !out.contains("0123456789") && out.ends_with("\n\n"), "{out}");
    }
    // In arguments, which are JSON in a string, and in a key.
    let arguments = format!(r#"{{"\u006{{}}":"{}"}}"#, KEY.replace("sk-", r"\u0073k-"));
    let call = json!({ "id": "a", "function": { "name": "t", "arguments": arguments } });
    let message = json!({ "choices": [{ "message": { "tool_calls": [call], KEY: 1 } }] }).to_string();
    let message = message.replace(KEY, &KEY.replace("sk-", r"\u0073k-"));
    let body = String::from_utf8(whole(Wire::ChatCompletions, message.as_bytes()).body).unwrap();
    let read: Value = serde_json::from_str(&body).unwrap();
    let message = &read["choices"][0]["message"];
    assert_eq!(message["tool_calls"][0]["function"]["arguments"], r#"{"\u006{}":"[redacted]"}"#);
    assert_eq!(message["[redacted]"], 1, "{body}");
    let body = format!(r#"{{"usage":{{"prompt_tokens":3}},"choices":[],"x":"{KEY}"}}"#);
    let Whole { body, outcome, .. } = whole(Wire::ChatCompletions, body.as_bytes());
    assert!(!String::from_utf8(body).unwrap().contains(KEY));
    assert_eq!(outcome.usage.unwrap().input_tokens, 3);
}

#[test]
fn an_answer_is_read_by_what_it_is_or_refused() {
    let openai = Wire::ChatCompletions;
    let message = call().replace("delta", "message");
    // A whole answer, as people lay out JSON; a stream, whatever it is said to be.
    let json = message.replace(",\"function", ",\n\n\"function");
    let stream = chunk(&call()) + "data: [DONE]\n\n";
    for (body, form, out) in
        [(&json, JSON, message.replace(",\"function", ",  \"function")), (&stream, STREAM, stream.clone())]
    {
        let whole = whole(openai, body.as_bytes());
        assert_eq!((whole.outcome.refused.as_deref(), whole.form), (None, form), "{body}");
        assert_eq!((names(&whole.outcome), String::from_utf8(whole.body).unwrap()), (vec!["t"], out));
    }
    assert!(
        fed(relay(openai), message.as_bytes(), &[7, 60]).is_err(),
        "no events where events are said to be"
    );
    let utf16 = |text: &str| text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>();
    let marked = |text: &str| [b"\xef\xbb\xbf", text.as_bytes()].concat();
    let odd = [
        marked(&message),
        utf16(&message),
        utf16(&format!("\u{feff}{message}")),
        [b"\xff", message.as_bytes()].concat(),
        [b"data: \xff\n\n", stream.as_bytes()].concat(),
        [b"data: 1\n", stream.as_bytes()].concat(),
        format!("{message}{message}").into_bytes(),
        format!("x\n{stream}").into_bytes(),
        format!("[{message}]").into_bytes(),
        message.replacen("choices", "Choices", 1).into_bytes(),
    ];
    for body in odd {
        for is_error in [false, true] {
            let whole = relay(openai).whole(is_error, &body, &redactor());
            // An error's list is JSON that no client looks for calls in.
            let is_fine = is_error && body.starts_with(b"[");
            assert_eq!(whole.outcome.refused.is_none(), is_fine, "{}", String::from_utf8_lossy(&body));
        }
        assert!(fed(relay(openai), &body, &[]).is_err(), "{}", String::from_utf8_lossy(&body));
    }
    // The page of a proxy is no answer, but may be an error.
    for page in ["<html>\n</html>", "too much", "caf\u{e9}"] {
        assert!(whole(openai, page.as_bytes()).outcome.refused.is_some(), "{page}");
        let whole = relay(openai).whole(true, page.as_bytes(), &redactor());
        assert_eq!((whole.outcome.refused, whole.form, whole.body), (None, TEXT, page.as_bytes().to_vec()));
    }
    assert!(whole(openai, b" \n").body.is_empty());
}

#[test]
fn what_goes_out_is_what_was_read() {
    let as_it_goes = chunk(&call());
    // A byte order mark or another field in any line but the first; some clients forgive them.
    for line in ["\u{feff}data: 1", "\u{feff}: x", " data: 1", "Data: 1", "x", "{}", "data : 1"] {
        for text in
            [format!(": x\n{line}\n\n"), format!("{as_it_goes}{line}"), format!("data: {{}}\n{line}\n\n")]
        {
            let whole = whole(Wire::ChatCompletions, text.as_bytes());
            assert!(whole.outcome.refused.is_some() || whole.form == JSON, "{text}");
            assert!(fed(relay(Wire::ChatCompletions), text.as_bytes(), &[]).is_err(), "{text}");
        }
    }
    let cases = [
        (format!("\u{feff}{as_it_goes}"), as_it_goes.clone()),
        (format!("id: 7\nretry: 1\ndata:{}\n\n", call()), as_it_goes.clone()),
        // Without its last empty line.
        (as_it_goes.trim_end().to_owned(), as_it_goes.clone()),
        ("event: x\ndata: {\"a\":\ndata: 1}\n\n".into(), "event: x\ndata: {\"a\": 1}\n\n".into()),
        ("event: x\n\ndata\n\n:p\n".into(), ":\n\n:\n\n".into()),
        ("data:  [DONE] \n\ndata: 5\n\n".into(), "data: [DONE]\n\n".into()),
        // What ends a line for some clients, in a text.
        (
            "data: {\"a\":\"\u{2028}\u{2029}\u{85}\"}\n\n".into(),
            "data: {\"a\":\"\\u2028\\u2029\\u0085\"}\n\n".into(),
        ),
    ];
    for (text, out) in cases {
        for end in ["\n", "\r\n", "\r"] {
            let text = text.replace('\n', end);
            assert_eq!(relayed(&text, false, &[1, 9]).0, out, "{text:?}");
        }
    }
    for data in ["5", "[1]", "x", "\u{feff}{}", "[DONE] x", "null"] {
        assert!(fed(relay(Wire::ChatCompletions), chunk(data).as_bytes(), &[]).is_err(), "{data}");
    }
    assert!(fed(relay(Wire::ChatCompletions), "event: \u{2028}\ndata: {}\n\n".as_bytes(), &[]).is_err());
}

#[test]
fn what_another_parser_would_find_a_call_in_is_not_relayed() {
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    for odd in [r#""\ud800""#, "1e999", "NaN", deep.as_str(), r#"1,"x":2"#, r#"1,"choices":[]"#] {
        let text = CALL.replace('X', odd);
        for end in ["\n", "\r\n", "\r"] {
            // In a stream, also without an end; a whole answer, or a stream that is called one.
            for text in [chunk(&text), format!("data: {text}"), format!("data: {text}\n")] {
                let text = text.replace('\n', end);
                assert!(fed(relay(Wire::ChatCompletions), text.as_bytes(), &[]).is_err(), "{text:?}");
                let whole = whole(Wire::ChatCompletions, text.as_bytes());
                assert!(whole.outcome.refused.is_some(), "{text:?}");
            }
        }
        assert!(whole(Wire::ChatCompletions, text.as_bytes()).outcome.refused.is_some(), "{odd}, whole");
    }
    let text = [chunk(&call()).as_bytes(), b"data: \xff{}\r\r"].concat();
    assert!(fed(relay(Wire::ChatCompletions), &text, &[]).is_err(), "bytes that are no text");
    assert_eq!(names(&relayed(&chunk(&call()), false, &[]).1), ["t"], "the control");
}

#[test]
fn nothing_is_relayed_that_clients_find_different_calls_in() {
    let input =
        chunk(r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}}]}"#);
    let end = "data: [DONE]\n\n";
    let mut begun = relay(Wire::ChatCompletions);
    assert!(begun.feed(input.as_bytes(), &redactor()).is_ok(), "its name may come later");
    let error = begun.feed(end.as_bytes(), &redactor()).unwrap_err();
    assert!(error.contains("without a name"), "{error}");
    assert!(fed(relay(Wire::ChatCompletions), input.as_bytes(), &[]).is_err(), "at the end of the stream");
    assert!(whole(Wire::ChatCompletions, (input.clone() + end).as_bytes()).outcome.refused.is_some());
    let name = input.replace("\"arguments\":\"{}\"", "\"name\":\"t\"");
    assert_eq!(names(&relayed(&(name + &input + end), false, &[]).1), ["t"], "the control");
    let block =
        r#"{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"t"}}"#;
    for (name, goes) in [("content_block_start", true), ("ping", false)] {
        let event = format!("event: {name}\n{}", chunk(block));
        assert_eq!(fed(relay(Wire::Messages), event.as_bytes(), &[]).is_ok(), goes, "{name}");
    }
}

#[test]
fn a_call_is_told_once_when_it_is_complete() {
    let mut relay = relay(Wire::ChatCompletions);
    let piece = |input: &str| {
        chunk(&format!(
            r#"{{"choices":[{{"delta":{{"tool_calls":[{{"index":0,"function":{{"arguments":"{input}"}}}}]}}}}]}}"#
        ))
    };
    let mut told = |bytes: String| {
        relay.feed(bytes.as_bytes(), &redactor()).unwrap();
        relay.completed().into_iter().map(|(at, call)| (at, call.name)).collect::<Vec<_>>()
    };
    assert!(told(chunk(&call())).is_empty() && told(piece("{")).is_empty());
    assert_eq!(told(piece("}")), [(0, "t".to_owned())]);
    assert!(told(piece(" ")).is_empty() && told("data: [DONE]\n\n".to_owned()).is_empty());
}

#[test]
fn what_is_no_message_is_refused() {
    for odd in [r#""x""#, "1", "true", "[]", r#"[{"type":"text"}]"#] {
        let body = format!(r#"{{"choices":[{{"message":{odd}}}]}}"#);
        let whole = whole(Wire::ChatCompletions, body.as_bytes());
        assert!(whole.outcome.refused.is_some() && whole.outcome.content.is_empty(), "{odd}");
    }
    let said = whole(Wire::ChatCompletions, br#"{"choices":[{"message":{"content":"x"}}]}"#).outcome;
    assert_eq!((said.refused, said.content.len()), (None, 1), "the control");
}

#[test]
fn what_would_take_too_much_memory_is_refused_before_it_is_read() {
    // With an escape, in which a credential could hide.
    let of = |many: usize| format!(r#"{{"x":[{}0],"y":"\u00e9"}}"#, "0,".repeat(many));
    assert!(whole(Wire::ChatCompletions, of(1 << 21).as_bytes()).outcome.refused.is_some());
    assert!(fed(relay(Wire::ChatCompletions), chunk(&of(1 << 21)).as_bytes(), &[]).is_err());
    assert!(whole(Wire::ChatCompletions, of(1 << 10).as_bytes()).outcome.refused.is_none(), "the control");
}

#[test]
fn calls_elsewhere_are_not_relayed() {
    let hidden = format!(r#"{{"chunk":{}}}"#, call());
    assert!(fed(relay(Wire::ChatCompletions), chunk(&hidden).as_bytes(), &[]).is_err());
    assert!(whole(Wire::ChatCompletions, hidden.as_bytes()).outcome.refused.is_some());
    let echo = format!(r#"{{"detail":[{{"input":{}}}]}}"#, call());
    let error = relay(Wire::ChatCompletions).whole(true, echo.as_bytes(), &redactor());
    assert_eq!((error.outcome.refused, error.body), (None, echo.into_bytes()));
}

#[test]
fn nothing_goes_out_behind_the_end() {
    let stop = chunk(r#"{"type":"message_stop"}"#);
    for (kind, end) in [(Wire::ChatCompletions, "data: [DONE]\n\n"), (Wire::Messages, stop.as_str())] {
        let end = if kind == Wire::Messages { format!("event: message_stop\n{end}") } else { end.to_owned() };
        let mut relay = relay(kind);
        assert!(relay.feed(b": ping\n\n", &redactor()).is_ok() && !relay.is_over());
        let behind = format!("{end}: ping\n\nno line of a stream\n\n");
        assert_eq!(relay.feed(behind.as_bytes(), &redactor()).unwrap(), end.as_bytes());
        assert!(relay.is_over());
        assert!(relay.feed(b"data: \xff\n\n", &redactor()).unwrap().is_empty());
        let (rest, outcome) = relay.finish(true, &redactor());
        assert!(rest.is_empty() && outcome.refused.is_none());
    }
}

#[test]
fn a_broken_stream_is_on_record_as_broken() {
    let half = chunk(r#"{"choices":[{"index":0,"delta":{"content":"half"}}]}"#);
    let cut = half.clone() + "data: {\"cho";
    assert!(fed(relay(Wire::ChatCompletions), cut.as_bytes(), &[]).is_err(), "in an event");
    let (out, outcome) = relayed(&half, true, &[]);
    assert_eq!(out, half);
    assert!(outcome.error.is_some());
}

#[test]
fn what_the_model_said_is_counted_whatever_it_is_of() {
    let said = |kind: Wire, events: &[Value]| {
        let mut relay = relay(kind);
        for data in events {
            relay.feed(event(data).as_bytes(), &redactor()).unwrap();
        }
        relay.finish(false, &redactor()).1.text_bytes
    };
    let start = |block: Value| json!({ "type": "content_block_start", "index": 0, "content_block": block });
    let delta = |delta: Value| json!({ "type": "content_block_delta", "index": 0, "delta": delta });
    for (block, piece) in [
        (
            json!({ "type": "thinking", "thinking": "" }),
            json!({ "type": "thinking_delta", "thinking": "x".repeat(40) }),
        ),
        (
            json!({ "type": "server_tool_use", "id": "s", "name": "", "input": {} }),
            json!({ "type": "input_json_delta", "partial_json": "x".repeat(40) }),
        ),
        (json!({ "type": "text", "text": "" }), json!({ "type": "text_delta", "text": "x".repeat(40) })),
        (json!({ "type": "new", "data": { "deep": ["x".repeat(40)] } }), json!({ "type": "new_delta" })),
    ] {
        // Behind what nobody understands, too.
        for before in [vec![], vec![json!({ "type": 7 })]] {
            let events = [before, vec![start(block.clone()), delta(piece.clone())]].concat();
            assert_eq!(said(Wire::Messages, &events), 40, "{events:?}");
        }
    }
    let end = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } });
    assert_eq!(said(Wire::Messages, &[end]), 0, "the control: not the model's words");
    let of = |index: u64, delta: Value| json!({ "choices": [{ "index": index, "delta": delta }] });
    let call = |call: Value| of(0, json!({ "tool_calls": [call] }));
    let words = "x".repeat(40);
    for event in [
        of(0, json!({ "content": words })),
        of(0, json!({ "role": "assistant", "reasoning_content": words })),
        of(0, json!({ "reasoning_details": [{ "type": "t", "text": words }] })),
        of(0, json!({ "function_call": { "arguments": words } })),
        call(json!({ "index": 0, "type": "custom", "id": "a", "custom": { "name": "", "input": words } })),
        call(json!({ "index": 0, "function": { "name": "", "arguments": words } })),
        json!({ "choices": [{ "index": 0, "delta": { "content": "x".repeat(10) } },
            { "index": 1, "delta": { "content": "x".repeat(30) } }] }),
    ] {
        for before in [vec![], vec![of(0, json!({ "content": 7 }))]] {
            let events = [before, vec![event.clone()]].concat();
            assert_eq!(said(Wire::ChatCompletions, &events), 40, "{events:?}");
        }
    }
    let piece =
        |what: &str| json!({ "type": format!("response.{what}.delta"), "output_index": 0, "delta": words });
    let item = |says: &str, item: Value| json!({ "type": format!("response.output_item.{says}"), "output_index": 0, "item": item });
    let message = json!({ "type": "message", "content": [{ "type": "output_text", "text": words }] });
    for events in [
        vec![piece("output_text")],
        vec![piece("refusal")],
        vec![piece("reasoning_summary_text")],
        vec![piece("new")],
        vec![json!({ "type": "x", "delta": { "deep": [words] } })],
        // What is said again as a whole counts once, and what is said as a whole alone counts, too.
        vec![piece("output_text"), item("done", message.clone())],
        vec![item("done", message)],
        vec![item("done", json!({ "type": "reasoning", "encrypted_content": words }))],
        vec![item("done", json!({ "type": "web_search_call", "action": { "query": words } }))],
    ] {
        assert_eq!(said(Wire::Responses, &events), 40, "{events:?}");
    }
    assert_eq!(
        said(
            Wire::Responses,
            &[json!({ "type": "response.created", "response": { "instructions": words } })]
        ),
        0
    );
}

#[test]
fn what_is_held_of_a_stream_is_told() {
    let fed = |kind: Wire, events: &[String]| {
        let mut relay = relay(kind);
        let none = relay.held();
        for event in events {
            relay.feed(event.as_bytes(), &redactor()).unwrap();
        }
        (none, relay.held())
    };
    let long = "x".repeat(1 << 20);
    let start =
        |block: Value| event(&json!({ "type": "content_block_start", "index": 0, "content_block": block }));
    let piece = |delta: Value| event(&json!({ "type": "content_block_delta", "index": 0, "delta": delta }));
    let openai = |delta: Value| event(&json!({ "choices": [{ "index": 0, "delta": delta }] }));
    let call = |function: Value| openai(json!({ "tool_calls": [{ "index": 0, "function": function }] }));
    let text = json!({ "type": "text", "text": "" });
    let tool = json!({ "type": "tool_use", "id": "a", "name": "t", "input": {} });
    let cases = [
        // A line, or data, that does not end.
        (Wire::ChatCompletions, vec![long.clone()]),
        (Wire::ChatCompletions, vec![format!("data: {long}\n")]),
        (Wire::ChatCompletions, vec![openai(json!({ "content": long }))]),
        (
            Wire::ChatCompletions,
            vec![call(json!({ "name": "t" })), call(json!({ "arguments": format!("{{\"{long}") }))],
        ),
        (Wire::Messages, vec![start(json!({ "type": "text", "text": long }))]),
        (Wire::Messages, vec![start(text), piece(json!({ "type": "text_delta", "text": long }))]),
        (
            Wire::Messages,
            vec![
                start(tool),
                piece(json!({ "type": "input_json_delta", "partial_json": format!("{{\"{long}") })),
            ],
        ),
        // Small as text, and large as values.
        (Wire::Messages, vec![start(json!({ "type": "x", "y": vec![0; 1 << 16] }))]),
        // It waits: it could be the beginning of a credential.
        (
            Wire::ChatCompletions,
            vec![openai(json!({ "content": "x" })), openai(json!({ "other": format!("{long}sk-") }))],
        ),
    ];
    for (kind, events) in cases {
        let (none, held) = fed(kind, &events);
        assert!(none < 1 << 10 && held >= 1 << 20, "{none} {held}: {}", &events.concat()[..80]);
    }
    let short: Vec<String> = (0..1000).map(|_| openai(json!({ "content": "x" }))).collect();
    assert!(
        fed(Wire::ChatCompletions, &short).1 < 64 << 10,
        "the control: an honest answer's events are not kept"
    );
    // A long line's room is not kept behind it.
    let odd = format!("id: {long}\n\n");
    assert!(fed(Wire::ChatCompletions, &[odd]).1 < 128 << 10);
}

#[test]
fn an_event_without_end_is_refused() {
    for piece in [vec![b'x'; 1 << 20], b"data: xxxxxxxxxxxxxxxxxxxxxxxxxx\n".repeat(1 << 15)] {
        let mut relay = relay(Wire::ChatCompletions);
        assert!((0..20).any(|_| relay.feed(&piece, &redactor()).is_err()));
    }
}

proptest! {
    #[test]
    fn cuts_change_nothing(mut cuts in proptest::collection::vec(0usize..300, 0..12), end in 0usize..3) {
        cuts.sort_unstable();
        let text = openai().replace('\n', ["\n", "\r\n", "\r"][end]);
        prop_assert_eq!(relayed(&text, true, &cuts).0, relayed(&openai(), true, &[]).0);
    }

    #[test]
    fn a_client_that_forgives_finds_the_calls_on_record(
        lines in prop::collection::vec((0usize..3, 0usize..7, 0usize..3), 0..8),
    ) {
        let heads: [&[u8]; 3] = [b"", b"\xef\xbb\xbf", b" "];
        let call = format!("data: {}", call());
        let bodies = [call.as_str(), "", ": x", "event: x", "data: {}", "data: [1,", "data: [DONE]"];
        let mut bytes = Vec::new();
        for (head, body, end) in lines {
            bytes.extend_from_slice(heads[head]);
            bytes.extend_from_slice(bodies[body].as_bytes());
            bytes.extend_from_slice([&b"\n\n"[..], b"\r\r", b"\n"][end]);
        }
        let Ok((out, outcome)) = fed(relay(Wire::ChatCompletions), &bytes, &[]) else { return Ok(()) };
        // It reads each line by itself, waits for no end, and goes on behind it.
        let lines = out.split(|c: char| c.is_control() || c == '\u{2028}').map(|line| line.trim_start_matches('\u{feff}').trim());
        let data = lines.filter_map(|line| line.strip_prefix("data:"));
        let events = data.filter_map(|data| serde_json::from_str::<Value>(data.trim()).ok());
        let found = events.filter(|event| event.pointer("/choices/0/delta/tool_calls/0/function/name").is_some()).count();
        // The one call's name may be said again.
        prop_assert_eq!(found.min(1), outcome.tool_calls.len());
    }

    #[test]
    fn no_bytes_panic(bytes: Vec<u8>) {
        for &kind in Wire::ALL {
            let mut feeds = relay(kind);
            let _ = feeds.feed(&bytes, &redactor());
            feeds.finish(true, &redactor());
            whole(kind, &bytes);
        }
    }

    #[test]
    fn no_json_panics(answer in answer()) {
        for &kind in Wire::ALL {
            for is_error in [false, true] {
                relay(kind).whole(is_error, answer.to_string().as_bytes(), &redactor());
            }
            let event = format!("event: {}\n{}", answer["type"].as_str().unwrap_or("x"), chunk(&answer.to_string()));
            let _ = fed(relay(kind), event.as_bytes(), &[]);
        }
    }
}

/// JSON with the keys of an answer, and anything there.
fn answer() -> impl Strategy<Value = Value> {
    let keys = [
        "choices",
        "delta",
        "message",
        "content",
        "content_block",
        "tool_calls",
        "function",
        "function_call",
    ];
    let more =
        ["custom", "arguments", "input", "name", "id", "index", "type", "partial_json", "usage", "error"];
    let newer = ["output", "item", "response", "output_index", "call_id", "part", "item_id", "summary"];
    let types = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "tool_use",
        "text",
        "x",
        "",
        "response.output_item.added",
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.content_part.added",
        "response.completed",
        "function_call",
        "custom_tool_call",
        "local_shell_call",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u8..2).prop_map(Value::from),
        prop::sample::select(types.to_vec()).prop_map(Value::from),
    ];
    let value = leaf.prop_recursive(6, 48, 4, move |inner| {
        let key = prop::sample::select([&keys[..], &more[..], &newer[..]].concat());
        let pairs = prop::collection::vec((key, inner.clone()), 0..4);
        let object =
            pairs.prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
        prop_oneof![2 => object, 1 => prop::collection::vec(inner, 0..3).prop_map(Value::Array)]
    });
    prop_oneof![
        2 => value.clone(),
        1 => value.clone().prop_map(|value| serde_json::json!({ "choices": [{ "message": value }] })),
        1 => value.clone().prop_map(|value| serde_json::json!({ "choices": [{ "delta": value }] })),
        1 => value.clone().prop_map(|value| serde_json::json!({ "content": [value] })),
        1 => value.clone().prop_map(|value| serde_json::json!({ "output": [value] })),
        1 => (prop::sample::select(types.to_vec()), value).prop_map(
            |(says, value)| serde_json::json!({ "type": says, "output_index": 0, "item": value, "delta": "x" })
        ),
    ]
}
