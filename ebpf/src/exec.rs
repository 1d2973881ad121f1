//! Execution: of programs, and of code that is mapped; and entering a container by it.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::helpers::generated::bpf_send_signal;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{FLAG_UNLINKED, fixed, op};
use ringfence_common::policy::{RECORD_EXEC, RECORD_OTHER, axis};
use ringfence_common::task::{LINEAGE, Task};

use crate::calls::{call_of, is_debugged, mark_debugged};
use crate::casing::is_plain;
use crate::decide::{Weighing, take_policy, weigh};
use crate::emit::{begin_request, finish_weighed, wants_record};
use crate::globals::{
    BPRM_FILE, DENTRY_HASHED, FILE_PATH, FS_ROOT, LEGACY, PATH_DENTRY, PATH_MOUNT, TASK_FS, VMA_FILE,
    VMA_FLAGS, get,
};
use crate::identity::{governed, join, see_new_tag, tag};
use crate::memory::{fetch, load, probe_word, put};
use crate::storage::{TASKS, TASKS_BY_ADDR};
use crate::terminal::give_terminals;

const SIGKILL: u32 = 9;
const PROT_EXEC: u64 = 4;
const VM_EXEC: u64 = 4;

/// What is about to be executed: a program, or a script and then its interpreter.
#[lsm(hook = "bprm_check_security")]
pub fn bprm_check_security(ctx: LsmContext) -> i32 {
    let task = tag();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the file is the hook's argument's.
    unsafe {
        let bprm: *const u8 = ctx.arg(0);
        let file: *const u8 = load(bprm, get(&BPRM_FILE));
        see_new_tag(task);
        let (container, next) = ((*task).container, (*task).next);
        if container == 0 {
            take_root(task);
        }
        if container != 0 {
            let answer = judge(task, container, file);
            if answer != 0 {
                return answer;
            }
        }
        if next != 0 { judge(task, next, file) } else { 0 }
    }
}

/// The root of a container is the root of the task that enters it.
#[inline(always)]
unsafe fn take_root(task: *mut Task) {
    // SAFETY: the current task, typed loads; `task` is its tag.
    unsafe {
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let fs: *const u8 = load(me, get(&TASK_FS));
        put(&raw mut (*task).root_dentry, load(fs, get(&FS_ROOT) + get(&PATH_DENTRY)));
        put_root_mount(task, load(fs, get(&FS_ROOT) + get(&PATH_MOUNT)));
    }
}

/// Notes the mount of a container's root.
///
/// # Safety
/// `task` is a tag; `mount` is one that the verifier has a type for.
#[inline(always)]
pub unsafe fn put_root_mount(task: *mut Task, mount: *const u8) {
    // SAFETY: as above.
    unsafe {
        put(&raw mut (*task).root_mount, mount as u64);
        put(&raw mut (*task).plain_mount, if is_plain(mount) { mount as u64 } else { 0 });
    }
}

#[inline(always)]
unsafe fn judge(task: *mut Task, container: u64, file: *const u8) -> i32 {
    // SAFETY: `task` is a tag; `file` is typed.
    unsafe {
        let known = take_policy(task, container);
        let request = begin_request(task, op::EXEC, axis::EXEC, 0);
        put(&raw mut (*request).path.dentry, load(file, get(&FILE_PATH) + get(&PATH_DENTRY)));
        put(&raw mut (*request).path.mount, load(file, get(&FILE_PATH) + get(&PATH_MOUNT)));
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let weighing = weigh_named(task);
        let allowed = weighing.allows(axis::EXEC);
        if allowed && !wants_record(task, RECORD_EXEC) {
            return 0;
        }
        finish_weighed(task, weighing, allowed)
    }
}

/// Weighs the request's path, which must be one that a rule can name: not a memfd's, not a deleted file's last.
#[inline(always)]
unsafe fn weigh_named(task: *mut Task) -> Weighing {
    // SAFETY: the caller's tag, whose policy was taken.
    unsafe {
        let path = &raw const (*task).scratch.request.path;
        let weighing = weigh(task, path, 0);
        let hashed = probe_word(fetch(&raw const (*path).dentry) + get(&DENTRY_HASHED));
        if weighing.fixed() != fixed::INTERNAL && hashed != 0 {
            return weighing;
        }
        (*task).scratch.request.flags |= FLAG_UNLINKED;
        Weighing::refused(fixed::UNLINKED)
    }
}

/// Mapping a file executable: what `ld.so` does, also for programs that it runs itself.
#[lsm(hook = "mmap_file")]
pub fn mmap_file(ctx: LsmContext) -> i32 {
    let task = governed();
    let protection: u64 = ctx.arg(2);
    if task.is_null() || protection & PROT_EXEC == 0 {
        return 0;
    }
    // SAFETY: `task` is a tag.
    unsafe { judge_mapping(task, op::MAP_EXEC, ctx.arg(0), protection) }
}

/// Making a mapping of a file executable.
#[lsm(hook = "file_mprotect")]
pub fn file_mprotect(ctx: LsmContext) -> i32 {
    let task = governed();
    let protection: u64 = ctx.arg(2);
    if task.is_null() || protection & PROT_EXEC == 0 {
        return 0;
    }
    // SAFETY: `task` is a tag; the area is the hook's argument.
    unsafe {
        let area: *const u8 = ctx.arg(0);
        if load::<u64>(area, get(&VMA_FLAGS)) & VM_EXEC != 0 {
            return 0;
        }
        judge_mapping(task, op::PROTECT_EXEC, load(area, get(&VMA_FILE)), protection)
    }
}

#[inline(always)]
unsafe fn judge_mapping(task: *mut Task, op: u8, file: u64, protection: u64) -> i32 {
    // SAFETY: `task` is a tag; the file is read by `probe`.
    unsafe {
        // Through memory: the verifier takes a hook's argument for never null and would drop the test.
        put(&raw mut (*task).scratch.opaque_word, file);
        let file = fetch(&raw const (*task).scratch.opaque_word);
        if file == 0 {
            return 0;
        }
        let container = (*task).container;
        let known = take_policy(task, container);
        let request = begin_request(task, op, axis::MAP, protection as u32);
        put(&raw mut (*request).path.dentry, probe_word(file + get(&FILE_PATH) + get(&PATH_DENTRY)));
        put(&raw mut (*request).path.mount, probe_word(file + get(&FILE_PATH) + get(&PATH_MOUNT)));
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let weighing = weigh_named(task);
        let allowed = weighing.allows(axis::MAP);
        if allowed && !wants_record(task, RECORD_OTHER) { 0 } else { finish_weighed(task, weighing, allowed) }
    }
}

/// The exec is past its point of no return: a task that was to enter a container is in it now, or dead.
#[lsm(hook = "bprm_committed_creds")]
pub fn bprm_committed_creds(_ctx: LsmContext) -> i32 {
    let task = tag();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the tag of the current task.
    unsafe {
        let next = (*task).next;
        if next != 0 && !enter(task, next) {
            bpf_send_signal(SIGKILL);
        }
    }
    0
}

#[inline(always)]
unsafe fn enter(task: *mut Task, next: u64) -> bool {
    // SAFETY: as above.
    unsafe {
        let me = bpf_get_current_task_btf();
        let address = me as u64;
        if !join(address, next) {
            return false;
        }
        let (before, call) = (fetch(&raw const (*task).container), call_of(me.cast()));
        if is_debugged(before, call) {
            mark_debugged(next, call);
        }
        (*task).container = next;
        (*task).next = 0;
        (*task).lineage = [0; LINEAGE];
        give_terminals(task, me.cast());
        if get(&LEGACY) == 0 {
            return true;
        }
        let stored = TASKS.make(me.cast());
        if !stored.is_null() {
            (*stored).container = next;
            (*stored).lineage = [0; LINEAGE];
            (*stored).next = 0;
            (*stored).root_dentry = (*task).root_dentry;
            (*stored).root_mount = (*task).root_mount;
            (*stored).plain_mount = (*task).plain_mount;
        }
        // The address must lead to the tag, or the task would pass for ungoverned.
        TASKS_BY_ADDR.get_ptr_mut(&address).is_some()
    }
}
