//! Host names of `net`: what a policy says about them, what is left of two policies' names, and the addresses that stand for
//! names in one container.
//!
//! The kernel decides by address. In a container that has names each of them has an address of the container's own block, which
//! leads to its egress worker: the policy allows those addresses, port by port, and no others.

use super::{
    Denials, Profile, Rule, Rules,
    compiled::{CompiledPolicy, RuleId, RuleSource},
    nets::{Nets, Prefix, prefixes},
    parse::{net_entry, place},
    problem::{Problem, Wrong},
};
use ipnet::{IpNet, Ipv4Net};
use ringfence_grant::{Entry, HostPattern, NetEntry, Scope};
use ringfence_wire::{
    credentials::{HostCredential, Otherwise},
    egress::{AddressRule, MAX_EXACT_NAMES, NameOptions, NameRule, Names},
    requests::RequestRule,
};
use std::collections::{BTreeMap, BTreeSet};

/// Most entries of names that a profile may grant, wildcards among them.
pub(crate) const MAX_NAMES: usize = 1024;
/// Most that it may deny.
pub(crate) const MAX_DENIED: usize = 4096;

/// What lets a connection go to the worker that a person may be asked about.
const ASKED: &str = "net.ask";

/// Where a container's block has the names under wildcards: from here on, as they are asked for.
const WILDCARDS: u8 = 128;

/// The names that are too many, each with its place.
pub(crate) fn too_many(rules: &Rules, denials: &Denials) -> Vec<Problem> {
    let hosts = |rules: &[Rule]| -> Vec<(Rule, HostPattern)> {
        let host = |rule: &Rule| match net_entry(rule) {
            Some(NetEntry::Host { host, .. }) => Some((rule.clone(), host)),
            _ => None,
        };
        rules.iter().filter_map(host).collect()
    };
    let (granted, denied) = (hosts(rules.net.listed()), hosts(&denials.net));
    let mut exact = BTreeSet::new();
    let mut is_new =
        |host: &HostPattern| matches!(host, HostPattern::Exact(name) if exact.insert(name.clone()));
    let one_more = granted.iter().filter(|(_, host)| is_new(host)).nth(MAX_EXACT_NAMES);
    let wrong = |over: Option<&(Rule, HostPattern)>, what: Wrong| {
        over.map(|(rule, _)| Problem::new(place(rule), what))
    };
    [
        wrong(one_more, Wrong::TooManyExactNames(MAX_EXACT_NAMES)),
        wrong(granted.get(MAX_NAMES), Wrong::TooManyNames(MAX_NAMES)),
        wrong(denied.get(MAX_DENIED), Wrong::TooManyNames(MAX_DENIED)),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The deny of a name that nothing holds: where every address is granted, what it leads to is reached without it.
pub(crate) fn unheld(rule: &Rule) -> Option<Problem> {
    let is_host = matches!(net_entry(rule), Some(NetEntry::Host { .. }));
    is_host.then(|| Problem::new(place(rule), Wrong::HostName { text: rule.text.clone() }))
}

/// Collects names and addresses of one policy.
#[derive(Debug, Default)]
pub(crate) struct Collected(Names);

impl Collected {
    /// A host that is granted or denied.
    pub(crate) fn host(
        &mut self,
        (host, port, tcp): (&HostPattern, Option<u16>, bool),
        allow: bool,
        rule: RuleId,
    ) {
        let of = NameRule { host: host.to_string(), port, tcp, rule };
        if allow { self.0.rules.push(of) } else { self.0.denies.push(of) }
    }

    /// Addresses that are granted or denied as such.
    pub(crate) fn address(&mut self, net: IpNet, port: Option<u16>, allow: bool) {
        self.0.addresses.push(AddressRule { net, port, allow });
    }

    /// Every address, by `"all"`.
    pub(crate) fn every_address(&mut self) {
        for net in [IpNet::V4(Default::default()), IpNet::V6(Default::default())] {
            self.address(net, None, true);
        }
    }

    /// All of it.
    pub(crate) fn finish(self, profile: &Profile) -> Names {
        let credentials = profile.credentials.iter().map(|credential| credential.rules.clone()).collect();
        Names { options: profile.net_options, credentials, ..self.0 }
    }
}

impl CompiledPolicy {
    /// Whether every address is granted, whatever it is called.
    pub(crate) fn grants_all(&self) -> bool {
        self.nets.iter().any(|rule| rule.allow && rule.prefix == 0 && rule.port.is_none())
    }

    /// Allows the addresses that stand for the policy's names in one container, each at the ports that its name has: `.1` and on
    /// for the exact names in the order of [`Names::exact`], the upper half for names under wildcards. The rules behind them are
    /// the entries of the names. Where a person is asked for others, all addresses of the block are allowed but those of exact
    /// names that are denied, as only the worker knows what the rest stand for. To be called once, on what is left after all meets
    /// and, where the container had names before, after [`Names::keep_places`]; it does nothing where no name is granted.
    pub fn grant_block(&mut self, block: Ipv4Net) {
        if self.names.is_empty() {
            return;
        }
        let [a, b, c, _] = block.network().octets();
        let at = |last: u8, len: u8, port: Option<u16>| {
            let net = Ipv4Net::new([a, b, c, last].into(), len).map(IpNet::V4);
            net.into_iter().flat_map(move |net| prefixes(net, port))
        };
        let mut nets = Nets::default();
        for rule in &self.nets {
            let prefix = Prefix { port: rule.port, addr: u128::from(rule.addr), len: rule.prefix };
            if rule.allow { nets.allow(prefix, rule.rule) } else { nets.deny(prefix, rule.rule) }
        }
        for (last, name) in (1..WILDCARDS).zip(self.names.exact()) {
            // Its own entries come first: the first rule of a prefix is the one that events name.
            let (own, wider): (Vec<&NameRule>, _) =
                self.names.rules.iter().filter(|rule| rule.names(name)).partition(|rule| rule.host == name);
            for rule in own.into_iter().chain(wider) {
                at(last, 32, rule.port).for_each(|prefix| nets.allow(prefix, rule.rule));
            }
            for deny in self.names.denies.iter().filter(|deny| deny.names(name)) {
                at(last, 32, deny.port).for_each(|prefix| nets.deny(prefix, deny.rule));
            }
        }
        for rule in self.names.rules.iter().filter(|rule| rule.host.starts_with("*.")) {
            at(WILDCARDS, 25, rule.port).for_each(|prefix| nets.allow(prefix, rule.rule));
        }
        if self.names.options.ask.is_some() {
            let rule = RuleId::try_from(self.rules.len()).unwrap_or(RuleId::MAX);
            at(0, 24, None).for_each(|prefix| nets.allow(prefix, rule));
            let (id, key, text) = (ASKED.to_owned(), ASKED.to_owned(), "true".to_owned());
            self.rules.push(RuleSource { id, file: None, line: 0, key, text });
        }
        (self.nets, _) = nets.finish();
        self.inet = true;
    }
}

/// What two policies both grant by name, what either denies. Where all addresses are granted, so are all names.
pub(crate) fn meet(inner: &CompiledPolicy, outer: &CompiledPolicy, shift: RuleId) -> Names {
    let shifted = |rules: &[NameRule]| -> Vec<NameRule> {
        rules.iter().map(|rule| NameRule { rule: rule.rule.saturating_add(shift), ..rule.clone() }).collect()
    };
    let (a, b) = (&inner.names, &outer.names);
    let outer_rules = shifted(&b.rules);
    let (rules, options) = match (inner.grants_all(), outer.grants_all()) {
        (true, true) => (Vec::new(), NameOptions::default()),
        (true, false) => (outer_rules, b.options),
        (false, true) => (a.rules.clone(), a.options),
        (false, false) => {
            let most = [a.options.max_upload, b.options.max_upload].into_iter().flatten().min();
            let ech = a.options.ech && b.options.ech;
            // Where one of the two has nobody asked, nobody could say more than it does.
            let ask = a.options.ask.zip(b.options.ask).map(|(inner, outer)| inner.min(outer));
            (meet_rules(&a.rules, &outer_rules), NameOptions { ech, max_upload: most, ask })
        }
    };
    let denies = a.denies.iter().cloned().chain(shifted(&b.denies)).collect();
    Names {
        rules: with_room(rules),
        denies,
        addresses: meet_addresses(&a.addresses, &b.addresses),
        options,
        credentials: meet_credentials(&a.credentials, &b.credentials),
        places: Vec::new(),
    }
}

/// The hosts of both: where one of the two has requests judged, none passes unread. A container in another one has no credential, so
/// that who has none of these ends the connection. Of a host that both have, the requests that both let through.
pub(crate) fn meet_credentials(inner: &[HostCredential], outer: &[HostCredential]) -> Vec<HostCredential> {
    let same = |a: &HostCredential, b: &HostCredential| (&a.host, a.port) == (&b.host, b.port);
    let both = inner.iter().map(|own| match outer.iter().find(|other| same(own, other)) {
        None => own.clone(),
        Some(other) => {
            let is_there = |rule: &&RequestRule| own.place == other.place && other.allow.contains(rule);
            HostCredential {
                allow: own.allow.iter().filter(is_there).cloned().collect(),
                otherwise: if own.otherwise == other.otherwise { own.otherwise } else { Otherwise::Refuse },
                cookies: own.cookies && other.cookies,
                ..own.clone()
            }
        }
    });
    let others = outer.iter().filter(|other| !inner.iter().any(|own| same(own, other)));
    both.chain(others.cloned()).collect()
}

/// Each pair of rules that have something in common, without those that lie within another; the narrower one names it.
fn meet_rules(inner: &[NameRule], outer: &[NameRule]) -> Vec<NameRule> {
    let read = |rules: &[NameRule]| -> Vec<(NetEntry, RuleId)> {
        rules.iter().filter_map(|rule| Some((entry(rule)?, rule.rule))).collect()
    };
    let (inner, outer) = (read(inner), read(outer));
    let mut met: BTreeMap<NetEntry, (usize, RuleId)> = BTreeMap::new();
    // More than so many come only of rules that are made for it; what is left out is not granted.
    'pairs: for (a, rule) in &inner {
        for (b, other) in &outer {
            let Some(both) = a.meet(b) else { continue };
            let (place, rule) = (met.len(), if both == *a { *rule } else { *other });
            met.entry(both).or_insert((place, rule));
            if met.len() >= 4 * MAX_NAMES {
                break 'pairs;
            }
        }
    }
    let Scope::Only(kept) = Scope::only(met.keys().cloned()) else { return Vec::new() };
    let mut kept: Vec<(usize, NameRule)> =
        kept.iter().filter_map(|kept| found(kept, met.get(kept)?)).collect();
    kept.sort_by_key(|(place, _)| *place);
    kept.into_iter().map(|(_, rule)| rule).collect()
}

fn found(entry: &NetEntry, (place, rule): &(usize, RuleId)) -> Option<(usize, NameRule)> {
    let NetEntry::Host { host, port, tcp } = entry else { return None };
    Some((*place, NameRule { host: host.to_string(), port: *port, tcp: *tcp, rule: *rule }))
}

fn entry(rule: &NameRule) -> Option<NetEntry> {
    Some(NetEntry::Host { host: rule.host.parse().ok()?, port: rule.port, tcp: rule.tcp })
}

/// As many rules as a policy may have, and of exact names as many as a block has addresses for.
fn with_room(rules: Vec<NameRule>) -> Vec<NameRule> {
    let names = Names { rules, ..Names::default() };
    let exact: BTreeSet<String> =
        names.exact().into_iter().take(MAX_EXACT_NAMES).map(str::to_owned).collect();
    let fits = |rule: &NameRule| rule.host.starts_with("*.") || exact.contains(&rule.host);
    names.rules.into_iter().filter(fits).take(MAX_NAMES).collect()
}

/// What both allow, what either denies.
fn meet_addresses(inner: &[AddressRule], outer: &[AddressRule]) -> Vec<AddressRule> {
    let allowed = |rules: &[AddressRule]| {
        let allows = rules.iter().filter(|rule| rule.allow);
        Scope::only(allows.map(|rule| NetEntry::Inet { net: rule.net, port: rule.port }))
    };
    let Scope::Only(met) = allowed(inner).meet(&allowed(outer)) else { return Vec::new() };
    let allows = met.iter().filter_map(|entry| match entry {
        NetEntry::Inet { net, port } => Some(AddressRule { net: *net, port: *port, allow: true }),
        NetEntry::Host { .. } | NetEntry::Unix(_) | NetEntry::Abstract(_) => None,
    });
    let denies = inner.iter().chain(outer).filter(|rule| !rule.allow).copied();
    allows.chain(denies).collect()
}
