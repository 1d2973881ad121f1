//! The tree of mounts, which no grant lets a governed task change: its rules are about this tree.

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::{RECORD_OTHER, axis};
use ringfence_common::task::Request;

use crate::decide::take_policy;
use crate::emit::{EPERM, begin_request, refuse};
use crate::files::judge;
use crate::globals::{PATH_DENTRY, PATH_MOUNT, VFSMOUNT_ROOT, get};
use crate::identity::governed;
use crate::memory::{load, put};

/// Refuses; `fill` puts the paths into the request.
#[inline(always)]
fn refuse_mount(op: u8, detail: u32, fill: impl FnOnce(*mut Request)) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag.
    unsafe {
        let container = (*task).container;
        let _ = take_policy(task, container);
        fill(begin_request(task, op, 0, detail));
        refuse(task, fixed::MOUNT, EPERM)
    }
}

/// # Safety
/// `path` is a hook's argument of type `path`, `request` lies in a tag.
#[inline(always)]
unsafe fn first(request: *mut Request, path: *const u8) {
    // SAFETY: as above.
    unsafe {
        put(&raw mut (*request).path.dentry, load(path, get(&PATH_DENTRY)));
        put(&raw mut (*request).path.mount, load(path, get(&PATH_MOUNT)));
    }
}

/// # Safety
/// As for [`first`].
#[inline(always)]
unsafe fn second(request: *mut Request, path: *const u8) {
    // SAFETY: as above.
    unsafe {
        put(&raw mut (*request).path2.dentry, load(path, get(&PATH_DENTRY)));
        put(&raw mut (*request).path2.mount, load(path, get(&PATH_MOUNT)));
    }
}

/// mount(2), in all its meanings.
#[lsm(hook = "sb_mount")]
pub fn sb_mount(ctx: LsmContext) -> i32 {
    // SAFETY: the hook's second argument is a path.
    refuse_mount(op::MOUNT, ctx.arg::<u64>(3) as u32, |request| unsafe { first(request, ctx.arg(1)) })
}

/// umount(2).
#[lsm(hook = "sb_umount")]
pub fn sb_umount(ctx: LsmContext) -> i32 {
    refuse_mount(op::UMOUNT, ctx.arg::<u64>(1) as u32, |request| {
        let mount: *const u8 = ctx.arg(0);
        // SAFETY: the hook's first argument is a `vfsmount`.
        unsafe {
            put(&raw mut (*request).path.dentry, load(mount, get(&VFSMOUNT_ROOT)));
            put(&raw mut (*request).path.mount, mount as u64);
        }
    })
}

/// A file system configured anew, by fsconfig(2).
#[lsm(hook = "sb_remount")]
pub fn sb_remount(_ctx: LsmContext) -> i32 {
    refuse_mount(op::MOUNT, 0, |_| {})
}

/// A mount moved, or a new or detached one attached.
#[lsm(hook = "move_mount")]
pub fn move_mount(ctx: LsmContext) -> i32 {
    // SAFETY: both arguments are paths.
    refuse_mount(op::MOVE_MOUNT, 0, |request| unsafe {
        first(request, ctx.arg(0));
        second(request, ctx.arg(1));
    })
}

/// pivot_root(2).
#[lsm(hook = "sb_pivotroot")]
pub fn sb_pivotroot(ctx: LsmContext) -> i32 {
    // SAFETY: both arguments are paths, the new root the second.
    refuse_mount(op::PIVOT_ROOT, 0, |request| unsafe {
        first(request, ctx.arg(1));
        second(request, ctx.arg(0));
    })
}

/// chroot(2) changes what a task calls its files, not what the rules call them: it needs no more than reading.
#[lsm(hook = "path_chroot")]
pub fn path_chroot(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the hook's argument is a path.
    unsafe {
        let path: *const u8 = ctx.arg(0);
        let (dentry, mount) = (load(path, get(&PATH_DENTRY)), load(path, get(&PATH_MOUNT)));
        judge(task, op::CHROOT, axis::READ, RECORD_OTHER, dentry, mount, 0)
    }
}
