//! The calls of a session that wait for a person, bounded in bytes.

use super::{line::Id, rules::Judgement};
use serde_json::Value;
use std::{collections::HashMap, time::Instant};

/// What a call that waits takes beside its line, bytes, roughly: many short ones are bounded, too.
const BESIDE: usize = 1 << 10;

/// A call that waits.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) line: Vec<u8>,
    pub(super) id: Id,
    pub(super) tool: String,
    pub(super) score: u8,
    pub(super) reasons: Vec<&'static str>,
    pub(super) judgement: Judgement,
    pub(super) since: Instant,
    /// Until when a person may decide; microseconds since 1970.
    pub(super) until: i64,
    pub(super) token: Option<Value>,
}

/// All of them, by the calls' ids.
#[derive(Debug)]
pub(super) struct Holding {
    calls: HashMap<String, Held>,
    bytes: usize,
    most: usize,
}

impl Holding {
    /// None, and at most so many bytes of lines. One call fits always.
    pub(super) fn new(most: usize) -> Self {
        Self { calls: HashMap::new(), bytes: 0, most }
    }

    /// Whether a line of so many bytes may wait, too.
    pub(super) fn has_room(&self, line: usize) -> bool {
        self.calls.is_empty() || self.bytes.saturating_add(line + BESIDE) <= self.most
    }

    pub(super) fn insert(&mut self, call: String, held: Held) {
        self.bytes += held.line.len() + BESIDE;
        self.calls.insert(call, held);
    }

    pub(super) fn remove(&mut self, call: &str) -> Option<Held> {
        let held = self.calls.remove(call)?;
        self.bytes -= held.line.len() + BESIDE;
        Some(held)
    }

    /// Those that have this id; a client may have given it to several.
    pub(super) fn of(&self, id: &Id) -> Vec<String> {
        self.calls.iter().filter(|(_, held)| held.id == *id).map(|(call, _)| call.clone()).collect()
    }

    /// Takes all of them out; their ids.
    pub(super) fn drop_all(&mut self) -> Vec<String> {
        self.bytes = 0;
        self.calls.drain().map(|(call, _)| call).collect()
    }

    pub(super) fn get(&self, call: &str) -> Option<&Held> {
        self.calls.get(call)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Held)> {
        self.calls.iter()
    }
}
