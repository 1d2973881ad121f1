//! Names in directories: made, removed, moved, linked.
//!
//! A rename or a hard link gives a file another answer, by its new name, and what is in a directory with it. It must not
//! be a better one: see [`may_move`].

use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::event::{fixed, op, rule};
use ringfence_common::moves::{Reach, S_IFDIR, objection};
use ringfence_common::policy::{RECORD_FILE, axis};
use ringfence_common::task::{Place, Task, casing};

use crate::decide::{Weighing, reach, take_policy, weigh};
use crate::emit::{EACCES, EPERM, EXDEV, begin_request, finish, finish_weighed, refuse, wants_record};
use crate::explain::explain;
use crate::files::judge_or;
use crate::globals::{DENTRY_INODE, INODE_MODE, PATH_MOUNT, get};
use crate::identity::governed;
use crate::memory::{fetch, load, probe, probe_word, put};
use crate::setuid::{gives_rights, judge_rights};
use crate::shared;

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
/// `RENAME_NOREPLACE`.
const NO_REPLACE: u32 = 1;
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
            let (dentry, detail): (*const u8, u32) = ($ctx.arg(1), $detail);
            let own = || {
                shared::is_own(task, dentry)
                    || $op == op::CREATE && detail & S_IFMT == S_IFREG && shared::is_free(task, dentry)
            };
            judge_or(task, ($op, axis::WRITE, detail), RECORD_FILE, dentry, mount, own)
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
        let request = begin_request(task, op::MKNOD, 0, mode);
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
        let request = begin_request(task, op::LINK, axis::WRITE, 0);
        put(&raw mut (*request).path.dentry, ctx.arg(0));
        put(&raw mut (*request).path.mount, load(directory, get(&PATH_MOUNT)));
        put(&raw mut (*request).path2.dentry, ctx.arg(2));
        put(&raw mut (*request).path2.mount, load(directory, get(&PATH_MOUNT)));
        if known
            && shared::is_used(task)
            && shared::is_own(task, ctx.arg(0))
            && shared::is_free(task, ctx.arg(2))
            && is_undenied(task)
        {
            return allow(task);
        }
        conclude(task, known, false)
    }
}

/// Lets the request pass, by no rule.
#[inline(always)]
unsafe fn allow(task: *mut Task) -> i32 {
    // SAFETY: the caller's tag.
    unsafe { if wants_record(task, RECORD_FILE) { finish(task, true, EACCES) } else { 0 } }
}

/// Whether no rule denies writing at either of the request's places.
#[inline(always)]
unsafe fn is_undenied(task: *mut Task) -> bool {
    // SAFETY: the caller's tag.
    unsafe {
        let request = &raw const (*task).scratch.request;
        shared::is_undecided(weigh(task, &raw const (*request).path, 0), axis::WRITE)
            && shared::is_undecided(weigh(task, &raw const (*request).path2, 0), axis::WRITE)
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
        let request = begin_request(task, op::RENAME, axis::WRITE, flags);
        put(&raw mut (*request).path.dentry, ctx.arg(1));
        put(&raw mut (*request).path.mount, load(from, get(&PATH_MOUNT)));
        put(&raw mut (*request).path2.dentry, ctx.arg(3));
        put(&raw mut (*request).path2.mount, load(to, get(&PATH_MOUNT)));
        if known
            && shared::is_used(task)
            && flags & !NO_REPLACE == 0
            && shared::is_own(task, ctx.arg(1))
            && (shared::is_own(task, ctx.arg(3)) || shared::is_free(task, ctx.arg(3)))
            && is_undenied(task)
        {
            return allow(task);
        }
        conclude(task, known, flags & EXCHANGE != 0)
    }
}

#[inline(always)]
unsafe fn conclude(task: *mut Task, known: bool, exchange: bool) -> i32 {
    // SAFETY: `task` is a tag whose request has two paths.
    unsafe {
        if !known {
            return finish_weighed(task, Weighing::refused(fixed::NO_POLICY), false);
        }
        let mut refusal = may_move(task);
        if refusal == 0 && exchange {
            swap(task);
            refusal = may_move(task);
            swap(task);
        }
        if refusal == 0 && !wants_record(task, RECORD_FILE) {
            return 0;
        }
        // The verifier wants to see what a hook returns, which it does not of another function's result.
        finish(task, refusal == 0, if refusal == EXDEV { EXDEV } else { EACCES })
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

/// What the hook returns for what is at the request's path when it is moved or linked to its second path; notes the
/// rule.
///
/// - Both places must grant writing.
/// - The new place must give nothing that the old one does not, on any axis: neither to the file nor, if it is a
///   directory, to anything below it. Otherwise the answer is that of a move between file systems, at which programs
///   copy, file by file, each of which is judged. (Why a file is not just compared with its copy: a copy is no setuid
///   program, not that socket, and needs reading by its mode as well.)
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn may_move(task: *mut Task) -> i32 {
    if task.is_null() {
        return EACCES;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let request = &raw mut (*task).scratch.request;
        (*request).axes = u32::from(axis::WRITE);
        let old = reach(task, &raw const (*request).path);
        if !old.allows(axis::WRITE) {
            note(task, old);
            return EACCES;
        }
        let new = reach(task, &raw const (*request).path2);
        let allowed = new.allows(axis::WRITE);
        if !allowed || wants_record(task, RECORD_FILE) {
            note(task, new);
        }
        if !allowed {
            return EACCES;
        }
        let (why, gained) = objection(old, new, mode_of(&raw const (*request).path));
        let why = if why == 0 && may_change_case(task, old) { fixed::CASE } else { why };
        if why == 0 {
            return 0;
        }
        (*request).axes |= u32::from(gained);
        (*request).rule_kind = rule::FIXED;
        (*request).rule = why;
        EXDEV
    }
}

/// Whether what is moved may come under a grant that is spelled otherwise than its new name, once that is looked up by
/// another spelling: only where case is not told apart, and unless the same could be had by copying: a link, or a file
/// that may be read and written and gives no rights to whoever runs it.
#[inline(always)]
unsafe fn may_change_case(task: *mut Task, old: Reach) -> bool {
    // SAFETY: the caller's tag, after the new place's walk. A move never crosses file systems.
    unsafe {
        if fetch(&raw const (*task).scratch.casing) & casing::FOLDED == 0 {
            return false;
        }
        let mode = mode_of(&raw const (*task).scratch.request.path);
        let copied = mode & S_IFMT == S_IFREG && old.allows(axis::READ | axis::WRITE) && !gives_rights(mode);
        !copied && mode & S_IFMT != S_IFLNK
    }
}

/// Notes the rule behind an answer for the path that was folded last.
#[inline(always)]
unsafe fn note(task: *mut Task, reach: Reach) {
    // SAFETY: the caller's tag.
    unsafe {
        if reach.fixed() == 0 {
            explain(task);
        } else {
            (*task).scratch.request.rule_kind = rule::FIXED;
            (*task).scratch.request.rule = reach.fixed();
        }
    }
}

/// A place's type and mode; a directory, which is held to the most, if it cannot be read.
#[inline(always)]
unsafe fn mode_of(place: *const Place) -> u32 {
    // SAFETY: `place` lies in the tag; 2 bytes of `mode`.
    unsafe {
        let inode = probe_word(fetch(&raw const (*place).dentry) + get(&DENTRY_INODE));
        let mut mode = 0u16;
        if inode == 0 || !probe((&raw mut mode).cast(), 2, inode + get(&INODE_MODE)) {
            return S_IFDIR;
        }
        u32::from(mode)
    }
}
