//! Containers and their policies in the kernel's arrays: create, install, swap, release, and pick up what an earlier
//! core left. The arrays are shared memory; only the net trie needs system calls ([`NetTrie`]).
//!
//! Nothing that a program may be reading is ever reused: what a swap or a release frees waits for a grace period.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt, io,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ringfence_common::{
    MAX_CONTAINERS, MAX_POLICIES,
    hash::Keys,
    patterns::Patterns,
    policy::{
        Counters, FLAG_AUDIT, FLAG_DEVICES, FLAG_EGRESS, FLAG_INET, FLAG_NAMES, FLAG_PATTERNS,
        FLAG_SHARED_MEMORY, MAX_OWNERS, OWNER_ROOT, OWNER_USERS, Policy, container_index, named,
    },
    unlisted,
};
use ringfence_wire::audit::Slot;

use super::{
    LoadError,
    arrays::{Arrays, COUNTER_WORDS, OWNER, TASKS},
    net::{self, Key, Verdict},
    share::{Held, Kind, Need, Share},
    spellings, sys,
    table::{self, SLOTS},
};
use ringfence_policy::compiled::{CompiledPolicy, Place};

/// How often another seed is tried when a bucket is full.
const SEEDS: usize = 64;
/// How long freed memory waits where the kernel offers no grace period. A program runs for microseconds, and a kernel
/// reports a stalled read section after 21 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// Policy of a container that has none yet: beyond the array, so that programs deny.
const NO_POLICY: u64 = u64::MAX;

/// The kernel's name of a container: a random serial above an index. Valid until reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(u64);

impl ContainerId {
    /// The number, as in records and manifests.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// From a number that [`Self::raw`] gave.
    pub fn from_raw(raw: u64) -> Self {
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
pub struct Installed {
    /// The policy's generation: 1 for a container's first, then counting up.
    pub generation: u32,
    /// Which slots of the rule table stand for which rules.
    pub slots: Vec<Slot>,
    /// There was no room beside the policy before: everything was denied while the one was replaced by the other.
    pub interrupted: bool,
}

/// Why a container or policy could not be put into the kernel. But for [`Self::Shut`], the policy in force, if any,
/// stays.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
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
    #[expect(missing_docs, reason = "as their messages call them")]
    TableFull { profile: String, rules: usize, used: usize, placed: usize },
    /// The net trie cannot take the rules.
    #[error(
        "profile {profile}: its {rules} network rules do not fit the kernel's table; merge addresses into networks, \
         or end some containers"
    )]
    NetFull {
        /// The profile.
        profile: String,
        /// How many rules it has.
        rules: usize,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The owner's share, or that of all users but root, is used up.
    #[error("profile {profile}: {need}")]
    #[expect(missing_docs, reason = "as their messages call them")]
    Share { profile: String, need: Need },
    /// No room for a container's next policy, even with the one before taken out. That one may have granted more, so it
    /// is not in force any more either: everything is denied.
    #[error("everything is denied to the container now, because its changed profile found no room")]
    Shut {
        /// The generation that denies everything.
        generation: u32,
        /// Why.
        #[source]
        source: Box<PolicyError>,
    },
    /// The programs that outbound names need.
    #[error(
        "the profile grants hosts by name, and the programs that send connections to the container's egress worker cannot be \
         attached to the root of cgroup v2"
    )]
    NamePrograms(#[source] Box<LoadError>),
    /// No randomness.
    #[error("/dev/urandom cannot be read, so no unguessable name can be made for a policy")]
    Random(#[source] io::Error),
}

impl PolicyError {
    /// Whether there would have been none with more room.
    fn is_room(&self) -> bool {
        matches!(
            self,
            Self::TooManyPolicies | Self::TableFull { .. } | Self::NetFull { .. } | Self::Share { .. }
        )
    }
}

/// The longest-prefix map of net rules, in the kernel or in a test.
pub(crate) trait NetTrie {
    /// Inserts or replaces.
    fn insert(&mut self, key: &Key, verdict: &Verdict) -> io::Result<()>;
    /// Removes; an absent key is not an error.
    fn remove(&mut self, key: &Key) -> io::Result<()>;
    /// Every key there is.
    fn keys(&self) -> io::Result<Vec<Key>>;
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
pub(crate) struct Policies<N> {
    arrays: Arrays,
    net: N,
    keys: Keys,
    /// Policy records in use or not yet free, and what each holds.
    policies: BTreeMap<u16, Held>,
    garbage: Garbage,
}

impl<N: NetTrie> Policies<N> {
    /// Takes over the arrays. Whatever no container names is freed: a core that was killed in the middle of a swap
    /// leaves such things.
    pub(crate) fn adopt(arrays: Arrays, net: N, keys: Keys) -> io::Result<Self> {
        let mut this = Self { arrays, net, keys, policies: BTreeMap::new(), garbage: Garbage::default() };
        let mut by_seed: HashMap<u64, Vec<Key>> = HashMap::new();
        for key in this.net.keys()? {
            by_seed.entry(key.seed()).or_default().push(key);
        }
        let mut slots: HashMap<u16, usize> = HashMap::new();
        for owner in this.arrays.owners.iter().map(|owner| owner.load(Ordering::Relaxed)) {
            if owner != 0 {
                *slots.entry(owner - 1).or_default() += 1;
            }
        }
        for id in this.ids() {
            if let Some(index) = this.policy_index(id) {
                let nets = by_seed.remove(&this.arrays.policy(index).seed).unwrap_or_default();
                let slots = slots.remove(&index).unwrap_or(0);
                this.policies.insert(index, Held { nets, slots, owner: this.owner(id) });
            }
        }
        // An earlier core may have swapped these out just now: a program may still be reading them. Or it left slots of a
        // policy whose record was not written yet.
        for index in 0..MAX_POLICIES as u16 {
            let seed = this.arrays.policy(index).seed;
            let left = seed != 0 || slots.contains_key(&index);
            if left && !this.policies.contains_key(&index) {
                let nets = by_seed.remove(&seed).unwrap_or_default();
                this.policies.insert(index, Held { nets, ..Held::default() });
                this.garbage.policies.insert(index);
            }
        }
        for key in by_seed.into_values().flatten() {
            this.net.remove(&key)?;
        }
        this.reclaim();
        Ok(this)
    }

    /// Every container there is, in the order of their indexes.
    pub(crate) fn ids(&self) -> Vec<ContainerId> {
        let id = |index| ContainerId(self.arrays.container(index).id);
        (0..MAX_CONTAINERS).map(id).filter(|id| id.0 != 0).collect()
    }

    /// The generation of a container's policy; `None`: it has no policy yet.
    pub(crate) fn generation(&self, id: ContainerId) -> Option<u32> {
        self.policy_index(id).map(|index| self.arrays.policy(index).generation)
    }

    /// The capabilities that a container's policy leaves it, bit by bit; `None`: it has no policy yet.
    pub(crate) fn capabilities(&self, id: ContainerId) -> Option<u64> {
        self.policy_index(id).map(|index| self.arrays.policy(index).capabilities)
    }

    /// Whether a container's policy grants hosts by name.
    pub(crate) fn reaches_names(&self, id: ContainerId) -> bool {
        self.policy_index(id).is_some_and(|index| self.arrays.policy(index).flags & FLAG_EGRESS != 0)
    }

    /// Whether a container exists, or a task of it that was left when it was released. Asked before another container takes its
    /// place, which none does as long as there is one.
    pub(crate) fn is_inhabited(&self, id: ContainerId) -> bool {
        self.exists(id).is_ok() || self.arrays.counter(id.index(), TASKS).load(Ordering::Relaxed) != 0
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

    /// The user who answers for a container.
    fn owner(&self, id: ContainerId) -> u32 {
        let index = self.arrays.counter(id.index(), OWNER).load(Ordering::Relaxed);
        let user = self.arrays.user(index, 0).map_or(0, |user| user.load(Ordering::Relaxed));
        user.checked_sub(1).and_then(|user| u32::try_from(user).ok()).unwrap_or(0)
    }

    /// The entry that counts a user's tasks. There is always a free one: more entries than containers.
    fn owner_index(&self, user: u32) -> Result<u64, PolicyError> {
        if user == 0 {
            return Ok(OWNER_ROOT);
        }
        let name = u64::from(user) + 1;
        let word = |index, word| self.arrays.user(index, word).map_or(0, |word| word.load(Ordering::Relaxed));
        let mut entries = OWNER_USERS + 1..MAX_OWNERS as u64;
        if let Some(index) = entries.clone().find(|index| word(*index, 0) == name) {
            return Ok(index);
        }
        let used: BTreeSet<u64> = self
            .ids()
            .iter()
            .map(|id| self.arrays.counter(id.index(), OWNER).load(Ordering::Relaxed))
            .collect();
        let index = entries
            .find(|index| word(*index, 0) == 0 || word(*index, 1) == 0 && !used.contains(index))
            .ok_or(PolicyError::TooManyContainers)?;
        if let Some(user) = self.arrays.user(index, 0) {
            user.store(name, Ordering::Release);
        }
        Ok(index)
    }

    /// A new container without tasks and without a policy: whoever is in it is denied everything. `owner` is the user who
    /// answers for it.
    pub(crate) fn create(&mut self, owner: u32) -> Result<ContainerId, PolicyError> {
        self.reclaim();
        // Where tasks of a container are left that was released, they are still counted.
        let free = |index: &usize| {
            self.arrays.container(*index).id == 0
                && !self.garbage.containers.contains(index)
                && self.arrays.counter(*index, TASKS).load(Ordering::Relaxed) == 0
        };
        let index = (0..MAX_CONTAINERS).find(free).ok_or(PolicyError::TooManyContainers)?;
        let owner = self.owner_index(owner)?;
        let serial = random()? | MAX_CONTAINERS as u64; // never only an index
        let id = ContainerId(serial & !(MAX_CONTAINERS as u64 - 1) | index as u64);
        for word in 0..COUNTER_WORDS {
            self.arrays.counter(index, word).store(0, Ordering::Relaxed);
        }
        self.arrays.counter(index, OWNER).store(owner, Ordering::Relaxed);
        self.arrays.container_word(index, 1).store(NO_POLICY, Ordering::Release);
        self.arrays.container_word(index, 0).store(id.0, Ordering::Release);
        Ok(id)
    }

    /// Puts a policy in force for a container, in one step: every operation is judged by the old one or by the new.
    ///
    /// Where there is no room for the new beside the old, there are two steps: first everything is denied, then the old one
    /// makes room for the new. A policy that narrows always fits so: it takes no more than the old did. If not even that
    /// is enough, everything stays denied ([`PolicyError::Shut`]): the old policy is not what was asked for.
    pub(crate) fn install(
        &mut self,
        id: ContainerId,
        policy: &CompiledPolicy,
    ) -> Result<Installed, PolicyError> {
        self.exists(id)?;
        self.reclaim();
        match (self.put(id, policy, None), self.policy_index(id)) {
            (Err(error), Some(old)) if error.is_room() => {
                tracing::info!("container {id}: no room beside its present policy ({error})");
                let seed = self.arrays.policy(old).seed;
                let generation = self.shut(id, old, policy.audit_mode)?;
                match self.put(id, policy, Some(seed)) {
                    Ok(installed) => Ok(Installed { interrupted: true, ..installed }),
                    Err(error) => Err(PolicyError::Shut { generation, source: Box::new(error) }),
                }
            }
            (result, _) => result,
        }
    }

    /// Puts a policy beside the present one, if any, and then in its place. `seed`: one to try first. Of a policy that was
    /// taken out it is one under which at least that policy's own rules find room again.
    fn put(
        &mut self,
        id: ContainerId,
        policy: &CompiledPolicy,
        seed: Option<u64>,
    ) -> Result<Installed, PolicyError> {
        let old = self.policy_index(id);
        let owner = self.owner(id);
        let generation = old.map_or(0, |index| self.arrays.policy(index).generation).wrapping_add(1);
        let index = self.free_policy()?;
        let held: Vec<&Held> = self
            .policies
            .iter()
            .filter(|(index, _)| Some(**index) != old && !self.garbage.policies.contains(index))
            .map(|(_, held)| held)
            .collect();
        let before = old.and_then(|old| self.policies.get(&old));
        let share = |kind| Share::of(owner, kind, &held, before);
        let outside = |need| PolicyError::Share { profile: policy.profile.clone(), need };
        share(Kind::Nets).take(policy.nets.len()).map_err(outside)?;
        let slots = share(Kind::Slots);
        let (seed, slots) = self.place(index, policy, seed, slots)?;
        self.policies.insert(index, Held { nets: Vec::new(), slots: slots.len(), owner });
        if let Err(error) = self.place_nets(index, seed, policy) {
            self.free_policies(&BTreeSet::from([index])); // no container named it: no program can have seen it
            return Err(error);
        }
        let patterns = spellings::patterns(&policy.places);
        let names = policy.places.iter().any(|rule| matches!(rule.place, Place::Name(_)));
        let devices = unlisted::DEVICES.map(|(level, option)| Place::Named {
            kind: named::OPTION,
            value: unlisted::value(level, option),
        });
        let devices = policy.places.iter().any(|rule| devices.contains(&rule.place));
        let is_shared = |place: &Place| matches!(place, Place::Named { kind: named::SHARED_MEMORY, .. });
        let shared = policy.places.iter().any(|rule| is_shared(&rule.place));
        let flags = [
            (policy.audit_mode, FLAG_AUDIT),
            (names, FLAG_NAMES),
            (policy.inet, FLAG_INET),
            (!policy.names.is_empty(), FLAG_EGRESS),
            (patterns != Patterns::NONE, FLAG_PATTERNS),
            (devices, FLAG_DEVICES),
            (shared, FLAG_SHARED_MEMORY),
        ];
        let flags = flags.into_iter().filter(|(set, _)| *set).fold(policy.flags, |all, (_, flag)| all | flag);
        let (record, initial) = (policy.record, policy.initial);
        let capabilities = policy.capabilities.bits();
        self.arrays.set_policy(
            index,
            &Policy { seed, generation, flags, record, initial, reserved: 0, capabilities, patterns },
        );
        self.arrays.container_word(id.index(), 1).store(u64::from(index), Ordering::Release);

        if let Some(old) = old {
            self.discard(|garbage| garbage.policies.insert(old));
        }
        Ok(Installed { generation, slots, interrupted: false })
    }

    fn free_policy(&self) -> Result<u16, PolicyError> {
        (0..MAX_POLICIES as u16)
            .find(|index| !self.policies.contains_key(index))
            .ok_or(PolicyError::TooManyPolicies)
    }

    /// Puts a policy without any rule in force, which takes no room and denies everything, and frees the old one. Returns
    /// its generation. `audit`: what is to come denies nothing, so this does not either.
    fn shut(&mut self, id: ContainerId, old: u16, audit: bool) -> Result<u32, PolicyError> {
        let generation = self.arrays.policy(old).generation.wrapping_add(1);
        let index = match self.free_policy() {
            Ok(index) => {
                let flags = if audit { FLAG_AUDIT } else { 0 };
                let policy = Policy { seed: self.seed()?, generation, flags, ..Policy::NONE };
                self.policies.insert(index, Held { owner: self.owner(id), ..Held::default() });
                self.arrays.set_policy(index, &policy);
                u64::from(index)
            }
            Err(_) => NO_POLICY,
        };
        self.arrays.container_word(id.index(), 1).store(index, Ordering::Release);
        self.discard(|garbage| garbage.policies.insert(old));
        Ok(generation)
    }

    /// A new policy's seed.
    fn seed(&self) -> Result<u64, PolicyError> {
        loop {
            let seed = random()?;
            if seed != 0 && !self.is_used(seed) {
                return Ok(seed);
            }
        }
    }

    fn is_used(&self, seed: u64) -> bool {
        self.policies.keys().any(|index| self.arrays.policy(*index).seed == seed)
    }

    /// Puts the rules over places into the table, under a seed for which every bucket has room.
    fn place(
        &self,
        index: u16,
        policy: &CompiledPolicy,
        first: Option<u64>,
        share: Share,
    ) -> Result<(u64, Vec<Slot>), PolicyError> {
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
        let first = first.filter(|seed| !self.is_used(*seed));
        for n in 0..SEEDS {
            let seed = match first {
                Some(seed) if n == 0 => seed,
                _ => self.seed()?,
            };
            let filed = table::entries(&self.keys, seed, &policy.places);
            if n == 0 {
                let outside = |need| PolicyError::Share { profile: policy.profile.clone(), need };
                share.take(filed.len()).map_err(outside)?;
            }
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
            self.policies.entry(index).or_default().nets.push(key);
        }
        Ok(())
    }

    /// Forgets a container. A task that still carries its tag is denied everything from now on. Returns what was
    /// counted.
    pub(crate) fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError> {
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
    pub(crate) fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError> {
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
            tasks: word(TASKS),
            ..Counters::default()
        })
    }

    /// Counts tasks that do not exist, as the programs count.
    #[cfg(test)]
    pub(crate) fn pretend_tasks(&self, id: ContainerId, tasks: u64) {
        self.arrays.counter(id.index(), TASKS).fetch_add(tasks, Ordering::Relaxed);
        let owner = self.arrays.counter(id.index(), OWNER).load(Ordering::Relaxed);
        for index in [owner, OWNER_USERS] {
            if let Some(tasks_of) = self.arrays.user(index, 1).filter(|_| owner != OWNER_ROOT) {
                tasks_of.fetch_add(tasks, Ordering::Relaxed);
            }
        }
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
            let held = self.policies.remove(index).unwrap_or_default();
            for key in &held.nets {
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
pub(crate) fn random() -> Result<u64, PolicyError> {
    use std::io::Read;
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(PolicyError::Random)?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests;
