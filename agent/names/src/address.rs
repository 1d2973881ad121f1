//! Which addresses are no place on the public internet: for `web_fetch`, and for what a granted name leads to. Pure.
//!
//! The ranges are those of the IANA special-purpose address registries (RFC 6890, RFC 8190) that are not globally
//! reachable, and what RFC 4291 and its successors set aside. Of IPv6 only what is allocated as global unicast
//! (`2000::/3`) passes at all, so what is reserved today stays out when somebody begins to use it.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A range that is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The addresses.
    pub net: IpNet,
    /// What they are.
    pub what: &'static str,
    /// The document that reserves it; none for what a provider made special by itself.
    pub rfc: Option<u16>,
}

/// An address that is not public.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// The address, as it would be connected to.
    pub addr: IpAddr,
    /// The range it lies in.
    pub range: Range,
    /// The IPv4 address that it carries, if it is one that does.
    pub carries: Option<Ipv4Addr>,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Range { net, what, rfc } = self.range;
        write!(f, "{} is {what} ({net}", self.addr)?;
        if let Some(rfc) = rfc {
            write!(f, ", RFC {rfc}")?;
        }
        match self.carries {
            Some(v4) => write!(f, ", and carries {v4})"),
            None => f.write_str(")"),
        }
    }
}

impl std::error::Error for Blocked {}

impl Blocked {
    /// Whether a grant of the addresses in `net` names this one: it has the address, and lies within the very range that
    /// makes the address special. `10.0.0.0/8` names `10.0.0.1`; `0.0.0.0/0` does not.
    pub fn is_named_by(&self, net: IpNet) -> bool {
        net.contains(&self.addr) && self.range.net.contains(&net)
    }
}

const fn by_rfc(net: IpNet, what: &'static str, rfc: u16) -> Range {
    Range { net, what, rfc: Some(rfc) }
}

const fn v4(a: u8, b: u8, c: u8, len: u8, what: &'static str, rfc: u16) -> Range {
    by_rfc(IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, 0), len)), what, rfc)
}

const fn v6(a: u16, b: u16, c: u16, d: u16, len: u8, what: &'static str, rfc: u16) -> Range {
    by_rfc(IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0), len)), what, rfc)
}

const fn v6_low(f: u16, h: u16, len: u8, what: &'static str, rfc: u16) -> Range {
    by_rfc(IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, f, 0, h), len)), what, rfc)
}

/// Azure's virtual machines have their metadata and their DNS at an address that is otherwise like any public one. Those
/// of the other providers are in ranges below: link-local, shared address space, unique local.
const WIRE_SERVER: Range = Range {
    net: IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(168, 63, 129, 16), 32)),
    what: "a cloud's metadata service",
    rfc: None,
};

/// The first that an address lies in is the one it is blocked for.
const V4: &[Range] = &[
    v4(0, 0, 0, 8, "\"this network\"", 1122),
    v4(10, 0, 0, 8, "private", 1918),
    v4(100, 64, 0, 10, "shared address space (carrier-grade NAT)", 6598),
    v4(127, 0, 0, 8, "loopback", 1122),
    v4(169, 254, 0, 16, "link-local", 3927),
    WIRE_SERVER,
    v4(172, 16, 0, 12, "private", 1918),
    v4(192, 0, 0, 24, "for protocol assignments", 6890),
    v4(192, 0, 2, 24, "for documentation", 5737),
    v4(192, 88, 99, 24, "a 6to4 relay", 7526),
    v4(192, 168, 0, 16, "private", 1918),
    v4(198, 18, 0, 15, "for benchmarks", 2544),
    v4(198, 51, 100, 24, "for documentation", 5737),
    v4(203, 0, 113, 24, "for documentation", 5737),
    v4(224, 0, 0, 4, "multicast", 5771),
    v4(240, 0, 0, 4, "reserved", 1112),
];

const NAT64: Range = v6(0x64, 0xff9b, 0, 0, 96, "NAT64", 6052);
const SIX_TO_FOUR: Range = v6(0x2002, 0, 0, 0, 16, "6to4", 3056);

/// As [`V4`].
const V6: &[Range] = &[
    v6_low(0, 0, 128, "unspecified", 4291),
    v6_low(0, 1, 128, "loopback", 4291),
    // A v4-mapped address never comes here: it is screened as the v4 one.
    v6_low(0xffff, 0, 96, "v4-mapped", 4291),
    v6(0, 0, 0, 0, 96, "v4-compatible", 4291),
    NAT64,
    v6(0x64, 0xff9b, 1, 0, 48, "NAT64 for local use", 8215),
    v6(0x100, 0, 0, 0, 64, "for discarding", 6666),
    v6(0x100, 0, 0, 1, 64, "a dummy prefix", 9780),
    v6(0x2001, 0, 0, 0, 32, "Teredo", 4380),
    v6(0x2001, 2, 0, 0, 48, "for benchmarks", 5180),
    v6(0x2001, 0, 0, 0, 23, "for protocol assignments", 2928),
    v6(0x2001, 0xdb8, 0, 0, 32, "for documentation", 3849),
    SIX_TO_FOUR,
    v6(0x3fff, 0, 0, 0, 20, "for documentation", 9637),
    v6(0x5f00, 0, 0, 0, 16, "for segment routing", 9602),
    v6(0xfc00, 0, 0, 0, 7, "unique local", 4193),
    v6(0xfe80, 0, 0, 0, 10, "link-local", 4291),
    v6(0xfec0, 0, 0, 0, 10, "site-local", 3879),
    v6(0xff00, 0, 0, 0, 8, "multicast", 4291),
];

const GLOBAL: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
const UNALLOCATED: Range = v6(0, 0, 0, 0, 0, "not allocated for global unicast", 4291);

/// The address to connect to, if it is public: a v4-mapped one becomes the v4 one.
///
/// # Errors
/// [`Blocked`]
pub fn screen(addr: IpAddr) -> Result<IpAddr, Blocked> {
    match addr.to_canonical() {
        IpAddr::V4(v4) => match blocking(V4, v4.into()) {
            Some(range) => Err(Blocked { addr: v4.into(), range, carries: None }),
            None => Ok(v4.into()),
        },
        IpAddr::V6(v6) => screen_v6(v6),
    }
}

fn screen_v6(v6: Ipv6Addr) -> Result<IpAddr, Blocked> {
    let addr = IpAddr::V6(v6);
    let carries = carried_v4(addr);
    match blocking(V6, addr) {
        // Networks with IPv6 alone reach IPv4 through this one: what counts is what lies behind.
        Some(NAT64) if carries.is_some_and(|v4| screen(v4.into()).is_ok()) => Ok(addr),
        Some(range) => Err(Blocked { addr, range, carries }),
        None if GLOBAL.contains(&v6) => Ok(addr),
        None => Err(Blocked { addr, range: UNALLOCATED, carries }),
    }
}

fn blocking(table: &[Range], addr: IpAddr) -> Option<Range> {
    table.iter().find(|range| range.net.contains(&addr)).copied()
}

/// Whether an address, or an IPv4 address that it carries, lies in `net`: what a deny of `net` has to be held against. A host
/// that reaches IPv4 through NAT64 gets to `192.0.2.1` as `64:ff9b::c000:201`. Not for grants: who grants IPv4 addresses does
/// not grant every way to them.
///
/// A network's own prefix for NAT64 (RFC 6052 section 3.3) cannot be known: such addresses are like any other.
pub fn is_within(net: IpNet, addr: IpAddr) -> bool {
    net.contains(&addr) || carried_v4(addr).is_some_and(|v4| net.contains(&IpAddr::V4(v4)))
}

/// The IPv4 address inside a v4-mapped, NAT64 (RFC 6052 section 2.2; RFC 8215, as its /96 has it), 6to4 (RFC 3056 section 2),
/// Teredo (RFC 4380 section 4: the client's, inverted) or v4-compatible address; an IPv4 address itself has none.
pub fn carried_v4(addr: IpAddr) -> Option<Ipv4Addr> {
    let IpAddr::V6(v6) = addr else { return None };
    let joined = |high: u16, low: u16| Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] => joined(high, low),
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => joined(high, low),
        [0x64, 0xff9b, 1, .., high, low] => joined(high, low),
        [0x2002, high, low, ..] => joined(high, low),
        [0x2001, 0, .., high, low] => joined(!high, !low),
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => joined(high, low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn screened(text: &str) -> Result<IpAddr, Blocked> {
        screen(text.parse().unwrap())
    }

    #[test]
    fn blocks_each_range_from_its_first_to_its_last_address() {
        for range in V4.iter().chain(V6) {
            for addr in [range.net.network(), range.net.broadcast()] {
                assert!(screen(addr).is_err(), "{addr}: {}", range.what);
            }
        }
    }

    #[test]
    fn lets_through_what_lies_just_outside() {
        for addr in [
            "1.0.0.0",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.0.3.0",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "198.51.99.255",
            "198.51.101.0",
            "203.0.112.255",
            "203.0.114.0",
            "223.255.255.255",
            "93.184.216.34",
            "2000::",
            "2001:200::",
            "2001:db7:ffff::",
            "2001:db9::",
            "2003::",
            "2606:4700::1111",
            "3ffe:ffff::",
            "3fff:1000::",
        ] {
            assert_eq!(screened(addr).map(|a| a.to_string()), Ok(addr.to_owned()));
        }
    }

    #[test]
    fn says_what_an_address_is_and_what_it_carries() {
        for (addr, said) in [
            ("127.0.0.1", "127.0.0.1 is loopback (127.0.0.0/8, RFC 1122)"),
            ("169.254.169.254", "169.254.169.254 is link-local (169.254.0.0/16, RFC 3927)"),
            ("168.63.129.16", "168.63.129.16 is a cloud's metadata service (168.63.129.16/32)"),
            (
                "100.100.100.200",
                "100.100.100.200 is shared address space (carrier-grade NAT) (100.64.0.0/10, RFC 6598)",
            ),
            ("fd00:ec2::254", "fd00:ec2::254 is unique local (fc00::/7, RFC 4193)"),
            ("198.18.0.1", "198.18.0.1 is for benchmarks (198.18.0.0/15, RFC 2544)"),
            ("255.255.255.255", "255.255.255.255 is reserved (240.0.0.0/4, RFC 1112)"),
            ("fec0::1", "fec0::1 is site-local (fec0::/10, RFC 3879)"),
            ("::ffff:10.0.0.1", "10.0.0.1 is private (10.0.0.0/8, RFC 1918)"),
            ("64:ff9b::a00:1", "64:ff9b::a00:1 is NAT64 (64:ff9b::/96, RFC 6052, and carries 10.0.0.1)"),
            (
                "64:ff9b:1::a00:1",
                "64:ff9b:1::a00:1 is NAT64 for local use (64:ff9b:1::/48, RFC 8215, and carries 10.0.0.1)",
            ),
            ("2002:7f00:1::", "2002:7f00:1:: is 6to4 (2002::/16, RFC 3056, and carries 127.0.0.1)"),
            (
                "2001:0:1:2::80ff:fffe",
                "2001:0:1:2::80ff:fffe is Teredo (2001::/32, RFC 4380, and carries 127.0.0.1)",
            ),
            ("::127.0.0.1", "::7f00:1 is v4-compatible (::/96, RFC 4291, and carries 127.0.0.1)"),
            ("::1", "::1 is loopback (::1/128, RFC 4291)"),
            ("fe80::1", "fe80::1 is link-local (fe80::/10, RFC 4291)"),
            ("4000::1", "4000::1 is not allocated for global unicast (::/0, RFC 4291)"),
        ] {
            assert_eq!(screened(addr).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn unwraps_what_carries_a_public_address_only_where_that_is_how_it_is_reached() {
        assert_eq!(screened("::ffff:93.184.216.34").unwrap().to_string(), "93.184.216.34");
        assert_eq!(screened("64:ff9b::5db8:d822").unwrap().to_string(), "64:ff9b::5db8:d822");
        assert!(screened("2002:5db8:d822::").is_err());
        assert!(screened("::93.184.216.34").is_err());
    }

    #[test]
    fn only_what_lies_within_the_special_range_names_an_address_in_it() {
        let names = |net: &str, addr: &str| screened(addr).unwrap_err().is_named_by(net.parse().unwrap());
        assert!(names("10.0.0.0/8", "10.0.0.1") && names("10.0.0.1/32", "10.0.0.1"));
        assert!(names("10.0.0.1/32", "::ffff:10.0.0.1"), "it would be connected to as that one");
        for net in ["0.0.0.0/0", "10.1.0.0/16", "8.0.0.0/5", "::/0", "::ffff:0:0/96"] {
            assert!(!names(net, "10.0.0.1"), "{net}");
        }
    }

    #[test]
    fn a_deny_is_held_against_the_address_that_another_one_carries() {
        let within = |net: &str, addr: &str| is_within(net.parse().unwrap(), addr.parse().unwrap());
        for addr in [
            "93.184.216.34",
            "::ffff:93.184.216.34",
            "64:ff9b::5db8:d822",
            "64:ff9b:1::5db8:d822",
            "2002:5db8:d822::1",
            "2001:0:1:2:3:4:a247:27dd",
            "::93.184.216.34",
        ] {
            assert!(within("93.184.216.0/24", addr), "{addr}");
            assert!(!within("93.184.217.0/24", addr), "{addr}");
        }
        assert!(within("64:ff9b::/96", "64:ff9b::5db8:d822") && within("2001:db8::/32", "2001:db8::1"));
        for addr in ["93.184.217.34", "2606:4700::5db8:d822", "64:ff9b::1:5db8:d822", "::1"] {
            assert!(!within("93.184.216.0/24", addr), "{addr}");
        }
        assert!(!within("64:ff9b::/96", "93.184.216.34"), "not the other way round");
        assert_eq!(
            screened("64:ff9b::5db8:d822"),
            Ok("64:ff9b::5db8:d822".parse().unwrap()),
            "or it mattered not"
        );
    }

    proptest! {
        /// The standard library's own judgements, made without a table of ours, are never contradicted.
        #[test]
        fn agrees_with_the_standard_library_on_v4(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let special = v4.is_private() || v4.is_loopback() || v4.is_link_local() || v4.is_unspecified()
                || v4.is_documentation() || v4.is_multicast() || v4.is_broadcast();
            prop_assert!(!special || screen(v4.into()).is_err());
            // Of all of IPv4 a known share is public: first octets that no range touches always are.
            let touched = [0, 10, 100, 127, 168, 169, 172, 192, 198, 203];
            let plain = v4.octets()[0] < 224 && !touched.contains(&v4.octets()[0]);
            prop_assert!(!plain || screen(v4.into()) == Ok(v4.into()));
        }

        #[test]
        fn agrees_with_the_standard_library_on_v6(bits: u128) {
            // Half of them where the special ranges are dense.
            for bits in [bits, bits >> 3, bits >> 64, bits & (u128::MAX >> 16) | (0x2001 << 112), bits | (0xfc << 120)] {
                let v6 = Ipv6Addr::from(bits);
                let special = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast()
                    || v6.is_unique_local() || v6.is_unicast_link_local() || (v6.segments()[0] & 0xe000) != 0x2000;
                prop_assert!(!special || matches!(screen(v6.into()), Ok(IpAddr::V4(_)) | Err(_))
                    || v6.segments()[..2] == [0x64, 0xff9b]);
            }
        }

        /// Whatever a v4 address is wrapped in, the wrapping is no way around its screen.
        #[test]
        fn no_wrapping_gets_a_blocked_address_through(range in 0..V4.len(), bits: u32, low: u64) {
            let IpNet::V4(net) = V4[range].net else { unreachable!() };
            let bits = net.network().to_bits() | bits & net.hostmask().to_bits();
            let v4 = Ipv4Addr::from(bits);
            prop_assert!(screen(v4.into()).is_err());
            let [high, low16] = [(bits >> 16) as u16, bits as u16];
            let s = [(low >> 48) as u16, (low >> 32) as u16, (low >> 16) as u16, low as u16];
            for wrapped in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low16),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low16),
                Ipv6Addr::new(0x64, 0xff9b, 1, s[0], s[1], s[2], high, low16),
                Ipv6Addr::new(0x2002, high, low16, s[0], s[1], s[2], s[3], 1),
                Ipv6Addr::new(0x2001, 0, s[0], s[1], s[2], s[3], !high, !low16),
            ] {
                prop_assert!(screen(wrapped.into()).is_err(), "{wrapped}");
            }
        }

        /// What passes is what is connected to, and passes again as it is.
        #[test]
        fn is_idempotent(addr: IpAddr) {
            if let Ok(once) = screen(addr) {
                prop_assert_eq!(screen(once), Ok(once));
            }
        }
    }
}
