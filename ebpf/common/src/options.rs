//! Which socket options and control messages a governed task may use. What is not named here is refused: what no
//! version of Ringfence has looked at may route packets, filter other sockets' packets or choose a port.
//!
//! What is left out on purpose is in [`crate::unlisted`], with the reason and with what of it a profile may allow.

/// The options of one level that may be used.
#[derive(Clone, Copy, Debug)]
pub struct Level {
    /// The level's number, as setsockopt(2) takes it.
    pub number: i32,
    /// Its name.
    pub name: &'static str,
    /// Number and name of each option.
    pub options: &'static [(i32, &'static str)],
}

/// Largest number of an option in a table.
const LAST: i32 = 127;

/// What a governed task may give to setsockopt(2), on sockets of every family.
pub const ALLOWED: &[Level] = &[
    Level {
        number: 0,
        name: "SOL_IP",
        options: &[
            (1, "IP_TOS"),
            (2, "IP_TTL"),
            (6, "IP_RECVOPTS"),
            (8, "IP_PKTINFO"),
            (10, "IP_MTU_DISCOVER"),
            (11, "IP_RECVERR"),
            (12, "IP_RECVTTL"),
            (13, "IP_RECVTOS"),
            (14, "IP_MTU"),
            (18, "IP_PASSSEC"),
            (20, "IP_RECVORIGDSTADDR"),
            (21, "IP_MINTTL"),
            (23, "IP_CHECKSUM"),
            (24, "IP_BIND_ADDRESS_NO_PORT"),
            (25, "IP_RECVFRAGSIZE"),
            (26, "IP_RECVERR_RFC4884"),
            (33, "IP_MULTICAST_TTL"),
            (34, "IP_MULTICAST_LOOP"),
            (49, "IP_MULTICAST_ALL"),
        ],
    },
    Level {
        number: 1,
        name: "SOL_SOCKET",
        options: &[
            (2, "SO_REUSEADDR"),
            (6, "SO_BROADCAST"),
            (7, "SO_SNDBUF"),
            (8, "SO_RCVBUF"),
            (9, "SO_KEEPALIVE"),
            (10, "SO_OOBINLINE"),
            (11, "SO_NO_CHECK"),
            (12, "SO_PRIORITY"),
            (13, "SO_LINGER"),
            (14, "SO_BSDCOMPAT"),
            (15, "SO_REUSEPORT"),
            (16, "SO_PASSCRED"),
            (18, "SO_RCVLOWAT"),
            (19, "SO_SNDLOWAT"),
            (20, "SO_RCVTIMEO_OLD"),
            (21, "SO_SNDTIMEO_OLD"),
            (26, "SO_ATTACH_FILTER"),
            (27, "SO_DETACH_FILTER"),
            (29, "SO_TIMESTAMP_OLD"),
            (34, "SO_PASSSEC"),
            (35, "SO_TIMESTAMPNS_OLD"),
            (37, "SO_TIMESTAMPING_OLD"),
            (40, "SO_RXQ_OVFL"),
            (42, "SO_PEEK_OFF"),
            (44, "SO_LOCK_FILTER"),
            (45, "SO_SELECT_ERR_QUEUE"),
            (46, "SO_BUSY_POLL"),
            (47, "SO_MAX_PACING_RATE"),
            (49, "SO_INCOMING_CPU"),
            (60, "SO_ZEROCOPY"),
            (63, "SO_TIMESTAMP_NEW"),
            (64, "SO_TIMESTAMPNS_NEW"),
            (65, "SO_TIMESTAMPING_NEW"),
            (66, "SO_RCVTIMEO_NEW"),
            (67, "SO_SNDTIMEO_NEW"),
            (69, "SO_PREFER_BUSY_POLL"),
            (70, "SO_BUSY_POLL_BUDGET"),
            (72, "SO_BUF_LOCK"),
            (74, "SO_TXREHASH"),
            (76, "SO_PASSPIDFD"),
            (82, "SO_RCVPRIORITY"),
            (83, "SO_PASSRIGHTS"),
        ],
    },
    Level {
        number: 6,
        name: "SOL_TCP",
        options: &[
            (1, "TCP_NODELAY"),
            (2, "TCP_MAXSEG"),
            (3, "TCP_CORK"),
            (4, "TCP_KEEPIDLE"),
            (5, "TCP_KEEPINTVL"),
            (6, "TCP_KEEPCNT"),
            (7, "TCP_SYNCNT"),
            (8, "TCP_LINGER2"),
            (9, "TCP_DEFER_ACCEPT"),
            (10, "TCP_WINDOW_CLAMP"),
            (12, "TCP_QUICKACK"),
            (13, "TCP_CONGESTION"),
            (16, "TCP_THIN_LINEAR_TIMEOUTS"),
            (17, "TCP_THIN_DUPACK"),
            (18, "TCP_USER_TIMEOUT"),
            (23, "TCP_FASTOPEN"),
            (24, "TCP_TIMESTAMP"),
            (25, "TCP_NOTSENT_LOWAT"),
            (27, "TCP_SAVE_SYN"),
            (30, "TCP_FASTOPEN_CONNECT"),
            (33, "TCP_FASTOPEN_KEY"),
            (34, "TCP_FASTOPEN_NO_COOKIE"),
            (36, "TCP_INQ"),
            (37, "TCP_TX_DELAY"),
            (44, "TCP_RTO_MAX_MS"),
            (45, "TCP_RTO_MIN_US"),
            (46, "TCP_DELACK_MAX_US"),
        ],
    },
    Level {
        number: 17,
        name: "SOL_UDP",
        options: &[
            (1, "UDP_CORK"),
            (101, "UDP_NO_CHECK6_TX"),
            (102, "UDP_NO_CHECK6_RX"),
            (103, "UDP_SEGMENT"),
            (104, "UDP_GRO"),
        ],
    },
    Level {
        number: 41,
        name: "SOL_IPV6",
        options: &[
            (16, "IPV6_UNICAST_HOPS"),
            (18, "IPV6_MULTICAST_HOPS"),
            (19, "IPV6_MULTICAST_LOOP"),
            (23, "IPV6_MTU_DISCOVER"),
            (24, "IPV6_MTU"),
            (25, "IPV6_RECVERR"),
            (26, "IPV6_V6ONLY"),
            (29, "IPV6_MULTICAST_ALL"),
            (31, "IPV6_RECVERR_RFC4884"),
            (49, "IPV6_RECVPKTINFO"),
            (51, "IPV6_RECVHOPLIMIT"),
            (60, "IPV6_RECVPATHMTU"),
            (62, "IPV6_DONTFRAG"),
            (66, "IPV6_RECVTCLASS"),
            (67, "IPV6_TCLASS"),
            (70, "IPV6_AUTOFLOWLABEL"),
            (72, "IPV6_ADDR_PREFERENCES"),
            (73, "IPV6_MINHOPCOUNT"),
            (74, "IPV6_RECVORIGDSTADDR"),
            (77, "IPV6_RECVFRAGSIZE"),
        ],
    },
];

/// The control messages that a governed task may send with a message on an internet socket.
pub const CONTROLS: &[Level] = &[
    Level { number: 0, name: "SOL_IP", options: &[(1, "IP_TOS"), (2, "IP_TTL"), (8, "IP_PKTINFO")] },
    Level {
        number: 1,
        name: "SOL_SOCKET",
        options: &[
            (12, "SO_PRIORITY"),
            (37, "SO_TIMESTAMPING_OLD"),
            (65, "SO_TIMESTAMPING_NEW"),
            (81, "SCM_TS_OPT_ID"),
        ],
    },
    Level { number: 17, name: "SOL_UDP", options: &[(103, "UDP_SEGMENT")] },
    Level {
        number: 41,
        name: "SOL_IPV6",
        options: &[(50, "IPV6_PKTINFO"), (52, "IPV6_HOPLIMIT"), (62, "IPV6_DONTFRAG"), (67, "IPV6_TCLASS")],
    },
];

/// A level's options as bits: 0 to 63, 64 to 127.
type Bits = (u64, u64);

/// The bits of one level of a table; none where the table does not have it. A number that has no bit does not compile.
const fn bits(table: &[Level], number: i32) -> Bits {
    let (mut low, mut high) = (0, 0);
    let mut at = 0;
    while at < table.len() {
        let mut index = 0;
        while table[at].number == number && index < table[at].options.len() {
            let option = table[at].options[index].0;
            assert!(option >= 0 && option <= LAST);
            if option < 64 {
                low |= 1 << option
            } else {
                high |= 1 << (option - 64)
            }
            index += 1;
        }
        at += 1;
    }
    (low, high)
}

macro_rules! in_table {
    ($level:expr, $option:expr, $table:ident, $($number:literal)*) => {{
        let (level, option) = ($level, $option);
        if option < 0 || option > LAST {
            return false;
        }
        $(if level == $number {
            const BITS: Bits = bits($table, $number);
            let word = if option < 64 { BITS.0 } else { BITS.1 };
            return word >> (option as u32 & 63) & 1 != 0;
        })*
        false
    }};
}

/// Whether setsockopt(2) may be called with this level and option.
#[inline(always)]
pub const fn is_allowed(level: i32, option: i32) -> bool {
    in_table!(level, option, ALLOWED, 0 1 6 17 41)
}

/// Whether a message may carry control data of this level and type.
#[inline(always)]
pub const fn is_allowed_control(level: i32, kind: i32) -> bool {
    in_table!(level, kind, CONTROLS, 0 1 17 41)
}

/// Level and option as an event's `target` has them.
#[inline(always)]
pub const fn target(level: i32, option: i32) -> u32 {
    (level as u32) << 16 | option as u32 & 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(table: &[Level], level: i32, option: i32) -> bool {
        table.iter().any(|one| one.number == level && one.options.iter().any(|(number, _)| *number == option))
    }

    #[test]
    fn the_bits_say_what_the_tables_say() {
        for level in (-2..300).chain([i32::MIN, i32::MAX, 1 << 16, 1 << 16 | 1]) {
            for option in (-2..300).chain([i32::MIN, i32::MAX, 1 << 16 | 2, 64 + 128]) {
                assert_eq!(is_allowed(level, option), named(ALLOWED, level, option), "{level} {option}");
                assert_eq!(
                    is_allowed_control(level, option),
                    named(CONTROLS, level, option),
                    "{level} {option}"
                );
            }
        }
    }

    #[test]
    fn tables_are_sorted_without_duplicates() {
        for table in [ALLOWED, CONTROLS] {
            assert!(table.is_sorted_by(|a, b| a.number < b.number));
            assert!(table.iter().all(|level| level.options.is_sorted_by(|a, b| a.0 < b.0)));
        }
    }

    #[test]
    fn what_routes_redirects_or_chooses_a_port_is_refused() {
        let refused = [
            (0, 4, "IP_OPTIONS"),
            (0, 7, "IP_RETOPTS"),
            (0, 15, "IP_FREEBIND"),
            (0, 19, "IP_TRANSPARENT"),
            (0, 35, "IP_ADD_MEMBERSHIP"),
            (0, 50, "IP_UNICAST_IF"),
            (0, 51, "IP_LOCAL_PORT_RANGE"),
            (0, 64, "IPT_SO_SET_REPLACE"),
            (1, 25, "SO_BINDTODEVICE"),
            (1, 36, "SO_MARK"),
            (1, 50, "SO_ATTACH_BPF"),
            (1, 51, "SO_ATTACH_REUSEPORT_CBPF"),
            (1, 62, "SO_BINDTOIFINDEX"),
            (6, 19, "TCP_REPAIR"),
            (6, 31, "TCP_ULP"),
            (17, 100, "UDP_ENCAP"),
            (41, 1, "IPV6_ADDRFORM"),
            (41, 20, "IPV6_JOIN_GROUP"),
            (41, 32, "IPV6_FLOWLABEL_MGR"),
            (41, 33, "IPV6_FLOWINFO_SEND"),
            (41, 50, "IPV6_PKTINFO"),
            (41, 57, "IPV6_RTHDR"),
            (270, 1, "NETLINK_ADD_MEMBERSHIP"),
        ];
        for (level, option, name) in refused {
            assert!(!is_allowed(level, option), "{name}");
        }
        for (level, kind, name) in
            [(0, 7, "IP_RETOPTS"), (1, 36, "SO_MARK"), (41, 11, "IPV6_FLOWINFO"), (41, 57, "IPV6_RTHDR")]
        {
            assert!(!is_allowed_control(level, kind), "{name}");
        }
    }

    #[test]
    fn a_target_holds_level_and_option() {
        assert_eq!(target(41, 32), 41 << 16 | 32);
        assert_eq!(target(-1, -1), u32::MAX);
    }
}
