//! A call that is told as complete is the one that a client has then, and stays so.

use super::*;

/// One event after another; gives what each of them completed.
fn told(kind: Wire, events: &[Value]) -> Vec<Vec<(usize, String, String)>> {
    let mut found = ToolCalls::default();
    let of = |event: &Value| {
        found.event(kind, text(event, "type"), event).unwrap();
        let told = found.completed();
        told.into_iter().map(|(at, call)| (at, call.id, call.input.get().to_owned())).collect()
    };
    events.iter().map(of).collect()
}

fn one(at: usize, id: &str, input: &str) -> Vec<(usize, String, String)> {
    vec![(at, id.to_owned(), input.to_owned())]
}

#[test]
fn a_block_is_complete_when_it_stops_or_cannot_grow() {
    let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "t", "input": {} });
    let full = json!({ "type": "tool_use", "id": "f", "name": "t", "input": { "x": 1 } });
    let stop = |index: u64| json!({ "type": "content_block_stop", "index": index });
    let events = [
        json!({ "type": "message_start", "message": { "content": [block("early")] } }),
        start(json!(1), block("a")),
        piece(json!(1), "{\"x\":"),
        piece(json!(1), "1}"),
        piece(json!(1), " "),
        stop(1),
        start(json!(2), block("b")),
        stop(2),
        start(json!(3), full),
        start(json!(4), block("c")),
        piece(json!(4), "{\"y"),
        start(json!(5), json!({ "type": "text", "text": "" })),
        start(json!(6), block("d")),
        json!({ "type": "message_stop" }),
    ];
    let none = Vec::new;
    let expected = [
        one(0, "early", "{}"),
        none(),
        none(),
        one(1, "a", "{\"x\":1}"),
        none(),
        none(),
        none(),
        one(2, "b", "{}"),
        one(3, "f", "{\"x\":1}"),
        none(),
        none(),
        one(4, "c", "\"{\\\"y\""),
        none(),
        one(5, "d", "{}"),
    ];
    assert_eq!(told(Anthropic, &events), expected);
}

#[test]
fn a_call_is_complete_when_it_is_one_object_or_the_next_begins_or_its_choice_stops() {
    let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
    let call = |index: u64, id: &str, input: &str| {
        delta(json!({ "index": index, "id": id, "function": { "name": "t", "arguments": input } }))
    };
    let more = |index: u64, input: &str| delta(json!({ "index": index, "function": { "arguments": input } }));
    let stop = |reason: &str| json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] });
    let events = [
        call(0, "a", ""),
        more(0, "{\"x\":"),
        more(0, "1}"),
        more(0, "\n"),
        call(1, "b", "{\"y"),
        stop(""),
        call(2, "c", ""),
        more(1, ""),
        delta(json!({ "index": 3, "id": "d", "custom": { "name": "p", "input": "rm" } })),
        delta(json!({ "index": 3, "custom": { "input": " -r" } })),
        stop("tool_calls"),
        more(0, " "),
    ];
    let none = Vec::new;
    let expected = [
        none(),
        none(),
        one(0, "a", "{\"x\":1}"),
        none(),
        none(),
        none(),
        one(1, "b", "\"{\\\"y\""),
        none(),
        one(2, "c", "{}"),
        none(),
        one(3, "d", "\"rm -r\""),
        none(),
    ];
    assert_eq!(told(OpenAi, &events), expected);
    let mut found = ToolCalls::default();
    found.read(OpenAi, &call(0, "a", "{\"x")).unwrap();
    assert!(found.completed().is_empty());
    found.over().unwrap();
    assert_eq!(found.completed().len(), 1, "the stream is over");
    // The last is named first.
    let late = [more(0, "{}"), delta(json!({ "index": 0, "id": "a", "function": { "name": "t" } }))];
    assert_eq!(told(OpenAi, &late), [none(), one(0, "a", "{}")]);
}

#[test]
fn an_input_is_complete_when_it_is_whole_whatever_it_is() {
    let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
    let named = delta(json!({ "index": 0, "id": "a", "function": { "name": "t", "arguments": "" } }));
    let more = |input: &str| delta(json!({ "index": 0, "function": { "arguments": input } }));
    let single =
        |function: Value| json!({ "choices": [{ "index": 0, "delta": { "function_call": function } }] });
    let deep = format!("{}{}", "[".repeat(300), "]".repeat(300));
    for input in [r#"{"a":1e999}"#, r#"{"a":1,"a":2}"#, r#"{"a":"\ud800"}"#, "[]", "[1,[2]]", &deep] {
        let (first, rest) = input.split_at(input.len() - 1);
        let end = one(0, "a", input);
        assert_eq!(told(OpenAi, &[named.clone(), more(first), more(rest)]), [vec![], vec![], end], "{input}");
        let block = json!({ "type": "tool_use", "id": "a", "name": "t", "input": {} });
        let events = [start(json!(0), block), piece(json!(0), first), piece(json!(0), rest)];
        assert_eq!(told(Anthropic, &events), [vec![], vec![], one(0, "a", input)], "{input}");
        let events =
            [single(json!({ "name": "t", "arguments": first })), single(json!({ "arguments": rest }))];
        assert_eq!(told(OpenAi, &events), [vec![], one(0, "", input)], "{input}");
    }
    // What has no end of its own may end with any piece, and nothing goes on behind it.
    for (input, recorded) in [("7", "7"), ("null", "null"), ("\"x\"", "\"x\""), ("no json", "\"no json\"")] {
        assert_eq!(told(OpenAi, &[named.clone(), more(input)]), [vec![], one(0, "a", recorded)], "{input}");
        assert!(refused(OpenAi, &[named.clone(), more(input), more("7")]), "{input}");
    }
    assert_eq!(told(OpenAi, &[named, more(" \n"), more("{"), more("\"}")]).concat(), [], "the control");
}

#[test]
fn what_is_over_does_not_grow() {
    let delta = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
    let call = |index: u64, id: &str, input: &str| {
        delta(json!({ "index": index, "id": id, "function": { "name": "t", "arguments": input } }))
    };
    let more = |index: u64, input: &str| delta(json!({ "index": index, "function": { "arguments": input } }));
    let stop = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    let custom = |input: &str| delta(json!({ "index": 0, "custom": { "name": "p", "input": input } }));
    let good: [&[Value]; 4] = [
        &[call(0, "a", "{"), call(1, "b", "{}"), more(0, "")],
        &[call(0, "a", "{}"), call(1, "b", "{}"), more(0, " "), call(0, "a", "")],
        &[call(0, "a", "{}"), stop.clone(), more(0, ""), call(0, "a", " "), stop.clone()],
        &[custom("x"), custom(" "), stop.clone()],
    ];
    for events in good {
        assert!(!refused(OpenAi, events), "{events:?}");
    }
    let bad: [&[Value]; 9] = [
        &[call(0, "a", "{"), call(1, "b", "{}"), more(0, "}")],
        &[call(0, "a", "{"), call(1, "b", "{}"), more(0, " ")],
        &[call(0, "a", "{"), stop.clone(), more(0, "}")],
        &[call(0, "a", "{}"), stop.clone(), call(1, "b", "{}")],
        &[
            stop.clone(),
            json!({ "choices": [{ "message": { "tool_calls": [{ "id": "a", "function": { "name": "t" } }] } }] }),
        ],
        &[call(0, "", "{}"), delta(json!({ "index": 0, "id": "a" }))],
        &[more(0, "{}"), call(1, "b", "{}"), call(0, "a", "")],
        &[custom("x"), stop.clone(), custom(" ")],
        &[
            call(0, "a", "{"),
            json!({ "choices": [{ "index": 0, "delta": { "function_call": { "name": "t" } } }] }),
            more(0, "}"),
        ],
    ];
    for events in bad {
        assert!(refused(OpenAi, events), "{events:?}");
    }
    let block = |id: &str| json!({ "type": "tool_use", "id": id, "name": "t", "input": {} });
    let begin = || json!({ "type": "message_start", "message": { "content": [block("early")] } });
    let (two, stop) = (
        [start(json!(0), block("a")), start(json!(1), block("b"))],
        json!({ "type": "content_block_stop", "index": 0 }),
    );
    assert!(!refused(Anthropic, &two) && !refused(Anthropic, &[begin()]), "the control");
    for last in [piece(json!(0), "{}"), piece(json!(0), ""), stop.clone()] {
        assert!(refused(Anthropic, &[&two[..], std::slice::from_ref(&last)].concat()), "{last}");
        assert!(refused(Anthropic, &[begin(), last.clone()]), "{last}");
    }
}

proptest! {
    #[test]
    fn what_was_told_is_on_record(
        steps in prop::collection::vec((0u64..3, prop::sample::select(vec!["", "a", "b"]), prop::sample::select(vec!["", "t"]), "|\\{|\\}|\\{\\}| |7", any::<bool>(), 0u8..8), 0..9),
    ) {
        let (mut found, mut told) = (ToolCalls::default(), Vec::new());
        for (index, id, name, input, custom, end) in steps {
            let function = if custom { json!({ "name": name, "input": input }) } else { json!({ "name": name, "arguments": input }) };
            let call = json!({ "index": index, "id": id, (if custom { "custom" } else { "function" }): function });
            let reason = if end == 0 { json!("stop") } else { json!(null) };
            let event = json!({ "choices": [{ "delta": { "tool_calls": [call] }, "finish_reason": reason }] });
            if found.read(OpenAi, &event).is_err() {
                break;
            }
            told.extend(found.completed());
        }
        let same = |call: &ToolCall| (call.id.clone(), call.name.clone(), call.input.get().to_owned());
        let recorded = found.finish();
        for (at, call) in &told {
            prop_assert_eq!(same(call), same(&recorded[*at]));
        }
    }
}
