//! What a worker takes of memory.

use super::client::Runtime;
use super::served::Worker;
use super::{Bench, conversation, in_memory};
use crate::report::say;
use anyhow::{Context, Result};
use std::fs;

/// Turns of the long conversation, and the length of each of its texts: 10 MB together.
const TURNS: usize = 2500;
const LENGTH: usize = 2000;

/// Of one process, MiB.
struct Taken {
    resident: f64,
    private: f64,
    peak: f64,
}

/// Two workers, one of them with a conversation of 10 MB: both share the program's pages, as on any host with a daemon.
pub(super) fn measure(bench: &mut Bench<'_>) -> Result<()> {
    say("memory: two workers, one with 10 MB of conversation");
    for (row, history) in
        [("idle, after a turn", Vec::new()), ("with 10 MB of conversation", conversation(TURNS, LENGTH))]
    {
        let (dir, beside) = (in_memory()?, in_memory()?);
        let _beside = Worker::start(bench.ringfence, &bench.provider, "m", beside.path(), &[])?;
        let worker = Worker::start(bench.ringfence, &bench.provider, "m", dir.path(), &history)?;
        let mut runtime = Runtime::register(&worker.socket)?;
        for _ in 0..3 {
            runtime.turn()?;
        }
        let taken = taken(worker.pid())?;
        bench.table.add(&format!("a worker {row}: resident, MiB"), "worker", taken.resident);
        bench.table.add(&format!("a worker {row}: its own, MiB"), "worker", taken.private);
        bench.table.add(&format!("a worker {row}: most ever resident, MiB"), "worker", taken.peak);
    }
    bench.table.aim("a worker idle, after a turn: its own, MiB", "worker", "at most 6");
    let (idle, long) =
        ("a worker idle, after a turn: its own, MiB", "a worker with 10 MB of conversation: its own, MiB");
    if let (Some(idle), Some(long)) = (bench.table.find(idle, "worker"), bench.table.find(long, "worker")) {
        let row = "10 MB of conversation add, MiB";
        bench.table.add(row, "worker", long - idle);
        bench.table.aim(row, "worker", "at most 20");
    }
    Ok(())
}

fn taken(pid: u32) -> Result<Taken> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        // A worker is not dumpable: its memory is root's to look at.
        fs::read_to_string(&path).with_context(|| format!("cannot read {path}; measure memory as root"))
    };
    let (rollup, status) = (read("smaps_rollup")?, read("status")?);
    let of = |text: &str, key: &str| -> Result<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key)).context("a field is missing")?;
        let number = line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
        Ok(number.with_context(|| format!("{key} has no number"))? / 1024.0)
    };
    Ok(Taken {
        resident: of(&rollup, "Rss:")?,
        private: of(&rollup, "Private_Clean:")? + of(&rollup, "Private_Dirty:")?,
        peak: of(&status, "VmHWM:")?,
    })
}
