//! Getting out: other processes' memory and signals, and the privileges that would undo all the rest. No grant covers
//! any of it; between the tool calls of one container a profile may (see `calls`).

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::FLAG_AUDIT;
use ringfence_common::task::Task;

use crate::calls::{barrier, cross, may_debug, note_control};
use crate::decide::take_policy;
use crate::emit::{EPERM, begin_request, refuse};
use crate::globals::{TASK_TGID, get};
use crate::identity::governed;
use crate::memory::{fetch, load, put};

/// `PTRACE_MODE_NOAUDIT`: the caller only asks, as reading /proc/PID does.
const NOAUDIT: u32 = 4;
/// `SEND_SIG_PRIV`: the kernel's own signal.
const SIG_PRIV: u64 = 1;

/// Refuses, with a record.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn deny(task: *mut Task, op: u8, detail: u32, target: u32, why: u32) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe {
        let known = take_policy(task, fetch(&raw const (*task).container));
        let request = begin_request(task, op, 0, detail);
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
        cross(task, (op::PTRACE, mode), target, target, why)
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
        cross(task, (op::PTRACE, 0), parent, bpf_get_current_task_btf().cast(), why)
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
        let opaque_word = &raw mut (*task).scratch.opaque_word;
        put(opaque_word, ctx.arg::<u64>(1));
        let info = fetch(opaque_word);
        put(opaque_word, ctx.arg::<u64>(3));
        let sender = fetch(opaque_word);
        // With credentials beside it, it is some other task's, delivered while this one happened to run.
        if info == SIG_PRIV || sender != 0 {
            return 0;
        }
        let why = barrier(task, target, false);
        if why == 0 {
            return 0;
        }
        // Signal 0 only asks whether it is there.
        if signal == 0 && why == fixed::OTHER_CALL && may_debug(task) {
            return 0;
        }
        cross(task, (op::SIGNAL, signal as u32), target, target, why)
    }
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
        note_control(task, target);
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
