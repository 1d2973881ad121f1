//! Messages of this socket, as written and as anybody may write them.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn no_body_panics_and_no_record_is_longer_than_it(kind in 0u8..7, rest: Vec<u8>) {
        let body = [&[kind], rest.as_slice()].concat();
        if let Ok(CoreMessage::Records { records, .. } | CoreMessage::Reports { reports: records, .. }) = CoreMessage::parse(&body) {
            prop_assert_eq!(records.iter().map(|record| record.len() + 4).sum::<usize>() + 9, body.len());
        }
        if let Ok(answer) = Answer::parse(&body) {
            let again = answer.to_body();
            prop_assert_eq!(again.as_slice(), body);
        }
    }

    #[test]
    fn what_is_batched_comes_back(sequence: u64, records: Vec<Vec<u8>>) {
        let mut batch = Batch::new(sequence);
        prop_assert!(records.iter().all(|record| batch.push(record)));
        let body = batch.into_body();
        let expected = CoreMessage::Records { sequence, records: records.iter().map(Vec::as_slice).collect() };
        prop_assert_eq!(CoreMessage::parse(&body).expect("our own batch"), expected);
    }
}

#[test]
fn records_come_back_as_they_were_pushed() {
    let mut batch = Batch::new(7);
    assert!(batch.is_empty());
    assert!(batch.push(b"one") && batch.push(b"") && batch.push(&[9; 500]));
    let body = batch.into_body();
    assert_eq!(
        CoreMessage::parse(&body).expect("our own batch"),
        CoreMessage::Records { sequence: 7, records: vec![b"one", b"", &[9; 500]] }
    );
    for cut in 1..body.len() {
        // Every cut is refused, but those that fall between two records.
        let whole = [9, 16, 20].contains(&cut);
        assert_eq!(CoreMessage::parse(&body[..cut]).is_ok(), whole, "cut at {cut}");
    }
}

#[test]
fn a_batch_never_outgrows_a_frame() {
    let mut batch = Batch::new(1);
    while batch.push(&[0; 13_168]) {}
    let body = batch.into_body();
    assert!(body.len() <= MAX_RECORDS && body.len() > MAX_RECORDS - 13_172);
}

#[test]
fn answers_round_trip_and_nothing_else_parses() {
    for answer in [Answer::Stored(u64::MAX), Answer::Flush(1)] {
        assert_eq!(Answer::parse(&answer.to_body()).expect("our own answer"), answer);
    }
    for bad in [&[][..], &[3], &[3; 8], &[3; 10], &[1; 9], &[255; 9]] {
        assert!(Answer::parse(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn a_big_manifest_is_cut_and_can_be_put_together() {
    let rule = |n: usize| RuleText {
        id: format!("fs_read:/{n}"),
        file: Some("/etc/p.toml".into()),
        line: 1,
        key: "grant.fs_read".into(),
        text: format!("/{n}"),
    };
    let whole = Manifest {
        container: 1 << 12 | 5,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 1000,
        created: 0,
        generation: 3,
        rules: (0..10_000).map(rule).collect(),
        slots: (0..100).map(|slot| Slot { slot, ..Slot::default() }).collect(),
        more: false,
    };
    let (mut rules, mut slots, mut more) = (Vec::new(), Vec::new(), Vec::new());
    for notice in whole.clone().notices() {
        let body = notice.to_body().expect("serialises");
        assert!(body.len() < MAX_NOTICE);
        let Ok(CoreMessage::Notice(Notice::Manifest(part))) = CoreMessage::parse(&body) else {
            panic!("not a manifest")
        };
        rules.extend(part.rules);
        slots.extend(part.slots);
        more.push(part.more);
    }
    assert_eq!((rules, slots), (whole.rules, whole.slots));
    assert_eq!(more, [true, true, false]);
}
