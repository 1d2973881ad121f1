//! Opening files, and what all hooks about one path have in common.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::Task;

use crate::decide::{Weighing, take_policy, weigh, weigh_typed};
use crate::emit::{begin_request, finish_weighed, wants_record};
use crate::globals::{FILE_FLAGS, FILE_INODE, FILE_MODE, FILE_PATH, PATH_DENTRY, PATH_MOUNT, get};
use crate::identity::governed;
use crate::memory::{fetch, load, put};
use crate::queues::{is_queue, judge_queue, weigh_queue};
use crate::received::receive;
use crate::setuid::{gives_rights, judge_rights, mode_of};
use crate::shared;
use crate::syscall::executes;
use crate::terminal;

/// `FMODE_READ`.
const FMODE_READ: u32 = 1;
/// `FMODE_WRITE`.
const FMODE_WRITE: u32 = 2;
/// `__FMODE_EXEC` in a file's flags: the kernel opens what it is about to execute. Some calls take it from their caller,
/// too: mq_open(2), an ioctl for the other end of a terminal, one of XFS.
const FMODE_EXEC: u32 = 1 << 5;
/// `__O_TMPFILE`.
const TMPFILE: u32 = 0o20_000_000;
/// `O_PATH`.
const O_PATH: u32 = 0o10_000_000;
/// `O_TRUNC`.
const O_TRUNC: u32 = 0o1000;

/// The axes that an open asks for.
#[inline(always)]
const fn open_axes(mode: u32, flags: u32) -> u16 {
    let mut axes = 0;
    if mode & FMODE_READ != 0 {
        axes |= axis::READ;
    }
    if mode & FMODE_WRITE != 0 || flags & O_TRUNC != 0 {
        axes |= axis::WRITE;
    }
    // Access mode 3 is neither: "for ioctl only". The kernel checks it for both.
    if axes == 0 { axis::READ | axis::WRITE } else { axes }
}

/// Opening for reading, writing, appending.
#[lsm(hook = "file_open")]
pub fn file_open(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the file is the hook's argument.
    unsafe {
        let file: *const u8 = ctx.arg(0);
        let flags: u32 = load(file, get(&FILE_FLAGS));
        let axes = open_axes(load(file, get(&FILE_MODE)), flags);
        let dentry: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_DENTRY));
        let mount: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_MOUNT));
        if flags & (FMODE_EXEC | TMPFILE) != 0 {
            // An open for execution is judged by `bprm_check_security` (programs) and `mmap_file` (their loader).
            if flags & FMODE_EXEC != 0 && executes() {
                return 0;
            }
            // A file without a name yet: no hook saw the mode that it was made with.
            if flags & TMPFILE != 0 && gives_rights(mode_of(dentry as u64)) {
                let answer =
                    judge_rights(task, op::OPEN, dentry as u64, mount as u64, mode_of(dentry as u64));
                if answer != 0 {
                    return answer;
                }
            }
        }
        // Terminals are on a mount of their own.
        if mount as u64 != (*task).root_mount {
            let verdict = terminal::judge(task, op::OPEN, file, dentry, mount, flags);
            if verdict != 0 {
                return verdict;
            }
        }
        let container = (*task).container;
        let known = take_policy(task, container);
        let mut weighing = Weighing::refused(fixed::NO_POLICY);
        let mut own = false;
        if known {
            weighing = weigh_typed(task, dentry, mount);
            if weighing.allows(axes) {
                if !wants_record(task, RECORD_FILE) {
                    return 0;
                }
            } else if is_nowhere(weighing) {
                if is_queue(dentry as u64) {
                    return judge_queue(task, op::OPEN, axes, dentry as u64, flags);
                }
                if is_internal(weighing) {
                    return 0;
                }
            } else if shared::is_used(task)
                && shared::is_undecided(weighing, axes)
                && shared::may_open(task, file, dentry)
            {
                if !wants_record(task, RECORD_FILE) {
                    return 0;
                }
                own = true;
            }
        }
        let request = begin_request(task, op::OPEN, axes, flags);
        put(&raw mut (*request).path.dentry, dentry as u64);
        put(&raw mut (*request).path.mount, mount as u64);
        finish_weighed(task, weighing, own || weighing.allows(axes))
    }
}

/// A file that another process passes by a socket, or that is taken from one by `pidfd_getfd`, is opened anew. A socket is
/// judged by what it is bound and connected to.
#[lsm(hook = "file_receive")]
pub fn file_receive(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: as above.
    unsafe {
        let file: *const u8 = ctx.arg(0);
        let flags: u32 = load(file, get(&FILE_FLAGS));
        if flags & O_PATH != 0 {
            return 0;
        }
        if let Some(verdict) = receive(task, file) {
            return verdict;
        }
        let axes = open_axes(load(file, get(&FILE_MODE)), flags);
        let dentry: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_DENTRY));
        let mount: *const u8 = load(file, get(&FILE_PATH) + get(&PATH_MOUNT));
        let verdict = terminal::judge(task, op::OPEN, file, dentry, mount, flags);
        if verdict != 0 {
            return verdict;
        }
        let own = || shared::made(task, dentry, load(file, get(&FILE_INODE)));
        judge_or(task, (op::OPEN, axes, flags), RECORD_FILE, dentry, mount, own)
    }
}

/// Judges an operation on one path, in a class of what is recorded. The rest of the file hooks are this.
///
/// # Safety
/// `task` is a tag; `dentry` and `mount` belong together.
#[inline(always)]
pub unsafe fn judge(
    task: *mut Task,
    op: u8,
    axes: u16,
    class: u32,
    dentry: *const u8,
    mount: *const u8,
    detail: u32,
) -> i32 {
    // SAFETY: as above.
    unsafe { judge_or(task, (op, axes, detail), class, dentry, mount, || false) }
}

/// The same, of what may be a file in `/dev/shm`: `own` says whether the container made it, or makes it now. It is asked
/// where the policy has to do with that.
///
/// # Safety
/// As for [`judge`].
#[inline(always)]
pub unsafe fn judge_or(
    task: *mut Task,
    (op, axes, detail): (u8, u16, u32),
    class: u32,
    dentry: *const u8,
    mount: *const u8,
    own: impl FnOnce() -> bool,
) -> i32 {
    // SAFETY: as above.
    unsafe {
        let container = (*task).container;
        let known = take_policy(task, container);
        let request = begin_request(task, op, axes, detail);
        put(&raw mut (*request).path.dentry, dentry as u64);
        put(&raw mut (*request).path.mount, mount as u64);
        let own = known && shared::is_used(task) && own();
        judge_asked(task, known, own, class)
    }
}

/// Judges the request as it stands. `own`: it is about a file in `/dev/shm` that the container made, or makes.
///
/// # Safety
/// `task` is a tag whose request was begun and has a path.
#[inline(always)]
pub unsafe fn judge_asked(task: *mut Task, known: bool, own: bool, class: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let axes = (*task).scratch.request.axes as u16;
        let mut weighing = weigh(task, &raw const (*task).scratch.request.path, 0);
        if is_nowhere(weighing) && is_queue(fetch(&raw const (*task).scratch.request.path.dentry)) {
            weighing = weigh_queue(task, axes);
        }
        let allowed = weighing.allows(axes) || own && shared::is_undecided(weighing, axes);
        if is_internal(weighing) || (allowed && !wants_record(task, class)) {
            return 0;
        }
        finish_weighed(task, weighing, allowed)
    }
}

/// A file of the kernel's own (a pipe by `/proc/self/fd`, an anonymous inode, an overlay's lower file, opened by the
/// kernel once the overlay's was allowed) may be opened: whoever could name it had it already.
#[inline(always)]
pub const fn is_internal(weighing: Weighing) -> bool {
    weighing.fixed() == fixed::INTERNAL
}

/// Whether a path was followed to its end, and that was not the container's root.
#[inline(always)]
const fn is_nowhere(weighing: Weighing) -> bool {
    matches!(weighing.fixed(), fixed::INTERNAL | fixed::OUTSIDE)
}
