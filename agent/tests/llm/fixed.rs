//! What is fixed on this side of the socket, whatever the runtime or the provider says: where a request goes, with which key
//! and model, for how long; and where the files are.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, says, text_block},
    support::{Client, Home, eventually, turn, user},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::{fs, sync::Arc};

#[test]
fn a_turn_sets_neither_address_nor_model_nor_header_nor_key() {
    let (mock, elsewhere) = (Mock::with([says(&["one"]), says(&["two"])]), Mock::new());
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let mut request = turn(1, json!([user("x")]));
    for (key, value) in [
        ("base_url", json!(elsewhere.url)),
        ("url", json!(elsewhere.url)),
        ("model", json!("dearest")),
        ("provider", json!("openai")),
        ("api_key", json!("sk-of-the-container")),
        ("headers", json!({ "x-api-key": "sk-of-the-container" })),
        ("max_tokens", json!(7)),
        ("options", json!({ "temperature": 2, "model": "dearest" })),
        ("stream", json!(false)),
    ] {
        request["params"][key] = value.clone();
        request[key] = value;
    }
    runtime.write(&request);
    assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "one");
    runtime.says(2, "and without all that");
    let [with, without] = mock.asked().try_into().unwrap();
    assert_eq!((&with.body["model"], &with.body["max_tokens"]), (&json!("model-of-a"), &json!(8192)));
    assert_eq!(with.header("x-api-key"), Some("sk-secret-key-of-a"));
    assert_eq!((&with.line, &with.headers.len()), (&without.line, &without.headers.len()));
    let keys = |body: &Value| body.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&with.body), keys(&without.body), "nothing of it is passed on");
    assert_eq!(elsewhere.asked().len(), 0);
}

#[test]
fn a_redirect_of_the_provider_is_not_followed() {
    let elsewhere = Mock::with([says(&["caught"])]);
    let location = format!("Location: {}/v1/messages\r\n", elsewhere.url);
    let mock = Mock::with([Answer::Whole(307, location, Vec::new()), says(&["straight"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    assert_eq!(runtime.says(1, "x")["error"]["code"], 307);
    assert_eq!(elsewhere.asked().len(), 0, "the key went where the profile does not say");
    assert_eq!(runtime.says(2, "x")["result"]["content"][0]["text"], "straight");
}

#[test]
fn a_provider_that_falls_silent_is_given_up() {
    // One that says nothing, one in the middle of what it says.
    let (first, second) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let begun = anthropic_events(&[text_block(&["so far"])], "end_turn");
    let mock = Mock::with([
        Answer::Gated(Vec::new(), Arc::clone(&first), b": nothing\n\n".to_vec()),
        Answer::Gated(begun[..4].concat(), Arc::clone(&second), begun[4..].concat()),
        says(&["awake"]),
    ]);
    let home = Home::empty();
    home.agent("a", &mock, "timeout = 1");
    let (_daemon, mut runtime) = home.serve();
    for id in [1, 2] {
        let error = &runtime.says(id, "x")["error"];
        assert_eq!(error["code"], -32603);
        assert_eq!(error["message"], "the provider was silent for too long");
    }
    [first, second].iter().for_each(|gate| gate.open());
    // A second is little where the machine is busy: as often as it takes.
    let mut id = 2;
    eventually("an answer", || {
        id += 1;
        mock.then([says(&["awake"])]);
        (runtime.says(id, "x")["result"]["content"][0]["text"] == "awake").then_some(())
    });
}

#[test]
fn files_are_where_the_environment_says() {
    let mock = Mock::with([says(&["ok"])]);
    let home = Home::with(&mock);
    let (config, data) = (home.path("c"), home.path("d"));
    fs::create_dir_all(config.join("ringfence/agents")).unwrap();
    fs::rename(home.path(".config/ringfence/agents/a.toml"), config.join("ringfence/agents/b.toml")).unwrap();
    let mut start = home.ringfence(&["agent", "start"]);
    start.env("XDG_CONFIG_HOME", &config).env("XDG_DATA_HOME", &data);
    let mut child = start.spawn().unwrap();
    let mut runtime = Client::runtime(&config.join("ringfence/sockets/b.sock"));
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "ok");
    let log = fs::read_to_string(data.join("ringfence/logs/b/conversation.ndjson")).unwrap();
    assert_eq!(log.lines().count(), 2);
    assert!(!home.path(".local").exists(), "something is where the environment did not say");
    // Ctrl-C is as good as SIGTERM.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let ended = eventually("the daemon ends", || child.try_wait().unwrap());
    assert!(ended.success() && !config.join("ringfence/sockets/b").exists());
}
