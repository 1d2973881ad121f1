//! The worker of a run, whose launcher and core the test plays: what it reports over a line that it is given later.

use crate::{
    mock::{Mock, calls, says},
    played_core::Core,
    role::call_over,
    support::{PATIENCE, eventually},
};
use ringfence_wire::{
    agent::{MAX_REPORT, ToCore, ToWorker},
    conn::Conn,
    trace::{AgentEvent, Via},
};
use serde_json::{Value, json};
use std::{
    fs,
    net::{TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
};

/// The worker of a run, and the place where its model is served.
struct Run {
    launcher: Core,
    port: u16,
    key: String,
}

impl Run {
    fn start(mock: &Mock) -> Self {
        let tcp = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = tcp.local_addr().unwrap().port();
        let launcher = Core::start_run(mock, &tcp);
        let key = fs::read_to_string(launcher.own().join("state/http-token")).unwrap().trim().to_owned();
        Self { launcher, port, key }
    }

    /// Hands the worker a line, and waits until it is in force, as the launcher does; gives its other end.
    fn line(&self) -> Conn {
        let in_force = |said: &ToCore| matches!(said, ToCore::Ready);
        let before = self.counted(in_force);
        let line = self.order();
        eventually("the line", || (self.counted(in_force) > before).then_some(()));
        line
    }

    fn order(&self) -> Conn {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.launcher.order(&ToWorker::ReportTo { ties: None }, &[theirs.as_fd()]);
        Conn::new(ours, PATIENCE, MAX_REPORT + 64)
    }

    fn call(&self, messages: &Value) -> String {
        let socket = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let headers = format!("host: 127.0.0.1:{}\r\nx-api-key: {}\r\n", self.port, self.key);
        call_over(socket, &headers, true, messages)
    }

    fn counted(&self, what: impl Fn(&ToCore) -> bool) -> usize {
        self.launcher.heard().iter().filter(|said| what(said)).count()
    }
}

fn next(line: &mut Conn) -> AgentEvent {
    match line.receive::<ToCore>().unwrap() {
        ToCore::Report(json) => serde_json::from_str(json.get()).unwrap(),
        said => panic!("{said:?}"),
    }
}

fn asked() -> Value {
    json!([{"role": "user", "content": "do it"}])
}

#[test]
fn what_a_run_s_agent_is_asked_and_calls_goes_over_its_line_and_nowhere_else() {
    let mock =
        Mock::with([says(&["Hello."]), calls(&[("c1", "Bash", r#"{"command":"id"}"#)]), says(&["Done."])]);
    let run = Run::start(&mock);
    assert!(run.call(&json!([{"role": "user", "content": "before"}])).contains("Hello."), "without a line");
    let mut line = run.line();
    assert!(run.call(&asked()).contains("c1"));
    // It was on its way before the client heard of the call.
    let AgentEvent::Intent { id, text, via: Via::Http, uid: None, .. } = next(&mut line) else {
        panic!("no intent")
    };
    assert_eq!(text, "do it");
    let AgentEvent::Call { key, id: call, intent, tool, .. } = next(&mut line) else { panic!("no call") };
    assert_eq!((call.as_str(), intent.as_ref(), tool.as_str()), ("c1", Some(&id), "Bash"));
    let mut messages = asked();
    let messages_ = messages.as_array_mut().unwrap();
    messages_.push(json!({"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "Bash", "input": {}}]}));
    messages_.push(
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "me"}]}),
    );
    assert!(run.call(&messages).contains("Done."));
    assert!(
        matches!(next(&mut line), AgentEvent::CallEnded { key: of, output, .. } if of == key && output == "me")
    );
    assert!(matches!(next(&mut line), AgentEvent::IntentEnded { id: of, error: None, .. } if of == id));
    let is_report = |said: &ToCore| matches!(said, ToCore::Report(_));
    assert_eq!(run.counted(is_report), 0, "its launcher reads none of it");
}

#[test]
fn a_worker_serves_on_when_nobody_takes_its_reports_any_more() {
    let mock = Mock::with([says(&["One."]), says(&["Two."])]);
    let run = Run::start(&mock);
    let mut line = run.line();
    assert!(run.call(&asked()).contains("One."));
    assert!(matches!(next(&mut line), AgentEvent::Intent { .. }), "the control");
    drop(line);
    assert!(run.call(&asked()).contains("Two."));
    // One line and no other.
    let _second = run.order();
    let refused = |said: &ToCore| matches!(said, ToCore::Failed(why) if why.contains("already"));
    eventually("the refusal", || (run.counted(refused) == 1).then_some(()));
}
