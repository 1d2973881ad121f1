//! What is read of an answer's items is what each client reads of them, or nothing of it is relayed.

use super::*;
use crate::{message::ToolCall, provider::Wire};
use proptest::prelude::*;

const FUNCTION: &str = "response.function_call_arguments";
const CUSTOM: &str = "response.custom_tool_call_input";

fn function(input: &str) -> Value {
    json!({ "type": "function_call", "id": "fc_1", "call_id": "c1", "name": "bash", "arguments": input, "status": "x" })
}

fn custom(input: &str) -> Value {
    json!({ "type": "custom_tool_call", "id": "ct_1", "call_id": "c2", "name": "patch", "input": input })
}

fn shell(command: &str) -> Value {
    json!({ "type": "local_shell_call", "id": "ls_1", "call_id": "c3", "action": { "type": "exec", "command": [command] } })
}

fn words() -> Value {
    json!({ "type": "message", "id": "msg_1", "role": "assistant", "content": [] })
}

fn added(place: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.added", "output_index": place, "item": item })
}

fn done(place: u64, item: Value) -> Value {
    json!({ "type": "response.output_item.done", "output_index": place, "item": item })
}

fn piece(what: &str, place: u64, text: &str) -> Value {
    json!({ "type": format!("{what}.delta"), "output_index": place, "delta": text })
}

fn stated(what: &str, place: u64, text: &str) -> Value {
    let key = if what == CUSTOM { "input" } else { "arguments" };
    json!({ "type": format!("{what}.done"), "output_index": place, key: text })
}

fn end(items: &[Value]) -> Value {
    json!({ "type": "response.completed", "response": { "output": items } })
}

/// An id, a tool, an input.
type Found = (String, String, String);

/// The calls on record of a stream of these events; or why it is not relayed.
fn record(events: &[Value]) -> Result<Vec<Found>, String> {
    let mut found = ToolCalls::default();
    for event in events {
        found.event(Wire::Responses, text(event, "type"), event)?;
        found.agrees(&Redactor::default())?;
    }
    found.complete()?;
    Ok(read(found))
}

fn read(found: ToolCalls) -> Vec<Found> {
    let call = |call: ToolCall| (call.id, call.name, call.input.get().to_owned());
    found.finish().into_iter().map(call).collect()
}

fn call(id: &str, name: &str, input: &str) -> Found {
    (id.into(), name.into(), input.into())
}

#[test]
fn calls_are_found_in_pieces_and_as_wholes() {
    let input = r#"{"x":1}"#;
    let shelled = r#"{"action":{"command":["ls"],"type":"exec"}}"#;
    let expected =
        vec![call("c1", "bash", input), call("c2", "patch", "\"rm x\""), call("c3", "local_shell", shelled)];
    let items = [words(), function(input), custom("rm x"), shell("ls")];
    let stream = [
        added(0, words()),
        done(0, words()),
        added(1, function("")),
        piece(FUNCTION, 1, r#"{"x""#),
        piece(FUNCTION, 1, ":1}"),
        stated(FUNCTION, 1, input),
        done(1, function(input)),
        added(2, custom("")),
        piece(CUSTOM, 2, "rm "),
        piece(CUSTOM, 2, "x"),
        stated(CUSTOM, 2, "rm x"),
        done(2, custom("rm x")),
        // What it is to do is known when it is done.
        added(3, shell("")),
        done(3, shell("ls")),
        end(&items),
    ];
    assert_eq!(record(&stream).as_ref(), Ok(&expected));
    let mut ways = vec![vec![end(&items)]];
    // Some servers have no items at the end, and some have wholes alone.
    ways.push([&stream[..14], &[end(&[])]].concat());
    ways.push(items.iter().cloned().enumerate().map(|(at, item)| done(at as u64, item)).collect());
    for way in ways {
        assert_eq!(record(&way).as_ref(), Ok(&expected), "{way:?}");
    }
    let mut whole = ToolCalls::default();
    whole.read(Wire::Responses, &json!({ "object": "response", "output": items })).unwrap();
    assert_eq!(read(whole), expected);
    // One that breaks off has what began.
    assert_eq!(record(&stream[..4]).unwrap()[0].1, "bash");
    assert_eq!(record(&stream[..13]).unwrap()[2], call("c3", "local_shell", &shelled.replace("ls", "")));
}

#[test]
fn what_the_provider_runs_is_no_call_and_what_is_new_is_one() {
    let of = |kind: &str, more: Value| {
        let mut item = json!({ "type": kind, "id": "x", "name": "n", "arguments": "{}" });
        more.as_object().unwrap().iter().for_each(|(key, value)| item[key] = value.clone());
        record(&[done(0, item)]).unwrap()
    };
    for kind in [
        "web_search_call",
        "mcp_call",
        "image_generation_call",
        "reasoning",
        "mcp_approval_request",
        "shell_call_output",
    ] {
        assert_eq!(of(kind, json!({})), [], "{kind}");
    }
    assert_eq!(of("tool_search_call", json!({ "execution": "server" })), []);
    for (kind, name) in
        [("tool_search_call", "tool_search"), ("computer_call", "computer"), ("new_call", "new")]
    {
        assert_eq!(of(kind, json!({}))[0].1, name);
    }
    assert_eq!(of("function_call", json!({ "namespace": "mcp__a" }))[0].1, "mcp__a.n");
    assert_eq!(of("function_call", json!({ "call_id": "c" }))[0].0, "c");
    assert_eq!(of("function_call", json!({}))[0].0, "x", "some have no other id");
}

#[test]
fn what_clients_read_differently_is_refused() {
    let input = r#"{"x":1}"#;
    let whole = || {
        vec![
            added(0, function("")),
            piece(FUNCTION, 0, input),
            stated(FUNCTION, 0, input),
            done(0, function(input)),
        ]
    };
    let with = |at: usize, event: Value| {
        let mut events = whole();
        events[at] = event;
        events
    };
    let behind = |event: Value| [whole(), vec![event]].concat();
    let named = |key: &str, value: Value| {
        let mut item = function(input);
        item[key] = value;
        item
    };
    assert_eq!(record(&whole()), Ok(vec![call("c1", "bash", input)]), "the control");
    assert!(record(&behind(end(&[function(input)]))).is_ok(), "the control");
    assert!(record(&[added(0, function("")), done(0, function("{}"))]).is_ok(), "nothing is an empty object");
    let blank = format!("{input}\n");
    let trailing = [
        added(0, function("")),
        piece(FUNCTION, 0, input),
        piece(FUNCTION, 0, "\n"),
        done(0, function(&blank)),
    ];
    assert!(record(&trailing).is_ok(), "what is behind an input is none of it");
    let blank = [added(0, custom("")), piece(CUSTOM, 0, "x"), done(0, custom("x\n"))];
    assert!(record(&blank).is_err(), "but of a text it is");
    let stated_as = |name: &str, space: &str| {
        let mut events = whole();
        for (at, key) in [(0, "item"), (3, "item")] {
            events[at][key]["namespace"] = json!(space);
        }
        events[2]["name"] = json!(name);
        record(&events)
    };
    assert!(stated_as("bash", "").is_ok() && stated_as("bash", "x").is_ok(), "the control");
    assert!(stated_as("x.bash", "x").is_err() && stated_as("rm", "").is_err());
    let of_item = |id: Value| {
        let mut event = piece(FUNCTION, 0, input);
        event["item_id"] = id;
        event
    };
    assert!(record(&with(1, of_item(json!("fc_1")))).is_ok(), "the control");
    let bad = [
        // Places.
        with(0, added(1, function(""))),
        with(1, piece(FUNCTION, 1, input)),
        with(1, of_item(json!("fc_2"))),
        with(1, of_item(json!(7))),
        with(3, done(1, function(input))),
        behind(added(0, function(""))),
        behind(done(0, function(input))),
        behind(added(1, function(""))),
        // Inputs that do not agree.
        with(1, piece(FUNCTION, 0, r#"{"x":2}"#)),
        with(1, json!({ "type": "response.in_progress" })),
        with(2, stated(FUNCTION, 0, "{}")),
        with(3, done(0, function("{}"))),
        with(0, added(0, function(input))),
        with(0, added(0, function("{"))),
        behind(end(&[function("{}")])),
        [&whole()[..3], &[end(&[function("{}")])]].concat(),
        vec![added(0, function("")), done(0, function(input))],
        behind(piece(FUNCTION, 0, "x")),
        with(2, piece(FUNCTION, 0, input)),
        vec![added(0, function("")), stated(FUNCTION, 0, input)],
        // Kinds, ids and names that do not.
        with(1, piece(CUSTOM, 0, input)),
        with(3, done(0, custom(input))),
        with(3, done(0, words())),
        with(3, done(0, named("name", json!("rm")))),
        with(3, done(0, named("call_id", json!("c9")))),
        with(3, done(0, named("namespace", json!("x")))),
        with(0, added(0, words())),
        behind(end(&[named("name", json!("rm"))])),
        behind(end(&[function(input), shell("ls")])),
        behind(end(&[words()])),
        // What is not what it seems.
        with(0, added(0, named("name", json!("")))),
        with(3, done(0, named("name", json!(["bash"])))),
        with(3, done(0, named("arguments", json!({ "x": 1 })))),
        with(3, done(0, named("Arguments", json!("{}")))),
        with(3, done(0, json!("x"))),
        with(3, done(0, named("type", json!("Function_Call")))),
        vec![json!({ "type": "response.output_item.done", "output_index": 0 })],
        vec![json!({ "type": "response.output_item.done", "output_index": 0.0, "item": shell("ls") })],
        vec![
            json!({ "type": "response.output_item.done", "Item": shell("ls"), "output_index": 0, "item": words() }),
        ],
        vec![json!({ "type": "response.in_progress", "output_index": 0, "item": shell("ls") })],
        vec![json!({ "type": "response.created", "response": { "output": [shell("ls")] } })],
        vec![json!({ "type": "response.completed", "response": { "Output": [shell("ls")] } })],
        vec![json!({ "type": "response.completed", "response": [{ "output": [shell("ls")] }] })],
        vec![json!({ "type": "response.new", "output": [shell("ls")] })],
        vec![json!({ "output": [shell("ls")] })],
        vec![json!({ "item": shell("ls"), "output_index": 0 })],
        vec![json!({ "type": "response.new", "x": { "item": shell("ls") } })],
        vec![json!({ "type": "response.new", "choices": [{ "delta": { "tool_calls": [{}] } }] })],
        // Some that began, and some that did not.
        behind(done(1, shell("ls"))),
        vec![done(0, words()), added(1, shell("ls")), done(1, shell("ls"))],
        // Behind the end.
        behind(end(&[])).into_iter().chain([done(1, shell("ls"))]).collect(),
        vec![end(&[]), end(&[shell("ls")])],
    ];
    for events in bad {
        assert!(record(&events).is_err(), "{events:?}");
    }
    for name in ["response.created", "error", "x"] {
        let found = ToolCalls::default().event(Wire::Responses, name, &done(0, shell("ls")));
        assert!(found.is_err(), "{name}: some go by the name");
    }
    assert!(
        ToolCalls::default().event(Wire::Responses, "", &done(0, shell("ls"))).is_ok(),
        "and some have none"
    );
    let mut whole = ToolCalls::default();
    let both =
        json!({ "output": [], "item": shell("ls"), "type": "response.output_item.done", "output_index": 0 });
    assert!(whole.read(Wire::Responses, &both).is_err());
}

#[test]
fn a_call_is_complete_when_a_client_can_run_it() {
    let mut found = ToolCalls::default();
    let mut complete = |event: Value| {
        found.event(Wire::Responses, text(&event, "type"), &event).unwrap();
        found.completed().into_iter().map(|(at, call)| (at, call.input.get().to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(complete(added(0, function(""))), []);
    assert_eq!(complete(piece(FUNCTION, 0, r#"{"x""#)), []);
    assert_eq!(complete(piece(FUNCTION, 0, ":1}")), [(0, r#"{"x":1}"#.into())]);
    assert_eq!(complete(done(0, function(r#"{"x":1}"#))), []);
    assert_eq!(complete(added(1, custom(""))), []);
    assert_eq!(complete(piece(CUSTOM, 1, "{}")), [], "any text may go on");
    assert_eq!(complete(done(1, custom("{}"))), [(1, "{}".into())]);
    assert_eq!(complete(added(2, shell("ls"))), []);
    assert_eq!(complete(done(2, shell("ls"))).len(), 1);
    assert_eq!(complete(end(&[])), []);
}

#[test]
fn a_credential_in_pieces_is_what_was_taken_out_of_the_whole() {
    let key = "sk-secret-0123456789";
    let redactor = Redactor::new([&ringfence_credentials::Secret::from(key.to_owned())]);
    for (input, fits) in [(r#"{"k":"[redacted]"}"#, true), (r#"{"k":"other"}"#, false)] {
        let mut found = ToolCalls::default();
        let events = [
            added(0, function("")),
            piece(FUNCTION, 0, r#"{"k":"sk-secret"#),
            piece(FUNCTION, 0, r#"-0123456789"}"#),
            done(0, function(input)),
        ];
        events.iter().for_each(|event| found.event(Wire::Responses, "", event).unwrap());
        assert_eq!(found.agrees(&redactor).is_ok(), fits, "{input}");
    }
}

#[test]
fn an_answer_has_only_so_many() {
    let of = |at: u64| {
        done(at, json!({ "type": "function_call", "call_id": "c", "name": "t", "arguments": "{}" }))
    };
    let most = super::super::MAX_CALLS as u64;
    assert!(record(&(0..most).map(of).collect::<Vec<_>>()).is_ok());
    assert!(record(&(0..=most).map(of).collect::<Vec<_>>()).is_err());
    let item = |at: u64| done(at, json!({ "type": "message" }));
    let most = MAX_ITEMS as u64;
    assert!(record(&(0..most).map(item).collect::<Vec<_>>()).is_ok());
    assert!(record(&(0..=most).map(item).collect::<Vec<_>>()).is_err());
}

/// A call as clients hold it while it grows: its kind, id, name and input.
type Held = (String, String, String, String);

/// What an item is to a client.
fn held(item: &Value) -> Held {
    let kind = text(item, "type").to_owned();
    let input = match kind.as_str() {
        "function_call" => text(item, "arguments").to_owned(),
        "custom_tool_call" => text(item, "input").to_owned(),
        _ => item["action"].to_string(),
    };
    let name = if kind == "local_shell_call" { "local_shell" } else { text(item, "name") };
    (kind, text(item, "call_id").to_owned(), name.to_owned(), input)
}

/// The calls that clients of each kind run: one that goes by wholes, one that joins pieces in a list, and one that goes by the
/// answer at the end.
fn run(events: &[Value]) -> Vec<Held> {
    let (mut wholes, mut list, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for event in events {
        let place = event["output_index"].as_u64().unwrap_or(u64::MAX) as usize;
        match text(event, "type") {
            "response.output_item.added" => list.push(held(&event["item"])),
            "response.output_item.done" => wholes.push(held(&event["item"])),
            "response.completed" => {
                last = event["response"]["output"].as_array().into_iter().flatten().map(held).collect();
            }
            says if says.ends_with(".delta") => {
                if let Some((_, _, _, input)) = list.get_mut(place) {
                    input.push_str(text(event, "delta"));
                }
            }
            _ => {}
        }
    }
    // What an action is, nobody joins.
    list.retain(|(kind, ..)| kind != "local_shell_call");
    wholes.into_iter().chain(list).chain(last).filter(|(kind, ..)| kind.ends_with(CALL)).collect()
}

/// Events as a provider may send them, in any order.
fn event() -> impl Strategy<Value = Value> {
    let input = prop::sample::select(vec!["", "{}", "{", "}", r#"{"x":1}"#, "x"]);
    let item = (0usize..4, input.clone(), any::<bool>()).prop_map(|(kind, input, other)| {
        let mut item = match kind {
            0 => function(input),
            1 => custom(input),
            2 => shell(input),
            _ => words(),
        };
        if other {
            (item["id"], item["call_id"]) = (json!("other"), json!("c9"));
        }
        item
    });
    let place = 0u64..3;
    let family = prop::sample::select(vec![FUNCTION, CUSTOM]);
    prop_oneof![
        3 => (place.clone(), item.clone()).prop_map(|(place, item)| added(place, item)),
        3 => (place.clone(), item.clone()).prop_map(|(place, item)| done(place, item)),
        3 => (family.clone(), place.clone(), input.clone()).prop_map(|(what, place, text)| piece(what, place, text)),
        1 => (family, place, input).prop_map(|(what, place, text)| stated(what, place, text)),
        1 => prop::collection::vec(item, 0..3).prop_map(|items| end(&items)),
    ]
}

/// What a provider sends that keeps to its API: items of these kinds, and whether they have pieces, and are there at the end.
fn honest() -> impl Strategy<Value = Vec<Value>> {
    let item = (0usize..4, prop::sample::select(vec!["", "{}", r#"{"x":1}"#, "x"]), any::<bool>());
    (prop::collection::vec(item, 0..4), any::<[bool; 2]>()).prop_map(|(items, [is_again, begin])| {
        let (mut events, mut all) = (Vec::new(), Vec::new());
        for (place, (kind, input, in_pieces)) in (0u64..).zip(items) {
            let (make, what): (fn(&str) -> Value, &str) = match kind {
                0 => (function, FUNCTION),
                1 => (custom, CUSTOM),
                2 => (shell, ""),
                _ => (|_| words(), ""),
            };
            let mut whole = make(input);
            whole["id"] = json!(format!("item-{place}"));
            if begin {
                let mut begun = make("");
                begun["id"] = whole["id"].clone();
                events.push(added(place, begun));
                if !what.is_empty() && !input.is_empty() && in_pieces {
                    events.extend([piece(what, place, &input[..1]), piece(what, place, &input[1..])]);
                } else if !what.is_empty() && !input.is_empty() {
                    events.push(piece(what, place, input));
                }
            }
            events.push(done(place, whole.clone()));
            all.push(whole);
        }
        events.push(end(if is_again { &all } else { &[] }));
        events
    })
}

/// What is done to such a stream: an event left out, moved, repeated, put in or made another's.
fn changed(
    mut events: Vec<Value>,
    changes: &[(usize, prop::sample::Index, prop::sample::Index, Value)],
) -> Vec<Value> {
    for (how, at, to, other) in changes {
        if events.is_empty() {
            break;
        }
        let (at, to) = (at.index(events.len()), to.index(events.len()));
        match how {
            0 => drop(events.remove(at)),
            1 => events.swap(at, to),
            2 => events.insert(to, events[at].clone()),
            3 => events.insert(at, other.clone()),
            4 => events[at] = other.clone(),
            _ => events[at]["output_index"] = json!(to),
        }
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_keeps_to_the_api_is_relayed(events in honest()) {
        prop_assert!(record(&events).is_ok(), "{:?}", events);
    }

    #[test]
    fn every_call_that_a_client_runs_is_on_record(
        events in honest(),
        changes in prop::collection::vec((0usize..6, any::<prop::sample::Index>(), any::<prop::sample::Index>(), event()), 0..3),
    ) {
        let events = changed(events, &changes);
        let last = events.iter().position(|event| event["type"] == "response.completed");
        let events = &events[..last.map_or(events.len(), |last| last + 1)];
        let mut found = ToolCalls::default();
        let mut read = 0;
        for event in events {
            let relayed = found.event(Wire::Responses, text(event, "type"), event);
            if relayed.and(found.agrees(&Redactor::default())).is_err() {
                break;
            }
            read += 1;
        }
        // A client that hears of a break runs no call that is not whole; at the answer's end all of them are.
        let is_whole = read == events.len() && last.is_some();
        let events = &events[..read];
        let calls: Vec<Found> = found.finish().into_iter().map(|call| (call.id, call.name, call.input.get().to_owned())).collect();
        let mut ran = run(events);
        if !is_whole {
            let dones: Vec<Held> = events.iter().filter(|e| e["type"] == "response.output_item.done").map(|e| held(&e["item"])).collect();
            ran.retain(|held| dones.contains(held));
        }
        for (kind, id, name, input) in ran {
            let is_it = |(of, tool, on_record): &Found| {
                let same = match kind.as_str() {
                    "local_shell_call" => on_record.contains(&input),
                    _ => *on_record == super::super::json(input.clone()).get(),
                };
                *of == id && *tool == name && same
            };
            prop_assert!(calls.iter().any(is_it), "{} {}: {:?}", name, input, calls);
        }
    }
}
