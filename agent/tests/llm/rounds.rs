//! Calls of the model that one turn makes: what they ask of the provider's cache, when they go on by themselves, and what
//! ends them.

use crate::{
    mcp_mock::{Era, McpServer},
    mock::{Answer, Asked, Mock, anthropic_events, calls, says, text_block},
    support::{Client, Daemon, Home, away_from_midnight, eventually, text_of, tool_result, turn, user},
};
use serde_json::{Value, json};

/// A turn that brings a local tool, and a system prompt that may be empty.
fn with_tool(id: u64, system: &str, text: &str) -> Value {
    let mut request = turn(id, json!([user(text)]));
    request["params"]["system"] = json!(system);
    request["params"]["tools"] =
        json!([{ "name": "bash", "description": "Run", "parameters": { "type": "object" } }]);
    request
}

/// The requests of a conversation in which everything comes that can be marked for the cache: tools with and without a
/// system prompt before them, messages, results.
fn asked_with(more: &str) -> Vec<Asked> {
    let mock = Mock::with([says(&["1"]), calls(&[("t1", "bash", "{}")]), says(&["2"])]);
    let home = Home::empty();
    home.agent("a", &mock, more);
    let (_daemon, mut runtime) = home.serve();
    for request in
        [with_tool(1, "", "one"), with_tool(2, "Be brief.", "two"), turn(3, json!([tool_result("t1", "x")]))]
    {
        runtime.write(&request);
        let answer = runtime.answer().0;
        assert!(answer.get("result").is_some(), "{answer}");
    }
    mock.asked()
}

/// Takes the marks for the cache out, and counts them.
fn unmarked(json: &mut Value) -> usize {
    match json {
        Value::Array(items) => items.iter_mut().map(unmarked).sum(),
        Value::Object(fields) => {
            usize::from(fields.remove("cache_control").is_some())
                + fields.values_mut().map(unmarked).sum::<usize>()
        }
        _ => 0,
    }
}

#[test]
fn the_cache_is_asked_for_unless_the_profile_says_no() {
    let without = asked_with("prompt_cache = false");
    assert_eq!(without.len(), 3);
    for Asked { body, .. } in &without {
        assert!(!body.to_string().contains("cache_control"), "{body}");
    }
    // The control: where it is asked for, each of the places has a mark, and nothing else is different.
    for more in ["prompt_cache = true", ""] {
        let with = asked_with(more);
        let (first, second, third) = (&with[0].body, &with[1].body, &with[2].body);
        let last = |body: &Value| body["messages"].as_array().unwrap().last().unwrap()["content"][0].clone();
        for marked in
            [&first["tools"][0], &last(first), &second["system"][0], &last(second), &third["system"][0]]
                .into_iter()
                .chain([&last(third)])
        {
            assert_eq!(marked["cache_control"], json!({ "type": "ephemeral" }), "{more:?}: {marked}");
        }
        for (Asked { mut body, .. }, without) in with.into_iter().zip(&without) {
            let marks = unmarked(&mut body);
            assert!((2..=4).contains(&marks), "{more:?}: {marks}, and the provider takes four");
            assert_eq!(body, without.body, "{more:?}");
        }
    }
}

/// The text that a sender hears, and how it ends.
fn heard(sender: &mut Client) -> (String, Value) {
    let mut text = String::new();
    loop {
        let frame = sender.expect();
        if frame["method"] != "output" {
            return (text, frame["method"].clone());
        }
        text += &text_of(&[frame]);
    }
}

/// An answer that the provider breaks off to go on with later.
fn pauses(text: &str) -> Answer {
    let search = json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} });
    let query = json!({ "type": "input_json_delta", "partial_json": "{\"query\":\"weather\"}" });
    let blocks = [text_block(&[text]), (search, vec![query])];
    Answer::Stream(anthropic_events(&blocks, "pause_turn").concat())
}

#[test]
fn a_turn_that_the_provider_pauses_goes_on_by_itself() {
    let found = json!({ "type": "web_search_tool_result", "tool_use_id": "s1", "content": [] });
    let rest = anthropic_events(&[(found.clone(), Vec::new()), text_block(&["It rains."])], "end_turn");
    let mock = Mock::with([pauses("I look. "), Answer::Stream(rest.concat()), says(&["next"])]);
    let home = Home::with(&mock);
    let (daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "weather?", &mut runtime);
    runtime.write(&turn(1, json!([user("weather?")])));
    let (answer, streamed) = runtime.answer();
    // One turn, one answer: nothing of the pause, and of the provider's own tool nothing either.
    assert_eq!(
        (&answer["id"], &answer["result"]),
        (
            &json!(1),
            &json!({ "stop_reason": "end_turn", "content": [{ "type": "text", "text": "It rains." }] })
        )
    );
    assert!(streamed.iter().all(|frame| frame["params"]["data"]["type"] == "text"), "{streamed:?}");
    assert_eq!(text_of(&streamed), "I look. It rains.");
    assert_eq!(heard(&mut sender), ("I look. It rains.".to_owned(), json!("end_turn")));
    // The provider was asked once more, with what it had said, as it had said it.
    let [_, again] = mock.asked().try_into().unwrap();
    let search = json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "query": "weather" } });
    assert_eq!(again.messages().len(), 2);
    assert_eq!(
        again.messages()[1],
        json!({ "role": "assistant", "content": [{ "type": "text", "text": "I look. " }, search] })
    );
    let worker = eventually("the turn is counted", || {
        let worker = daemon.status("a")["worker"].clone();
        (worker["turns"] == 1).then_some(worker)
    });
    assert_eq!((&worker["output_tokens"], &worker["failed"]), (&json!(14), &json!(0)), "{worker}");
    // The next answer is to the next turn, and the conversation has both parts.
    let next = runtime.says(2, "thanks");
    assert_eq!((&next["id"], &next["result"]["content"][0]["text"]), (&json!(2), &json!("next")));
    let roles: Vec<Value> = mock.last().messages().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "assistant", "user"]);
    assert_eq!(mock.last().messages()[2]["content"][0], found);
}

/// An agent `a` whose answers cost 10 each, and that may use so much a day.
fn costing(home: &Home, mock: &Mock, most: f64, mcp: &str) {
    let price = "price = { input = 1_000_000, output = 0, cache_read = 0, cache_write = 0 }";
    home.agent("a", mock, &format!("{price}\n{mcp}\n[limits]\ncost_per_day = {most}"));
}

fn is_refused(answer: &Value, why: &str) {
    let error = &answer["error"];
    assert_eq!(error["code"], -32002, "{answer}");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("the limit of this agent's profile") && message.contains(why), "{answer}");
    assert!((1..=86_400).contains(&error["data"]["retry_after"].as_u64().unwrap()), "{answer}");
}

/// The agent answers once its profile lets it.
fn answers_again(runtime: &mut Client, text: &str) {
    let mut id = 100;
    eventually("an answer", || {
        id += 1;
        (runtime.says(id, "x")["result"]["content"][0]["text"] == text).then_some(())
    });
}

#[test]
fn what_would_cost_more_than_a_day_may_is_refused_and_not_asked() {
    away_from_midnight();
    let mock = Mock::with([says(&["1"]), says(&["2"]), says(&["3"])]);
    let home = Home::empty();
    costing(&home, &mock, 15.0, "");
    let (daemon, mut runtime) = home.serve();
    for (id, text) in [(1, "1"), (2, "2")] {
        assert_eq!(runtime.says(id, "x")["result"]["content"][0]["text"], text, "10 are used of 15");
    }
    let mut sender = Client::delivered(&home.socket("a"), "x", &mut runtime);
    is_refused(&runtime.says(3, "x"), "a cost of 15 a day (20.00 is used)");
    let failed = sender.expect();
    assert_eq!(failed["method"], "error");
    assert!(failed["params"]["message"].as_str().unwrap().contains("a cost of 15 a day"), "{failed}");
    daemon.kill();
    let (_daemon, mut runtime) = home.serve();
    is_refused(&runtime.says(1, "x"), "(20.00 is used)");
    assert_eq!(mock.asked().len(), 2, "what was refused did not reach the provider");
    costing(&home, &mock, 25.0, "");
    answers_again(&mut runtime, "3");
    assert_eq!(mock.asked().len(), 3);
}

#[test]
fn a_cost_that_is_reached_within_a_turn_ends_it_there() {
    away_from_midnight();
    let server = McpServer::new(Era::Session, &["m"]);
    let mcp = server.section("s", "");
    let mock = Mock::with([calls(&[("m1", "m", "{}")]), says(&["on"])]);
    let home = Home::empty();
    costing(&home, &mock, 5.0, &mcp);
    let (_daemon, mut runtime) = home.serve();
    is_refused(&runtime.says(1, "x"), "a cost of 5 a day (10.00 is used)");
    assert_eq!((server.got("tools/call").len(), mock.asked().len()), (1, 1));
    costing(&home, &mock, 50.0, &mcp);
    answers_again(&mut runtime, "on");
    // What the tool said was kept for then.
    let last = mock.last();
    let result = &last.messages()[2]["content"][0];
    assert_eq!((&result["type"], &result["tool_use_id"]), (&json!("tool_result"), &json!("m1")));
}

/// An agent `a` with an MCP server's tool `m` and so many calls of the model in a turn; two messages wait for it.
fn two_messages<'h>(
    home: &'h Home,
    mock: &Mock,
    server: &McpServer,
    most: u32,
) -> (Daemon<'h>, Client, Client, Client) {
    home.agent("a", mock, &format!("max_mcp_rounds = {most}\n{}", server.section("s", "")));
    let (daemon, mut runtime) = home.serve();
    let mut first = Client::sender(&home.socket("a"), "1");
    assert_eq!(first.expect()["result"]["status"], "delivered");
    let mut second = Client::sender(&home.socket("a"), "2");
    assert_eq!(second.expect()["result"]["status"], "queued");
    runtime.human();
    (daemon, runtime, first, second)
}

#[test]
fn the_cap_of_calls_in_a_turn_ends_it_and_the_agent_moves_on() {
    let script = || [calls(&[("m1", "m", "{}")]), calls(&[("m2", "m", "{}")]), says(&["done"])];
    let server = McpServer::new(Era::Session, &["m"]);
    // The control: with one call more the turn comes to its end.
    let (mock, home) = (Mock::with(script()), Home::empty());
    let (_daemon, mut runtime, mut first, _second) = two_messages(&home, &mock, &server, 3);
    assert_eq!(runtime.says(1, "1")["result"]["content"][0]["text"], "done");
    assert_eq!(heard(&mut first), ("done".to_owned(), json!("end_turn")));

    let (mock, home) = (Mock::with(script()), Home::empty());
    let (_daemon, mut runtime, mut first, mut second) = two_messages(&home, &mock, &server, 2);
    let before = server.got("tools/call").len();
    assert_eq!(runtime.says(1, "1")["result"], json!({ "stop_reason": "max_iterations", "content": [] }));
    assert_eq!((server.got("tools/call").len() - before, mock.asked().len()), (2, 2));
    assert_eq!(heard(&mut first), (String::new(), json!("end_turn")));
    assert_eq!(second.expect()["method"], "delivered");
    runtime.human();
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "done");
    assert_eq!(heard(&mut second), ("done".to_owned(), json!("end_turn")));
    // No call is left without its result: the provider would refuse the conversation for good.
    let said: Vec<String> = mock.last().messages().iter().map(what).collect();
    assert_eq!(said, ["text", "tool_use m1", "tool_result m1", "tool_use m2", "tool_result m2", "text"]);
}

/// A message's first block, in words.
fn what(message: &Value) -> String {
    let block = &message["content"][0];
    let id = block.get("id").or(block.get("tool_use_id")).and_then(Value::as_str).unwrap_or_default();
    format!("{} {id}", block["type"].as_str().unwrap()).trim_end().to_owned()
}

#[test]
fn a_provider_that_only_pauses_is_not_asked_for_ever() {
    let mock = Mock::with([pauses("a"), pauses("b"), says(&["next"])]);
    let (home, server) = (Home::empty(), McpServer::new(Era::Session, &["m"]));
    let (_daemon, mut runtime, mut first, mut second) = two_messages(&home, &mock, &server, 2);
    assert_eq!(runtime.says(1, "1")["result"], json!({ "stop_reason": "max_iterations", "content": [] }));
    assert_eq!(mock.asked().len(), 2);
    assert_eq!(heard(&mut first), ("ab".to_owned(), json!("end_turn")));
    assert_eq!(second.expect()["method"], "delivered");
    runtime.human();
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "next");
}
