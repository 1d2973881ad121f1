//! Changes to what is there: length, mode, owner, times, extended attributes. All of them are writing.
//!
//! Some of these hooks name a dentry and no mount, so not a path but as many as the file system is mounted in places.
//! There the operation is allowed if it is by one of them that the container can reach: the task could have come
//! that way.

use core::ffi::c_void;

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::Task;

use crate::decide::{INTERNAL_NS, Weighing, take_policy, weigh};
use crate::emit::{ask, settle, wants};
use crate::files::{is_internal, judge};
use crate::globals::{
    DENTRY_SB, FILE_PATH, IATTR_VALID, MOUNT_NEXT, MOUNT_NS, MOUNT_VFSMOUNT, PATH_DENTRY, PATH_MOUNT,
    SB_MOUNTS, SETATTR_DENTRY, VFSMOUNT_SB, get,
};
use crate::identity::governed;
use crate::memory::{fetch, load, probe_word, put, repeat};

/// `ATTR_MODE`, `ATTR_UID`, `ATTR_GID`, `ATTR_SIZE`: these changes have hooks of their own, with a path.
const ATTR_JUDGED: u32 = 0b1111;
/// `ATTR_ATIME`, `ATTR_MTIME`, `ATTR_ATIME_SET`, `ATTR_MTIME_SET`, `ATTR_TOUCH`.
const ATTR_TIMES: u32 = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 17;
/// Most mounts of one file system that are looked at, in all namespaces.
const MAX_MOUNTS: usize = 256;

/// Judges a hook whose argument `$path` is a path.
macro_rules! by_path {
    ($ctx:ident, $at:expr, $op:expr, $detail:expr) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        // SAFETY: `task` is a tag; the path lies in the hook's argument.
        unsafe {
            let path = $ctx.arg::<*const u8>(0).add($at as usize);
            let (dentry, mount) = (load(path, get(&PATH_DENTRY)), load(path, get(&PATH_MOUNT)));
            judge(task, $op, axis::WRITE, RECORD_FILE, dentry, mount, $detail)
        }
    }};
}

/// truncate(2); up to 6.1 ftruncate(2) and O_TRUNC as well.
#[lsm(hook = "path_truncate")]
pub fn path_truncate(ctx: LsmContext) -> i32 {
    by_path!(ctx, 0, op::TRUNCATE, 0)
}

/// ftruncate(2) and O_TRUNC, from 6.2 on.
#[lsm(hook = "file_truncate")]
pub fn file_truncate(ctx: LsmContext) -> i32 {
    by_path!(ctx, get(&FILE_PATH), op::TRUNCATE, 0)
}

/// chmod(2) and its kin.
#[lsm(hook = "path_chmod")]
pub fn path_chmod(ctx: LsmContext) -> i32 {
    by_path!(ctx, 0, op::CHMOD, ctx.arg::<u64>(1) as u32 & 0xffff)
}

/// chown(2) and its kin.
#[lsm(hook = "path_chown")]
pub fn path_chown(ctx: LsmContext) -> i32 {
    by_path!(ctx, 0, op::CHOWN, 0)
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
        judge_anywhere(task, op::UTIMES, dentry, valid)
    }
}

/// Judges a hook whose second argument is a dentry.
macro_rules! by_dentry {
    ($ctx:ident) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        // SAFETY: `task` is a tag.
        unsafe { judge_anywhere(task, op::SETXATTR, $ctx.arg(1), 0) }
    }};
}

/// setxattr(2) and its kin.
#[lsm(hook = "inode_setxattr")]
pub fn inode_setxattr(ctx: LsmContext) -> i32 {
    by_dentry!(ctx)
}

/// removexattr(2) and its kin.
#[lsm(hook = "inode_removexattr")]
pub fn inode_removexattr(ctx: LsmContext) -> i32 {
    by_dentry!(ctx)
}

/// An access control list set, from 6.2 on.
#[lsm(hook = "inode_set_acl")]
pub fn inode_set_acl(ctx: LsmContext) -> i32 {
    by_dentry!(ctx)
}

/// An access control list removed, from 6.2 on.
#[lsm(hook = "inode_remove_acl")]
pub fn inode_remove_acl(ctx: LsmContext) -> i32 {
    by_dentry!(ctx)
}

/// Judges writing to a dentry, by whichever mount the container can reach it.
///
/// # Safety
/// `task` is a tag; `dentry` is a hook's argument.
#[inline(always)]
unsafe fn judge_anywhere(task: *mut Task, op: u8, dentry: u64, detail: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let container = (*task).container;
        let known = take_policy(task, container);
        let request = ask(task, op, axis::WRITE, detail);
        put(&raw mut (*request).path.dentry, dentry);
        put(&raw mut (*request).path.mount, (*task).root_mount);
        if !known {
            return settle(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let weighing = Weighing(weigh_anywhere(task));
        let allowed = weighing.allows(axis::WRITE);
        if is_internal(weighing) || (allowed && !wants(task, RECORD_FILE)) {
            return 0;
        }
        settle(task, weighing, allowed)
    }
}

/// Weighs the request's dentry through the container's root mount if it is on that file system, else, or if it is not
/// below that mount's root, through the file system's other mounts in the container's namespace, until one allows
/// writing. Leaves the mount in the request.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn weigh_anywhere(task: *mut Task) -> u64 {
    if task.is_null() {
        return Weighing::refused(fixed::UNREADABLE).0;
    }
    // SAFETY: `task` is the value of a map; all else is read by `probe`.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let path = &raw const (*scratch).request.path;
        let root_mount = (*task).root_mount;
        let sb = probe_word(fetch(&raw const (*path).dentry) + get(&DENTRY_SB));
        if sb == probe_word(root_mount + get(&VFSMOUNT_SB)) {
            let weighing = weigh(task, path, 0);
            if weighing.fixed() == 0 {
                return weighing.0;
            }
        }
        let mut search =
            Search { task, sb, namespace: probe_word(root_mount - get(&MOUNT_VFSMOUNT) + get(&MOUNT_NS)) };
        put((&raw mut (*scratch).name).cast::<u64>(), probe_word(sb + get(&SB_MOUNTS)));
        put((&raw mut (*scratch).name).cast::<u64>().add(1), Weighing::refused(fixed::OUTSIDE).0);
        repeat(MAX_MOUNTS, next_mount, (&raw mut search).cast());
        fetch((&raw const (*scratch).name).cast::<u64>().add(1))
    }
}

/// What is searched for. The link to go on with and the best answer so far are in the scratch's name buffer.
#[repr(C)]
struct Search {
    task: *mut Task,
    sb: u64,
    namespace: u64,
}

/// Weighs through the next mount of the file system.
///
/// # Safety
/// `context` points to a [`Search`].
unsafe extern "C" fn next_mount(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map; all else is read by `probe`.
    unsafe {
        let Search { task, sb, namespace } = context.cast::<Search>().read();
        let scratch = &raw mut (*task).scratch;
        let state = (&raw mut (*scratch).name).cast::<u64>();
        let link = fetch(state);
        let sb_of = |base: u64| probe_word(base + get(&MOUNT_VFSMOUNT) + get(&VFSMOUNT_SB));
        // A link is the mount's address, or (a list's, up to 6.16) that of its link. Anything else is the end.
        let base = if link == 0 {
            return 1;
        } else if sb_of(link) == sb {
            link
        } else if sb_of(link - get(&MOUNT_NEXT)) == sb {
            link - get(&MOUNT_NEXT)
        } else {
            return 1;
        };
        let next = probe_word(base + get(&MOUNT_NEXT));
        let best = fetch(state.add(1));
        let its_namespace = probe_word(base + get(&MOUNT_NS));
        if its_namespace == namespace {
            put(&raw mut (*scratch).request.path.mount, base + get(&MOUNT_VFSMOUNT));
            let weighing = weigh(task, &raw const (*scratch).request.path, 0);
            // A long name was hashed in this very buffer.
            put(state.add(1), if weighing.fixed() == 0 { weighing.0 } else { best });
            if weighing.allows(axis::WRITE) {
                return 1;
            }
        } else if its_namespace == INTERNAL_NS && best == Weighing::refused(fixed::OUTSIDE).0 {
            // Nowhere in the container, but held by the kernel itself: a memfd, a layer of an overlay that the kernel
            // copies up to.
            put(state.add(1), Weighing::refused(fixed::INTERNAL).0);
        }
        put(state, next);
        0
    }
}
