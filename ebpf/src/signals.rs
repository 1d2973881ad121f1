//! Signals that the kernel sends for a file: whoever set the file up is not asked again when one is sent, so the owner
//! is judged when it is set. It can be the caller only: a number does not say whose process it is.

use aya_ebpf::helpers::bpf_get_current_task_btf;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::task::Task;

use crate::escape::deny;
use crate::globals::{PID_LEVEL, PID_NUMBERS, TASK_LEADER, TASK_PID, get};
use crate::identity::governed;
use crate::memory::{load, number_of, probe_word};

/// `F_SETOWN`.
const SET_OWNER: u32 = 8;
/// `F_SETOWN_EX`, whose argument another thread could change between this look at it and the kernel's.
const SET_OWNER_EX: u32 = 15;
/// Bytes of a `struct upid`: a number and the namespace that it is of.
const NUMBER: u64 = 16;

/// fcntl(2). (`FIOSETOWN` and `SIOCSPGRP` of ioctl(2) are on no list.)
#[lsm(hook = "file_fcntl")]
pub fn file_fcntl(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let (command, argument): (u32, u64) = (ctx.arg(1), ctx.arg(2));
    if command != SET_OWNER && command != SET_OWNER_EX {
        return 0;
    }
    // SAFETY: `task` is a tag; the current task, typed loads.
    unsafe {
        let owner = argument as u32;
        let me = bpf_get_current_task_btf().cast::<u8>().cast_const();
        let leader: *const u8 = load(me, get(&TASK_LEADER));
        if command == SET_OWNER && (owner == 0 || owner == number(task, leader) || owner == number(task, me))
        {
            return 0;
        }
        deny(task, op::SIGNAL, 0, if command == SET_OWNER { owner } else { 0 }, fixed::OTHER_CONTAINER)
    }
}

/// The process id of a task in its own namespace.
///
/// # Safety
/// `task` is a tag, `of` a task that the verifier has a type for.
#[inline(always)]
unsafe fn number(task: *mut Task, of: *const u8) -> u32 {
    // SAFETY: as above.
    unsafe {
        let pid = number_of(&raw mut (*task).scratch.laundry, load(of, get(&TASK_PID)));
        let level = probe_word(pid + get(&PID_LEVEL)) & 0xffff_ffff;
        probe_word(pid + get(&PID_NUMBERS) + level * NUMBER) as u32
    }
}
