//! Records on their way out of the kernel: the ring of denials, the ring of allowed events, and the events of
//! flooding containers, which the programs count instead of writing each.
//!
//! Bytes are handed on as they are. Nothing here looks inside a record but at what `Repeat` puts around it.

use std::{
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd},
};

use super::sys;
use aya::{
    maps::{HashMap, IterableMap as _, Map, MapData, MapError, RingBuf},
    sys::SyscallError,
};
use ringfence_common::event::{Header, Record, Repeat, RepeatKey, SMALL_SECTION};

/// Names of the maps that this file reads.
pub(super) const MAPS: [&str; 3] = ["DENIED", "ALLOWED", "REPEATS"];

/// A ring or the map of repeats cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the kernel's event map {map} cannot be read")]
pub(crate) struct RingError {
    map: &'static str,
    #[source]
    source: MapError,
}

type RepeatBytes = [u64; size_of::<Repeat>() / 8];
type RepeatKeyWords = [u64; size_of::<RepeatKey>() / 8];

/// The consumer's end of the rings. There must be only one at a time.
pub(crate) struct Rings {
    denied: RingBuf<MapData>,
    allowed: RingBuf<MapData>,
    repeats: HashMap<MapData, RepeatKeyWords, RepeatBytes>,
}

impl Rings {
    /// From the maps, in the order of [`MAPS`].
    pub(super) fn new([denied, allowed, repeats]: [MapData; 3]) -> Result<Self, RingError> {
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
        })
    }

    /// Descriptors that become readable when a record arrives, for poll(2) or epoll(7).
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.denied.as_fd(), self.allowed.as_fd()]
    }

    /// The next record, denials first; it is consumed when the return value is dropped. `None`: both rings are empty.
    pub(crate) fn next(&mut self) -> Option<impl std::ops::Deref<Target = [u8]> + '_> {
        match self.denied.next() {
            Some(record) => Some(record),
            None => self.allowed.next(),
        }
    }

    /// Takes out what was counted instead of written, as records with `repeats`. Call it now and then (once a second):
    /// entries are the residue of floods, and a container that stopped flooding writes no record that would carry it.
    ///
    /// # Errors
    /// What was taken until then is lost only if the caller drops `out`.
    pub(crate) fn flush_repeats(&mut self, out: &mut Vec<Vec<u8>>) -> Result<(), RingError> {
        let failed = |source| RingError { map: MAPS[2], source };
        let keys: Vec<RepeatKeyWords> = self.repeats.keys().filter_map(Result::ok).collect();
        for key in keys {
            match self.repeats.get(&key, 0) {
                Ok(value) if value[0] != 0 => {}
                Ok(_) => continue,                      // still being written
                Err(MapError::KeyNotFound) => continue, // another entry needed its place
                Err(error) => return Err(failed(error)),
            }
            let taken = sys::take(self.repeats.map().fd().as_fd(), &key).map_err(|io_error| {
                failed(SyscallError { call: "bpf_map_lookup_and_delete_elem", io_error }.into())
            })?;
            out.extend(taken.map(|value| record_of(&value)));
        }
        Ok(())
    }
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
