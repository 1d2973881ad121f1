//! A record for tests of others: what workers report goes the way that it goes, and comes out as the trace has it.

use ringfence_events::{decode::Decoded, present};
use ringfence_events::{
    manifests::{Decider, Identity},
    report, samples,
};
use ringfence_store::{self as store, Event, FILE, Incoming, Reader, TraceTarget, Viewer, Writer};
use ringfence_wire::{
    audit::{AgentReport, Payload},
    event::Certainty,
};
use serde_json::value::RawValue;
use std::sync::Arc;

/// A call on record.
#[derive(Debug, Clone)]
pub(crate) struct Recorded {
    pub(crate) key: String,
    pub(crate) id: String,
    pub(crate) tool: String,
    pub(crate) input: String,
    pub(crate) output: Option<String>,
    /// Paths of the events that are its for sure.
    pub(crate) exact: Vec<String>,
}

/// The record of one agent, `a`.
pub(crate) struct Record {
    dir: tempfile::TempDir,
    writer: Writer,
    at: i64,
}

impl Record {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = store::open(&dir.path().join(FILE), 0).unwrap().writer;
        writer.hello("s", "boot").unwrap();
        Self { dir, writer, at: 1_000_000_000_000_000 }
    }

    fn take(&mut self, payload: Payload) {
        self.at += 1;
        let report = AgentReport { agent: "a".into(), uid: 0, container: None, at: self.at, payload };
        let checked = report::check(report).expect("a report that no worker makes");
        self.writer.write(&[Incoming::Report(Box::new(checked))]).unwrap();
    }

    /// A worker says something.
    pub(crate) fn said(&mut self, text: String) {
        self.take(Payload::Event(RawValue::from_string(text).unwrap()));
    }

    /// The core gave a tag, and the tree that has it opened a file.
    pub(crate) fn tagged(&mut self, tag: u64, path: &str) {
        self.take(Payload::Tagged { tag, container: "000000001005".into() });
        let identity = Identity { public: "000000001005".into(), profile: "a".into(), uid: 0, created: 7 };
        let record = Decoded { call: tag, path: Some(path.into()), ..samples::decoded() };
        let event =
            Event { ts: self.at, identity: Some(Arc::new(identity)), decider: Decider::Default, record };
        self.writer.write(&[Incoming::Event(Box::new(event))]).unwrap();
    }

    /// All calls, oldest first.
    pub(crate) fn calls(&self) -> Vec<Recorded> {
        let reader = Reader::open(&self.dir.path().join(FILE)).unwrap();
        let intents = reader.intents(Viewer(0), &TraceTarget::All, 1000).unwrap();
        let calls = intents.iter().flat_map(|i| reader.agent_calls(Viewer(0), i, None, 1000).unwrap());
        let recorded = |call: store::AgentCall| {
            let events = reader.events_tagged(Viewer(0), call.row, 1000).unwrap();
            let exact = events.iter().map(|stored| {
                let event = present::event(stored);
                assert_eq!(
                    (event.tool_call.as_ref(), &event.attribution),
                    (Some(&call.id), &Certainty::Exact)
                );
                stored.record.path.clone().unwrap_or_default()
            });
            Recorded {
                exact: exact.collect(),
                key: call.key.unwrap_or_default(),
                id: call.id,
                tool: call.tool,
                input: call.input,
                output: call.output,
            }
        };
        calls.map(recorded).collect()
    }
}
