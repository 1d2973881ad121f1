//! Tests of agents' rows: what is in flight, what is over, what goes on.

use super::super::{FILE, Incoming, Writer, open};
use super::*;

struct Rig {
    dir: tempfile::TempDir,
    writer: Writer,
    at: i64,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut writer = open(&dir.path().join(FILE), 0).expect("opens").writer;
        writer.hello("s", "boot").expect("greets");
        Self { dir, writer, at: 1_000_000_000_000_000 }
    }

    fn say(&mut self, said: Said) {
        self.at += 1;
        let what = Report::Said(said);
        let reported = Reported { agent: "a".into(), uid: 0, at: self.at, what };
        self.writer.write(&[Incoming::Reported(Box::new(reported))]).expect("writes");
    }

    fn asks(&mut self, id: &str, via: Via) {
        self.say(Said::Intent { id: id.into(), uid: None, text: "t".into(), via });
    }

    fn call(&mut self, id: &str, intent: Option<&str>, moment: u64) {
        let (tool, input) = ("bash".to_owned(), "{}".to_owned());
        let intent = intent.map(str::to_owned);
        self.say(Said::Call { id: id.into(), intent, tool, server: None, input, moment });
    }

    /// The calls that were in flight at a moment.
    fn in_flight(&self, at: u64) -> Vec<String> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let calls = reader.calls_in_flight("a", (at, at), 100).expect("reads");
        calls.into_iter().map(|(span, _)| span.call).collect()
    }

    /// Each intent: who asked, whether it is over, why it failed.
    fn intents(&self) -> Vec<(Via, bool, Option<String>)> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let intents = reader.intents(Viewer(0), &Asked::All, 100).expect("reads");
        intents.into_iter().map(|one| (one.via, one.ended.is_some(), one.error)).collect()
    }
}

#[test]
fn a_call_that_nobody_answers_is_in_flight_until_its_intent_ends() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    rig.call("answered", Some("i"), 10);
    rig.call("left", Some("i"), 11);
    rig.say(Said::CallEnded { id: "answered".into(), is_error: false, output: "x".into(), moment: 20 });
    assert_eq!(rig.in_flight(30), ["left"]);
    rig.say(Said::IntentEnded { id: "i".into(), error: Some("gone".into()), moment: 40 });
    assert_eq!(rig.in_flight(30), ["left"], "then it was");
    assert!(rig.in_flight(41).is_empty());
    assert_eq!(rig.intents(), [(Via::Send, true, Some("gone".into()))]);
}

#[test]
fn what_a_worker_left_under_way_is_over_when_the_next_begins() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    rig.call("of an intent", Some("i"), 10);
    rig.call("alone", None, 11);
    rig.say(Said::Began { moment: 50 });
    assert!(rig.in_flight(51).is_empty());
    assert_eq!(rig.intents(), [(Via::Send, true, Some("the agent's worker ended".into()))]);
    rig.call("of before this boot", None, 900);
    rig.say(Said::Began { moment: 5 });
    assert!(rig.in_flight(1000).is_empty());
}

#[test]
fn what_a_client_tries_again_goes_on() {
    let mut rig = Rig::new();
    rig.asks("h", Via::Http);
    rig.say(Said::IntentEnded { id: "h".into(), error: Some("429".into()), moment: 1 });
    rig.asks("h", Via::Http);
    assert_eq!(rig.intents(), [(Via::Http, false, None)]);
    rig.say(Said::IntentEnded { id: "h".into(), error: None, moment: 2 });
    assert_eq!(rig.intents(), [(Via::Http, true, None)]);
}
