//! One worker, one process: what happens to one is nothing to the others, and none gets at what is another's.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, says, text_block},
    support::{Client, Daemon, Home, eventually, is_closed, text_of, turn, user},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::json;
use std::{
    fs,
    io::Write,
    net::TcpStream,
    os::unix::{fs::symlink, net::UnixStream, process::CommandExt},
    sync::Arc,
};

/// The process of an agent's worker.
fn pid_of(daemon: &Daemon<'_>, agent: &str) -> u32 {
    eventually("it has a worker", || {
        let status = daemon.status(agent);
        let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.filter(|_| status["state"] == "running")
    })
}

/// The processes that the service has started as this role.
fn processes(daemon: &Daemon<'_>, role: &str) -> Vec<u32> {
    let is_it =
        |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains(role));
    daemon.children().into_iter().filter(is_it).collect()
}

fn end(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.try_into().unwrap()), signal).unwrap();
}

/// A turn of `agent`'s that has begun to stream, and goes on when its gate is opened.
struct Streaming {
    runtime: Client,
    sender: Client,
    gate: Arc<Gate>,
}

/// The provider of the agent that streams.
fn streams() -> (Mock, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let events = anthropic_events(&[text_block(&["the first half, ", "the second"])], "end_turn");
    let mock = Mock::with([Answer::Gated(events[..4].concat(), Arc::clone(&gate), events[4..].concat())]);
    (mock, gate)
}

impl Streaming {
    fn begin(home: &Home, agent: &str, gate: Arc<Gate>) -> Self {
        let mut runtime = Client::runtime(&home.socket(agent));
        let mut sender = Client::sender(&home.socket(agent), "x");
        assert_eq!(sender.expect()["result"]["status"], "delivered");
        runtime.human();
        runtime.write(&turn(1, json!([user("x")])));
        assert_eq!(text_of(&[runtime.expect()]), "the first half, ", "it is in mid-turn");
        Self { runtime, sender, gate }
    }

    fn finish(mut self) {
        self.gate.open();
        let (answer, streamed) = self.runtime.answer();
        assert_eq!(answer["result"]["content"][0]["text"], "the first half, the second", "{answer}");
        assert_eq!(text_of(&streamed), "the second");
        assert_eq!(text_of(&[self.sender.expect(), self.sender.expect()]), "the first half, the second");
        assert_eq!(self.sender.expect()["method"], "end_turn");
    }
}

#[test]
fn a_worker_that_is_killed_ends_no_other_s_turn_and_comes_back() {
    let (provider, gate) = streams();
    let mock = Mock::with([says(&["before"]), says(&["after"])]);
    let home = Home::with(&mock);
    home.agent("b", &provider, "");
    let daemon = home.start();
    let mut killed = Client::runtime(&home.socket("a"));
    assert_eq!(killed.says(1, "1")["result"]["content"][0]["text"], "before");
    let streaming = Streaming::begin(&home, "b", gate);
    let (first, other) = (pid_of(&daemon, "a"), pid_of(&daemon, "b"));
    end(first, Signal::SIGKILL);
    // Whoever connects meanwhile waits for the next worker.
    let socket = home.socket("a");
    let waits = UnixStream::connect(&socket).expect("its socket stays");
    assert!(killed.next().is_none(), "whoever was connected to it is told by the end");
    streaming.finish();
    let second = pid_of(&daemon, "a");
    assert_ne!(first, second);
    assert_eq!(pid_of(&daemon, "b"), other, "the other one is the same");
    assert!(daemon.log().contains("its worker ended: signal: 9"), "{}", daemon.log());
    drop(waits);
    let mut runtime = Client::runtime(&socket);
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "after");
    let texts: Vec<_> =
        mock.last().messages().iter().map(|message| message["content"][0]["text"].clone()).collect();
    assert_eq!(texts, ["1", "before", "2"], "with its conversation");
    assert!(daemon.status("a")["error"].is_null(), "nothing is wrong any more");
}

#[test]
fn a_worker_without_memory_ends_alone() {
    let (provider, gate) = streams();
    let mock = Mock::with([says(&["again"])]);
    let home = Home::with(&mock);
    home.agent("b", &provider, "");
    let daemon = home.start();
    let streaming = Streaming::begin(&home, "b", gate);
    let first = pid_of(&daemon, "a");
    let status = fs::read_to_string(format!("/proc/{first}/status")).unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size: u64 = size.trim().trim_end_matches(" kB").parse().unwrap();
    let most = Some((size + 1024) << 10);
    let pid = rustix::process::Pid::from_raw(first.try_into().unwrap());
    prlimit(pid, Resource::As, Rlimit { current: most, maximum: most }).unwrap();
    // A message that the other would take.
    let mut client = Client::connect(&home.socket("a"));
    let message = crate::support::send(&"x".repeat(8 << 20)).to_string();
    let _ = client.stream.write_all(&crate::support::frame(message.as_bytes()));
    let second = eventually("another worker", || {
        let pid = daemon.status("a")["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        pid.filter(|pid| *pid != first)
    });
    assert_ne!(first, second);
    assert!(daemon.log().contains("its worker ended: signal: 6"), "{}", daemon.log());
    streaming.finish();
    let mut runtime = Client::runtime(&home.socket("a"));
    assert_eq!(runtime.says(1, "1")["result"]["content"][0]["text"], "again");
    assert_eq!(
        runtime.says(2, &"y".repeat(8 << 20))["error"]["code"],
        599,
        "the control: it has room for that"
    );
}

#[test]
fn a_worker_that_ends_again_and_again_is_given_up_and_the_other_is_not() {
    let mock = Mock::with([says(&["still here"]), says(&["back"])]);
    let home = Home::with(&mock);
    home.agent("b", &mock, "");
    let daemon = home.start();
    let mut other = Client::runtime(&home.socket("b"));
    let mut last = 0;
    for _ in 0..6 {
        last = eventually("the next worker", || {
            let pid = daemon.status("a")["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            pid.filter(|pid| *pid != last)
        });
        end(last, Signal::SIGKILL);
    }
    let status = eventually("it is given up", || {
        let status = daemon.status("a");
        (status["state"] == "failed").then_some(status)
    });
    let error = status["error"].as_str().unwrap();
    assert!(error.contains("6 times in a row") && error.contains("signal: 9"), "{error}");
    assert!(!home.path(".config/ringfence/sockets/a").exists(), "who connects hears that nobody is there");
    assert_eq!(other.says(1, "x")["result"]["content"][0]["text"], "still here");
    daemon.signal(Signal::SIGHUP);
    pid_of(&daemon, "a");
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "x")["result"]["content"][0]["text"], "back");
}

#[test]
fn each_agent_has_a_process_of_its_own_that_nobody_looks_into() {
    let mock = Mock::new();
    let home = Home::with(&mock);
    home.profile(
        "b",
        &format!(
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key_env = \"KEY_OF_B\"\nbase_url = \"{}\"\n",
            mock.url
        ),
    );
    home.agent("c", &mock, "");
    let mut command = home.ringfence(&["agent", "start"]);
    command.env("KEY_OF_B", "sk-of-b-alone").env("HTTPS_PROXY", "http://127.0.0.1:9");
    let is_root = home.is_an_ordinary_users(&mut command);
    let daemon = home.started(&mut command);
    let mut named = ["a", "b", "c"].map(|agent| pid_of(&daemon, agent));
    named.sort_unstable();
    let mut found = processes(&daemon, "llm-worker");
    found.sort_unstable();
    assert_eq!(found, named, "one for each, and no other");
    for pid in named {
        is_closed(pid);
        if is_root {
            let environment = String::from_utf8(fs::read(format!("/proc/{pid}/environ")).unwrap()).unwrap();
            assert!(
                !environment.contains("sk-of-b-alone") && !environment.contains("KEY_OF_B"),
                "{environment}"
            );
            assert!(environment.contains("HTTPS_PROXY=http://127.0.0.1:9"), "the control: {environment}");
        }
    }
    // It was handed over all the same.
    mock.then([says(&["ok"])]);
    Client::runtime(&home.socket("b")).says(1, "x");
    assert_eq!(mock.last().header("x-api-key"), Some("sk-of-b-alone"));
    daemon.stop();
}

#[test]
fn no_worker_opens_another_agent_s_log_or_key() {
    crate::support::away_from_midnight();
    let mock = Mock::new();
    let home = Home::empty();
    home.write("key", "sk-of-a-file");
    let limits = "[limits]\ntokens_per_day = 30";
    for agent in ["a", "b", "c"] {
        home.agent(agent, &mock, limits);
    }
    // What was used today is read from this file: whoever has read it says that the limit is reached.
    let logs = home.path(".local/share/ringfence/logs");
    for agent in ["a", "b", "c"] {
        fs::create_dir_all(logs.join(agent)).unwrap();
    }
    let used = json!({ "ts": jiff::Timestamp::now().to_string(), "usage": { "input_tokens": 100, "output_tokens": 0 } });
    fs::write(logs.join("a/http.ndjson"), format!("{used}\n")).unwrap();
    symlink("../a/http.ndjson", logs.join("b/http.ndjson")).unwrap();
    symlink(home.path("key"), logs.join("c/http.ndjson")).unwrap();
    let daemon = home.start();
    if daemon.log().contains("no Landlock") {
        return;
    }
    let says = |agent: &str| Client::runtime(&home.socket(agent)).says(1, "x");
    assert_eq!(says("a")["error"]["code"], -32002, "the control: its own worker reads it");
    for agent in ["b", "c"] {
        assert_eq!(says(agent)["error"]["code"], 599, "{agent}'s worker has read it");
        let refused = format!("logs/{agent}/http.ndjson cannot be read: Permission denied");
        assert!(daemon.log().contains(&refused), "{}", daemon.log());
    }
    daemon.stop();
    // The same link within its own directory is no obstacle.
    fs::rename(logs.join("a/http.ndjson"), logs.join("b/elsewhere")).unwrap();
    fs::remove_file(logs.join("b/http.ndjson")).unwrap();
    symlink("elsewhere", logs.join("b/http.ndjson")).unwrap();
    let _daemon = home.start();
    assert_eq!(says("b")["error"]["code"], -32002, "the control: a link to a file of its own");
}

#[test]
fn stop_leaves_no_process_and_no_socket() {
    let mock = Mock::new();
    let home = Home::with(&mock);
    home.agent("b", &mock, "");
    let mut daemon = home.start();
    let runtime = Client::runtime(&home.socket("a"));
    let all = daemon.children();
    assert_eq!(
        (all.len(), processes(&daemon, "llm-commands").len()),
        (3, 1),
        "two workers, and one for commands"
    );
    let stopped = home.run(&["agent", "stop", "--all"]);
    assert!(stopped.status, "{}", stopped.err);
    daemon.wait();
    for pid in all {
        eventually("it has ended", || crate::support::has_ended(pid).then_some(()));
    }
    let left: Vec<_> = fs::read_dir(home.path(".config/ringfence/sockets")).unwrap().flatten().collect();
    let names = left.iter().map(|entry| entry.file_name().into_string().unwrap());
    assert!(names.clone().all(|name| name == ".lock"), "{:?}", names.collect::<Vec<_>>());
    drop(runtime);
}

#[test]
fn workers_end_with_a_service_that_is_killed_and_the_next_one_has_their_sockets() {
    let mock = Mock::with([says(&["one"]), says(&["two"])]);
    let home = Home::with(&mock);
    let daemon = home.start();
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "1")["result"]["content"][0]["text"], "one");
    let worker = pid_of(&daemon, "a");
    // As long as it stands still it has the socket.
    end(worker, Signal::SIGSTOP);
    daemon.signal(Signal::SIGKILL);
    let mut command = home.ringfence(&["agent", "start"]);
    let log = fs::File::options().append(true).open(home.path("daemon.log")).unwrap();
    let mut next = command.stderr(log).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(!crate::support::has_ended(worker) && next.try_wait().unwrap().is_none());
    end(worker, Signal::SIGCONT);
    eventually("it has ended", || crate::support::has_ended(worker).then_some(()));
    eventually("the next one serves", || home.run(&["agent", "list"]).status.then_some(()));
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "2")["result"]["content"][0]["text"], "two");
    end(next.id(), Signal::SIGTERM);
    next.wait().unwrap();
}

#[test]
fn a_terminal_s_ctrl_c_reaches_all_processes_and_lets_turns_finish() {
    let (provider, gate) = streams();
    let home = Home::with(&provider);
    let mut command = home.ringfence(&["agent", "start"]);
    let mut daemon = home.started(command.process_group(0));
    let streaming = Streaming::begin(&home, "a", gate);
    let worker = pid_of(&daemon, "a");
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        kill(Pid::from_raw(-i32::try_from(daemon.pid()).unwrap()), signal).unwrap();
    }
    eventually("it was heard", || daemon.log().contains("stopping").then_some(()));
    assert!(!crate::support::has_ended(worker));
    streaming.finish();
    daemon.wait();
    assert!(crate::support::has_ended(worker));
}

#[test]
fn a_second_ctrl_c_waits_for_nothing() {
    let (provider, gate) = streams();
    let home = Home::with(&provider);
    let mut command = home.ringfence(&["agent", "start"]);
    let mut daemon = home.started(command.process_group(0));
    let _streaming = Streaming::begin(&home, "a", gate);
    let worker = pid_of(&daemon, "a");
    let ctrl_c = || kill(Pid::from_raw(-i32::try_from(daemon.pid()).unwrap()), Signal::SIGINT).unwrap();
    ctrl_c();
    let says = "for what is under way at a; Ctrl-C again cuts it off";
    eventually("it says what it waits for", || daemon.log().contains(says).then_some(()));
    assert!(!crate::support::has_ended(worker));
    ctrl_c();
    daemon.wait();
    assert!(crate::support::has_ended(worker) && daemon.log().contains("what is under way is cut off"));
}

#[test]
fn a_worker_that_cannot_start_says_why_and_is_tried_again_when_it_is_wanted() {
    let mock = Mock::with([says(&["served"]), says(&["mended"])]);
    let home = Home::with(&mock);
    home.agent("b", &mock, "");
    let log = home.log("b");
    fs::create_dir_all(&log).unwrap();
    let daemon = home.start();
    let status = daemon.status("b");
    assert_eq!(status["state"], "failed", "{status}");
    let error = status["error"].as_str().unwrap();
    assert!(error.contains("cannot open the conversation") && error.contains("logs/b/"), "{error}");
    assert!(!home.path(".config/ringfence/sockets/b").exists());
    assert_eq!(Client::runtime(&home.socket("a")).says(1, "x")["result"]["content"][0]["text"], "served");
    fs::remove_dir(&log).unwrap();
    daemon.signal(Signal::SIGHUP);
    pid_of(&daemon, "b");
    assert_eq!(Client::runtime(&home.socket("b")).says(1, "x")["result"]["content"][0]["text"], "mended");
}

#[test]
fn the_port_of_an_endpoint_stays_while_its_worker_is_another_with_another_token() {
    let kept = crate::support::Port::new();
    let port = kept.number;
    let mock = Mock::with([says(&["one"]), says(&["two"])]);
    let home = crate::http::home(&mock, "anthropic", &format!("http = true\nhttp_port = {port}"), "");
    let daemon = home.start();
    let file = home.path(".local/share/ringfence/state/a/http-token");
    let token_now = || fs::read_to_string(&file).unwrap_or_default().trim().to_owned();
    let ask = |token: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("somebody listens");
        let headers = format!("Host: 127.0.0.1:{port}\r\nx-api-key: {token}\r\n");
        let body = crate::http::hello().to_string();
        stream.write_all(&crate::http::request("POST", "/v1/messages", &headers, body.as_bytes())).unwrap();
        crate::http::read(stream).status
    };
    let first = token_now();
    assert_eq!(ask(&first), 200);
    end(pid_of(&daemon, "a"), Signal::SIGKILL);
    // It waits for the next worker, which knows nothing of that token.
    assert_eq!(ask(&first), 401);
    let second = token_now();
    assert_ne!(first, second);
    assert_eq!(ask(&second), 200);
}
