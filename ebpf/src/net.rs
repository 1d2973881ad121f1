//! Sockets and internet addresses: which kinds may be made, and whom they may talk to.
//!
//! An address is judged where a task names it: connect, bind, listen, and a message that carries its own address (a
//! datagram; TCP Fast Open, which never calls connect). Addresses arrive in kernel memory, copied once, so that a
//! second thread cannot change what was judged.

use aya_ebpf::macros::lsm;
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op, rule};
use ringfence_common::net::{ALLOW, DENY, FIXED_BITS, NetKey, NetVerdict};
use ringfence_common::policy::{FLAG_INET, RECORD_NET, RECORD_OTHER};
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EACCES, EPERM, ask, close, refuse, wants};
use crate::globals::{
    MSG_CONTROL, MSG_CONTROLLEN, MSG_FLAGS, MSG_NAME, MSG_NAMELEN, SK_ADDR4, SK_ADDR6, SK_FAMILY, SK_PORT,
    SK_TYPE, SOCKET_SK, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, probe, put};
use crate::storage::NET;
use crate::unix;

pub(crate) const AF_UNSPEC: u16 = 0;
pub(crate) const AF_UNIX: u16 = 1;
pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const SOCK_STREAM: u32 = 1;
const SOCK_DGRAM: u32 = 2;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
/// `MSG_FASTOPEN`: connect and send in one.
const MSG_FASTOPEN: u32 = 0x2000_0000;
/// Bytes of a `sockaddr_in`, and of a `sockaddr_in6` up to the end of the address.
const LEN4: u64 = 16;
const LEN6: u64 = 24;
/// The second word of `::ffff:0.0.0.0` as it lies in memory: 00 00 ff ff 00 00 00 00.
const MAPPED: u64 = 0xffff_0000;

/// An internet address as it lies in a [`NetKey`], v4 as v4-mapped v6, and a port in network byte order.
#[derive(Clone, Copy)]
struct Address {
    high: u64,
    low: u64,
    port: u16,
    family: u16,
}

impl Address {
    #[inline(always)]
    fn v4(address: u32, port: u16) -> Self {
        Self { high: 0, low: MAPPED | (address as u64) << 32, port, family: AF_INET }
    }

    #[inline(always)]
    fn v6(high: u64, low: u64, port: u16) -> Self {
        Self { high, low, port, family: AF_INET6 }
    }

    #[inline(always)]
    const fn is_mapped(&self) -> bool {
        self.high == 0 && self.low & 0xffff_ffff == MAPPED
    }

    #[inline(always)]
    const fn is_any4(&self) -> bool {
        self.high == 0 && self.low == MAPPED
    }

    #[inline(always)]
    const fn is_any6(&self) -> bool {
        self.high == 0 && self.low == 0
    }

    #[inline(always)]
    const fn is_any(&self) -> bool {
        self.is_any4() || self.is_any6()
    }
}

/// What a task named.
enum Named {
    /// An internet address.
    Inet(Address),
    /// No address: `AF_UNSPEC`.
    Nothing,
    /// Of another family, or too short to be what it says.
    Other,
}

/// Reads a socket address of the kernel's. `unspec_is_v4`: a call that takes `AF_UNSPEC` for `AF_INET`.
#[inline(always)]
fn read_address(at: u64, len: u64, unspec_is_v4: bool) -> Named {
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
struct Socket {
    sk: *const u8,
    family: u16,
    kind: u32,
}

impl Socket {
    /// None: it has no `sock` any more, and so nothing can be done with it.
    ///
    /// # Safety
    /// `socket` is a hook's `struct socket` argument.
    #[inline(always)]
    unsafe fn of(socket: *const u8) -> Option<Self> {
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
    const fn is_inet(&self) -> bool {
        self.family == AF_INET || self.family == AF_INET6
    }

    #[inline(always)]
    const fn detail(&self) -> u32 {
        (self.family as u32) << 16 | self.kind
    }

    /// The address that it is bound to, its port included.
    #[inline(always)]
    unsafe fn local(&self) -> Address {
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

    /// Where the kernel really goes when told to go to the unspecified address: to itself, by the address that the
    /// socket is bound to, or else by loopback.
    #[inline(always)]
    unsafe fn itself(&self, any: Address) -> Address {
        // SAFETY: as for `local`.
        unsafe {
            let port = any.port;
            // 127.0.0.1 in memory.
            let loopback4 = Address::v4(u32::from_ne_bytes([127, 0, 0, 1]), port);
            if any.is_any6() {
                let bound = self.local();
                if self.family == AF_INET6 && bound.is_mapped() {
                    return loopback4;
                }
                return Address::v6(0, u64::from_ne_bytes([0, 0, 0, 0, 0, 0, 0, 1]), port);
            }
            let bound: u32 = load(self.sk, get(&SK_ADDR4));
            if bound == 0 { loopback4 } else { Address::v4(bound, port) }
        }
    }
}

/// Judges an address for a governed task.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
unsafe fn judge(task: *mut Task, op: u8, socket: &Socket, address: Address) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = ask(task, op, 0, socket.detail());
        (*request).family = address.family;
        (*request).port = u16::from_be(address.port);
        put(&raw mut (*request).addr[0], address.high);
        put(&raw mut (*request).addr[1], address.low);
        if !known {
            return refuse(task, fixed::NO_POLICY, EACCES);
        }
        let allowed = look_up(task, u64::from(address.port)) == ALLOW;
        if allowed && !wants(task, RECORD_NET) {
            return 0;
        }
        close(task, allowed, EACCES)
    }
}

/// Looks up the request's address with its port and with any port, and notes the rule in the request. A deny in either
/// denies, an allow in either allows.
///
/// # Safety
/// `task` is a tag, whose policy was taken and whose request has an address, or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn look_up(task: *mut Task, port: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let request = &raw mut (*scratch).request;
        let mut addr = [0u8; 16];
        let to = (&raw mut addr).cast::<u64>();
        to.write_unaligned(fetch(&raw const (*request).addr[0]));
        to.add(1).write_unaligned(fetch(&raw const (*request).addr[1]));
        let mut key =
            Key::new(FIXED_BITS + 128, NetKey { seed: (*scratch).policy.seed, port: port as u16, addr });
        let exact = NET.get(&key).copied();
        key.data.port = 0;
        let any = NET.get(&key).copied();
        let decision = decide(exact, any);
        if decision.verdict != 0 {
            (*request).rule_kind = rule::INDEX;
            (*request).rule = decision.rule;
        }
        decision.verdict
    }
}

#[inline(always)]
fn decide(exact: Option<NetVerdict>, any: Option<NetVerdict>) -> NetVerdict {
    const NEITHER: NetVerdict = NetVerdict { verdict: 0, rule: 0 };
    let exact = match exact {
        Some(found) => found,
        None => NEITHER,
    };
    let any = match any {
        Some(found) => found,
        None => NEITHER,
    };
    if exact.verdict == DENY || any.verdict == DENY {
        return if exact.verdict == DENY { exact } else { any };
    }
    if exact.verdict != 0 { exact } else { any }
}

/// Judges an address that a task sends to or connects to.
///
/// # Safety
/// `task` is a tag, `socket` an internet socket.
#[inline(always)]
unsafe fn judge_remote(task: *mut Task, op: u8, socket: &Socket, address: Address) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let address = if address.is_any() { socket.itself(address) } else { address };
        judge(task, op, socket, address)
    }
}

/// Refuses an address that is none.
#[inline(always)]
unsafe fn refuse_address(task: *mut Task, op: u8, socket: &Socket) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        take_policy(task, fetch(&raw const (*task).container));
        ask(task, op, 0, socket.detail());
        refuse(task, fixed::FAMILY, EACCES)
    }
}

/// Which sockets may be made: unix ones; TCP and UDP where the grant names any address; nothing else. The kernel's own
/// (`kern`) are part of something that was judged.
#[lsm(hook = "socket_create")]
pub fn socket_create(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (family, kind, protocol, kern): (i32, i32, i32, i32) =
        (ctx.arg(0), ctx.arg(1), ctx.arg(2), ctx.arg(3));
    if kern != 0 {
        return 0;
    }
    let (family, kind, protocol) = (family as u32, kind as u32, protocol as u32);
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, (*task).container);
        let request = ask(task, op::SOCKET, 0, family << 16 | kind & 0xffff);
        (*request).target = protocol;
        if !known {
            return refuse(task, fixed::NO_POLICY, EACCES);
        }
        if family == u32::from(AF_UNIX) {
            return allowed(task);
        }
        let tcp = kind == SOCK_STREAM && (protocol == 0 || protocol == IPPROTO_TCP);
        let udp = kind == SOCK_DGRAM && (protocol == 0 || protocol == IPPROTO_UDP);
        let inet = family == u32::from(AF_INET) || family == u32::from(AF_INET6);
        if !inet || !(tcp || udp) {
            return refuse(task, fixed::FAMILY, EPERM);
        }
        if (*task).scratch.policy.flags & FLAG_INET == 0 {
            return close(task, false, EACCES);
        }
        allowed(task)
    }
}

#[inline(always)]
unsafe fn allowed(task: *mut Task) -> i32 {
    // SAFETY: `task` is a tag with a policy and a request.
    unsafe { if wants(task, RECORD_OTHER) { close(task, true, 0) } else { 0 } }
}

/// connect(2). A unix socket's peer is judged when it is found, in `unix`.
#[lsm(hook = "socket_connect")]
pub fn socket_connect(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        if !socket.is_inet() {
            return 0; // unix; no other kind could be made
        }
        let (address, len): (u64, i32) = (ctx.arg(1), ctx.arg(2));
        match read_address(address, len as u32 as u64, false) {
            Named::Inet(address) => judge_remote(task, op::CONNECT, &socket, address),
            Named::Nothing => 0, // it disconnects
            Named::Other => refuse_address(task, op::CONNECT, &socket),
        }
    }
}

/// bind(2). A port of the kernel's choosing on no address in particular is what every client has.
#[lsm(hook = "socket_bind")]
pub fn socket_bind(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        let (address, len): (u64, i32) = (ctx.arg(1), ctx.arg(2));
        let len = len as u32 as u64;
        if socket.family == AF_UNIX {
            return unix::bind(task, socket.detail(), address, len);
        }
        if !socket.is_inet() {
            return 0;
        }
        match read_address(address, len, socket.family == AF_INET) {
            Named::Inet(address) if address.is_any() && address.port == 0 => 0,
            Named::Inet(address) => judge(task, op::BIND, &socket, address),
            Named::Nothing | Named::Other => refuse_address(task, op::BIND, &socket),
        }
    }
}

/// listen(2): by the address that the socket is bound to, or that the kernel is about to choose.
#[lsm(hook = "socket_listen")]
pub fn socket_listen(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the socket is the hook's argument.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        if !socket.is_inet() {
            return 0;
        }
        let local = socket.local();
        judge(task, op::LISTEN, &socket, local)
    }
}

/// Whether an option or control message routes packets by way of hosts that no rule was asked about: IPv4 options
/// (source routes), IPv6 routing headers, and what can hold one.
#[inline(always)]
const fn is_route(level: i32, kind: i32) -> bool {
    const SOL_IP: i32 = 0;
    const IP_OPTIONS: i32 = 4;
    const IP_RETOPTS: i32 = 7;
    const SOL_IPV6: i32 = 41;
    const IPV6_2292RTHDR: i32 = 5;
    const IPV6_2292PKTOPTIONS: i32 = 6;
    const IPV6_RTHDR: i32 = 57;
    match level {
        SOL_IP => kind == IP_OPTIONS || kind == IP_RETOPTS,
        SOL_IPV6 => kind == IPV6_2292RTHDR || kind == IPV6_2292PKTOPTIONS || kind == IPV6_RTHDR,
        _ => false,
    }
}

/// Most control messages of one message that are looked at; one with more is refused.
const CONTROLS: u32 = 8;
/// Bytes of a `cmsghdr`.
const CMSG: u64 = 16;

/// Whether control data, a copy of the kernel's, holds a route; also if it cannot be read to its end.
#[inline(always)]
fn holds_route(mut at: u64, mut left: u64) -> bool {
    let mut looked = 0;
    while looked < CONTROLS {
        looked += 1;
        if left < CMSG {
            return false;
        }
        let mut header = [0u64; 2];
        // SAFETY: `header` has 16 bytes.
        if !unsafe { probe((&raw mut header).cast::<u8>(), CMSG, at) } {
            return true;
        }
        let (len, level, kind) = (header[0], header[1] as i32, (header[1] >> 32) as i32);
        if is_route(level, kind) {
            return true;
        }
        // The kernel refuses what is shorter than its header or longer than what is left.
        if len < CMSG || len >= left {
            return false;
        }
        let step = (len + 7) & !7;
        if step >= left {
            return false;
        }
        at += step;
        left -= step;
    }
    true
}

/// setsockopt(2): routes are refused, all else is free.
#[lsm(hook = "socket_setsockopt")]
pub fn socket_setsockopt(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (level, option): (i32, i32) = (ctx.arg(1), ctx.arg(2));
    if !is_route(level, option) {
        return 0;
    }
    // SAFETY: `task` is a tag; the socket is the hook's argument.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        take_policy(task, fetch(&raw const (*task).container));
        ask(task, op::SOCKET, 0, socket.detail());
        refuse(task, fixed::FAMILY, EPERM)
    }
}

/// A message with an address of its own, or with a route among its control data.
#[lsm(hook = "socket_sendmsg")]
pub fn socket_sendmsg(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let message: *const u8 = ctx.arg(1);
        let name: u64 = load(message, get(&MSG_NAME));
        let controls: u64 = load(message, get(&MSG_CONTROLLEN));
        if name == 0 && controls == 0 {
            return 0; // to whom it is connected
        }
        let Some(socket) = Socket::of(ctx.arg(0)) else { return EACCES };
        if !socket.is_inet() {
            return 0;
        }
        if controls != 0 && holds_route(load(message, get(&MSG_CONTROL)), controls) {
            return refuse_address(task, op::SEND, &socket);
        }
        if name == 0 {
            return 0; // to whom it is connected
        }
        let flags: u32 = load(message, get(&MSG_FLAGS));
        if socket.kind == SOCK_STREAM && flags & MSG_FASTOPEN == 0 {
            return 0; // TCP ignores the address
        }
        let len: i32 = load(message, get(&MSG_NAMELEN));
        match read_address(name, len as u32 as u64, socket.family == AF_INET) {
            Named::Inet(address) => {
                // Control data can choose the source, and with it what the unspecified address stands for.
                if address.is_any() && controls != 0 {
                    return refuse_address(task, op::SEND, &socket);
                }
                judge_remote(task, op::SEND, &socket, address)
            }
            Named::Nothing => 0, // to whom it is connected
            Named::Other => refuse_address(task, op::SEND, &socket),
        }
    }
}
