//! System V message queues, semaphore sets and shared memory: a container has those that it made itself, and no others.
//!
//! `ipc_permission` is asked whenever one is looked up, attached, sent to, received from, or operated on; the three
//! control hooks when one is changed, removed, or shown without asking (`*_STAT_ANY`).

use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::MAX_CONTAINERS;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::MAX_IPC;

use crate::escape::deny;
use crate::globals::{IPC_ID, get};
use crate::identity::{counters, governed};
use crate::memory::{add, fetch, probe_word};
use crate::objects::{claim, disclaim, is_own, owner};
use crate::storage::CONTAINERS;
use crate::syscall;

const ENOSPC: i32 = -28;

/// What an event calls the kind of object.
const MESSAGES: u32 = 0;
const SEMAPHORES: u32 = 1;
const MEMORY: u32 = 2;
/// By the 32-bit table all come as one call.
const UNKNOWN: u32 = 3;

/// The object that a hook is about: its first argument. As a number: the verifier would take it for never null.
#[inline(always)]
fn object(ctx: &LsmContext) -> u64 {
    probe_word(ctx.as_ptr() as u64)
}

/// An object comes into being.
#[inline(always)]
fn made(ctx: &LsmContext) -> i32 {
    let object = object(ctx);
    let task = governed();
    if task.is_null() {
        disclaim(object);
        return 0;
    }
    // SAFETY: `task` is a tag; the counters are a map's value.
    unsafe {
        let container = fetch(&raw const (*task).container);
        let Some(counters) = counters(container) else { return ENOSPC };
        let count = &raw mut (*counters).ipc;
        // Several tasks at once may overrun it by one each: it is a share, not a limit.
        if fetch(count) >= MAX_IPC || !claim(object, container) {
            disclaim(object);
            return ENOSPC;
        }
        add(count, 1);
    }
    0
}

/// An object is gone: before its address can be used again.
#[inline(always)]
fn gone(ctx: &LsmContext) {
    let object = object(ctx);
    let Some(container) = owner(object) else { return };
    disclaim(object);
    // The container may be gone, too, and its index another's.
    // SAFETY: values of maps.
    unsafe {
        if let Some(entry) = CONTAINERS.get_ptr((container & (MAX_CONTAINERS as u64 - 1)) as u32)
            && fetch(&raw const (*entry).id) == container
            && let Some(counters) = counters(container)
        {
            add(&raw mut (*counters).ipc, u64::MAX);
        }
    }
}

/// An object is used, as which kind of object.
#[inline(always)]
fn used(ctx: &LsmContext, kind: impl FnOnce() -> u32) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let object = object(ctx);
    // SAFETY: `task` is a tag.
    unsafe {
        // `IPC_INFO` and its kin are about no object: limits, and how many there are.
        if object == 0 || is_own(object, fetch(&raw const (*task).container)) {
            return 0;
        }
        deny(task, op::IPC, kind(), probe_word(object + get(&IPC_ID)) as u32, fixed::OTHER_IPC)
    }
}

/// A message queue comes into being.
#[lsm(hook = "msg_queue_alloc_security")]
pub fn msg_queue_alloc_security(ctx: LsmContext) -> i32 {
    made(&ctx)
}

/// A set of semaphores comes into being.
#[lsm(hook = "sem_alloc_security")]
pub fn sem_alloc_security(ctx: LsmContext) -> i32 {
    made(&ctx)
}

/// A shared memory segment comes into being.
#[lsm(hook = "shm_alloc_security")]
pub fn shm_alloc_security(ctx: LsmContext) -> i32 {
    made(&ctx)
}

/// A message queue is gone.
#[lsm(hook = "msg_queue_free_security")]
pub fn msg_queue_free_security(ctx: LsmContext) -> i32 {
    gone(&ctx);
    0
}

/// A set of semaphores is gone.
#[lsm(hook = "sem_free_security")]
pub fn sem_free_security(ctx: LsmContext) -> i32 {
    gone(&ctx);
    0
}

/// A shared memory segment is gone.
#[lsm(hook = "shm_free_security")]
pub fn shm_free_security(ctx: LsmContext) -> i32 {
    gone(&ctx);
    0
}

/// An object of any kind is looked up or used.
#[lsm(hook = "ipc_permission")]
pub fn ipc_permission(ctx: LsmContext) -> i32 {
    used(&ctx, kind_by_call)
}

/// msgctl(2).
#[lsm(hook = "msg_queue_msgctl")]
pub fn msg_queue_msgctl(ctx: LsmContext) -> i32 {
    used(&ctx, || MESSAGES)
}

/// semctl(2).
#[lsm(hook = "sem_semctl")]
pub fn sem_semctl(ctx: LsmContext) -> i32 {
    used(&ctx, || SEMAPHORES)
}

/// shmctl(2).
#[lsm(hook = "shm_shmctl")]
pub fn shm_shmctl(ctx: LsmContext) -> i32 {
    used(&ctx, || MEMORY)
}

/// The kind of object, for the record, where the hook does not tell.
#[inline(always)]
fn kind_by_call() -> u32 {
    match syscall::number() {
        29..=31 => MEMORY,
        64..=66 | 220 => SEMAPHORES,
        68..=71 => MESSAGES,
        _ => UNKNOWN,
    }
}
