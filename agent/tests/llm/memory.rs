//! Where a worker's memory has its credential: as often as ARCHITECTURE.md says.

use crate::{
    mock::{Answer, Gate, Mock, anthropic_events, chunk, openai, text_block},
    played_core::{Core, SECRET},
    support::{eventually, turn, user},
};
use serde_json::json;
use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    sync::Arc,
};

/// What the runtime says: the scan finds it where it is.
const MARKER: &str = "a marker that only this conversation has";

/// How often each of these is in what can be read of a process's memory.
fn scan(pid: u32, texts: [&str; 2]) -> io::Result<[usize; 2]> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let mut found = [0; 2];
    for region in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = region.split_whitespace();
        let (span, mode) = (fields.next().unwrap(), fields.next().unwrap());
        // What the kernel maps for its clocks is in no file.
        if !mode.starts_with('r') || region.contains("[v") {
            continue;
        }
        let (from, to) = span.split_once('-').unwrap();
        let [from, to] = [from, to].map(|at| u64::from_str_radix(at, 16).unwrap());
        let mut bytes = vec![0; usize::try_from(to - from).unwrap()];
        memory.read_exact_at(&mut bytes, from)?;
        for (found, text) in found.iter_mut().zip(texts) {
            *found += memchr::memmem::find_iter(&bytes, text.as_bytes()).count();
        }
    }
    Ok(found)
}

/// The same of a worker, one of whose threads may end meanwhile and take its stack along.
fn occurrences(core: &Core) -> [usize; 2] {
    eventually("a scan of all memory", || scan(core.pid(), [SECRET, MARKER]).ok())
}

/// Whether this test may read another process's memory: CAP_SYS_PTRACE is bit 19.
fn may_trace() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    u64::from_str_radix(effective, 16).unwrap() & (1 << 19) != 0
}

#[test]
fn a_key_is_in_memory_once_and_once_for_each_connection_to_the_provider() {
    let anthropic = anthropic_events(&[text_block(&["Done."])], "end_turn").concat();
    let openai = openai(&[chunk(json!({ "content": "Done." }), Some("stop"))]);
    for (provider, answer) in [("Anthropic", anthropic), ("OpenAi", openai)] {
        let gate = Arc::<Gate>::default();
        let mock = Mock::with((0..4).map(|_| Answer::Stream(answer.clone())));
        mock.then([Answer::Gated(answer[..10].to_vec(), Arc::clone(&gate), answer[10..].to_vec())]);
        let core = Core::start_as(&mock, provider);
        if !may_trace() {
            let refused = scan(core.pid(), [SECRET, MARKER]).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
            continue;
        }
        assert_eq!(occurrences(&core), [1, 0], "{provider}: before the first turn");
        let mut runtime = core.runtime();
        for id in 1..=4 {
            assert_eq!(runtime.says(id, MARKER)["result"]["stop_reason"], "end_turn");
            let [key, marker] = occurrences(&core);
            assert!((1..=1 + mock.connections()).contains(&key), "{provider}: {key} times after turn {id}");
            assert!(marker > 0, "the scan misses what is there");
        }
        runtime.write(&turn(5, json!([user(MARKER)])));
        mock.wait_asked(5);
        let [key, _] = occurrences(&core);
        assert!((2..=1 + mock.connections()).contains(&key), "{provider}: {key} times during a turn");
        assert!(mock.connections() < 5, "a connection for each turn says nothing about copies for each");
        gate.open();
        assert_eq!(runtime.answer().0["result"]["stop_reason"], "end_turn");
    }
}
