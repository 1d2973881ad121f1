//! Net rules to prefixes, with the verdicts of shorter prefixes pushed down.
//!
//! The kernel looks up the longest prefix twice, under the exact port and under "any"; a deny in either denies. So
//! each of these lists must answer by its longest prefix alone what all its prefixes say together.

use super::compiled::{NetRule, RuleId};
use ipnet::IpNet;
use std::{collections::BTreeMap, net::Ipv6Addr};

/// A prefix over the 128 bits, and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Prefix {
    pub port: Option<u16>,
    pub addr: u128,
    pub len: u8,
}

/// The v4-mapped range, in which v4 addresses are.
const MAPPED: (u128, u8) = (0xffff_0000_0000, 96);

impl Prefix {
    /// Whether `other` lies in this prefix; ports aside.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.len <= other.len && (self.addr ^ other.addr) & mask(self.len) == 0
    }

    /// The prefix of `len` bits that this one lies in.
    pub(crate) fn shortened(&self, len: u8) -> Self {
        Self { addr: self.addr & mask(len), len, ..*self }
    }
}

fn mask(len: u8) -> u128 {
    if len == 0 { 0 } else { u128::MAX << (128 - u32::from(len)) }
}

/// The prefixes of a range. A v6 range that holds the v4-mapped one is split around it: it does not mean v4.
pub(crate) fn prefixes(net: IpNet, port: Option<u16>) -> Vec<Prefix> {
    let (addr, len) = match net {
        IpNet::V4(v4) => (u128::from(v4.network().to_ipv6_mapped()), 96 + v4.prefix_len()),
        IpNet::V6(v6) => (u128::from(v6.network()), v6.prefix_len()),
    };
    let whole = Prefix { port, addr, len };
    let mapped = Prefix { port, addr: MAPPED.0, len: MAPPED.1 };
    if matches!(net, IpNet::V4(_)) || !whole.covers(&mapped) || len >= MAPPED.1 {
        return vec![whole];
    }
    // At each bit below the range's own, the half that the mapped range is not in.
    let halves = (len + 1..=MAPPED.1).map(|len| {
        let bit = 1u128 << (128 - u32::from(len));
        Prefix { port, addr: (MAPPED.0 ^ bit) & mask(len), len }
    });
    halves.collect()
}

/// Allows and denies as written, collected.
#[derive(Debug, Default)]
pub(crate) struct Nets {
    rules: BTreeMap<Prefix, (Option<RuleId>, Option<RuleId>)>,
}

impl Nets {
    /// Allows a prefix. The first rule names it.
    pub(crate) fn allow(&mut self, prefix: Prefix, rule: RuleId) {
        self.rules.entry(prefix).or_default().0.get_or_insert(rule);
    }

    /// Denies a prefix.
    pub(crate) fn deny(&mut self, prefix: Prefix, rule: RuleId) {
        self.rules.entry(prefix).or_default().1.get_or_insert(rule);
    }

    /// The rules with verdicts pushed down, and whether anything is allowed.
    pub(crate) fn finish(self) -> (Vec<NetRule>, bool) {
        let any = self.rules.values().any(|(allow, _)| allow.is_some());
        // In order, a prefix comes before all that lie in it; the stack holds those around the present one.
        let mut stack: Vec<(Prefix, bool, RuleId)> = Vec::new();
        let mut out = Vec::with_capacity(self.rules.len());
        for (prefix, (allow, deny)) in self.rules {
            while stack.last().is_some_and(|(outer, ..)| outer.port != prefix.port || !outer.covers(&prefix))
            {
                stack.pop();
            }
            let around = stack.last().map(|(_, allow, rule)| (*allow, *rule));
            let (verdict, rule) = match (deny, allow, around) {
                (Some(deny), ..) => (false, deny),
                (None, _, Some((false, outer))) => (false, outer),
                (None, Some(allow), _) => (true, allow),
                // A prefix has an allow or a deny; this cannot be.
                (None, None, _) => continue,
            };
            stack.push((prefix, verdict, rule));
            let addr = Ipv6Addr::from(prefix.addr);
            out.push(NetRule { addr, prefix: prefix.len, port: prefix.port, allow: verdict, rule });
        }
        (out, any)
    }
}
