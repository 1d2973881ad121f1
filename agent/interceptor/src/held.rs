//! The calls of a session that wait for a person, bounded in bytes.

use super::judged::JudgedCall;
use ringfence_session::line::Id;
use ringfence_wire::approvals::Fingerprint;
use serde_json::Value;
use std::{collections::HashMap, time::Instant};

/// What a call that waits takes beside its line, bytes, roughly: many short ones are bounded, too.
const BESIDE: usize = 1 << 10;

/// A call that waits.
#[derive(Debug)]
pub struct HeldCall {
    /// The line that it came in.
    pub line: Vec<u8>,
    /// What was decided about it.
    pub call: JudgedCall,
    /// Since when it waits.
    pub since: Instant,
    /// Until when a person may decide; microseconds since 1970.
    pub until: i64,
    /// What tells that a later call is the same.
    pub fingerprint: Option<Fingerprint>,
    /// The token for progress notifications, if the client gave one.
    pub token: Option<Value>,
}

/// All of them, by the calls' ids.
#[derive(Debug)]
pub struct HeldCalls {
    calls: HashMap<String, HeldCall>,
    bytes: usize,
    most: usize,
}

impl HeldCalls {
    /// None, and at most so many bytes of lines. One call fits always.
    pub fn new(most: usize) -> Self {
        Self { calls: HashMap::new(), bytes: 0, most }
    }

    /// Whether a line of so many bytes may wait, too.
    pub fn has_room(&self, line: usize) -> bool {
        self.calls.is_empty() || self.bytes.saturating_add(line + BESIDE) <= self.most
    }

    /// Keeps a call, by our id.
    pub fn insert(&mut self, call: String, held: HeldCall) {
        self.bytes += held.line.len() + BESIDE;
        self.calls.insert(call, held);
    }

    /// Takes one out.
    pub fn remove(&mut self, call: &str) -> Option<HeldCall> {
        let held = self.calls.remove(call)?;
        self.bytes -= held.line.len() + BESIDE;
        Some(held)
    }

    /// Those that have this id; a client may have given it to several.
    pub fn of(&self, id: &Id) -> Vec<String> {
        self.calls.iter().filter(|(_, held)| held.call.id == *id).map(|(call, _)| call.clone()).collect()
    }

    /// Takes all of them out; their ids.
    pub fn drop_all(&mut self) -> Vec<String> {
        self.bytes = 0;
        self.calls.drain().map(|(call, _)| call).collect()
    }

    /// One of them.
    pub fn get(&self, call: &str) -> Option<&HeldCall> {
        self.calls.get(call)
    }

    /// All of them, with our ids.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &HeldCall)> {
        self.calls.iter()
    }
}
