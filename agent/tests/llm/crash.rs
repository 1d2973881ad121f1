//! What is killed in mid-turn, and a disk that is full: nothing that was acknowledged is lost, the agent is usable again.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, says, text_block},
    support::{Client, Home, PATIENCE, Port, eventually, text_of, turn, user},
};
use serde_json::{Value, json};
use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
};

/// What a process of ours is told by.
const TOLD: &str = "RINGFENCE_TEST_PROCESS";

/// This very program again, as one of the processes below; ended with the test.
struct Process {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn start(name: &str, told: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", &format!("crash::{name}"), "--ignored", "--nocapture"])
            .env(TOLD, told)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    /// What it says behind this word.
    fn says(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it ended without a word");
            // The test harness may have begun the line.
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "a process of another test's: the provider that is killed"]
fn provider() {
    let Ok(port) = env::var(TOLD) else { return };
    let events = anthropic_events(&[text_block(&["half of ", "it"])], "end_turn");
    let mock = Mock::at(port.parse().unwrap());
    mock.then([Answer::Gated(events[..4].concat(), Arc::new(Gate::default()), events[4..].concat())]);
    println!("\nserving {}", mock.url);
    thread::sleep(10 * PATIENCE);
}

#[test]
#[ignore = "a process of another test's: the runtime that is killed"]
fn runtime() {
    let Some(socket) = env::var_os(TOLD) else { return };
    let mut runtime = Client::runtime(socket.as_ref());
    println!("\nregistered");
    runtime.human();
    runtime.write(&turn(1, json!([user("1")])));
    // And the beginning of a frame.
    runtime.raw(&[0, 0, 1]);
    thread::sleep(10 * PATIENCE);
}

fn texts(mock: &Mock) -> Vec<Value> {
    mock.last().messages().iter().map(|message| message["content"][0]["text"].clone()).collect()
}

#[test]
fn a_provider_that_is_killed_fails_the_turn_and_nothing_else() {
    // Nobody else takes it in between.
    let port = Port::new();
    let mut provider = Process::start("provider", &port.number.to_string());
    let url = provider.says("serving ");
    let home = Home::empty();
    home.profile("a", &format!(
        "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key = \"sk-12345678\"\nbase_url = \"{url}\"\n"
    ));
    let (_daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "1", &mut runtime);
    runtime.write(&turn(1, json!([user("1")])));
    assert_eq!(text_of(&[runtime.expect()]), "half of ", "it is in mid-turn");
    provider.kill();
    let (answer, _) = runtime.answer();
    assert_eq!(answer["error"]["code"], -32603, "{answer}");
    assert_eq!(text_of(&[sender.expect()]), "half of ");
    assert_eq!(sender.expect()["method"], "error");
    // Half an answer is none, and has cost something.
    let logged = home.logged("a");
    let roles: Vec<&Value> = logged.iter().map(|line| &line["role"]).collect();
    assert_eq!(roles, [&json!("user"), &Value::Null]);
    assert!(logged[1]["usage"]["input_tokens"].as_u64().unwrap() > 0, "{}", logged[1]);
    // Nobody listens: an error as well. Somebody again: as if nothing had been.
    assert_eq!(runtime.says(2, "2")["error"]["code"], -32603);
    let mock = Mock::at(port.number);
    mock.then([says(&["whole"])]);
    assert_eq!(runtime.says(3, "3")["result"]["content"][0]["text"], "whole");
    assert_eq!(texts(&mock), ["1", "2", "3"]);
}

#[test]
fn a_runtime_that_is_killed_is_the_truth_for_its_sender_and_another_one_goes_on() {
    let gate = Arc::new(Gate::default());
    let mock = Mock::with([
        Answer::Gated(Vec::new(), Arc::clone(&gate), b": nothing\n\n".to_vec()),
        says(&["again"]),
    ]);
    let home = Home::with(&mock);
    let daemon = home.start();
    let mut killed = Process::start("runtime", home.socket("a").to_str().unwrap());
    killed.says("registered");
    eventually("it is registered", || (daemon.status("a")["worker"]["runtime"] == true).then_some(()));
    let mut sender = Client::sender(&home.socket("a"), "1");
    assert_eq!(sender.expect()["result"]["status"], "delivered");
    let mut waiting = Client::sender(&home.socket("a"), "2");
    assert_eq!(waiting.expect()["result"]["status"], "queued");
    mock.wait_asked(1);
    killed.kill();
    for sender in [&mut sender, &mut waiting] {
        let gone = sender.expect();
        assert_eq!(
            (&gone["method"], &gone["params"]["message"]),
            (&json!("error"), &json!("agent disconnected"))
        );
    }
    let mut runtime = Client::runtime(&home.socket("a"));
    assert_eq!(runtime.says(1, "3")["result"]["content"][0]["text"], "again");
    assert_eq!(texts(&mock), ["1", "3"], "what it brought is kept, once");
    gate.open();
}

#[test]
fn a_disk_that_is_full_is_an_error_and_what_was_answered_stays() {
    let mock = Mock::new();
    let home = Home::with(&mock);
    // A file that may not grow: what a full disk does to the log, without being root.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 32; exec \"$0\" start", env!("CARGO_BIN_EXE_ringfence")]);
    command.env_clear().env("HOME", home.path("")).env("PATH", env::var_os("PATH").unwrap_or_default());
    command.env("RINGFENCE_RUNTIME_DIR", home.path("run")).stdin(Stdio::null()).stdout(Stdio::null());
    let daemon = home.started(&mut command);
    let mut runtime = Client::runtime(&home.socket("a"));
    let long = "z\u{fc}rich ".repeat(300);
    let mut answered = 0;
    let refused = loop {
        mock.then([says(&["yes"])]);
        let answer = runtime.says(answered, &format!("{answered} {long}"));
        if answer.get("error").is_some() {
            break answer;
        }
        answered += 1;
        assert!(answered < 100, "the log grows on");
    };
    assert_eq!(refused["error"]["code"], -32603);
    assert!(refused["error"]["message"].as_str().unwrap().contains("cannot be logged"), "{refused}");
    assert!(answered >= 2, "the control: {answered} turns were answered before");
    let asked = mock.asked().len();
    assert!(runtime.says(answered + 1, "more")["error"].is_object(), "still full");
    assert_eq!(mock.asked().len(), asked, "what cannot be logged is not asked");
    daemon.kill();
    let lines = home.logged("a");
    let said = |role: &str| lines.iter().filter(|line| line["role"] == role).count() as u64;
    assert_eq!(said("assistant"), answered, "what was answered, and no more");
    assert!(said("user") <= answered + 1);
    let _daemon = home.start();
    mock.then([says(&["there is room"])]);
    let mut runtime = Client::runtime(&home.socket("a"));
    let answer = runtime.says(1, "again");
    assert!(answer["result"]["content"][0]["text"].is_string(), "there is room: {answer}");
    let kept = mock.last().messages().iter().filter(|message| message["role"] == "assistant").count() as u64;
    assert_eq!(kept, answered, "the provider is sent all of it");
}
