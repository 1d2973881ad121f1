//! The rule of moves (`ringfence_common::moves`) against a naive model: random rules in the table that the programs read,
//! random moves, and every descendant's answer by both of its names, as `ringfence profile explain` gives it.

use super::rule;
use crate::table::{self, RuleTable, SLOTS};
use proptest::prelude::*;
use ringfence_common::{
    event::fixed,
    fold::{Answer, matching},
    hash::{self, Keys},
    moves::{DEPTHS, Reach, S_IFDIR, objection},
    policy::{BUCKET_SLOTS, axis, bucket_of},
};
use ringfence_policy::{
    compiled::{CompiledPolicy, Kind, Place, PlaceRule},
    decide::Decider,
};
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

const KEYS: Keys = Keys { k0: 0x9a3c_51f7_0d2e_8b61, k1: 0xd6e8_feb8_6659_fd93, k2: 0xa076_1d64_78bd_642f };
const SEED: u64 = 0x1234_5678_9abc_def1;
/// Names of directories and files. No rule names the last.
const NAMES: [&str; 4] = ["a", "ab", "b", "z"];
const REGULAR: u32 = 0o100_000;

thread_local! {
    /// A table is four megabytes: one for each thread, emptied after each use.
    static TABLE: (Vec<AtomicU64>, Vec<AtomicU16>) = (
        (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        (0..SLOTS).map(|_| AtomicU16::new(0)).collect(),
    );
}

/// A policy in the table.
struct Model<'a> {
    policy: &'a CompiledPolicy,
    table: RuleTable<'a>,
}

impl Model<'_> {
    /// Runs `check` with the policy's rules in the table.
    fn with<T>(policy: &CompiledPolicy, check: impl FnOnce(&Model<'_>) -> T) -> T {
        TABLE.with(|(slots, owners)| {
            let table = RuleTable { slots, owners };
            let entries = table::entries(&KEYS, SEED, &policy.places);
            let placed = table.insert(1, entries.into_iter().map(|filed| filed.entry)).unwrap();
            let result = check(&Model { policy, table });
            for at in placed {
                slots[at as usize].store(0, Ordering::Relaxed);
                owners[at as usize].store(0, Ordering::Relaxed);
            }
            result
        })
    }

    fn at(&self, prefix: u64, left: u64) -> u64 {
        let first = bucket_of(prefix) * BUCKET_SLOTS;
        matching(|index| self.table.slots[first + index].load(Ordering::Relaxed), prefix, left)
    }

    /// What `fold_reach` in the programs does.
    fn reach(&self, path: &str) -> Reach {
        let names: Vec<_> =
            components(path).map(|component| hash::component(&KEYS, component.as_bytes())).collect();
        let mut reach = Reach::EMPTY;
        let mut prefix = SEED;
        for further in 0..DEPTHS {
            prefix = SEED;
            let mut left = names.len() as u64 + further;
            let mut answer = Answer { allow: self.policy.initial.into(), deny: 0 };
            answer.add(self.at(prefix, left));
            answer.deny |= self.patterned(path);
            for name in &names {
                left -= 1;
                answer.add(self.at(hash::descend(&KEYS, hash::name_seed(SEED), *name), left));
                prefix = hash::descend(&KEYS, prefix, *name);
                answer.add(self.at(prefix, left));
            }
            reach = reach.with(further, answer);
        }
        reach.marked(self.at(hash::mark(prefix), 0))
    }

    /// What `match_patterns` in the programs finds: axes that patterns deny to a component, but for those that a rule grants
    /// to its whole name.
    fn patterned(&self, path: &str) -> u64 {
        let denied = |component: &str| {
            let name = hash::component(&KEYS, component.as_bytes());
            let spared = self.at(hash::descend(&KEYS, hash::name_seed(SEED), name), 0) & u64::from(axis::ALL);
            let matched = self.policy.places.iter().filter(|rule| match &rule.place {
                Place::Prefix(part) => component.as_bytes().starts_with(part),
                Place::Suffix(part) => component.as_bytes().ends_with(part),
                _ => false,
            });
            matched.fold(0, |all, rule| all | u64::from(rule.deny)) & !spared
        };
        components(path).fold(0, |all, component| all | denied(component))
    }

    fn objection(&self, old: &str, new: &str, mode: u32) -> u32 {
        objection(self.reach(old), self.reach(new), mode).0
    }
}

fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty())
}

/// What may be below a directory: nothing, and every chain of up to three names.
fn below() -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..3 {
        last = last.iter().flat_map(|path| NAMES.map(|name| format!("{path}/{name}"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// The axes that a path has.
fn rights(decider: &Decider<'_>, path: &str) -> u16 {
    let allowed = |bit: &u16| decider.path(*bit, path.as_bytes()).allowed();
    (0..5).map(|bit| 1 << bit).filter(allowed).fold(0, |all, bit| all | bit)
}

/// A path below `old` that would gain by the move, if there is one.
fn widened(policy: &CompiledPolicy, old: &str, new: &str) -> Option<String> {
    let decider = Decider::new(policy);
    below().into_iter().find(|rest| {
        rights(&decider, &format!("{new}{rest}")) & !rights(&decider, &format!("{old}{rest}")) != 0
    })
}

fn policy(initial: u16, rules: Vec<PlaceRule>) -> CompiledPolicy {
    let mut places = rules;
    places.sort_by(|x, y| (&x.place, x.kind).cmp(&(&y.place, y.kind)));
    places.dedup_by(|x, y| (&x.place, x.kind) == (&y.place, y.kind));
    super::policy(initial, places)
}

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..3])
}

fn any_path() -> impl Strategy<Value = String> {
    prop::collection::vec(any_name(), 1..4).prop_map(|names| format!("/{}", names.join("/")))
}

fn any_axes() -> impl Strategy<Value = u16> {
    prop_oneof![2 => Just(0), 1 => prop::sample::select(vec![axis::READ, axis::WRITE, axis::UNIX, axis::EXEC | axis::MAP]), 1 => 0..=axis::ALL]
}

fn any_rule() -> impl Strategy<Value = PlaceRule> {
    let place = prop_oneof![
        5 => any_path().prop_map(|path| Place::Path(path.into())),
        1 => Just(Place::Path(b"/".to_vec())),
        2 => any_name().prop_map(|name| Place::Name(name.into())),
        1 => prop::sample::select(vec!["a", "b", "ab"]).prop_map(|part| Place::Prefix(part.into())),
        1 => prop::sample::select(vec!["a", "b", "ab"]).prop_map(|part| Place::Suffix(part.into())),
    ];
    let kind = prop::sample::select(vec![Kind::Tree, Kind::Below, Kind::Children, Kind::Exact]);
    let reset = prop_oneof![
        4 => Just(0),
        1 => prop::sample::select(vec![axis::READ | axis::WRITE, axis::EXEC | axis::MAP, axis::UNIX]),
    ];
    (place, kind, any_axes(), any_axes(), reset).prop_map(|(place, kind, allow, deny, reset)| {
        // Only trees reset (see `table::entries`) and are filed under a name, and patterns are denied trees.
        match place {
            Place::Prefix(_) | Place::Suffix(_) => rule(place, Kind::Tree, 0, deny, 0),
            Place::Name(_) => rule(place, Kind::Tree, allow, deny, reset),
            _ => rule(place, if reset == 0 { kind } else { Kind::Tree }, allow, deny, reset),
        }
    })
}

proptest! {
    #![proptest_config(ringfence_test_support::properties::config(400))]

    #[test]
    fn no_move_gives_anything_below_a_directory_what_it_had_not(
        initial in prop_oneof![3 => Just(axis::READ | axis::WRITE), 1 => 0..=axis::ALL],
        rules in prop::collection::vec(any_rule(), 0..7),
        moves in prop::collection::vec((any_path(), any_path()), 12),
    ) {
        let policy = policy(initial, rules);
        Model::with(&policy, |model| {
            for (old, new) in moves {
                // A directory is not moved into itself.
                if old == new || new.starts_with(&format!("{old}/")) {
                    continue;
                }
                let refused = model.objection(&old, &new, S_IFDIR) != 0;
                if let Some(rest) = widened(&policy, &old, &new) {
                    prop_assert!(refused, "{} to {} widens {:?}: {:?}", old, new, rest, policy.places);
                }
                // The same for one file, whose type can use every axis.
                let decider = Decider::new(&policy);
                let gains = rights(&decider, &new) & !rights(&decider, &old) != 0;
                if gains {
                    prop_assert!(model.objection(&old, &new, 0o140_000) != 0, "{} to {}", old, new);
                }
            }
            Ok(())
        })?;
    }

    /// The other direction: what is refused either widens, or is above a rule.
    #[test]
    fn a_move_that_widens_nothing_is_refused_only_next_to_a_rule(
        initial in 0..=axis::ALL,
        rules in prop::collection::vec(any_rule(), 0..5),
        old in any_path(),
        new in any_path(),
    ) {
        prop_assume!(old != new && !new.starts_with(&format!("{old}/")));
        let policy = policy(initial, rules);
        let above = |path: &str, rule: &PlaceRule, axes: u16| {
            axes != 0 && matches!(&rule.place, Place::Path(place) if place.starts_with(format!("{path}/").as_bytes()))
        };
        let named = policy.places.iter().any(|rule| {
            above(&old, rule, rule.deny | rule.reset) || above(&new, rule, rule.allow)
        });
        // A denial that something else makes good again today, and would not at the new place, counts as well.
        let denied = policy.places.iter().any(|rule| rule.deny != 0);
        Model::with(&policy, |model| {
            if model.objection(&old, &new, S_IFDIR) != 0 && !named && !denied {
                prop_assert!(widened(&policy, &old, &new).is_some(), "{} to {}: {:?}", old, new, policy.places);
            }
            Ok(())
        })?;
    }

    #[test]
    fn within_one_granted_tree_everything_moves(
        names in prop::collection::vec(any_rule(), 0..4),
        elsewhere in prop::collection::vec(any_rule(), 0..4),
        old in any_path(),
        new in any_path(),
    ) {
        prop_assume!(old != new && !new.starts_with(&format!("{old}/")));
        // Rules by name that the moved directory's path does not have, rules by path in another tree.
        let mut rules = vec![rule(Place::Path(b"/tree".to_vec()), Kind::Tree, axis::ALL, 0, 0)];
        rules.extend(names.into_iter().map(|one| PlaceRule { place: Place::Name(b"z".to_vec()), ..one }));
        rules.extend(elsewhere.into_iter().map(|one| match &one.place {
            Place::Path(path) => PlaceRule { place: Place::Path([b"/other", &path[..]].concat()), ..one },
            _ => PlaceRule { place: Place::Path(b"/other".to_vec()), ..one },
        }));
        let policy = policy(0, rules);
        Model::with(&policy, |model| {
            let (old, new) = (format!("/tree{old}"), format!("/tree{new}"));
            for mode in [S_IFDIR, REGULAR, 0o140_000] {
                prop_assert_eq!(model.objection(&old, &new, mode), 0, "{} to {}", old, new);
            }
            Ok(())
        })?;
    }
}

/// Attacks that were seen, and what is next to them.
#[test]
fn known_moves() {
    use axis::{EXEC, MAP, READ, UNIX, WRITE};
    let tree = |path: &str, allow, deny| rule(Place::Path(path.into()), Kind::Tree, allow, deny, 0);
    let of = |path: &str, kind, allow, deny| rule(Place::Path(path.into()), kind, allow, deny, 0);
    let named = |name: &str, allow, deny| rule(Place::Name(name.into()), Kind::Tree, allow, deny, 0);
    let base = || tree("/a", READ | WRITE, 0);
    let cases = [
        // Children rules apply one level down.
        (vec![base(), of("/a/d", Kind::Children, 0, READ)], "/a/d", "/a/e", fixed::WIDENS),
        (vec![base(), of("/a/d", Kind::Below, 0, READ)], "/a/d", "/a/e", fixed::WIDENS),
        (vec![base(), of("/a/d", Kind::Children, 0, READ)], "/a/e", "/a/d", 0),
        // Sockets and programs below the moved directory.
        (vec![base(), of("/a/s", Kind::Children, UNIX, 0)], "/a/d", "/a/s", fixed::WIDENS),
        (vec![base(), of("/a/s", Kind::Below, UNIX, 0)], "/a/d", "/a/s/d", fixed::WIDENS),
        (vec![base(), of("/a/bin", Kind::Below, EXEC | MAP, 0)], "/a/d", "/a/bin", fixed::WIDENS),
        (vec![base(), tree("/a/bin", EXEC | MAP, 0)], "/a/bin", "/a/d", 0),
        // A rule below the new place, a denial below the old one.
        (vec![base(), tree("/a/s/x/sock", UNIX, 0)], "/a/d", "/a/s", fixed::WIDENS),
        (vec![base(), tree("/a/s/x/sock", UNIX, 0)], "/a/s", "/a/d", 0),
        (vec![base(), tree("/a/d/x/key", 0, READ)], "/a/d", "/a/e", fixed::PINNED),
        (vec![base(), tree("/a/d/x/key", 0, READ)], "/a/e", "/a/d", 0),
        // The moved directory's own name.
        (vec![base(), named("secret", 0, READ)], "/a/secret", "/a/plain", fixed::WIDENS),
        (vec![base(), named("secret", 0, READ)], "/a/secret", "/a/x/secret", 0),
        (vec![base(), named("secret", 0, READ)], "/a/plain", "/a/secret", 0),
        (vec![base(), named("tools", EXEC, 0)], "/a/plain", "/a/tools", fixed::WIDENS),
    ];
    for (rules, old, new, wanted) in cases {
        let policy = policy(0, rules);
        Model::with(&policy, |model| {
            assert_eq!(model.objection(old, new, S_IFDIR), wanted, "{old} to {new}: {:?}", policy.places);
        });
    }
}
