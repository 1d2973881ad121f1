//! What the auditor must still get: batches it has not acknowledged, manifests that its records need, the last
//! counters. No I/O.
//!
//! The ring is read only while there is room here, so a slow auditor leaves records in the kernel's rings, where a
//! loss is counted. A new auditor says up to which batch its predecessor stored; the rest is sent to it again.

use super::report_queue::ReportQueue;
use ringfence_wire::{
    audit::{Batch, Counted, Manifest, Notice},
    event::RuleText,
    frame::{FrameError, framed},
};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Bytes of unacknowledged batches beyond which the rings are left alone.
pub(crate) const MAX_UNACKNOWLEDGED: usize = 8 << 20;
/// Bytes of unacknowledged batches of reports beyond which reports wait: what agents do takes no room from denials.
const MAX_REPORTED: usize = MAX_UNACKNOWLEDGED / 4;
/// Most manifests kept of containers and generations that are over, and about how many bytes. Whoever has most of them loses the
/// oldest first; its events then show the rule's number only.
const MAX_RETIRED: usize = 1024;
const MAX_RETIRED_BYTES: usize = 16 << 20;

/// What the rest of the core tells the link to the auditor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Update {
    /// A policy is about to come into force.
    Manifest(Arc<Manifest>),
    /// A policy's last record is in the rings: one generation, or with `None` the whole container.
    Ended {
        /// The kernel's id.
        container: u64,
        /// The generation that was replaced.
        generation: Option<u32>,
    },
    /// Counters that moved.
    Counters(Vec<Counted>),
}

#[derive(Debug)]
struct Known {
    manifest: Arc<Manifest>,
    /// About how many it takes.
    bytes: usize,
    /// Nothing more will refer to it once this is over.
    over: Option<End>,
}

/// How far the end of a policy or container is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Its records may still be in the rings.
    InRings,
    /// Its records are in batches up to this one.
    Sent(u64),
}

/// What a new auditor must be told, in this order.
#[derive(Debug, Default)]
pub(crate) struct Resend {
    /// Manifests and counters.
    pub first: Vec<Notice>,
    /// Frames of batches that are not stored.
    pub frames: Vec<Arc<Vec<u8>>>,
    /// Containers that ended.
    pub ended: Vec<Notice>,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Sequence number of the last batch that was made.
    last: u64,
    /// And of the last that is stored.
    acknowledged: u64,
    batches: VecDeque<Sent>,
    bytes: usize,
    /// Of them, those of reports.
    reported: usize,
    known: BTreeMap<(u64, u32), Known>,
    ended: BTreeMap<u64, End>,
    counted: BTreeMap<u64, Counted>,
    records: u64,
}

/// A batch that is not acknowledged.
#[derive(Debug)]
struct Sent {
    number: u64,
    frame: Arc<Vec<u8>>,
    /// `None`: of reports.
    records: Option<u64>,
}

impl Outbox {
    /// Whether there is room for another batch.
    pub(crate) fn has_room(&self) -> bool {
        self.bytes < MAX_UNACKNOWLEDGED
    }

    /// A batch to fill, numbered.
    pub(crate) fn new_batch(&self) -> Batch {
        Batch::new(self.last + 1)
    }

    /// Keeps a full batch; gives its frame.
    ///
    /// # Errors
    /// If it is larger than a frame may be.
    pub(crate) fn seal(&mut self, batch: Batch, records: u64) -> Result<Arc<Vec<u8>>, FrameError> {
        self.records += records;
        self.number(batch, Some(records))
    }

    fn number(&mut self, batch: Batch, records: Option<u64>) -> Result<Arc<Vec<u8>>, FrameError> {
        let frame = Arc::new(framed(&batch.into_body())?);
        self.last += 1;
        self.bytes += frame.len();
        self.reported += if records.is_none() { frame.len() } else { 0 };
        self.batches.push_back(Sent { number: self.last, frame: frame.clone(), records });
        Ok(frame)
    }

    /// Batches up to `sequence` are stored. False: there never was such a batch.
    pub(crate) fn acknowledge(&mut self, sequence: u64) -> bool {
        if sequence > self.last {
            return false;
        }
        while let Some(Sent { number, frame, records }) = self.batches.front()
            && *number <= sequence
        {
            self.bytes -= frame.len();
            self.reported -= if records.is_none() { frame.len() } else { 0 };
            self.batches.pop_front();
        }
        self.acknowledged = self.acknowledged.max(sequence);
        self.forget_stored();
        true
    }

    /// Drops what no record needs that is not stored.
    fn forget_stored(&mut self) {
        let stored = self.acknowledged;
        self.known.retain(|_, known| !matches!(known.over, Some(End::Sent(last)) if last <= stored));
        self.ended.retain(|_, over| !matches!(over, End::Sent(last) if *last <= stored));
    }

    /// Takes an update in; gives what the present auditor must be told at once.
    pub(crate) fn take(&mut self, update: Update) -> Vec<Notice> {
        match update {
            Update::Manifest(manifest) => {
                let notices = (*manifest).clone().notices();
                let key = (manifest.container, manifest.generation);
                let bytes = bytes(&manifest);
                self.known.insert(key, Known { manifest, bytes, over: None });
                notices
            }
            Update::Ended { container, generation } => {
                for (_, known) in self.known.range_mut((container, 0)..=(container, u32::MAX)) {
                    if generation.is_none_or(|generation| generation == known.manifest.generation) {
                        known.over.get_or_insert(End::InRings);
                    }
                }
                if generation.is_none() {
                    self.ended.insert(container, End::InRings);
                }
                self.forget_oldest();
                Vec::new()
            }
            Update::Counters(counters) => {
                self.counted.extend(counters.iter().map(|counted| (counted.container, *counted)));
                vec![Notice::Counters { counters }]
            }
        }
    }

    /// Makes a batch of reports that wait, if there is room; gives its frame. Call it until there is none.
    ///
    /// # Errors
    /// As [`Self::seal`].
    pub(crate) fn batch_reports(
        &mut self,
        reports: &mut ReportQueue,
    ) -> Option<Result<Arc<Vec<u8>>, FrameError>> {
        if reports.is_empty() || !self.has_room() || self.reported >= MAX_REPORTED {
            return None;
        }
        let mut batch = Batch::of_reports(self.last + 1);
        reports.drain(|report| batch.push(report));
        (!batch.is_empty()).then(|| self.number(batch, None))
    }

    /// The rings were empty just now: what was over then is in the batches made so far. Gives the notices of
    /// containers that ended.
    pub(crate) fn rings_empty(&mut self) -> Vec<Notice> {
        let sent = End::Sent(self.last);
        for known in self.known.values_mut() {
            if known.over == Some(End::InRings) {
                known.over = Some(sent);
            }
        }
        let mut notices = Vec::new();
        for (container, over) in &mut self.ended {
            if *over == End::InRings {
                *over = sent;
                self.counted.remove(container);
                notices.push(Notice::Ended { container: *container });
            }
        }
        // If all of those batches are stored already, nobody may ever acknowledge another.
        self.forget_stored();
        notices
    }

    /// Everything that a new auditor must be told, its predecessor having stored batches up to `stored`. `None`: there
    /// never was such a batch.
    pub(crate) fn resend(&mut self, stored: u64) -> Option<Resend> {
        if !self.acknowledge(stored) {
            return None;
        }
        let mut first: Vec<Notice> =
            self.known.values().flat_map(|known| (*known.manifest).clone().notices()).collect();
        if !self.counted.is_empty() {
            first.push(Notice::Counters { counters: self.counted.values().copied().collect() });
        }
        let frames = self.batches.iter().map(|sent| sent.frame.clone()).collect();
        let ended = self.ended.iter().filter(|(_, over)| matches!(over, End::Sent(_)));
        let ended = ended.map(|(container, _)| Notice::Ended { container: *container }).collect();
        Some(Resend { first, frames, ended })
    }

    /// Records taken from the rings, ever.
    pub(crate) fn records(&self) -> u64 {
        self.records
    }

    /// Records in batches that are not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u64 {
        self.batches.iter().filter_map(|sent| sent.records).sum()
    }

    fn forget_oldest(&mut self) {
        let over = || self.known.iter().filter(|(_, known)| known.over.is_some());
        let mut of: BTreeMap<u32, Retired> = BTreeMap::new();
        for (key, Known { manifest, bytes, .. }) in over() {
            let retired = of.entry(manifest.uid).or_default();
            retired.keys.push_back((*key, *bytes));
            retired.bytes += bytes;
        }
        let (mut many, mut bytes) = (over().count(), of.values().map(|retired| retired.bytes).sum::<usize>());
        while many > MAX_RETIRED || bytes > MAX_RETIRED_BYTES {
            let most = of.values_mut().max_by_key(|retired| retired.bytes);
            let Some((most, (key, size))) =
                most.and_then(|most| most.keys.pop_front().map(|key| (most, key)))
            else {
                break;
            };
            most.bytes -= size;
            (many, bytes) = (many - 1, bytes - size);
            self.known.remove(&key);
        }
        while self.ended.len() > MAX_RETIRED {
            self.ended.pop_first();
        }
    }
}

/// What is kept of one user's that is over, the oldest first.
#[derive(Debug, Default)]
struct Retired {
    keys: VecDeque<((u64, u32), usize)>,
    bytes: usize,
}

/// About how many bytes a manifest takes.
fn bytes(manifest: &Manifest) -> usize {
    let texts = |rule: &RuleText| {
        let file = rule.file.as_ref().map_or(0, String::len);
        size_of::<RuleText>() + rule.id.len() + file + rule.key.len() + rule.text.len()
    };
    let rules = manifest.rules.iter().map(texts).sum::<usize>();
    size_of::<Manifest>() + manifest.profile.len() + rules + size_of_val(manifest.slots.as_slice())
}

#[cfg(test)]
mod tests;
