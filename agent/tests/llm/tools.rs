//! Local tool calls: their results, and what happens when they do not come.

use crate::{
    mock::{Answer, Mock, anthropic_events, calls, says, tool_block},
    support::{Client, Home, text_of, tool_result, turn, user},
};
use serde_json::{Value, json};

/// Ids of the tool results in the last message that the provider was sent.
fn results(mock: &Mock) -> Vec<Value> {
    mock.last().messages().last().unwrap()["content"].as_array().unwrap().clone()
}

#[test]
fn results_go_back_in_the_order_of_the_calls_with_all_that_is_in_them() {
    let three = [("t1", "bash", "{}"), ("t2", "read_file", "{}"), ("t3", "bash", "{}")];
    let mock = Mock::with([calls(&three), says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let answer = runtime.says(1, "x");
    assert_eq!(answer["result"]["tool_calls"].as_array().unwrap().len(), 3);
    let failed = json!({ "role": "tool", "tool_call_id": "t2", "is_error": true, "content": [
        { "type": "text", "text": "one" }, { "type": "text", "text": "two" },
        { "type": "image", "media_type": "image/png", "data": "AA==" } ] });
    let empty = json!({ "role": "tool", "tool_call_id": "t3", "content": [] });
    runtime.write(&turn(2, json!([empty, failed, tool_result("t1", "first")])));
    runtime.answer();
    let source = json!({ "type": "base64", "media_type": "image/png", "data": "AA==" });
    assert_eq!(
        json!(results(&mock)),
        json!([
            { "type": "tool_result", "tool_use_id": "t1", "content": [{ "type": "text", "text": "first" }] },
            { "type": "tool_result", "tool_use_id": "t2", "is_error": true, "content": [
                { "type": "text", "text": "one" }, { "type": "text", "text": "two" }, { "type": "image", "source": source } ] },
            { "type": "tool_result", "tool_use_id": "t3", "cache_control": { "type": "ephemeral" } },
        ])
    );
}

#[test]
fn a_credential_in_streamed_arguments_is_taken_out_however_it_is_escaped_and_cut() {
    let pieces = ["{\"command\":\"echo sk-sec", "ret\\u002", "dkey-of-a | \\\"base64\\\" #\\u00e9\"", "}"];
    let answer = anthropic_events(&[tool_block("t1", "bash", &pieces)], "tool_use");
    let mock = Mock::with([Answer::Stream(answer.concat())]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.write(&turn(1, json!([user("x")])));
    let (answer, streamed) = runtime.answer();
    let clean = json!({ "command": "echo [redacted] | \"base64\" #\u{e9}" });
    assert_eq!(text_of(&streamed), r#"{"command":"echo [redacted] | \"base64\" #\u00e9"}"#);
    assert_eq!(answer["result"]["tool_calls"][0]["input"], clean);
    assert_eq!(home.logged("a")[1]["tool_calls"][0]["input"], clean);
}

#[test]
fn results_that_do_not_fit_the_calls_are_refused_and_can_be_sent_again() {
    let mock = Mock::with([calls(&[("t1", "bash", "{}"), ("t2", "bash", "{}")]), says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.says(1, "x");
    for (results, what) in [
        (json!([tool_result("t1", "")]), "t2"),
        (json!([tool_result("t1", ""), tool_result("t1", "")]), "t1"),
        (json!([tool_result("t1", ""), tool_result("t2", ""), tool_result("t3", "")]), "t3"),
        (json!([]), "empty"),
    ] {
        runtime.write(&turn(2, results));
        let error = runtime.answer().0["error"].clone();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains(what), "{error}");
    }
    runtime.write(&turn(3, json!([tool_result("t1", "a"), tool_result("t2", "b")])));
    assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "ok");
}

#[test]
fn calls_that_nobody_answered_are_answered_before_the_next_message() {
    let mock = Mock::with([calls(&[("t1", "bash", "{}")]), says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.says(1, "x");
    drop(runtime);
    let mut runtime = Client::runtime(&home.socket("a"));
    assert_eq!(runtime.says(1, "again")["result"]["content"][0]["text"], "ok");
    let sent = mock.last();
    let result = &sent.messages()[2]["content"][0];
    assert_eq!((&result["tool_use_id"], &result["is_error"]), (&json!("t1"), &json!(true)));
    assert_eq!(sent.messages()[3]["content"][0]["text"], "again");
    assert_eq!(home.logged("a")[2]["is_error"], true, "the log has it too");
}

#[test]
fn the_cap_of_rounds_answers_frees_the_agent_and_moves_on() {
    let call = |id| calls(&[(id, "bash", "{}")]);
    let mock = Mock::with([call("t1"), call("t2"), says(&["next"])]);
    let home = Home::empty();
    home.agent("a", &mock, "max_rounds = 2");
    let (_daemon, mut runtime) = home.serve();
    let mut first = Client::sender(&home.socket("a"), "1");
    first.expect();
    let mut second = Client::sender(&home.socket("a"), "2");
    assert_eq!(second.expect()["result"]["status"], "queued");
    runtime.human();
    assert_eq!(runtime.says(1, "1")["result"]["stop_reason"], "tool_use");
    runtime.write(&turn(2, json!([tool_result("t1", "")])));
    assert_eq!(runtime.answer().0["result"], json!({ "stop_reason": "max_iterations", "content": [] }));
    let end = first.expect();
    assert_eq!(
        (&end["method"], &end["params"]["stop_reason"]),
        (&json!("end_turn"), &json!("max_iterations"))
    );
    assert_eq!(second.expect()["method"], "delivered");
    runtime.human();
    assert_eq!(runtime.says(3, "2")["result"]["content"][0]["text"], "next");
    assert_eq!(second.expect()["method"], "output");
    let end = second.expect();
    assert_eq!((&end["method"], end.get("params")), (&json!("end_turn"), None), "the model was done");
    let sent = mock.last();
    assert_eq!(sent.messages()[4]["content"][0]["is_error"], true, "the call that was not run has a result");
}

#[test]
fn send_says_that_the_limit_of_rounds_was_reached() {
    let mock = Mock::with([calls(&[("t1", "bash", "{}")])]);
    let home = Home::empty();
    home.agent("a", &mock, "max_rounds = 1");
    let (_daemon, mut runtime) = home.serve();
    let sent = std::thread::scope(|scope| {
        let sent = scope.spawn(|| home.run(&["agent", "send", "a", "Go"]));
        runtime.human();
        assert_eq!(runtime.says(1, "Go")["result"]["stop_reason"], "max_iterations");
        sent.join().unwrap()
    });
    assert!(
        !sent.status && sent.err.contains("a was not done when its limit of rounds was reached"),
        "{}",
        sent.err
    );
}

#[test]
fn a_runtime_that_stops_by_itself_frees_the_agent() {
    let mock = Mock::with([calls(&[("t1", "bash", "{}")]), says(&["next"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.says(1, "1");
    let mut request = turn(2, json!([tool_result("t1", "not run")]));
    request["params"]["stop"] = json!("max_iterations");
    runtime.write(&request);
    assert_eq!(runtime.answer().0["result"], json!({ "stop_reason": "max_iterations", "content": [] }));
    assert_eq!(sender.expect()["method"], "end_turn");
    assert_eq!(mock.asked().len(), 1, "the provider was not asked again");
    assert_eq!(runtime.says(3, "2")["result"]["content"][0]["text"], "next");
}

#[test]
fn a_runtime_that_falls_silent_is_given_up_but_may_come_back() {
    // On a machine that stands still for the second that the runtime has, the first is given up before the second comes: as
    // often as it takes.
    let mut tries = 0..50;
    while tries.next().expect("a second message that comes within a second") < 50 {
        let mock = Mock::with([calls(&[("t1", "bash", "{}")]), says(&["late"])]);
        let home = Home::empty();
        home.agent("a", &mock, "runtime_timeout = 1");
        let (_daemon, mut runtime) = home.serve();
        let mut first = Client::delivered(&home.socket("a"), "1", &mut runtime);
        runtime.says(1, "1");
        let mut second = Client::sender(&home.socket("a"), "2");
        if second.expect()["result"]["status"] != "queued" {
            continue;
        }
        assert_eq!(first.expect()["method"], "error");
        assert_eq!(second.expect()["method"], "delivered");
        runtime.human();
        runtime.write(&turn(2, json!([tool_result("t1", "")])));
        assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "late");
        return;
    }
}

#[test]
fn tools_are_checked_when_they_are_sent() {
    let mock = Mock::with([says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let tool = |name: &str| json!({ "name": name, "description": "", "parameters": { "type": "object" } });
    for tools in [
        json!([tool("bash"), tool("bash")]),
        json!([tool("")]),
        json!([{ "name": "x", "parameters": [] }]),
        json!("bash"),
        json!([{ "description": "x" }]),
    ] {
        runtime.write(&json!({ "jsonrpc": "2.0", "id": 1, "method": "turn", "params": { "tools": tools, "messages": [user("x")] } }));
        assert_eq!(runtime.answer().0["error"]["code"], -32602, "{tools}");
    }
    assert_eq!(runtime.says(2, "x")["result"]["content"][0]["text"], "ok");
    assert!(mock.last().body.get("tools").is_none());
}
