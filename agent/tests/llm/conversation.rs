//! The log: what is in it, and what a crash leaves of it.

use crate::{
    mock::{Answer, Gate, Mock, calls, says},
    support::{Client, Home, tool_result, turn, user},
};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt},
    process::Command,
    sync::Arc,
};

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn every_message_is_a_line() {
    let mock = Mock::with([calls(&[("t1", "bash", "{\"command\":\"ls\"}")]), says(&["two ", "files"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    // A message that is laid out over lines is one line all the same.
    let request = "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"turn\",\"params\":{\"messages\":[{\"role\":\"user\",\"content\":[{\n\"type\":\r\n\"text\",\"text\":\"z\u{fc}rich\\n\"}]}]}}";
    runtime.raw(&crate::support::frame(request.as_bytes()));
    runtime.answer();
    let mut failed = tool_result("t1", "a b");
    failed["is_error"] = json!(true);
    runtime.write(&turn(2, json!([failed])));
    runtime.answer();
    let mut lines = home.logged("a");
    for line in &mut lines {
        let ts = line.as_object_mut().unwrap().remove("ts").unwrap();
        let ts = ts.as_str().unwrap();
        assert!(ts.len() == 24 && ts.starts_with("20") && ts.ends_with('Z'), "{ts}");
    }
    let usage =
        json!({ "input_tokens": 10, "output_tokens": 7, "cache_read_tokens": 3, "cache_write_tokens": 0 });
    assert_eq!(
        lines,
        [
            user("z\u{fc}rich\n"),
            json!({ "role": "assistant", "content": [], "tool_calls": [{ "id": "t1", "name": "bash", "input": { "command": "ls" } }], "usage": usage }),
            json!({ "role": "tool", "tool_call_id": "t1", "content": [{ "type": "text", "text": "a b" }], "is_error": true }),
            json!({ "role": "assistant", "content": [{ "type": "text", "text": "two files" }], "usage": usage }),
        ]
    );
    assert_eq!((mode(&home.log("a")), mode(home.log("a").parent().unwrap())), (0o600, 0o700));
}

#[test]
fn a_killed_worker_goes_on_where_it_was() {
    let mock = Mock::with([says(&["one"]), calls(&[("t1", "bash", "{}")])]);
    let home = Home::with(&mock);
    let (daemon, mut runtime) = home.serve();
    let _sender = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.says(1, "1");
    runtime.says(2, "2");
    daemon.kill();
    assert!(runtime.next().is_none(), "the runtime hears that it is over");
    let gate = Arc::new(Gate::default());
    mock.then([Answer::Gated(Vec::new(), Arc::clone(&gate), b": nothing\n\n".to_vec())]);
    let (daemon, mut runtime) = home.serve();
    // In mid-turn: the message has been taken, the provider has been asked, nobody was answered.
    runtime.write(&turn(1, json!([tool_result("t1", "three")])));
    mock.wait_asked(3);
    assert_eq!(mock.last().messages().len(), 5);
    daemon.kill();
    gate.open();
    mock.then([says(&["four"])]);
    let (daemon, mut runtime) = home.serve();
    assert_eq!(runtime.says(1, "go on")["result"]["content"][0]["text"], "four");
    let sent = mock.last();
    assert_eq!(sent.messages().len(), 6, "nothing is lost and nothing is there twice");
    assert_eq!(sent.messages()[4]["content"][0]["content"][0]["text"], "three");
    drop(daemon);
}

#[test]
fn a_torn_line_is_removed_and_reported_and_the_rest_kept() {
    let mock = Mock::with([says(&["one"]), says(&["two"])]);
    let home = Home::with(&mock);
    let daemon = home.start();
    Client::runtime(&home.socket("a")).says(1, "1");
    daemon.stop();
    let whole = fs::read(home.log("a")).unwrap();
    let mut log = fs::File::options().append(true).open(home.log("a")).unwrap();
    log.write_all("{\"ts\":\"2026-01-01T00:00:00Z\",\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"z\u{fc}".as_bytes()).unwrap();
    let daemon = home.start();
    assert!(daemon.log().contains("the last line was cut off"), "{}", daemon.log());
    assert_eq!(fs::read(home.log("a")).unwrap(), whole);
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "2")["result"]["content"][0]["text"], "two");
    assert_eq!(mock.last().messages().len(), 3);
    assert_eq!(home.logged("a").len(), 4);
}

#[test]
fn a_log_in_which_somebody_wrote_is_used_as_far_as_it_can_be() {
    let mock = Mock::with([says(&["two"])]);
    let home = Home::with(&mock);
    fs::create_dir_all(home.log("a").parent().unwrap()).unwrap();
    let lines = [
        "\u{0}\u{1}garbage".to_owned(),
        user("1").to_string(),
        "{\"role\":\"robot\",\"content\":[]}".to_owned(),
        tool_result("nobody asked", "x").to_string(),
        json!({ "role": "assistant", "content": [{ "type": "text", "text": "one" }] }).to_string(),
        String::new(),
        // The last one lacks its line end only.
        user("2").to_string(),
    ];
    fs::write(home.log("a"), lines.join("\n")).unwrap();
    let daemon = home.start();
    assert!(daemon.log().contains("2 lines are no messages"), "{}", daemon.log());
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "3")["result"]["content"][0]["text"], "two");
    let roles: Vec<Value> = mock.last().messages().iter().map(|m| m["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user", "user"]);
    let text = fs::read_to_string(home.log("a")).unwrap();
    assert!(text.starts_with(&lines.join("\n")), "what was there is there");
}

#[test]
fn a_log_reader_can_read_and_nothing_more() {
    let mock = Mock::with([says(&["one"])]);
    let home = Home::empty();
    home.profile("a", &format!(
        "log_reader = 12345\n[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key = \"sk-12345678\"\nbase_url = \"{}\"\n",
        mock.url
    ));
    let _daemon = home.start();
    Client::runtime(&home.socket("a")).says(1, "1");
    // Read only for the group class, which stands for the named user; nothing for others.
    assert_eq!((mode(&home.log("a")), mode(home.log("a").parent().unwrap())), (0o640, 0o750));
    if fs::metadata(home.log("a")).unwrap().uid() != 0 {
        return;
    }
    // As a container has it: the log's directory, mounted somewhere that this user can reach.
    for dir in [
        home.path(""),
        home.path(".local"),
        home.path(".local/share"),
        home.path(".local/share/ringfence"),
        home.path(".local/share/ringfence/logs"),
    ] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let as_user = |uid: u32, command: &str| {
        use std::os::unix::process::CommandExt;
        let script = format!("{command} {}", home.log("a").display());
        Command::new("sh").args(["-c", &script]).uid(uid).gid(uid).output().unwrap().status.success()
    };
    assert!(as_user(12345, "test -s") && as_user(12345, "grep -q one <"));
    assert!(!as_user(12345, "echo x >>"));
    assert!(!as_user(12346, "grep -q one <"));
}

#[test]
fn a_disk_that_is_full_is_an_error_and_not_a_lost_message() {
    // Every write to /dev/full fails: but a log is a regular file, so it is refused when it is opened.
    let mock = Mock::new();
    let home = Home::with(&mock);
    fs::create_dir_all(home.log("a").parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", home.log("a")).unwrap();
    home.agent("b", &mock, "");
    let daemon = home.start();
    let status = daemon.status("a");
    assert_eq!(status["state"], "failed");
    assert!(status["error"].as_str().unwrap().contains("conversation.ndjson"), "{status}");
    assert_eq!(daemon.status("b")["state"], "running", "the others are served");
}

#[test]
fn another_provider_goes_on_with_the_same_conversation() {
    let mock = Mock::with([calls(&[("t1", "bash", "{}")]), says(&["ok"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.says(1, "1");
    runtime.write(&turn(2, json!([tool_result("t1", "r")])));
    runtime.answer();
    home.profile("a", &format!(
        "[llm.m]\nprovider = \"openai\"\nmodel = \"gpt\"\napi_key = \"sk-12345678\"\nbase_url = \"{}/v1\"\n", mock.url
    ));
    let chunk = crate::mock::chunk(json!({ "content": "moved" }), Some("stop"));
    // The same connection: it is in force from some turn on.
    let sent = crate::support::eventually("the new profile is in force", || {
        mock.then([Answer::Stream(crate::mock::openai(std::slice::from_ref(&chunk)))]);
        runtime.says(3, "2");
        let last = mock.last();
        (last.body["model"] == "gpt").then_some(last)
    });
    assert_eq!(
        sent.messages()[..3],
        [
            json!({ "role": "user", "content": "1" }),
            json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "t1", "type": "function", "function": { "name": "bash", "arguments": "{}" } }] }),
            json!({ "role": "tool", "tool_call_id": "t1", "content": "r" }),
        ]
    );
}
