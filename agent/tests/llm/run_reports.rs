//! The worker of a run, whose launcher and core the test plays: what it reports over a line that it is given later.

use crate::{
    mock::{Asked, Mock, calls, says},
    played_core::{Core, SECRET},
    role::call_over,
    support::{PATIENCE, eventually},
};
use ringfence_wire::{
    agent::{Answer, Denial, Denials, MAX_REPORT, ToCore, ToWorker},
    conn::Conn,
    trace::{AgentEvent, Via},
};
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    thread,
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
        self.line_for(false)
    }

    /// The same, whose calls' denials are known or not.
    fn line_for(&self, denials: bool) -> Conn {
        let in_force = |said: &ToCore| matches!(said, ToCore::Ready);
        let before = self.counted(in_force);
        let line = self.order(denials);
        eventually("the line", || (self.counted(in_force) > before).then_some(()));
        line
    }

    fn order(&self, denials: bool) -> Conn {
        let (ours, theirs) = UnixStream::pair().unwrap();
        self.launcher.order(&ToWorker::ReportTo { ties: None, denials }, &[theirs.as_fd()]);
        Conn::new(ours, PATIENCE, MAX_REPORT + 64)
    }

    /// The same with the socket of the run's ties, for this user's processes.
    fn line_with_ties(&self, ties: &UnixListener) -> Conn {
        let in_force = |said: &ToCore| matches!(said, ToCore::Ready);
        let before = self.counted(in_force);
        let (ours, theirs) = UnixStream::pair().unwrap();
        let order = ToWorker::ReportTo { ties: Some(geteuid().as_raw()), denials: false };
        self.launcher.order(&order, &[theirs.as_fd(), ties.as_fd()]);
        eventually("the line", || (self.counted(in_force) > before).then_some(()));
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
    let _second = run.order(false);
    let refused = |said: &ToCore| matches!(said, ToCore::Failed(why) if why.contains("already"));
    eventually("the refusal", || (run.counted(refused) == 1).then_some(()));
}

/// The core's side of a line: it says how much was denied, and keeps what is reported.
fn play(mut line: Conn, denied: u64) -> thread::JoinHandle<Vec<AgentEvent>> {
    thread::spawn(move || {
        let mut reports = Vec::new();
        while let Ok(said) = line.receive::<ToCore>() {
            match said {
                ToCore::Report(json) => reports.push(serde_json::from_str(json.get()).unwrap()),
                ToCore::DeniedSoFar { number } => {
                    line.send(&ToWorker::Answer { number, answer: Answer::DeniedSoFar(denied) }).unwrap();
                }
                said => panic!("{said:?}"),
            }
        }
        reports
    })
}

fn turn(id: &str, output: &str) -> [Value; 2] {
    [
        json!({"role": "assistant", "content": [{"type": "tool_use", "id": id, "name": "Bash", "input": {}}]}),
        json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": output}]}),
    ]
}

/// Two calls of a run, and what its model is told of the results of both in the end; with the reports of the run, and how many calls
/// its launcher was asked about.
fn told(explains: bool, denied: u64) -> (Vec<Vec<String>>, Vec<AgentEvent>, usize) {
    let call = |id| calls(&[(id, "Bash", r#"{"command":"cat /kept"}"#)]);
    let mock = Mock::with([call("c1"), call("c2"), says(&["Done."])]);
    let run = Run::start(&mock);
    let denial = Denial {
        what: "open (read)".into(),
        target: Some(format!("/kept/{SECRET}\n\"x\"")),
        why: "No rule of `fs_read` allows it.".into(),
        advice: "To allow it, add it.".into(),
    };
    run.launcher.says.lock().unwrap().denials = Some(Denials { first: vec![denial], more: 0 });
    let core = play(run.line_for(explains), denied);
    let mut messages = asked();
    assert!(run.call(&messages).contains("c1"));
    for (id, then) in [("c1", "c2"), ("c2", "Done.")] {
        messages.as_array_mut().unwrap().extend(turn(id, "Permission denied"));
        assert!(run.call(&messages).contains(then));
    }
    let results = |asked: &Asked| -> Vec<String> {
        let blocks = asked.messages().iter().filter_map(|message| message["content"].as_array());
        let results = blocks.flatten().filter(|block| block["type"] == "tool_result");
        results.map(|block| block["content"].as_str().unwrap().to_owned()).collect()
    };
    let asked = mock.asked().iter().skip(1).map(results).collect();
    let questions = run.counted(|said| matches!(said, ToCore::DenialsOf { .. }));
    drop(run);
    (asked, core.join().unwrap(), questions)
}

#[test]
fn a_model_is_told_what_its_call_was_denied_and_the_record_has_what_the_tool_said() {
    let (asked, reports, questions) = told(true, 1);
    let said = &asked[0][0];
    let beginning = "Permission denied\n\n[Ringfence] The kernel denied this call: open (read) \"/kept/";
    assert!(said.starts_with(beginning) && said.contains("No rule of `fs_read` allows it."), "{said}");
    assert!(!said.contains(SECRET) && said.lines().count() == 4, "{said}");
    // The first call's again, byte for byte; during the second nothing more was denied.
    assert_eq!(asked[1], [said.as_str(), "Permission denied"]);
    assert_eq!(questions, 1);
    let outputs: Vec<&str> = reports
        .iter()
        .filter_map(|event| match event {
            AgentEvent::CallEnded { output, .. } => Some(output.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(outputs, ["Permission denied"; 2]);
}

#[test]
fn a_model_is_told_nothing_where_nothing_was_denied_or_it_is_not_to_hear_of_it() {
    for (explains, denied) in [(true, 0), (false, 1)] {
        let (asked, _, questions) = told(explains, denied);
        assert_eq!(asked[1], ["Permission denied"; 2]);
        assert_eq!(questions, 0);
    }
}

#[test]
fn what_a_hook_says_is_of_the_call_that_the_endpoint_saw() {
    let twice = calls(&[("c1", "Edit", r#"{"file_path":"/a"}"#), ("c2", "Read", r#"{"file_path":"/b"}"#)]);
    let mock = Mock::with([twice, says(&["Done."])]);
    let run = Run::start(&mock);
    let socket = run.launcher.own().join("ties");
    let mut line = run.line_with_ties(&UnixListener::bind(&socket).unwrap());
    assert!(run.call(&asked()).contains("c2"));
    assert!(matches!(next(&mut line), AgentEvent::Intent { .. }));
    let keys = [(); 2].map(|()| match next(&mut line) {
        AgentEvent::Call { key, .. } => key,
        said => panic!("{said:?}"),
    });
    let say = |said: Value| -> String {
        let mut hook = BufReader::new(UnixStream::connect(&socket).unwrap());
        hook.get_ref().set_read_timeout(Some(PATIENCE)).unwrap();
        hook.get_mut().write_all(format!("{said}\n").as_bytes()).unwrap();
        let mut answer = String::new();
        hook.read_line(&mut answer).unwrap();
        answer
    };
    let noted = "{\"noted\":{}}\n";
    let first = json!({"done": {"call": "c1", "tool": "Edit", "session": "s", "failed": false}});
    assert_eq!(say(first), noted);
    let AgentEvent::HookDone { key, session, failed, .. } = next(&mut line) else { panic!("no word") };
    assert_eq!((&key, session.as_deref(), failed), (&keys[0], Some("s"), Some(false)));
    let mut messages = asked();
    let result = |id: &str| json!({"type": "tool_result", "tool_use_id": id, "content": "text"});
    let uses = ["c1", "c2"].map(|id| json!({"type": "tool_use", "id": id, "name": "Edit", "input": {}}));
    messages.as_array_mut().unwrap().extend([
        json!({"role": "assistant", "content": uses}),
        json!({"role": "user", "content": [result("c1"), result("c2")]}),
    ]);
    assert!(run.call(&messages).contains("Done."));
    for _ in 0..2 {
        assert!(matches!(next(&mut line), AgentEvent::CallEnded { .. }));
    }
    assert!(matches!(next(&mut line), AgentEvent::IntentEnded { .. }));
    // Of one that no model wanted, and late.
    let unknown = say(json!({"done": {"call": "c3", "tool": "WebFetch"}}));
    assert_eq!(unknown, "{\"refused\":\"no call of this name\"}\n");
    assert_eq!(say(json!({"done": {"call": "c2", "tool": "Read", "failed": true}})), noted);
    assert!(
        matches!(next(&mut line), AgentEvent::HookDone { key, failed: Some(true), .. } if key == keys[1])
    );
}
