//! Whose a socket is, and what a governed task may be handed: a socket that another process passes in is judged by what
//! it is bound and connected to, as if the task had done that itself.

use aya_ebpf::helpers::generated::bpf_sock_from_file;
use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_get_current_task_btf, generated::bpf_get_current_uid_gid,
};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EACCES, begin_request, refuse};
use crate::globals::{TASK_LEADER, TASK_START, get};
use crate::identity::governed;
use crate::memory::{fetch, load, put};
use crate::net::judge;
use crate::socket::{AF_UNIX, Socket};
use crate::storage::SOCKETS;
use crate::unix;

/// Out of memory.
pub(crate) const ENOMEM: i32 = -12;

/// Notes that a socket is the task's, unless it is somebody's already, and that it was `received`. False: no memory.
///
/// # Safety
/// `task` is a tag; `socket` is of a hook's argument.
#[inline(always)]
pub(crate) unsafe fn own(task: *mut Task, socket: &Socket, received: u32) -> bool {
    // SAFETY: as above; the current task's fields are typed loads, the owner is the value of a map.
    unsafe {
        let owner = SOCKETS.make(socket.sk.cast_mut().cast());
        if owner.is_null() {
            return false;
        }
        if received != 0 {
            put(&raw mut (*owner).received, received);
        }
        if fetch(&raw const (*owner).container) == 0 {
            let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
            let leader: *const u8 = load(me, get(&TASK_LEADER));
            let ids = bpf_get_current_pid_tgid();
            put(&raw mut (*owner).start, load(leader, get(&TASK_START)));
            put(&raw mut (*owner).pid, ids as u32);
            put(&raw mut (*owner).tgid, (ids >> 32) as u32);
            put(&raw mut (*owner).uid, bpf_get_current_uid_gid() as u32);
            put(&raw mut (*owner).kind, socket.kind);
            // Last: an owner with a container is whole.
            put(&raw mut (*owner).container, fetch(&raw const (*task).container));
        }
        true
    }
}

/// Whether another process passed the socket in.
///
/// # Safety
/// `socket` is of a hook's argument.
#[inline(always)]
pub(crate) unsafe fn was_received(socket: &Socket) -> bool {
    // SAFETY: as above; the owner is the value of a map.
    unsafe {
        let owner = SOCKETS.of(socket.sk.cast_mut().cast());
        !owner.is_null() && fetch(&raw const (*owner).received) != 0
    }
}

/// A socket that a governed task made is its own. The kernel's own (`kern`) are part of something that was judged.
#[lsm(hook = "socket_post_create")]
pub fn socket_post_create(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let kern: i32 = ctx.arg(4);
    if kern != 0 {
        return 0;
    }
    // SAFETY: `task` is a tag; the socket is the hook's argument.
    unsafe {
        let Some(socket) = Socket::of(ctx.arg(0)) else { return 0 };
        // Without an owner its packets would pass for the host's.
        if own(task, &socket, 0) { 0 } else { ENOMEM }
    }
}

/// Judges a file that another process passes in, if it is a socket; `None`: it is none.
///
/// # Safety
/// `task` is a tag, `file` the argument of `file_receive`.
#[inline(always)]
pub(crate) unsafe fn receive(task: *mut Task, file: *const u8) -> Option<i32> {
    // SAFETY: as above.
    unsafe {
        let socket: *const u8 = bpf_sock_from_file(file.cast_mut().cast()).cast::<u8>().cast_const();
        if socket.is_null() {
            return None;
        }
        let Some(socket) = Socket::of(socket) else { return Some(EACCES) };
        let container = fetch(&raw const (*task).container);
        let owner = SOCKETS.of(socket.sk.cast_mut().cast());
        if !owner.is_null() && fetch(&raw const (*owner).container) == container {
            return Some(0);
        }
        let verdict = if socket.family == AF_UNIX {
            unix::receive(task, socket.kind, socket.sk as u64)
        } else if socket.is_inet() && socket.is_granted_kind() {
            receive_inet(task, &socket)
        } else {
            take_policy(task, container);
            begin_request(task, op::RECEIVE, 0, socket.detail());
            refuse(task, fixed::FAMILY, EACCES)
        };
        if verdict == 0 && !own(task, &socket, 1) {
            return Some(ENOMEM);
        }
        Some(verdict)
    }
}

/// TCP and UDP: connected, by the peer's address; else bound or listening, by its own; else it can do nothing that is
/// not judged when it is done.
#[inline(always)]
unsafe fn receive_inet(task: *mut Task, socket: &Socket) -> i32 {
    // SAFETY: `task` is a tag, `socket` an internet socket.
    unsafe {
        let remote = socket.remote();
        if remote.port != 0 && !socket.listens() {
            return judge(task, op::RECEIVE, socket, remote);
        }
        let local = socket.local();
        if local.port == 0 {
            return 0;
        }
        judge(task, op::RECEIVE, socket, local)
    }
}
