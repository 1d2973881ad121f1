//! Socket options that [`ALLOWED`] leaves out, each with the reason: those that a profile may name in `[kernel]
//! socket_options`, and those that no profile may, because the rules of `net` would no longer say whom a container talks
//! to.
//!
//! Packets that carry a route of their own are dropped on their way out whatever a profile says, so that no option is
//! here that would put one on them. Source addresses are not looked at there: an option that chooses one has to be kept
//! from whoever may not bind it.

use crate::options::ALLOWED;

/// Options of one level that are left out for one reason.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The level's number.
    pub level: i32,
    /// What they do, and so why they are left out; follows "it".
    pub why: &'static str,
    /// Number and name of each option. Two names of one option stand side by side, the kernel's first.
    pub options: &'static [(i32, &'static str)],
}

const IP: i32 = 0;
const SOCKET: i32 = 1;
const TCP: i32 = 6;
const UDP: i32 = 17;
const IPV6: i32 = 41;
/// First option of [`IP`] that is the packet filter's or a multicast router's, all above included.
const FILTER: i32 = 64;

const MEMBERSHIP: &str = "makes the kernel send IGMP or MLD packets, which no rule is asked about";
const ROUTE: &str = "sends packets by way of other hosts; such packets are dropped on their way out";
const ANY_SOURCE: &str =
    "lets control data choose a source address that is not the host's, which bind was not asked about";
const RAW: &str = "is for raw sockets, of which a container has none";
const TRANSFORM: &str = "hands packets to IPsec, which may send them elsewhere";
const REPAIR: &str = "makes a connection that nobody agreed to, on a port that may be another's";
const LABEL: &str = "sets flow labels, which can hold a routing header";
const ANYCAST: &str = "makes the host answer to an address that bind was not asked about";

/// What a profile may name.
pub const NAMEABLE: &[Group] = &[
    Group {
        level: IP,
        why: "hands the options of received packets to the program",
        options: &[(7, "IP_RETOPTS")],
    },
    Group {
        level: IP,
        why: "chooses the device of multicast packets, and the source among the host's own addresses",
        options: &[(32, "IP_MULTICAST_IF")],
    },
    Group {
        level: IP,
        why: MEMBERSHIP,
        options: &[
            (35, "IP_ADD_MEMBERSHIP"),
            (36, "IP_DROP_MEMBERSHIP"),
            (37, "IP_UNBLOCK_SOURCE"),
            (38, "IP_BLOCK_SOURCE"),
            (39, "IP_ADD_SOURCE_MEMBERSHIP"),
            (40, "IP_DROP_SOURCE_MEMBERSHIP"),
            (41, "IP_MSFILTER"),
            (42, "MCAST_JOIN_GROUP"),
            (43, "MCAST_BLOCK_SOURCE"),
            (44, "MCAST_UNBLOCK_SOURCE"),
            (45, "MCAST_LEAVE_GROUP"),
            (46, "MCAST_JOIN_SOURCE_GROUP"),
            (47, "MCAST_LEAVE_SOURCE_GROUP"),
            (48, "MCAST_MSFILTER"),
        ],
    },
    Group { level: IP, why: "chooses the device, and so the route", options: &[(50, "IP_UNICAST_IF")] },
    Group { level: SOCKET, why: "has the kernel log what the socket does", options: &[(1, "SO_DEBUG")] },
    Group { level: SOCKET, why: "sends past the routes", options: &[(5, "SO_DONTROUTE")] },
    Group {
        level: SOCKET,
        why: "chooses the device, and so the route",
        options: &[(25, "SO_BINDTODEVICE"), (62, "SO_BINDTOIFINDEX")],
    },
    Group {
        level: SOCKET,
        why: "takes more memory than the host's limits allow",
        options: &[(32, "SO_SNDBUFFORCE"), (33, "SO_RCVBUFFORCE"), (73, "SO_RESERVE_MEM")],
    },
    Group {
        level: SOCKET,
        why: "chooses a route, by the host's rules about marks, and what its packet filter does",
        options: &[(36, "SO_MARK")],
    },
    Group {
        level: SOCKET,
        why: "tells the program what the host's packet filter marked",
        options: &[(75, "SO_RCVMARK")],
    },
    Group { level: SOCKET, why: "takes a program that bpf(2) loaded", options: &[(50, "SO_ATTACH_BPF")] },
    Group {
        level: SOCKET,
        why: "decides which of the sockets that share a port is given a packet, also for the others",
        options: &[
            (51, "SO_ATTACH_REUSEPORT_CBPF"),
            (52, "SO_ATTACH_REUSEPORT_EBPF"),
            (68, "SO_DETACH_REUSEPORT_BPF"),
        ],
    },
    Group {
        level: SOCKET,
        why: "makes the kernel look for another route",
        options: &[(53, "SO_CNX_ADVICE")],
    },
    Group { level: SOCKET, why: "tells the device when to send", options: &[(61, "SO_TXTIME")] },
    Group {
        level: TCP,
        why: "signs segments with keys, for peers that know them",
        options: &[
            (14, "TCP_MD5SIG"),
            (32, "TCP_MD5SIG_EXT"),
            (38, "TCP_AO_ADD_KEY"),
            (39, "TCP_AO_DEL_KEY"),
            (40, "TCP_AO_INFO"),
        ],
    },
    Group {
        level: IPV6,
        why: "hands the headers of received packets to the program",
        options: &[
            (2, "IPV6_2292PKTINFO"),
            (3, "IPV6_2292HOPOPTS"),
            (4, "IPV6_2292DSTOPTS"),
            (5, "IPV6_2292RTHDR"),
            (8, "IPV6_2292HOPLIMIT"),
            (11, "IPV6_FLOWINFO"),
            (53, "IPV6_RECVHOPOPTS"),
            (56, "IPV6_RECVRTHDR"),
            (58, "IPV6_RECVDSTOPTS"),
        ],
    },
    Group {
        level: IPV6,
        why: "chooses the device, and so the route",
        options: &[(17, "IPV6_MULTICAST_IF"), (76, "IPV6_UNICAST_IF")],
    },
    Group {
        level: IPV6,
        why: MEMBERSHIP,
        options: &[
            (20, "IPV6_ADD_MEMBERSHIP"),
            (20, "IPV6_JOIN_GROUP"),
            (21, "IPV6_DROP_MEMBERSHIP"),
            (21, "IPV6_LEAVE_GROUP"),
            (42, "MCAST_JOIN_GROUP"),
            (43, "MCAST_BLOCK_SOURCE"),
            (44, "MCAST_UNBLOCK_SOURCE"),
            (45, "MCAST_LEAVE_GROUP"),
            (46, "MCAST_JOIN_SOURCE_GROUP"),
            (47, "MCAST_LEAVE_SOURCE_GROUP"),
            (48, "MCAST_MSFILTER"),
        ],
    },
];

/// What no profile may name.
pub const NEVER: &[Group] = &[
    Group { level: IP, why: ROUTE, options: &[(4, "IP_OPTIONS")] },
    Group { level: IP, why: RAW, options: &[(3, "IP_HDRINCL"), (5, "IP_ROUTER_ALERT"), (22, "IP_NODEFRAG")] },
    Group { level: IP, why: ANY_SOURCE, options: &[(15, "IP_FREEBIND"), (19, "IP_TRANSPARENT")] },
    Group { level: IP, why: TRANSFORM, options: &[(16, "IP_IPSEC_POLICY"), (17, "IP_XFRM_POLICY")] },
    Group {
        level: IP,
        why: "chooses a port that bind was not asked about",
        options: &[(51, "IP_LOCAL_PORT_RANGE")],
    },
    Group {
        level: TCP,
        why: REPAIR,
        options: &[
            (19, "TCP_REPAIR"),
            (20, "TCP_REPAIR_QUEUE"),
            (21, "TCP_QUEUE_SEQ"),
            (22, "TCP_REPAIR_OPTIONS"),
            (29, "TCP_REPAIR_WINDOW"),
            (42, "TCP_AO_REPAIR"),
        ],
    },
    Group {
        level: TCP,
        why: "makes another protocol of the socket, which it chooses: SMC is one whose connect no rule is asked about",
        options: &[(31, "TCP_ULP")],
    },
    Group { level: UDP, why: TRANSFORM, options: &[(100, "UDP_ENCAP")] },
    Group {
        level: IPV6,
        why: "makes an IPv4 socket of an IPv6 one while rules are asked about it",
        options: &[(1, "IPV6_ADDRFORM")],
    },
    Group {
        level: IPV6,
        why: ROUTE,
        options: &[
            (6, "IPV6_2292PKTOPTIONS"),
            (9, "IPV6_NEXTHOP"),
            (54, "IPV6_HOPOPTS"),
            (55, "IPV6_RTHDRDSTOPTS"),
            (57, "IPV6_RTHDR"),
            (59, "IPV6_DSTOPTS"),
        ],
    },
    Group {
        level: IPV6,
        why: RAW,
        options: &[
            (7, "IPV6_CHECKSUM"),
            (22, "IPV6_ROUTER_ALERT"),
            (30, "IPV6_ROUTER_ALERT_ISOLATE"),
            (36, "IPV6_HDRINCL"),
        ],
    },
    Group { level: IPV6, why: ANYCAST, options: &[(27, "IPV6_JOIN_ANYCAST"), (28, "IPV6_LEAVE_ANYCAST")] },
    Group { level: IPV6, why: LABEL, options: &[(32, "IPV6_FLOWLABEL_MGR"), (33, "IPV6_FLOWINFO_SEND")] },
    Group { level: IPV6, why: TRANSFORM, options: &[(34, "IPV6_IPSEC_POLICY"), (35, "IPV6_XFRM_POLICY")] },
    Group {
        level: IPV6,
        why: "chooses the source address of every packet, which bind was not asked about",
        options: &[(50, "IPV6_PKTINFO")],
    },
    Group { level: IPV6, why: ANY_SOURCE, options: &[(75, "IPV6_TRANSPARENT"), (78, "IPV6_FREEBIND")] },
];

/// The options by which the unspecified address, which stands for loopback, comes to stand for a device's address. See
/// [`crate::policy::FLAG_DEVICES`].
pub const DEVICES: [(i32, i32); 3] = [(IP, 50), (SOCKET, 25), (SOCKET, 62)];

/// Every option that has a name here or in the list, as level, number and name.
pub fn all() -> impl Iterator<Item = (i32, i32, &'static str)> {
    let listed = ALLOWED.iter().map(|level| (level.number, level.options));
    let unlisted = NAMEABLE.iter().chain(NEVER).map(|group| (group.level, group.options));
    listed
        .chain(unlisted)
        .flat_map(|(level, options)| options.iter().map(move |(number, name)| (level, *number, *name)))
}

/// The name of an option, for people.
pub fn name(level: i32, option: i32) -> Option<&'static str> {
    all().find(|(at, number, _)| (*at, *number) == (level, option)).map(|(_, _, name)| name)
}

/// The name of an option that no other level has for one of its own.
pub fn unique_name(level: i32, option: i32) -> Option<&'static str> {
    name(level, option).filter(|name| all().filter(|(_, _, other)| other == name).count() == 1)
}

/// Why no profile may name an option; follows "it". `None`: one may.
pub fn refused(level: i32, option: i32) -> Option<&'static str> {
    let group = NEVER
        .iter()
        .find(|group| group.level == level && group.options.iter().any(|(number, _)| *number == option));
    if let Some(group) = group {
        return Some(group.why);
    }
    match level {
        IP | IPV6 if name(level, option).is_some() => None,
        IP | IPV6 if option >= FILTER => Some("is the packet filter's or a multicast router's"),
        // Routes and addresses are set at these levels.
        IP | IPV6 => Some("is none that this version knows, and may hold a route or an address"),
        _ => None,
    }
}

/// An option as one number: how a policy has it, see [`crate::policy::named::OPTION`].
#[inline(always)]
pub const fn value(level: i32, option: i32) -> u64 {
    (level as u32 as u64) << 32 | option as u32 as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::is_allowed;

    #[test]
    fn what_is_left_out_is_not_in_the_list_and_has_its_reason() {
        for group in NAMEABLE.iter().chain(NEVER) {
            assert!(!group.why.is_empty());
            assert!(group.options.is_sorted_by(|a, b| a.0 <= b.0), "{group:?}");
            for (number, name) in group.options {
                assert!(!is_allowed(group.level, *number), "{name}");
                assert_eq!(
                    refused(group.level, *number).is_some(),
                    NEVER.iter().any(|g| core::ptr::eq(g, group)),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn an_option_is_there_once_and_a_name_once_in_its_level() {
        for (at, (level, number, name)) in all().enumerate() {
            for (other_level, other, other_name) in all().skip(at + 1) {
                assert!(level != other_level || name != other_name, "{name}");
                let alias = name.contains("MEMBERSHIP") && other_name.ends_with("_GROUP");
                assert!((level, number) != (other_level, other) || alias, "{name} and {other_name}");
            }
        }
    }

    #[test]
    fn what_holds_a_route_or_chooses_an_address_or_port_is_refused() {
        for option in
            [(0, 4), (0, 15), (0, 19), (0, 51), (6, 31), (41, 32), (41, 50), (41, 57), (41, 59), (41, 78)]
        {
            assert!(refused(option.0, option.1).is_some(), "{option:?}");
        }
        // The packet filter's, and what nobody has looked at.
        for option in [(0, 64), (0, 80), (0, 60), (41, 64), (41, 80), (41, 12), (41, i32::MAX), (0, -1)] {
            assert!(refused(option.0, option.1).is_some(), "{option:?}");
        }
        for option in [(1, 36), (1, 25), (0, 2), (41, 67), (41, 76), (1, 9999), (282, 1)] {
            assert_eq!(refused(option.0, option.1), None, "{option:?}");
        }
        for (level, option) in DEVICES {
            assert_eq!(refused(level, option), None);
        }
    }

    #[test]
    fn a_value_holds_both_numbers() {
        assert_eq!(value(1, 36), 1 << 32 | 36);
        assert_eq!(value(-1, -1), u64::MAX);
    }
}
