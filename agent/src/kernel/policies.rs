//! Containers and their policies in the kernel's arrays: create, install, swap, release, and pick up what an earlier
//! core left. The arrays are shared memory; only the net trie needs system calls ([`NetTrie`]).
//!
//! Nothing that a program may be reading is ever reused: what a swap or a release frees waits for a grace period.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_map::Entry},
    fmt, io,
    sync::atomic::{AtomicU16, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use ringfence_common::{
    MAX_CONTAINERS, MAX_POLICIES,
    hash::Keys,
    policy::{
        Container, Counters, FLAG_AUDIT, FLAG_INET, FLAG_NAMES, FLAG_SETUID_FILES, Policy, container_index,
    },
};
use ringfence_wire::audit::Slot;

use super::{
    net::{self, Key, Verdict},
    sys::{self, Mapped},
    table::{self, RuleTable, SLOTS},
};
use crate::profile::compiled::{CompiledPolicy, Place};

/// How often another seed is tried when a bucket is full.
const SEEDS: usize = 64;
/// How long freed memory waits where the kernel offers no grace period. A program runs for microseconds, and a kernel
/// reports a stalled read section after 21 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// [`Container::policy`] of a container that has none yet: beyond the array, so that programs deny.
const NO_POLICY: u64 = u64::MAX;

const POLICY_WORDS: usize = size_of::<Policy>() / 8;
const CONTAINER_WORDS: usize = size_of::<Container>() / 8;
const COUNTER_WORDS: usize = size_of::<Counters>() / 8;

/// The kernel's name of a container: a random serial above an index. Valid until reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ContainerId(u64);

impl ContainerId {
    /// The number, as in records and manifests.
    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    /// From a number that [`Self::raw`] gave.
    pub(crate) fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    fn index(self) -> usize {
        container_index(self.0)
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What [`Policies::install`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Installed {
    /// The policy's generation: 1 for a container's first, then counting up.
    pub(crate) generation: u32,
    /// Which slots of the rule table stand for which rules.
    pub(crate) slots: Vec<Slot>,
}

/// Why a container or policy could not be put into the kernel. The one in force, if any, stays.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PolicyError {
    /// No free container record.
    #[error("{MAX_CONTAINERS} containers are governed already, which is the most; end some of them")]
    TooManyContainers,
    /// No free policy record.
    #[error("no free policy record among {MAX_POLICIES}; end some containers")]
    TooManyPolicies,
    /// No such container.
    #[error("container {0} does not exist in the kernel (any more)")]
    NoContainer(ContainerId),
    /// The rule table cannot take the rules.
    #[error(
        "profile {profile}: its {rules} rules over paths do not fit the kernel's table ({used} of {SLOTS} slots are in use; \
         the best of {SEEDS} tries placed {placed}); merge rules into directories, or end some containers"
    )]
    TableFull { profile: String, rules: usize, used: usize, placed: usize },
    /// The net trie cannot take the rules.
    #[error(
        "profile {profile}: its {rules} network rules do not fit the kernel's table; merge addresses into networks, \
         or end some containers"
    )]
    NetFull {
        profile: String,
        rules: usize,
        #[source]
        source: io::Error,
    },
    /// No randomness.
    #[error("/dev/urandom cannot be read, so no unguessable name can be made for a policy")]
    Random(#[source] io::Error),
}

/// The longest-prefix map of net rules, in the kernel or in a test.
pub(super) trait NetTrie {
    /// Inserts or replaces.
    fn insert(&mut self, key: &Key, verdict: &Verdict) -> io::Result<()>;
    /// Removes; an absent key is not an error.
    fn remove(&mut self, key: &Key) -> io::Result<()>;
    /// Every key there is.
    fn keys(&self) -> io::Result<Vec<Key>>;
}

/// The kernel's arrays.
#[derive(Debug)]
pub(super) struct Arrays {
    /// The rule table, see [`RuleTable::slots`].
    pub(super) slots: Mapped<AtomicU64>,
    /// See [`RuleTable::owners`].
    pub(super) owners: Mapped<AtomicU16>,
    /// [`Policy`] records.
    pub(super) policies: Mapped<AtomicU64>,
    /// [`Container`] records.
    pub(super) containers: Mapped<AtomicU64>,
    /// [`Counters`] records.
    pub(super) counters: Mapped<AtomicU64>,
}

impl Arrays {
    /// Integers in each array, in the order of the fields.
    pub(super) const LENGTHS: [usize; 5] = [
        SLOTS,
        SLOTS,
        MAX_POLICIES * POLICY_WORDS,
        MAX_CONTAINERS * CONTAINER_WORDS,
        MAX_CONTAINERS * COUNTER_WORDS,
    ];

    fn table(&self) -> RuleTable<'_> {
        RuleTable { slots: &self.slots, owners: &self.owners }
    }

    fn policy(&self, index: u16) -> Policy {
        let word = |n: usize| self.policies[usize::from(index) * POLICY_WORDS + n].load(Ordering::Acquire);
        Policy {
            seed: word(0),
            generation: word(1) as u32,
            flags: (word(1) >> 32) as u32,
            record: word(2) as u32,
            initial: (word(2) >> 32) as u16,
            reserved: (word(2) >> 48) as u16,
            capabilities: word(3),
        }
    }

    fn set_policy(&self, index: u16, policy: &Policy) {
        let word = |n: usize| &self.policies[usize::from(index) * POLICY_WORDS + n];
        word(1).store(u64::from(policy.generation) | u64::from(policy.flags) << 32, Ordering::Release);
        let initial = u64::from(policy.initial) << 32 | u64::from(policy.reserved) << 48;
        word(2).store(u64::from(policy.record) | initial, Ordering::Release);
        word(3).store(policy.capabilities, Ordering::Release);
        word(0).store(policy.seed, Ordering::Release);
    }

    fn container(&self, index: usize) -> Container {
        let word = |n: usize| self.containers[index * CONTAINER_WORDS + n].load(Ordering::Acquire);
        Container { id: word(0), policy: word(1) }
    }

    fn container_word(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.containers[index * CONTAINER_WORDS + word]
    }

    fn counter(&self, index: usize, word: usize) -> &AtomicU64 {
        &self.counters[index * COUNTER_WORDS + word]
    }
}

/// Freed, but perhaps still seen by a program that runs.
#[derive(Debug, Default)]
struct Garbage {
    policies: BTreeSet<u16>,
    containers: BTreeSet<usize>,
    since: Option<Instant>,
}

/// All containers and policies in the kernel. One writer: the core.
#[derive(Debug)]
pub(super) struct Policies<N> {
    arrays: Arrays,
    net: N,
    keys: Keys,
    /// Policy records in use or not yet free, and the net keys of each.
    policies: BTreeMap<u16, Vec<Key>>,
    garbage: Garbage,
}

impl<N: NetTrie> Policies<N> {
    /// Takes over the arrays. Whatever no container names is freed: a core that was killed in the middle of a swap
    /// leaves such things.
    pub(super) fn adopt(arrays: Arrays, net: N, keys: Keys) -> io::Result<Self> {
        let mut this = Self { arrays, net, keys, policies: BTreeMap::new(), garbage: Garbage::default() };
        let mut by_seed: HashMap<u64, Vec<Key>> = HashMap::new();
        for key in this.net.keys()? {
            by_seed.entry(key.seed()).or_default().push(key);
        }
        for id in this.ids() {
            if let Some(index) = this.policy_index(id) {
                let keys = by_seed.remove(&this.arrays.policy(index).seed).unwrap_or_default();
                this.policies.insert(index, keys);
            }
        }
        // An earlier core may have swapped these out just now: a program may still be reading them.
        for index in 0..MAX_POLICIES as u16 {
            let orphan = !this.policies.contains_key(&index);
            if orphan && this.arrays.policy(index).seed != 0 {
                let keys = by_seed.remove(&this.arrays.policy(index).seed).unwrap_or_default();
                this.policies.insert(index, keys);
                this.garbage.policies.insert(index);
            }
        }
        let unnamed: BTreeSet<u16> = this
            .arrays
            .owners
            .iter()
            .map(|owner| owner.load(Ordering::Relaxed))
            .filter(|owner| *owner != 0)
            .collect();
        for owner in unnamed {
            // Slots of a policy whose record was not written yet.
            if let Entry::Vacant(vacant) = this.policies.entry(owner - 1) {
                vacant.insert(Vec::new());
                this.garbage.policies.insert(owner - 1);
            }
        }
        for key in by_seed.into_values().flatten() {
            this.net.remove(&key)?;
        }
        this.reclaim();
        Ok(this)
    }

    /// Every container there is, in the order of their indexes.
    pub(super) fn ids(&self) -> Vec<ContainerId> {
        let id = |index| ContainerId(self.arrays.container(index).id);
        (0..MAX_CONTAINERS).map(id).filter(|id| id.0 != 0).collect()
    }

    /// The generation of a container's policy; `None`: it has no policy yet.
    pub(super) fn generation(&self, id: ContainerId) -> Option<u32> {
        self.policy_index(id).map(|index| self.arrays.policy(index).generation)
    }

    /// The capabilities that a container's policy leaves it, bit by bit; `None`: it has no policy yet.
    pub(super) fn capabilities(&self, id: ContainerId) -> Option<u64> {
        self.policy_index(id).map(|index| self.arrays.policy(index).capabilities)
    }

    fn policy_index(&self, id: ContainerId) -> Option<u16> {
        let container = self.arrays.container(id.index());
        let index =
            u16::try_from(container.policy).ok().filter(|index| usize::from(*index) < MAX_POLICIES)?;
        (container.id == id.0).then_some(index)
    }

    fn exists(&self, id: ContainerId) -> Result<(), PolicyError> {
        let there = id.0 != 0 && self.arrays.container(id.index()).id == id.0;
        if there { Ok(()) } else { Err(PolicyError::NoContainer(id)) }
    }

    /// A new container without tasks and without a policy: whoever is in it is denied everything.
    pub(super) fn create(&mut self) -> Result<ContainerId, PolicyError> {
        self.reclaim();
        let free =
            |index: &usize| self.arrays.container(*index).id == 0 && !self.garbage.containers.contains(index);
        let index = (0..MAX_CONTAINERS).find(free).ok_or(PolicyError::TooManyContainers)?;
        let serial = random()? | MAX_CONTAINERS as u64; // never only an index
        let id = ContainerId(serial & !(MAX_CONTAINERS as u64 - 1) | index as u64);
        for word in 0..COUNTER_WORDS {
            self.arrays.counter(index, word).store(0, Ordering::Relaxed);
        }
        self.arrays.container_word(index, 1).store(NO_POLICY, Ordering::Release);
        self.arrays.container_word(index, 0).store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Puts a policy in force for a container, in one step: every operation is judged by the old one or by the new.
    pub(super) fn install(
        &mut self,
        id: ContainerId,
        policy: &CompiledPolicy,
    ) -> Result<Installed, PolicyError> {
        self.exists(id)?;
        self.reclaim();
        let old = self.policy_index(id);
        let generation = old.map_or(0, |index| self.arrays.policy(index).generation).wrapping_add(1);
        let index = (0..MAX_POLICIES as u16)
            .find(|index| !self.policies.contains_key(index))
            .ok_or(PolicyError::TooManyPolicies)?;

        let (seed, slots) = self.place(index, policy)?;
        self.policies.insert(index, Vec::new());
        if let Err(error) = self.place_nets(index, seed, policy) {
            self.free_policies(&BTreeSet::from([index])); // no container named it: no program can have seen it
            return Err(error);
        }
        let names = policy.places.iter().any(|rule| matches!(rule.place, Place::Name(_)));
        let flags = [
            (policy.audit_mode, FLAG_AUDIT),
            (names, FLAG_NAMES),
            (policy.inet, FLAG_INET),
            (policy.setuid_files, FLAG_SETUID_FILES),
        ];
        self.arrays.set_policy(
            index,
            &Policy {
                seed,
                generation,
                flags: flags.into_iter().filter(|(set, _)| *set).fold(0, |all, (_, flag)| all | flag),
                record: policy.record,
                initial: policy.initial,
                reserved: 0,
                capabilities: policy.capabilities.bits(),
            },
        );
        self.arrays.container_word(id.index(), 1).store(u64::from(index), Ordering::Release);

        if let Some(old) = old {
            self.discard(|garbage| garbage.policies.insert(old));
        }
        Ok(Installed { generation, slots })
    }

    /// Puts the rules over places into the table, under a seed for which every bucket has room.
    fn place(&self, index: u16, policy: &CompiledPolicy) -> Result<(u64, Vec<Slot>), PolicyError> {
        let table = self.arrays.table();
        let (mut placed, used) = (0, table.used());
        let full = |placed| PolicyError::TableFull {
            profile: policy.profile.clone(),
            rules: policy.places.len(),
            used,
            placed,
        };
        if policy.places.len() > SLOTS - used {
            return Err(full(SLOTS - used));
        }
        for _ in 0..SEEDS {
            let seed = random()?;
            if seed == 0 || self.policies.keys().any(|index| self.arrays.policy(*index).seed == seed) {
                continue;
            }
            let filed = table::entries(&self.keys, seed, &policy.places);
            match table.insert(index + 1, filed.iter().map(|filed| filed.entry)) {
                Ok(at) => {
                    let slots = at.into_iter().zip(&filed).map(|(slot, filed)| describe(slot, filed, policy));
                    return Ok((seed, slots.collect()));
                }
                Err(full) => placed = placed.max(full.placed),
            }
        }
        Err(full(placed))
    }

    fn place_nets(&mut self, index: u16, seed: u64, policy: &CompiledPolicy) -> Result<(), PolicyError> {
        for rule in &policy.nets {
            let key = Key::of(seed, rule);
            self.net.insert(&key, &net::verdict(rule)).map_err(|source| PolicyError::NetFull {
                profile: policy.profile.clone(),
                rules: policy.nets.len(),
                source,
            })?;
            self.policies.entry(index).or_default().push(key);
        }
        Ok(())
    }

    /// Forgets a container. A task that still carries its tag is denied everything from now on. Returns what was
    /// counted.
    pub(super) fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError> {
        self.exists(id)?;
        let policy = self.policy_index(id);
        let counters = self.counters(id)?;
        let index = id.index();
        self.arrays.container_word(index, 0).store(0, Ordering::Release);
        self.arrays.container_word(index, 1).store(NO_POLICY, Ordering::Release);
        self.discard(|garbage| {
            garbage.containers.insert(index);
            policy.is_none_or(|policy| garbage.policies.insert(policy))
        });
        Ok(counters)
    }

    /// What a container's programs counted so far.
    pub(super) fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError> {
        self.exists(id)?;
        let word = |n: usize| self.arrays.counter(id.index(), n).load(Ordering::Relaxed);
        Ok(Counters {
            denied: word(0),
            lost_denied: word(1),
            lost_allowed: word(2),
            aggregated: word(3),
            retried: word(4),
            fork_failed: word(5),
            due: word(6),
            tasks: word(7),
            ipc: word(8),
            reserved: [0; 7],
        })
    }

    fn discard(&mut self, what: impl FnOnce(&mut Garbage) -> bool) {
        what(&mut self.garbage);
        self.garbage.since = Some(Instant::now());
        self.reclaim();
    }

    /// Makes what was discarded reusable, after a grace period.
    fn reclaim(&mut self) {
        if self.garbage.policies.is_empty() && self.garbage.containers.is_empty() {
            return;
        }
        if let Err(error) = sys::grace_period() {
            let since = *self.garbage.since.get_or_insert_with(Instant::now);
            if since.elapsed() < PATIENCE {
                tracing::debug!(%error, "no grace period to be had: freed rules wait for {PATIENCE:?}");
                return;
            }
        }
        let garbage = std::mem::take(&mut self.garbage);
        self.free_policies(&garbage.policies);
    }

    fn free_policies(&mut self, indexes: &BTreeSet<u16>) {
        self.arrays.table().retain(|owner| !indexes.contains(&(owner - 1)));
        for index in indexes {
            let keys = self.policies.remove(index).unwrap_or_default();
            for key in &keys {
                if let Err(error) = self.net.remove(key) {
                    // It stays unreachable (no policy has its seed), and the next core's scan tries again.
                    tracing::warn!(%error, "a network rule could not be removed from the kernel");
                }
            }
            self.arrays.set_policy(*index, &Policy::NONE);
        }
    }
}

/// What a slot stands for. A mark is named by the rule that it is there for, whatever the axis.
fn describe(slot: u32, filed: &table::Filed, policy: &CompiledPolicy) -> Slot {
    let rule = &policy.places[filed.rule];
    if filed.mark {
        let for_it = rule.deny_rules.iter().flatten().next().copied().or(rule.reset_rule);
        return Slot { slot, allow: [None; 5], deny: [for_it; 5], reset: for_it };
    }
    Slot { slot, allow: rule.allow_rules, deny: rule.deny_rules, reset: rule.reset_rule }
}

/// 64 random bits.
pub(super) fn random() -> Result<u64, PolicyError> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(PolicyError::Random)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
#[path = "policies_tests.rs"]
mod tests;
