//! Changes to what is there: length, mode, owner, times, extended attributes. All of them are writing.
//!
//! Some of these hooks name a dentry and no mount, so not a path but as many as the file system is mounted in places.
//! There the operation is allowed if it is by one of them that the container can reach: the task could have come
//! that way.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::Task;

use crate::decide::{Weighing, take_policy};
use crate::emit::{EPERM, begin_request, finish_weighed, refuse, wants_record};
use crate::files::{is_internal, judge, judge_or};
use crate::globals::{
    FILE_INODE, FILE_PATH, IATTR_VALID, LEGACY, PATH_DENTRY, PATH_MOUNT, SETATTR_DENTRY, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, probe_word, put};
use crate::search::weigh_anywhere;
use crate::setuid::{adds_rights, granted, is_file_capability, is_nameless, judge_rights};
use crate::shared;
use crate::terminal::judge_change;

/// `ATTR_MODE`, `ATTR_UID`, `ATTR_GID`, `ATTR_SIZE`: these changes have hooks of their own, with a path.
const ATTR_JUDGED: u32 = 0b1111;
/// `ATTR_ATIME`, `ATTR_MTIME`, `ATTR_ATIME_SET`, `ATTR_MTIME_SET`, `ATTR_TOUCH`.
const ATTR_TIMES: u32 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 17;

/// Judges a hook whose first argument has a path, so many bytes in. `$own` says of the tag and the dentry whether it is a file
/// of the container's own in `/dev/shm`.
macro_rules! by_path {
    ($ctx:ident, $at:expr, $op:expr, $detail:expr, $own:expr) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        // SAFETY: `task` is a tag; the path lies in the hook's argument.
        unsafe {
            let path = $ctx.arg::<*const u8>(0).add($at as usize);
            let (dentry, mount): (*const u8, *const u8) =
                (load(path, get(&PATH_DENTRY)), load(path, get(&PATH_MOUNT)));
            let verdict = judge_change(task, $op, dentry as u64, mount as u64, $detail);
            if verdict != 0 {
                return verdict;
            }
            judge_or(task, ($op, axis::WRITE, $detail), RECORD_FILE, dentry, mount, || $own(task, dentry))
        }
    }};
}

/// truncate(2); up to 6.1 ftruncate(2) and O_TRUNC as well.
#[lsm(hook = "path_truncate")]
pub fn path_truncate(ctx: LsmContext) -> i32 {
    // The dentry is not the argument itself, and kernels whose verifiers mind that have the other hook.
    // SAFETY: `task` is a tag, the dentry the hook's.
    let own = |task, dentry| get(&LEGACY) != 0 && unsafe { shared::is_own(task, dentry) };
    by_path!(ctx, 0, op::TRUNCATE, 0, own)
}

/// ftruncate(2) and O_TRUNC, from 6.2 on.
#[lsm(hook = "file_truncate")]
pub fn file_truncate(ctx: LsmContext) -> i32 {
    // SAFETY: `task` is a tag, the file is the hook's argument, and the dentry its own.
    let own = |task, dentry| unsafe { shared::made(task, dentry, load(ctx.arg(0), get(&FILE_INODE))) };
    by_path!(ctx, get(&FILE_PATH), op::TRUNCATE, 0, own)
}

/// chmod(2) and its kin.
#[lsm(hook = "path_chmod")]
pub fn path_chmod(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the path is the hook's argument.
    unsafe {
        let path: *const u8 = ctx.arg(0);
        let (dentry, mount): (*const u8, *const u8) =
            (load(path, get(&PATH_DENTRY)), load(path, get(&PATH_MOUNT)));
        let mode = ctx.arg::<u64>(1) as u32 & 0xffff;
        let verdict = judge_change(task, op::CHMOD, dentry as u64, mount as u64, mode);
        if verdict != 0 {
            return verdict;
        }
        if adds_rights(dentry as u64, mode) {
            let answer = judge_rights(task, op::CHMOD, dentry as u64, mount as u64, mode);
            if answer != 0 {
                return answer;
            }
        }
        judge(task, op::CHMOD, axis::WRITE, RECORD_FILE, dentry, mount, mode)
    }
}

/// chown(2) and its kin.
#[lsm(hook = "path_chown")]
pub fn path_chown(ctx: LsmContext) -> i32 {
    by_path!(ctx, 0, op::CHOWN, 0, |_, _| false)
}

/// utimes(2) and its kin; other attributes have been judged by then.
#[lsm(hook = "inode_setattr")]
pub fn inode_setattr(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the arguments are a dentry and, behind it, the attributes.
    unsafe {
        // Through memory: the compiler would choose the argument first and then load it, which the verifier refuses.
        // Where the hook has two arguments, the third is what an earlier program returned.
        let arguments = (&raw mut (*task).scratch.name).cast::<u64>();
        put(arguments, ctx.arg(0));
        put(arguments.add(1), ctx.arg(1));
        put(arguments.add(2), ctx.arg(2));
        let last_but_one = if get(&SETATTR_DENTRY) == 0 { arguments } else { arguments.add(1) };
        let dentry = fetch(last_but_one);
        let valid = probe_word(fetch(last_but_one.add(1)) + get(&IATTR_VALID)) as u32;
        if valid & ATTR_JUDGED != 0 || valid & ATTR_TIMES == 0 {
            return 0;
        }
        judge_anywhere(task, op::UTIMES, dentry, valid, false)
    }
}

/// Judges a hook one of whose arguments is a dentry.
macro_rules! by_dentry {
    ($ctx:ident, $at:literal) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        // SAFETY: `task` is a tag.
        unsafe { judge_anywhere(task, op::SETXATTR, $ctx.arg($at), 0, false) }
    }};
}

/// setxattr(2) and its kin.
#[lsm(hook = "inode_setxattr")]
pub fn inode_setxattr(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let rights = is_file_capability(ctx.arg(2));
    // SAFETY: `task` is a tag.
    unsafe { judge_anywhere(task, op::SETXATTR, ctx.arg(1), 0, rights) }
}

/// removexattr(2) and its kin.
#[lsm(hook = "inode_removexattr")]
pub fn inode_removexattr(ctx: LsmContext) -> i32 {
    by_dentry!(ctx, 1)
}

/// An access control list set, from 6.2 on.
#[lsm(hook = "inode_set_acl")]
pub fn inode_set_acl(ctx: LsmContext) -> i32 {
    by_dentry!(ctx, 1)
}

/// An access control list removed, from 6.2 on.
#[lsm(hook = "inode_remove_acl")]
pub fn inode_remove_acl(ctx: LsmContext) -> i32 {
    by_dentry!(ctx, 1)
}

/// file_setattr(2), and chattr's ioctl where that comes this way, too.
#[lsm(hook = "inode_file_setattr")]
pub fn inode_file_setattr(ctx: LsmContext) -> i32 {
    by_dentry!(ctx, 0)
}

/// Judges writing to a dentry, by whichever mount the container can reach it. `rights`: what is written gives rights of
/// another to whoever executes the file.
///
/// # Safety
/// `task` is a tag; `dentry` is a hook's argument.
#[inline(always)]
unsafe fn judge_anywhere(task: *mut Task, op: u8, dentry: u64, detail: u32, rights: bool) -> i32 {
    // SAFETY: as above.
    unsafe {
        let verdict = judge_change(task, op, dentry, 0, detail);
        if verdict != 0 {
            return verdict;
        }
        let container = (*task).container;
        let known = take_policy(task, container);
        let request = begin_request(task, op, axis::WRITE, detail);
        put(&raw mut (*request).path.dentry, dentry);
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let weighing = Weighing(weigh_anywhere(task, axis::WRITE));
        // An overlay gives its layers what its own files have.
        let layer = is_internal(weighing) && !is_nameless(dentry);
        if rights && !layer && !granted(task) {
            return refuse(task, fixed::SETUID, EPERM);
        }
        let allowed = weighing.allows(axis::WRITE);
        if is_internal(weighing) || (allowed && !wants_record(task, RECORD_FILE)) {
            return 0;
        }
        finish_weighed(task, weighing, allowed)
    }
}
