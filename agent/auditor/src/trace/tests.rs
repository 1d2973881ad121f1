//! Tests of what a run's trace says of events of the agent's own process.

use super::*;
use crate::mcp::sessions::Serving;
use ringfence_events::{
    decode::Decoded,
    manifests::{Decider, Identity},
    report::{CheckedPayload, CheckedReport},
    samples,
};
use ringfence_store::{Event as StoredEvent, FILE, Incoming, Writer};
use ringfence_wire::{event::Certainty, trace::AgentEvent};
use std::sync::Arc;

const CONTAINER: &str = "000000001005";

struct Rig {
    dir: tempfile::TempDir,
    writer: Writer,
    at: i64,
}

impl Rig {
    /// A run that reports, with an agent whose process began at 5.
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = ringfence_store::open(&dir.path().join(FILE), 0).expect("opens").writer;
        writer.hello("s", "boot").expect("greets");
        let mut rig = Self { dir, writer, at: 1_000_000_000_000_000 };
        rig.said(CheckedPayload::LineOpened);
        rig
    }

    fn said(&mut self, payload: CheckedPayload) {
        self.at += 1;
        let container = Some(CONTAINER.to_owned());
        let reported = CheckedReport { agent: "claude@7".into(), uid: 7, container, at: self.at, payload };
        self.writer.write(&[Incoming::Report(Box::new(reported))]).expect("writes");
    }

    /// The model wants a tool called that names these files.
    fn call(&mut self, id: &str, tool: &str, moment: u64, paths: &[&str]) {
        self.said(CheckedPayload::Event(AgentEvent::Call {
            key: format!("key of {id}"),
            id: id.into(),
            renamed: None,
            intent: None,
            tool: tool.into(),
            server: None,
            input: "{}".into(),
            paths: Some(paths.iter().map(|path| (*path).to_owned()).collect()),
            moment,
        }));
    }

    fn ended(&mut self, id: &str, moment: u64) {
        let (key, output) = (format!("key of {id}"), String::new());
        self.said(CheckedPayload::Event(AgentEvent::CallEnded { key, is_error: false, output, moment }));
    }

    fn event(&mut self, record: Decoded) {
        self.at += 1;
        let public = CONTAINER.to_owned();
        let identity = Identity { public, profile: "claude".into(), uid: 7, created: 7 };
        let event = StoredEvent {
            ts: self.at,
            identity: Some(Arc::new(identity)),
            decider: Decider::Default,
            record,
        };
        self.writer.write(&[Incoming::Event(Box::new(event))]).expect("writes");
    }

    /// The agent itself opens a file.
    fn opened(&mut self, path: &str, time: u64) {
        self.event(Decoded { path: Some(path.into()), time, start: 5, ..samples::decoded() });
    }

    /// What the trace has under a call: paths, and how sure each is.
    fn traced(&self, call: &str) -> Vec<(String, Certainty, Option<String>)> {
        let sessions = Sessions::new(self.dir.path().join(FILE), Serving::Own);
        let query = TraceQuery { what: Some(call.to_owned()), limit: None };
        let trace = of(&sessions, Viewer(7), &query).expect("reads").expect("known");
        let events = trace.intents.into_iter().flat_map(|intent| intent.calls).flat_map(|call| call.events);
        let path = |event: &Event| match &event.target {
            ringfence_wire::event::Target::Path(Some(path)) => path.clone(),
            target => panic!("{target:?}"),
        };
        events.map(|event| (path(&event), event.attribution, event.tool_call)).collect()
    }
}

#[test]
fn an_event_of_the_agents_own_process_is_matched_with_the_call_that_names_its_file() {
    let mut rig = Rig::new();
    rig.call("read", "Read", 10, &["/w/a"]);
    rig.call("edit", "Edit", 11, &["/w/./b"]);
    rig.call("bash", "Bash", 12, &[]);
    rig.opened("/w/a", 20);
    rig.opened("/w/other", 21);
    rig.event(Decoded { time: 22, start: 5, ..samples::renamed("/w/b.tmp.1", "/w/b") });
    rig.ended("read", 30);
    rig.opened("/w/a", 40);
    let matched = |path: &str, call: &str| (path.to_owned(), Certainty::Matched, Some(call.to_owned()));
    let ambiguous = |path: &str| (path.to_owned(), Certainty::Ambiguous, None);
    assert_eq!(rig.traced("read"), [matched("/w/a", "read"), ambiguous("/w/other")]);
    assert_eq!(rig.traced("edit"), [ambiguous("/w/other"), matched("/w/b.tmp.1", "edit"), ambiguous("/w/a")]);
    assert_eq!(rig.traced("bash"), [ambiguous("/w/other"), ambiguous("/w/a")], "matched with none by a path");
}

#[test]
fn what_a_call_left_running_is_not_sole_of_the_next() {
    let mut rig = Rig::new();
    rig.call("first", "Bash", 10, &[]);
    rig.ended("first", 20);
    rig.call("next", "Bash", 30, &[]);
    let started = |path: &str, lineage| Decoded {
        path: Some(path.into()),
        time: 40,
        start: 35,
        lineage,
        ..samples::decoded()
    };
    // The agent is below the container's first process; its shell began in this call, the other one's in the call before.
    rig.event(started("/w/shell", [5, 31, 35, 0]));
    rig.event(started("/w/left", [5, 12, 35, 0]));
    rig.event(started("/w/before", [0; 4]));
    let seen = rig.traced("next");
    let sole = |path: &str| (path.to_owned(), Certainty::Sole, Some("next".to_owned()));
    let ambiguous = ("/w/left".to_owned(), Certainty::Ambiguous, None);
    assert_eq!(seen, [sole("/w/shell"), ambiguous, sole("/w/before")]);
}

#[test]
fn a_file_that_two_calls_name_is_ambiguous_with_both() {
    let mut rig = Rig::new();
    rig.call("read", "Read", 10, &["/w/a"]);
    rig.call("edit", "Edit", 11, &["/w/a"]);
    rig.opened("/w/a", 20);
    rig.ended("read", 30);
    rig.opened("/w/a", 40);
    let ambiguous = ("/w/a".to_owned(), Certainty::Ambiguous, None);
    let matched = ("/w/a".to_owned(), Certainty::Matched, Some("edit".to_owned()));
    assert_eq!(rig.traced("read"), std::slice::from_ref(&ambiguous));
    assert_eq!(rig.traced("edit"), [ambiguous, matched], "the control");
}

#[test]
fn what_a_run_may_not_have_reported_leaves_nothing_matched() {
    let mut rig = Rig::new();
    rig.call("read", "Read", 10, &["/w/a"]);
    rig.opened("/w/a", 20);
    rig.said(CheckedPayload::LineClosed { moment: 15 });
    rig.opened("/w/a", 14);
    let seen = rig.traced("read");
    assert_eq!(seen, [("/w/a".to_owned(), Certainty::Matched, Some("read".to_owned()))], "up to then it did");
}

#[test]
fn what_a_hook_says_of_a_call_stands_beside_it() {
    let mut rig = Rig::new();
    rig.call("edit", "Edit", 10, &["/w/a"]);
    rig.call("bash", "Bash", 11, &[]);
    let session = Some("s".to_owned());
    rig.said(CheckedPayload::Event(AgentEvent::HookDone {
        key: "key of edit".into(),
        session: session.clone(),
        failed: Some(true),
        moment: 20,
    }));
    rig.opened("/w/a", 21);
    let sessions = Sessions::new(rig.dir.path().join(FILE), Serving::Own);
    let hook = |call: &str| {
        let query = TraceQuery { what: Some(call.to_owned()), limit: None };
        let trace = of(&sessions, Viewer(7), &query).expect("reads").expect("known");
        let mut calls = trace.intents.into_iter().flat_map(|intent| intent.calls);
        let call = calls.next().expect("a call");
        call.hook.map(|hook| (hook.failed, hook.session))
    };
    assert_eq!(hook("edit"), Some((Some(true), session)));
    assert_eq!(hook("bash"), None);
    let matched = ("/w/a".to_owned(), Certainty::Matched, Some("edit".to_owned()));
    assert_eq!(rig.traced("edit"), [matched], "no other call names it");
}

#[test]
fn while_reports_of_a_run_are_lost_nothing_is_a_call_s_for_certain() {
    let mut rig = Rig::new();
    rig.call("a", "Read", 10, &["/w/a"]);
    let told = |rig: &mut Rig, to| {
        rig.said(CheckedPayload::Event(AgentEvent::Lost { count: 1, from: 30, to }));
    };
    // Processes that began in the call, each before, in or behind the time of which something is lost.
    for at in [20, 40, 60] {
        rig.event(Decoded { path: Some(format!("/w/{at}")), time: at, start: at - 5, ..samples::decoded() });
    }
    let certainties =
        |rig: &Rig| -> Vec<Certainty> { rig.traced("a").into_iter().map(|(_, it, _)| it).collect() };
    assert_eq!(certainties(&rig), [Certainty::Sole, Certainty::Sole, Certainty::Sole], "the control");
    told(&mut rig, None);
    assert_eq!(certainties(&rig), [Certainty::Sole, Certainty::Ambiguous, Certainty::Ambiguous]);
    told(&mut rig, Some(50));
    assert_eq!(certainties(&rig), [Certainty::Sole, Certainty::Ambiguous, Certainty::Sole]);
}
