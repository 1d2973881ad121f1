//! The rule table: hashing a policy's places into the kernel's buckets, and taking them out again. No system calls:
//! it works on slices of atomics, which are the kernel's memory in the agent and a vector in tests.
//!
//! Beside each slot stands its owner (policy index + 1; 0: free), in a map that no program reads. It makes removal
//! exact, and lets a restarted core find what an earlier one left half written.

use std::{
    collections::{HashMap, hash_map::Entry as Vacancy},
    sync::atomic::{AtomicU16, AtomicU64, Ordering},
};

use ringfence_common::{
    hash::{self, Keys, folded_seed},
    policy::{BUCKET_SLOTS, TABLE_BUCKETS, TOMBSTONE, axis, bits, bucket_of, marks, slot},
};

use super::spellings::lower;
use ringfence_policy::compiled::{Kind, Place, PlaceRule};

/// Slots of the whole table.
pub(crate) const SLOTS: usize = TABLE_BUCKETS * BUCKET_SLOTS;

/// A rule as it goes into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Prefix hash of the place.
    pub prefix: u64,
    /// `ringfence_common::policy::bits`.
    pub bits: u16,
}

/// A bucket had no free slot for one of the entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketFull {
    /// How many entries had found room until then.
    pub placed: usize,
}

/// Hashes one place under a policy's seed.
pub(crate) fn prefix_of(keys: &Keys, seed: u64, place: &Place) -> u64 {
    match place {
        Place::Path(path) => hash::path(keys, seed, path),
        Place::Name(name) => hash::descend(keys, hash::name_seed(seed), hash::component(keys, name)),
        Place::Prefix(name) => hash::descend(keys, hash::prefix_seed(seed), hash::component(keys, name)),
        Place::Suffix(name) => hash::descend(keys, hash::suffix_seed(seed), hash::component(keys, name)),
        Place::Abstract(name) => hash::descend(keys, hash::abstract_seed(seed), hash::component(keys, name)),
        Place::Named { kind, value } => hash::named(keys, seed, *kind, *value),
    }
}

/// The bits of a rule.
pub(crate) fn bits_of(rule: &PlaceRule) -> u16 {
    let mut all = (rule.allow & axis::ALL) << bits::ALLOW_SHIFT | (rule.deny & axis::ALL) << bits::DENY_SHIFT;
    for (axes, bit) in [
        (axis::READ, bits::RESET_READ),
        (axis::WRITE, bits::RESET_WRITE),
        (axis::EXEC | axis::MAP, bits::RESET_EXEC),
        (axis::UNIX, bits::RESET_UNIX),
    ] {
        if rule.reset & axes != 0 {
            all |= bit;
        }
    }
    all | match rule.kind {
        Kind::Tree => bits::KIND_TREE,
        Kind::Below => bits::KIND_BELOW,
        Kind::Children => bits::KIND_CHILDREN,
        Kind::Exact => bits::KIND_EXACT,
    }
}

/// An entry and what it stands for: a rule, by its index, and whether it is only the mark on one of its ancestors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Filed {
    /// The entry.
    pub entry: Entry,
    /// Index of the rule.
    pub rule: usize,
    /// The entry is the mark of a directory above the rule's place.
    pub mark: bool,
}

/// All rules of a policy as entries, in the order in which they must be inserted: where several kinds stand at one
/// place, those that reset come first, because a program applies a bucket's slots in order and a reset must not take
/// back what the same place allows. (At most one kind of a place may reset; only trees do.) Behind them, a mark on
/// every directory above a path that a rule names, the root excepted: see [`marks`]. What denies or takes back is there
/// once more, in lower case, under the seed's [`folded_seed`].
pub(crate) fn entries(keys: &Keys, seed: u64, places: &[PlaceRule]) -> Vec<Filed> {
    let file = |(rule, place): (usize, &PlaceRule)| Filed {
        entry: Entry { prefix: prefix_of(keys, seed, &place.place), bits: bits_of(place) },
        rule,
        mark: false,
    };
    let mut all: Vec<_> = places.iter().enumerate().map(file).collect();
    // What denies or takes back, once more in lower case, for file systems that do not tell case apart.
    for (rule, place) in places.iter().enumerate().filter(|(_, place)| place.deny | place.reset != 0) {
        if let Some(lower) = lower(&place.place) {
            let bits = bits_of(&PlaceRule { allow: 0, ..place.clone() });
            let prefix = prefix_of(keys, folded_seed(seed), &lower);
            all.push(Filed { entry: Entry { prefix, bits }, rule, mark: false });
        }
    }
    all.sort_by_key(|filed| places[filed.rule].reset == 0);

    let mut marked: HashMap<u64, usize> = HashMap::new();
    // Denials first: where a directory is above both, an event names what is denied below it.
    for mark in [marks::DENIES_BELOW, marks::GRANTS_BELOW] {
        for (rule, place) in places.iter().enumerate() {
            let axes = if mark == marks::DENIES_BELOW { place.deny | place.reset } else { place.allow };
            let Place::Path(path) = &place.place else { continue };
            if axes == 0 {
                continue;
            }
            let mut components = path.split(|b| *b == b'/').filter(|c| !c.is_empty()).peekable();
            let mut prefix = seed;
            while let Some(component) = components.next() {
                prefix = hash::descend(keys, prefix, hash::component(keys, component));
                if components.peek().is_none() {
                    break;
                }
                match marked.entry(prefix) {
                    Vacancy::Occupied(at) => all[*at.get()].entry.bits |= mark,
                    Vacancy::Vacant(none) => {
                        none.insert(all.len());
                        all.push(Filed {
                            entry: Entry { prefix: hash::mark(prefix), bits: mark },
                            rule,
                            mark: true,
                        });
                    }
                }
            }
        }
    }
    all
}

/// The table and its owners, wherever they are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RuleTable<'a> {
    /// `SLOTS` slots, bucket after bucket.
    pub slots: &'a [AtomicU64],
    /// The owner of each slot.
    pub owners: &'a [AtomicU16],
}

impl RuleTable<'_> {
    /// Puts all entries in for `owner`, or none of them. Returns each entry's slot.
    ///
    /// A reader that runs beside this may see any part of it: nobody may use the seed yet.
    pub(crate) fn insert(
        &self,
        owner: u16,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<Vec<u32>, BucketFull> {
        let mut placed = Vec::new();
        for entry in entries {
            match self.insert_one(owner, entry) {
                Some(at) => placed.push(at),
                None => {
                    for at in &placed {
                        self.clear(*at as usize);
                    }
                    return Err(BucketFull { placed: placed.len() });
                }
            }
        }
        Ok(placed)
    }

    fn insert_one(&self, owner: u16, entry: Entry) -> Option<u32> {
        let value = slot(entry.prefix, entry.bits);
        // These two mean "end" and "removed"; another seed gives another hash.
        if value == 0 || value >> 16 == TOMBSTONE >> 16 {
            return None;
        }
        let first = bucket_of(entry.prefix) * BUCKET_SLOTS;
        let at = (first..first + BUCKET_SLOTS).find(|at| self.owners[*at].load(Ordering::Relaxed) == 0)?;
        // The owner first: a core that dies in between leaves a slot that is owned, and so found and freed.
        self.owners[at].store(owner, Ordering::Release);
        self.slots[at].store(value, Ordering::Release);
        Some(at as u32)
    }

    /// Frees every slot whose owner `keep` refuses. Its policy must be out of every program's sight: named by no
    /// container, and a grace period later. Returns how many slots were freed.
    pub(crate) fn retain(&self, keep: impl Fn(u16) -> bool) -> usize {
        let mut freed = 0;
        for at in 0..SLOTS {
            let owner = self.owners[at].load(Ordering::Relaxed);
            if owner != 0 && !keep(owner) {
                self.clear(at);
                freed += 1;
            }
        }
        freed
    }

    /// Slots in use.
    pub(crate) fn used(&self) -> usize {
        self.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) != 0).count()
    }

    fn clear(&self, at: usize) {
        self.slots[at].store(TOMBSTONE, Ordering::Release);
        self.owners[at].store(0, Ordering::Release);
        // An empty slot ends a search, which is cheaper than a tombstone: give back those at the bucket's end.
        let first = at - at % BUCKET_SLOTS;
        for last in (first..first + BUCKET_SLOTS).rev() {
            match self.slots[last].load(Ordering::Relaxed) {
                0 => {}
                TOMBSTONE => self.slots[last].store(0, Ordering::Release),
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests;
