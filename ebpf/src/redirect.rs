//! Outbound names, the side of the LSM: where a task of a container that hosts are granted to by name connects and sends.
//! What is judged here is then sent elsewhere by the programs in `rewrite`, which run later in the same system call.
//!
//! A nameserver that is not granted by its address is the container's own resolver, whatever address it has. An address
//! that stands for a name is reached by TCP, out of the container's own block, at ports that the net trie allows. Both
//! are on loopback, so that nothing may choose another way there.

use aya_ebpf::helpers::generated::bpf_get_current_uid_gid;
use aya_ebpf::helpers::{bpf_get_current_pid_tgid, bpf_get_current_task_btf};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::egress::{BLOCK_MASK, DNS_PORT, FlowKey, Redirect};
use ringfence_common::event::{fixed, rule};
use ringfence_common::net::ALLOW;
use ringfence_common::policy::{RECORD_NET, container_index};
use ringfence_common::task::Task;

use crate::emit::{EACCES, finish, refuse, wants_record};
use crate::globals::{SK_ADDR4, SK_DADDR4, SK_DPORT, SK_PORT, TASK_LEADER, TASK_START, get};
use crate::memory::{fetch, load, put};
use crate::net::{begin_address, judge_taken, look_up};
use crate::received::ENOMEM;
use crate::socket::{Address, LOOPBACK4, SOCK_STREAM, Socket};
use crate::storage::{CALLS, FLOWS, REDIRECTED, REDIRECTS};

/// Judges an address that a task connects or sends to. `controls`: with control data, which may choose the interface.
///
/// # Safety
/// `task` is a tag whose policy was taken and has [`ringfence_common::policy::FLAG_EGRESS`]; `socket` is an internet
/// socket.
#[inline(always)]
pub(crate) unsafe fn judge(task: *mut Task, op: u8, socket: &Socket, address: Address, controls: bool) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        if !address.is_named() {
            if is_underway(socket, address) {
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
        if note(task, socket, address) { 0 } else { ENOMEM }
    }
}

/// One that is granted by its address goes there. Any other, a denied one too, is not reached: the resolver is.
#[inline(always)]
unsafe fn judge_nameserver(task: *mut Task, op: u8, socket: &Socket, address: Address, controls: bool) -> i32 {
    // SAFETY: by the caller's promise.
    unsafe {
        begin_address(task, op, socket, address);
        if look_up(task, u64::from(address.port)) != ALLOW {
            if controls || socket.has_device() {
                return refuse(task, fixed::ROUTE, EACCES);
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

/// Notes with the socket who connects and where to. False: no memory.
#[inline(always)]
unsafe fn note(task: *mut Task, socket: &Socket, address: Address) -> bool {
    // SAFETY: `task` is a tag; the entry is the value of a map; the current task's fields are typed loads.
    unsafe {
        let entry = REDIRECTED.make(socket.sk.cast_mut().cast());
        if entry.is_null() {
            return false;
        }
        let judged = &raw mut (*entry).judged;
        put(&raw mut (*judged).container, 0);
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        let ids = bpf_get_current_pid_tgid();
        let call = CALLS.of(me.cast_mut().cast());
        put(&raw mut (*judged).call, if call.is_null() { 0 } else { *call });
        put(&raw mut (*judged).start, load(leader, get(&TASK_START)));
        put(&raw mut (*judged).pid, ids as u32);
        put(&raw mut (*judged).tgid, (ids >> 32) as u32);
        put(&raw mut (*judged).uid, bpf_get_current_uid_gid() as u32);
        put(&raw mut (*judged).address, address.ip4());
        put(&raw mut (*judged).port, address.port);
        // Last: a flow with a container is whole.
        put(&raw mut (*judged).container, fetch(&raw const (*task).container));
        true
    }
}

/// Whether it is the connection that the socket is making already, once more: io_uring asks again, with the address that
/// the programs of `rewrite` have put in the place of the one that was judged. The kernel does not look at it then.
#[inline(always)]
unsafe fn is_underway(socket: &Socket, address: Address) -> bool {
    // SAFETY: the value of a map.
    unsafe {
        if socket.kind != SOCK_STREAM || !socket.is_in_use() || !address.is_loopback() {
            return false;
        }
        let entry = REDIRECTED.of(socket.sk.cast_mut().cast());
        !entry.is_null() && address.port != 0 && fetch(&raw const (*entry).target) == address.port
    }
}

/// What was judged before is not what this socket connects to now.
#[inline(always)]
unsafe fn forget(socket: &Socket) {
    // SAFETY: the value of a map.
    unsafe {
        let entry = REDIRECTED.of(socket.sk.cast_mut().cast());
        if !entry.is_null() {
            put(&raw mut (*entry).judged.container, 0);
            put(&raw mut (*entry).flow.container, 0);
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
        if load::<u32>(sk, get(&SK_DADDR4)) != LOOPBACK4 {
            return 0;
        }
        let to_port: u16 = load(sk, get(&SK_DPORT));
        let socket = Socket { sk, family: 0, kind: SOCK_STREAM };
        let key = FlowKey {
            netns: socket.netns(),
            from: load(sk, get(&SK_ADDR4)),
            from_port: load::<u16>(sk, get(&SK_PORT)).to_be(),
            to_port,
        };
        let entry = REDIRECTED.of(sk.cast_mut().cast());
        if !entry.is_null()
            && fetch(&raw const (*entry).flow.container) != 0
            && fetch(&raw const (*entry).target) == to_port
        {
            // It stays with the socket until that is connected again: while the programs are replaced, both come by here.
            let _ = FLOWS.insert(&key, &(*entry).flow, 0);
        } else {
            let _ = FLOWS.remove(&key);
        }
        0
    }
}
