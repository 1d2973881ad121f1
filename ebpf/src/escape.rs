//! Getting out: other processes' memory and signals, and the privileges that would undo all the rest. No grant covers
//! any of it.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::FLAG_AUDIT;
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EPERM, ask, refuse};
use crate::globals::{PID_LEVEL, PID_NUMBERS, TASK_LEADER, TASK_TGID, TASK_THREAD_PID, get};
use crate::identity::governed;
use crate::ioctl::is_given_terminal;
use crate::memory::{fetch, load, probe_word, put};
use crate::storage::{CALLS, MEMBERS};

/// `PTRACE_MODE_NOAUDIT`: the caller only asks, as reading /proc/PID does.
const NOAUDIT: u32 = 4;
/// `SEND_SIG_PRIV`: the kernel's own signal.
const SIG_PRIV: u64 = 1;
const SIGIO: u32 = 29;
const F_SETFL: u32 = 4;
const F_SETOWN: u32 = 8;
const F_SETSIG: u32 = 10;
const F_SETOWN_EX: u32 = 15;
const O_ASYNC: u32 = 0o20000;

/// Whether a task, by its address, is in a container.
#[inline(always)]
fn is_member(address: u64, container: u64) -> bool {
    // SAFETY: one word, read at once.
    unsafe { MEMBERS.get(&address) }.is_some_and(|found| *found == container)
}

/// Why the current task may not reach another one; 0: it may. No tool call reaches another: as it, it could do what is then
/// taken for that call's. To `hold` a process, or look into it, both have the same tag or none: what is read there (a pipe's
/// other end, by `/proc/PID/fd`) is as good. Signals and limits pass to and from those without a tag: the runtime ends its
/// calls, and a call's command stops a server that the container began with.
///
/// # Safety
/// `task` is the current task's tag, `target` a task that the verifier trusts.
#[inline(always)]
unsafe fn barrier(task: *mut Task, target: *mut c_void, hold: bool) -> u32 {
    // SAFETY: as above.
    unsafe {
        if !is_member(target as u64, fetch(&raw const (*task).container)) {
            return fixed::OTHER_CONTAINER;
        }
        let (own, its) = (call_of(bpf_get_current_task_btf().cast()), call_of(target));
        if own == its || !hold && (own == 0 || its == 0) { 0 } else { fixed::OTHER_CALL }
    }
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

/// Refuses, with a record.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn deny(task: *mut Task, op: u8, detail: u32, target: u32, why: u32) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = ask(task, op, 0, detail);
        (*request).target = target;
        refuse(task, if known { why } else { fixed::NO_POLICY }, EPERM)
    }
}

/// Refuses without a record; in audit mode, lets pass.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn deny_quietly(task: *mut Task) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        if known && (*task).scratch.policy.flags & FLAG_AUDIT != 0 { 0 } else { EPERM }
    }
}

/// Attaching to a process, and everything else that is as good: its memory, its descriptors, much of its /proc.
#[lsm(hook = "ptrace_access_check")]
pub fn ptrace_access_check(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the target is the hook's argument.
    unsafe {
        let (target, mode): (*mut c_void, u32) = (ctx.arg(0), ctx.arg(1));
        // Who lists processes only asks.
        let why = barrier(task, target, mode & NOAUDIT == 0);
        if why == 0 {
            return 0;
        }
        if mode & NOAUDIT != 0 {
            return deny_quietly(task);
        }
        deny(task, op::PTRACE, mode, load(target.cast(), get(&TASK_TGID)), why)
    }
}

/// Asking one's parent to trace.
#[lsm(hook = "ptrace_traceme")]
pub fn ptrace_traceme(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the parent is the hook's argument.
    unsafe {
        let parent: *mut c_void = ctx.arg(0);
        let why = barrier(task, parent, true);
        if why == 0 {
            return 0;
        }
        deny(task, op::PTRACE, 0, load(parent.cast(), get(&TASK_TGID)), why)
    }
}

/// A signal to a process outside.
#[lsm(hook = "task_kill")]
pub fn task_kill(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments.
    unsafe {
        let (target, signal): (*mut c_void, i32) = (ctx.arg(0), ctx.arg(2));
        // The verifier takes a hook's pointers for valid ones and drops the code behind a null check as dead: these two
        // are looked at as numbers.
        let laundry = &raw mut (*task).scratch.laundry;
        put(laundry, ctx.arg::<u64>(1));
        let info = fetch(laundry);
        put(laundry, ctx.arg::<u64>(3));
        let sender = fetch(laundry);
        // With credentials beside it, it is some other task's, delivered while this one happened to run.
        if info == SIG_PRIV || sender != 0 {
            return 0;
        }
        let why = barrier(task, target, false);
        if why == 0 {
            return 0;
        }
        deny(task, op::SIGNAL, signal as u32, load(target.cast(), get(&TASK_TGID)), why)
    }
}

/// The owner of a descriptor, to whom the kernel sends signals later, from whatever task: only the process itself. Of
/// another it would have to be known then whose it is. A terminal has an owner without being asked, its foreground group,
/// which may be the user's shell: signals, and which, only of terminals that the container opened.
#[lsm(hook = "file_fcntl")]
pub fn file_fcntl(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (command, owner) = (ctx.arg::<u64>(1) as u32, ctx.arg::<u64>(2) as u32);
    let signals = command == F_SETSIG || command == F_SETFL && owner & O_ASYNC != 0;
    if !signals && command != F_SETOWN && command != F_SETOWN_EX {
        return 0;
    }
    // SAFETY: `task` is a tag; the file is the hook's argument.
    unsafe {
        if signals {
            if !is_given_terminal(task, ctx.arg(0)) {
                return 0;
            }
            return deny(task, op::SIGNAL, SIGIO, 0, fixed::TERMINAL);
        }
        if command == F_SETOWN && (owner == 0 || owner == own_process(task)) {
            return 0;
        }
        deny(task, op::SIGNAL, SIGIO, owner, fixed::OTHER_CONTAINER)
    }
}

/// The current process's id in its own pid namespace.
#[inline(always)]
unsafe fn own_process(task: *mut Task) -> u32 {
    /// Bytes of `struct upid`: the number, and its namespace.
    const UPID: u64 = 16;
    // SAFETY: the current task and its leader, typed loads; `task` is its tag.
    let pid = unsafe {
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        // Through memory: to the verifier it is no pointer from here on.
        let laundry = &raw mut (*task).scratch.laundry;
        put(laundry, load::<u64>(leader, get(&TASK_THREAD_PID)));
        fetch(laundry)
    };
    let level = probe_word(pid + get(&PID_LEVEL)) & 0xffff_ffff;
    probe_word(pid + get(&PID_NUMBERS) + level * UPID) as u32
}

/// Refuses to change how a process outside, or of another tool call, runs: a limit of CPU time kills as well as a signal does.
///
/// # Safety
/// `target` is a task, a hook's argument.
#[inline(always)]
unsafe fn control(target: *mut c_void) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag.
    unsafe {
        let why = barrier(task, target, false);
        if why == 0 {
            return 0;
        }
        deny(task, op::CONTROL, 0, load(target.cast(), get(&TASK_TGID)), why)
    }
}

/// prlimit(2) and setrlimit(2).
#[lsm(hook = "task_setrlimit")]
pub fn task_setrlimit(ctx: LsmContext) -> i32 {
    // SAFETY: the task is the hook's argument.
    unsafe { control(ctx.arg(0)) }
}

/// setpriority(2).
#[lsm(hook = "task_setnice")]
pub fn task_setnice(ctx: LsmContext) -> i32 {
    // SAFETY: the task is the hook's argument.
    unsafe { control(ctx.arg(0)) }
}

/// ioprio_set(2).
#[lsm(hook = "task_setioprio")]
pub fn task_setioprio(ctx: LsmContext) -> i32 {
    // SAFETY: the task is the hook's argument.
    unsafe { control(ctx.arg(0)) }
}

/// sched_setscheduler(2), sched_setaffinity(2) and their kin.
#[lsm(hook = "task_setscheduler")]
pub fn task_setscheduler(ctx: LsmContext) -> i32 {
    // SAFETY: the task is the hook's argument.
    unsafe { control(ctx.arg(0)) }
}

/// migrate_pages(2) and move_pages(2).
#[lsm(hook = "task_movememory")]
pub fn task_movememory(ctx: LsmContext) -> i32 {
    // SAFETY: the task is the hook's argument.
    unsafe { control(ctx.arg(0)) }
}

/// bpf(2).
#[lsm(hook = "bpf")]
pub fn bpf(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let command: i32 = ctx.arg(0);
    // SAFETY: `task` is a tag.
    unsafe { deny(task, op::BPF, command as u32, 0, fixed::PRIVILEGE) }
}

/// perf_event_open(2).
#[lsm(hook = "perf_event_open")]
pub fn perf_event_open(_ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag.
    unsafe { deny(task, op::PERF, 0, 0, fixed::PRIVILEGE) }
}

/// A user namespace, in which a task would hold every capability.
#[lsm(hook = "userns_create")]
pub fn userns_create(_ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag.
    unsafe { deny(task, op::USERNS, 0, 0, fixed::PRIVILEGE) }
}
