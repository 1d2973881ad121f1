//! Which addresses a granted name may lead to.

use crate::refusal::Refusal;
use ringfence_names::address::{Blocked, screen};
use ringfence_wire::egress::{AddressRule, EgressCause, Names};
use std::net::IpAddr;

/// Whether a name may lead there: the address to dial. A deny holds for every address; one that is not public has to be granted
/// as an address.
pub(crate) fn may_dial(names: &Names, addr: IpAddr, port: u16) -> Result<IpAddr, Refusal> {
    let at_port = |allow| {
        let is_one = move |rule: &&AddressRule| rule.allow == allow && rule.port.is_none_or(|of| of == port);
        names.addresses.iter().filter(is_one)
    };
    let screened = screen(addr);
    let (Ok(dialled) | Err(Blocked { addr: dialled, .. })) = screened;
    if let Some(deny) = at_port(false).find(|deny| deny.net.contains(&dialled)) {
        let reason = format!("it leads to {dialled}, and the profile denies {}", deny.net);
        return Err(Refusal::new(EgressCause::Denied, &reason));
    }
    match screened {
        Err(blocked) if !at_port(true).any(|allow| blocked.is_named_by(allow.net)) => Err(Refusal::new(
            EgressCause::NotPublic,
            &format!("it leads to an address that is not public: {blocked}"),
        )),
        _ => Ok(dialled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(rules: &[(&str, Option<u16>, bool)], addr: &str) -> Result<String, EgressCause> {
        let rule = |(net, port, allow): &(&str, Option<u16>, bool)| AddressRule {
            net: net.parse().unwrap(),
            port: *port,
            allow: *allow,
        };
        let names = Names { addresses: rules.iter().map(rule).collect(), ..Names::default() };
        may_dial(&names, addr.parse().unwrap(), 443).map(|addr| addr.to_string()).map_err(|no| no.cause)
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
    fn a_deny_holds_for_every_address() {
        let rules =
            [("10.0.0.0/8", None, true), ("10.1.0.0/16", None, false), ("93.184.216.0/24", Some(443), false)];
        assert_eq!(judged(&rules, "10.1.2.3"), Err(EgressCause::Denied));
        assert_eq!(judged(&rules, "10.2.2.3"), Ok("10.2.2.3".into()));
        assert_eq!(judged(&rules, "::ffff:93.184.216.34"), Err(EgressCause::Denied));
        let other_port = [("93.184.216.0/24", Some(80), false)];
        assert_eq!(judged(&other_port, "93.184.216.34"), Ok("93.184.216.34".into()));
    }
}
