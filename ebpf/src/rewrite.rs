//! Outbound names, the side of cgroups: programs at the root of cgroup v2 that send what a governed socket connects or
//! sends to elsewhere, and say where it was meant to go where somebody asks who the other end is.
//!
//! They run in the system call that the LSM programs have judged, and judge again: a policy may have been swapped in
//! between, and a second thread may use the same socket. The address that was judged is sent elsewhere, not the one that is
//! there now: other programs of cgroups may run before these, those of balancers that turn one address into another. A task is asked for first and the socket's owner second, as in
//! the LSM programs, where only tasks count. Task storage is out of reach here; the map of members is not.
//!
//! Whatever is neither for a nameserver nor in the network of the blocks leaves at once, but for what anybody, governed or
//! not, sends straight to a worker's socket: nobody but a redirected socket gets there. Others could use up what the worker
//! can do, ask its resolver, and have their questions on record as the container's.

use core::ffi::c_void;

use aya_ebpf::bindings::{bpf_sock, bpf_sock_addr, bpf_sock_tuple};
use aya_ebpf::helpers::generated::{
    bpf_get_current_task, bpf_get_netns_cookie, bpf_sk_lookup_tcp, bpf_sk_lookup_udp, bpf_sk_release,
};
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use ringfence_common::egress::{DNS_PORT, Judged, Redirect, RedirectedFlow, is_of_network};
use ringfence_common::policy::{FLAG_AUDIT, FLAG_EGRESS, container_index};

use crate::memory::{fetch, put};
use crate::net::Found;
use crate::redirect::{is_in_block, redirect_of};
use crate::socket::{Address, LOOPBACK4, LOOPBACK6, SOCK_STREAM};
use crate::storage::{CONTAINERS, JUDGED, LISTENERS, MEMBERS, POLICIES, PORTS, REDIRECTED, SOCKETS};

/// What a program returns: go on with the address as it is now, or refuse (the caller sees EPERM).
const PASS: i32 = 1;
const REFUSE: i32 = 0;
/// `BPF_F_CURRENT_NETNS`: that of the socket.
const CURRENT_NETNS: u64 = u64::MAX;
/// Bytes of the IPv4 and of the IPv6 half of a `bpf_sock_tuple`.
const TUPLE4: u32 = 12;
const TUPLE6: u32 = 36;

/// What becomes of an address.
enum Fate {
    Pass,
    Refuse,
    /// To this port of loopback, network byte order.
    To(u16),
}

/// Who connects or sends, and what their policy says.
struct Asked {
    container: u64,
    /// It is the task's own container. False: only the socket's owner's.
    is_task: bool,
    /// 0: there is no policy.
    seed: u64,
    flags: u32,
}

impl Asked {
    /// `None`: neither the task nor the socket is governed.
    ///
    /// # Safety
    /// `sk` is a context's socket.
    #[inline(always)]
    unsafe fn by(sk: *mut bpf_sock) -> Option<Self> {
        // SAFETY: the values of maps.
        unsafe {
            let me = bpf_get_current_task();
            let mut container = match MEMBERS.get(&me) {
                Some(container) => *container,
                None => 0,
            };
            let is_task = container != 0;
            if !is_task {
                let owner = SOCKETS.of(sk.cast());
                if owner.is_null() {
                    return None;
                }
                container = fetch(&raw const (*owner).container);
                if container == 0 {
                    return None;
                }
            }
            let mut asked = Self { container, is_task, seed: 0, flags: 0 };
            if let Some(entry) = CONTAINERS.get_ptr(container_index(container) as u32)
                && fetch(&raw const (*entry).id) == container
                && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
            {
                asked.seed = fetch(&raw const (*policy).seed);
                asked.flags = fetch(&raw const (*policy).flags);
            }
            Some(asked)
        }
    }
}

/// What this system call was let go to, to be sent elsewhere.
#[inline(always)]
unsafe fn judged() -> Option<Judged> {
    // SAFETY: it takes nothing; what the map returns is copied before it is taken out.
    let (me, found) = unsafe {
        let me = bpf_get_current_task();
        (me, JUDGED.get(&me).copied()?)
    };
    let _ = JUDGED.remove(&me);
    Some(found)
}

/// Says where to go instead of `address`, and notes with the socket where it was meant to go. `judged`: by whom it was judged in
/// this call, if it was.
///
/// # Safety
/// `ctx` is the program's context.
#[inline(always)]
unsafe fn redirect(ctx: *mut bpf_sock_addr, address: Address, judged: Option<&Judged>) -> Fate {
    // SAFETY: the context and its socket; the values of maps.
    unsafe {
        let sk = socket_of(ctx);
        let Some(asked) = Asked::by(sk) else { return Fate::Pass };
        let named = address.is_named();
        let found = Found::of(asked.seed, (address.high, address.low), address.port);
        let granted = asked.seed != 0 && found.is_allowed();
        if asked.flags & FLAG_EGRESS == 0 || asked.seed == 0 {
            // The task was let through by an LSM program. If not for this policy's sake, then for that of one that has gone
            // since.
            let held = asked.is_task && (asked.seed == 0 || asked.flags & FLAG_AUDIT == 0);
            return if held && !granted { Fate::Refuse } else { Fate::Pass };
        }
        let tcp = fetch(&raw const (*ctx).type_) == SOCK_STREAM;
        if named {
            if !tcp || !granted && asked.flags & FLAG_AUDIT == 0 {
                return Fate::Refuse;
            }
        } else if found.is_allowed_by_port() {
            return Fate::Pass;
        }
        let Some(redirect) = redirect_of(asked.container) else { return Fate::Refuse };
        if named && !is_in_block(redirect, address.ip4())
            || fetch(&raw const (*redirect).netns) != bpf_get_netns_cookie(ctx.cast())
            || fetch(&raw const (*sk).bound_dev_if) != 0
        {
            return Fate::Refuse;
        }
        let target = target_of(redirect, named, tcp, address.is_mapped());
        if target == 0 || listener(ctx.cast(), tcp, address.is_mapped(), target) != asked.container {
            return Fate::Refuse;
        }
        let flow = match judged {
            Some(judged) if named && judged.flow.container == asked.container => Some(&judged.flow),
            // Nobody knows who connects.
            _ if named => return Fate::Refuse,
            _ => None,
        };
        if note(sk, address, target, asked.container, flow) { Fate::To(target) } else { Fate::Refuse }
    }
}

#[inline(always)]
unsafe fn target_of(redirect: *const Redirect, named: bool, tcp: bool, v4: bool) -> u16 {
    // SAFETY: the value of a map.
    unsafe {
        if named {
            return fetch(&raw const (*redirect).tcp);
        }
        match (v4, tcp) {
            (true, true) => fetch(&raw const (*redirect).dns_tcp),
            (true, false) => fetch(&raw const (*redirect).dns_udp),
            (false, true) => fetch(&raw const (*redirect).dns6_tcp),
            (false, false) => fetch(&raw const (*redirect).dns6_udp),
        }
    }
}

/// The container whose worker's the socket at that port of loopback is, in the network namespace of the context's; 0: nobody's.
/// A port alone is nobody's: when the worker's socket is gone, the next to come gets it.
///
/// # Safety
/// `context` is a program's context that sockets can be looked up with.
#[inline(always)]
pub(crate) unsafe fn listener(context: *mut c_void, tcp: bool, v4: bool, port: u16) -> u64 {
    // SAFETY: the tuple is ours and as long as we say; a socket that was found is released.
    unsafe {
        let mut tuple: bpf_sock_tuple = core::mem::zeroed();
        let size = if v4 {
            tuple.__bindgen_anon_1.ipv4.saddr = LOOPBACK4;
            tuple.__bindgen_anon_1.ipv4.daddr = LOOPBACK4;
            tuple.__bindgen_anon_1.ipv4.dport = port;
            TUPLE4
        } else {
            tuple.__bindgen_anon_1.ipv6.saddr[3] = (LOOPBACK6 >> 32) as u32;
            tuple.__bindgen_anon_1.ipv6.daddr[3] = (LOOPBACK6 >> 32) as u32;
            tuple.__bindgen_anon_1.ipv6.dport = port;
            TUPLE6
        };
        let at = &raw mut tuple;
        let found = if tcp {
            bpf_sk_lookup_tcp(context, at, size, CURRENT_NETNS, 0)
        } else {
            bpf_sk_lookup_udp(context, at, size, CURRENT_NETNS, 0)
        };
        if found.is_null() {
            return 0;
        }
        let whose = LISTENERS.of(found.cast());
        let container = if whose.is_null() { 0 } else { fetch(whose) };
        bpf_sk_release(found.cast());
        container
    }
}

/// Whether a worker may listen at a port. Where none does, nobody pays for more.
#[inline(always)]
pub(crate) fn is_listened_at(port: u16) -> bool {
    match PORTS.get(u32::from(port >> 6)) {
        Some(word) => *word >> (port & 63) & 1 != 0,
        None => false,
    }
}

/// What becomes of an address of loopback that is no nameserver's. `v4`, `v6`: which of both it may be. A worker's socket is for
/// sockets that were sent there, by an earlier call or by the programs of an earlier load a moment ago, and these are for it: once
/// the worker is gone, the port is anybody's.
#[inline(always)]
unsafe fn straight(ctx: *mut bpf_sock_addr, port: u16, v4: bool, v6: bool) -> i32 {
    // SAFETY: the context and its socket, and the value of a map.
    unsafe {
        let entry = REDIRECTED.of(socket_of(ctx).cast());
        let was_sent = !entry.is_null() && fetch(&raw const (*entry).target) == port;
        let tcp = fetch(&raw const (*ctx).type_) == SOCK_STREAM;
        let is_workers = v4 && listener(ctx.cast(), tcp, true, port) != 0
            || v6 && listener(ctx.cast(), tcp, false, port) != 0;
        if was_sent == is_workers { PASS } else { REFUSE }
    }
}

/// Notes where it was meant to go, and for a name who goes there. False: no memory.
#[inline(always)]
unsafe fn note(
    sk: *mut bpf_sock,
    address: Address,
    target: u16,
    container: u64,
    flow: Option<&RedirectedFlow>,
) -> bool {
    // SAFETY: the context's socket, and the value of a map. Connections are made under the socket's lock.
    unsafe {
        let entry = REDIRECTED.make(sk.cast());
        if entry.is_null() {
            return false;
        }
        match flow {
            Some(flow) => put(&raw mut (*entry).flow, *flow),
            None => put(&raw mut (*entry).flow.container, 0),
        }
        put(&raw mut (*entry).container, container);
        put(&raw mut (*entry).original[0], address.high);
        put(&raw mut (*entry).original[1], address.low);
        put(&raw mut (*entry).original_port, address.port);
        put(&raw mut (*entry).target, target);
        true
    }
}

#[inline(always)]
unsafe fn socket_of(ctx: *mut bpf_sock_addr) -> *mut bpf_sock {
    // SAFETY: the program's context always has a socket.
    unsafe { fetch(&raw const (*ctx).__bindgen_anon_1.sk) }
}

#[inline(always)]
unsafe fn port_of(ctx: *mut bpf_sock_addr) -> u16 {
    // SAFETY: a field of the context.
    unsafe { fetch(&raw const (*ctx).user_port) as u16 }
}

/// An IPv4 address that somebody connects or sends to.
#[inline(always)]
unsafe fn outbound4(ctx: *mut bpf_sock_addr) -> i32 {
    // SAFETY: fields of the context and of its socket.
    unsafe {
        let judged = judged();
        let address = match &judged {
            Some(judged) => Address::v6(judged.address[0], judged.address[1], judged.port),
            None => {
                let (mut ip4, port) = (fetch(&raw const (*ctx).user_ip4), port_of(ctx));
                if port != DNS_PORT.to_be() && !is_of_network(u32::from_be(ip4)) {
                    let loopback = ip4 == LOOPBACK4 || ip4 == 0;
                    return if loopback && is_listened_at(port) {
                        straight(ctx, port, true, false)
                    } else {
                        PASS
                    };
                }
                if ip4 == 0 {
                    ip4 = itself4(ctx);
                }
                Address::v4(ip4, port)
            }
        };
        match redirect(ctx, address, judged.as_ref()) {
            Fate::Pass => PASS,
            Fate::To(target) if address.is_mapped() => {
                put(&raw mut (*ctx).user_ip4, LOOPBACK4);
                put(&raw mut (*ctx).user_port, u32::from(target));
                PASS
            }
            _ => REFUSE,
        }
    }
}

/// What 0.0.0.0 stands for: the address that the socket is bound to, or loopback.
#[inline(always)]
unsafe fn itself4(ctx: *mut bpf_sock_addr) -> u32 {
    // SAFETY: a field of the context's socket.
    let bound = unsafe { fetch(&raw const (*socket_of(ctx)).src_ip4) };
    if bound == 0 { LOOPBACK4 } else { bound }
}

/// An IPv6 address, or an IPv4 address in one, that somebody connects or sends to.
#[inline(always)]
unsafe fn outbound6(ctx: *mut bpf_sock_addr) -> i32 {
    // SAFETY: fields of the context.
    unsafe {
        let judged = judged();
        let address = match &judged {
            Some(judged) => Address::v6(judged.address[0], judged.address[1], judged.port),
            None => {
                let mut address = address6(ctx);
                if address.port != DNS_PORT.to_be() && !address.is_named() {
                    if !(address.is_any() || address.is_loopback()) || !is_listened_at(address.port) {
                        return PASS;
                    }
                    let v4 = address.is_mapped() || address.is_any6();
                    return straight(ctx, address.port, v4, !address.is_mapped());
                }
                if address.is_any6() {
                    // An IPv4 one on a socket that is bound to one.
                    let bound = is_bound_to_v4(ctx);
                    address = if bound {
                        Address::v4(LOOPBACK4, address.port)
                    } else {
                        Address::v6(0, LOOPBACK6, address.port)
                    };
                } else if address.is_any() {
                    address = Address::v4(itself4(ctx), address.port);
                }
                address
            }
        };
        match redirect(ctx, address, judged.as_ref()) {
            Fate::Pass => PASS,
            Fate::Refuse => REFUSE,
            Fate::To(target) => {
                let to = if address.is_mapped() { Address::v4(LOOPBACK4, 0).low } else { LOOPBACK6 };
                put_address6(ctx, 0, to);
                put(&raw mut (*ctx).user_port, u32::from(target));
                PASS
            }
        }
    }
}

#[inline(always)]
unsafe fn is_bound_to_v4(ctx: *mut bpf_sock_addr) -> bool {
    // SAFETY: fields of the context's socket.
    unsafe {
        let words = (&raw const (*socket_of(ctx)).src_ip6).cast::<u32>();
        fetch(words) == 0 && fetch(words.add(1)) == 0 && fetch(words.add(2)) == 0xffff_u32.to_be()
    }
}

#[inline(always)]
unsafe fn address6(ctx: *mut bpf_sock_addr) -> Address {
    // SAFETY: fields of the context.
    unsafe {
        let word = |n: usize| u64::from(fetch((&raw const (*ctx).user_ip6).cast::<u32>().add(n)));
        Address::v6(word(0) | word(1) << 32, word(2) | word(3) << 32, port_of(ctx))
    }
}

#[inline(always)]
unsafe fn put_address6(ctx: *mut bpf_sock_addr, high: u64, low: u64) {
    // SAFETY: fields of the context.
    unsafe {
        let words = (&raw mut (*ctx).user_ip6).cast::<u32>();
        put(words, high as u32);
        put(words.add(1), (high >> 32) as u32);
        put(words.add(2), low as u32);
        put(words.add(3), (low >> 32) as u32);
    }
}

/// Where the other end, at `port` of loopback (over IPv4: `v4`), was meant to be, if it is a worker's.
#[inline(always)]
unsafe fn meant(ctx: *mut bpf_sock_addr, v4: bool, port: u16) -> Option<Address> {
    // SAFETY: the context's socket, and the value of a map.
    unsafe {
        let entry = REDIRECTED.of(socket_of(ctx).cast());
        if entry.is_null() || port == 0 || fetch(&raw const (*entry).target) != port {
            return None;
        }
        let (high, low) = (fetch(&raw const (*entry).original[0]), fetch(&raw const (*entry).original[1]));
        let original = Address::v6(high, low, fetch(&raw const (*entry).original_port));
        if original.is_mapped() == v4 { Some(original) } else { None }
    }
}

/// The IPv4 address of the other end, about to be told.
#[inline(always)]
unsafe fn told4(ctx: *mut bpf_sock_addr) -> i32 {
    // SAFETY: fields of the context.
    unsafe {
        if fetch(&raw const (*ctx).user_ip4) == LOOPBACK4
            && let Some(original) = meant(ctx, true, port_of(ctx))
        {
            put(&raw mut (*ctx).user_ip4, original.ip4());
            put(&raw mut (*ctx).user_port, u32::from(original.port));
        }
        PASS
    }
}

/// The same of IPv6.
#[inline(always)]
unsafe fn told6(ctx: *mut bpf_sock_addr) -> i32 {
    // SAFETY: fields of the context.
    unsafe {
        let address = address6(ctx);
        if address.is_loopback()
            && let Some(original) = meant(ctx, address.is_mapped(), address.port)
        {
            put_address6(ctx, original.high, original.low);
            put(&raw mut (*ctx).user_port, u32::from(original.port));
        }
        PASS
    }
}

/// connect(2), also that of TCP Fast Open.
#[cgroup_sock_addr(connect4)]
pub fn connect4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { outbound4(ctx.sock_addr) }
}

/// The same of a socket address of IPv6.
#[cgroup_sock_addr(connect6)]
pub fn connect6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { outbound6(ctx.sock_addr) }
}

/// A datagram that has an address of its own: every one, also those of sendmmsg(2) that no LSM program sees.
#[cgroup_sock_addr(sendmsg4)]
pub fn sendmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { outbound4(ctx.sock_addr) }
}

/// The same of a socket address of IPv6.
#[cgroup_sock_addr(sendmsg6)]
pub fn sendmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { outbound6(ctx.sock_addr) }
}

/// Where a datagram came from.
#[cgroup_sock_addr(recvmsg4)]
pub fn recvmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { told4(ctx.sock_addr) }
}

/// The same of a socket of IPv6.
#[cgroup_sock_addr(recvmsg6)]
pub fn recvmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { told6(ctx.sock_addr) }
}

/// getpeername(2).
#[cgroup_sock_addr(getpeername4)]
pub fn getpeername4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { told4(ctx.sock_addr) }
}

/// The same of a socket of IPv6.
#[cgroup_sock_addr(getpeername6)]
pub fn getpeername6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the program's context.
    unsafe { told6(ctx.sock_addr) }
}
