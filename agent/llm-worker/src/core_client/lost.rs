//! What a run's line had no room for: since when and until when the record may lack a call, or have one in flight that is over.
//! Pure, but for who waits.
//!
//! What is lost is told before all that waits, and never lost itself. A gap begins with the oldest call under way then, and ends
//! once each of those is over on record. Where that is never said it goes on, to the end of the run.

use crate::report::now;
use ringfence_wire::trace::AgentEvent;
use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};
use tokio::sync::{Notify, oneshot};

/// Calls under way that are followed; with more, a gap goes on.
const MOST_OPEN: usize = 1 << 15;
/// Ties that wait until there is room.
const MOST_LATE: usize = 1024;

/// What is lost of a line.
#[derive(Debug, Default)]
pub(super) struct LostReports {
    ledger: Mutex<Ledger>,
    changed: Notify,
}

impl LostReports {
    /// Follows a report, which `send` puts among those that wait. False: there is no room, and it is lost.
    pub(super) fn follow(&self, event: &AgentEvent, send: impl FnOnce() -> bool) -> bool {
        // Held meanwhile: the ledger has reports in the order in which they are written.
        let mut ledger = self.ledger();
        if send() {
            ledger.waits(event, now());
            ledger.sent(event);
            return true;
        }
        let is_kept = ledger.is_late(event) || {
            ledger.lost(event, now());
            false
        };
        drop(ledger);
        self.changed.notify_one();
        is_kept
    }

    /// What is to be said now: that something is lost; once nothing else waits, a tie that had no room.
    pub(super) fn next(&self, is_idle: impl FnOnce() -> bool) -> Option<AgentEvent> {
        // Asked with the ledger in hand: nothing is put there meanwhile.
        let mut ledger = self.ledger();
        let is_idle = is_idle();
        if is_idle {
            ledger.unwritten = None;
        }
        match ledger.told() {
            None if is_idle => ledger.late.pop_front(),
            told => told,
        }
    }

    /// The earliest that waiting reports may be about, ns since boot. `None`: none wait; `is_queued` says that of the queue.
    pub(super) fn behind_since(&self, is_queued: impl FnOnce() -> bool) -> Option<u64> {
        let ledger = self.ledger();
        let untold = ledger.gap.as_ref().filter(|gap| !gap.is_told).map(|gap| gap.from);
        let queued = is_queued().then(|| ledger.unwritten.unwrap_or(1));
        let late = ledger.late.iter().map(|event| ledger.earliest(event, u64::MAX));
        untold.into_iter().chain(queued).chain(late).min()
    }

    /// Has `written` hear once nothing waits any more.
    pub(super) fn close(&self, written: oneshot::Sender<()>) {
        self.ledger().written = Some(written);
        self.changed.notify_one();
    }

    /// Nothing waits any more, and what did is written.
    pub(super) fn all_written(&self) {
        if let Some(written) = self.ledger().written.take() {
            let _ = written.send(());
        }
    }

    /// Waits until there may be something.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls under way, and what is lost.
#[derive(Debug, Default)]
struct Ledger {
    /// By their keys, those that the record lacks included.
    open: HashMap<String, OpenCall>,
    /// Those that were under way when something was lost.
    unsure: HashSet<String>,
    /// There were more than are followed.
    overflowed: bool,
    gap: Option<Gap>,
    late: VecDeque<AgentEvent>,
    /// The earliest that what waits to be written is about, ns since boot. `None`: nothing waits.
    unwritten: Option<u64>,
    /// Hears once nothing waits any more.
    written: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct OpenCall {
    /// ns since boot.
    began: u64,
    intent: Option<String>,
}

/// What is lost, and not yet told, or not over.
#[derive(Debug)]
struct Gap {
    count: u64,
    /// ns since boot.
    from: u64,
    to: Option<u64>,
    is_told: bool,
}

impl Ledger {
    /// It waits to be written: the record will have it.
    fn sent(&mut self, event: &AgentEvent) {
        match event {
            AgentEvent::Call { .. } => self.begun(event),
            AgentEvent::CallEnded { key, moment, .. } => self.over(&|of, _| of == key, *moment),
            AgentEvent::IntentEnded { id, moment, .. } => {
                self.over(&|_, call| call.intent.as_ref() == Some(id), *moment);
            }
            _ => {}
        }
    }

    /// Keeps what is as true later as now, if there is room. It comes behind its call.
    fn is_late(&mut self, event: &AgentEvent) -> bool {
        let is_tie = matches!(event, AgentEvent::Tagged { .. } | AgentEvent::Contested { .. });
        let fits = is_tie && self.late.len() < MOST_LATE;
        if fits {
            self.late.push_back(event.clone());
        }
        fits
    }

    /// The record will not have it. `now`: ns since boot.
    fn lost(&mut self, event: &AgentEvent, now: u64) {
        self.begun(event);
        let from = self.earliest(event, now);
        let before = self.gap.take().unwrap_or(Gap { count: 0, from, to: None, is_told: false });
        self.gap =
            Some(Gap { count: before.count + 1, from: before.from.min(from), to: None, is_told: false });
        self.unsure.extend(self.open.keys().cloned());
        self.close(now);
    }

    /// It waits, and is lost where nobody comes to write it.
    fn waits(&mut self, event: &AgentEvent, now: u64) {
        let earliest = self.earliest(event, now);
        self.unwritten = Some(self.unwritten.map_or(earliest, |before| before.min(earliest)));
    }

    /// The earliest that the record lacks something of, where it lacks this, ns since boot.
    fn earliest(&self, event: &AgentEvent, now: u64) -> u64 {
        let moment = match event {
            AgentEvent::Call { moment, .. } => *moment,
            // Nothing says when it began.
            AgentEvent::Tagged { key, .. } | AgentEvent::Contested { key }
                if !self.open.contains_key(key) =>
            {
                0
            }
            _ => now,
        };
        // 0 is the core's own: that is never over.
        self.open.values().map(|call| call.began).fold(moment, u64::min).max(1)
    }

    fn begun(&mut self, event: &AgentEvent) {
        let AgentEvent::Call { key, intent, moment, .. } = event else { return };
        if self.open.len() < MOST_OPEN {
            self.open.insert(key.clone(), OpenCall { began: *moment, intent: intent.clone() });
        } else {
            self.overflowed = true;
        }
    }

    /// The record has the ends of these, which were at `moment`, ns since boot.
    fn over(&mut self, which: &dyn Fn(&String, &OpenCall) -> bool, moment: u64) {
        let Self { open, unsure, .. } = self;
        for (key, _) in open.extract_if(|key, call| which(key, call)) {
            unsure.remove(&key);
        }
        self.close(moment);
    }

    /// Ends the gap, where no call of it is under way.
    fn close(&mut self, moment: u64) {
        if let Some(gap) = &mut self.gap
            && gap.to.is_none()
            && self.unsure.is_empty()
            && !self.overflowed
        {
            (gap.to, gap.is_told) = (Some(moment.max(gap.from)), false);
        }
    }

    /// What is to be told of the gap.
    fn told(&mut self) -> Option<AgentEvent> {
        let gap = self.gap.as_mut().filter(|gap| !gap.is_told)?;
        gap.is_told = true;
        let Gap { count, from, to, .. } = *gap;
        if to.is_some() {
            self.gap = None;
        }
        Some(AgentEvent::Lost { count, from, to })
    }
}

#[cfg(test)]
mod tests;
