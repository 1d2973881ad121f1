//! Records on their way out of the kernel: the ring of denials, the ring of allowed events, and the events of
//! flooding containers, which the programs count instead of writing each.
//!
//! Bytes are handed on as they are. Nothing here looks inside a record but at what `Repeat` puts around it.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::sys::{self, Mapped};
use aya::{
    maps::{HashMap, IterableMap as _, Map, MapData, MapError, RingBuf},
    sys::SyscallError,
};
use ringfence_common::{
    MAX_CONTAINERS,
    event::{Folding, Header, Record, Repeat, RepeatKey, SMALL_SECTION},
    policy::Counters,
};

/// Names of the maps that this file reads.
pub(crate) const MAPS: [&str; 3] = ["DENIED", "ALLOWED", "REPEATS"];
/// Integers of `FOLDING`.
pub(crate) const FOLDING_WORDS: usize = size_of::<Folding>() / 8;
/// Most entries that are taken out at a time, so that what waits here is bounded.
const AT_A_TIME: usize = 1024;
/// How long entries wait where the kernel offers no grace period, see `policies::PATIENCE`.
const PATIENCE: Duration = Duration::from_secs(60);

/// A ring or the map of repeats cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the kernel's event map {map} cannot be read")]
pub struct RingError {
    map: &'static str,
    #[source]
    source: MapError,
}

type RepeatBytes = [u64; size_of::<Repeat>() / 8];
type RepeatKeyWords = [u64; size_of::<RepeatKey>() / 8];

/// The consumer's end of the rings. There must be only one at a time.
pub struct Rings {
    denied: RingBuf<MapData>,
    allowed: RingBuf<MapData>,
    repeats: HashMap<MapData, RepeatKeyWords, RepeatBytes>,
    /// [`Folding`].
    folding: Mapped<AtomicU64>,
    /// [`Counters`] records.
    counters: Mapped<AtomicU64>,
    /// Entries that no program counts in any more.
    quiet: Vec<RepeatKeyWords>,
    /// When the epoch was changed last, while programs of the one before may still run.
    changed: Option<Instant>,
    /// Epochs that an earlier core may have left half taken out.
    inherited: u8,
}

impl Rings {
    /// From the maps, in the order of [`MAPS`].
    pub fn new(
        [denied, allowed, repeats]: [MapData; 3],
        folding: Mapped<AtomicU64>,
        counters: Mapped<AtomicU64>,
    ) -> Result<Self, RingError> {
        fn typed<T: TryFrom<Map, Error = MapError>>(
            map: &'static str,
            data: MapData,
        ) -> Result<T, RingError> {
            Map::from_map_data(data).and_then(T::try_from).map_err(|source| RingError { map, source })
        }
        Ok(Self {
            denied: typed(MAPS[0], denied)?,
            allowed: typed(MAPS[1], allowed)?,
            repeats: typed(MAPS[2], repeats)?,
            folding,
            counters,
            quiet: Vec::new(),
            changed: None,
            inherited: 2,
        })
    }

    /// Descriptors that become readable when a record arrives, for poll(2) or epoll(7).
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.denied.as_fd(), self.allowed.as_fd()]
    }

    /// The next record, denials first; it is consumed when the return value is dropped. `None`: both rings are empty.
    pub fn next_record(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        match self.denied.next() {
            Some(record) => Some(record),
            None => self.allowed.next(),
        }
    }

    /// Takes out some of what was counted instead of written, as records with `repeats`. Call it now and then (once a
    /// second), and again while it returns true: entries are the residue of floods, and a container that stopped flooding
    /// writes no record that would carry it. What it hands out was counted before the call that began it.
    ///
    /// # Errors
    /// What is not in `out` is still in the kernel, and is handed out by a later call.
    pub fn flush_repeats(&mut self, out: &mut Vec<Vec<u8>>) -> Result<bool, RingError> {
        if self.quiet.is_empty() && !self.quieten() {
            return Ok(false);
        }
        let keep = self.quiet.len().saturating_sub(AT_A_TIME);
        for key in self.quiet.split_off(keep) {
            match sys::take(self.repeats.map().fd().as_fd(), &key) {
                Ok(taken) => out.extend(taken.map(|value| record_of(&value))),
                Err(io_error) => {
                    // Whatever is left is found again when its epoch's turn comes, as an earlier core's would be.
                    self.quiet.clear();
                    self.emptied();
                    self.inherited = 2;
                    let call = "bpf_map_lookup_and_delete_elem";
                    return Err(RingError { map: MAPS[2], source: SyscallError { call, io_error }.into() });
                }
            }
        }
        if self.quiet.is_empty() {
            self.emptied();
            return Ok(self.inherited > 0);
        }
        Ok(true)
    }

    fn entries(&self, epoch: u64) -> &AtomicU64 {
        &self.folding[offset_of!(Folding, entries) / 8 + epoch as usize]
    }

    /// Changes the epoch and lists what belongs to the one before, as soon as no program counts in it any more. False:
    /// there is nothing to take out, or not yet.
    fn quieten(&mut self) -> bool {
        let epoch = &self.folding[offset_of!(Folding, epoch) / 8];
        if self.changed.is_none() {
            let any = (0..2).any(|n| self.entries(n).load(Ordering::Acquire) != 0);
            if !any && self.inherited == 0 {
                return false;
            }
            epoch.store(1 - (epoch.load(Ordering::Acquire) & 1), Ordering::Release);
            self.changed = Some(Instant::now());
        }
        if let Err(error) = sys::grace_period()
            && self.changed.is_some_and(|changed| changed.elapsed() < PATIENCE)
        {
            tracing::debug!(%error, "no grace period to be had: folded events wait for {PATIENCE:?}");
            return false;
        }
        let old = 1 - (epoch.load(Ordering::Acquire) & 1);
        self.quiet = self.repeats.keys().filter_map(Result::ok).filter(|key| epoch_of(key) == old).collect();
        if self.quiet.is_empty() {
            self.emptied();
            // Of an earlier core's there may be some in the other.
            return self.inherited > 0 && self.quieten();
        }
        true
    }

    /// Gives the containers their places in the epoch that was taken out.
    fn emptied(&mut self) {
        let old = 1 - (self.folding[offset_of!(Folding, epoch) / 8].load(Ordering::Acquire) & 1);
        let word = offset_of!(Counters, folded) / 8 + old as usize;
        for container in 0..MAX_CONTAINERS {
            self.counters[container * (size_of::<Counters>() / 8) + word].store(0, Ordering::Release);
        }
        self.entries(old).store(0, Ordering::Release);
        self.changed = None;
        self.inherited = self.inherited.saturating_sub(1);
    }
}

/// The epoch that an entry belongs to.
fn epoch_of(key: &RepeatKeyWords) -> u64 {
    key[offset_of!(RepeatKey, kind) / 8] >> 16 & 1
}

/// The record inside an entry, with its count.
fn record_of(value: &RepeatBytes) -> Vec<u8> {
    const START: usize = offset_of!(Repeat, record);
    const REPEATS: usize = offset_of!(Header, repeats);
    let bytes: Vec<u8> = value.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut record = bytes[START..START + size_of::<Record<SMALL_SECTION>>()].to_vec();
    let count = u32::try_from(value[0]).unwrap_or(u32::MAX);
    record[REPEATS..REPEATS + 4].copy_from_slice(&count.to_ne_bytes());
    record
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregated_record_carries_its_count_and_nothing_else_changes() {
        let mut value: RepeatBytes = std::array::from_fn(|n| n as u64 * 0x0101_0101_0101_0101);
        value[0] = 41;
        let record = record_of(&value);
        assert_eq!(record.len(), size_of::<Record<SMALL_SECTION>>());
        let at = offset_of!(Header, repeats);
        assert_eq!(record[at..at + 4], 41u32.to_ne_bytes());
        let plain: Vec<u8> = value[1..].iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!((&record[..at], &record[at + 4..]), (&plain[..at], &plain[at + 4..]));
        value[0] = u64::MAX;
        assert_eq!(record_of(&value)[at..at + 4], u32::MAX.to_ne_bytes());
    }
}
