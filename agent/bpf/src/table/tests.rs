//! The table in memory of this process, read as the programs read it.

use super::*;
use crate::tests::{policy, rule};
use proptest::prelude::*;
use ringfence_policy::decide::Decider;

const KEYS: Keys = Keys { k0: 0x9a3c_51f7_0d2e_8b61, k1: 0xd6e8_feb8_6659_fd93, k2: 0xa076_1d64_78bd_642f };

struct Memory(Vec<AtomicU64>, Vec<AtomicU16>);

impl Memory {
    fn new() -> Self {
        Self((0..SLOTS).map(|_| AtomicU64::new(0)).collect(), (0..SLOTS).map(|_| AtomicU16::new(0)).collect())
    }
    fn table(&self) -> RuleTable<'_> {
        RuleTable { slots: &self.0, owners: &self.1 }
    }
}

#[test]
fn the_same_text_is_filed_elsewhere_for_each_kind_of_place() {
    let text = || b".pem".to_vec();
    let places = [
        Place::Path(b"/.pem".to_vec()),
        Place::Name(text()),
        Place::Prefix(text()),
        Place::Suffix(text()),
        Place::Abstract(text()),
    ];
    let prefixes: std::collections::BTreeSet<u64> = places.iter().map(|p| prefix_of(&KEYS, 7, p)).collect();
    assert_eq!(prefixes.len(), places.len());
    let of = |seed| hash::descend(&KEYS, seed, hash::component(&KEYS, b".pem"));
    assert_eq!(prefix_of(&KEYS, 7, &places[2]), of(hash::prefix_seed(7)));
    assert_eq!(prefix_of(&KEYS, 7, &places[3]), of(hash::suffix_seed(7)));
}

fn path(text: &str) -> Place {
    Place::Path(text.into())
}

/// What the walker does, in plain words: from the root down, a lookup of the prefix and, with name rules, of the
/// component alone.
fn lookup(table: RuleTable<'_>, seed: u64, initial: u16, target: &[u8]) -> (u16, u16) {
    let (mut allow, mut deny) = (initial, 0);
    let components: Vec<_> = target.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
    let mut apply = |prefix: u64, below: usize| {
        let first = bucket_of(prefix) * BUCKET_SLOTS;
        for at in first..first + BUCKET_SLOTS {
            let value = table.slots[at].load(Ordering::Relaxed);
            if value == 0 {
                break;
            }
            if (value ^ slot(prefix, 0)) >> 16 != 0 {
                continue;
            }
            let found = value as u16;
            let here = match found & bits::KIND_MASK {
                bits::KIND_TREE => true,
                bits::KIND_BELOW => below > 0,
                bits::KIND_CHILDREN => below == 1,
                _ => below == 0,
            };
            if !here {
                continue;
            }
            for (bit, axes) in [
                (bits::RESET_READ, axis::READ),
                (bits::RESET_WRITE, axis::WRITE),
                (bits::RESET_EXEC, axis::EXEC | axis::MAP),
                (bits::RESET_UNIX, axis::UNIX),
            ] {
                if found & bit != 0 {
                    allow &= !axes;
                }
            }
            allow |= found >> bits::ALLOW_SHIFT & axis::ALL;
            deny |= found >> bits::DENY_SHIFT & axis::ALL;
        }
    };
    apply(seed, components.len());
    let mut prefix = seed;
    for (depth, component) in components.iter().enumerate() {
        let below = components.len() - depth - 1;
        let hash = hash::component(&KEYS, component);
        prefix = hash::descend(&KEYS, prefix, hash);
        apply(hash::descend(&KEYS, hash::name_seed(seed), hash), below);
        apply(prefix, below);
    }
    (allow, deny)
}

fn put(table: RuleTable<'_>, owner: u16, seed: u64, rules: &[PlaceRule]) -> Result<Vec<u32>, BucketFull> {
    table.insert(owner, entries(&KEYS, seed, rules).into_iter().map(|filed| filed.entry))
}

#[test]
fn what_denies_or_takes_back_is_there_in_lower_case_and_what_allows_is_not() {
    let memory = Memory::new();
    let table = memory.table();
    let rules = [
        rule(path("/Srv"), Kind::Tree, axis::READ, 0, 0),
        rule(path("/Srv/Secret"), Kind::Below, axis::EXEC, axis::READ, 0),
        rule(Place::Name(b".ENV".to_vec()), Kind::Tree, 0, axis::WRITE, 0),
        rule(path("/srv/Own"), Kind::Tree, 0, 0, axis::READ),
        rule(Place::Suffix(b".Pem".to_vec()), Kind::Tree, 0, axis::READ, 0),
    ];
    put(table, 1, 7, &rules).unwrap();
    let folded = folded_seed(7);
    assert_eq!(lookup(table, folded, axis::ALL, b"/srv"), (axis::ALL, 0));
    assert_eq!(lookup(table, folded, 0, b"/srv/secret/x"), (0, axis::READ));
    assert_eq!(lookup(table, folded, 0, b"/srv/secret"), (0, 0));
    assert_eq!(lookup(table, folded, 0, b"/a/.env/b"), (0, axis::WRITE));
    assert_eq!(lookup(table, folded, axis::ALL, b"/srv/own"), (axis::ALL & !axis::READ, 0));
    assert_eq!(lookup(table, 7, 0, b"/srv/secret/x"), (0, 0));
    let found = crate::spellings::patterns(&rules);
    assert_eq!(found.lengths, 1 << (32 + 4));
    for end in [b"em", b"EM"] {
        assert_eq!(found.may_match(0, u16::from_le_bytes(*end)), end == b"em");
    }
}

#[test]
fn the_deepest_allow_and_any_deny_are_found() {
    let memory = Memory::new();
    let table = memory.table();
    let rules = [
        rule(path("/srv"), Kind::Tree, axis::READ, 0, 0),
        rule(path("/srv/secret"), Kind::Tree, 0, axis::READ, 0),
        rule(Place::Name(b".env".to_vec()), Kind::Tree, 0, axis::READ, 0),
        rule(path("/opt"), Kind::Children, axis::READ, 0, 0),
    ];
    put(table, 1, 7, &rules).unwrap();
    assert_eq!(lookup(table, 7, 0, b"/srv/a/b"), (axis::READ, 0));
    assert_eq!(lookup(table, 7, 0, b"/srv/secret/x"), (axis::READ, axis::READ));
    assert_eq!(lookup(table, 7, 0, b"/srv/secrets"), (axis::READ, 0));
    assert_eq!(lookup(table, 7, 0, b"/srv/a/.env"), (axis::READ, axis::READ));
    assert_eq!(lookup(table, 7, 0, b"/opt/a"), (axis::READ, 0));
    assert_eq!(lookup(table, 7, 0, b"/opt/a/b"), (0, 0));
    assert_eq!(lookup(table, 7, 0, b"/opt"), (0, 0));
    // Another policy sees none of it.
    assert_eq!(lookup(table, 8, 0, b"/srv/secret/x"), (0, 0));
}

#[test]
fn an_allow_at_a_protected_place_survives_its_reset_in_either_order() {
    for flip in [false, true] {
        let memory = Memory::new();
        let mut rules = vec![
            rule(path("/sys"), Kind::Tree, 0, 0, axis::READ | axis::WRITE),
            rule(path("/sys"), Kind::Exact, axis::READ, 0, 0),
        ];
        if flip {
            rules.reverse();
        }
        put(memory.table(), 1, 7, &rules).unwrap();
        assert_eq!(lookup(memory.table(), 7, axis::ALL, b"/sys").0 & axis::READ, axis::READ);
        assert_eq!(lookup(memory.table(), 7, axis::ALL, b"/sys/x").0 & (axis::READ | axis::WRITE), 0);
    }
}

#[test]
fn directories_above_what_rules_name_are_marked_once() {
    let rules = [
        rule(path("/home/u/p/.env"), Kind::Tree, 0, axis::READ, 0),
        rule(path("/home/u/p/key"), Kind::Tree, 0, axis::READ, 0),
        rule(path("/proc/sys"), Kind::Tree, 0, 0, axis::WRITE),
        rule(path("/srv/a/b"), Kind::Tree, axis::READ, 0, 0),
        rule(path("/home/u/notes"), Kind::Tree, axis::READ, 0, 0),
        rule(Place::Name(b".ssh".to_vec()), Kind::Tree, 0, axis::READ, 0),
        rule(path("/"), Kind::Tree, 0, axis::EXEC, 0),
    ];
    let filed = entries(&KEYS, 7, &rules);
    let mut marks: Vec<_> = filed.iter().filter(|filed| filed.mark).map(|filed| filed.entry).collect();
    marks.sort_by_key(|entry| entry.prefix);
    let mark =
        |text: &str, below: u16| Entry { prefix: hash::mark(prefix_of(&KEYS, 7, &path(text))), bits: below };
    let (denies, grants) = (marks::DENIES_BELOW, marks::GRANTS_BELOW);
    let mut wanted = [
        mark("/home", denies | grants),
        mark("/home/u", denies | grants),
        mark("/home/u/p", denies),
        mark("/proc", denies),
        mark("/srv", grants),
        mark("/srv/a", grants),
    ];
    wanted.sort_by_key(|entry| entry.prefix);
    assert_eq!(marks, wanted);
    let in_lower_case = rules.iter().filter(|rule| rule.deny | rule.reset != 0).count();
    assert_eq!(filed.len(), rules.len() + in_lower_case + wanted.len());
    let named = |text: &str| {
        let prefix = hash::mark(prefix_of(&KEYS, 7, &path(text)));
        filed.iter().find(|filed| filed.mark && filed.entry.prefix == prefix).unwrap().rule
    };
    assert_eq!((named("/home/u"), named("/srv/a")), (0, 3));
}

#[test]
fn removal_leaves_other_owners_and_no_tombstone_at_a_buckets_end() {
    let memory = Memory::new();
    let table = memory.table();
    let rules: Vec<_> =
        (0..500).map(|n| rule(path(&format!("/r{n}")), Kind::Tree, axis::READ, 0, 0)).collect();
    put(table, 1, 7, &rules).unwrap();
    put(table, 2, 8, &rules).unwrap();
    assert_eq!(table.retain(|owner| owner != 1), 500);
    assert_eq!(table.used(), 500);
    assert_eq!(lookup(table, 7, 0, b"/r1"), (0, 0));
    assert_eq!(lookup(table, 8, 0, b"/r1"), (axis::READ, 0));
    assert_eq!(table.retain(|owner| owner != 2), 500);
    assert!(table.slots.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));
}

#[test]
fn a_full_bucket_takes_back_what_was_placed() {
    let memory = Memory::new();
    let table = memory.table();
    let same = Entry { prefix: 5 << 48 | 77, bits: 1 };
    assert_eq!(
        table.insert(1, std::iter::repeat_n(same, BUCKET_SLOTS + 1)),
        Err(BucketFull { placed: BUCKET_SLOTS })
    );
    assert_eq!(table.used(), 0);
    assert_eq!(table.insert(1, std::iter::repeat_n(same, BUCKET_SLOTS)).unwrap().len(), BUCKET_SLOTS);
}

#[test]
fn hashes_that_look_empty_or_removed_are_refused() {
    let memory = Memory::new();
    assert!(memory.table().insert(1, std::iter::once(Entry { prefix: 0, bits: 0 })).is_err());
    assert!(memory.table().insert(1, std::iter::once(Entry { prefix: 1, bits: 1 })).is_err());
}

fn naive(rules: &[PlaceRule], target: &[u8]) -> (u16, u16) {
    // Every rule whose place is a prefix of the target, outermost first; resets before allows at one place.
    let components: Vec<&[u8]> = target.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
    let (mut allow, mut deny) = (0, 0);
    for depth in 0..=components.len() {
        let below = components.len() - depth;
        let here: Vec<_> = rules
            .iter()
            .filter(|rule| match &rule.place {
                Place::Path(path) => {
                    let place: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
                    place == components[..depth]
                }
                Place::Name(name) => depth > 0 && components[depth - 1] == name,
                Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => false,
            })
            .filter(|rule| match rule.kind {
                Kind::Tree => true,
                Kind::Below => below > 0,
                Kind::Children => below == 1,
                Kind::Exact => below == 0,
            })
            .collect();
        // Names first, then the path: as the walker does.
        for names in [true, false] {
            let group = || here.iter().filter(|r| matches!(r.place, Place::Name(_)) == names);
            for rule in group() {
                allow &= !rule.reset;
            }
            for rule in group() {
                allow |= rule.allow;
                deny |= rule.deny;
            }
        }
    }
    (allow, deny)
}

fn any_rule() -> impl Strategy<Value = PlaceRule> {
    let component = prop_oneof![Just("a"), Just("b"), Just("bb"), Just("c")];
    let place = prop_oneof![
        4 => prop::collection::vec(component.clone(), 0..4).prop_map(|c| path(&format!("/{}", c.join("/")))),
        1 => component.prop_map(|c| Place::Name(c.into())),
    ];
    let kind = prop_oneof![Just(Kind::Tree), Just(Kind::Below), Just(Kind::Children), Just(Kind::Exact)];
    let reset = prop_oneof![
        3 => Just(0),
        1 => Just(axis::READ | axis::WRITE),
        1 => Just(axis::EXEC | axis::MAP),
    ];
    (place, kind, 0..=axis::ALL, 0..=axis::ALL, reset).prop_map(|(place, kind, allow, deny, reset)| {
        // Protected places are trees: see `entries` for what two kinds with resets at one place would do.
        rule(place, if reset == 0 { kind } else { Kind::Tree }, allow, deny, reset)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_table_decides_as_the_rules_read(
        seed in 1u64..,
        mut rules in prop::collection::vec(any_rule(), 0..24),
        targets in prop::collection::vec("(/(a|b|bb|c|d)){0,5}", 20),
    ) {
        // One entry per place and kind, as `CompiledPolicy` promises.
        rules.sort_by(|x, y| (&x.place, x.kind).cmp(&(&y.place, y.kind)));
        rules.dedup_by(|x, y| (&x.place, x.kind) == (&y.place, y.kind));
        let memory = Memory::new();
        prop_assume!(put(memory.table(), 1, seed, &rules).is_ok());
        let policy = policy(0, rules.clone());
        for target in targets {
            let found = lookup(memory.table(), seed, 0, target.as_bytes());
            prop_assert_eq!(found, naive(&rules, target.as_bytes()), "{}", target);
            // `ringfence profile explain` answers from the rules what the programs read from the table.
            for axis in (0..5).map(|bit| 1 << bit) {
                let told = Decider::new(&policy).path(axis, target.as_bytes()).allowed();
                prop_assert_eq!(told, found.0 & !found.1 & axis != 0, "{} {}", target, axis);
            }
        }
    }
}
