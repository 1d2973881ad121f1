//! The tool calls that are found in an answer are those that its client runs.

use super::*;
use Wire::{ChatCompletions as OpenAi, Messages as Anthropic};
use proptest::prelude::*;
use serde_json::json;

mod complete;
mod rewrite;

fn calls(kind: Wire, events: &[Value]) -> Vec<(String, String, String)> {
    let mut found = ToolCalls::default();
    events.iter().for_each(|event| found.read(kind, event).unwrap());
    let named = found.calls.iter().filter(|call| call.number.is_some()).count();
    assert_eq!((found.fresh(), found.fresh()), (named, 0));
    found.finish().into_iter().map(|call| (call.id, call.name, call.input.get().to_owned())).collect()
}

fn call(id: &str, name: &str, input: &str) -> (String, String, String) {
    (id.into(), name.into(), input.into())
}

#[test]
fn calls_are_found_where_a_lenient_client_finds_them() {
    let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "t", "input": {} });
    // One id twice, and blocks that came with the beginning.
    let events = [
        json!({ "type": "message_start", "message": { "content": [block("early")] } }),
        start(json!(1), block("a")),
        piece(json!(1), "{\"x\":"),
        piece(json!(1), "1}"),
        start(json!(2), block("a")),
        piece(json!(2), "{}"),
    ];
    let expected = [call("early", "t", "{}"), call("a", "t", "{\"x\":1}"), call("a", "t", "{}")];
    assert_eq!(calls(Anthropic, &events), expected);
    assert_eq!(calls(Anthropic, &[json!({ "content": [block(""), 3, block("b")] })]).len(), 2);

    let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
    let events = [
        delta(json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": "" } })),
        delta(json!({ "index": 0, "function": { "arguments": "{\"x\":1}" } })),
        delta(json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": " " } })),
        // Another index, the same id.
        delta(json!({ "index": 1, "id": "a", "function": { "name": "u" } })),
        delta(json!({ "index": 2, "id": "b", "function": { "name": "v", "arguments": {"y": 2} } })),
        json!({ "choices": [{ "index": 0 },
            { "index": 1, "delta": { "tool_calls": [{ "index": 0, "function": { "name": "w" } }] } }] }),
        json!({ "choices": [{ "index": 0, "delta": { "function_call": { "name": "old", "arguments": "no json" } } }] }),
    ];
    let expected = [
        call("a", "t", "{\"x\":1}"),
        call("a", "u", "{}"),
        call("b", "v", "{\"y\":2}"),
        call("", "w", "{}"),
        call("", "old", "\"no json\""),
    ];
    assert_eq!(calls(OpenAi, &events), expected);
    let message = json!({ "tool_calls": [{ "id": "a", "function": { "name": "t", "arguments": "{}" } },
        { "id": "a", "function": { "name": "t", "arguments": "{}" } }] });
    assert_eq!(calls(OpenAi, &[json!({ "choices": [{ "message": message }] })]).len(), 2);
    assert!(calls(OpenAi, &[json!({ "choices": [{ "delta": { "content": "t" } }] })]).is_empty());
}

#[test]
fn late_names_and_ids_and_custom_calls_are_the_calls_that_a_client_makes_of_them() {
    let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
    let events = [
        // The id alone, arguments before the name, and an empty one.
        delta(json!({ "index": 0, "id": "a", "type": "function", "function": { "arguments": "{" } })),
        delta(json!({ "index": 0, "function": { "name": "bash", "arguments": "}" } })),
        delta(json!({ "index": 0, "function": { "name": "" } })),
        delta(json!({ "index": 0, "id": null, "function": { "name": null, "arguments": null } })),
        // A name with each piece.
        delta(json!({ "index": 1, "id": "b", "function": { "name": "t", "arguments": "[1" } })),
        delta(json!({ "index": 1, "function": { "name": "t", "arguments": "]" } })),
        // A custom tool's input is a text, in pieces.
        delta(
            json!({ "index": 2, "id": "c", "type": "custom", "custom": { "name": "patch", "input": "rm " } }),
        ),
        delta(json!({ "index": 2, "custom": { "input": "-rf" } })),
        // Without a name it is none.
        delta(json!({ "index": 3, "id": "d", "function": {} })),
        json!({ "choices": [{ "index": 0, "delta": { "function_call": { "name": "old" } } }] }),
        json!({ "choices": [{ "index": 0, "delta": { "function_call": { "arguments": "7" } } }] }),
    ];
    let expected = [
        call("a", "bash", "{}"),
        call("b", "t", "[1]"),
        call("c", "patch", "\"rm -rf\""),
        call("", "old", "7"),
    ];
    assert_eq!(calls(OpenAi, &events), expected);
    // Each of a whole message's is one, whatever index it has.
    let of = |name: &str| json!({ "index": 0, "id": "a", "function": { "name": name, "arguments": "{}" } });
    let custom = json!({ "index": 0, "id": "a", "type": "custom", "custom": { "name": "p", "input": "x" } });
    let message = json!({ "tool_calls": [of("t"), of("t"), of("u"), custom] });
    let names: Vec<_> = calls(OpenAi, &[json!({ "choices": [{ "message": message }] })])
        .into_iter()
        .map(|(_, name, _)| name)
        .collect();
    assert_eq!(names, ["t", "t", "u", "p"]);
}

/// What a client makes of a stream that joins what it is given, as the provider's own library does: texts are put
/// together, what has an index is one thing.
fn joined(into: &mut Value, delta: &Value) {
    match (into, delta) {
        (Value::String(whole), Value::String(piece)) => whole.push_str(piece),
        (Value::Object(whole), Value::Object(pieces)) => {
            for (key, piece) in pieces {
                match whole.get_mut(key) {
                    Some(known) if !known.is_null() && key != "index" && key != "type" => {
                        // Which of two names counts is refused or one and the same.
                        if key != "name" {
                            joined(known, piece)
                        }
                    }
                    _ => drop(whole.insert(key.clone(), piece.clone())),
                }
            }
        }
        (Value::Array(whole), Value::Array(pieces)) => {
            for piece in pieces {
                match whole.iter_mut().find(|known| known["index"] == piece["index"]) {
                    Some(known) => joined(known, piece),
                    None => whole.push(piece.clone()),
                }
            }
        }
        _ => {}
    }
}

/// A text in pieces.
fn cut(text: &str, at: &[prop::sample::Index]) -> Vec<String> {
    let mut ends: Vec<usize> = at.iter().map(|at| at.index(text.len() + 1)).collect();
    ends.extend([0, text.len()]);
    ends.sort_unstable();
    ends.windows(2).map(|ends| text[ends[0]..ends[1]].to_owned()).collect()
}

/// The pieces of one call, in their order: it has its id first or with its first piece, and pieces of its input may come with
/// or before its name. Some servers say the name again.
fn stream(index: usize) -> impl Strategy<Value = Vec<Value>> {
    let cuts = prop::collection::vec(any::<prop::sample::Index>(), 0..3);
    (any::<[bool; 4]>(), "[a-z]{3,9}", 0usize..3, "[ -~]{0,12}", cuts).prop_map(
        move |([custom, apart, alone, again], name, name_at, input, cuts)| {
            let (form, key) = if custom { ("custom", "input") } else { ("function", "arguments") };
            let input = if custom { input } else { json!({ "text": input, "list": [{}] }).to_string() };
            let id = format!("call-{index}");
            let mut events = Vec::new();
            if apart {
                events.push(json!({ "index": index, "id": id, "type": form }));
            }
            let inputs = cut(&input, &cuts);
            for at in 0..(name_at + 1).max(inputs.len()) {
                let mut event = json!({ "index": index, form: {} });
                if at == 0 && !apart {
                    (event["id"], event["type"]) = (id.clone().into(), form.into());
                }
                if at == name_at || (at > name_at && again) {
                    event[form]["name"] = name.clone().into();
                }
                match inputs.get(at) {
                    Some(input) if alone => {
                        events.push(event);
                        event = json!({ "index": index, form: { key: input } });
                    }
                    Some(input) => event[form][key] = input.clone().into(),
                    None => {}
                }
                events.push(event);
            }
            events
        },
    )
}

proptest! {
    #[test]
    fn calls_on_record_are_those_that_a_client_makes_of_a_stream(
        streams in (1usize..5).prop_flat_map(|many| (0..many).map(stream).collect::<Vec<_>>()),
        echoes in prop::collection::vec(any::<bool>(), 64),
        together in any::<bool>(),
    ) {
        let all: Vec<Value> = streams.into_iter().flatten().collect();
        let (mut message, mut found) = (json!({ "tool_calls": [] }), ToolCalls::default());
        let (mut rest, mut echoes) = (&all[..], echoes.into_iter().cycle());
        while let [first, behind @ ..] = rest {
            let mut pieces = vec![first.clone()];
            let second = behind.first().filter(|second| together && second["index"] != first["index"]);
            pieces.extend(second.cloned());
            rest = &rest[pieces.len()..];
            // One that is over may be named as long as nothing is said of it.
            if echoes.next() == Some(true) && pieces.iter().all(|piece| piece["index"] != 0) {
                pieces.push(json!({ "index": 0 }));
            }
            let delta = json!({ "tool_calls": pieces });
            joined(&mut message, &delta);
            found.read(OpenAi, &json!({ "choices": [{ "index": 0, "delta": delta }] })).expect("few");
        }
        let mut seen: Vec<_> = message["tool_calls"].as_array().expect("calls").iter().map(|call| {
            let (form, key) = if call["type"] == "custom" { ("custom", "input") } else { ("function", "arguments") };
            let input = json(call[form][key].as_str().unwrap_or_default().to_owned());
            (call["id"].as_str().expect("an id").to_owned(), call[form]["name"].as_str().expect("a name").to_owned(), input.get().to_owned())
        }).collect();
        let mut recorded: Vec<_> = found
            .finish()
            .into_iter()
            .map(|call| (call.id, call.name, call.input.get().to_owned()))
            .collect();
        seen.sort();
        recorded.sort();
        prop_assert_eq!(recorded, seen);
    }
}

#[test]
fn an_answer_has_only_so_many() {
    let block = |at: usize| start(json!(at), json!({ "type": "tool_use", "id": "a", "name": "t" }));
    let mut found = ToolCalls::default();
    assert!((0..MAX_CALLS).all(|at| found.read(Anthropic, &block(at)).is_ok()));
    assert!(found.read(Anthropic, &block(MAX_CALLS)).is_err());
}

/// Whether an answer of these events is refused, at one of them or at its end.
fn refused(kind: Wire, events: &[Value]) -> bool {
    record(kind, events).is_none()
}

/// The calls on record of an answer that is relayed to its end.
fn record(kind: Wire, events: &[Value]) -> Option<Vec<(String, String, String)>> {
    let mut found = ToolCalls::default();
    for event in events {
        found.event(kind, text(event, "type"), event).ok()?;
    }
    found.complete().ok()?;
    let call = |call: ToolCall| (call.id, call.name, call.input.get().to_owned());
    Some(found.finish().into_iter().map(call).collect())
}

fn start(index: Value, block: Value) -> Value {
    json!({ "type": "content_block_start", "index": index, "content_block": block })
}

fn piece(index: Value, text: &str) -> Value {
    json!({ "type": "content_block_delta", "index": index, "delta": { "type": "input_json_delta", "partial_json": text } })
}

#[test]
fn blocks_that_are_not_where_they_say_are_refused() {
    let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "t", "input": {} });
    let begin = || json!({ "type": "message_start", "message": { "content": [] } });
    let stop = || json!({ "type": "content_block_stop", "index": 0 });
    let full = json!({ "type": "tool_use", "id": "a", "name": "t", "input": { "x": 1 } });
    let words = json!({ "type": "text", "text": "" });
    let server = json!({ "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} });
    let ping = json!({ "type": "ping", "index": 0, "content_block": block("a") });
    let number = json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta", "partial_json": 5 } });
    let good: [&[Value]; 4] = [
        &[begin(), start(json!(0), block("a")), piece(json!(0), "{}"), stop(), start(json!(1), block("b"))],
        &[start(json!(0), words.clone()), start(json!(1), block("a")), piece(json!(1), "{}")],
        &[start(json!(0), server), piece(json!(0), "{}"), stop()],
        &[start(json!(0), full.clone()), piece(json!(0), ""), stop()],
    ];
    for events in good {
        assert!(!refused(Anthropic, events), "{events:?}");
    }
    let mistyped = |kind: Value| json!({ "type": "content_block_delta", "index": 0, "delta": { "type": kind, "partial_json": "{}" } });
    let untold =
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "input_json_delta" } });
    let bad: [&[Value]; 22] = [
        &[start(json!(0), block("a")), mistyped(json!("text_delta"))],
        &[start(json!(0), block("a")), mistyped(json!(null))],
        &[start(json!(0), block("a")), untold],
        &[start(json!(0), words.clone()), piece(json!(0), "")],
        &[start(json!(0), block("a")), piece(json!(0), "{}"), piece(json!(0), "{}")],
        &[start(json!(0), json!({ "type": "tool_use", "id": "a", "name": ["t"], "input": {} }))],
        &[start(json!(0), json!({ "type": "tool_use", "id": "a", "name": "t", "Input": { "x": 1 } }))],
        &[start(json!(1), block("a"))],
        &[start(json!(0), block("a")), start(json!(0), block("b"))],
        &[start(json!(0), block("a")), start(json!(2), block("b"))],
        &[
            json!({ "type": "message_start", "message": { "content": [block("a")] } }),
            start(json!(0), block("b")),
        ],
        &[begin(), begin()],
        &[start(json!(0), block("a")), begin()],
        &[start(json!(0), block("a")), piece(json!(1), "{}")],
        &[start(json!(0), words), piece(json!(0), "{}")],
        &[start(json!(0), full), piece(json!(0), "{}")],
        &[start(json!(0), block("a")), stop(), piece(json!(0), "{}")],
        &[start(json!(0), block("a")), number],
        &[start(json!(0), block("a")), json!({ "type": "message_stop" }), piece(json!(0), "{}")],
        &[json!({ "type": "message", "content": [block("a")] })],
        &[ping],
        &[json!({ "index": 0, "content_block": block("a") })],
    ];
    for events in bad {
        assert!(refused(Anthropic, events), "{events:?}");
    }
    for odd in [json!(-1), json!(0.0), json!("0"), json!(null), json!([0]), json!(1e300), json!(u64::MAX)] {
        assert!(refused(Anthropic, &[start(odd.clone(), block("a"))]), "{odd}");
        assert!(refused(Anthropic, &[start(json!(0), block("a")), piece(odd.clone(), "{}")]), "{odd}");
    }
    // Some go by an event's name, and some by its type.
    for name in ["", "ping", "content_block_delta"] {
        let event = start(json!(0), block("a"));
        assert!(ToolCalls::default().event(Anthropic, name, &event).is_err(), "{name:?}");
    }
    assert!(
        ToolCalls::default().event(Anthropic, "content_block_delta", &json!({ "type": "ping" })).is_err()
    );
}

#[test]
fn choices_and_calls_that_share_a_place_are_refused() {
    let of = |choice: Value, call: Value| json!({ "choices": [{ "index": choice, "delta": { "tool_calls": [call] } }] });
    let delta = |call: Value| of(json!(0), call);
    let bare = |call: Value| json!({ "choices": [{ "delta": { "tool_calls": [call] } }] });
    let named = |index: Value, id: &str, name: &str| json!({ "index": index, "id": id, "function": { "name": name } });
    let first = || delta(named(json!(0), "a", "t"));
    let input = || json!({ "index": 0, "function": { "arguments": "{}" } });
    let part = || json!({ "index": 0, "function": { "arguments": "{" } });
    let unindexed = |name: &str| json!({ "id": name, "function": { "name": name, "arguments": "{" } });
    let more = || json!({ "function": { "arguments": "}" } });
    let of_both = |index: u64| json!({ "index": index, "id": "a", "function": { "name": "t" }, "custom": { "name": "p" } });
    let good: [&[Value]; 7] = [
        &[first(), delta(input()), delta(named(json!(1), "b", "u"))],
        &[first(), delta(named(json!(0), "a", "t")), delta(named(json!(0), "", "t"))],
        &[delta(input()), first()],
        &[bare(unindexed("a")), bare(more())],
        // One alone may have any index.
        &[bare(named(json!(5), "a", "t")), bare(json!({ "index": 5, "function": { "arguments": "{}" } }))],
        &[
            of(json!(null), named(json!(0), "a", "t")),
            bare(json!({ "index": 0, "function": { "arguments": "{" } })),
        ],
        &[bare(named(json!(null), "a", "t")), bare(more())],
    ];
    for events in good {
        assert!(!refused(OpenAi, events), "{events:?}");
    }
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] });
    let bad: [&[Value]; 24] = [
        &[first(), delta(named(json!(0), "b", "u"))],
        &[first(), delta(named(json!(0), "b", "t"))],
        &[first(), delta(named(json!(0), "a", "u"))],
        // A name in pieces is another name to those who do not join them.
        &[first(), delta(named(json!(0), "", "u"))],
        &[
            json!({ "choices": [{ "delta": { "function_call": { "name": "o" } } }] }),
            json!({ "choices": [{ "delta": { "function_call": { "name": "ld" } } }] }),
        ],
        &[delta(input())],
        &[first(), delta(json!({ "index": 1, "function": { "arguments": "{}" } })), end.clone()],
        &[bare(unindexed("a")), bare(unindexed("b"))],
        // Without an index, a name or an id begins a call.
        &[bare(unindexed("a")), bare(unindexed("a"))],
        &[bare(unindexed("a")), bare(json!({ "id": "a", "function": { "arguments": "}" } }))],
        &[first(), delta(more())],
        &[delta(more()), first()],
        &[first(), bare(named(json!(1), "b", "u"))],
        // Where there are several, an index is a place.
        &[delta(named(json!(1), "a", "t")), delta(named(json!(0), "b", "u"))],
        &[delta(named(json!(1), "a", "t")), delta(named(json!(2), "b", "u"))],
        &[first(), delta(json!({ "index": 2 }))],
        &[json!({ "choices": [{ "delta": { "tool_calls": [named(json!(0), "a", "t"), part()] } }] })],
        // An input that begins again.
        &[first(), delta(input()), delta(input())],
        &[delta(json!({ "index": 0, "function": { "name": "t", "arguments": {} } })), delta(part())],
        &[delta(json!({ "index": 0, "function": { "name": "t", "arguments": [1] } }))],
        &[delta(json!({ "index": 0, "id": 7, "function": { "name": "t" } }))],
        &[delta(json!({ "index": 0, "function": { "name": { "a": 1 } } }))],
        &[delta(of_both(0))],
        &[delta(json!({ "index": 0, "Function": { "name": "t" } }))],
    ];
    for events in bad {
        assert!(refused(OpenAi, events), "{events:?}");
    }
    for odd in [
        json!({ "choices": {} }),
        json!({ "Choices": [] }),
        json!({ "choices": [{ "delta": [] }] }),
        json!({ "choices": [{ "delta": { "tool_calls": { "0": {} } } }] }),
        json!({ "choices": [{ "delta": { "tool_calls": ["x"] } }] }),
    ] {
        assert!(refused(OpenAi, std::slice::from_ref(&odd)), "{odd}");
    }
    for odd in [json!(-1), json!(0.0), json!("0"), json!(1e300), json!(u64::MAX)] {
        assert!(refused(OpenAi, &[of(odd.clone(), named(json!(0), "a", "t"))]), "{odd}");
        assert!(refused(OpenAi, &[delta(named(odd.clone(), "a", "t"))]), "{odd}");
    }
    assert!(refused(OpenAi, &[of(json!(1), named(json!(0), "a", "t"))]));
    let message = |call: Value| json!({ "choices": [{ "message": { "tool_calls": [call] } }] });
    assert!(
        refused(OpenAi, &[message(of_both(0))]) && !refused(OpenAi, &[message(named(json!(7), "a", "t"))])
    );
    // Before a client sees that it is the end.
    let mut found = ToolCalls::default();
    found.read(OpenAi, &delta(input())).unwrap();
    assert!(found.read(OpenAi, &end).is_err() && found.over().is_err());
    let mut found = ToolCalls::default();
    found.read(OpenAi, &first()).unwrap();
    found.over().unwrap();
    assert!(found.read(OpenAi, &delta(input())).is_err(), "behind the end");
    assert!(ToolCalls::default().event(OpenAi, "thread.x", &first()).is_err());
    assert!(ToolCalls::default().event(OpenAi, "", &first()).is_ok(), "the control");
}

#[test]
fn calls_that_each_come_whole_are_calls_of_their_own_without_an_index() {
    let call = |index: Value, id: Value, name: &str, input: Value| json!({ "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": input } });
    let list = |calls: &[Value]| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": calls } }] });
    let (none, zero) = (|| json!(null), || json!(0));
    let a = |index: Value| call(index, json!("a"), "t", json!("{\"x\":1}"));
    let b = |index: Value| call(index, json!("b"), "t", json!("{}"));
    let nameless = |index: Value| call(index, json!(""), "t", json!("{\"y\":2}"));
    let object = call(zero(), json!("c"), "t", json!({ "y": 2 }));
    // As Gemini and some servers have it: together, or one by one.
    for index in [none(), zero()] {
        for events in [
            vec![list(&[a(index.clone()), b(index.clone())])],
            vec![list(&[a(index.clone())]), list(&[b(index.clone())])],
        ] {
            let inputs: Vec<_> = record(OpenAi, &events)
                .expect("it passes")
                .into_iter()
                .map(|(id, _, input)| (id, input))
                .collect();
            assert_eq!(
                inputs,
                [("a".to_owned(), "{\"x\":1}".to_owned()), ("b".to_owned(), "{}".to_owned())],
                "{events:?}"
            );
        }
    }
    assert_eq!(
        record(OpenAi, &[list(&[nameless(none()), nameless(none())])]).map(|calls| calls.len()),
        Some(2)
    );
    let more = |index: Value| json!({ "index": index, "function": { "arguments": "{}" } });
    let begun = |index: Value| call(index, json!("c"), "t", json!("{"));
    for index in [none(), zero()] {
        let of = |call: &dyn Fn(Value) -> Value| call(index.clone());
        // Who joins these would have another call.
        for second in [
            of(&begun),
            of(&more),
            of(&a),
            call(index.clone(), json!("c"), "t", json!("7")),
            call(index.clone(), json!("c"), "", json!("{}")),
        ] {
            assert!(refused(OpenAi, &[list(&[of(&a)]), list(std::slice::from_ref(&second))]), "{second}");
        }
        assert!(refused(OpenAi, &[list(&[of(&begun)]), list(&[of(&b)])]));
        assert!(refused(OpenAi, &[list(&[call(index.clone(), json!("c"), "t", none())]), list(&[of(&b)])]));
    }
    assert!(refused(OpenAi, &[list(&[a(zero())]), list(&[object])]), "some clients join objects, too");
    assert!(refused(OpenAi, &[list(&[nameless(zero())]), list(&[nameless(zero())])]), "one call said twice");
}

#[test]
fn a_chunk_has_any_of_several_answers_only_if_they_were_asked_for() {
    let of = |index: Value, id: &str| json!({ "choices": [{ "index": index, "delta": { "tool_calls": [{ "index": 0, "id": id, "function": { "name": "t", "arguments": "{}" } }] } }] });
    let events = [of(json!(1), "b"), of(json!(0), "a")];
    assert!(refused(OpenAi, &events));
    let mut found = ToolCalls::new(true);
    events.iter().for_each(|event| found.event(OpenAi, "", event).unwrap());
    assert!(found.event(OpenAi, "", &of(json!(1), "b")).is_err(), "one call said twice");
    let mut found = ToolCalls::new(true);
    let mut two = of(json!(1), "b");
    two["choices"].as_array_mut().unwrap().push(json!({ "index": 0 }));
    assert!(found.event(OpenAi, "", &two).is_err(), "of two in a chunk, the index is the place");
}

/// An index that a hostile provider may give.
fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        8 => (0u64..3).prop_map(Value::from),
        1 => prop::sample::select(vec![json!(-1), json!(-2), json!(0.0), json!(1.0), json!("0"), json!(null)]),
    ]
}

/// Something that may be run, as a client has it: id, name, input.
fn ran(id: &Value, name: &Value, input: String) -> (String, String, String) {
    let of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    (of(id), of(name), json(input).get().to_owned())
}

/// What a client makes of Anthropic's stream: it appends each block, and counts in that list, from its end where the index
/// is below 0; or it has the blocks by their indices (`by_index`).
fn pushed(events: &[Value], by_index: bool) -> Vec<(String, String, String)> {
    let mut blocks: Vec<(Value, Value, String)> = Vec::new();
    for event in events {
        let place = |blocks: &[(Value, Value, String)]| match event["index"].as_f64() {
            _ if by_index => blocks.iter().rposition(|(index, ..)| *index == event["index"]),
            Some(at) if at < 0.0 => blocks.len().checked_sub(-at as usize),
            Some(at) => Some(at as usize).filter(|at| *at < blocks.len()),
            None => None,
        };
        match text(event, "type") {
            "content_block_start" => {
                blocks.push((event["index"].clone(), event["content_block"].clone(), String::new()));
            }
            "content_block_delta" => {
                if let Some(at) = place(&blocks) {
                    blocks[at].2.push_str(event["delta"]["partial_json"].as_str().expect("a text"));
                }
            }
            _ => {}
        }
    }
    let calls = blocks.into_iter().filter(|(_, block, _)| block["type"] == "tool_use");
    calls.map(|(_, block, input)| ran(&block["id"], &block["name"], input)).collect()
}

proptest! {
    #[test]
    fn a_stream_of_hostile_blocks_is_refused_or_on_record_as_clients_run_it(
        steps in prop::collection::vec((0u8..6, prop::option::weighted(0.2, odd()), "|\\[[0-9]|,[0-9]|7"), 0..9),
    ) {
        let (mut events, mut count) = (Vec::new(), 0usize);
        for (what, index, input) in steps {
            let last = json!(count.saturating_sub(1));
            events.push(match what {
                0..=2 => {
                    let kind = if what == 2 { "text" } else { "tool_use" };
                    let block = json!({ "type": kind, "id": format!("c{count}"), "name": format!("n{count}") });
                    count += 1;
                    start(index.unwrap_or(json!(count - 1)), block)
                }
                3 | 4 => piece(index.unwrap_or(last), &input),
                _ => json!({ "type": "content_block_stop", "index": index.unwrap_or(last) }),
            });
        }
        if let Some(recorded) = record(Anthropic, &events) {
            prop_assert_eq!(&recorded, &pushed(&events, false));
            prop_assert_eq!(&recorded, &pushed(&events, true));
        }
    }

    #[test]
    fn a_stream_of_hostile_indices_is_refused_or_on_record_as_clients_run_it(
        steps in prop::collection::vec((any::<bool>(), prop::option::weighted(0.1, odd()), odd(), any::<bool>()), 0..7),
    ) {
        let (mut first, mut all, mut events) = (json!({ "tool_calls": [] }), json!({ "choices": [] }), Vec::new());
        for (at, (found, choice, index, has_index)) in steps.into_iter().enumerate() {
            let mut call = json!({ "function": { "arguments": if found { "[1" } else { ",2" } } });
            if has_index || at % 4 > 0 {
                call["index"] = index;
            }
            if found {
                call["id"] = format!("c{at}").into();
                call["function"]["name"] = format!("n{at}").into();
            }
            let delta = json!({ "tool_calls": [call] });
            // One goes by the first choice of each chunk, another by the choices' indices.
            joined(&mut first, &delta);
            let event = json!({ "choices": [{ "index": choice.unwrap_or(json!(0)), "delta": delta }] });
            joined(&mut all, &event);
            events.push(event);
        }
        if let Some(mut recorded) = record(OpenAi, &events) {
            let of = |message: &Value| {
                let calls = message["tool_calls"].as_array().cloned().unwrap_or_default();
                let named = calls.into_iter().filter(|call| call["function"]["name"].is_string());
                let input = |call: &Value| call["function"]["arguments"].as_str().unwrap_or_default().to_owned();
                let mut calls: Vec<_> =
                    named.map(|call| ran(&call["id"], &call["function"]["name"], input(&call))).collect();
                calls.sort();
                calls
            };
            recorded.sort();
            prop_assert_eq!(&recorded, &of(&first));
            let choices = all["choices"].as_array().expect("choices");
            let by_index: Vec<_> = choices.iter().flat_map(|choice| of(&choice["delta"])).collect();
            prop_assert_eq!(&recorded, &by_index);
        }
    }
}
