//! Files in `/dev/shm`: POSIX shared memory and semaphores. What lies there is shared with every program of the user, so
//! that no path rule can grant it; but what a container made there itself is its own.
//!
//! The container is kept with the inode, and goes with it. Made is what an open made: the kernel says so in the file's mode.

use core::ffi::c_void;

use ringfence_common::policy::{FLAG_SHARED_MEMORY, named};
use ringfence_common::task::Task;

use crate::decide::Weighing;
use crate::fold::is_named;
use crate::globals::{
    DENTRY_INODE, DENTRY_PARENT, DENTRY_SB, FILE_INODE, FILE_MODE, SB_DEVICE, SB_MAGIC, SB_ROOT, get,
};
use crate::memory::{fetch, load, number_of, probe_word};
use crate::storage::SHARED;

/// `TMPFS_MAGIC`.
const TMPFS: u64 = 0x0102_1994;
/// `FMODE_CREATED`: the open made the file.
const CREATED: u32 = 1 << 20;

/// Whether the policy has anything to do with this room.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn is_used(task: *mut Task) -> bool {
    // SAFETY: as above.
    unsafe { (*task).scratch.policy.flags & FLAG_SHARED_MEMORY != 0 }
}

/// Whether no rule denies what no rule grants.
#[inline(always)]
pub const fn is_undecided(weighing: Weighing, axes: u16) -> bool {
    weighing.fixed() == 0 && (weighing.0 >> 16) & axes as u64 == 0
}

/// Whether a dentry, by its address, is directly in the file system at `/dev/shm`.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn is_shared_place(task: *mut Task, dentry: u64) -> u32 {
    if task.is_null() {
        return 0;
    }
    let sb = probe_word(dentry + get(&DENTRY_SB));
    let parent = probe_word(dentry + get(&DENTRY_PARENT));
    if probe_word(sb + get(&SB_MAGIC)) != TMPFS
        || parent != probe_word(sb + get(&SB_ROOT))
        || parent == dentry
    {
        return 0;
    }
    let device = probe_word(sb + get(&SB_DEVICE)) & 0xffff_ffff;
    // SAFETY: `task` is the value of a map.
    u32::from(unsafe { is_named(task, named::SHARED_MEMORY, device) })
}

/// A dentry's address, which to the verifier is no pointer any more.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
unsafe fn number(task: *mut Task, dentry: *const u8) -> u64 {
    // SAFETY: as above.
    unsafe { number_of(&raw mut (*task).scratch.opaque_word, dentry as u64) }
}

/// Whether what no rule grants may be opened: the container made it, now or earlier.
///
/// # Safety
/// `task` is a tag whose policy was taken; `file` is a hook's argument, `dentry` its own.
#[inline(always)]
pub unsafe fn may_open(task: *mut Task, file: *const u8, dentry: *const u8) -> bool {
    // SAFETY: as above; not null, so it is the value of a map.
    unsafe {
        if is_shared_place(task, number(task, dentry)) == 0 {
            return false;
        }
        let inode: *mut c_void = load(file, get(&FILE_INODE));
        if load::<u32>(file, get(&FILE_MODE)) & CREATED != 0 {
            let owner = SHARED.make(inode);
            if owner.is_null() {
                return false;
            }
            *owner = fetch(&raw const (*task).container);
            return true;
        }
        made(task, dentry, inode)
    }
}

/// Whether the container made the file with this inode, that has a name there.
///
/// # Safety
/// `task` is a tag whose policy was taken; `inode` is of a hook's argument, and `dentry` its name.
#[inline(always)]
pub unsafe fn made(task: *mut Task, dentry: *const u8, inode: *mut c_void) -> bool {
    // SAFETY: as above; not null, so it is the value of a map.
    unsafe {
        // A name without a file has no inode. Some kernels' verifiers hold that to be impossible, and drop this; there the
        // helper has no answer.
        if inode.is_null() || is_shared_place(task, number(task, dentry)) == 0 {
            return false;
        }
        let owner = SHARED.of(inode);
        !owner.is_null() && *owner == fetch(&raw const (*task).container)
    }
}

/// The same of a name that is a hook's argument itself.
///
/// # Safety
/// `task` is a tag whose policy was taken; `dentry` is a hook's argument.
#[inline(always)]
pub unsafe fn is_own(task: *mut Task, dentry: *const u8) -> bool {
    // SAFETY: as above.
    unsafe { made(task, dentry, load(dentry, get(&DENTRY_INODE))) }
}

/// Whether a name there is free: a regular file may be made by it.
///
/// # Safety
/// As for [`is_own`].
#[inline(always)]
pub unsafe fn is_free(task: *mut Task, dentry: *const u8) -> bool {
    // SAFETY: as above.
    unsafe {
        // As a number: the verifier would hold a typed pointer for one that is not null.
        let dentry = number(task, dentry);
        probe_word(dentry + get(&DENTRY_INODE)) == 0 && is_shared_place(task, dentry) != 0
    }
}
