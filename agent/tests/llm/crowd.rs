//! Many agents at once: each is on its own.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, says, text_block},
    support::{Client, Home, eventually, turn, user},
};
use serde_json::json;
use std::{sync::Arc, thread, time::Duration};

const AGENTS: usize = 200;

#[test]
fn two_hundred_agents_at_once_do_not_wait_for_one_that_is_stuck() {
    let gate = Arc::new(Gate::default());
    let events = anthropic_events(&[text_block(&["at last"])], "end_turn");
    // It never answers, until the test lets it.
    let never = Mock::with([Answer::Gated(events[..2].concat(), Arc::clone(&gate), events[2..].concat())]);
    let mock = Mock::new();
    let home = Home::empty();
    home.agent("stuck", &never, "");
    for i in 0..AGENTS {
        home.agent(&format!("a{i}"), &mock, "");
    }
    let _daemon = home.start();
    let mut stuck = Client::runtime(&home.socket("stuck"));
    stuck.write(&turn(1, json!([user("x")])));
    never.wait_asked(1);
    let mut runtimes: Vec<(Client, Client)> = (0..AGENTS)
        .map(|i| {
            let socket = home.socket(&format!("a{i}"));
            (Client::runtime(&socket), Client::connect(&socket))
        })
        .collect();
    mock.then((0..2 * AGENTS).map(|_| says(&["done"])));
    thread::scope(|scope| {
        for (i, (runtime, sender)) in runtimes.iter_mut().enumerate() {
            scope.spawn(move || {
                let said = format!("of agent {i}");
                sender.write(&crate::support::send(&said));
                assert_eq!(sender.expect()["result"]["status"], "delivered");
                assert_eq!(runtime.human()[0]["text"], said);
                for id in [1, 2] {
                    let answer = runtime.says(id, &said);
                    assert_eq!(answer["result"]["content"][0]["text"], "done", "{answer}");
                }
                assert_eq!(sender.expect()["params"]["data"]["text"], "done");
                assert_eq!(sender.expect()["method"], "end_turn");
            });
        }
    });
    // All of them were answered while it was stuck, which its gate sees to, however long that took.
    assert!(stuck.is_silent(), "it still waits");
    // Each with its own model and its own conversation.
    for i in 0..AGENTS {
        let model = format!("model-of-a{i}");
        let asked: Vec<_> = mock.asked().into_iter().filter(|asked| asked.body["model"] == model).collect();
        let lengths: Vec<usize> = asked.iter().map(|asked| asked.messages().len()).collect();
        assert_eq!(lengths, [1, 3], "{model}");
        assert!(
            asked.iter().all(|asked| asked.header("x-api-key") == Some(&format!("sk-secret-key-of-a{i}")))
        );
        assert_eq!(home.logged(&format!("a{i}")).len(), 4);
    }
    gate.open();
    assert_eq!(stuck.answer().0["result"]["content"][0]["text"], "at last");
}

#[test]
fn a_new_agent_is_served_while_another_is_stuck() {
    let gate = Arc::new(Gate::default());
    let never = Mock::with([Answer::Gated(Vec::new(), Arc::clone(&gate), b": nothing\n\n".to_vec())]);
    let mock = Mock::with([says(&["new"])]);
    let home = Home::empty();
    home.agent("stuck", &never, "");
    let daemon = home.start();
    let mut stuck = Client::runtime(&home.socket("stuck"));
    stuck.write(&turn(1, json!([user("x")])));
    never.wait_asked(1);
    home.agent("late", &mock, "");
    eventually("it is served", || (daemon.status("late")["state"] == "running").then_some(()));
    assert_eq!(Client::runtime(&home.socket("late")).says(1, "x")["result"]["content"][0]["text"], "new");
    // So is a change of the one that is stuck: it holds from its next turn on.
    home.agent("stuck", &mock, "");
    thread::sleep(Duration::from_millis(50));
    gate.open();
    assert_eq!(stuck.answer().0["error"]["code"], -32603);
}
