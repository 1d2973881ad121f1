//! The kernel's arrays, as shared memory: which word is what. The records' layouts are `ringfence_common`'s.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use ringfence_common::{
    MAX_CONTAINERS, MAX_POLICIES,
    patterns::Patterns,
    policy::{Container, Counters, MAX_OWNERS, Owner, Policy},
};

use super::{
    sys::Mapped,
    table::{RuleTable, SLOTS},
};

const POLICY_WORDS: usize = size_of::<Policy>() / 8;
const CONTAINER_WORDS: usize = size_of::<Container>() / 8;
/// Words of [`Counters`].
pub(crate) const COUNTER_WORDS: usize = size_of::<Counters>() / 8;
const OWNER_WORDS: usize = size_of::<Owner>() / 8;
/// Word of [`Counters::tasks`].
pub(crate) const TASKS: usize = std::mem::offset_of!(Counters, tasks) / 8;
/// Word of [`Counters::owner`].
pub(crate) const OWNER: usize = std::mem::offset_of!(Counters, owner) / 8;

/// The kernel's arrays.
#[derive(Debug)]
pub(crate) struct Arrays {
    /// The rule table, see [`RuleTable::slots`].
    pub slots: Mapped<AtomicU64>,
    /// See [`RuleTable::owners`].
    pub owners: Mapped<AtomicU16>,
    /// [`Policy`] records.
    pub policies: Mapped<AtomicU64>,
    /// [`Container`] records.
    pub containers: Mapped<AtomicU64>,
    /// [`Counters`] records.
    pub counters: Mapped<AtomicU64>,
    /// [`Owner`] records.
    pub users: Mapped<AtomicU64>,
}

impl Arrays {
    /// Integers in each array, in the order of the fields.
    pub(crate) const LENGTHS: [usize; 6] = [
        SLOTS,
        SLOTS,
        MAX_POLICIES * POLICY_WORDS,
        MAX_CONTAINERS * CONTAINER_WORDS,
        MAX_CONTAINERS * COUNTER_WORDS,
        MAX_OWNERS * OWNER_WORDS,
    ];

    /// The rule table.
    pub(crate) fn table(&self) -> RuleTable<'_> {
        RuleTable { slots: &self.slots, owners: &self.owners }
    }

    /// A policy record.
    pub(crate) fn policy(&self, index: u16) -> Policy {
        let word = |n: usize| self.policies[usize::from(index) * POLICY_WORDS + n].load(Ordering::Acquire);
        Policy {
            seed: word(0),
            generation: word(1) as u32,
            flags: (word(1) >> 32) as u32,
            record: word(2) as u32,
            initial: (word(2) >> 32) as u16,
            reserved: (word(2) >> 48) as u16,
            capabilities: word(3),
            patterns: Patterns { heads: word(4), tails: word(5), lengths: word(6) },
        }
    }

    /// Writes a policy record; its seed last, by which it is known.
    pub(crate) fn set_policy(&self, index: u16, policy: &Policy) {
        let word = |n: usize| &self.policies[usize::from(index) * POLICY_WORDS + n];
        word(1).store(u64::from(policy.generation) | u64::from(policy.flags) << 32, Ordering::Release);
        let initial = u64::from(policy.initial) << 32 | u64::from(policy.reserved) << 48;
        word(2).store(u64::from(policy.record) | initial, Ordering::Release);
        word(3).store(policy.capabilities, Ordering::Release);
        word(4).store(policy.patterns.heads, Ordering::Release);
        word(5).store(policy.patterns.tails, Ordering::Release);
        word(6).store(policy.patterns.lengths, Ordering::Release);
        word(0).store(policy.seed, Ordering::Release);
    }

    /// A container's record.
    pub(crate) fn container(&self, index: usize) -> Container {
        let word = |n: usize| self.containers[index * CONTAINER_WORDS + n].load(Ordering::Acquire);
        Container { id: word(0), policy: word(1) }
    }

    /// A word of a container's record.
    pub(crate) fn container_word(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.containers[index * CONTAINER_WORDS + word]
    }

    /// A word of a container's counters.
    pub(crate) fn counter(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.counters[index * COUNTER_WORDS + word]
    }

    /// A word of an [`Owner`]; `None`: there is no such entry.
    pub(crate) fn user(&self, index: u64, word: usize) -> Option<&AtomicU64> {
        self.users.get(usize::try_from(index).ok()? * OWNER_WORDS + word)
    }
}
