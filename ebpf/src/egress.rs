//! Outgoing packets. Where a packet goes was judged when a task named the address; what is judged here is what no hook
//! sees of every packet: whether it carries a route of its own. (sendmmsg does not ask `socket_sendmsg` again for an
//! address that it has just sent to, whatever control data comes with it.)
//!
//! Attached to the root of cgroup v2, so that every packet of every internet socket comes by. Addresses are not looked
//! at: by now the packet filter may have changed them (a container engine's resolver and proxies do). But for loopback's,
//! which lead out by another interface where the socket or control data chose one: what was sent to an egress worker
//! (`rewrite`) would be on a wire then. And but for datagrams of sockets that are connected to a worker's resolver, which no other
//! program sees: once that is gone, its port is anybody's.
//!
//! There is no task here, only a socket: a packet may be sent by a timer or by whoever runs on this CPU.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::programs::SkBuffContext;
use ringfence_common::event::{Record, SMALL_SECTION, fixed, op, rule, verdict};
use ringfence_common::net::Owner;
use ringfence_common::policy::{FLAG_AUDIT, FLAG_EGRESS};
use ringfence_common::{ABI_VERSION, MAX_CONTAINERS};

use crate::emit::within_rate;
use crate::identity::counters;
use crate::memory::{add, fetch, put};
use crate::rewrite::{is_listened_at, listener};
use crate::socket::{AF_INET, Address, LOOPBACK6};
use crate::storage::{CONTAINERS, DENIED, POLICIES, REDIRECTED, SOCKETS};

/// What the program returns: let the packet go, or drop it (the sender sees EPERM).
const PASS: i32 = 1;
const DROP: i32 = 0;
/// The number of the loopback interface, in every network namespace.
const LOOPBACK: u32 = 1;
/// Bytes of an IPv4 header without options, and of an IPv6 header.
const HEADER4: usize = 20;
const HEADER6: usize = 40;
/// Bytes of the shortest extension header.
const EXTENSION: usize = 8;
/// Extension headers of IPv6 that lead by way of other hosts or are read by them.
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const DESTINATION: u8 = 60;
const MOBILITY: u8 = 135;
const HOST_IDENTITY: u8 = 139;
const SHIM6: u8 = 140;
const TCP: u8 = 6;
const UDP: u8 = 17;
/// Bytes of the two ports, which UDP begins with.
const PORTS_OF_UDP: usize = 4;
/// The option of a hop-by-hop header by which the kernel itself says how long a TCP packet of more than 64 KiB is
/// until the device cuts it: 0xc2, four bytes.
const JUMBO: u8 = 0xc2;

/// An outgoing packet of an internet socket, at its IP header.
#[cgroup_skb(egress)]
pub fn outgoing_packet(ctx: SkBuffContext) -> i32 {
    let skb = ctx.skb.skb;
    // SAFETY: fields of the context; what lies between `data` and `data_end` may be read, as the verifier checks.
    unsafe {
        let (data, end) = ((*skb).data as usize, (*skb).data_end as usize);
        if data + HEADER4 > end {
            return judge(skb, None, false); // the kernel keeps the header there; whoever does not is judged by whose it is
        }
        let first = byte(data, 0);
        if first >> 4 == 4 {
            let plain = first == 0x45; // no options
            if plain && byte(data, 16) != 127 {
                return PASS;
            }
            if plain && (*skb).ifindex == LOOPBACK {
                if byte(data, 9) != UDP || data + HEADER4 + PORTS_OF_UDP > end {
                    return PASS;
                }
                return to_resolver(skb, true, ((data + HEADER4 + 2) as *const u16).read_unaligned());
            }
            let at = (data + 16) as *const u32;
            return judge(skb, Some(Address::v4(at.read_unaligned(), 0)), plain);
        }
        if data + HEADER6 > end {
            return judge(skb, None, false);
        }
        let next = byte(data, 6);
        let (high, low) = ((data + 24) as *const u64, (data + 32) as *const u64);
        let address = Address::v6(high.read_unaligned(), low.read_unaligned(), 0);
        if first >> 4 == 6 && !leads(next) {
            if address.high != 0 || address.low != LOOPBACK6 {
                return PASS;
            }
            if (*skb).ifindex != LOOPBACK {
                return judge(skb, Some(address), true);
            }
            if next != UDP || data + HEADER6 + PORTS_OF_UDP > end {
                return PASS;
            }
            return to_resolver(skb, false, ((data + HEADER6 + 2) as *const u16).read_unaligned());
        }
        if next == HOP_BY_HOP && data + HEADER6 + EXTENSION <= end {
            let header = (byte(data, 40), byte(data, 41), byte(data, 42), byte(data, 43));
            if header == (TCP, 0, JUMBO, 4) {
                return PASS;
            }
        }
        judge(skb, Some(address), false)
    }
}

/// Whether a packet whose first header is followed by this one carries more than its data. The kernel puts a
/// fragment's header, and those of IPsec, behind all that are named here.
#[inline(always)]
const fn leads(next: u8) -> bool {
    matches!(next, HOP_BY_HOP | ROUTING | DESTINATION | MOBILITY | HOST_IDENTITY | SHIM6)
}

/// A datagram to loopback. Of a socket that was sent to a container's resolver it goes to that and to nobody else.
#[inline(always)]
unsafe fn to_resolver(skb: *mut __sk_buff, v4: bool, port: u16) -> i32 {
    if !is_listened_at(port) {
        return PASS;
    }
    // SAFETY: the context's socket, checked for null; the rest are values of maps.
    unsafe {
        let sk = (*skb).__bindgen_anon_2.sk;
        if sk.is_null() {
            return PASS;
        }
        let entry = REDIRECTED.of(sk.cast());
        if entry.is_null() || fetch(&raw const (*entry).target) != port {
            return PASS;
        }
        let container = fetch(&raw const (*entry).container);
        if listener(skb.cast(), false, v4, port) == container { PASS } else { DROP }
    }
}

#[inline(always)]
unsafe fn byte(data: usize, at: usize) -> u8 {
    // SAFETY: the caller has compared `data` with the packet's end.
    unsafe { fetch((data + at) as *const u8) }
}

/// Judges a packet with a route, or one that is `astray`, to loopback by another interface: refused on a governed socket
/// (the latter where its container has an egress worker), let go on any other.
#[inline(always)]
unsafe fn judge(skb: *mut __sk_buff, address: Option<Address>, astray: bool) -> i32 {
    // SAFETY: the context's socket, checked for null; the rest are values of maps.
    unsafe {
        let sk = (*skb).__bindgen_anon_2.sk;
        if sk.is_null() {
            return PASS;
        }
        let owner = SOCKETS.of(sk.cast());
        if owner.is_null() || (*owner).container == 0 {
            return PASS;
        }
        let container = (*owner).container;
        let (mut flags, mut generation) = (0, 0);
        if let Some(entry) = CONTAINERS.get_ptr((container & (MAX_CONTAINERS as u64 - 1)) as u32)
            && fetch(&raw const (*entry).id) == container
            && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
            && fetch(&raw const (*policy).seed) != 0
        {
            flags = (*policy).flags;
            generation = (*policy).generation;
        }
        if astray && flags & FLAG_EGRESS == 0 {
            return PASS;
        }
        // What is sent to a worker is not to be on a wire, whatever the policy.
        let audit = flags & FLAG_AUDIT != 0 && !astray;
        record(owner, address, audit, generation);
        if audit { PASS } else { DROP }
    }
}

/// Records the packet as sent by whoever made the socket, or counts it as lost.
#[inline(always)]
unsafe fn record(owner: *const Owner, address: Option<Address>, audit: bool, generation: u32) {
    // SAFETY: the owner and the counters are values of maps, the record lies in a ring.
    unsafe {
        let container = (*owner).container;
        let Some(counters) = counters(container) else { return };
        if !audit {
            add(&raw mut (*counters).denied, 1);
        }
        let now = bpf_ktime_get_boot_ns();
        if !within_rate(counters, now) {
            add(&raw mut (*counters).lost_denied, 1);
            return;
        }
        let Some(mut entry) = DENIED.reserve::<Record<SMALL_SECTION>>(0) else {
            add(&raw mut (*counters).lost_denied, 1);
            return;
        };
        let (high, low, family) = match address {
            Some(address) => (address.high, address.low, address.family),
            None => (0, 0, 0),
        };
        let header = &raw mut (*entry.as_mut_ptr()).header;
        (*header).version = ABI_VERSION as u16;
        (*header).op = op::SEND;
        (*header).verdict = if audit { verdict::WOULD_DENY } else { verdict::DENIED };
        (*header).flags = 0;
        (*header).time = now;
        (*header).container = container;
        (*header).call = 0;
        (*header).start = (*owner).start;
        // A socket does not keep it.
        (*header).lineage = [1, 0, 0, 0];
        (*header).generation = generation;
        (*header).pid = (*owner).pid;
        (*header).tgid = (*owner).tgid;
        (*header).ppid = 0;
        (*header).uid = (*owner).uid;
        (*header).detail =
            u32::from(if family == 0 { AF_INET } else { family }) << 16 | (*owner).kind & 0xffff;
        (*header).repeats = 1;
        (*header).rule_kind = rule::FIXED;
        (*header).rule = fixed::ROUTE;
        (*header).axes = 0;
        (*header).family = family;
        (*header).port = 0;
        let addr = (&raw mut (*header).addr).cast::<u64>();
        put(addr, high);
        put(addr.add(1), low);
        (*header).path_len = 0;
        (*header).path2_len = 0;
        (*header).exe_len = 0;
        (*header).section = SMALL_SECTION as u16;
        (*header).target = 0;
        entry.submit(0);
    }
}
