//! Tests of the arrays' bookkeeping, on files in place of the kernel's maps.

use super::{
    super::{share, sys::Mapped},
    *,
};
use ringfence_policy::Capabilities;
use ringfence_policy::compiled::{Kind, NetRule, PlaceRule};
use ringfence_wire::egress::{NameRule, Names};
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
    files: [File; 6],
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
            users: map(5),
        };
        Policies::adopt(arrays, self.net.clone(), KEYS).unwrap()
    }
}

/// Root's share of the rule table: what there is.
fn root() -> Share {
    Share::of(0, share::Kind::Slots, &[], None)
}

fn policy(places: usize, nets: u16) -> CompiledPolicy {
    let place = |n: usize| PlaceRule {
        allow: 1,
        allow_rules: [Some(n as u32), None, None, None, None],
        ..PlaceRule::nothing(Place::Path(format!("/place{n}").into()), Kind::Tree)
    };
    let net = |port| NetRule {
        addr: "::1".parse().unwrap(),
        prefix: 128,
        port: Some(port),
        allow: true,
        rule: u32::from(port),
    };
    CompiledPolicy {
        audit_mode: true,
        record: 5,
        inet: true,
        capabilities: Capabilities::from_bits(0x8000_0000_0000_0025),
        nets: (1..=nets).map(net).collect(),
        ..crate::tests::policy(2, (0..places).map(place).collect())
    }
}

#[test]
fn a_policy_says_whether_sockets_may_be_bound_to_devices() {
    let boot = Boot::new(10);
    let mut core = boot.core();
    let id = core.create(0).unwrap();
    let mut flags = |level, option| {
        let mut policy = policy(1, 0);
        policy.places[0].place = Place::Named { kind: named::OPTION, value: unlisted::value(level, option) };
        core.install(id, &policy).unwrap();
        core.arrays.policy(core.policy_index(id).unwrap()).flags & FLAG_DEVICES
    };
    assert_eq!([flags(1, 25), flags(1, 62), flags(0, 50)], [FLAG_DEVICES; 3]);
    assert_eq!(flags(1, 36), 0);
}

#[test]
fn a_policy_says_whether_hosts_are_granted_by_name() {
    let boot = Boot::new(10);
    let mut core = boot.core();
    let id = core.create(0).unwrap();
    let mut flags = |names: Names| {
        core.install(id, &CompiledPolicy { names, ..policy(0, 1) }).unwrap();
        core.arrays.policy(core.policy_index(id).unwrap()).flags & FLAG_EGRESS
    };
    let rule = || NameRule { host: "example.org".into(), port: None, tcp: false, rule: 0 };
    assert_eq!(flags(Names { rules: vec![rule()], ..Names::default() }), FLAG_EGRESS);
    assert_eq!(flags(Names { denies: vec![rule()], ..Names::default() }), 0, "a deny alone changes nothing");
}

#[test]
fn a_policy_is_written_as_the_programs_read_it() {
    let boot = Boot::new(100);
    let mut core = boot.core();
    let id = core.create(0).unwrap();
    assert_eq!(core.generation(id), None, "a new container has no policy");
    let given = CompiledPolicy { flags: 1 << 31, ..policy(3, 2) };
    let installed = core.install(id, &given).unwrap();
    assert_eq!((installed.generation, installed.slots.len()), (1, 3));
    let index = core.policy_index(id).unwrap();
    let written = core.arrays.policy(index);
    assert_eq!((written.generation, written.record, written.initial), (1, 5, 2));
    assert_eq!(written.flags, FLAG_AUDIT | FLAG_INET | given.flags);
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
    let id = core.create(0).unwrap();
    core.install(id, &policy(50, 5)).unwrap();
    let first = core.policy_index(id).unwrap();
    assert_eq!(core.install(id, &policy(20, 3)).unwrap().generation, 2);
    assert_ne!(core.policy_index(id), Some(first));
    assert_eq!(core.arrays.table().used(), 20);
    assert_eq!(boot.net.entries.borrow().len(), 3);
    assert_eq!(core.arrays.policy(first).seed, 0);
}

#[test]
fn a_failed_first_install_leaves_nothing() {
    let boot = Boot::new(4);
    let mut core = boot.core();
    let (other, id) = (core.create(0).unwrap(), core.create(0).unwrap());
    core.install(other, &policy(10, 2)).unwrap();
    let error = core.install(id, &policy(10, 9)).unwrap_err();
    assert!(matches!(error, PolicyError::NetFull { rules: 9, .. }), "{error}");
    let error = core.install(id, &policy(SLOTS, 0)).unwrap_err();
    assert!(matches!(error, PolicyError::TableFull { .. }), "{error}");
    assert_eq!(core.policy_index(id), None);
    assert_eq!((core.arrays.table().used(), boot.net.entries.borrow().len()), (10, 2));
}

#[test]
fn a_hundred_thousand_rules_fit() {
    let boot = Boot::new(0);
    let mut core = boot.core();
    let id = core.create(0).unwrap();
    assert_eq!(core.install(id, &policy(100_000, 0)).unwrap().slots.len(), 100_000);
}

#[test]
fn release_frees_everything_and_the_id_is_gone() {
    let boot = Boot::new(100);
    let mut core = boot.core();
    let (one, two) = (core.create(0).unwrap(), core.create(0).unwrap());
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
    let three = core.create(0).unwrap();
    assert_ne!(three, one, "an index is reused, an id is not");
}

#[test]
fn the_next_core_takes_over_and_frees_what_was_left_half_done() {
    let boot = Boot::new(100);
    let (kept, half) = {
        let mut core = boot.core();
        let kept = core.create(0).unwrap();
        core.install(kept, &policy(30, 4)).unwrap();
        // Killed after the rules were written and before the container named them ...
        core.place(100, &policy(12, 0), None, root()).unwrap();
        // ... or after the record was written ...
        let (seed, _) = core.place(101, &policy(9, 0), None, root()).unwrap();
        core.place_nets(101, seed, &policy(0, 3)).unwrap();
        core.arrays.set_policy(101, &Policy { seed, generation: 1, ..Policy::NONE });
        // ... or in the middle of the network rules.
        core.place_nets(102, 77, &policy(0, 2)).unwrap();
        let half = core.create(0).unwrap();
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
        core.create(0).unwrap();
    }
    assert!(matches!(core.create(0), Err(PolicyError::TooManyContainers)));
}

/// Which ports of `::1` a container is granted.
fn granted(core: &Policies<Trie>, id: ContainerId) -> Vec<u16> {
    let seed = core.policy_index(id).map_or(0, |index| core.arrays.policy(index).seed);
    let entries = core.net.entries.borrow();
    let own = entries.keys().filter(|key| key.seed() == seed);
    let mut ports: Vec<u16> = own.map(|key| u16::from_be_bytes([key.bytes[8], key.bytes[9]])).collect();
    ports.sort_unstable();
    ports
}

#[test]
fn one_user_who_takes_all_they_may_leaves_the_others_and_their_own_reloads_room() {
    let boot = Boot::new(ringfence_common::net::MAX_NETS);
    let mut core = boot.core();
    // One user asks for 4,000 addresses again and again.
    let mut own = Vec::new();
    let error = loop {
        let id = core.create(1000).unwrap();
        match core.install(id, &policy(3, 4000)) {
            Ok(_) => own.push(id),
            Err(error) => {
                core.release(id).unwrap();
                break error;
            }
        }
        assert!(own.len() < 20, "there is no share");
    };
    let text = error.to_string();
    assert!(text.contains("its 4000 network rules") && text.contains("user 1000"), "{text}");
    assert!(text.contains("8192") && text.contains("merge addresses"), "{text}");
    assert_eq!(own.len(), 2);
    // Root, and another user, have room.
    for owner in [0, 1001] {
        let id = core.create(owner).unwrap();
        assert_eq!(core.install(id, &policy(3, 4000)).unwrap().generation, 1);
        assert_eq!(granted(&core, id).len(), 4000);
    }
    // A reload of theirs that narrows is in force; one that takes more than they may is not, and neither is the old.
    let narrowed = core.install(own[0], &policy(3, 10)).unwrap();
    assert!((narrowed.generation, narrowed.interrupted) == (2, false));
    assert_eq!(granted(&core, own[0]), (1..=10).collect::<Vec<_>>());
    let enforced = |nets| CompiledPolicy { audit_mode: false, ..policy(3, nets) };
    let error = core.install(own[0], &enforced(5000)).unwrap_err();
    assert!(matches!(error, PolicyError::Shut { generation: 3, .. }), "{error}");
    assert!(granted(&core, own[0]).is_empty());
    let shut = core.arrays.policy(core.policy_index(own[0]).unwrap());
    assert_eq!((shut.initial, shut.flags, shut.generation), (0, 0, 3), "everything is denied");
    assert_eq!(core.install(own[0], &enforced(20)).unwrap().generation, 4, "until it fits again");

    // Over paths likewise, in slots of the table.
    let error = core.install(own[1], &policy(share::Kind::Slots.of_user() + 1, 0)).unwrap_err();
    assert!(matches!(error, PolicyError::Shut { .. }), "{error}");
    let roots = core.create(0).unwrap();
    assert!(core.install(roots, &policy(share::Kind::Slots.of_user() + 1, 0)).is_ok());
    // And a core that takes over knows whose everything is.
    let mut next = boot.core();
    let id = next.create(1000).unwrap();
    assert!(next.install(id, &policy(1, 8100)).is_ok());
    let id = next.create(1000).unwrap();
    assert!(matches!(next.install(id, &policy(1, 100)), Err(PolicyError::Share { .. })));
}

#[test]
fn a_policy_that_narrows_replaces_the_old_where_there_is_no_room_beside_it() {
    let boot = Boot::new(30);
    let mut core = boot.core();
    let (one, other) = (core.create(1000).unwrap(), core.create(0).unwrap());
    core.install(one, &policy(40, 20)).unwrap();
    core.install(other, &policy(40, 10)).unwrap();
    // No slot is free in the whole table.
    for owner in core.arrays.owners.iter().filter(|owner| owner.load(Ordering::Relaxed) == 0) {
        owner.store(5000, Ordering::Relaxed);
    }
    let narrowed = core.install(one, &policy(39, 19)).unwrap();
    assert!(narrowed.interrupted);
    assert_eq!((narrowed.generation, narrowed.slots.len()), (3, 39), "2 denied everything");
    assert_eq!((granted(&core, one).len(), granted(&core, other).len()), (19, 10));
    // What grows finds no room, and leaves nothing wider in force.
    let error = core.install(one, &policy(39, 21)).unwrap_err();
    assert!(matches!(error, PolicyError::Shut { generation: 4, .. }), "{error}");
    assert_eq!((granted(&core, one).len(), granted(&core, other).len()), (0, 10));
    // In audit mode nothing is denied, so neither while nothing fits.
    let audit = core.arrays.policy(core.policy_index(one).unwrap());
    assert_eq!((audit.flags, policy(0, 0).audit_mode), (FLAG_AUDIT, true));
}

#[test]
fn an_index_whose_tasks_live_is_not_used_again_and_neither_is_their_owner_s() {
    let boot = Boot::new(10);
    let mut core = boot.core();
    let first = core.create(1000).unwrap();
    core.pretend_tasks(first, 2);
    core.release(first).unwrap();
    let second = core.create(1001).unwrap();
    assert_ne!(first.index(), second.index());
    let owner = |id: ContainerId| core.arrays.counter(id.index(), OWNER).load(Ordering::Relaxed);
    assert_ne!(owner(first), owner(second));
    assert_eq!((core.owner(second), core.owner_index(1001).unwrap()), (1001, owner(second)));
    assert_eq!(core.owner_index(0).unwrap(), OWNER_ROOT);
}

mod laws {
    use super::*;
    use proptest::prelude::*;

    /// What is done to one of a few containers.
    #[derive(Debug, Clone)]
    enum Step {
        /// A new one, or another policy: so many rules.
        Install(usize, u16),
        Release(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            4 => (0..5usize, 0..25u16).prop_map(|(which, nets)| Step::Install(which, nets)),
            1 => (0..5usize).prop_map(Step::Release),
        ];
        prop::collection::vec(step, 1..14)
    }

    proptest! {
        // Each change waits for a grace period of the real kernel.
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn whatever_came_before_narrowing_has_room_and_nobody_else_notices(steps in steps()) {
            let boot = Boot::new(40);
            let mut core = boot.core();
            let mut held: HashMap<usize, (ContainerId, u16)> = HashMap::new();
            for step in steps {
                match step {
                    Step::Release(which) => {
                        if let Some((id, _)) = held.remove(&which) {
                            core.release(id).unwrap();
                        }
                    }
                    Step::Install(which, nets) => {
                        let before = held.get(&which).copied();
                        let id = match before {
                            Some((id, _)) => id,
                            None => core.create(which as u32).unwrap(),
                        };
                        match (core.install(id, &policy(2, nets)), before) {
                            (Ok(_), _) => drop(held.insert(which, (id, nets))),
                            (Err(PolicyError::Shut { .. }), Some((_, old))) => {
                                prop_assert!(nets > old, "{nets} rules found no room where {old} were");
                                held.insert(which, (id, 0));
                            }
                            (Err(PolicyError::NetFull { .. }), None) => drop(core.release(id)),
                            (Err(error), _) => prop_assert!(false, "{error}"),
                        }
                    }
                }
                for (id, nets) in held.values() {
                    prop_assert_eq!(granted(&core, *id), (1..=*nets).collect::<Vec<_>>());
                }
                let all: usize = held.values().map(|(_, nets)| usize::from(*nets)).sum();
                prop_assert_eq!(core.net.entries.borrow().len(), all, "nothing is left behind");
            }
        }
    }
}
