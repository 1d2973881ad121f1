//! Which addresses a granted name may lead to.

use crate::{
    refusal::Refusal,
    route::{Leads, leads},
};
use ringfence_names::address::{Blocked, carried_v4, is_within, screen};
use ringfence_wire::egress::{AddressRule, EgressCause, Names};
use std::{
    collections::HashSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Most addresses of a name that are tried.
pub(crate) const MOST_ADDRESSES: usize = 8;

/// An address that a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) addr: IpAddr,
    /// It leads to this host.
    pub(crate) is_own: bool,
}

/// Why an address is not dialled.
#[derive(Debug)]
pub(crate) struct Not {
    pub(crate) refusal: Refusal,
    /// Nor in audit mode: the container has no way to it but this worker.
    pub(crate) is_never: bool,
}

impl From<Refusal> for Not {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, is_never: false }
    }
}

/// Whether a name may lead there: the address to dial. A deny holds for every address, and for the IPv4 address that one carries.
/// One that is not public, or the host's own, has to be granted as an address.
///
/// `host_network`: the container is in the worker's network namespace. If it is not, then what it calls loopback is its own, and a
/// grant of that says nothing about the host's: no name leads to the host itself.
pub(crate) fn may_dial(names: &Names, host_network: bool, found: Found, port: u16) -> Result<IpAddr, Not> {
    let at_port = |allow| {
        let is_one = move |rule: &&AddressRule| rule.allow == allow && rule.port.is_none_or(|of| of == port);
        names.addresses.iter().filter(is_one)
    };
    let screened = screen(found.addr);
    let (Ok(dialled) | Err(Blocked { addr: dialled, .. })) = screened;
    if let Some(deny) = at_port(false).find(|deny| is_within(deny.net, dialled)) {
        let reason = format!("it leads to {dialled}, and the profile denies {}", deny.net);
        return Err(Refusal::new(EgressCause::Denied, &reason).into());
    }
    let not_public = |reason: &str| Refusal::new(EgressCause::NotPublic, reason);
    if !host_network && (found.is_own || is_of_host_alone(dialled)) {
        let reason = format!(
            "it leads to {dialled}, which is the host itself: the container has a network of its own"
        );
        return Err(Not { refusal: not_public(&reason), is_never: true });
    }
    match screened {
        Err(blocked) if !at_port(true).any(|allow| blocked.is_named_by(allow.net)) => {
            Err(not_public(&format!("it leads to an address that is not public: {blocked}")).into())
        }
        Ok(_) if found.is_own && !at_port(true).any(|allow| allow.net.contains(&dialled)) => {
            Err(not_public(&format!("it leads to {dialled}, which is an address of this host")).into())
        }
        _ => Ok(dialled),
    }
}

/// Whether an address is granted as such at a port, as it is to a connection that no name leads there: the address to dial. A deny
/// holds for the IPv4 address that one carries, too.
///
/// # Errors
/// Why it is not.
pub(crate) fn is_granted(names: &Names, addr: IpAddr, port: u16) -> Result<IpAddr, Refusal> {
    let addr = match addr.to_canonical() {
        // Which the kernel takes for this.
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    let at_port = |rule: &&AddressRule| rule.port.is_none_or(|of| of == port);
    let mut rules = names.addresses.iter().filter(at_port);
    if let Some(deny) = rules.clone().find(|rule| !rule.allow && is_within(rule.net, addr)) {
        return Err(Refusal::new(EgressCause::Denied, &format!("the profile denies {}", deny.net)));
    }
    match rules.any(|rule| rule.allow && rule.net.contains(&addr)) {
        true => Ok(addr),
        false => {
            let reason = format!("no rule of the profile grants the address {addr} at port {port}");
            Err(Refusal::new(EgressCause::NotGranted, &reason))
        }
    }
}

/// Whether an address is another one's in every network namespace: loopback, unspecified, link-local.
fn is_of_host_alone(addr: IpAddr) -> bool {
    match carried_v4(addr).map_or(addr, IpAddr::V4) {
        IpAddr::V4(v4) => v4.is_loopback() || v4.octets()[0] == 0 || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unspecified() || v6.is_unicast_link_local(),
    }
}

/// Which addresses are this host's: those that the kernel sends to it, and those of its interfaces, also where their way is another
/// (in a VRF). The latter are asked for once in a while, for there may be thousands.
#[derive(Default)]
pub(crate) struct Own(Mutex<Option<(Instant, HashSet<IpAddr>)>>);

impl Own {
    /// How long what interfaces have counts. What was added since is routed here.
    const LASTS: Duration = Duration::from_secs(2);

    /// The first of a name's addresses, and of each whether it is this host's own, as a connection to that port would find it.
    ///
    /// # Errors
    /// The kernel does not say.
    pub(crate) fn found(&self, addrs: Vec<IpAddr>, port: u16) -> io::Result<Vec<Found>> {
        let found = |addr: IpAddr| {
            let carried = carried_v4(addr).map(IpAddr::V4);
            let is_own = self.has(addr, port)? || carried.map_or(Ok(false), |v4| self.has(v4, port))?;
            Ok(Found { addr, is_own })
        };
        addrs.into_iter().take(MOST_ADDRESSES).map(found).collect()
    }

    fn has(&self, addr: IpAddr, port: u16) -> io::Result<bool> {
        // What leads nowhere is dialled, and fails by what its client is to be told.
        Ok(leads(SocketAddr::new(addr, port), None)? == Leads::Here
            || self.is_of_an_interface(addr.to_canonical())?)
    }

    fn is_of_an_interface(&self, addr: IpAddr) -> io::Result<bool> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, addrs) = match known.take().filter(|(since, _)| since.elapsed() < Self::LASTS) {
            Some(fresh) => known.insert(fresh),
            None => known.insert((Instant::now(), of_interfaces()?)),
        };
        Ok(addrs.contains(&addr))
    }
}

fn of_interfaces() -> io::Result<HashSet<IpAddr>> {
    let addrs = nix::ifaddrs::getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    });
    Ok(addrs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rules<'a> = &'a [(&'a str, Option<u16>, bool)];
    type Judged = Result<String, (EgressCause, bool)>;

    fn judge(rules: Rules<'_>, host_network: bool, addr: &str, is_own: bool) -> Judged {
        let rule = |(net, port, allow): &(&str, Option<u16>, bool)| AddressRule {
            net: net.parse().unwrap(),
            port: *port,
            allow: *allow,
        };
        let names = Names { addresses: rules.iter().map(rule).collect(), ..Names::default() };
        may_dial(&names, host_network, Found { addr: addr.parse().unwrap(), is_own }, 443)
            .map(|addr| addr.to_string())
            .map_err(|not| (not.refusal.cause, not.is_never))
    }

    fn judged(rules: Rules<'_>, addr: &str) -> Result<String, EgressCause> {
        judge(rules, true, addr, false).map_err(|(cause, is_never)| {
            assert!(!is_never);
            cause
        })
    }

    #[test]
    fn what_is_not_public_has_to_be_granted_as_an_address() {
        assert_eq!(judged(&[], "93.184.216.34"), Ok("93.184.216.34".into()));
        for private in ["127.0.0.1", "10.1.2.3", "169.254.169.254", "198.18.0.1", "::1", "::ffff:10.1.2.3"] {
            assert_eq!(judged(&[], private), Err(EgressCause::NotPublic), "{private}");
            assert_eq!(
                judged(&[("0.0.0.0/0", None, true), ("::/0", None, true)], private),
                Err(EgressCause::NotPublic)
            );
        }
        let granted = [("10.0.0.0/8", Some(443), true)];
        assert_eq!(judged(&granted, "10.1.2.3"), Ok("10.1.2.3".into()));
        assert_eq!(judged(&granted, "::ffff:10.1.2.3"), Ok("10.1.2.3".into()));
        assert_eq!(judged(&[("10.0.0.0/8", Some(80), true)], "10.1.2.3"), Err(EgressCause::NotPublic));
    }

    #[test]
    fn a_deny_holds_for_every_address_and_for_one_that_is_carried() {
        let rules =
            [("10.0.0.0/8", None, true), ("10.1.0.0/16", None, false), ("93.184.216.0/24", Some(443), false)];
        assert_eq!(judged(&rules, "10.1.2.3"), Err(EgressCause::Denied));
        assert_eq!(judged(&rules, "10.2.2.3"), Ok("10.2.2.3".into()));
        assert_eq!(judged(&rules, "::ffff:93.184.216.34"), Err(EgressCause::Denied));
        assert_eq!(judged(&rules, "64:ff9b::5db8:d822"), Err(EgressCause::Denied), "by NAT64");
        assert_eq!(judged(&rules, "64:ff9b::5db8:d722"), Ok("64:ff9b::5db8:d722".into()), "the control");
        let other_port = [("93.184.216.0/24", Some(80), false)];
        assert_eq!(judged(&other_port, "93.184.216.34"), Ok("93.184.216.34".into()));
    }

    #[test]
    fn nothing_leads_to_the_host_itself_from_a_network_of_its_own() {
        let all = [
            ("127.0.0.0/8", None, true),
            ("169.254.0.0/16", None, true),
            ("10.0.0.0/8", None, true),
            ("::1/128", None, true),
            ("fe80::/10", None, true),
            ("0.0.0.0/8", None, true),
        ];
        let never = Err((EgressCause::NotPublic, true));
        for addr in
            ["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1"]
        {
            assert_eq!(judge(&all, false, addr, false), never, "{addr}");
        }
        assert!(judge(&all, true, "127.0.0.1", true).is_ok(), "the control: its loopback is the host's");
        assert!(judge(&all, true, "169.254.169.254", false).is_ok());
        assert_eq!(judge(&all, false, "10.0.0.1", true), never, "an address of the host");
        assert_eq!(judge(&[], false, "93.184.216.34", true), never);
        assert!(judge(&all, false, "10.0.0.2", false).is_ok(), "a neighbour that is granted");
    }

    #[test]
    fn the_host_has_to_be_granted_as_an_address_also_where_that_is_public() {
        assert_eq!(judge(&[], true, "93.184.216.34", true), Err((EgressCause::NotPublic, false)));
        assert!(judge(&[("93.184.216.34/32", Some(443), true)], true, "93.184.216.34", true).is_ok());
        assert!(judge(&[("93.184.216.34/32", Some(80), true)], true, "93.184.216.34", true).is_err());
    }

    #[test]
    fn the_host_knows_its_own_addresses() {
        let addr = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = Own::default();
        let found = |addrs: &[&str]| own.found(addrs.iter().map(|text| addr(text)).collect(), 443).unwrap();
        let said =
            found(&["127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "192.0.2.77", "64:ff9b::c000:24d"]);
        let said: Vec<bool> = said.iter().map(|found| found.is_own).collect();
        assert_eq!(said, [true, true, true, false, false], "also by NAT64");
        assert_eq!(found(&["192.0.2.77"; 100]).len(), MOST_ADDRESSES);
        let (since, addrs) = own.0.lock().unwrap().clone().unwrap();
        assert!(addrs.contains(&addr("127.0.0.1")));
        // What is known is what is said, for a while.
        let known = |since| *own.0.lock().unwrap() = Some((since, HashSet::from([addr("192.0.2.77")])));
        known(Instant::now());
        assert!(found(&["192.0.2.77"])[0].is_own, "an address of an interface, wherever it is routed");
        if let Some(past) = since.checked_sub(Own::LASTS) {
            known(past);
            assert!(!found(&["192.0.2.77"])[0].is_own);
        }
    }
}
