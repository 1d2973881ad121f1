//! A policy inside another: what both allow, what either denies.
//!
//! The result allows nothing that one of the two denies. Where the kernel's rules cannot express what both allow (a `**/NAME`
//! of one inside a directory of the other), it allows less; also where a `**/NAME` that is lost this way had exempted a name
//! from a denied pattern.

use super::{
    compiled::{CompiledPolicy, Kind, NetRule, Place, PlaceRule, RuleId, RuleSource},
    names,
    nets::{Nets, Prefix},
};
use std::collections::{BTreeMap, HashMap};

/// What `inner` and `outer` both allow; what either denies. Both must have been compiled for the same root, each with
/// its own working directory. The outer one's rules are shown as `outer:ID`.
pub fn meet(inner: &CompiledPolicy, outer: &CompiledPolicy) -> CompiledPolicy {
    let shift = RuleId::try_from(inner.rules.len()).unwrap_or(RuleId::MAX);
    let mut met = Met::default();
    met.denies_and_resets(inner, 0);
    met.denies_and_resets(outer, shift);
    let (a, b) = (Side::new(inner, 0), Side::new(outer, shift));
    met.allows_below(&a, &b);
    met.allows_below(&b, &a);
    met.patterns_of(&a);
    met.patterns_of(&b);
    let (nets, inet) = meet_nets(inner, outer, shift);
    let outer_rules = outer.rules.iter().map(|r| RuleSource { id: format!("outer:{}", r.id), ..r.clone() });
    CompiledPolicy {
        profile: inner.profile.clone(),
        audit_mode: inner.audit_mode && outer.audit_mode,
        initial: inner.initial & outer.initial,
        record: inner.record | outer.record,
        inet,
        capabilities: inner.capabilities.meet(outer.capabilities),
        flags: inner.flags & outer.flags,
        places: met.places.into_values().collect(),
        nets,
        names: names::meet(inner, outer, shift),
        rules: inner.rules.iter().cloned().chain(outer_rules).collect(),
    }
}

/// One of the two, indexed.
struct Side<'a> {
    policy: &'a CompiledPolicy,
    places: HashMap<&'a Place, Vec<&'a PlaceRule>>,
    shift: RuleId,
    /// Axes that some protected place resets.
    resets: u16,
}

impl<'a> Side<'a> {
    fn new(policy: &'a CompiledPolicy, shift: RuleId) -> Self {
        let mut places: HashMap<&Place, Vec<&PlaceRule>> = HashMap::new();
        for rule in &policy.places {
            places.entry(&rule.place).or_default().push(rule);
        }
        let resets = policy.places.iter().fold(0, |all, r| all | r.reset);
        Self { policy, places, shift, resets }
    }

    fn at(&self, place: &Place) -> &[&'a PlaceRule] {
        self.places.get(place).map_or(&[], Vec::as_slice)
    }

    /// Axes that are reset at a place itself.
    fn reset_at(&self, place: &Place) -> u16 {
        self.at(place).iter().fold(0, |all, r| all | r.reset)
    }

    /// For each of some axes: what this side allows at `path`, from `path` itself up to `initial`, as far as it
    /// reaches a rule of `kind` there. Yields kind and axes of what is common.
    fn reaching(&self, path: &[u8], kind: Kind) -> Vec<(Kind, u16)> {
        let mut found: Vec<(Kind, u16)> = Vec::new();
        // Axes that a place passed on the way up resets: what is allowed further up does not come down.
        let mut cut = 0;
        for (depth, prefix) in prefixes(path).enumerate() {
            let place = Place::Path(prefix.to_vec());
            for rule in self.at(&place) {
                if let Some(common) = common(rule.kind, depth, kind) {
                    found.push((common, rule.allow & !cut));
                }
            }
            cut |= self.reset_at(&place);
            if let Some(name) = prefix.rsplit(|b| *b == b'/').next().filter(|n| !n.is_empty()) {
                let place = Place::Name(name.to_vec());
                found.extend(self.at(&place).iter().map(|rule| (kind, rule.allow & !cut)));
                cut |= self.reset_at(&place);
            }
        }
        found.push((kind, self.policy.initial & !cut));
        found.retain(|(_, axes)| *axes != 0);
        found
    }
}

/// What a rule of kind `outer` has in common with one of kind `inner`, `depth` components below it.
fn common(outer: Kind, depth: usize, inner: Kind) -> Option<Kind> {
    match (depth, outer) {
        (0, Kind::Tree) => Some(inner),
        (0, kind) if kind == inner || inner == Kind::Tree => Some(kind),
        (0, Kind::Below) if inner == Kind::Children => Some(inner),
        (0, Kind::Children) if inner == Kind::Below => Some(outer),
        (1.., Kind::Tree | Kind::Below) => Some(inner),
        (1, Kind::Children) if matches!(inner, Kind::Tree | Kind::Exact) => Some(Kind::Exact),
        _ => None,
    }
}

fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(Some(path), |p| match p.iter().rposition(|b| *b == b'/')? {
        0 if p.len() == 1 => None,
        0 => Some(&p[..1]),
        at => Some(&p[..at]),
    })
}

#[derive(Default)]
struct Met {
    places: BTreeMap<(Place, Kind), PlaceRule>,
}

impl Met {
    fn at(&mut self, place: &Place, kind: Kind) -> &mut PlaceRule {
        let nothing = |(place, kind): &(Place, Kind)| PlaceRule::nothing(place.clone(), *kind);
        self.places.entry((place.clone(), kind)).or_insert_with_key(nothing)
    }

    fn denies_and_resets(&mut self, policy: &CompiledPolicy, shift: RuleId) {
        for rule in policy.places.iter().filter(|r| r.deny | r.reset != 0) {
            let met = self.at(&rule.place, rule.kind);
            met.deny |= rule.deny;
            met.reset |= rule.reset;
            take_in(&mut met.deny_rules, rule.deny_rules, u16::MAX, shift);
            met.reset_rule = met.reset_rule.or(rule.reset_rule.map(|id| id.saturating_add(shift)));
        }
    }

    /// Every allow of `low` as far as `high` allows it too, at the same place or from further up.
    fn allows_below(&mut self, low: &Side<'_>, high: &Side<'_>) {
        for rule in low.policy.places.iter().filter(|r| r.allow != 0) {
            let common = match &rule.place {
                Place::Path(path) => high.reaching(path, rule.kind),
                // An allow by name wins over the resets above it; one from further up does not.
                Place::Name(_) => {
                    let named = high.at(&rule.place).iter().map(|r| (rule.kind, r.allow));
                    named.chain([(rule.kind, high.policy.initial & !high.resets)]).collect()
                }
                Place::Prefix(_) | Place::Suffix(_) => Vec::new(),
                Place::Abstract(_) => {
                    let named = high.at(&rule.place).iter().map(|r| (rule.kind, r.allow));
                    named.chain([(rule.kind, high.policy.initial)]).collect()
                }
                // No grant is one of numbers: both must name it.
                Place::Named { .. } => high.at(&rule.place).iter().map(|r| (rule.kind, r.allow)).collect(),
            };
            for (kind, axes) in common {
                let axes = axes & rule.allow;
                if axes == 0 {
                    continue;
                }
                let met = self.at(&rule.place, kind);
                met.allow |= axes;
                take_in(&mut met.allow_rules, rule.allow_rules, axes, low.shift);
            }
        }
    }

    /// No pattern denies a name that both allow. Where only the other side grants the name, this side's patterns that match it
    /// become denies of the name.
    fn patterns_of(&mut self, side: &Side<'_>) {
        let is_pattern = |rule: &&&PlaceRule| matches!(rule.place, Place::Prefix(_) | Place::Suffix(_));
        let patterns: Vec<&PlaceRule> = side.policy.places.iter().filter(|rule| is_pattern(&rule)).collect();
        for met in self.places.values_mut() {
            let Place::Name(name) = &met.place else { continue };
            let own = side.at(&met.place).iter().fold(0, |all, rule| all | rule.allow);
            let given = met.allow & !own;
            for pattern in patterns.iter().filter(|rule| rule.place.is_pattern_of(name)) {
                let axes = pattern.deny & given;
                met.deny |= axes;
                take_in(&mut met.deny_rules, pattern.deny_rules, axes, side.shift);
            }
        }
    }
}

/// Takes in the rules behind some axes where there is none yet.
fn take_in(mine: &mut [Option<RuleId>; 5], theirs: [Option<RuleId>; 5], axes: u16, shift: RuleId) {
    for (bit, mine) in mine.iter_mut().enumerate().filter(|(bit, _)| axes & 1 << bit != 0) {
        *mine = mine.or(theirs[bit].map(|id| id.saturating_add(shift)));
    }
}

fn meet_nets(inner: &CompiledPolicy, outer: &CompiledPolicy, shift: RuleId) -> (Vec<NetRule>, bool) {
    let prefix = |r: &NetRule| Prefix { port: r.port, addr: u128::from(r.addr), len: r.prefix };
    let mut nets = Nets::default();
    for rule in inner.nets.iter().filter(|r| !r.allow) {
        nets.deny(prefix(rule), rule.rule);
    }
    for rule in outer.nets.iter().filter(|r| !r.allow) {
        nets.deny(prefix(rule), rule.rule.saturating_add(shift));
    }
    let allows = |policy: &CompiledPolicy, shift: RuleId| -> BTreeMap<Prefix, RuleId> {
        let allows = policy.nets.iter().filter(|r| r.allow);
        allows.map(|r| (prefix(r), r.rule.saturating_add(shift))).collect()
    };
    let (a, b) = (allows(inner, 0), allows(outer, shift));
    for (low, high) in [(&a, &b), (&b, &a)] {
        for (prefix, rule) in low {
            // Whatever of `high` lies around this prefix, under a port that has one in common with its own.
            for around in (0..=prefix.len).map(|len| prefix.shortened(len)) {
                match prefix.port {
                    Some(_) => {
                        let any = Prefix { port: None, ..around };
                        if high.contains_key(&around) || high.contains_key(&any) {
                            nets.allow(*prefix, *rule);
                        }
                    }
                    None if high.contains_key(&around) => nets.allow(*prefix, *rule),
                    None => {}
                }
            }
        }
    }
    // A range for any port of one side around or inside a range for one port of the other.
    for (low, high) in [(&a, &b), (&b, &a)] {
        for (wide, rule) in low.iter().filter(|(p, _)| p.port.is_none()) {
            let ported = high.keys().filter(|p| p.port.is_some() && p.covers(wide));
            for found in ported {
                nets.allow(Prefix { port: found.port, ..*wide }, *rule);
            }
        }
    }
    nets.finish()
}
