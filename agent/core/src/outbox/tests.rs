//! What is kept until it is acknowledged, and what is sent again.

use super::*;

fn manifest(container: u64, generation: u32) -> Arc<Manifest> {
    Arc::new(Manifest {
        container,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 0,
        created: 0,
        generation,
        rules: Vec::new(),
        slots: Vec::new(),
        more: false,
    })
}

fn batch(outbox: &mut Outbox, record: &[u8]) {
    let mut batch = outbox.new_batch();
    assert!(batch.push(record));
    outbox.seal(batch, 1).unwrap();
}

#[test]
fn reports_take_no_room_from_records() {
    use ringfence_wire::audit::{AgentReport, Payload};
    let (mut outbox, mut reports) = (Outbox::default(), ReportQueue::default());
    let payload = Payload::Event(serde_json::value::to_raw_value(&"x".repeat(10_000)).unwrap());
    let report = AgentReport { agent: "a".into(), uid: 0, container: None, at: 0, payload };
    for _ in 0..10 {
        while reports.add(&report) {}
        while outbox.batch_reports(&mut reports).is_some() {}
    }
    assert!(!reports.is_empty(), "the rest waits");
    assert!(outbox.bytes > MAX_REPORTED && outbox.bytes < MAX_REPORTED + (2 << 20) && outbox.has_room());
    batch(&mut outbox, b"a denial");
    assert_eq!(outbox.unacknowledged(), 1);
    assert!(outbox.acknowledge(outbox.last));
    assert_eq!((outbox.bytes, outbox.reported), (0, 0));
    assert!(outbox.batch_reports(&mut reports).is_some());
}

fn manifests(notices: &[Notice]) -> Vec<(u64, u32)> {
    let pair = |notice: &Notice| match notice {
        Notice::Manifest(manifest) => Some((manifest.container, manifest.generation)),
        _ => None,
    };
    notices.iter().filter_map(pair).collect()
}

#[test]
fn a_new_auditor_gets_what_its_predecessor_did_not_store() {
    let mut outbox = Outbox::default();
    assert_eq!(manifests(&outbox.take(Update::Manifest(manifest(1, 1)))), [(1, 1)]);
    for record in [b"a", b"b", b"c"] {
        batch(&mut outbox, record);
    }
    assert!(outbox.acknowledge(1));
    assert_eq!(outbox.unacknowledged(), 2);
    // The auditor stored the second as well, but died before it said so.
    let Resend { first, frames, ended } = outbox.resend(2).unwrap();
    assert_eq!((manifests(&first), frames.len(), ended.len()), (vec![(1, 1)], 1, 0));
    assert!(frames[0].ends_with(b"c"));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_is_refused() {
    let mut outbox = Outbox::default();
    batch(&mut outbox, b"a");
    assert!(!outbox.acknowledge(2));
    assert!(outbox.resend(u64::MAX).is_none());
    assert_eq!(outbox.unacknowledged(), 1);
}

#[test]
fn a_manifest_stays_until_the_last_record_that_needs_it_is_stored() {
    let mut outbox = Outbox::default();
    outbox.take(Update::Manifest(manifest(1, 1)));
    outbox.take(Update::Manifest(manifest(1, 2)));
    outbox.take(Update::Ended { container: 1, generation: Some(1) });
    batch(&mut outbox, b"judged by generation 1");
    assert!(outbox.acknowledge(1));
    assert_eq!(manifests(&outbox.resend(1).unwrap().first), [(1, 1), (1, 2)], "more may be in the rings");
    assert!(outbox.rings_empty().is_empty());
    batch(&mut outbox, b"judged by generation 2");
    assert!(outbox.acknowledge(2));
    assert_eq!(manifests(&outbox.resend(2).unwrap().first), [(1, 2)]);
}

#[test]
fn a_manifest_goes_as_soon_as_all_its_records_are_stored_though_nothing_comes_after() {
    let mut outbox = Outbox::default();
    for container in [1, 2] {
        outbox.take(Update::Manifest(manifest(container, 1)));
    }
    batch(&mut outbox, b"all that there is");
    assert!(outbox.acknowledge(1));
    outbox.take(Update::Ended { container: 1, generation: None });
    assert_eq!(outbox.known.len(), 2, "more may be in the rings");
    assert_eq!(outbox.rings_empty(), [Notice::Ended { container: 1 }]);
    assert_eq!(outbox.known.keys().collect::<Vec<_>>(), [&(2, 1)]);
    assert!(outbox.ended.is_empty());
    // The control: with a batch that is not stored it stays.
    batch(&mut outbox, b"one more");
    outbox.take(Update::Ended { container: 2, generation: None });
    assert_eq!(outbox.rings_empty(), [Notice::Ended { container: 2 }]);
    assert_eq!((outbox.known.len(), outbox.ended.len()), (1, 1));
    assert!(outbox.acknowledge(2));
    assert_eq!((outbox.known.len(), outbox.ended.len()), (0, 0));
}

#[test]
fn manifests_of_what_is_over_are_bounded_by_bytes_and_whoever_has_most_loses_the_oldest() {
    let mut outbox = Outbox::default();
    let of = |uid: u32, container: u64, bytes: usize| {
        let manifest = Manifest { uid, ..(*manifest(container, 1)).clone() };
        Arc::new(Manifest { profile: "p".repeat(bytes), ..manifest })
    };
    let end = |outbox: &mut Outbox, manifest: Arc<Manifest>| {
        let container = manifest.container;
        outbox.take(Update::Manifest(manifest));
        outbox.take(Update::Ended { container, generation: None });
    };
    end(&mut outbox, of(6, 1, 1000));
    // One that runs counts for nothing.
    outbox.take(Update::Manifest(of(5, 2, MAX_RETIRED_BYTES)));
    for container in 3..103 {
        end(&mut outbox, of(5, container, MAX_RETIRED_BYTES / 10));
    }
    let kept: Vec<u64> = outbox.known.keys().map(|(container, _)| *container).collect();
    assert_eq!(kept[..2], [1, 2], "another user's, and one that runs");
    assert_eq!(kept[2..], (94..103).collect::<Vec<_>>(), "the newest of whoever has most");
}

#[test]
fn the_end_of_a_container_is_told_after_its_records_and_again_until_stored() {
    let mut outbox = Outbox::default();
    outbox.take(Update::Manifest(manifest(1, 1)));
    outbox.take(Update::Counters(vec![Counted { container: 1, ..Counted::default() }]));
    assert!(outbox.take(Update::Ended { container: 1, generation: None }).is_empty());
    batch(&mut outbox, b"its last");
    assert_eq!(outbox.rings_empty(), [Notice::Ended { container: 1 }]);
    assert!(outbox.rings_empty().is_empty());
    let Resend { first, frames, ended } = outbox.resend(0).unwrap();
    assert_eq!((manifests(&first), frames.len()), (vec![(1, 1)], 1));
    assert_eq!(ended, [Notice::Ended { container: 1 }]);
    assert!(outbox.acknowledge(1));
    let Resend { first, frames, ended } = outbox.resend(1).unwrap();
    assert!(first.is_empty() && frames.is_empty() && ended.is_empty());
}

#[test]
fn memory_is_bounded_while_nobody_acknowledges() {
    let mut outbox = Outbox::default();
    let record = vec![0; 13_000];
    while outbox.has_room() {
        let mut batch = outbox.new_batch();
        while batch.push(&record) {}
        outbox.seal(batch, 80).unwrap();
    }
    assert!(outbox.bytes < MAX_UNACKNOWLEDGED + (1 << 20) + 4);
    for container in 0..3000 {
        outbox.take(Update::Manifest(manifest(container, 1)));
        outbox.take(Update::Ended { container, generation: None });
    }
    assert_eq!((outbox.known.len(), outbox.ended.len()), (MAX_RETIRED, MAX_RETIRED));
    assert_eq!(outbox.known.last_key_value().unwrap().0.0, 2999);
}
