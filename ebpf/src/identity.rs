//! Who is governed. The tag is in the task's own storage, copied to each child at fork, never derived from anything
//! that the task can change.
//!
//! Before 6.2 a lookup in task storage fails while this CPU's storage is busy (`LEGACY`), and a task whose lookup fails
//! must not pass for ungoverned. There the tag lives in a hash by the task's address, which is always looked up
//! first; task storage is only where the agent leaves a new tag and where it looks one up.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::helpers::generated::bpf_ktime_get_boot_ns;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::MAX_CONTAINERS;
use ringfence_common::policy::{
    Counters, OWNER_ROOT, OWNER_USERS, TASKS_EACH, TASKS_OF_USER, TASKS_OF_USERS,
};
use ringfence_common::task::{LINEAGE, Task};

use crate::globals::{LEGACY, TASK_MARK, TASK_PID, TASK_STORAGE, get};
use crate::memory::{add, fetch, load};
use crate::storage::{CALLS, COUNTERS, GROUPS, JUDGED, MEMBERS, TASKS, TASKS_BY_ADDR, USERS};

const EAGAIN: i32 = 11;
const CLONE_THREAD: u64 = 0x10000;
/// `BPF_NOEXIST`.
const NOEXIST: u64 = 1;

/// The tag of the current task; null: it has none, let it pass.
#[inline(always)]
pub fn tag() -> *mut Task {
    // SAFETY: the helper returns the current task, which the verifier trusts.
    unsafe {
        // First, and without a look at `LEGACY`: most tasks of a host are ungoverned and leave here.
        if load::<u64>(bpf_get_current_task_btf().cast(), get(&TASK_MARK)) == 0 {
            return core::ptr::null_mut();
        }
        // Asked again, so that nothing is kept for those who have left.
        let me = bpf_get_current_task_btf().cast::<c_void>();
        if get(&LEGACY) != 0 { legacy_tag(me) } else { TASKS.of(me) }
    }
}

/// The tag of the current task if it is governed already; null: it has none or is pending, let it pass.
#[inline(always)]
pub fn governed() -> *mut Task {
    let task = tag();
    // SAFETY: not null, so it is the value of a map.
    if !task.is_null() && unsafe { (*task).container } == 0 {
        return core::ptr::null_mut();
    }
    task
}

#[inline(always)]
unsafe fn legacy_tag(me: *mut c_void) -> *mut Task {
    let address = me as u64;
    let stored = || {
        // SAFETY: `me` is the current task.
        if unsafe { load::<u64>(me.cast(), get(&TASK_STORAGE)) } == 0 {
            core::ptr::null_mut()
        } else {
            // SAFETY: as above.
            unsafe { TASKS.of(me) }
        }
    };
    if let Some(task) = TASKS_BY_ADDR.get_ptr_mut(&address) {
        return task;
    }
    let task = stored();
    if task.is_null() {
        return task;
    }
    // A new tag: move it to where it will always be found. The task is still pending, and the programs of its
    // exec will not let it become active before this has succeeded.
    // SAFETY: `task` is the value of a map.
    let _ = TASKS_BY_ADDR.insert(&address, unsafe { &*task }, NOEXIST);
    TASKS_BY_ADDR.get_ptr_mut(&address).unwrap_or(task)
}

/// Where tags are kept by address, the agent's word about a nested container is in task storage.
///
/// # Safety
/// `task` is the tag of the current task.
#[inline(always)]
pub unsafe fn see_new_tag(task: *mut Task) {
    if get(&LEGACY) == 0 {
        return;
    }
    // SAFETY: the current task, and the values of maps.
    unsafe {
        let stored = TASKS.of(bpf_get_current_task_btf().cast());
        if !stored.is_null() && (*stored).next != 0 {
            (*task).next = (*stored).next;
        }
    }
}

/// The counters of a container.
#[inline(always)]
pub fn counters(container: u64) -> Option<*mut Counters> {
    COUNTERS.get_ptr_mut((container & (MAX_CONTAINERS as u64 - 1)) as u32)
}

/// Counts a task as a member of a container, and no longer of any other. False: no room, or none in the container's or
/// its owner's share.
#[inline(always)]
pub fn join(address: u64, container: u64) -> bool {
    leave(address);
    let Some(counters) = counters(container) else { return false };
    // SAFETY: counters in maps' values. Two CPUs at once may take one place for two: the table has room for that.
    unsafe {
        if !room(counters) || MEMBERS.insert(&address, &container, 0).is_err() {
            return false;
        }
        count_task(counters, 1);
    }
    true
}

/// Whether the container, and whoever owns it, may have one more task.
#[inline(always)]
unsafe fn room(counters: *mut Counters) -> bool {
    // SAFETY: the values of maps.
    unsafe {
        if fetch(&raw const (*counters).tasks) >= TASKS_EACH {
            return false;
        }
        let owner = fetch(&raw const (*counters).owner);
        if owner == OWNER_ROOT {
            return true;
        }
        let below = |index: u64, most: u64| match USERS.get_ptr(index as u32) {
            Some(owner) => fetch(&raw const (*owner).tasks) < most,
            None => false,
        };
        below(owner, TASKS_OF_USER) && below(OWNER_USERS, TASKS_OF_USERS)
    }
}

/// Adds to the tasks of a container, of its owner and, unless that is root, of all users.
#[inline(always)]
unsafe fn count_task(counters: *mut Counters, by: u64) {
    // SAFETY: the values of maps.
    unsafe {
        add(&raw mut (*counters).tasks, by);
        let index = fetch(&raw const (*counters).owner);
        if let Some(owner) = USERS.get_ptr_mut(index as u32) {
            add(&raw mut (*owner).tasks, by);
        }
        if index != OWNER_ROOT
            && let Some(all) = USERS.get_ptr_mut(OWNER_USERS as u32)
        {
            add(&raw mut (*all).tasks, by);
        }
    }
}

/// Whether it was a member of one.
#[inline(always)]
fn leave(address: u64) -> bool {
    // SAFETY: read before anything is removed.
    let Some(container) = (unsafe { MEMBERS.get(&address) }).copied() else { return false };
    let _ = MEMBERS.remove(&address);
    let _ = JUDGED.remove(&address);
    if let Some(counters) = counters(container) {
        // SAFETY: a counter in a map's value.
        unsafe { count_task(counters, u64::MAX) };
    }
    true
}

/// Gives a new task its parent's tags, or does not let it come into being.
#[lsm(hook = "task_alloc")]
pub fn task_alloc(ctx: LsmContext) -> i32 {
    let parent = tag();
    if parent.is_null() {
        return 0;
    }
    let child: *mut c_void = ctx.arg(0);
    // SAFETY: `parent` is the value of a map, `child` the hook's argument.
    unsafe {
        see_new_tag(parent);
        let container = (*parent).container;
        if inherit(child, parent, ctx.arg(1)) {
            return 0;
        }
        if let Some(counters) = counters(container) {
            add(&raw mut (*counters).fork_failed, 1);
        }
    }
    // The kernel calls `task_free` now, which takes back what was done.
    -EAGAIN
}

#[inline(always)]
unsafe fn inherit(child: *mut c_void, parent: *mut Task, flags: u64) -> bool {
    let address = child as u64;
    // SAFETY: `parent` is the value of a map, `child` the argument of `task_alloc`.
    unsafe {
        let container = (*parent).container;
        if container != 0 && !join(address, container) {
            return false;
        }
        let legacy = get(&LEGACY) != 0;
        if legacy {
            if TASKS_BY_ADDR.insert(&address, &*parent, 0).is_err() {
                return false;
            }
            let Some(task) = TASKS_BY_ADDR.get_ptr_mut(&address) else { return false };
            descend(task, parent, flags);
        }
        let task = TASKS.make(child);
        if !task.is_null() {
            (*task).container = container;
            (*task).next = (*parent).next;
            (*task).root_dentry = (*parent).root_dentry;
            (*task).root_mount = (*parent).root_mount;
            (*task).plain_mount = (*parent).plain_mount;
            descend(task, parent, flags);
        } else if !legacy {
            return false;
        }
        let call = CALLS.of(bpf_get_current_task_btf().cast());
        if !call.is_null() {
            let tag = CALLS.make(child);
            if !tag.is_null() {
                *tag = *call;
            } else if !legacy {
                return false;
            }
        }
        true
    }
}

/// Gives a new task its lineage: its parent's, and itself, where it is a process of a container and there is a place.
#[inline(always)]
unsafe fn descend(child: *mut Task, parent: *const Task, flags: u64) {
    // SAFETY: the values of maps.
    unsafe {
        (*child).lineage = (*parent).lineage;
        if (*parent).container == 0 || flags & CLONE_THREAD != 0 {
            return;
        }
        // Its own start is a moment later, and not known yet.
        let now = bpf_ktime_get_boot_ns();
        for place in 0..LINEAGE {
            if (*child).lineage[place] == 0 {
                (*child).lineage[place] = now;
                return;
            }
        }
    }
}

/// Forgets a task's address before another task can have it.
#[lsm(hook = "task_free")]
pub fn task_free(ctx: LsmContext) -> i32 {
    let address: u64 = ctx.arg(0);
    if leave(address) {
        // SAFETY: the hook's argument is a task. Its number may soon be another's.
        let number: u32 = unsafe { load(ctx.arg(0), get(&TASK_PID)) };
        let _ = GROUPS.remove(&number);
    }
    if get(&LEGACY) != 0 {
        let _ = TASKS_BY_ADDR.remove(&address);
    }
    0
}
