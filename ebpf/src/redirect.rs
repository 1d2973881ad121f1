//! Outbound names, the side of the LSM: where a task of a container that hosts are granted to by name connects and sends.
//! What is judged here is then sent elsewhere by the programs in `rewrite`, which run later in the same system call.
//!
//! A nameserver that is not granted by its address and port is the container's own resolver, whatever address it has. An address
//! that stands for a name is reached by TCP, out of the container's own block, at ports that the net trie allows. Both
//! are on loopback, so that nothing may choose another way there.

use aya_ebpf::helpers::generated::{bpf_get_current_task, bpf_get_current_uid_gid};
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task_btf};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::egress::{
    BLOCK_MASK, DNS_PORT, FLOWS_EACH, FlowKey, Judged, Redirect, RedirectedFlow, block_index,
};
use ringfence_common::event::{fixed, rule};
use ringfence_common::net::ALLOW;
use ringfence_common::policy::{RECORD_NET, container_index};
use ringfence_common::task::Task;

use crate::emit::{EACCES, finish, refuse, wants_record};
use crate::globals::{SK_ADDR4, SK_DADDR4, SK_DPORT, SK_PORT, TASK_LEADER, TASK_START, get};
use crate::memory::{exchange, fetch, fetch_add, load, put};
use crate::net::{begin_address, judge_taken, look_up_nameserver};
use crate::received::ENOMEM;
use crate::socket::{Address, LOOPBACK4, SOCK_STREAM, Socket};
use crate::storage::{CALLS, FLOWS, JUDGED, REDIRECTED, REDIRECTS, TURNS, UNTAKEN};

/// Judges an address that a task connects or sends to. `controls`: with control data, which may choose the interface.
///
/// # Safety
/// `task` is a tag whose policy was taken and has [`ringfence_common::policy::FLAG_EGRESS`]; `socket` is an internet
/// socket.
#[inline(always)]
pub(crate) unsafe fn judge(
    task: *mut Task,
    op: u8,
    socket: &Socket,
    address: Address,
    controls: bool,
) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        let _ = JUDGED.remove(&bpf_get_current_task()); // of a call that failed in between
        if !address.is_named() {
            if is_underway(task, socket, address) {
                return 0;
            }
            forget(socket);
            if address.port == DNS_PORT.to_be() {
                return judge_nameserver(task, op, socket, address, controls);
            }
            return judge_taken(task, true, op, socket, address);
        }
        if socket.kind != SOCK_STREAM || !is_own(task, address) {
            begin_address(task, op, socket, address);
            return refuse(task, fixed::NAMED_ADDRESS, EACCES);
        }
        if controls || socket.has_device() {
            begin_address(task, op, socket, address);
            return refuse(task, fixed::ROUTE, EACCES);
        }
        let verdict = judge_taken(task, true, op, socket, address);
        if verdict != 0 {
            return verdict;
        }
        if note(task, address.high, address.low, u64::from(address.port)) == 0 { 0 } else { ENOMEM }
    }
}

/// One that is granted by its address and this port goes there. Any other, a denied one too, is not reached: the resolver is.
#[inline(always)]
unsafe fn judge_nameserver(
    task: *mut Task,
    op: u8,
    socket: &Socket,
    address: Address,
    controls: bool,
) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        begin_address(task, op, socket, address);
        if look_up_nameserver(task, u64::from(address.port)) != ALLOW {
            if controls || socket.has_device() {
                return refuse(task, fixed::ROUTE, EACCES);
            }
            if note(task, address.high, address.low, u64::from(address.port)) != 0 {
                return ENOMEM;
            }
            (*task).scratch.request.rule_kind = rule::FIXED;
            (*task).scratch.request.rule = fixed::RESOLVER;
        }
        if wants_record(task, RECORD_NET) { finish(task, true, EACCES) } else { 0 }
    }
}

/// Where the worker of a container listens, if it has one.
#[inline(always)]
pub(crate) fn redirect_of(container: u64) -> Option<*const Redirect> {
    let redirect = REDIRECTS.get_ptr(container_index(container) as u32)?;
    // SAFETY: the value of a map.
    let whose = unsafe { fetch(&raw const (*redirect).container) };
    if whose == container { Some(redirect) } else { None }
}

/// Whether an address is of the block that a redirect is about.
///
/// # Safety
/// `redirect` is the value of a map.
#[inline(always)]
pub(crate) unsafe fn is_in_block(redirect: *const Redirect, ip4: u32) -> bool {
    // SAFETY: the value of a map.
    unsafe { (fetch(&raw const (*redirect).block) ^ ip4) & BLOCK_MASK.to_be() == 0 }
}

#[inline(always)]
unsafe fn is_own(task: *mut Task, address: Address) -> bool {
    // SAFETY: `task` is a tag.
    unsafe {
        match redirect_of(fetch(&raw const (*task).container)) {
            Some(redirect) => is_in_block(redirect, address.ip4()),
            None => false,
        }
    }
}

/// Notes who connects and where to, for the program of cgroups that this system call runs next: that sends what was judged here,
/// whatever other programs have made of the address in between. -1: no memory.
///
/// # Safety
/// `task` is a tag, or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn note(task: *mut Task, high: u64, low: u64, port: u64) -> i32 {
    if task.is_null() {
        return -1;
    }
    // SAFETY: `task` is a tag; the current task's fields are typed loads.
    unsafe {
        let address = Address::v6(high, low, port as u16);
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        let ids = bpf_get_current_pid_tgid();
        let call = CALLS.of(me.cast_mut().cast());
        let judged = Judged {
            flow: RedirectedFlow {
                container: fetch(&raw const (*task).container),
                call: if call.is_null() { 0 } else { *call },
                start: load(leader, get(&TASK_START)),
                pid: ids as u32,
                tgid: (ids >> 32) as u32,
                uid: bpf_get_current_uid_gid() as u32,
                address: address.ip4(),
                port: address.port,
                reserved: 0,
                slot: 0,
            },
            address: [high, low],
            port: address.port,
            reserved: [0; 3],
        };
        if JUDGED.insert(&bpf_get_current_task(), &judged, 0).is_ok() { 0 } else { -1 }
    }
}

/// Whether it is what the socket was sent to already, once more: io_uring asks again where it had to wait, with the address that
/// the programs of `rewrite` have put in the place of the one that was judged. Those see whose socket is there.
#[inline(always)]
unsafe fn is_underway(task: *mut Task, socket: &Socket, address: Address) -> bool {
    // SAFETY: `task` is a tag; the rest are values of maps.
    unsafe {
        if !address.is_loopback() || address.port == 0 || socket.kind == SOCK_STREAM && !socket.is_in_use() {
            return false;
        }
        let entry = REDIRECTED.of(socket.sk.cast_mut().cast());
        let container = fetch(&raw const (*task).container);
        if entry.is_null()
            || fetch(&raw const (*entry).target) != address.port
            || fetch(&raw const (*entry).container) != container
        {
            return false;
        }
        match redirect_of(container) {
            Some(redirect) => has_port(redirect, address.port),
            None => false,
        }
    }
}

/// Whether a worker listens at a port, network byte order and not 0.
#[inline(always)]
unsafe fn has_port(redirect: *const Redirect, port: u16) -> bool {
    // SAFETY: the value of a map.
    unsafe {
        fetch(&raw const (*redirect).tcp) == port
            || fetch(&raw const (*redirect).dns_udp) == port
            || fetch(&raw const (*redirect).dns_tcp) == port
            || fetch(&raw const (*redirect).dns6_udp) == port
            || fetch(&raw const (*redirect).dns6_tcp) == port
    }
}

/// What was judged before is not what this socket connects to now.
#[inline(always)]
unsafe fn forget(socket: &Socket) {
    // SAFETY: the value of a map.
    unsafe {
        let entry = REDIRECTED.of(socket.sk.cast_mut().cast());
        if !entry.is_null() {
            put(&raw mut (*entry).flow.container, 0);
        }
    }
}

/// Keeps a flow until somebody asks about it, or as many others of its block have come since.
///
/// The key is in [`FLOWS`] before it is in [`UNTAKEN`], and what it displaces there goes: so nothing stays in the one that is not in
/// the other, whatever other CPUs do in between. A key that came again has another slot, and is not what the one of before displaces.
#[inline(always)]
unsafe fn keep(key: &FlowKey, flow: &RedirectedFlow) {
    // SAFETY: the values of maps; the two halves of a key are one number.
    unsafe {
        let block = block_index(u32::from_be(flow.address));
        let Some(turns) = TURNS.get_ptr_mut(block as u32) else { return };
        let turn = fetch_add(turns, 1) as usize;
        let slot = (block * FLOWS_EACH + (turn & (FLOWS_EACH - 1))) as u32;
        let Some(place) = UNTAKEN.get_ptr_mut(slot) else { return };
        if FLOWS.insert(key, &RedirectedFlow { slot, ..*flow }, 0).is_err() {
            return; // no memory: its connection is closed
        }
        let number = core::mem::transmute::<FlowKey, u64>(*key);
        let before = core::mem::transmute::<u64, FlowKey>(exchange(place, number));
        if let Some(oldest) = FLOWS.get(&before)
            && oldest.slot == slot
            && before != *key
        {
            let _ = FLOWS.remove(&before);
        }
    }
}

/// A connection that this host made is established; whoever listens does not know of it yet. Where it was sent to a worker,
/// the core can say from now on whose it is. Any other at its place, of whomever, is nobody's.
#[lsm(hook = "inet_conn_established")]
pub fn inet_conn_established(ctx: LsmContext) -> i32 {
    // SAFETY: typed loads from the hook's argument, and the values of maps.
    unsafe {
        let sk: *const u8 = ctx.arg(0);
        if load::<u32>(sk, get(&SK_DADDR4)) != LOOPBACK4 || load::<u32>(sk, get(&SK_ADDR4)) != LOOPBACK4 {
            return 0;
        }
        let to_port: u16 = load(sk, get(&SK_DPORT));
        let socket = Socket { sk, family: 0, kind: SOCK_STREAM };
        let key = FlowKey {
            netns: socket.netns() as u32,
            from_port: load::<u16>(sk, get(&SK_PORT)).to_be(),
            to_port,
        };
        let entry = REDIRECTED.of(sk.cast_mut().cast());
        if !entry.is_null()
            && fetch(&raw const (*entry).flow.container) != 0
            && fetch(&raw const (*entry).target) == to_port
        {
            // It stays with the socket until that is connected again: while the programs are replaced, both come by here.
            keep(&key, &(*entry).flow);
        } else {
            let _ = FLOWS.remove(&key);
        }
        0
    }
}
