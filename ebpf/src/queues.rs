//! POSIX message queues: a queue is judged as the file that it is below `/dev/mqueue`.
//!
//! `mq_open(2)` and `mq_unlink(2)` come by a mount of the kernel's own, which no path leads to. What counts is where
//! the container has the queues' file system mounted; where it has not, there is nothing that a rule could name.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::Task;

use crate::decide::{Weighing, take_policy};
use crate::emit::{begin_request, finish_weighed, wants_record};
use crate::globals::{DENTRY_SB, SB_MAGIC, get};
use crate::identity::governed;
use crate::memory::{probe_word, put};
use crate::search::weigh_anywhere;

/// `MQUEUE_MAGIC`.
const MQUEUE: u64 = 0x1980_0202;

/// Whether a dentry is a message queue.
#[inline(always)]
pub fn is_queue(dentry: u64) -> bool {
    probe_word(probe_word(dentry + get(&DENTRY_SB)) + get(&SB_MAGIC)) == MQUEUE
}

/// Weighs the request's path, a message queue, by where the container has the queues mounted.
///
/// # Safety
/// `task` is a tag whose policy was taken and whose request has a path.
#[inline(always)]
pub unsafe fn weigh_queue(task: *mut Task, axes: u16) -> Weighing {
    // SAFETY: as above.
    let weighing = Weighing(unsafe { weigh_anywhere(task, axes) });
    match weighing.fixed() {
        fixed::INTERNAL | fixed::OUTSIDE => Weighing::refused(fixed::OTHER_IPC),
        _ => weighing,
    }
}

/// Judges an operation on a message queue.
///
/// # Safety
/// `task` is a tag; `dentry` is that of a queue.
#[inline(always)]
pub unsafe fn judge_queue(task: *mut Task, op: u8, axes: u16, dentry: u64, detail: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let container = (*task).container;
        let known = take_policy(task, container);
        let request = begin_request(task, op, axes, detail);
        put(&raw mut (*request).path.dentry, dentry);
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let weighing = weigh_queue(task, axes);
        let allowed = weighing.allows(axes);
        if allowed && !wants_record(task, RECORD_FILE) { 0 } else { finish_weighed(task, weighing, allowed) }
    }
}

/// Judges a hook whose second argument is the dentry, if that is a message queue. All other files have been judged by
/// their paths.
macro_rules! queue {
    ($ctx:ident, $op:expr) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        let dentry: u64 = $ctx.arg(1);
        if !is_queue(dentry) {
            return 0;
        }
        // SAFETY: `task` is a tag.
        unsafe { judge_queue(task, $op, axis::WRITE, dentry, 0) }
    }};
}

/// Creation, also by mq_open(2).
#[lsm(hook = "inode_create")]
pub fn inode_create(ctx: LsmContext) -> i32 {
    queue!(ctx, op::CREATE)
}

/// Removal, also by mq_unlink(2).
#[lsm(hook = "inode_unlink")]
pub fn inode_unlink(ctx: LsmContext) -> i32 {
    queue!(ctx, op::UNLINK)
}
