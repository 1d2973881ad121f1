//! How a compiled policy decides about a path or an address: the kernel's fold, in safe code; and about a host name, as the
//! container's egress worker does.

use super::compiled::{CompiledPolicy, Kind, Place, PlaceRule, RuleId};
use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
};

/// How a decision came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// A deny rule applies: it beats every allow.
    Denied,
    /// An allow rule applies.
    Allowed,
    /// The axis is `"all"`, and nothing is against it.
    All,
    /// A broad allow ends at a protected place.
    Protected,
    /// No rule allows it.
    Default,
}

/// A decision and the rule behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// How.
    pub why: Why,
    /// The rule that decided; none for a default and for `"all"`.
    pub rule: Option<RuleId>,
}

impl Decision {
    /// Whether it is allowed.
    pub fn allowed(self) -> bool {
        matches!(self.why, Why::Allowed | Why::All)
    }
}

/// A policy, indexed for questions.
pub struct Decider<'a> {
    policy: &'a CompiledPolicy,
    places: HashMap<&'a Place, Vec<&'a PlaceRule>>,
    /// How long the patterns are, each length once.
    prefixes: BTreeSet<usize>,
    suffixes: BTreeSet<usize>,
}

impl<'a> Decider<'a> {
    /// Indexes a policy.
    pub fn new(policy: &'a CompiledPolicy) -> Self {
        let mut places: HashMap<&Place, Vec<&PlaceRule>> = HashMap::new();
        let (mut prefixes, mut suffixes) = (BTreeSet::new(), BTreeSet::new());
        for rule in &policy.places {
            places.entry(&rule.place).or_default().push(rule);
            match &rule.place {
                Place::Prefix(name) => _ = prefixes.insert(name.len()),
                Place::Suffix(name) => _ = suffixes.insert(name.len()),
                Place::Path(_) | Place::Name(_) | Place::Abstract(_) | Place::Named { .. } => {}
            }
        }
        Self { policy, places, prefixes, suffixes }
    }

    /// What holds for one axis (one bit of `ringfence_common::policy::axis`) at an absolute path, links resolved.
    pub fn path(&self, axis: u16, path: &[u8]) -> Decision {
        self.fold(axis, path, false)
    }

    /// As [`path`](Self::path), but without the rules filed under the path itself: what it has from above.
    pub fn inherited(&self, axis: u16, path: &[u8]) -> Decision {
        self.fold(axis, path, true)
    }

    /// What holds for an abstract unix socket.
    pub fn abstract_socket(&self, axis: u16, name: &[u8]) -> Decision {
        let mut fold = Fold::new(axis, self.policy.initial);
        fold.rules(self.at(&Place::Abstract(name.to_vec())), 0);
        fold.decision()
    }

    fn at(&self, place: &Place) -> &[&'a PlaceRule] {
        self.places.get(place).map_or(&[], Vec::as_slice)
    }

    fn fold(&self, axis: u16, path: &[u8], above_only: bool) -> Decision {
        let names: Vec<&[u8]> = path.split(|b| *b == b'/').filter(|c| !c.is_empty()).collect();
        let mut fold = Fold::new(axis, self.policy.initial);
        let mut prefix = Vec::with_capacity(path.len());
        if names.is_empty() && above_only {
            return fold.decision();
        }
        fold.rules(self.at(&Place::Path(b"/".to_vec())), names.len());
        for (i, name) in names.iter().enumerate() {
            let below = names.len() - i - 1;
            if below == 0 && above_only {
                break;
            }
            prefix.push(b'/');
            prefix.extend_from_slice(name);
            let named = self.at(&Place::Name(name.to_vec()));
            // A name that is granted whole is more than a pattern that it happens to fit.
            if named.iter().all(|rule| rule.allow & axis == 0) {
                self.patterns(name).for_each(|rules| fold.rules(rules, below));
            }
            fold.rules(named, below);
            fold.rules(self.at(&Place::Path(prefix.clone())), below);
        }
        fold.decision()
    }

    /// The rules of the patterns that match a component.
    fn patterns(&self, name: &[u8]) -> impl Iterator<Item = &[&'a PlaceRule]> {
        let begins = self.prefixes.iter().filter_map(|length| name.get(..*length));
        let ends = self.suffixes.iter().filter_map(|length| name.get(name.len().checked_sub(*length)?..));
        let places = begins.map(|part| Place::Prefix(part.into()));
        places.chain(ends.map(|part| Place::Suffix(part.into()))).map(|place| self.at(&place))
    }

    /// What holds for one host and port: for a client that names the host by TLS or HTTP, or with `tcp` for any. Where every
    /// address is granted, that is up to what the name leads to.
    pub fn host(&self, name: &str, port: u16, tcp: bool) -> Decision {
        let names = &self.policy.names;
        match (names.denied(name, port), names.granted(name, port).filter(|rule| rule.tcp || !tcp)) {
            (Some(deny), _) => Decision { why: Why::Denied, rule: Some(deny.rule) },
            (None, Some(allow)) => Decision { why: Why::Allowed, rule: Some(allow.rule) },
            (None, None) if self.policy.grants_all() => Decision { why: Why::All, rule: None },
            (None, None) => Decision { why: Why::Default, rule: None },
        }
    }

    /// What holds for an address and port.
    pub fn address(&self, addr: IpAddr, port: u16) -> Decision {
        let addr = match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let bits = u128::from(addr);
        let longest = |port: Option<u16>| {
            let rules = self.policy.nets.iter().filter(move |r| r.port == port);
            rules.filter(|r| under(bits, u128::from(r.addr), r.prefix)).max_by_key(|r| r.prefix)
        };
        let (at_port, at_any) = (longest(Some(port)), longest(None));
        let found = |allow: bool| [at_port, at_any].into_iter().flatten().find(|r| r.allow == allow);
        match (found(false), found(true)) {
            (Some(deny), _) => Decision { why: Why::Denied, rule: Some(deny.rule) },
            (None, Some(allow)) => Decision { why: Why::Allowed, rule: Some(allow.rule) },
            (None, None) => Decision { why: Why::Default, rule: None },
        }
    }
}

fn under(addr: u128, net: u128, prefix: u8) -> bool {
    let shift = 128 - u32::from(prefix);
    shift >= 128 || (addr ^ net) >> shift == 0
}

/// One axis on its way from the root down.
struct Fold {
    axis: u16,
    bit: usize,
    allowed: bool,
    allow: Option<RuleId>,
    deny: Option<RuleId>,
    denied: bool,
    /// The rule that took an allow back, until another gives it again.
    reset: Option<RuleId>,
}

impl Fold {
    fn new(axis: u16, initial: u16) -> Self {
        Self {
            axis,
            bit: axis.trailing_zeros() as usize,
            allowed: initial & axis != 0,
            allow: None,
            deny: None,
            denied: false,
            reset: None,
        }
    }

    /// The rules of one place that apply to a path with `below` more components: resets first, then allows.
    fn rules(&mut self, rules: &[&PlaceRule], below: usize) {
        let applies = |rule: &&&PlaceRule| match rule.kind {
            Kind::Tree => true,
            Kind::Below => below > 0,
            Kind::Children => below == 1,
            Kind::Exact => below == 0,
        };
        for rule in rules.iter().filter(applies) {
            if rule.reset & self.axis != 0 {
                if self.allowed {
                    self.reset = rule.reset_rule;
                }
                (self.allowed, self.allow) = (false, None);
            }
        }
        for rule in rules.iter().filter(applies) {
            if rule.allow & self.axis != 0 {
                (self.allowed, self.allow) = (true, rule.allow_rules.get(self.bit).copied().flatten());
            }
            if rule.deny & self.axis != 0 {
                (self.denied, self.deny) = (true, rule.deny_rules.get(self.bit).copied().flatten());
            }
        }
    }

    fn decision(&self) -> Decision {
        let (why, rule) = match (self.denied, self.allowed) {
            (true, _) => (Why::Denied, self.deny),
            (false, true) if self.allow.is_none() => (Why::All, None),
            (false, true) => (Why::Allowed, self.allow),
            (false, false) if self.reset.is_some() => (Why::Protected, self.reset),
            (false, false) => (Why::Default, None),
        };
        Decision { why, rule }
    }
}
