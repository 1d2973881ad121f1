//! Who may decide a call that waits, and how many may wait.

use super::{
    ARGUMENTS, Asked, Decider, Link, MOST_IN_ALL, MOST_LISTED, MOST_PER_USER, NOBODY, Origin, Refused,
    TOO_MANY, Waiting,
};
use crate::mcp::link::LinkWriter;
use ringfence_base::quota::Owners;
use ringfence_wire::{
    audit::PeerFacts,
    conn::Conn,
    egress_asks::{EgressDecision, WaitingConnection},
    mcp::{MAX_MESSAGE, McpReply, SessionOrder, WaitingCall},
};
use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

fn call(id: &str) -> WaitingCall {
    WaitingCall {
        id: id.into(),
        session: "s".into(),
        server: "fs".into(),
        tool: "t".into(),
        arguments: "{}".into(),
        arguments_bytes: None,
        score: 70,
        reasons: vec![],
        rules: vec![],
        since: 1,
        until: i64::MAX,
        connection: None,
    }
}

fn link() -> (Link, Conn) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let link = LinkWriter::new(ours);
    link.open(&"welcome").expect("sent");
    let mut theirs = Conn::new(theirs, Duration::from_secs(1), 4096);
    assert_eq!(theirs.receive::<String>().expect("the first message"), "welcome");
    (Arc::new(link), theirs)
}

#[test]
fn a_decision_counts_once_and_reaches_the_interceptor() {
    let (waiting, (link, mut interceptor)) = (Waiting::default(), link());
    assert!(waiting.add(call("abcdef"), 5, 1, link));
    assert_eq!(waiting.list(6).len(), 0);
    assert_eq!(waiting.list(5).len(), 1);
    let who = Decider::Dashboard { uid: 5 };
    assert_eq!(waiting.decide("abcd", true, &who), Ok("abcdef".into()));
    assert_eq!(
        interceptor.receive::<SessionOrder>().expect("an order"),
        SessionOrder::Decide { call: "abcdef".into(), approve: true, by: "dashboard".into() }
    );
    assert_eq!(waiting.decide("abcdef", false, &who), Err(Refused::Gone("abcdef".into())));
}

#[test]
fn whatever_waits_a_list_is_short_and_each_user_is_in_it() {
    let (waiting, (link, _interceptor)) = (Waiting::default(), link());
    // Six bytes each in JSON: nothing is longer there.
    let long = "\u{1}".repeat(2_100_000);
    for (uid, many) in [(5, MOST_PER_USER), (6, MOST_PER_USER), (7, MOST_PER_USER), (8, 1)] {
        for number in 0..many {
            let call = WaitingCall {
                arguments: if uid == 8 { "{}".into() } else { long.clone() },
                tool: long[..400].to_owned(),
                reasons: vec![long[..400].to_owned(); 100],
                rules: vec![long[..400].to_owned(); 100],
                // Whoever came last.
                since: i64::from(uid),
                ..call(&format!("{uid}-{number}"))
            };
            assert!(waiting.add(call, uid, 1, link.clone()));
        }
    }
    assert!(!waiting.add(call("5-more"), 5, 1, link), "too many of this user's");
    let listed = waiting.list(0);
    assert_eq!((listed.len(), waiting.count(0), waiting.ids(0).len()), (MOST_LISTED, 769, 769));
    for (uid, many) in [("5-", 85), ("6-", 85), ("7-", 85), ("8-", 1)] {
        assert_eq!(listed.iter().filter(|call| call.id.starts_with(uid)).count(), many, "{uid}");
    }
    assert!(listed.is_sorted_by_key(|call| call.since));
    let (cut, whole) = (&listed[0], &listed[listed.len() - 1]);
    assert_eq!(cut.arguments_bytes, Some(2_100_000), "given with it");
    assert!(cut.arguments.len() <= ARGUMENTS && long.starts_with(&cut.arguments));
    assert_eq!((whole.arguments.as_str(), whole.arguments_bytes), ("{}", None));
    let message = serde_json::to_string(&McpReply::Waiting { calls: listed }).expect("JSON");
    assert!(message.len() < MAX_MESSAGE, "{} bytes", message.len());
    assert_eq!((waiting.list(6).len(), waiting.count(6)), (MOST_PER_USER, MOST_PER_USER));
}

#[test]
fn a_late_decision_does_not_count() {
    let waiting = Waiting::default();
    assert!(waiting.add(WaitingCall { until: 1, ..call("abcdef") }, 5, 1, link().0));
    let who = Decider::Dashboard { uid: 5 };
    assert_eq!(waiting.decide("abcdef", true, &who), Err(Refused::Gone("abcdef".into())));
}

#[test]
fn others_the_governed_and_the_clients_own_processes_are_refused() {
    let waiting = Waiting::default();
    let (link, _interceptor) = link();
    for id in ["aaaa-1", "aaaa-2"] {
        assert!(waiting.add(call(id), 5, 77, link.clone()));
    }
    let process = |uid, lineage: &[u32]| Decider::Process {
        uid,
        facts: PeerFacts { lineage: lineage.to_vec(), governed: false },
    };
    let decide = |id: &str, who: &Decider| waiting.decide(id, true, who);
    let other = process(5, &[90, 1]);
    assert_eq!(decide("aaaa", &other), Err(Refused::Unclear("aaaa".into())));
    assert_eq!(decide("aaaa-1", &process(6, &[90, 1])), Err(Refused::NotYours { owner: 5 }));
    assert_eq!(decide("aaaa-1", &Decider::Dashboard { uid: 6 }), Err(Refused::NotYours { owner: 5 }));
    for uid in [5, 0] {
        assert_eq!(decide("aaaa-1", &process(uid, &[91, 77, 1])), Err(Refused::Descendant { client: 77 }));
    }
    let facts = PeerFacts { lineage: vec![90, 1], governed: true };
    assert_eq!(decide("aaaa-1", &Decider::Process { uid: 5, facts }), Err(Refused::Governed));
    assert_eq!(waiting.list(0).len(), 2, "a refusal decides nothing");
    assert!(decide("aaaa-1", &other).is_ok() && decide("aaaa-2", &Decider::Dashboard { uid: 0 }).is_ok());
}

#[test]
fn the_beginning_of_another_user_s_call_says_nothing() {
    let waiting = Waiting::default();
    let (link, mut interceptor) = link();
    for (id, uid) in [("abcd-theirs", 6), ("abcd-mine", 5), ("efgh-theirs", 6)] {
        assert!(waiting.add(call(id), uid, 1, link.clone()));
    }
    let who = Decider::Dashboard { uid: 5 };
    assert_eq!(waiting.decide("efgh", true, &who), Err(Refused::Gone("efgh".into())), "nor whose it is");
    let gone = waiting.decide("none", true, &who);
    assert_eq!(gone, Err(Refused::Gone("none".into())), "as one that never was");
    assert_eq!(waiting.decide("efgh-theirs", true, &who), Err(Refused::NotYours { owner: 6 }));
    assert_eq!(waiting.decide("abc", true, &who), Err(Refused::Gone("abc".into())), "too short");
    let root = Decider::Dashboard { uid: 0 };
    assert_eq!(waiting.decide("abcd", true, &root), Err(Refused::Unclear("abcd".into())));
    // Whatever waits of others: one's own is not unclear.
    assert_eq!(waiting.decide("abcd", true, &who), Ok("abcd-mine".into()));
    assert!(matches!(
        interceptor.receive::<SessionOrder>().expect("an order"),
        SessionOrder::Decide { call, .. } if call == "abcd-mine"
    ));
    assert_eq!(waiting.list(0).len(), 2);
    // Nor where another's id is what one types of one's own.
    assert!(waiting.add(call("ijkl"), 6, 1, link.clone()) && waiting.add(call("ijkl-mine"), 5, 1, link));
    assert_eq!(waiting.decide("ijkl", true, &who), Ok("ijkl-mine".into()));
    assert_eq!(waiting.decide("ijkl", true, &who), Err(Refused::NotYours { owner: 6 }), "the control");
    let Err(Refused::Gone(shown)) = waiting.decide(&"x".repeat(1 << 20), true, &who) else { panic!("found") };
    assert!(shown.len() < 50, "{} bytes in the log", shown.len());
}

#[test]
fn the_first_process_as_a_client_keeps_nobody_out_and_the_record_says_so() {
    let (waiting, (link, mut interceptor)) = (Waiting::default(), link());
    for client in [0, 1] {
        assert!(waiting.add(call("abcdef"), 5, client, link.clone()));
        let facts = PeerFacts { lineage: vec![90, 40, 1], governed: false };
        let who = Decider::Process { uid: 5, facts };
        assert_eq!(waiting.decide("abcdef", true, &who), Ok("abcdef".into()));
        let order = interceptor.receive::<SessionOrder>().expect("an order");
        let by = "uid 5, who may be the client".into();
        assert_eq!(order, SessionOrder::Decide { call: "abcdef".into(), approve: true, by });
    }
}

#[test]
fn a_users_waiting_calls_are_bounded_and_others_have_room() {
    let waiting = Waiting::default();
    let (link, _interceptor) = link();
    let fits = |uid, n: usize| waiting.add(call(&format!("{uid}-{n}")), uid, 1, link.clone());
    assert!((0..MOST_PER_USER).all(|n| fits(5, n)));
    assert!(!fits(5, MOST_PER_USER) && fits(6, 0));
}

#[test]
fn subordinate_ids_give_nobody_more_calls_and_others_have_room() {
    let owners = Owners::parse("1000:100000:65536\n", |name| name.parse().ok());
    let waiting = Waiting::new(owners);
    let (link, _interceptor) = link();
    let fits = |uid, n: usize| waiting.add(call(&format!("{uid}-{n}")), uid, 1, link.clone());
    assert!((0..MOST_PER_USER).all(|n| fits(100_000 + n as u32, n)));
    assert!(!fits(1000, 0) && !fits(165_535, 0), "one user's, whichever id");
    assert!((0..MOST_PER_USER).all(|n| fits(7, n)));
    let listed = waiting.list(0);
    let of_7 = listed.iter().filter(|call| call.id.starts_with("7-")).count();
    assert_eq!((listed.len(), of_7), (MOST_LISTED, MOST_LISTED / 2), "a share for each user, not each id");
}

#[test]
fn all_calls_together_are_bounded_and_whoever_has_most_makes_room() {
    let waiting = Waiting::default();
    let (link, mut interceptor) = link();
    let add = |uid: u32, n: usize| {
        let call = WaitingCall { since: n as i64, ..call(&format!("{uid}-{n}")) };
        waiting.add(call, uid, 1, link.clone())
    };
    for uid in [5, 6, 7] {
        assert!((0..MOST_PER_USER).all(|n| add(uid, n)));
    }
    assert!((0..MOST_PER_USER - 1).all(|n| add(8, n)) && add(9, 0));
    assert_eq!(waiting.count(0), MOST_IN_ALL);
    assert!(!add(8, MOST_PER_USER), "nobody has so many more");
    for n in 1..4 {
        assert!(add(9, n));
        let order = interceptor.receive::<SessionOrder>().expect("an order");
        let SessionOrder::Decide { call, approve, by } = order else { panic!("{order:?}") };
        assert!(!approve && by == TOO_MANY && !call.starts_with("9-"), "{call}");
        assert!(call.ends_with("-255"), "the newest: {call}");
    }
    assert_eq!((waiting.count(0), waiting.count(9)), (MOST_IN_ALL, 4));
}

#[test]
fn a_call_that_is_paused_again_is_one_and_ends_with_its_own_session() {
    let waiting = Waiting::default();
    let (link, _interceptor) = link();
    let again = |until| waiting.add(WaitingCall { until, ..call("abcdef") }, 5, 1, link.clone());
    assert!((1..=MOST_PER_USER as i64).all(again), "none of these is one more");
    assert!((1..MOST_PER_USER).all(|n| waiting.add(call(&n.to_string()), 5, 1, link.clone())));
    assert!(again(i64::MAX), "nor where there is no room for one more");
    assert!(!waiting.add(call("more"), 5, 1, link.clone()));
    assert_eq!(waiting.count(5), MOST_PER_USER);
    let other = WaitingCall { session: "other".into(), ..call("of another") };
    assert!(waiting.add(other, 6, 1, link.clone()));
    assert!(!waiting.remove("abcdef", "other") && !waiting.remove("of another", "s"));
    assert_eq!(waiting.count(0), MOST_PER_USER + 1, "another session's call is none of its own");
    assert!(waiting.remove("abcdef", "s"));
    assert!(!waiting.remove("abcdef", "s"), "nor does one that waits no more");
    assert_eq!(waiting.count(5), MOST_PER_USER - 1);
    waiting.remove_all("s");
    assert_eq!((waiting.count(5), waiting.count(6)), (0, 1));
}

#[test]
fn no_session_takes_the_place_of_what_waits_by_its_id() {
    let (waiting, (link, mut worker), (other, _agent)) = (Waiting::default(), link(), link());
    let connection = WaitingConnection {
        host: "a.org".into(),
        port: 443,
        container: "0123456789ab".into(),
        profile: "coder".into(),
        within: None,
    };
    let asked = Asked { number: 7, outermost: "0123456789ab".into() };
    let from = Origin { uid: 5, client: NOBODY, governed: true, fingerprint: None, question: Some(asked) };
    let question = WaitingCall {
        session: "0123456789ab".into(),
        connection: Some(connection.clone()),
        ..call("abcdef")
    };
    assert!(waiting.add_from(question.clone(), from.clone(), Arc::clone(&link)));
    assert!(!waiting.add(call("abcdef"), 5, 90, Arc::clone(&other)), "a call of an agent's that says its id");
    assert!(!waiting.add(
        WaitingCall { session: question.session.clone(), ..call("abcdef") },
        5,
        90,
        other.clone()
    ));
    assert!(!waiting.add_from(question.clone(), from.clone(), other), "nor on another line");
    assert!(!waiting.add_from(question.clone(), Origin { uid: 6, ..from.clone() }, Arc::clone(&link)));
    let later = WaitingCall { until: i64::MAX - 1, ..question };
    assert!(waiting.add_from(later, from, link), "the control: itself, until another time");
    let listed = waiting.list(5);
    assert_eq!((listed.len(), listed[0].until, &listed[0].connection), (1, i64::MAX - 1, &Some(connection)));
    assert!(!waiting.remove("abcdef", "s"));
    assert_eq!(waiting.decide("abcd", true, &Decider::Dashboard { uid: 5 }), Ok("abcdef".into()));
    let told: EgressDecision = worker.receive().expect("an answer");
    assert_eq!((told.question, told.approve, told.full), (7, true, false));
}

#[test]
fn a_connection_that_makes_room_hears_that_nobody_was_asked() {
    let (waiting, (link, mut worker), (other, _agent)) = (Waiting::default(), link(), link());
    let asked = Asked { number: 7, outermost: "0123456789ab".into() };
    let from = Origin { uid: 5, client: NOBODY, governed: true, fingerprint: None, question: Some(asked) };
    for uid in 5..9 {
        (1..MOST_PER_USER).for_each(|at| {
            assert!(waiting.add(call(&format!("{uid}-{at}")), uid, 1, Arc::clone(&other)));
        });
    }
    let connection = WaitingConnection {
        host: format!("github.com.{}.evil.example", "a".repeat(60).repeat(3)),
        port: 443,
        container: "0123456789ab".into(),
        profile: "coder".into(),
        within: None,
    };
    let server = connection.host.clone();
    let newest =
        WaitingCall { since: 2, server: server.clone(), connection: Some(connection), ..call("newest") };
    assert!(waiting.add_from(newest, from, link));
    let listed = waiting.list(5).into_iter().find(|call| call.id == "newest").expect("it waits");
    assert_eq!(listed.server, server, "a host's end is not cut off");
    for uid in 10..13 {
        assert!(waiting.add(call(&format!("{uid}")), uid, 1, Arc::clone(&other)));
    }
    assert!(waiting.add(call("last"), 13, 1, other), "the newest of whoever has most goes");
    let told: EgressDecision = worker.receive().expect("an answer");
    assert_eq!((told.question, told.approve, told.stands, told.full), (7, false, false, true));
}
