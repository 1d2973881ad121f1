//! What goes of the corpus, and what stays: for other values each time they are made, of which these are some.

mod corpus;

use corpus::{LATER, LOOKALIKES, SECRETS, missed, mistaken, texts};
use std::collections::BTreeSet;

/// Each makes other values.
const SEEDS: std::ops::Range<u64> = 1..7;
/// Least share of the secrets that goes, and most of the look-alikes.
const RECALL: f64 = 0.97;
const MISTAKEN: f64 = 0.01;

#[test]
fn the_corpus_is_as_large_as_it_says() {
    let secrets: Vec<_> = [SECRETS, LATER].into_iter().flat_map(|file| texts(file, 1)).collect();
    let kinds: BTreeSet<_> = secrets.iter().map(|text| &text.kind).collect();
    let count: usize = secrets.iter().map(|text| text.secrets.len()).sum();
    assert!(count >= 300 && kinds.len() >= 60, "{count} secrets of {} kinds", kinds.len());
    let lookalikes: BTreeSet<_> =
        SEEDS.flat_map(|seed| texts(LOOKALIKES, seed)).map(|text| text.text).collect();
    let made = SEEDS.count() * texts(LOOKALIKES, 1).len();
    assert!(
        made >= 2000 && lookalikes.len() >= 900,
        "{made} look-alikes, {} of them apart",
        lookalikes.len()
    );
}

#[test]
fn secrets_go() {
    for seed in SEEDS {
        let counts = [SECRETS, LATER].map(|file| missed(file, seed));
        let all: usize = counts.iter().map(|counts| counts.total().all).sum();
        let missed: usize = counts.iter().map(|counts| counts.total().wrong).sum();
        let recall = 1.0 - missed as f64 / all as f64;
        assert!(recall >= RECALL, "{seed}: {recall} of {all}: {counts:#?}");
    }
}

#[test]
fn look_alikes_stay() {
    for seed in SEEDS {
        let mistaken = mistaken(LOOKALIKES, seed);
        assert!(mistaken.share() <= MISTAKEN, "{seed}: {:#?}", mistaken.wrong);
    }
}
