//! Taking in processes that run already: an iterator over all tasks of the host tags every thread of the processes that
//! the agent listed. It runs when the agent reads its pinned link, and does nothing where nothing is listed.
//!
//! The agent reads it until a pass finds nobody left to tag: a thread born beside a pass has a parent that was tagged
//! before (and is tagged by `task_alloc`) or in that pass (and is found in the next).

use core::ffi::c_void;
use core::mem::offset_of;

use ringfence_common::enroll::{Listed, NANOS_PER_TICK};

use crate::exec::put_root_mount;
use crate::globals::{
    FS_ROOT, LEGACY, PATH_DENTRY, PATH_MOUNT, TASK_FS, TASK_LEADER, TASK_START, TASK_TGID, get,
};
use crate::identity::join;
use crate::memory::{add, load};
use crate::storage::{LISTED, MEMBERS, OUTCOME, TASKS, TASKS_BY_ADDR};
use crate::terminal::give_terminals;

/// What the kernel gives an iterator over tasks: `struct bpf_iter__task`, two pointers.
#[repr(C)]
pub struct Context {
    meta: u64,
    task: u64,
}

/// Called once for every task, and once more with none.
///
/// # Safety
/// Called by the kernel.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub unsafe extern "C" fn enroll_tasks(context: *const u8) -> i32 {
    // SAFETY: the kernel's context; what it says is a task is one, or null.
    unsafe {
        let task: *const u8 = load(context, offset_of!(Context, task) as u64);
        if task.is_null() {
            return 0;
        }
        let tgid: u32 = load(task, get(&TASK_TGID));
        let Some(listed) = LISTED.get_ptr(&tgid) else { return 0 };
        let leader: *const u8 = load(task, get(&TASK_LEADER));
        let start: u64 = load(leader, get(&TASK_START));
        if start / NANOS_PER_TICK != (*listed).start {
            return 0; // another process, under the same number
        }
        let Some(outcome) = OUTCOME.get_ptr_mut(0) else { return 0 };
        let counter = match take_in(task, &*listed) {
            Taken::Now => &raw mut (*outcome).tagged,
            Taken::Before => &raw mut (*outcome).inside,
            Taken::Elsewhere => &raw mut (*outcome).elsewhere,
            Taken::Failed => &raw mut (*outcome).failed,
            Taken::Ending => return 0,
        };
        add(counter, 1);
        0
    }
}

enum Taken {
    Now,
    Before,
    Elsewhere,
    Failed,
    /// It has given up its root directory: it is past everything that is judged.
    Ending,
}

#[inline(always)]
unsafe fn take_in(task: *const u8, listed: &Listed) -> Taken {
    // SAFETY: a task of the iterator's; typed loads.
    unsafe {
        let address = task as u64;
        let container = listed.container;
        if let Some(found) = MEMBERS.get(&address).copied() {
            return if found == container { Taken::Before } else { Taken::Elsewhere };
        }
        let fs: *const u8 = load(task, get(&TASK_FS));
        if fs.is_null() {
            return Taken::Ending;
        }
        let tag = TASKS.make(task.cast_mut().cast::<c_void>());
        if tag.is_null() {
            return Taken::Failed;
        }
        if (*tag).next != 0 || (*tag).container != 0 && (*tag).container != container {
            return Taken::Elsewhere; // enrolled, perhaps not yet exec'd
        }
        (*tag).root_dentry = load(fs, get(&FS_ROOT) + get(&PATH_DENTRY));
        put_root_mount(tag, load(fs, get(&FS_ROOT) + get(&PATH_MOUNT)));
        (*tag).container = container;
        give_terminals(tag, task);
        if get(&LEGACY) != 0 && TASKS_BY_ADDR.insert(&address, &*tag, 0).is_err() {
            return Taken::Failed;
        }
        // Last: who is a member is not looked at again.
        if join(address, container) { Taken::Now } else { Taken::Failed }
    }
}
