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
use ringfence_common::policy::{FLAG_DEVICES, FLAG_EGRESS, FLAG_INET, RECORD_NET, RECORD_OTHER};
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EACCES, EPERM, begin_request, finish, refuse, wants_record};
use crate::globals::{MSG_CONTROL, MSG_CONTROLLEN, MSG_FLAGS, MSG_NAME, MSG_NAMELEN, get};
use crate::identity::governed;
use crate::memory::{fetch, load, put};
use crate::options::refused_control;
use crate::received::{ENOMEM, own, was_received};
use crate::redirect;
use crate::socket::{
    AF_INET, AF_INET6, AF_UNIX, Address, IPPROTO_TCP, IPPROTO_UDP, Named, SOCK_DGRAM, SOCK_STREAM, Socket,
    read_address,
};
use crate::storage::NET;
use crate::unix;

/// `MSG_FASTOPEN`: connect and send in one.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// Judges an address for a governed task.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub(crate) unsafe fn judge(task: *mut Task, op: u8, socket: &Socket, address: Address) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        judge_taken(task, known, op, socket, address)
    }
}

/// The same where the policy was taken, and `known` says whether there is one.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub(crate) unsafe fn judge_taken(
    task: *mut Task,
    known: bool,
    op: u8,
    socket: &Socket,
    address: Address,
) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        begin_address(task, op, socket, address);
        if !known {
            return refuse(task, fixed::NO_POLICY, EACCES);
        }
        let allowed = look_up(task, u64::from(address.port)) == ALLOW;
        if allowed && !wants_record(task, RECORD_NET) {
            return 0;
        }
        finish(task, allowed, EACCES)
    }
}

/// Begins a request about an address.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub(crate) unsafe fn begin_address(task: *mut Task, op: u8, socket: &Socket, address: Address) {
    // SAFETY: `task` is a tag.
    unsafe {
        let request = begin_request(task, op, 0, socket.detail());
        (*request).family = address.family;
        (*request).port = u16::from_be(address.port);
        put(&raw mut (*request).addr[0], address.high);
        put(&raw mut (*request).addr[1], address.low);
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
        let address = (fetch(&raw const (*request).addr[0]), fetch(&raw const (*request).addr[1]));
        let decision = verdict((*scratch).policy.seed, address, port as u16);
        if decision.verdict != 0 {
            (*request).rule_kind = rule::INDEX;
            (*request).rule = decision.rule;
        }
        decision.verdict
    }
}

/// The same of a nameserver, for a policy that grants hosts by name: where no rule says its very port, it is not granted. A
/// range is granted so that names may lead there; that is no leave to ask whoever answers questions in it.
///
/// # Safety
/// As for [`look_up`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn look_up_nameserver(task: *mut Task, port: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let request = &raw mut (*scratch).request;
        let address = (fetch(&raw const (*request).addr[0]), fetch(&raw const (*request).addr[1]));
        let found = Found::of((*scratch).policy.seed, address, port as u16);
        if !found.is_allowed_by_port() {
            return 0;
        }
        (*request).rule_kind = rule::INDEX;
        (*request).rule = found.exact.rule;
        ALLOW
    }
}

/// What the policy with this seed says of an address, as it lies in a [`NetKey`], and a port in network byte order.
#[inline(always)]
pub(crate) fn verdict(seed: u64, address: (u64, u64), port: u16) -> NetVerdict {
    Found::of(seed, address, port).decide()
}

/// What the rules with an address's port say, and those with any port.
pub(crate) struct Found {
    exact: NetVerdict,
    any: NetVerdict,
}

impl Found {
    /// See [`verdict`].
    #[inline(always)]
    pub(crate) fn of(seed: u64, address: (u64, u64), port: u16) -> Self {
        const NEITHER: NetVerdict = NetVerdict { verdict: 0, rule: 0 };
        let mut addr = [0u8; 16];
        let to = (&raw mut addr).cast::<u64>();
        // SAFETY: `addr` has 16 bytes.
        unsafe {
            to.write_unaligned(address.0);
            to.add(1).write_unaligned(address.1);
        }
        let mut key = Key::new(FIXED_BITS + 128, NetKey { seed, port, addr });
        // What the map returns is copied at once.
        let exact = NET.get(&key).copied();
        key.data.port = 0;
        let any = NET.get(&key).copied();
        let or_neither = |found| match found {
            Some(found) => found,
            None => NEITHER,
        };
        Self { exact: or_neither(exact), any: or_neither(any) }
    }

    #[inline(always)]
    fn decide(&self) -> NetVerdict {
        let (exact, any) = (self.exact, self.any);
        if exact.verdict == DENY || any.verdict == DENY {
            return if exact.verdict == DENY { exact } else { any };
        }
        if exact.verdict != 0 { exact } else { any }
    }

    /// Whether it is allowed.
    #[inline(always)]
    pub(crate) fn is_allowed(&self) -> bool {
        self.decide().verdict == ALLOW
    }

    /// Whether it is allowed by a rule with this very port.
    #[inline(always)]
    pub(crate) fn is_allowed_by_port(&self) -> bool {
        self.exact.verdict == ALLOW && self.any.verdict != DENY
    }
}

/// Judges an address that a task sends to or connects to. `controls`: with control data, which may choose the way there.
///
/// # Safety
/// `task` is a tag, `socket` an internet socket.
#[inline(always)]
unsafe fn judge_remote(task: *mut Task, op: u8, socket: &Socket, address: Address, controls: bool) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        let mut address = address;
        if address.is_any() {
            // Where a device may be set, it may be before the kernel looks. One that is set may be another process's doing, or
            // an earlier policy's.
            if socket.has_device() || known && (*task).scratch.policy.flags & FLAG_DEVICES != 0 {
                begin_request(task, op, 0, socket.detail());
                return refuse(task, fixed::ROUTE, EACCES);
            }
            address = socket.itself(address);
        }
        if known && (*task).scratch.policy.flags & FLAG_EGRESS != 0 {
            return redirect::judge(task, op, socket, address, controls);
        }
        judge_taken(task, known, op, socket, address)
    }
}

/// Judges the port that the kernel is about to choose for a socket which may get one that another has: like a port that
/// was asked for. 0: it may, or it has a port already.
///
/// # Safety
/// `task` is a tag, `socket` an internet socket.
#[inline(always)]
unsafe fn judge_chosen_port(task: *mut Task, socket: &Socket) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe { if socket.shares_any_port() { judge(task, op::BIND, socket, socket.local()) } else { 0 } }
}

/// Refuses an address that is none.
#[inline(always)]
unsafe fn refuse_address(task: *mut Task, op: u8, socket: &Socket) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        take_policy(task, fetch(&raw const (*task).container));
        begin_request(task, op, 0, socket.detail());
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
        let request = begin_request(task, op::SOCKET, 0, family << 16 | kind & 0xffff);
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
            return finish(task, false, EACCES);
        }
        allowed(task)
    }
}

#[inline(always)]
unsafe fn allowed(task: *mut Task) -> i32 {
    // SAFETY: `task` is a tag with a policy and a request.
    unsafe { if wants_record(task, RECORD_OTHER) { finish(task, true, 0) } else { 0 } }
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
        if !own(task, &socket, 0) {
            return ENOMEM;
        }
        let (address, len): (u64, i32) = (ctx.arg(1), ctx.arg(2));
        match read_address(address, len as u32 as u64, false) {
            Named::Inet(address) => {
                let port = judge_chosen_port(task, &socket);
                if port != 0 { port } else { judge_remote(task, op::CONNECT, &socket, address, false) }
            }
            Named::Nothing => {
                // It disconnects. What was received for its peer keeps the port that it is bound to.
                let local = socket.local();
                if local.port != 0 && was_received(&socket) {
                    return judge(task, op::BIND, &socket, local);
                }
                0
            }
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
            Named::Inet(address) if address.is_any() && address.port == 0 => judge_chosen_port(task, &socket),
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

/// A message with an address of its own, or with control data. Not every message comes by here: of those that sendmmsg
/// sends to one address only the first. See `egress` for what the others carry.
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
        if !own(task, &socket, 0) {
            return ENOMEM;
        }
        if controls != 0
            && let Some(target) = refused_control(load(message, get(&MSG_CONTROL)), controls)
        {
            take_policy(task, fetch(&raw const (*task).container));
            let request = begin_request(task, op::SEND, 0, socket.detail());
            (*request).target = target;
            return refuse(task, fixed::ROUTE, EACCES);
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
                let port = judge_chosen_port(task, &socket);
                if port != 0 { port } else { judge_remote(task, op::SEND, &socket, address, controls != 0) }
            }
            Named::Nothing => 0, // to whom it is connected
            Named::Other => refuse_address(task, op::SEND, &socket),
        }
    }
}
