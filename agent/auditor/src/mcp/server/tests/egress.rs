//! Lines of egress workers: who may have one, what is taken of what comes on it, and what is not.

use super::*;
use crate::queue::{self, Item, Receiver};
use ringfence_events::{egress::Told, manifests::Decider};
use ringfence_store::Incoming;
use ringfence_wire::{
    audit::Manifest,
    egress::{
        EgressCause, EgressLine, EgressOutcome, EgressRecord, EgressReport, EgressReports, Flow, MAX_NAME,
        MAX_REPORTS, NameOutcome, REPORTS_AT_ONCE,
    },
    event::RuleText,
};

pub(super) fn whose(uid: u32) -> EgressLine {
    EgressLine {
        container: 0x1005,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid,
        created: clock::now_micros() - 60_000_000,
        block: "198.18.3.0/24".parse().expect("a block"),
        within: None,
    }
}

/// A line of this container's, asked for by `uid`, and the first answer.
pub(super) fn line(sessions: &Arc<Sessions>, uid: u32, whose: &EgressLine) -> (Conn, McpReply) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let permit = Permits::within(Bounds::of(999, 999), Owners::default()).take(uid, || ()).expect("a permit");
    let shared = Arc::clone(sessions);
    thread::spawn(move || converse(ours, uid, &permit, &shared));
    let mut worker = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
    worker.send(&McpRequest::Egress(whose.clone())).expect("sent");
    let reply = worker.receive().expect("an answer");
    (worker, reply)
}

/// Sessions of a daemon's auditor whose core has said hello, and what is to be stored.
fn greeted() -> (tempfile::TempDir, Arc<Sessions>, Receiver, queue::Sender) {
    let (folder, sessions) = sessions_of_everybody(false);
    let (sender, items) = queue::queue();
    sessions.shared().expect("the daemon's").open_to_workers(&sender);
    (folder, sessions, items, sender)
}

fn next(items: &Receiver) -> Vec<Incoming> {
    match items.recv_timeout(Duration::from_secs(60)).expect("something to store") {
        Item::Batch { sequence: None, incoming } => incoming,
        other => panic!("{other:?}"),
    }
}

fn report(record: EgressRecord) -> EgressReport {
    let flow = matches!(record, EgressRecord::Connection { .. }).then_some(Flow {
        address: [198, 18, 3, 1].into(),
        port: 443,
        call: 7,
        pid: 11,
        tgid: 10,
        start: 5,
        uid: 1000,
    });
    EgressReport { at: clock::now_micros(), flow, record }
}

fn asked(name: &str) -> EgressRecord {
    EgressRecord::Name {
        name: name.into(),
        kind: "A".into(),
        outcome: NameOutcome::Refused,
        address: None,
        repeats: 0,
    }
}

fn connected(name: &str, outcome: EgressOutcome, cause: Option<EgressCause>, rule: u32) -> EgressRecord {
    EgressRecord::Connection {
        name: name.into(),
        port: 443,
        dialled: None,
        tls: true,
        sent: 1,
        received: 2,
        duration_us: 3,
        outcome,
        cause,
        reason: None,
        rule: Some(rule),
    }
}

fn told(records: Vec<EgressRecord>) -> EgressReports {
    EgressReports { reports: records.into_iter().map(report).collect() }
}

#[test]
fn what_a_worker_tells_is_its_container_s_and_names_the_rules_that_are() {
    let (_folder, sessions, items, _link) = greeted();
    let rule = |key: &str, text: &str| RuleText {
        id: format!("{key}:{text}"),
        file: None,
        line: 0,
        key: key.into(),
        text: text.into(),
    };
    sessions.shared().expect("the daemon's").manifests().add(Manifest {
        container: 0x1005,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 7,
        created: 0,
        generation: 4,
        rules: vec![rule("grant.net", "pypi.org:443"), rule("deny.net", "evil.example")],
        slots: Vec::new(),
        more: false,
    });
    let (mut worker, linked) = line(&sessions, 0, &whose(7));
    assert_eq!(linked, McpReply::Linked);
    let denied = Some(EgressCause::Denied);
    worker
        .send(&told(vec![
            connected("pypi.org", EgressOutcome::Passed, None, 0),
            connected("other.org", EgressOutcome::Passed, None, 0),
            connected("evil.example", EgressOutcome::Refused, denied, 1),
            connected("evil.example", EgressOutcome::Passed, None, 1),
            connected("pypi.org", EgressOutcome::Refused, denied, 0),
            connected("pypi.org", EgressOutcome::Passed, None, 99),
            asked("a.example"),
            EgressRecord::Lost { count: 5 },
        ]))
        .expect("sent");
    let incoming = next(&items);
    let deciders: Vec<String> = incoming
        .iter()
        .filter_map(|incoming| match incoming {
            Incoming::Event(event) => {
                assert_eq!((event.record.container, event.record.generation), (0x1005, 4));
                let identity = event.identity.as_ref().expect("known");
                assert_eq!(
                    (&*identity.public, &*identity.profile, identity.uid),
                    ("0123456789ab", "coder", 7)
                );
                Some(match &event.decider {
                    Decider::Rule(rule) => rule.id.clone(),
                    other => format!("{other:?}"),
                })
            }
            Incoming::EgressLost { kernel: 0x1005, count: 5, .. } => None,
            other => panic!("{other:?}"),
        })
        .collect();
    let evil = "deny.net:evil.example";
    assert_eq!(
        deciders,
        ["grant.net:pypi.org:443", "Unknown", evil, "Unknown", "Default", "Unknown", "Default"]
    );
    assert_eq!(incoming.len(), 8);
    let metrics = sessions.metrics.text(0, 0, Default::default()).expect("text");
    assert!(metrics.contains(r#"ringfence_egress_connections_total{outcome="passed"} 4"#), "{metrics}");
}

#[test]
fn the_daemon_alone_has_a_line_made_and_no_confined_root() {
    let refused = |(_, reply): (Conn, McpReply)| match reply {
        McpReply::Failed(failure) => failure.error,
        other => panic!("{other:?}"),
    };
    let (_folder, sessions, _items, _link) = greeted();
    assert!(refused(line(&sessions, 7, &whose(7))).contains("only the daemon"));
    for odd in [
        EgressLine { public: "0123".into(), ..whose(7) },
        EgressLine { public: "0123456789ab\n".into(), ..whose(7) },
        EgressLine { profile: String::new(), ..whose(7) },
        EgressLine { profile: "p".repeat(500), ..whose(7) },
        EgressLine { block: "198.18.0.0/15".parse().expect("a block"), ..whose(7) },
    ] {
        assert!(refused(line(&sessions, 0, &odd)).contains("no container"), "{odd:?}");
    }
    assert_eq!(line(&sessions, 0, &whose(7)).1, McpReply::Linked, "the control");
    let (_folder, sessions) = sessions_of_everybody(true);
    assert!(refused(line(&sessions, 0, &whose(7))).contains("govern"));
    let folder = tempfile::tempdir().expect("a folder");
    let own = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
    assert!(refused(line(&own, 0, &whose(0))).contains("only the daemon"));
}

#[test]
fn a_worker_that_tells_what_none_tells_has_no_line_any_more() {
    let (_folder, sessions, items, _link) = greeted();
    let odd = |reports: EgressReports| serde_json::to_vec(&reports).expect("JSON");
    let outside = EgressReports {
        reports: vec![EgressReport {
            flow: Some(Flow {
                address: [198, 18, 4, 1].into(),
                port: 443,
                call: 0,
                pid: 0,
                tgid: 0,
                start: 0,
                uid: 0,
            }),
            ..report(connected("pypi.org", EgressOutcome::Passed, None, 0))
        }],
    };
    let many = vec![asked("a.example"); REPORTS_AT_ONCE + 1];
    for (what, body) in [
        ("nothing", odd(told(Vec::new()))),
        ("too many", odd(told(many))),
        ("a long name", odd(told(vec![asked("a.example"), asked(&"n".repeat(MAX_NAME + 1))]))),
        ("a name that a terminal would obey", odd(told(vec![asked("\u{1b}[2J")]))),
        ("another container's address", odd(outside)),
        ("no JSON", b"{".to_vec()),
        ("another message", br#"{"request":"stats"}"#.to_vec()),
        ("a key that there is not", br#"{"reports":[],"container":9}"#.to_vec()),
        ("too long", vec![b' '; MAX_REPORTS + 1]),
        ("nesting", [vec![b'['; 100_000], vec![b']'; 100_000]].concat()),
    ] {
        let (worker, _) = line(&sessions, 0, &whose(7));
        let mut stream = worker.into_stream();
        let _ = ringfence_wire::frame::write_frame(&mut stream, &body);
        let mut ends = Conn::new(stream, Duration::from_secs(60), MAX_MESSAGE);
        let ended = ends.receive::<McpReply>();
        assert!(ended.is_err() && !matches!(ended, Err(FrameError::TimedOut)), "{what}: {ended:?}");
    }
    assert!(items.try_recv().is_err(), "not even what came before it in the same frame");
    let (mut worker, _) = line(&sessions, 0, &whose(7));
    worker.send(&told(vec![asked("a.example"); REPORTS_AT_ONCE])).expect("sent");
    assert_eq!(next(&items).len(), REPORTS_AT_ONCE, "the control");
    drop(worker);
    ringfence_test_support::wait::wait_until("lines that ended are forgotten", || {
        sessions.egress.count(0) == 0
    });
}

#[test]
fn what_comes_before_the_core_says_hello_waits_for_that() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let (mut worker, _) = line(&sessions, 0, &whose(7));
    worker.send(&told(vec![asked("a.example")])).expect("sent");
    let (sender, items) = queue::queue();
    thread::sleep(Duration::from_millis(100));
    assert!(items.try_recv().is_err());
    sender.send(Item::Hello { session: "s".into(), boot: "b".into() }, 9).expect("sent");
    sessions.shared().expect("the daemon's").open_to_workers(&sender);
    assert!(matches!(items.recv_timeout(Duration::from_secs(60)), Ok(Item::Hello { .. })), "that first");
    let incoming = next(&items);
    let Some(Incoming::Event(event)) = incoming.first() else { panic!("{incoming:?}") };
    let egress = event.record.egress.as_ref().expect("what it tells");
    assert!(egress.name == "a.example" && matches!(egress.told, Told::Question(_)));
    // The end of the core is the end of the line: nobody stores any more.
    sessions.shared().expect("the daemon's").close();
    worker.send(&told(vec![asked("b.example")])).expect("sent");
    assert!(matches!(worker.receive::<McpReply>(), Err(FrameError::Closed)));
}

#[test]
fn a_flood_waits_in_its_own_worker_and_takes_no_room_from_the_kernel_s_events() {
    let (_folder, sessions, items, link) = greeted();
    let (mut worker, _) = line(&sessions, 0, &whose(7));
    let flood = thread::spawn(move || {
        let frame = told(vec![asked("a.example"); REPORTS_AT_ONCE]);
        // Until the auditor reads no more, or the test is over.
        let mut sent = 0;
        while worker.send(&frame).is_ok() {
            sent += 1;
        }
        sent
    });
    // Nobody stores: the room of all workers fills up, at their pace.
    let shared = sessions.shared().expect("the daemon's");
    let probe = || shared.tell(Item::Batch { sequence: None, incoming: Vec::new() }, 1);
    ringfence_test_support::wait::wait_until("the workers' room is full", || probe().is_err());
    link.send(Item::Flushed(1), 1000).expect("the link has its own room");
    shared.close();
    assert!(flood.join().expect("no panic") > 16, "the control");
    let stored = std::iter::from_fn(|| items.try_recv().ok()).filter(|item| matches!(item, Item::Flushed(1)));
    assert_eq!(stored.count(), 1);
}

#[test]
fn no_user_s_containers_keep_another_s_off_the_record() {
    let (_folder, sessions, items, _link) = greeted();
    let mut greedy: Vec<Conn> = (0..150).map(|_| line(&sessions, 0, &whose(7)).0).collect();
    assert!(sessions.egress.count(7) < 150);
    let (mut worker, linked) = line(&sessions, 0, &whose(8));
    assert_eq!(linked, McpReply::Linked);
    worker.send(&told(vec![asked("a.example")])).expect("sent");
    assert_eq!(next(&items).len(), 1);
    greedy.clear();
}
