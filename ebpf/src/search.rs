//! Something that is known by its dentry and not by the way that led there: by which of the container's mounts could the
//! task have come?
//!
//! A dentry is not a path but as many as its file system is mounted in places. What is asked is allowed if it is by one of
//! them that is in the container's namespace.

use core::ffi::c_void;

use ringfence_common::event::fixed;
use ringfence_common::task::Task;

use crate::decide::{INTERNAL_NS, Weighing, weigh};
use crate::globals::{DENTRY_SB, MOUNT_NEXT, MOUNT_NS, MOUNT_VFSMOUNT, SB_MOUNTS, VFSMOUNT_SB, get};
use crate::memory::{fetch, probe_word, put, repeat};

/// Most mounts of one file system that are looked at, in all namespaces. Those of a container that came late are among the
/// last.
const MAX_MOUNTS: usize = 4096;

/// Most of them in the container's own namespace: the newest verifier walks through each turn of the loop.
const MAX_WEIGHED: usize = 32;

/// What is searched for, and where the search stands.
#[repr(C)]
#[derive(Clone, Copy)]
struct Search {
    /// The mount to look at next, by the file system's list.
    link: u64,
    /// The file system.
    sb: u64,
    /// The container's namespace.
    namespace: u64,
    /// The mount that was found; 0: there are no more.
    found: u64,
    /// Not 0: the kernel itself has a mount of it, for a memfd, or a layer of an overlay that the kernel copies up to.
    internal: u64,
}

const _: () = assert!(size_of::<Search>() == size_of::<[u64; 5]>());

/// Weighs the request's dentry through the container's root mount if it is on that file system, else, or if it is not
/// below that mount's root, through the file system's other mounts in the container's namespace, until one allows
/// `axis`, or has no answer for another reason than that the dentry is not below it: what cannot be read through a mount
/// that leads there is not made up for by others. Leaves the mount in the request.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn weigh_anywhere(task: *mut Task, axis: u16) -> u64 {
    if task.is_null() {
        return Weighing::refused(fixed::UNREADABLE).0;
    }
    // SAFETY: `task` is the value of a map; all else is read by `probe`.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let path = &raw mut (*scratch).request.path;
        let root_mount = (*task).root_mount;
        put(&raw mut (*path).mount, root_mount);
        let sb = probe_word(fetch(&raw const (*path).dentry) + get(&DENTRY_SB));
        if sb == probe_word(root_mount + get(&VFSMOUNT_SB)) {
            let weighing = weigh(task, path, 0);
            if weighing.fixed() != fixed::OUTSIDE {
                return weighing.0;
            }
        }
        let (mut best, mut by) = (Weighing::refused(fixed::OUTSIDE).0, root_mount);
        let namespace = probe_word(root_mount - get(&MOUNT_VFSMOUNT) + get(&MOUNT_NS));
        let state = (&raw mut (*scratch).search).cast::<Search>();
        put(state, Search { link: probe_word(sb + get(&SB_MOUNTS)), sb, namespace, found: 0, internal: 0 });
        let mut tries = 0;
        while tries < MAX_WEIGHED {
            tries += 1;
            let mut context = task;
            repeat(MAX_MOUNTS, next_mount, (&raw mut context).cast());
            let mount = fetch(&raw const (*state).found);
            if mount == 0 {
                break;
            }
            put(&raw mut (*path).mount, mount);
            let weighing = weigh(task, path, 0);
            let why = weighing.fixed();
            if why != fixed::OUTSIDE {
                (best, by) = (weighing.0, mount);
                if why != 0 || weighing.allows(axis) {
                    break;
                }
            }
        }
        put(&raw mut (*path).mount, by);
        if best == Weighing::refused(fixed::OUTSIDE).0 && fetch(&raw const (*state).internal) != 0 {
            best = Weighing::refused(fixed::INTERNAL).0;
        }
        // Too many to look at each: what was not weighed might have been the one that is meant.
        if tries == MAX_WEIGHED { Weighing::refused(fixed::TOO_LONG).0 } else { best }
    }
}

/// Goes on to the next mount of the file system in the container's namespace.
///
/// # Safety
/// `context` points to a pointer to a tag.
unsafe extern "C" fn next_mount(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map; all else is read by `probe`.
    unsafe {
        let task = *context.cast::<*mut Task>();
        let state = (&raw mut (*task).scratch.search).cast::<Search>();
        let (link, sb) = (fetch(&raw const (*state).link), fetch(&raw const (*state).sb));
        put(&raw mut (*state).found, 0);
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
        put(&raw mut (*state).link, probe_word(base + get(&MOUNT_NEXT)));
        let namespace = probe_word(base + get(&MOUNT_NS));
        if namespace == INTERNAL_NS {
            put(&raw mut (*state).internal, 1);
        }
        if namespace != fetch(&raw const (*state).namespace) {
            return 0;
        }
        put(&raw mut (*state).found, base + get(&MOUNT_VFSMOUNT));
        1
    }
}
