//! Files that give whoever executes them rights of another: setuid and setgid bits, file capabilities. A user outside
//! would have them of the container.

use ringfence_common::event::fixed;
use ringfence_common::policy::FLAG_SETUID_FILES;
use ringfence_common::task::Task;

use crate::decide::take_policy;
use crate::emit::{EPERM, begin_request, refuse};
use crate::globals::{DENTRY_INODE, DENTRY_SB, INODE_MODE, SB_FLAGS, get};
use crate::memory::{fetch, probe, probe_word, put};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_ISUID: u32 = 0o4000;
/// `S_ISGID` and `S_IXGRP`: only together are they a set-group-id program.
const S_ISGID_X: u32 = 0o2010;
/// `SB_NOUSER`: a file system of the kernel's own, such as that of memfds.
const SB_NOUSER: u64 = 1 << 31;

/// Which of these rights a mode gives.
#[inline(always)]
const fn rights(mode: u32) -> u32 {
    let group = if mode & S_ISGID_X == S_ISGID_X { S_ISGID_X } else { 0 };
    mode & S_ISUID | group
}

/// Whether a mode gives rights to a new file.
#[inline(always)]
pub const fn gives_rights(mode: u32) -> bool {
    rights(mode) != 0
}

/// The mode of what is at a dentry; none, if there is nothing.
#[inline(always)]
pub fn mode_of(dentry: u64) -> u32 {
    let inode = probe_word(dentry + get(&DENTRY_INODE));
    let mut mode = 0u16;
    // SAFETY: 2 bytes of `mode`.
    if inode == 0 || !unsafe { probe((&raw mut mode).cast(), 2, inode + get(&INODE_MODE)) } {
        return 0;
    }
    u32::from(mode)
}

/// Whether a change to `mode` gives rights that the file did not give before.
#[inline(always)]
pub fn adds_rights(dentry: u64, mode: u32) -> bool {
    let now = mode_of(dentry);
    now & S_IFMT != S_IFDIR && rights(mode) & !rights(now) != 0
}

/// Whether a name is `security.capability`.
#[inline(always)]
pub fn is_file_capability(name: u64) -> bool {
    const END: u64 = 0xffff_ffff;
    probe_word(name) == u64::from_le_bytes(*b"security")
        && probe_word(name + 8) == u64::from_le_bytes(*b".capabil")
        && probe_word(name + 16) & END == u64::from_le_bytes(*b"ity\0\0\0\0\0")
}

/// Whether a dentry that only the kernel mounts is a memfd's or its like, and no layer below an overlay.
#[inline(always)]
pub fn is_nameless(dentry: u64) -> bool {
    probe_word(probe_word(dentry + get(&DENTRY_SB)) + get(&SB_FLAGS)) & SB_NOUSER != 0
}

/// Whether the policy lets files give rights. It must have been taken.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn granted(task: *mut Task) -> bool {
    // SAFETY: as above.
    unsafe { (*task).scratch.policy.flags & FLAG_SETUID_FILES != 0 }
}

/// Refuses a mode that gives rights, unless the policy lets it.
///
/// # Safety
/// `task` is a tag; `dentry` and `mount` belong together.
#[inline(always)]
pub unsafe fn judge_rights(task: *mut Task, op: u8, dentry: u64, mount: u64, mode: u32) -> i32 {
    // SAFETY: as above.
    unsafe {
        let container = fetch(&raw const (*task).container);
        let known = take_policy(task, container);
        if known && granted(task) {
            return 0;
        }
        let request = begin_request(task, op, 0, mode);
        put(&raw mut (*request).path.dentry, dentry);
        put(&raw mut (*request).path.mount, mount);
        refuse(task, if known { fixed::SETUID } else { fixed::NO_POLICY }, EPERM)
    }
}
