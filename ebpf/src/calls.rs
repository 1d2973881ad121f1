//! The barrier between the tool calls of one container, and what is no longer certain where it is open: with
//! `kernel.debug_between_calls`, or in audit mode.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_get_current_task_btf;
use ringfence_common::event::{fixed, op, rule};
use ringfence_common::hash::mum;
use ringfence_common::policy::{DEBUGGED_SLOTS, FLAG_AUDIT, FLAG_DEBUG_CALLS};
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EPERM, begin_request, finish, refuse};
use crate::globals::{K2, TASK_TGID, get};
use crate::identity::counters;
use crate::memory::{fetch, load, put};
use crate::storage::{CALLS, MEMBERS};

/// The container that a task counts in, by its address.
#[inline(always)]
fn container_of(address: u64) -> Option<u64> {
    // SAFETY: one word, read at once.
    unsafe { MEMBERS.get(&address) }.copied()
}

/// The tag of the tool call that a task works for; 0: it has none.
///
/// # Safety
/// `task` is a task that the verifier trusts.
#[inline(always)]
pub unsafe fn call_of(task: *mut c_void) -> u64 {
    // SAFETY: as above; not null, so it is the value of a map.
    unsafe {
        let call = CALLS.of(task);
        if call.is_null() { 0 } else { *call }
    }
}

/// Why the current task may not reach another one; 0: it may. No tool call reaches another: as it, it could do what is then
/// taken for that call's. To `hold` a process, or look into it, both have the same tag or none: what is read there (a pipe's
/// other end, by `/proc/PID/fd`) is as good. Signals and limits pass to and from those without a tag: the runtime ends its
/// calls, and a call's command stops a server that the container began with.
///
/// # Safety
/// `task` is the current task's tag, `target` a task that the verifier trusts.
#[inline(always)]
pub unsafe fn barrier(task: *mut Task, target: *mut c_void, hold: bool) -> u32 {
    // SAFETY: as above.
    unsafe {
        if container_of(target as u64) != Some(fetch(&raw const (*task).container)) {
            return fixed::OTHER_CONTAINER;
        }
        let (own, its) = (call_of(bpf_get_current_task_btf().cast()), call_of(target));
        if own == its || !hold && (own == 0 || its == 0) { 0 } else { fixed::OTHER_CALL }
    }
}

/// Refuses what [`barrier`] is against (`why`); where the profile has it pass, notes that the call of `steered`, which is
/// `target` or the current task, has been reached by another. Between two calls alone: what has no tag starts calls.
///
/// # Safety
/// `task` is the current task's tag, `target` and `steered` are tasks that the verifier trusts.
#[inline(always)]
pub unsafe fn cross(
    task: *mut Task,
    (op, detail): (u8, u32),
    target: *mut c_void,
    steered: *mut c_void,
    why: u32,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = begin_request(task, op, 0, detail);
        (*request).target = load(target.cast(), get(&TASK_TGID));
        let flags = (*task).scratch.policy.flags;
        let is_granted = known
            && why == fixed::OTHER_CALL
            && flags & FLAG_DEBUG_CALLS != 0
            && call_of(bpf_get_current_task_btf().cast()) != 0
            && call_of(target) != 0;
        // Signal 0 only asks, and a signal tells a process without a tag nothing to do in others' names.
        let is_steered = op != op::SIGNAL || detail != 0 && call_of(steered) != 0;
        if is_steered && (is_granted || flags & FLAG_AUDIT != 0) {
            mark_debugged(container_of(steered as u64).unwrap_or(0), call_of(steered));
        }
        if is_granted {
            (*task).scratch.request.rule_kind = rule::FIXED;
            (*task).scratch.request.rule = fixed::OTHER_CALL;
            return finish(task, true, EPERM);
        }
        refuse(task, if known { why } else { fixed::NO_POLICY }, EPERM)
    }
}

/// Notes in audit mode, which refuses nothing, that the call of `target` has been reached by another: a limit of CPU time
/// ends a process as a signal does.
///
/// # Safety
/// `task` is the current task's tag, `target` a task that the verifier trusts.
#[inline(always)]
pub unsafe fn note_control(task: *mut Task, target: *mut c_void) {
    // SAFETY: as above.
    unsafe {
        let call = call_of(target);
        let known = take_policy(task, fetch(&raw const (*task).container));
        if call != 0 && known && (*task).scratch.policy.flags & FLAG_AUDIT != 0 {
            mark_debugged(container_of(target as u64).unwrap_or(0), call);
        }
    }
}

/// Whether the container's profile lets one call reach another.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn may_debug(task: *mut Task) -> bool {
    // SAFETY: `task` is a tag.
    unsafe {
        take_policy(task, fetch(&raw const (*task).container))
            && (*task).scratch.policy.flags & FLAG_DEBUG_CALLS != 0
    }
}

/// Where a tag is in `Counters::debugged`.
#[inline(always)]
fn slot(call: u64) -> usize {
    const { assert!(DEBUGGED_SLOTS == 512) };
    let mut slot = mum(call, get(&K2));
    // SAFETY: one instruction on one register: the verifier must see the bound, and the compiler may not drop it.
    unsafe { core::arch::asm!("{0} &= 511", inout(reg) slot, options(pure, nomem, nostack)) };
    slot as usize
}

/// From now on nothing that the call's processes do is the call's for sure. A store of its own for each call: two CPUs that
/// mark at once take nothing from each other.
#[inline(always)]
pub fn mark_debugged(container: u64, call: u64) {
    if container == 0 {
        return;
    }
    let Some(counters) = counters(container) else { return };
    // SAFETY: the value of a map; `slot` is inside.
    unsafe {
        if call == 0 {
            put(&raw mut (*counters).debugged_untagged, 1);
        } else {
            put((&raw mut (*counters).debugged).cast::<u8>().add(slot(call)), 1);
        }
    }
}

/// Whether another call may have steered this one.
#[inline(always)]
pub fn is_debugged(container: u64, call: u64) -> bool {
    // A task that is not in yet has no container, and 0 is another's place.
    if call == 0 || container == 0 {
        return false;
    }
    let Some(counters) = counters(container) else { return false };
    // SAFETY: the value of a map; `slot` is inside.
    unsafe {
        fetch(&raw const (*counters).debugged_untagged) != 0
            || fetch((&raw const (*counters).debugged).cast::<u8>().add(slot(call))) != 0
    }
}
