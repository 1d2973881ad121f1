//! What the grant's net axis admits, beyond the gate's own check: ports, and addresses that are not public. Pure.

use super::target::{Host, Target};
use ringfence_grant::{NetEntry, Scope};
use ringfence_names::address::{Blocked, screen};
use std::net::IpAddr;

/// The ports that a host granted without one, or by `all`, may be fetched from: http's and https's own (RFC 9110
/// section 4.2).
pub const WEB_PORTS: [u16; 2] = [80, 443];

/// Why something that the gate lets through is not connected to all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Not a web port, and not named.
    #[error(
        "port {port} of {host:?} is not granted: ports 80 and 443 are, another must be named, as {host}:{port}"
    )]
    Port {
        /// The host.
        host: String,
        /// The port.
        port: u16,
    },
    /// Not a public address, and not named.
    #[error("{0}: only a grant that names that address, or a range within that one, reaches it")]
    Address(Blocked),
    /// A name whose address is not a public one, and not named.
    #[error(
        "{host:?} leads to {blocked}: only a grant that names that address, or a range within that one, reaches it"
    )]
    Leads {
        /// The name.
        host: String,
        /// Where it leads.
        blocked: Blocked,
    },
}

/// Whether it is worth asking DNS: not for a port that no address could make good.
///
/// # Errors
/// [`Refused::Port`]
pub fn port(net: &Scope<NetEntry>, target: &Target) -> Result<(), Refused> {
    let by_address = |entry: &NetEntry| match entry {
        NetEntry::Inet { port, .. } => port.is_none_or(|port| port == target.port),
        _ => false,
    };
    port_if(target, names(net, target, by_address))
}

/// The address to connect to for `target`, which `addr` is the address of or leads to.
///
/// An address that is not public is connected to only if the grant names it: by an entry that lies within the very
/// range that makes it special. `all` names nothing, and `0.0.0.0/0` does not name `10.0.0.1`.
///
/// # Errors
/// [`Refused`]
pub fn address(net: &Scope<NetEntry>, target: &Target, addr: IpAddr) -> Result<IpAddr, Refused> {
    let addr = addr.to_canonical();
    port_if(target, names(net, target, |entry| entry.has(addr, target.port)))?;
    let blocked = match screen(addr) {
        Ok(addr) => return Ok(addr),
        Err(blocked) => blocked,
    };
    let opts_in = |entry: &NetEntry| match entry {
        NetEntry::Inet { net, .. } => entry.has(addr, target.port) && blocked.is_named_by(*net),
        _ => false,
    };
    match (net, &target.host) {
        (Scope::Only(entries), _) if entries.iter().any(opts_in) => Ok(addr),
        (_, Host::Addr(_)) => Err(Refused::Address(blocked)),
        (_, Host::Name(name)) => Err(Refused::Leads { host: name.clone(), blocked }),
    }
}

fn names(net: &Scope<NetEntry>, target: &Target, by_address: impl Fn(&NetEntry) -> bool) -> bool {
    let by_name = |entry: &NetEntry| match (entry, &target.host) {
        (NetEntry::Host { host, port, .. }, Host::Name(name)) => {
            host.matches(name) && *port == Some(target.port)
        }
        _ => false,
    };
    match net {
        Scope::All => false,
        Scope::Only(entries) => entries.iter().any(|entry| by_name(entry) || by_address(entry)),
    }
}

fn port_if(target: &Target, named: bool) -> Result<(), Refused> {
    if named || WEB_PORTS.contains(&target.port) {
        return Ok(());
    }
    Err(Refused::Port { host: target.host.to_string(), port: target.port })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scope(entries: &[&str]) -> Scope<NetEntry> {
        match entries {
            ["all"] => Scope::All,
            _ => Scope::only(entries.iter().map(|entry| entry.parse().unwrap())),
        }
    }

    fn admitted(entries: &[&str], url: &str, addr: &str) -> bool {
        let (net, target) = (scope(entries), Target::parse(url).unwrap());
        port(&net, &target).and_then(|()| address(&net, &target, addr.parse().unwrap())).is_ok()
    }

    #[test]
    fn an_address_that_is_not_public_must_be_named() {
        let public = "93.184.216.34";
        for (entries, url, addr, is) in [
            (&["all"][..], "http://a.example/", public, true),
            (&["all"], "http://a.example/", "10.0.0.1", false),
            (&["all"], "http://a.example/", "::ffff:10.0.0.1", false),
            (&["all"], "http://169.254.169.254/", "169.254.169.254", false),
            (&["a.example"], "http://a.example/", "127.0.0.1", false),
            (&["localhost"], "http://localhost/", "127.0.0.1", false),
            (&["a.example", "10.0.0.0/8"], "http://a.example/", "10.0.0.1", true),
            (&["a.example", "10.0.0.0/8"], "http://a.example/", "::ffff:10.0.0.1", true),
            (&["a.example", "10.1.0.0/16"], "http://a.example/", "10.0.0.1", false),
            (&["a.example", "10.0.0.1:443"], "http://a.example/", "10.0.0.1", false),
            (&["a.example", "10.0.0.1:443"], "https://a.example/", "10.0.0.1", true),
            (&["*.a.example"], "http://b.a.example/", "10.0.0.1", false),
            (&["a.example", "0.0.0.0/0"], "http://a.example/", "10.0.0.1", false),
            (&["0.0.0.0/0"], "http://10.0.0.1/", "10.0.0.1", false),
            (&["0.0.0.0/0"], "http://93.184.216.34/", public, true),
            (&["192.168.0.0/15"], "http://192.168.0.1/", "192.168.0.1", false),
            (&["::/0"], "http://[fd00::1]/", "fd00::1", false),
            (&["fd00::/8"], "http://[fd00::1]/", "fd00::1", true),
            (&["10.0.0.0/8"], "http://[64:ff9b::a00:1]/", "64:ff9b::a00:1", false),
            (&["64:ff9b::/96"], "http://[64:ff9b::a00:1]/", "64:ff9b::a00:1", true),
            (&["127.0.0.1"], "http://0x7f.1/", "127.0.0.1", true),
        ] {
            assert_eq!(admitted(entries, url, addr), is, "{url} at {addr} under {entries:?}");
        }
    }

    #[test]
    fn other_ports_than_the_webs_must_be_named() {
        let public = "93.184.216.34";
        for (entries, url, addr, is) in [
            (&["all"][..], "http://a.example:8080/", public, false),
            (&["all"], "http://a.example:443/", public, true),
            (&["all"], "https://a.example:80/", public, true),
            (&["a.example"], "http://a.example:22/", public, false),
            (&["a.example", "b.example:22"], "http://a.example:22/", public, false),
            (&["a.example:22"], "http://a.example:22/", public, true),
            (&["*.a.example:22"], "http://b.a.example:22/", public, true),
            (&["*.a.example:22"], "http://a.example:22/", public, false),
            (&["tcp:a.example:22"], "http://a.example:22/", public, true),
            // An address or range without a port means any, as it does for the kernel.
            (&["127.0.0.1"], "http://127.0.0.1:8080/", "127.0.0.1", true),
            (&["localhost", "127.0.0.1"], "http://localhost:8080/", "127.0.0.1", true),
            (&["localhost", "127.0.0.1"], "http://localhost:8080/", public, false),
            (&["localhost", "127.0.0.1:81"], "http://localhost:8080/", "127.0.0.1", false),
        ] {
            assert_eq!(admitted(entries, url, addr), is, "{url} at {addr} under {entries:?}");
        }
    }

    proptest! {
        /// `all` and names alone never lead to an address that is not public.
        #[test]
        fn nothing_special_is_reached_unnamed(addr: IpAddr) {
            for entries in [&["all"][..], &["a.example"], &["a.example:80", "0.0.0.0/0", "::/0"]] {
                if screen(addr).is_err_and(|blocked| blocked.range.net.prefix_len() > 0) {
                    prop_assert!(!admitted(entries, "http://a.example/", &addr.to_string()));
                }
            }
        }
    }
}
