//! Tests of the arrays' bookkeeping, on files in place of the kernel's maps.

use super::*;
use crate::profile::Capabilities;
use crate::profile::compiled::{Kind, NetRule, PlaceRule};
use std::{collections::HashMap, fs::File, os::fd::AsFd};

const KEYS: Keys = Keys { k0: 1 << 40 | 7, k1: 0xd6e8_feb8_6659_fd93, k2: 0xa076_1d64_78bd_642f };

/// A trie as a hash map, of bounded size.
#[derive(Debug, Clone, Default)]
struct Trie {
    entries: std::rc::Rc<std::cell::RefCell<HashMap<Key, Verdict>>>,
    room: usize,
}

impl NetTrie for Trie {
    fn insert(&mut self, key: &Key, verdict: &Verdict) -> io::Result<()> {
        if self.entries.borrow().len() >= self.room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.entries.borrow_mut().insert(*key, *verdict);
        Ok(())
    }
    fn remove(&mut self, key: &Key) -> io::Result<()> {
        self.entries.borrow_mut().remove(key);
        Ok(())
    }
    fn keys(&self) -> io::Result<Vec<Key>> {
        Ok(self.entries.borrow().keys().copied().collect())
    }
}

/// The maps of one boot: survive any number of cores.
struct Boot {
    files: [File; 5],
    net: Trie,
}

impl Boot {
    fn new(net_room: usize) -> Self {
        let file = |n: usize| {
            let file = tempfile::tempfile().unwrap();
            let width = if n == 1 { 2 } else { 8 };
            file.set_len((Arrays::LENGTHS[n] * width) as u64).unwrap();
            file
        };
        Self { files: std::array::from_fn(file), net: Trie { room: net_room, ..Trie::default() } }
    }

    fn core(&self) -> Policies<Trie> {
        let map = |n: usize| Mapped::new(self.files[n].as_fd(), Arrays::LENGTHS[n]).unwrap();
        let arrays = Arrays {
            slots: map(0),
            owners: Mapped::new(self.files[1].as_fd(), Arrays::LENGTHS[1]).unwrap(),
            policies: map(2),
            containers: map(3),
            counters: map(4),
        };
        Policies::adopt(arrays, self.net.clone(), KEYS).unwrap()
    }
}

fn policy(places: usize, nets: u16) -> CompiledPolicy {
    let place = |n: usize| PlaceRule {
        place: Place::Path(format!("/place{n}").into()),
        kind: Kind::Tree,
        allow: 1,
        deny: 0,
        reset: 0,
        allow_rules: [Some(n as u32), None, None, None, None],
        deny_rules: [None; 5],
        reset_rule: None,
    };
    let net = |port| NetRule {
        addr: "::1".parse().unwrap(),
        prefix: 128,
        port: Some(port),
        allow: true,
        rule: u32::from(port),
    };
    CompiledPolicy {
        profile: "test".into(),
        audit_mode: true,
        initial: 2,
        record: 5,
        inet: true,
        capabilities: Capabilities::from_bits(0x8000_0000_0000_0025),
        setuid_files: false,
        places: (0..places).map(place).collect(),
        nets: (1..=nets).map(net).collect(),
        rules: Vec::new(),
    }
}

#[test]
fn a_policy_is_written_as_the_programs_read_it() {
    let boot = Boot::new(100);
    let mut core = boot.core();
    let id = core.create().unwrap();
    assert_eq!(core.generation(id), None, "a new container has no policy");
    let installed = core.install(id, &policy(3, 2)).unwrap();
    assert_eq!((installed.generation, installed.slots.len()), (1, 3));
    let index = core.policy_index(id).unwrap();
    let written = core.arrays.policy(index);
    assert_eq!((written.generation, written.record, written.initial), (1, 5, 2));
    assert_eq!(written.flags, FLAG_AUDIT | FLAG_INET);
    for slot in &installed.slots {
        let rule = slot.allow[0].unwrap();
        let prefix = ringfence_common::hash::path(&KEYS, written.seed, format!("/place{rule}").as_bytes());
        let found = core.arrays.slots[slot.slot as usize].load(Ordering::Relaxed);
        assert_eq!(found >> 16, prefix & 0xffff_ffff_ffff, "the slot is that rule's");
        assert_eq!(slot.slot as usize / 8, ringfence_common::policy::bucket_of(prefix));
    }
    assert!(boot.net.entries.borrow().keys().all(|key| key.seed() == written.seed));
}

#[test]
fn a_swap_counts_the_generation_up_and_frees_the_old_policy() {
    let boot = Boot::new(100);
    let mut core = boot.core();
    let id = core.create().unwrap();
    core.install(id, &policy(50, 5)).unwrap();
    let first = core.policy_index(id).unwrap();
    assert_eq!(core.install(id, &policy(20, 3)).unwrap().generation, 2);
    assert_ne!(core.policy_index(id), Some(first));
    assert_eq!(core.arrays.table().used(), 20);
    assert_eq!(boot.net.entries.borrow().len(), 3);
    assert_eq!(core.arrays.policy(first).seed, 0);
}

#[test]
fn a_failed_install_leaves_the_old_policy_and_nothing_else() {
    let boot = Boot::new(4);
    let mut core = boot.core();
    let id = core.create().unwrap();
    core.install(id, &policy(10, 2)).unwrap();
    let before = core.policy_index(id);
    let error = core.install(id, &policy(10, 9)).unwrap_err();
    assert!(matches!(error, PolicyError::NetFull { rules: 9, .. }), "{error}");
    let error = core.install(id, &policy(SLOTS, 0)).unwrap_err();
    assert!(matches!(error, PolicyError::TableFull { .. }), "{error}");
    assert_eq!(core.policy_index(id), before);
    assert_eq!((core.arrays.table().used(), boot.net.entries.borrow().len()), (10, 2));
}

#[test]
fn a_hundred_thousand_rules_fit() {
    let boot = Boot::new(0);
    let mut core = boot.core();
    let id = core.create().unwrap();
    assert_eq!(core.install(id, &policy(100_000, 0)).unwrap().slots.len(), 100_000);
}

#[test]
fn release_frees_everything_and_the_id_is_gone() {
    let boot = Boot::new(100);
    let mut core = boot.core();
    let (one, two) = (core.create().unwrap(), core.create().unwrap());
    core.install(one, &policy(7, 1)).unwrap();
    core.install(two, &policy(5, 1)).unwrap();
    // The programs count in the same words.
    let word = std::mem::offset_of!(Counters, tasks) / 8;
    core.arrays.counter(one.index(), word).store(3, Ordering::Relaxed);
    assert_eq!((core.counters(one).unwrap().tasks, core.counters(two).unwrap().tasks), (3, 0));
    assert_eq!(core.release(one).unwrap().tasks, 3);
    assert!(matches!(core.install(one, &policy(1, 0)), Err(PolicyError::NoContainer(id)) if id == one));
    assert!(core.counters(one).is_err() && core.release(one).is_err());
    assert_eq!((core.arrays.table().used(), boot.net.entries.borrow().len()), (5, 1));
    assert_eq!(core.ids(), [two]);
    let three = core.create().unwrap();
    assert_ne!(three, one, "an index is reused, an id is not");
}

#[test]
fn the_next_core_takes_over_and_frees_what_was_left_half_done() {
    let boot = Boot::new(100);
    let (kept, half) = {
        let mut core = boot.core();
        let kept = core.create().unwrap();
        core.install(kept, &policy(30, 4)).unwrap();
        // Killed after the rules were written and before the container named them ...
        core.place(100, &policy(12, 0)).unwrap();
        // ... or after the record was written ...
        let (seed, _) = core.place(101, &policy(9, 0)).unwrap();
        core.place_nets(101, seed, &policy(0, 3)).unwrap();
        core.arrays.set_policy(101, &Policy { seed, generation: 1, ..Policy::NONE });
        // ... or in the middle of the network rules.
        core.place_nets(102, 77, &policy(0, 2)).unwrap();
        let half = core.create().unwrap();
        (kept, half)
    };
    let mut core = boot.core();
    assert_eq!(core.ids(), [kept, half]);
    assert_eq!((core.generation(kept), core.generation(half)), (Some(1), None));
    assert_eq!((core.arrays.table().used(), boot.net.entries.borrow().len()), (30, 4));
    assert_eq!(core.install(kept, &policy(6, 1)).unwrap().generation, 2);
    assert_eq!((core.arrays.table().used(), boot.net.entries.borrow().len()), (6, 1));
}

#[test]
fn there_is_a_last_container() {
    let boot = Boot::new(0);
    let mut core = boot.core();
    for _ in 0..MAX_CONTAINERS {
        core.create().unwrap();
    }
    assert!(matches!(core.create(), Err(PolicyError::TooManyContainers)));
}
