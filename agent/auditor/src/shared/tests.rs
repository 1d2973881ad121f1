//! Flushes, who is woken, and what was dropped.

use super::*;
use ringfence_events::{
    decode::Decoded,
    manifests::Decider,
    report::{CheckedPayload, CheckedReport},
    samples,
};
use std::{io::Read as _, thread};

#[test]
fn a_flush_waits_for_its_own_token() {
    let (core, ours) = UnixStream::pair().expect("a pair");
    let shared = Arc::new(Shared::new(ours));
    let waits = thread::spawn({
        let shared = Arc::clone(&shared);
        move || (shared.flush(Duration::from_secs(20)), shared.flush(Duration::from_millis(20)))
    });
    let mut core = core;
    let mut frame = [0; 13];
    core.read_exact(&mut frame).expect("the request");
    assert_eq!(Answer::parse(&frame[4..]).expect("parses"), Answer::Flush(1));
    shared.flushed(7);
    shared.flushed(1);
    assert_eq!(waits.join().expect("no panic"), (true, false));
}

#[test]
fn what_cannot_be_read_is_counted_by_its_kind() {
    let (_core, ours) = UnixStream::pair().expect("a pair");
    let shared = Shared::new(ours);
    (0..3).for_each(|_| shared.report_refused("a"));
    shared.report_refused("b");
    shared.undecodable(DecodeError::Length);
    let payload = CheckedPayload::Tagged { tag: 1, container: "c".into() };
    let report = CheckedReport { agent: "a".into(), uid: 5, container: None, at: 1, payload };
    shared.drop_incoming(Incoming::Report(Box::new(report)));
    let health = shared.health();
    let counted: Vec<(&str, u64)> = health.undecodable.iter().map(|(kind, n)| (*kind, *n)).collect();
    assert_eq!(counted, [("length", 1), ("report", 4), ("unstored_report", 1)]);
    assert!(health.misreporting.iter().eq(["a", "b"]), "each is logged once");
}

#[test]
fn however_many_wait_the_core_is_asked_a_few_times() {
    let (mut core, ours) = UnixStream::pair().expect("a pair");
    core.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let shared = Arc::new(Shared::new(ours));
    let waits: Vec<_> = (0..200)
        .map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.flush(Duration::from_secs(60)))
        })
        .collect();
    let (mut last, mut frame) = (0, [0; 13]);
    while waits.iter().any(|waits| !waits.is_finished()) {
        let mut asked = 0;
        while core.read_exact(&mut frame).is_ok() {
            asked += 1;
            match Answer::parse(&frame[4..]).expect("parses") {
                Answer::Flush(token) => last = token,
                other => panic!("{other:?}"),
            }
        }
        assert!(asked <= MAX_REQUESTS, "{asked} at once");
        shared.flushed(last);
    }
    assert!(waits.into_iter().all(|waits| waits.join().expect("no panic")));
}

#[test]
fn requests_of_which_nothing_comes_keep_nobody_from_the_next() {
    let (mut core, ours) = UnixStream::pair().expect("a pair");
    let shared = Arc::new(Shared::new(ours));
    let mut frame = [0; 13];
    let mut token = |core: &mut UnixStream| {
        core.read_exact(&mut frame).expect("a request");
        match Answer::parse(&frame[4..]).expect("parses") {
            Answer::Flush(token) => token,
            other => panic!("{other:?}"),
        }
    };
    // The store fails for a while: what the core answers is dropped by the link.
    for number in 1..=5 * 4 * MAX_REQUESTS {
        assert!(!shared.flush(Duration::ZERO), "nothing was stored");
        assert_eq!(token(&mut core), number, "the core was asked");
        shared.lose_token(number);
    }
    let asks = thread::spawn({
        let shared = Arc::clone(&shared);
        move || shared.flush(Duration::from_secs(60))
    });
    let last = token(&mut core);
    shared.flushed(last);
    assert!(asks.join().expect("no panic"), "it works again");
    assert!(lock(&shared.progress).lost.is_empty(), "and what was lost is forgotten");
    // A core that cannot be reached.
    drop(core);
    let begun = Instant::now();
    assert!((0..5 * 4 * MAX_REQUESTS).all(|_| !shared.flush(Duration::from_secs(600))));
    assert!(begun.elapsed() < Duration::from_secs(600), "nobody waits for it");
}

#[test]
fn whoever_follows_is_woken_by_their_own_events_and_root_by_all() {
    let shared = Shared::new(UnixStream::pair().expect("a pair").0);
    let look = |uid, after| shared.wait_after(uid, after, Duration::ZERO);
    shared.stored(7, [Some(1000)]);
    assert_eq!((look(0, 0), look(1000, 0), look(1001, 0)), (Some(7), Some(7), Some(0)));
    shared.stored(9, [Some(1001), Some(1001)]);
    assert_eq!((look(0, 7), look(1000, 7), look(1001, 0)), (Some(9), Some(7), Some(9)));
    // Within a bound; whom there is no room for is woken by all for whom there is none.
    shared.stored(20_000, (2_000..=9_000).map(Some));
    assert_eq!((look(2_000, 9), look(9_000, 9), look(1000, 9)), (Some(20_000), Some(20_000), Some(9)));
    assert!(lock(&shared.newest).of.len() <= MAX_FOLLOWED);
    // One of which nobody knows whose it is may be anybody's.
    let unknown = Shared::new(UnixStream::pair().expect("a pair").0);
    unknown.stored(7, [Some(1000)]);
    unknown.stored(9, [Some(1000), None]);
    assert_eq!([1000, 1001].map(|uid| unknown.wait_after(uid, 7, Duration::ZERO)), [Some(9); 2]);
    unknown.stored(10, [Some(1000)]);
    assert_eq!([1000, 1001].map(|uid| unknown.wait_after(uid, 9, Duration::ZERO)), [Some(10), Some(9)]);
    shared.close();
    assert_eq!(
        (look(1000, 9), look(9_000, 9)),
        (None, Some(20_000)),
        "what is stored is shown before the end"
    );
}

#[test]
fn drops_are_counted_per_container_within_a_bound() {
    let shared = Shared::new(UnixStream::pair().expect("a pair").0);
    for container in 1..=10_000 {
        // Denied (2), allowed (1), and allowed because of audit mode (3).
        let verdict = [3, 2, 1, 2][container as usize % 4];
        let record = Decoded { container, verdict, repeats: 3, ..samples::decoded() };
        shared.drop_event(Event { ts: 0, identity: None, decider: Decider::Default, record });
    }
    let dropped = shared.take_dropped();
    assert!(dropped.len() <= MAX_DROPPING + 1);
    assert_eq!(dropped.values().map(|d| d.denied).sum::<u64>(), 15_000);
    assert_eq!(dropped.values().map(|d| d.allowed).sum::<u64>(), 15_000);
    assert!(shared.dropped().is_empty());
}
