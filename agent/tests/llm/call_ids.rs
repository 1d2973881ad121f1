//! A provider chooses the ids of its tool calls. Whatever it chooses hides no call and forges none.

use crate::{
    mock::{Answer, Mock, anthropic_events, calls, chunk, openai, says, tool_block},
    played_core::Core,
    role::{call_with, tag},
    support::{Client, eventually, send, tool_result, turn, user},
};
use ringfence_wire::trace::AgentEvent;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// A call as it was reported: its key, its id, what was wrong with the provider's, its arguments.
type Told = (String, String, Option<String>, String);

fn told(said: &[AgentEvent]) -> Vec<Told> {
    let call = |said: &AgentEvent| match said {
        AgentEvent::Call { key, id, renamed, input, .. } => {
            let why = renamed.as_ref().map(|renamed| renamed.why.clone());
            Some((key.clone(), id.clone(), why, input.clone()))
        }
        _ => None,
    };
    said.iter().filter_map(call).collect()
}

fn command(n: usize) -> String {
    json!({ "command": format!("command {n}") }).to_string()
}

/// OpenAI wants these called.
fn openai_calls(ids: &[&str], from: usize) -> Answer {
    let function = |n: usize| json!({ "name": "bash", "arguments": command(n) });
    let call = |(n, id): (usize, &&str)| {
        let call = json!({ "index": n, "id": id, "type": "function", "function": function(from + n) });
        chunk(json!({ "tool_calls": [call] }), None)
    };
    let chunks: Vec<Value> =
        ids.iter().enumerate().map(call).chain([chunk(json!({}), Some("tool_calls"))]).collect();
    Answer::Stream(openai(&chunks))
}

fn anthropic_calls(ids: &[&str], from: usize) -> Answer {
    let inputs: Vec<String> = (0..ids.len()).map(|n| command(from + n)).collect();
    let named: Vec<_> = ids.iter().zip(&inputs).map(|(id, input)| (*id, "bash", input.as_str())).collect();
    calls(&named)
}

/// Every tool call's id in a request, in its order, and every result's.
fn ids_sent(messages: &[Value]) -> (Vec<String>, Vec<String>) {
    let (mut calls, mut results) = (Vec::new(), Vec::new());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    for message in messages {
        calls.extend(
            message["tool_calls"].as_array().into_iter().flatten().filter_map(|call| text(&call["id"])),
        );
        results.extend(text(&message["tool_call_id"]));
        for block in message["content"].as_array().into_iter().flatten() {
            match block["type"].as_str() {
                Some("tool_use") => calls.extend(text(&block["id"])),
                Some("tool_result") => results.extend(text(&block["tool_use_id"])),
                _ => {}
            }
        }
    }
    (calls, results)
}

#[test]
fn no_id_hides_a_call_or_gives_it_another_s_events() {
    let long = "x".repeat(300);
    let first = ["same", "same", long.as_str(), "", "bell\u{7}\u{1b}[2J", "a name", "fine"];
    let again = ["same", "fine", "new"];
    let bad = ["used before", "too long", "no id", "characters", "characters", "used before", "used before"];
    for provider in ["Anthropic", "OpenAi"] {
        let make = if provider == "OpenAi" { openai_calls } else { anthropic_calls };
        let done = match provider {
            "OpenAi" => Answer::Stream(openai(&[chunk(json!({ "content": "Done." }), Some("stop"))])),
            _ => says(&["Done."]),
        };
        let mock = Mock::with([make(&first, 0), make(&again, first.len()), done]);
        let core = Core::start_as(&mock, provider);
        let mut runtime = core.runtime();
        core.peer(1000, None);
        let mut sender = Client::sender(&core.socket(), "go");
        runtime.human();
        assert_eq!(sender.expect()["result"]["status"], "delivered");

        let mut opening = turn(1, json!([user("go")]));
        opening["params"]["tools"] = json!([{ "name": "bash", "parameters": { "type": "object" } }]);
        runtime.write(&opening);
        let mut ran = Vec::new();
        for round in 0_u64..2 {
            let (answer, streamed) = runtime.answer();
            let calls = answer["result"]["tool_calls"].as_array().unwrap().clone();
            let data = streamed.iter().map(|frame| &frame["params"]["data"]);
            let began: Vec<&Value> =
                data.filter(|data| data["type"] == "tool_use_start").map(|data| &data["id"]).collect();
            assert_eq!(
                began,
                calls.iter().map(|call| &call["id"]).collect::<Vec<_>>(),
                "one name throughout"
            );
            let mut results = Vec::new();
            for call in &calls {
                let id = call["id"].as_str().unwrap();
                let number = 100 + ran.len() as u64;
                core.says.lock().unwrap().tag = Some(number);
                tag(&runtime, 50 + number, id);
                assert_eq!(runtime.expect()["result"]["tagged"], true, "{provider} {id:?}");
                ran.push((number, call["input"].to_string()));
                results.push(tool_result(id, &format!("of {}", call["input"]["command"])));
            }
            runtime.write(&turn(2 + round, json!(results)));
        }
        assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "Done.");
        assert_eq!(ran.len(), first.len() + again.len(), "every call ran");

        let count = |said: &[AgentEvent]| {
            said.iter().filter(|said| matches!(said, AgentEvent::CallEnded { .. })).count()
        };
        let said = eventually("the reports", || Some(core.said()).filter(|said| count(said) == ran.len()));
        let told = told(&said);
        let inputs: Vec<&String> = told.iter().map(|(.., input)| input).collect();
        assert_eq!(inputs, ran.iter().map(|(_, input)| input).collect::<Vec<_>>(), "and is on record, once");
        for names in [told.iter().map(|t| &t.0).collect::<BTreeSet<_>>(), told.iter().map(|t| &t.1).collect()]
        {
            assert_eq!(names.len(), ran.len(), "{told:?}");
        }
        assert!(told.iter().all(|(_, id, ..)| id.bytes().all(|b| b.is_ascii_graphic()) && id.len() <= 256));
        let whys: Vec<&str> = told.iter().filter_map(|(_, _, why, _)| why.as_deref()).collect();
        assert_eq!(whys.len(), bad.len(), "{whys:?}");
        assert!(whys.iter().zip(bad).all(|(why, words)| why.contains(words)), "{whys:?}");
        assert_eq!((told[0].1.as_str(), told[6].1.as_str(), told[9].1.as_str()), ("same", "fine", "new"));
        // Each tag, and each result, is of the call that it was asked for.
        for ((number, input), (key, ..)) in ran.iter().zip(&told) {
            assert!(
                said.contains(&AgentEvent::Tagged { key: key.clone(), tag: *number, matched: false }),
                "{input}"
            );
            let command = serde_json::from_str::<Value>(input).unwrap()["command"].to_string();
            let own = |said: &&AgentEvent| matches!(said, AgentEvent::CallEnded { key: of, output, .. } if of == key && *output == format!("of {command}"));
            assert_eq!(said.iter().filter(own).count(), 1, "{input}");
        }
        let (calls, results) = ids_sent(mock.last().messages());
        assert_eq!(calls.len(), ran.len());
        assert_eq!(calls, results, "the provider hears the same names");
        assert_eq!(calls, told.iter().map(|(_, id, ..)| id.clone()).collect::<Vec<_>>());
        let log = core.stderr();
        assert!(log.contains("used before") && log.contains("too long"), "{log}");
        assert!(!log.contains(['\u{1b}', '\u{7}']), "{log:?}");
    }
}

#[test]
fn a_client_of_the_api_has_the_provider_s_ids_and_the_record_has_its_own() {
    let long = "x".repeat(300);
    let block = |id: &str, n: usize| tool_block(id, "read", &[&command(n)]);
    let broken = |id: &str, n: usize| {
        let mut events = anthropic_events(&[block(id, n)], "tool_use");
        events.truncate(events.len() - 2);
        Answer::Stream(events.concat())
    };
    let whole = json!({ "type": "message", "role": "assistant", "stop_reason": "end_turn", "content": [
        { "type": "tool_use", "id": "w", "name": "read", "input": { "command": "command 6" } },
        { "type": "tool_use", "name": "read", "input": { "command": "command 7" } },
    ] });
    let mock = Mock::with([
        Answer::Stream(
            anthropic_events(
                &[block("same", 0), block("same", 1), block(&long, 2), block("e\u{1b}c", 3)],
                "tool_use",
            )
            .concat(),
        ),
        // It says that nothing is to be called; that it goes on; and nothing any more.
        Answer::Stream(anthropic_events(&[block("quiet", 4)], "end_turn").concat()),
        broken("cut", 5),
        Answer::Whole(200, "content-type: application/json\r\n".into(), whole.to_string().into_bytes()),
    ]);
    let core = Core::start_as(&mock, "Anthropic");
    core.peer(0, Some(true));
    let asked = |n: usize| json!([{ "role": "user", "content": format!("question {n}") }]);
    let answer = call_with(&core, true, &asked(0));
    assert_eq!(answer.matches(r#""id":"same""#).count(), 2, "{answer}");
    assert!(answer.contains(&long), "{answer}");
    assert!(call_with(&core, true, &asked(1)).contains("quiet"));
    assert!(call_with(&core, true, &asked(2)).contains("cut"));
    assert!(call_with(&core, false, &asked(3)).contains("command 7"));
    let said = eventually("the reports", || Some(core.said()).filter(|said| told(said).len() == 8));
    let told = told(&said);
    let expected: Vec<String> = (0..8).map(command).collect();
    assert_eq!(told.iter().map(|(.., input)| input.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(told.iter().map(|(key, ..)| key).collect::<BTreeSet<_>>().len(), 8);
    let renamed: Vec<bool> = told.iter().map(|(_, _, why, _)| why.is_some()).collect();
    assert_eq!(renamed, [false, false, true, true, false, false, false, true]);
    assert!(told.iter().all(|(_, id, ..)| id.bytes().all(|byte| byte.is_ascii_graphic()) && id.len() <= 256));

    // The two of one id are answered: each by its own.
    let result = |text: &str| json!({ "type": "tool_result", "tool_use_id": "same", "content": text });
    let messages = json!([
        { "role": "user", "content": "question 0" }, { "role": "assistant", "content": "..." },
        { "role": "user", "content": [result("of 0"), result("of 1")] },
    ]);
    mock.then([says(&["Done."])]);
    assert!(call_with(&core, true, &messages).contains("Done."));
    let ended = |key: &str, text: &str| {
        let key = key.to_owned();
        let text = text.to_owned();
        move |said: &AgentEvent| matches!(said, AgentEvent::CallEnded { key: of, output, .. } if *of == key && *output == text)
    };
    eventually("the results", || {
        let said = core.said();
        let both = said.iter().any(ended(&told[0].0, "of 0")) && said.iter().any(ended(&told[1].0, "of 1"));
        both.then_some(())
    });
    assert_eq!(core.said().iter().filter(|said| matches!(said, AgentEvent::CallEnded { .. })).count(), 2);
}

/// In user mode there is no record but the conversation's log, where one result is one call's all the same.
#[test]
fn a_result_is_one_call_s_in_user_mode_too() {
    let mock = Mock::with([anthropic_calls(&["a", "a", ""], 0), says(&["ok"])]);
    let home = crate::support::Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::connect(&home.socket("a"));
    sender.write(&send("go"));
    runtime.human();
    let answer = runtime.says(1, "x");
    let ids: Vec<String> = answer["result"]["tool_calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| call["id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!((ids[0].as_str(), ids.iter().collect::<BTreeSet<_>>().len()), ("a", 3));
    // A result is taken once, under the name that the call has here.
    runtime.write(&turn(2, json!([tool_result("a", ""), tool_result("a", ""), tool_result("", "")])));
    assert_eq!(runtime.answer().0["error"]["code"], -32602);
    let results: Vec<Value> = ids.iter().map(|id| tool_result(id, id)).collect();
    runtime.write(&turn(3, json!(results)));
    assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "ok");
    let logged: Vec<Value> = home.logged("a");
    let names: Vec<&Value> =
        logged[1]["tool_calls"].as_array().unwrap().iter().map(|call| &call["id"]).collect();
    assert_eq!(names, ids.iter().collect::<Vec<_>>());
}
