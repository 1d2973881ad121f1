//! What is known of a run: its refusals, its first call, what it lost.

use super::*;

#[test]
fn a_run_s_refusals_are_shown_with_its_own_intents_alone() {
    let mut rig = Rig::new();
    let refused = |why: &str| {
        let (what, why) = ("tie".to_owned(), why.to_owned());
        CheckedPayload::Event(AgentEvent::Refused(Refusal {
            what,
            why,
            pid: None,
            uid: None,
            container: None,
        }))
    };
    let asked = |id: &str| {
        let (id, text) = (id.to_owned(), "t".to_owned());
        CheckedPayload::Event(AgentEvent::Intent { id, uid: None, text, via: Via::Http, session: None })
    };
    rig.run_says("one", asked("of-one"));
    rig.run_says("other", asked("of-other"));
    rig.run_says("one", refused("one's"));
    (0..9).for_each(|_| rig.run_says("other", refused("the other's")));
    rig.say_of("a@7", asked("of-none"));
    rig.say_of("a@7", refused("no run's"));
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let shown = |target: &TraceTarget| -> Vec<String> {
        let refusals = reader.refusals(Viewer(0), target, 3).expect("reads");
        refusals.into_iter().map(|(_, _, refusal)| refusal.why).collect()
    };
    let of = |id: &str| {
        let targets = reader.trace_targets(Viewer(0), Some(id), 9).expect("reads");
        targets.iter().map(&shown).collect::<Vec<_>>()
    };
    assert_eq!(of("of-one"), [["one's"]]);
    assert_eq!(of("of-other"), [["the other's"; 3]]);
    assert_eq!(of("of-none"), [["no run's"]]);
    assert_eq!(shown(&TraceTarget::Agent("a@7".into())).len(), 3, "the control");
}

#[test]
fn when_a_runs_first_call_began_is_known_once_its_row_is_gone() {
    let mut rig = Rig::new();
    rig.run_says("c1", CheckedPayload::LineOpened);
    for (id, moment) in [("a", 10), ("b", 30)] {
        let call = AgentEvent::Call {
            key: format!("key of {id}"),
            id: id.into(),
            renamed: None,
            intent: None,
            tool: "Bash".into(),
            server: None,
            input: "{}".into(),
            paths: None,
            moment,
        };
        rig.run_says("c1", CheckedPayload::Event(call));
    }
    let known = |rig: &Rig| {
        let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
        let found = reader.run_calls_in_flight("c1", (35, 35), 100).expect("reads").expect("a run");
        (found.calls.len(), found.first)
    };
    assert_eq!(known(&rig), (2, Some(10)));
    while rig.writer.retain(&Retention::default(), now_micros()).expect("deletes") {}
    assert_eq!(known(&rig), (0, Some(10)));
}

#[test]
fn what_a_run_lost_is_a_gap_until_it_says_that_it_is_over() {
    let mut rig = Rig::new();
    for container in ["c1", "c2"] {
        rig.run_says(container, CheckedPayload::LineOpened);
    }
    let gap = |from: u64, to: u64| Gap { from, to: (to > 0).then_some(to) };
    let gaps = |rig: &Rig, container: &str| {
        let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
        reader.run_calls_in_flight(container, (1, 1), 100).expect("reads").expect("a run").gaps
    };
    let lost = |rig: &mut Rig, from: u64, to: Option<u64>| {
        rig.run_says("c1", CheckedPayload::Event(AgentEvent::Lost { count: 3, from, to }));
    };
    assert_eq!(gaps(&rig, "c1"), []);
    lost(&mut rig, 10, None);
    assert_eq!(gaps(&rig, "c1"), [gap(10, 0)]);
    assert_eq!(gaps(&rig, "c2"), [], "another's");
    lost(&mut rig, 8, Some(20));
    lost(&mut rig, 30, Some(40));
    assert_eq!(gaps(&rig, "c1"), [gap(8, 20), gap(30, 40)]);
    // What the core lost stays unknown, whatever the worker says of its own.
    lost(&mut rig, 0, None);
    lost(&mut rig, 50, None);
    lost(&mut rig, 50, Some(60));
    assert_eq!(gaps(&rig, "c1"), [gap(0, 0), gap(8, 20), gap(30, 40), gap(50, 60)]);
    let reader = Reader::open(&rig.dir.path().join(FILE)).expect("opens");
    let told = reader.refusals(Viewer(7), &TraceTarget::All, 100).expect("reads");
    assert_eq!(told.len(), 4, "each once: {told:?}");
    assert!(told[0].2.why.starts_with("3 reports"), "{told:?}");
    // A run that says anything is bounded, and nothing that it says is an error.
    for n in (0..200).rev() {
        lost(&mut rig, n, Some(n + 7));
        lost(&mut rig, n * 9, None);
        lost(&mut rig, u64::MAX - n, Some(n));
    }
    let all = gaps(&rig, "c1");
    assert!(all.len() <= 40 && all.contains(&gap(0, 0)), "{all:?}");
    let counted = |rig: &Rig| -> i64 {
        rig.writer
            .connection()
            .query_row("SELECT count(*) FROM run_gaps", [], |row| row.get(0))
            .expect("reads")
    };
    assert!(counted(&rig) > 0);
    // They go with their run, once that is over and old.
    while rig.writer.retain(&Retention::default(), now_micros()).expect("deletes") {}
    assert!(counted(&rig) > 0, "it reports still");
    for container in ["c1", "c2"] {
        rig.run_says(container, CheckedPayload::LineClosed { moment: 90 });
    }
    while rig.writer.retain(&Retention::default(), now_micros()).expect("deletes") {}
    assert_eq!(counted(&rig), 0);
}
