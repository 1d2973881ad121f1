//! Tests of agents' rows: what is in flight, what is over, what goes on.

use super::super::{FILE, Incoming, Retention, Writer, open};
use super::*;
use ringfence_base::clock::now_micros;
use ringfence_events::ties::Processes;

mod runs;

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

    fn say(&mut self, said: AgentEvent) {
        self.say_of("a", CheckedPayload::Event(said));
    }

    fn say_of(&mut self, agent: &str, payload: CheckedPayload) {
        self.say_in(agent, None, payload);
    }

    /// A run says something, of its container.
    fn run_says(&mut self, container: &str, payload: CheckedPayload) {
        self.say_in("a@7", Some(container), payload);
    }

    fn say_in(&mut self, agent: &str, container: Option<&str>, payload: CheckedPayload) {
        self.at += 1;
        let (agent, container) = (agent.to_owned(), container.map(str::to_owned));
        let uid = if container.is_some() { 7 } else { 0 };
        let reported = CheckedReport { agent, uid, container, at: self.at, payload };
        self.writer.write(&[Incoming::Report(Box::new(reported))]).expect("writes");
    }

    fn asks(&mut self, id: &str, via: Via) {
        self.say(AgentEvent::Intent { id: id.into(), uid: None, text: "t".into(), via, session: None });
    }

    /// The sessions of all intents, oldest first.
    fn sessions(&self) -> Vec<Option<String>> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let intents = reader.intents(Viewer(0), &TraceTarget::All, 100).expect("reads");
        intents.into_iter().map(|one| one.session).collect()
    }

    fn call(&mut self, id: &str, intent: Option<&str>, moment: u64) {
        let (tool, input) = ("bash".to_owned(), "{}".to_owned());
        let intent = intent.map(str::to_owned);
        let key = format!("key of {id}");
        self.say(AgentEvent::Call {
            key,
            id: id.into(),
            renamed: None,
            intent,
            tool,
            server: None,
            input,
            paths: None,
            moment,
        });
    }

    /// The calls that a name stands for: key, id, the provider's id, result.
    fn named(&self, what: &str) -> Vec<[Option<String>; 4]> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let targets = reader.trace_targets(Viewer(0), Some(what), 100).expect("reads");
        let calls = targets.iter().filter_map(|target| {
            let TraceTarget::Call(row) = *target else { return None };
            let intents = reader.intents(Viewer(0), target, 10).expect("reads");
            let call = reader.agent_calls(Viewer(0), &intents[0], Some(row), 10).expect("reads").pop()?;
            Some([call.key, Some(call.id), call.renamed.map(|renamed| renamed.given), call.output])
        });
        calls.collect()
    }

    /// The calls that were in flight at a moment.
    fn in_flight(&self, at: u64) -> Vec<String> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let calls = reader.calls_in_flight(("a", 0), (at, at), 100).expect("reads");
        calls.into_iter().map(|asked| asked.span.call).collect()
    }

    /// Each intent: who asked, whether it is over, why it failed.
    fn intents(&self) -> Vec<(Via, bool, Option<String>)> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let intents = reader.intents(Viewer(0), &TraceTarget::All, 100).expect("reads");
        intents.into_iter().map(|one| (one.via, one.ended.is_some(), one.error)).collect()
    }
}

#[test]
fn a_call_that_nobody_answers_is_in_flight_until_its_intent_ends() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    rig.call("answered", Some("i"), 10);
    rig.call("left", Some("i"), 11);
    rig.say(AgentEvent::CallEnded {
        key: "key of answered".into(),
        is_error: false,
        output: "x".into(),
        moment: 20,
    });
    assert_eq!(rig.in_flight(30), ["left"]);
    rig.say(AgentEvent::IntentEnded { id: "i".into(), error: Some("gone".into()), moment: 40 });
    assert_eq!(rig.in_flight(30), ["left"], "then it was");
    assert!(rig.in_flight(41).is_empty());
    assert_eq!(rig.intents(), [(Via::Send, true, Some("gone".into()))]);
}

#[test]
fn another_users_container_has_no_part_in_an_agents_calls() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    rig.call("of root's agent", Some("i"), 10);
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let of = |owner| reader.calls_in_flight(("a", owner), (20, 20), 100).expect("reads").len();
    assert_eq!((of(0), of(1000)), (1, 0));
}

#[test]
fn an_intent_keeps_the_session_that_it_began_in() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    for session in ["first", "second"] {
        let (id, text, session) = ("j".to_owned(), "t".to_owned(), Some(session.to_owned()));
        rig.say(AgentEvent::Intent { id, uid: None, text, via: Via::Http, session });
    }
    assert_eq!(rig.sessions(), [None, Some("first".to_owned())]);
}

#[test]
fn what_a_worker_left_under_way_is_over_when_the_next_begins() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Send);
    rig.call("of an intent", Some("i"), 10);
    rig.call("alone", None, 11);
    rig.say(AgentEvent::Began { moment: 50 });
    assert!(rig.in_flight(51).is_empty());
    assert_eq!(rig.intents(), [(Via::Send, true, Some("the agent's worker ended".into()))]);
    rig.call("of before this boot", None, 900);
    rig.say(AgentEvent::Began { moment: 5 });
    assert!(rig.in_flight(1000).is_empty());
}

#[test]
fn what_a_client_tries_again_goes_on() {
    let mut rig = Rig::new();
    rig.asks("h", Via::Http);
    rig.say(AgentEvent::IntentEnded { id: "h".into(), error: Some("429".into()), moment: 1 });
    rig.asks("h", Via::Http);
    assert_eq!(rig.intents(), [(Via::Http, false, None)]);
    rig.say(AgentEvent::IntentEnded { id: "h".into(), error: None, moment: 2 });
    assert_eq!(rig.intents(), [(Via::Http, true, None)]);
}

#[test]
fn calls_of_one_id_are_two_and_what_is_said_of_one_is_not_said_of_the_other() {
    let mut rig = Rig::new();
    rig.asks("i", Via::Http);
    for key in ["k1", "k2"] {
        let (intent, tool, input) = (Some("i".to_owned()), key.to_owned(), "{}".to_owned());
        let said = AgentEvent::Call {
            key: key.into(),
            id: "twice".into(),
            renamed: None,
            intent,
            tool,
            server: None,
            input,
            paths: None,
            moment: 9,
        };
        rig.say(said.clone());
        // What the core sends a second time is no second call.
        rig.say(said);
    }
    for (tag, key) in [(1, "k2"), (2, "k1")] {
        rig.at += 1;
        let payload = CheckedPayload::Tagged { tag, container: "c".into() };
        let reported = CheckedReport { agent: "a".into(), uid: 0, container: None, at: rig.at, payload };
        rig.writer.write(&[Incoming::Report(Box::new(reported))]).expect("writes");
        rig.say(AgentEvent::Tagged { key: key.into(), tag, matched: false });
    }
    let ended = |key: &str| AgentEvent::CallEnded {
        key: key.into(),
        is_error: false,
        output: format!("of {key}"),
        moment: 20,
    };
    // Neither an id nor another agent's key ends a call.
    rig.say(AgentEvent::CallEnded {
        key: "twice".into(),
        is_error: true,
        output: "forged".into(),
        moment: 19,
    });
    rig.say(ended("k1"));
    let row = |key: &str, id: &str, given: Option<&str>, output: Option<&str>| {
        [Some(key), Some(id), given, output].map(|text| text.map(str::to_owned))
    };
    let first = row("k1", "twice", None, Some("of k1"));
    let second = row("k2", "call_k2", Some("twice"), None);
    assert_eq!(rig.named("twice"), [first.clone(), second.clone()], "none is chosen from several");
    assert_eq!((rig.named("k1"), rig.named("call_k2")), (vec![first], vec![second]));
    rig.say(ended("k2"));
    assert_eq!(rig.named("k2")[0][3].as_deref(), Some("of k2"));
    let connection = rusqlite::Connection::open(rig.dir.path().join(FILE)).expect("opens");
    let of_tag = |tag: i64| -> String {
        let sql = "SELECT a.key FROM call_tags t JOIN agent_calls a ON a.row = t.call WHERE t.tag = ?1";
        connection.query_row(sql, [tag], |row| row.get(0)).expect("tied")
    };
    assert_eq!((of_tag(1), of_tag(2)), ("k2".into(), "k1".into()));
}

#[test]
fn an_intent_s_beginning_that_two_have_shows_both() {
    let mut rig = Rig::new();
    rig.asks("abcd11111111", Via::Send);
    rig.asks("abcd22222222", Via::Send);
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let targets = |what| reader.trace_targets(Viewer(0), Some(what), 100).expect("reads");
    assert_eq!(targets("abcd"), [TraceTarget::Intent(1), TraceTarget::Intent(2)]);
    assert_eq!(targets("abcd2"), [TraceTarget::Intent(2)]);
    assert!(targets("nothing").is_empty());
}

#[test]
fn a_flood_of_one_agent_deletes_no_other_agent_s_rows() {
    let mut rig = Rig::new();
    let mut tag = 0;
    let mut work = |rig: &mut Rig, agent: &str, many: u64| {
        for number in 0..many {
            tag += 1;
            let (id, text) = (format!("{agent}{number}"), "t".to_owned());
            let call = AgentEvent::Call {
                key: id.clone(),
                id: id.clone(),
                renamed: None,
                intent: None,
                tool: "bash".into(),
                server: None,
                input: "{}".into(),
                paths: None,
                moment: tag,
            };
            let refusal =
                Refusal { what: "send".into(), why: "no".into(), pid: None, uid: None, container: None };
            rig.say_of(
                agent,
                CheckedPayload::Event(AgentEvent::Intent {
                    id,
                    uid: None,
                    text,
                    via: Via::Send,
                    session: None,
                }),
            );
            rig.say_of(agent, CheckedPayload::Event(call));
            rig.say_of(agent, CheckedPayload::Event(AgentEvent::Refused(refusal)));
            rig.say_of(agent, CheckedPayload::Tagged { tag: u64::MAX / 2 - tag, container: "c".into() });
        }
    };
    // The oldest rows are those of agents that say little.
    work(&mut rig, "quiet", 10);
    work(&mut rig, "busy", 40);
    work(&mut rig, "flood", 120);
    let mut connection = rusqlite::Connection::open(rig.dir.path().join(FILE)).expect("opens");
    let mut left = |most, ahead| {
        let step = connection.transaction().expect("begins");
        bounded_by(&step, 0, most, ahead).expect("deletes");
        let count = |table: &str, agent: &str| {
            let text = format!("SELECT count(*), max(at) FROM {table} WHERE agent = ?1");
            step.query_row(&text, [agent], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))
                .expect("reads")
        };
        let tables = ["intents", "agent_calls", "refusals", "call_tags"];
        let of = |agent| tables.map(|table| count(table, agent));
        let all = ["quiet", "busy", "flood"].map(of);
        step.commit().expect("commits");
        all
    };
    let before = left(169, 1);
    assert_eq!(before.map(|of| of.map(|(count, _)| count)), [[10; 4], [40; 4], [120; 4]], "not yet");
    for (most, expected) in [(100, [10, 40, 50]), (70, [10, 30, 30]), (20, [6, 6, 6])] {
        let after = left(most, 0);
        assert_eq!(after.map(|of| of.map(|(count, _)| count)), expected.map(|count| [count; 4]), "{most}");
        let newest = |of: [[(i64, i64); 4]; 3]| of.map(|of| of.map(|(_, at)| at));
        assert_eq!(newest(after), newest(before), "the newest of each stay");
    }
}

#[test]
fn the_calls_of_an_intent_are_found_without_a_look_at_all_of_its_agent() {
    let mut rig = Rig::new();
    rig.call("call", None, 1);
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    for (column, wanted) in
        [("intent", "agent_calls_by_intent (agent=? AND intent=?)"), ("row", "PRIMARY KEY (rowid=?)")]
    {
        let question = format!("EXPLAIN QUERY PLAN {}", super::calls_by(column));
        let mut statement = reader.connection().prepare(&question).expect("plans");
        let plan: Vec<String> =
            statement.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>().expect("reads");
        assert!(plan.iter().any(|step| step.contains(wanted)), "{column}: {plan:?}");
        assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{column} sorts nothing: {plan:?}");
    }
}

fn run_intent(id: &str) -> CheckedPayload {
    CheckedPayload::Event(AgentEvent::Intent {
        id: id.into(),
        uid: None,
        text: "t".into(),
        via: Via::Http,
        session: None,
    })
}

fn run_call(key: &str, intent: &str, moment: u64) -> CheckedPayload {
    CheckedPayload::Event(AgentEvent::Call {
        key: key.into(),
        id: format!("id of {key}"),
        renamed: None,
        intent: Some(intent.into()),
        tool: "Bash".into(),
        server: None,
        input: "{}".into(),
        paths: None,
        moment,
    })
}

impl Rig {
    /// The calls of the run in a container that were in flight at a moment, and up to when it reported all.
    fn of_run(&self, container: &str, at: u64) -> Option<(Vec<String>, u64)> {
        let reader = Reader::open(&self.dir.path().join(FILE)).expect("opens");
        let found = reader.run_calls_in_flight(container, (at, at), 100).expect("reads")?;
        Some((found.calls.into_iter().map(|call| call.asked.span.call).collect(), found.known_to))
    }
}

#[test]
fn what_a_call_names_is_kept_and_counts() {
    let mut rig = Rig::new();
    rig.run_says("c1", CheckedPayload::LineOpened);
    let some = |paths: &[&str]| Some(paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>());
    let said = [None, some(&[]), some(&["/w/\u{fc}\n", "a\"b"])];
    for (nth, named) in said.iter().enumerate() {
        let CheckedPayload::Event(AgentEvent::Call { key, id, tool, input, .. }) =
            run_call(&format!("k{nth}"), "i1", 10)
        else {
            panic!("no call")
        };
        let (paths, moment) = (named.clone(), 10);
        let (renamed, intent, server) = (None, None, None);
        let call = AgentEvent::Call { key, id, renamed, intent, tool, server, input, paths, moment };
        rig.run_says("c1", CheckedPayload::Event(call));
    }
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let found = reader.run_calls_in_flight("c1", (15, 15), 100).expect("reads").expect("a run");
    let found: Vec<_> = found.calls.into_iter().map(|call| call.asked.paths).collect();
    assert_eq!(found, said);
    let bytes: Vec<i64> =
        rows(reader.connection(), "SELECT bytes FROM agent_calls ORDER BY row", [], |row| row.get(0))
            .expect("reads");
    assert!(bytes.windows(2).all(|pair| pair[0] < pair[1]), "{bytes:?}");
    let kept: i64 =
        reader.connection().query_row("SELECT bytes FROM agent_bytes", [], |row| row.get(0)).expect("reads");
    assert_eq!(kept, bytes.iter().sum::<i64>());
}

#[test]
fn a_run_speaks_of_its_own_container_alone() {
    let mut rig = Rig::new();
    for (container, intent, key) in [("c1", "i1", "k1"), ("c2", "i2", "k2")] {
        rig.run_says(container, CheckedPayload::LineOpened);
        rig.run_says(container, run_intent(intent));
        rig.run_says(container, run_call(key, intent, 10));
    }
    // And one of the daemon's of the same profile.
    rig.asks("i", Via::Http);
    rig.call("own", Some("i"), 10);
    assert_eq!(rig.of_run("c1", 15), Some((vec!["id of k1".to_owned()], u64::MAX)));
    assert_eq!(rig.of_run("c2", 15), Some((vec!["id of k2".to_owned()], u64::MAX)));
    assert_eq!((rig.of_run("c3", 15), rig.in_flight(15)), (None, vec!["own".to_owned()]));
    // The first run speaks of what is not its own.
    for of in ["k2", "key of own"] {
        let (key, output) = (of.to_owned(), "forged".to_owned());
        let ended = AgentEvent::CallEnded { key, is_error: true, output, moment: 11 };
        rig.run_says("c1", CheckedPayload::Event(ended));
    }
    for of in ["i2", "i"] {
        let ended = AgentEvent::IntentEnded { id: of.into(), error: Some("forged".into()), moment: 11 };
        rig.run_says("c1", CheckedPayload::Event(ended));
    }
    rig.run_says("c1", run_call("k2", "i2", 1));
    assert_eq!(rig.of_run("c2", 15), Some((vec!["id of k2".to_owned()], u64::MAX)));
    assert_eq!(rig.in_flight(15), ["own"]);
    assert!(rig.intents().iter().all(|(_, over, error)| !over && error.is_none()), "{:?}", rig.intents());
    // The control.
    let (key, output) = ("k1".to_owned(), "x".to_owned());
    rig.run_says(
        "c1",
        CheckedPayload::Event(AgentEvent::CallEnded { key, is_error: false, output, moment: 12 }),
    );
    rig.run_says(
        "c1",
        CheckedPayload::Event(AgentEvent::IntentEnded { id: "i1".into(), error: None, moment: 12 }),
    );
    assert_eq!(rig.of_run("c1", 15), Some((Vec::new(), u64::MAX)));
    rig.run_says("c1", CheckedPayload::Event(AgentEvent::Began { moment: 13 }));
    assert_eq!(rig.intents().iter().filter(|(_, over, _)| *over).count(), 1);
}

#[test]
fn a_run_ties_a_tag_that_the_core_gave_its_own_container_to_a_call_of_its_own() {
    let mut rig = Rig::new();
    for (container, intent, key) in [("c1", "i1", "k1"), ("c1", "i1", "k3"), ("c2", "i2", "k2")] {
        rig.run_says(container, run_intent(intent));
        rig.run_says(container, run_call(key, intent, 10));
    }
    let tagged = |tag, container: &str| CheckedPayload::Tagged { tag, container: container.into() };
    let ties =
        |key: &str, tag, matched| CheckedPayload::Event(AgentEvent::Tagged { key: key.into(), tag, matched });
    rig.run_says("c1", tagged(1, "c1"));
    rig.run_says("c1", tagged(3, "c1"));
    rig.run_says("c2", tagged(2, "c2"));
    let connection = rusqlite::Connection::open(rig.dir.path().join(FILE)).expect("opens");
    let tied = || -> Vec<(i64, String, bool, bool)> {
        let sql = "SELECT t.tag, a.key, t.matched, a.contested FROM call_tags t JOIN agent_calls a ON a.row = t.call
            ORDER BY t.tag";
        rows(&connection, sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .expect("reads")
    };
    // Another container's tag, another's call, a tag that nobody gave.
    rig.run_says("c1", ties("k1", 2, false));
    rig.run_says("c1", ties("k1", 9, false));
    rig.run_says("c1", CheckedPayload::Event(AgentEvent::Contested { key: "k2".into() }));
    assert!(tied().is_empty());
    rig.run_says("c1", ties("k1", 1, false));
    rig.run_says("c1", ties("k3", 3, true));
    rig.run_says("c2", ties("k2", 2, false));
    // Once.
    rig.run_says("c1", ties("k3", 1, true));
    let row = |tag, key: &str, matched, contested| (tag, key.to_owned(), matched, contested);
    assert_eq!(tied(), [row(1, "k1", false, false), row(2, "k2", false, false), row(3, "k3", true, false)]);
    rig.run_says("c1", CheckedPayload::Event(AgentEvent::Contested { key: "k1".into() }));
    assert_eq!(tied()[0], row(1, "k1", false, true));
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let calls = reader.run_calls_in_flight("c1", (15, 15), 10).expect("reads").expect("reports").calls;
    let known: Vec<_> = calls.into_iter().map(|call| (call.asked.span.call, call.processes)).collect();
    assert_eq!(
        known,
        [("id of k1".to_owned(), Processes::Contested), ("id of k3".to_owned(), Processes::Tied)]
    );
}

#[test]
fn a_run_s_user_and_root_see_what_it_says() {
    let mut rig = Rig::new();
    rig.run_says("c1", run_intent("i1"));
    rig.run_says("c1", run_call("k1", "i1", 10));
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    for (viewer, sees) in [(0, true), (7, true), (8, false)] {
        for what in ["a", "a@7", "i1", "k1", "id of k1"] {
            let targets = reader.trace_targets(Viewer(viewer), Some(what), 10).expect("reads");
            assert_eq!(!targets.is_empty(), sees, "{viewer} {what}");
        }
        let target = TraceTarget::Agent("a".to_owned());
        let intents = reader.intents(Viewer(viewer), &target, 10).expect("reads");
        assert_eq!(intents.len(), usize::from(sees));
        for intent in &intents {
            assert_eq!((intent.agent.as_str(), intent.container.as_deref()), ("a@7", Some("c1")));
            assert_eq!(reader.agent_calls(Viewer(viewer), intent, None, 10).expect("reads").len(), 1);
        }
    }
    // A name that only begins alike is another's.
    for other in ["a@", "a@70", "b", "@7"] {
        assert!(reader.trace_targets(Viewer(0), Some(other), 10).expect("reads").is_empty(), "{other}");
    }
}

#[test]
fn what_a_run_left_under_way_is_over_and_what_came_later_is_not_known() {
    let mut rig = Rig::new();
    for container in ["cut", "broken"] {
        rig.run_says(container, CheckedPayload::LineOpened);
        rig.run_says(container, run_intent(container));
        rig.run_says(container, run_call(container, container, 10));
    }
    rig.run_says("cut", CheckedPayload::LineClosed { moment: 20 });
    assert_eq!(rig.of_run("cut", 15), Some((vec!["id of cut".to_owned()], 20)));
    assert_eq!(rig.of_run("cut", 25), Some((Vec::new(), 20)));
    assert_eq!(rig.of_run("broken", 25), Some((vec!["id of broken".to_owned()], u64::MAX)), "the control");
    // The same core again, after its auditor was started anew, has its lines; another has none.
    rig.writer.write(&[Incoming::Sequence(1)]).expect("writes");
    rig.writer.hello("s", "boot").expect("greets");
    assert_eq!(rig.of_run("broken", 25), Some((vec!["id of broken".to_owned()], u64::MAX)));
    rig.writer.hello("another", "boot").expect("greets");
    assert_eq!(rig.of_run("broken", 25), Some((Vec::new(), 10)));
    assert!(rig.intents().iter().all(|(_, over, error)| *over && error.is_some()), "{:?}", rig.intents());
}
