//! `send`: one truth for each sender, and what subscribers hear.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, calls, says, text_block},
    support::{Client, Home, eventually, send, text_of, tool_result, turn, user},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn method(frame: &Value) -> &str {
    frame["method"].as_str().unwrap_or_default()
}

#[test]
fn without_a_runtime_a_send_is_told_so() {
    let home = Home::with(&Mock::new());
    let _daemon = home.start();
    let answer = Client::sender(&home.socket("a"), "x").expect();
    assert_eq!(answer["error"], json!({ "code": -32000, "message": "runtime not connected" }));
    assert_eq!(answer["id"], 1);
}

#[test]
fn a_message_goes_round() {
    let mock = Mock::with([calls(&[("t1", "bash", r#"{"command":"ls"}"#)]), says(&["Hel", "lo"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::connect(&home.socket("a"));
    let content = json!([{ "type": "text", "text": "hi" }, { "type": "image", "media_type": "image/png", "data": "AA==" }]);
    sender.write(&json!({ "jsonrpc": "2.0", "id": "x", "method": "send", "params": { "content": content } }));
    assert_eq!(sender.expect(), json!({ "jsonrpc": "2.0", "id": "x", "result": { "status": "delivered" } }));
    let heard = runtime.expect();
    assert_eq!(
        heard,
        json!({ "jsonrpc": "2.0", "method": "human_message", "params": { "content": content } })
    );
    runtime.write(&turn(1, json!([{ "role": "user", "content": content }])));
    let (answer, streamed) = runtime.answer();
    let call = json!({ "id": "t1", "name": "bash", "input": { "command": "ls" } });
    assert_eq!(answer["result"], json!({ "stop_reason": "tool_use", "tool_calls": [call] }));
    let kinds: Vec<&str> = streamed.iter().map(|f| f["params"]["data"]["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["tool_use_start", "tool_use_input"]);
    assert_eq!(
        streamed[0]["params"],
        json!({ "stream": "content", "data": { "type": "tool_use_start", "id": "t1", "name": "bash" } })
    );
    runtime.write(&turn(2, json!([tool_result("t1", "main.rs")])));
    let (answer, streamed) = runtime.answer();
    assert_eq!(
        answer["result"],
        json!({ "stop_reason": "end_turn", "content": [{ "type": "text", "text": "Hello" }] })
    );
    assert_eq!(text_of(&streamed), "Hello");
    // The sender heard the text, nothing of the tools, and the end.
    assert_eq!(
        sender.expect()["params"],
        json!({ "stream": "content", "data": { "type": "text", "text": "Hel" } })
    );
    assert_eq!(text_of(&[sender.expect()]), "lo");
    assert_eq!(sender.expect(), json!({ "jsonrpc": "2.0", "method": "end_turn" }));
    assert!(sender.is_silent() && runtime.is_silent());
}

#[test]
fn a_queued_sender_hears_nothing_before_delivered() {
    let gate = Arc::new(Gate::default());
    let events = anthropic_events(&[text_block(&["first"])], "end_turn");
    let mock = Mock::with([
        Answer::Gated(events[..4].concat(), Arc::clone(&gate), events[4..].concat()),
        says(&["second"]),
        says(&["third"]),
    ]);
    let home = Home::with(&mock);
    let (daemon, mut runtime) = home.serve();
    let mut first = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.write(&turn(1, json!([user("1")])));
    assert_eq!(text_of(&[first.expect()]), "first");
    let mut second = Client::sender(&home.socket("a"), "2");
    assert_eq!(second.expect(), json!({ "jsonrpc": "2.0", "id": 1, "result": { "status": "queued" } }));
    // One that does not wait: its message is delivered all the same.
    let mut third = Client::sender(&home.socket("a"), "3");
    assert_eq!(third.expect()["result"]["status"], "queued");
    drop(third);
    assert!(second.is_silent());
    eventually("both wait", || (daemon.status("a")["worker"]["waiting"] == 2).then_some(()));
    gate.open();
    assert_eq!(method(&first.expect()), "end_turn");
    runtime.answer();
    assert_eq!(second.expect(), json!({ "jsonrpc": "2.0", "method": "delivered" }));
    assert_eq!(runtime.human()[0]["text"], "2");
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "second");
    assert_eq!(text_of(&[second.expect()]), "second");
    assert_eq!(method(&second.expect()), "end_turn");
    assert_eq!(runtime.human()[0]["text"], "3");
    assert_eq!(runtime.says(3, "3")["result"]["content"][0]["text"], "third");
    assert!(first.is_silent(), "what others are told is not for those who are done");
}

#[test]
fn a_dead_runtime_is_the_truth_for_everyone_who_waits() {
    let home = Home::with(&Mock::new());
    let (_daemon, mut runtime) = home.serve();
    let mut first = Client::delivered(&home.socket("a"), "1", &mut runtime);
    let mut second = Client::sender(&home.socket("a"), "2");
    assert_eq!(second.expect()["result"]["status"], "queued");
    drop(runtime);
    for sender in [&mut first, &mut second] {
        let gone = sender.expect();
        assert_eq!(
            gone,
            json!({ "jsonrpc": "2.0", "method": "error", "params": { "message": "agent disconnected" } })
        );
        assert!(sender.is_silent(), "one truth, and no `delivered`");
    }
    let mut third = Client::sender(&home.socket("a"), "3");
    assert_eq!(third.expect()["error"]["code"], -32000);
}

#[test]
fn a_runtime_that_dies_in_mid_turn_leaves_a_usable_agent() {
    let gate = Arc::new(Gate::default());
    let mock = Mock::with([
        Answer::Gated(Vec::new(), Arc::clone(&gate), b": nothing\n\n".to_vec()),
        says(&["again"]),
    ]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.write(&turn(1, json!([user("1")])));
    mock.wait_asked(1);
    drop(runtime);
    assert_eq!(method(&sender.expect()), "error");
    let mut runtime = Client::runtime(&home.socket("a"));
    let _sender = Client::delivered(&home.socket("a"), "2", &mut runtime);
    assert_eq!(runtime.says(1, "2")["result"]["content"][0]["text"], "again");
    // What was said before is kept, and not merged with what came after.
    assert_eq!(mock.last().messages().len(), 2);
    gate.open();
}

#[test]
fn a_second_runtime_is_refused_while_the_first_lives() {
    let mock = Mock::with([says(&["mine"])]);
    let home = Home::with(&mock);
    let daemon = home.start();
    let mut first = Client::runtime(&home.socket("a"));
    eventually("it is registered", || (daemon.status("a")["worker"]["runtime"] == true).then_some(()));
    let mut second = Client::runtime(&home.socket("a"));
    assert_eq!(second.expect()["error"]["code"], -32600);
    assert!(second.next().is_none());
    assert_eq!(first.says(1, "x")["result"]["content"][0]["text"], "mine");
    drop(first);
    // At once: the news of the first one's end may come after its successor.
    let mut third = Client::runtime(&home.socket("a"));
    assert!(third.is_silent());
    assert_eq!(Client::sender(&home.socket("a"), "x").expect()["result"]["status"], "delivered");
    third.human();
}

#[test]
fn a_failed_turn_is_an_error_for_its_subscriber_and_the_queue_moves_on() {
    let mock = Mock::with([
        Answer::Whole(
            429,
            "Retry-After: 7\r\n".into(),
            br#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#.into(),
        ),
        says(&["better"]),
    ]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut first = Client::delivered(&home.socket("a"), "1", &mut runtime);
    let mut second = Client::sender(&home.socket("a"), "2");
    assert_eq!(second.expect()["result"]["status"], "queued");
    let answer = runtime.says(1, "1");
    assert_eq!(
        answer["error"],
        json!({ "code": 429, "message": "slow down", "data": { "type": "rate_limit_error", "retry_after": 7 } })
    );
    assert_eq!(
        first.expect(),
        json!({ "jsonrpc": "2.0", "method": "error", "params": { "message": "slow down" } })
    );
    assert_eq!(method(&second.expect()), "delivered");
    runtime.human();
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "better");
    // The failed turn's message is still there, as it came.
    let sent = mock.last();
    let texts: Vec<&str> =
        sent.messages().iter().map(|m| m["content"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["1", "2"]);
}

#[test]
fn wrong_params_of_a_turn_do_not_leave_the_agent_busy() {
    let home = Home::with(&Mock::new());
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.write(&json!({ "jsonrpc": "2.0", "id": 1, "method": "turn", "params": { "messages": 7 } }));
    assert_eq!(runtime.answer().0["error"]["code"], -32602);
    assert_eq!(method(&sender.expect()), "error");
    assert_eq!(Client::sender(&home.socket("a"), "2").expect()["result"]["status"], "delivered");
}

#[test]
fn the_queue_is_bounded() {
    let home = Home::with(&Mock::new());
    let (_daemon, mut runtime) = home.serve();
    let mut senders: Vec<Client> =
        (0..66).map(|i| Client::sender(&home.socket("a"), &i.to_string())).collect();
    let answers: Vec<Value> = senders.iter_mut().map(Client::expect).collect();
    let count = |status: &str| answers.iter().filter(|a| a["result"]["status"] == status).count();
    assert_eq!((count("delivered"), count("queued")), (1, 64));
    let refused = answers.iter().find(|a| a.get("error").is_some()).unwrap();
    assert_eq!(refused["error"]["code"], -32001);
    runtime.human();
}

#[test]
fn a_connection_sends_one_message_at_a_time() {
    let mock = Mock::with([says(&["1"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::sender(&home.socket("a"), "1");
    sender.expect();
    sender.write(&send("2"));
    assert_eq!(sender.expect()["error"]["code"], -32600);
    runtime.human();
    runtime.says(1, "1");
    sender.expect();
    assert_eq!(method(&sender.expect()), "end_turn");
    sender.write(&send("3"));
    assert_eq!(sender.expect()["result"]["status"], "delivered");
}
