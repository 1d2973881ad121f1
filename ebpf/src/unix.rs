//! Unix sockets: a peer is judged when the kernel has found it, by the path that it was bound to or by its abstract name.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op, rule};
use ringfence_common::hash::{abstract_seed, mum};
use ringfence_common::policy::{RECORD_NET, axis};
use ringfence_common::task::Task;

use crate::decide::{Weighing, take_policy, weigh};
use crate::emit::{EACCES, begin_request, finish, finish_weighed, refuse, wants_record};
use crate::fold::{descend_by, slot_with, slots};
use crate::globals::{
    K0, K1, K2, PATH_DENTRY, PATH_MOUNT, SK_TYPE, SOCKET_SK, UNIX_ADDRESS, UNIX_LEN, UNIX_NAME, UNIX_PATH,
    UNIX_PEER, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, probe, probe_word, put};
use crate::search::weigh_anywhere;
use crate::socket::AF_UNIX;
use crate::storage::CALLERS;

/// Bytes of the family before a name.
const FAMILY: u64 = 2;
/// Most bytes of an abstract name, its leading NUL not counted.
const LONGEST: u64 = 107;
/// Words of a name in a request.
const WORDS: usize = 14;
/// Out of memory.
const ENOMEM: i32 = -12;
/// No slot, as [`slot_with`] says it.
const NO_SLOT: u64 = u32::MAX as u64;

/// Judges an abstract name whose first byte (after the NUL) is at `at`.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request was begun.
#[inline(always)]
unsafe fn judge_abstract(task: *mut Task, at: u64, len: u64) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        if len > LONGEST || !read_name(task, at, len) {
            return refuse(task, fixed::UNREADABLE, EACCES);
        }
        (*request).name_len = len as u32;
        let allowed = weigh_abstract(task, len) != 0;
        if allowed && !wants_record(task, RECORD_NET) {
            return 0;
        }
        finish(task, allowed, EACCES)
    }
}

/// Copies a name into the request; what is behind it is zero.
#[inline(always)]
unsafe fn read_name(task: *mut Task, at: u64, len: u64) -> bool {
    // SAFETY: the name in a request has 112 bytes; `len` is at most 107.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        let mut index = 0;
        while index < WORDS {
            put(&raw mut (*request).name[index], 0);
            index += 1;
        }
        len == 0 || probe((&raw mut (*request).name).cast(), len & 0x7f, at)
    }
}

/// Whether the policy allows the name in the request; notes the rule. The same hash as `hash::component`, by words.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn weigh_abstract(task: *mut Task, len: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let request = &raw mut (*scratch).request;
        let mut hash = get(&K0) ^ len;
        let mut index = 0;
        while index < WORDS {
            if (index as u64) * 8 < len {
                hash = mum(hash ^ fetch(&raw const (*request).name[index]), get(&K1));
            }
            index += 1;
        }
        let prefix = descend_by(abstract_seed((*scratch).policy.seed), hash | 1, get(&K2));
        put(&raw mut (*scratch).prefix, prefix);
        let found = slots(prefix, 0);
        let unix = axis::UNIX as u64;
        let (allow, deny) = (slot_with(prefix, 0, unix), slot_with(prefix, 0, unix << 5));
        if found & unix << 5 != 0 {
            (*request).rule_kind = rule::SLOT;
            (*request).rule = deny as u32;
            return 0;
        }
        if found & unix != 0 && allow != NO_SLOT {
            (*request).rule_kind = rule::SLOT;
            (*request).rule = allow as u32;
            return 1;
        }
        let all = u64::from((*scratch).policy.initial) & unix != 0;
        (*request).rule_kind = if all { rule::ALL } else { rule::DEFAULT };
        u32::from(all)
    }
}

/// bind(2) of a unix socket: a path makes a node, which is judged where nodes are made; an abstract name is judged
/// like the connection to one. No name at all: the kernel chooses one.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn bind(task: *mut Task, detail: u32, address: u64, len: u64) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        if len <= FAMILY {
            return 0;
        }
        let mut first = 1u8;
        if probe(&raw mut first, 1, address + FAMILY) && first != 0 {
            return 0;
        }
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = begin_request(task, op::BIND, axis::UNIX, detail);
        (*request).family = AF_UNIX;
        if !known {
            return refuse(task, fixed::NO_POLICY, EACCES);
        }
        judge_abstract(task, address + FAMILY + 1, len - FAMILY - 1)
    }
}

/// Judges the socket at the other end.
///
/// # Safety
/// `task` is a tag; `other` is the address of a `struct unix_sock`.
#[inline(always)]
unsafe fn judge_peer(task: *mut Task, op: u8, kind: u32, other: u64) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        // A number from here on: the verifier would want to see a typed pointer checked and read by type.
        put(&raw mut (*task).scratch.opaque_word, other);
        let other = fetch(&raw const (*task).scratch.opaque_word);
        if other == 0 {
            return EACCES; // gone
        }
        let bound = probe_word(other + get(&UNIX_ADDRESS));
        if bound == 0 && (op == op::SEND || op == op::RECEIVE) {
            return 0; // without a name it can only be the other half of a pair, or have connected to us
        }
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = begin_request(task, op, axis::UNIX, (AF_UNIX as u32) << 16 | kind);
        (*request).family = AF_UNIX;
        if !known {
            return refuse(task, fixed::NO_POLICY, EACCES);
        }
        if bound == 0 {
            return refuse(task, fixed::UNNAMED_PEER, EACCES);
        }
        let dentry = probe_word(other + get(&UNIX_PATH) + get(&PATH_DENTRY));
        if dentry != 0 {
            put(&raw mut (*request).path.dentry, dentry);
            put(&raw mut (*request).path.mount, probe_word(other + get(&UNIX_PATH) + get(&PATH_MOUNT)));
            let weighing = weigh_bound(task);
            let allowed = weighing.allows(axis::UNIX);
            if allowed && !wants_record(task, RECORD_NET) {
                return 0;
            }
            return finish_weighed(task, weighing, allowed);
        }
        let mut len = 0u32;
        if !probe((&raw mut len).cast(), 4, bound + get(&UNIX_LEN)) || (len as u64) <= FAMILY {
            return refuse(task, fixed::UNREADABLE, EACCES);
        }
        judge_abstract(task, bound + get(&UNIX_NAME) + FAMILY + 1, len as u64 - FAMILY - 1)
    }
}

/// Judges a unix socket that another process passes in: by its peer's name; one that is not connected, by its own.
///
/// # Safety
/// `task` is a tag; `sk` is the address of a `struct unix_sock`.
#[inline(always)]
pub unsafe fn receive(task: *mut Task, kind: u32, sk: u64) -> i32 {
    // SAFETY: as above.
    unsafe {
        // A number from here on, as in `judge_peer`.
        put(&raw mut (*task).scratch.opaque_word, sk);
        let sk = fetch(&raw const (*task).scratch.opaque_word);
        let peer = probe_word(sk + get(&UNIX_PEER));
        judge_peer(task, op::RECEIVE, kind, if peer == 0 { sk } else { peer })
    }
}

/// What the policy says of the path in the request, to which a socket was bound: by the mount that it was bound through, or,
/// where that is not the container's, by those that the container has of the same file system.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request has the path.
#[inline(always)]
unsafe fn weigh_bound(task: *mut Task) -> Weighing {
    // SAFETY: as above.
    unsafe {
        let path = &raw mut (*task).scratch.request.path;
        let weighing = weigh(task, path, 0);
        if weighing.fixed() != fixed::OUTSIDE {
            return weighing;
        }
        let bound_by = fetch(&raw const (*path).mount);
        let found = Weighing(weigh_anywhere(task, axis::UNIX));
        if found.fixed() == 0 {
            return found;
        }
        // The event names it as the one who bound it does.
        put(&raw mut (*path).mount, bound_by);
        weighing
    }
}

/// connect(2) of a stream or seqpacket socket. Who connected is kept with the new socket: a process id, which is all
/// that `SO_PEERCRED` has, may be another's by the time somebody asks.
#[lsm(hook = "unix_stream_connect")]
pub fn unix_stream_connect(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let sk: *const u8 = ctx.arg(0);
        let kind: u16 = load(sk, get(&SK_TYPE));
        let verdict = judge_peer(task, op::CONNECT, u32::from(kind), ctx.arg(1));
        if verdict != 0 {
            return verdict;
        }
        let caller = CALLERS.make(ctx.arg(2));
        if caller.is_null() {
            return ENOMEM; // it would pass for one of the host's
        }
        put(caller, fetch(&raw const (*task).container));
        0
    }
}

/// Every datagram, and connect(2) of a datagram socket.
#[lsm(hook = "unix_may_send")]
pub fn unix_may_send(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let (socket, other): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(1));
        let sk: *const u8 = load(socket, get(&SOCKET_SK));
        if sk.is_null() {
            return EACCES;
        }
        let kind: u16 = load(sk, get(&SK_TYPE));
        judge_peer(task, op::SEND, u32::from(kind), load(other, get(&SOCKET_SK)))
    }
}
