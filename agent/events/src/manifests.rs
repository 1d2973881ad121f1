//! Which rule a record's slot or index stands for: the manifests the core sent, the last few per container.

use super::decode::Decoded;
use ringfence_common::event::{rule, verdict};
use ringfence_wire::{
    audit::{Manifest, Slot},
    event::RuleText,
};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

/// Policies kept per container: the present one and what records still on the way may name.
const KEEP: usize = 3;
/// Rules kept in all. The kernel's table has 2^19 slots, so live policies stay below.
const MAX_RULES: usize = 600_000;
/// How long an ended container's manifest is kept for its last records.
const LINGER: Duration = Duration::from_secs(60);

/// What decided an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decider {
    /// A rule.
    Rule(Arc<RuleText>),
    /// No rule allows it.
    Default,
    /// The axis's scope is `all`.
    All,
    /// `ringfence_common::event::fixed`.
    Fixed(u32),
    /// A rule of a policy whose manifest is not here (any more).
    Unknown,
}

/// Who a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Public id.
    pub public: String,
    /// Profile.
    pub profile: String,
    /// Who enrolled it.
    pub uid: u32,
    /// Enrolled when, µs since 1970.
    pub created: i64,
}

#[derive(Debug)]
struct Known {
    identity: Arc<Identity>,
    ended: Option<Instant>,
    policies: VecDeque<Policy>,
}

#[derive(Debug)]
struct Policy {
    generation: u32,
    rules: Vec<Arc<RuleText>>,
    slots: HashMap<u32, Slot>,
    whole: bool,
}

/// All manifests in memory.
#[derive(Debug, Default)]
pub struct Manifests {
    containers: HashMap<u64, Known>,
    rules: usize,
}

impl Manifests {
    /// Takes in a manifest or the next part of one. A whole one sent again replaces what was there.
    pub fn add(&mut self, manifest: Manifest) {
        self.sweep();
        let Manifest { container, public, profile, uid, created, generation, rules, slots, more } = manifest;
        let identity = Arc::new(Identity { public, profile, uid, created });
        let known = self.containers.entry(container).or_insert_with(|| Known {
            identity: Arc::clone(&identity),
            ended: None,
            policies: VecDeque::new(),
        });
        known.identity = identity;
        if let Some(old) = known.policies.iter().position(|p| p.generation == generation && p.whole) {
            self.rules -= known.policies.remove(old).map_or(0, |p| p.rules.len());
        }
        if known.policies.back().is_none_or(|p| p.generation != generation) {
            let policy = Policy { generation, rules: Vec::new(), slots: HashMap::new(), whole: false };
            known.policies.push_back(policy);
        }
        if known.policies.len() > KEEP {
            self.rules -= known.policies.pop_front().map_or(0, |p| p.rules.len());
        }
        let Some(policy) = known.policies.back_mut() else { return };
        policy.whole = !more;
        if self.rules + rules.len() <= MAX_RULES {
            self.rules += rules.len();
            policy.rules.extend(rules.into_iter().map(Arc::new));
            policy.slots.extend(slots.into_iter().map(|s| (s.slot, s)));
        }
    }

    /// A container's last task is gone.
    pub fn ended(&mut self, container: u64) {
        if let Some(known) = self.containers.get_mut(&container) {
            known.ended = Some(Instant::now());
        }
        self.sweep();
    }

    /// Who a container is; `None` if no manifest named it.
    pub fn identity(&self, container: u64) -> Option<Arc<Identity>> {
        self.containers.get(&container).map(|k| Arc::clone(&k.identity))
    }

    /// What decided a record.
    pub fn decider(&self, record: &Decoded) -> Decider {
        let policy = || {
            let known = self.containers.get(&record.container)?;
            known.policies.iter().rev().find(|p| p.generation == record.generation)
        };
        let named = |policy: &Policy, index: u32| {
            policy.rules.get(index as usize).map_or(Decider::Unknown, |r| Decider::Rule(Arc::clone(r)))
        };
        match record.rule_kind {
            rule::DEFAULT => Decider::Default,
            rule::ALL => Decider::All,
            rule::FIXED => Decider::Fixed(record.rule),
            rule::INDEX => policy().map_or(Decider::Unknown, |p| named(p, record.rule)),
            rule::SLOT => policy()
                .and_then(|p| {
                    let index = slot_rule(p.slots.get(&record.rule)?, record)?;
                    Some(named(p, index))
                })
                .unwrap_or(Decider::Unknown),
            _ => Decider::Unknown,
        }
    }

    /// The rule of this number in one of a container's policies that `fits`, the newest first, and that policy's generation: of what
    /// somebody else says, who does not know the generation. Without a number, or where none fits, nothing decided that is known.
    pub fn named(
        &self,
        container: u64,
        index: Option<u32>,
        fits: impl Fn(&RuleText) -> bool,
    ) -> (Option<Arc<RuleText>>, u32) {
        let policies =
            || self.containers.get(&container).into_iter().flat_map(|known| known.policies.iter().rev());
        let newest = policies().next().map_or(0, |policy| policy.generation);
        let found = index.and_then(|index| {
            policies().find_map(|policy| {
                let rule = policy.rules.get(index as usize).filter(|rule| fits(rule))?;
                Some((Some(Arc::clone(rule)), policy.generation))
            })
        });
        found.unwrap_or((None, newest))
    }

    fn sweep(&mut self) {
        let rules = &mut self.rules;
        self.containers.retain(|_, known| {
            let keep = known.ended.is_none_or(|at| at.elapsed() < LINGER);
            if !keep {
                *rules -= known.policies.iter().map(|p| p.rules.len()).sum::<usize>();
            }
            keep
        });
    }
}

/// The rule of a slot that explains a verdict: for a denial, a deny of an axis that was asked for, else the end of an
/// inherited allow; for an allowed event, the allow of the first axis that was asked for.
fn slot_rule(slot: &Slot, record: &Decoded) -> Option<u32> {
    let asked = |rules: &[Option<u32>; 5]| {
        rules.iter().enumerate().find_map(|(bit, r)| r.filter(|_| record.axes & (1 << bit) != 0))
    };
    if record.verdict == verdict::ALLOWED {
        asked(&slot.allow)
    } else {
        asked(&slot.deny).or(slot.reset).or_else(|| slot.deny.iter().find_map(|r| *r))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;
    use ringfence_common::policy::axis;

    fn text(id: &str) -> RuleText {
        RuleText { id: id.into(), file: None, line: 0, key: String::new(), text: String::new() }
    }

    fn manifest(generation: u32, ids: &[&str]) -> Manifest {
        Manifest {
            container: 0x1005,
            public: "0123456789ab".into(),
            profile: "coder".into(),
            uid: 1000,
            created: 0,
            generation,
            rules: ids.iter().map(|id| text(id)).collect(),
            slots: vec![Slot {
                slot: 80,
                allow: [Some(0), None, None, None, None],
                deny: [None, Some(1), None, None, None],
                reset: Some(2),
            }],
            more: false,
        }
    }

    fn asked(generation: u32, verdict: u8, kind: u32, rule: u32, axes: u16) -> Decoded {
        Decoded { generation, verdict, rule_kind: kind, rule, axes: axes.into(), ..samples::decoded() }
    }

    fn id(manifests: &Manifests, record: &Decoded) -> String {
        match manifests.decider(record) {
            Decider::Rule(rule) => rule.id.clone(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_slot_names_its_rule_by_verdict_and_axis() {
        let mut all = Manifests::default();
        all.add(manifest(1, &["allow-read", "deny-write", "protected"]));
        let name = |v, axes| id(&all, &asked(1, v, rule::SLOT, 80, axes));
        assert_eq!(name(verdict::ALLOWED, axis::READ), "allow-read");
        assert_eq!(name(verdict::DENIED, axis::READ | axis::WRITE), "deny-write");
        assert_eq!(name(verdict::WOULD_DENY, axis::WRITE), "deny-write");
        assert_eq!(name(verdict::DENIED, axis::READ), "protected");
        assert_eq!(name(verdict::ALLOWED, axis::EXEC), "Unknown");
        assert_eq!(id(&all, &asked(1, verdict::DENIED, rule::SLOT, 81, axis::READ)), "Unknown");
        assert_eq!(id(&all, &asked(1, verdict::DENIED, rule::INDEX, 1, 0)), "deny-write");
        assert_eq!(id(&all, &asked(1, verdict::DENIED, rule::INDEX, 9, 0)), "Unknown");
        assert_eq!(id(&all, &asked(2, verdict::DENIED, rule::INDEX, 1, 0)), "Unknown");
        assert_eq!(id(&all, &asked(1, verdict::DENIED, rule::FIXED, 6, 0)), "Fixed(6)");
    }

    #[test]
    fn old_generations_stay_for_a_while() {
        let mut all = Manifests::default();
        for generation in 1..=4 {
            all.add(manifest(generation, &[&format!("g{generation}"), "b", "c"]));
        }
        let name = |g| id(&all, &asked(g, verdict::DENIED, rule::INDEX, 0, 0));
        assert_eq!([name(1), name(2), name(4)], ["Unknown", "g2", "g4"]);
        assert_eq!(all.rules, 3 * KEEP);
    }

    #[test]
    fn parts_are_appended_and_a_whole_one_sent_again_replaces() {
        let mut all = Manifests::default();
        for _ in 0..2 {
            all.add(Manifest { more: true, ..manifest(1, &["a", "b"]) });
            all.add(manifest(1, &["c"]));
        }
        assert_eq!(id(&all, &asked(1, verdict::DENIED, rule::INDEX, 2, 0)), "c");
        assert_eq!(all.rules, 3);
    }
}
