//! Names in directories: made, removed, moved, linked.
//!
//! A rename or a hard link gives a file a second answer, by its new name. It must not be a better one than a copy
//! could have: see [`may_move`].

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op, rule};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::{Place, Task};

use crate::decide::{Weighing, take_policy, weigh};
use crate::emit::{EACCES, EPERM, ask, close, refuse, settle, wants};
use crate::explain::explain;
use crate::files::judge;
use crate::fold::{FAR_BELOW, is_pinned};
use crate::globals::{DENTRY_INODE, INODE_MODE, PATH_MOUNT, get};
use crate::identity::governed;
use crate::memory::{fetch, load, probe, probe_word, put};
use crate::setuid::{gives_rights, judge_rights};

const S_IFMT: u32 = 0o170_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFDIR: u32 = 0o040_000;
/// `RENAME_EXCHANGE`.
const EXCHANGE: u32 = 2;

/// Judges a hook whose arguments begin with the directory's path and the dentry in it.
macro_rules! in_directory {
    ($ctx:ident, $op:expr, $detail:expr) => {{
        let task = governed();
        if task.is_null() {
            return 0;
        }
        // SAFETY: `task` is a tag; the directory and the dentry are the hook's arguments.
        unsafe {
            let directory: *const u8 = $ctx.arg(0);
            let mount: *const u8 = load(directory, get(&PATH_MOUNT));
            judge(task, $op, axis::WRITE, RECORD_FILE, $ctx.arg(1), mount, $detail)
        }
    }};
}

/// Creation of a file, fifo or socket; of a device, never.
#[lsm(hook = "path_mknod")]
pub fn path_mknod(ctx: LsmContext) -> i32 {
    let mode = ctx.arg::<u64>(2) as u32 & 0xffff;
    let device = mode & S_IFMT == S_IFCHR || mode & S_IFMT == S_IFBLK;
    if !device && !gives_rights(mode) {
        return in_directory!(ctx, op::CREATE, mode);
    }
    let task = governed();
    if task.is_null() {
        return 0;
    }
    if !device {
        // SAFETY: `task` is a tag; the directory and the dentry are the hook's arguments.
        let answer = unsafe {
            let mount: u64 = load(ctx.arg(0), get(&PATH_MOUNT));
            judge_rights(task, op::CREATE, ctx.arg(1), mount, mode)
        };
        return if answer != 0 { answer } else { in_directory!(ctx, op::CREATE, mode) };
    }
    // SAFETY: `task` is a tag; the directory and the dentry are the hook's arguments.
    unsafe {
        let container = (*task).container;
        let _ = take_policy(task, container);
        let directory: *const u8 = ctx.arg(0);
        let request = ask(task, op::MKNOD, 0, mode);
        put(&raw mut (*request).path.dentry, ctx.arg(1));
        put(&raw mut (*request).path.mount, load(directory, get(&PATH_MOUNT)));
        refuse(task, fixed::DEVICE, EPERM)
    }
}

/// Creation of a directory.
#[lsm(hook = "path_mkdir")]
pub fn path_mkdir(ctx: LsmContext) -> i32 {
    in_directory!(ctx, op::MKDIR, ctx.arg::<u64>(2) as u32 & 0xffff)
}

/// Creation of a symbolic link. What it points to is judged when it is followed.
#[lsm(hook = "path_symlink")]
pub fn path_symlink(ctx: LsmContext) -> i32 {
    in_directory!(ctx, op::SYMLINK, 0)
}

/// Removal of a file.
#[lsm(hook = "path_unlink")]
pub fn path_unlink(ctx: LsmContext) -> i32 {
    in_directory!(ctx, op::UNLINK, 0)
}

/// Removal of a directory.
#[lsm(hook = "path_rmdir")]
pub fn path_rmdir(ctx: LsmContext) -> i32 {
    in_directory!(ctx, op::RMDIR, 0)
}

/// A hard link: the old name keeps its answer, the new one has its own.
#[lsm(hook = "path_link")]
pub fn path_link(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is a tag; the rest are the hook's arguments. A link never crosses mounts.
    unsafe {
        let container = (*task).container;
        let known = take_policy(task, container);
        let directory: *const u8 = ctx.arg(1);
        let request = ask(task, op::LINK, axis::WRITE, 0);
        put(&raw mut (*request).path.dentry, ctx.arg(0));
        put(&raw mut (*request).path.mount, load(directory, get(&PATH_MOUNT)));
        put(&raw mut (*request).path2.dentry, ctx.arg(2));
        put(&raw mut (*request).path2.mount, load(directory, get(&PATH_MOUNT)));
        conclude(task, known, false)
    }
}

/// A rename, or an exchange, which is two.
#[lsm(hook = "path_rename")]
pub fn path_rename(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    // SAFETY: as above.
    unsafe {
        let container = (*task).container;
        let known = take_policy(task, container);
        let (from, to): (*const u8, *const u8) = (ctx.arg(0), ctx.arg(2));
        let flags = ctx.arg::<u64>(4) as u32;
        let request = ask(task, op::RENAME, axis::WRITE, flags);
        put(&raw mut (*request).path.dentry, ctx.arg(1));
        put(&raw mut (*request).path.mount, load(from, get(&PATH_MOUNT)));
        put(&raw mut (*request).path2.dentry, ctx.arg(3));
        put(&raw mut (*request).path2.mount, load(to, get(&PATH_MOUNT)));
        conclude(task, known, flags & EXCHANGE != 0)
    }
}

#[inline(always)]
unsafe fn conclude(task: *mut Task, known: bool, exchange: bool) -> i32 {
    // SAFETY: `task` is a tag whose request has two paths.
    unsafe {
        if !known {
            return settle(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let mut allowed = may_move(task) != 0;
        if allowed && exchange {
            swap(task);
            allowed = may_move(task) != 0;
            swap(task);
        }
        if allowed && !wants(task, RECORD_FILE) { 0 } else { close(task, allowed, EACCES) }
    }
}

#[inline(always)]
unsafe fn swap(task: *mut Task) {
    // SAFETY: the caller's tag.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        let (path, path2) = (fetch(&raw const (*request).path), fetch(&raw const (*request).path2));
        put(&raw mut (*request).path, path2);
        put(&raw mut (*request).path2, path);
    }
}

/// Whether what is at the request's path may be moved or linked to its second path (1), and by which rule.
///
/// - The old place must grant reading and writing: then a copy at the new place would give the same.
/// - Nothing may be denied of it, on any axis: the new name would shed the denial.
/// - A directory takes along what is below it: that must be granted as well, and the directory must not be pinned
///   (something below it is denied or protected by its path).
/// - The new place must grant writing, and must not open up a socket that was closed to the task: a copy of a socket
///   is not that socket.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn may_move(task: *mut Task) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        let old = &raw const (*request).path;
        let here = weigh(task, old, 0);
        if !leaves(task, here) {
            return 0;
        }
        if is_directory(old) {
            if is_pinned(task) {
                (*request).rule_kind = rule::FIXED;
                (*request).rule = fixed::PINNED;
                return 0;
            }
            if !leaves(task, weigh(task, old, FAR_BELOW)) {
                return 0;
            }
        }
        let there = weigh(task, &raw const (*request).path2, 0);
        (*request).axes = u32::from(axis::WRITE);
        let allowed = there.allows(axis::WRITE);
        note(task, there);
        if allowed && there.allowed() & !here.allowed() & axis::UNIX != 0 {
            (*request).axes = u32::from(axis::UNIX);
            (*request).rule_kind = rule::DEFAULT;
            (*request).rule = 0;
            return 0;
        }
        u32::from(allowed)
    }
}

/// Whether the old place lets go; notes the rule if it does not.
#[inline(always)]
unsafe fn leaves(task: *mut Task, weighing: Weighing) -> bool {
    const NEEDED: u16 = axis::READ | axis::WRITE;
    if weighing.allows(NEEDED) && weighing.denied() == 0 {
        return true;
    }
    // SAFETY: the caller's tag.
    unsafe {
        (*task).scratch.request.axes = u32::from(NEEDED | weighing.denied());
        note(task, weighing);
    }
    false
}

/// Notes the rule behind a weighing.
#[inline(always)]
unsafe fn note(task: *mut Task, weighing: Weighing) {
    // SAFETY: the caller's tag.
    unsafe {
        if weighing.fixed() == 0 {
            explain(task);
        } else {
            (*task).scratch.request.rule_kind = rule::FIXED;
            (*task).scratch.request.rule = weighing.fixed();
        }
    }
}

/// Whether a place is a directory; yes, if it cannot be read.
#[inline(always)]
unsafe fn is_directory(place: *const Place) -> bool {
    // SAFETY: `place` lies in the tag; 2 bytes of `mode`.
    unsafe {
        let inode = probe_word(fetch(&raw const (*place).dentry) + get(&DENTRY_INODE));
        let mut mode = 0u16;
        if inode == 0 || !probe((&raw mut mode).cast(), 2, inode + get(&INODE_MODE)) {
            return true;
        }
        u32::from(mode) & S_IFMT == S_IFDIR
    }
}
