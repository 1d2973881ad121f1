//! Prints what `cargo xtask bench redact` does: recall, what is mistaken for a secret, and the time where nothing is found.

#[path = "../../tests/corpus/mod.rs"]
mod corpus;
mod plain_texts;

use corpus::{Counts, LATER, LOOKALIKES, SECRETS, missed, mistaken};
use std::{hint::black_box, time::Instant};

/// Each makes other values of the corpus.
const SEEDS: std::ops::Range<u64> = 1..7;
/// How often a text is timed; the best counts.
const TIMES: usize = 20;

fn main() {
    let verbose = std::env::args().any(|word| word == "--wrong");
    println!("| secrets | texts' values made | gone | recall |\n|---|---:|---:|---:|");
    for (name, file) in [("the rules were written for", SECRETS), ("written later", LATER)] {
        let counts = sum(SEEDS.map(|seed| missed(file, seed)));
        let total = counts.total();
        println!("| {name} | {} | {} | {:.4} |", total.all, total.all - total.wrong, 1.0 - counts.share());
        by_kind(&counts, verbose);
    }
    let counts = sum(SEEDS.map(|seed| mistaken(LOOKALIKES, seed)));
    let total = counts.total();
    println!(
        "\n| look-alikes | mistaken | share |\n|---:|---:|---:|\n| {} | {} | {:.4} |",
        total.all,
        total.wrong,
        counts.share()
    );
    by_kind(&counts, verbose);
    println!("\n| nothing is found in 1 MB of | µs per KB |\n|---|---:|");
    ringfence_redact::prepare();
    for (name, text) in plain_texts::texts() {
        assert!(ringfence_redact::redact(&text) == text, "{name}: something is found");
        let best = (0..TIMES)
            .map(|_| {
                let begun = Instant::now();
                black_box(ringfence_redact::redact(black_box(&text)));
                begun.elapsed().as_secs_f64()
            })
            .fold(f64::MAX, f64::min);
        println!("| {name} | {:.2} |", best * 1e6 / (text.len() as f64 / 1000.0));
    }
}

fn sum(counts: impl Iterator<Item = Counts>) -> Counts {
    counts.fold(Counts::default(), |mut sum, counts| {
        for (kind, count) in counts.kinds {
            let of_kind = sum.kinds.entry(kind).or_default();
            of_kind.all += count.all;
            of_kind.wrong += count.wrong;
        }
        sum.wrong.extend(counts.wrong);
        sum
    })
}

fn by_kind(counts: &Counts, verbose: bool) {
    for (kind, count) in counts.kinds.iter().filter(|(_, count)| count.wrong > 0) {
        println!("|   {kind} | {} of {} | | |", count.wrong, count.all);
    }
    if verbose {
        for (kind, was, is) in &counts.wrong {
            eprintln!("[{kind}]\n{was}\n=> {is}\n");
        }
    }
}
