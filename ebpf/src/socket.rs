//! Sockets and internet addresses as the hooks find them in the kernel's memory.

use ringfence_common::egress::is_of_network;

use crate::globals::{
    NET_COOKIE, SK_ADDR4, SK_ADDR6, SK_DADDR4, SK_DADDR6, SK_DEVICE, SK_DPORT, SK_FAMILY, SK_NET, SK_PORT,
    SK_PROTOCOL, SK_STATE, SK_TYPE, SOCKET_SK, get,
};
use crate::memory::{load, probe};

pub(crate) const AF_UNSPEC: u16 = 0;
pub(crate) const AF_UNIX: u16 = 1;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const SOCK_STREAM: u32 = 1;
pub(crate) const SOCK_DGRAM: u32 = 2;
pub(crate) const IPPROTO_TCP: u32 = 6;
pub(crate) const IPPROTO_UDP: u32 = 17;
/// `TCP_CLOSE` and `TCP_LISTEN`, states of a socket.
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// Bytes of a `sockaddr_in`, and of a `sockaddr_in6` up to the end of the address.
const LEN4: u64 = 16;
const LEN6: u64 = 24;
/// The second word of `::ffff:0.0.0.0` as it lies in memory: 00 00 ff ff 00 00 00 00.
const MAPPED: u64 = 0xffff_0000;
/// `127.0.0.1` as it lies in memory.
pub(crate) const LOOPBACK4: u32 = u32::from_ne_bytes([127, 0, 0, 1]);
/// The second word of `::1` as it lies in memory; the first is 0.
pub(crate) const LOOPBACK6: u64 = u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 1]);
/// `skc_reuse` (four bits) and `skc_reuseport` (one), in the byte behind `skc_state`.
const SHARES: u8 = 0x1f;

/// An internet address as it lies in a [`NetKey`], v4 as v4-mapped v6, and a port in network byte order.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub(crate) high: u64,
    pub(crate) low: u64,
    pub(crate) port: u16,
    pub(crate) family: u16,
}

impl Address {
    #[inline(always)]
    pub(crate) fn v4(address: u32, port: u16) -> Self {
        Self { high: 0, low: MAPPED | (address as u64) << 32, port, family: AF_INET }
    }

    #[inline(always)]
    pub(crate) fn v6(high: u64, low: u64, port: u16) -> Self {
        Self { high, low, port, family: AF_INET6 }
    }

    /// Whether it is an IPv4 address.
    #[inline(always)]
    pub(crate) const fn is_mapped(&self) -> bool {
        self.high == 0 && self.low & 0xffff_ffff == MAPPED
    }

    /// The IPv4 address, network byte order, where it is one.
    #[inline(always)]
    pub(crate) const fn ip4(&self) -> u32 {
        (self.low >> 32) as u32
    }

    /// Whether it is the first of loopback's.
    #[inline(always)]
    pub(crate) const fn is_loopback(&self) -> bool {
        self.is_mapped() && self.ip4() == LOOPBACK4 || self.high == 0 && self.low == LOOPBACK6
    }

    /// Whether it is one that stands for a host's name.
    #[inline(always)]
    pub(crate) const fn is_named(&self) -> bool {
        self.is_mapped() && is_of_network(u32::from_be(self.ip4()))
    }

    #[inline(always)]
    const fn is_any4(&self) -> bool {
        self.high == 0 && self.low == MAPPED
    }

    #[inline(always)]
    pub(crate) const fn is_any6(&self) -> bool {
        self.high == 0 && self.low == 0
    }

    #[inline(always)]
    pub(crate) const fn is_any(&self) -> bool {
        self.is_any4() || self.is_any6()
    }
}

/// What a task named.
pub(crate) enum Named {
    /// An internet address.
    Inet(Address),
    /// No address: `AF_UNSPEC`.
    Nothing,
    /// Of another family, or too short to be what it says.
    Other,
}

/// Reads a socket address of the kernel's. `unspec_is_v4`: a call that takes `AF_UNSPEC` for `AF_INET`.
#[inline(always)]
pub(crate) fn read_address(at: u64, len: u64, unspec_is_v4: bool) -> Named {
    let mut words = [0u64; 3];
    let to = (&raw mut words).cast::<u8>();
    // SAFETY: `words` has 24 bytes.
    let read = unsafe {
        if len >= LEN6 {
            probe(to, LEN6, at)
        } else if len >= LEN4 {
            probe(to, LEN4, at)
        } else if len >= 2 {
            probe(to, 2, at)
        } else {
            false
        }
    };
    if !read {
        return Named::Other;
    }
    let family = words[0] as u16;
    let port = (words[0] >> 16) as u16;
    if family == AF_INET6 && len >= LEN6 {
        return Named::Inet(Address::v6(words[1], words[2], port));
    }
    if family == AF_INET || family == AF_UNSPEC && unspec_is_v4 {
        if len < LEN4 {
            return Named::Other;
        }
        return Named::Inet(Address::v4((words[0] >> 32) as u32, port));
    }
    if family == AF_UNSPEC { Named::Nothing } else { Named::Other }
}

/// A socket as the hooks know it: its `sock`, family and type.
pub(crate) struct Socket {
    pub(crate) sk: *const u8,
    pub(crate) family: u16,
    pub(crate) kind: u32,
}

impl Socket {
    /// None: it has no `sock` any more, and so nothing can be done with it.
    ///
    /// # Safety
    /// `socket` is a hook's `struct socket` argument.
    #[inline(always)]
    pub(crate) unsafe fn of(socket: *const u8) -> Option<Self> {
        // SAFETY: typed loads from the hook's argument.
        unsafe {
            let sk: *const u8 = load(socket, get(&SOCKET_SK));
            if sk.is_null() {
                return None;
            }
            let family: u16 = load(sk, get(&SK_FAMILY));
            let kind: u16 = load(sk, get(&SK_TYPE));
            Some(Self { sk, family, kind: u32::from(kind) })
        }
    }

    #[inline(always)]
    pub(crate) const fn is_inet(&self) -> bool {
        self.family == AF_INET || self.family == AF_INET6
    }

    #[inline(always)]
    pub(crate) const fn detail(&self) -> u32 {
        (self.family as u32) << 16 | self.kind
    }

    /// The address that it is bound to, its port included.
    #[inline(always)]
    pub(crate) unsafe fn local(&self) -> Address {
        // SAFETY: typed loads; an internet socket has these fields.
        unsafe {
            let port = load::<u16>(self.sk, get(&SK_PORT)).to_be();
            if self.family == AF_INET6 {
                let high = load(self.sk, get(&SK_ADDR6));
                Address::v6(high, load(self.sk, get(&SK_ADDR6) + 8), port)
            } else {
                Address::v4(load(self.sk, get(&SK_ADDR4)), port)
            }
        }
    }

    /// Whether it is TCP or UDP, the protocols that a grant covers.
    #[inline(always)]
    pub(crate) unsafe fn is_granted_kind(&self) -> bool {
        // SAFETY: a typed load.
        let protocol = u32::from(unsafe { load::<u16>(self.sk, get(&SK_PROTOCOL)) });
        self.kind == SOCK_STREAM && protocol == IPPROTO_TCP
            || self.kind == SOCK_DGRAM && protocol == IPPROTO_UDP
    }

    /// Whether it listens.
    #[inline(always)]
    pub(crate) unsafe fn listens(&self) -> bool {
        // SAFETY: a typed load.
        unsafe { load::<u8>(self.sk, get(&SK_STATE)) == LISTEN }
    }

    /// Whether it is connected, or being connected, or listens.
    #[inline(always)]
    pub(crate) unsafe fn is_in_use(&self) -> bool {
        // SAFETY: a typed load.
        unsafe { load::<u8>(self.sk, get(&SK_STATE)) != CLOSE }
    }

    /// Whether it is bound to a device.
    #[inline(always)]
    pub(crate) unsafe fn has_device(&self) -> bool {
        // SAFETY: a typed load.
        unsafe { load::<u32>(self.sk, get(&SK_DEVICE)) != 0 }
    }

    /// Whether the kernel is about to choose its port, and may choose one that another socket has: a datagram socket
    /// that shares its port. (TCP shares a port only where it was asked for by number.)
    #[inline(always)]
    pub(crate) unsafe fn shares_any_port(&self) -> bool {
        // SAFETY: typed loads.
        unsafe {
            self.kind == SOCK_DGRAM
                && load::<u8>(self.sk, get(&SK_STATE) + 1) & SHARES != 0
                && load::<u16>(self.sk, get(&SK_PORT)) == 0
        }
    }

    /// The address that it is connected to, its port included; the port is 0 where it is not.
    #[inline(always)]
    pub(crate) unsafe fn remote(&self) -> Address {
        // SAFETY: typed loads; an internet socket has these fields.
        unsafe {
            let port = load(self.sk, get(&SK_DPORT));
            if self.family == AF_INET6 {
                let high = load(self.sk, get(&SK_DADDR6));
                Address::v6(high, load(self.sk, get(&SK_DADDR6) + 8), port)
            } else {
                Address::v4(load(self.sk, get(&SK_DADDR4)), port)
            }
        }
    }

    /// The cookie of its network namespace.
    #[inline(always)]
    pub(crate) unsafe fn netns(&self) -> u64 {
        // SAFETY: typed loads; every socket has a namespace.
        unsafe { load(load::<*const u8>(self.sk, get(&SK_NET)), get(&NET_COOKIE)) }
    }

    /// Where the kernel really goes when told to go to the unspecified address: to itself, by the address that the
    /// socket is bound to, or else by loopback.
    #[inline(always)]
    pub(crate) unsafe fn itself(&self, any: Address) -> Address {
        // SAFETY: as for `local`.
        unsafe {
            let port = any.port;
            let loopback4 = Address::v4(LOOPBACK4, port);
            if any.is_any6() {
                let bound = self.local();
                if self.family == AF_INET6 && bound.is_mapped() {
                    return loopback4;
                }
                return Address::v6(0, LOOPBACK6, port);
            }
            let bound: u32 = load(self.sk, get(&SK_ADDR4));
            if bound == 0 { loopback4 } else { Address::v4(bound, port) }
        }
    }
}
