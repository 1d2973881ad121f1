//! What `cargo xtask bench classify` runs: how often the classifier agrees with its corpus, and what a call costs.

use ringfence_session::{
    corpus::{self, Tally},
    risk, sensitive,
};
use ringfence_wire::tool_call::Named as _;
use serde_json::{Value, json};
use std::{
    hint::black_box,
    process::ExitCode,
    time::{Duration, Instant},
};

/// How often each call is judged for its time.
const ROUNDS: usize = 200;

fn main() -> ExitCode {
    sensitive::prepare();
    let parts = corpus::parts();
    println!("| calls | | operation right | band right | deletions under 31 |");
    println!("|---|---:|---:|---:|---:|");
    let tallies: Vec<(String, Tally)> = parts
        .iter()
        .map(|part| {
            let held = if part.held { ", held out" } else { "" };
            (format!("{}{held}", part.name), corpus::tally(&part.cases))
        })
        .collect();
    for (name, tally) in &tallies {
        println!(
            "| {name} | {} | {} | {} | {} |",
            tally.cases,
            share(tally.operations, tally.cases),
            share(tally.bands, tally.cases),
            tally.unseen.len()
        );
    }
    for (name, tally) in &tallies {
        println!("\n{name}: what is labelled, and what the classifier says\n");
        for ((labelled, said), many) in &tally.confusion {
            println!("    {:<8} {:<8} {many}", labelled.name(), said.name());
        }
        tally.wrong.iter().for_each(|wrong| println!("    wrong: {wrong}"));
        tally.unseen.iter().for_each(|unseen| println!("    UNSEEN: {unseen}"));
    }
    println!("\n| a call, µs | p50 | p99 | slowest |\n|---|---:|---:|---:|");
    for (part, (name, _)) in parts.iter().zip(&tallies) {
        let calls = part.cases.iter().map(|case| (case.tool.as_str(), &case.arguments));
        row(name, calls.flat_map(|(tool, arguments)| timed(tool, arguments, ROUNDS)).collect());
    }
    for (name, tool, arguments) in hostile() {
        row(name, timed(tool, &arguments, 5));
    }
    if tallies.iter().all(|(_, tally)| tally.unseen.is_empty()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Calls that are made to cost much.
fn hostile() -> Vec<(&'static str, &'static str, Value)> {
    let script = |text: &str| json!({ "command": text.repeat(128 * 1024 / text.len()) });
    vec![
        ("a text of 4 MB", "write_file", json!({"path": "a", "content": "x".repeat(4 << 20)})),
        ("a script of 4 MB", "bash", json!({"command": "rm a; ".repeat(700_000)})),
        ("a script of 128 KiB", "bash", script("rm -rf a b c; ")),
        ("128 KiB of `sudo`", "bash", script("sudo ")),
        ("128 KiB of `$(`", "bash", script("$(")),
        ("a list of 100,000 words", "read_many", json!({"paths": vec!["src/a.rs"; 100_000]})),
        ("a name of 100,000 words", "x", json!({"a_".repeat(100_000): 1})),
        ("code of 4 MB", "execute_python", json!({"code": "os.system('rm a')\n".repeat(200_000)})),
    ]
}

fn timed(tool: &str, arguments: &Value, rounds: usize) -> Vec<Duration> {
    let one = || {
        let begin = Instant::now();
        black_box(risk::assess(black_box(tool), black_box(arguments), false));
        begin.elapsed()
    };
    // Caches fill.
    one();
    (0..rounds).map(|_| one()).collect()
}

fn row(name: &str, mut took: Vec<Duration>) {
    took.sort_unstable();
    let at = |share: usize| {
        took.get((took.len() * share / 100).min(took.len().saturating_sub(1)))
            .map_or(0.0, |took| took.as_secs_f64() * 1e6)
    };
    println!("| {name} | {:.1} | {:.1} | {:.1} |", at(50), at(99), at(100));
}

fn share(part: usize, of: usize) -> String {
    format!("{:.3}", part as f64 / of.max(1) as f64)
}
