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
        let namespace = probe_word(root_mount - get(&MOUNT_VFSMOUNT) + get(&MOUNT_NS));
        let mut search = Search { task, sb, namespace, axis: axis as u64 };
        let state = (&raw mut (*scratch).name).cast::<u64>();
        put(state, probe_word(sb + get(&SB_MOUNTS)));
        put(state.add(1), Weighing::refused(fixed::OUTSIDE).0);
        put(state.add(2), root_mount);
        repeat(MAX_MOUNTS, next_mount, (&raw mut search).cast());
        put(&raw mut (*path).mount, fetch(state.add(2)));
        fetch(state.add(1))
    }
}

/// What is searched for. In the scratch's name buffer are the link to go on with, the best answer so far, and the mount that
/// it came by.
#[repr(C)]
struct Search {
    task: *mut Task,
    sb: u64,
    namespace: u64,
    axis: u64,
}

/// Weighs through the next mount of the file system.
///
/// # Safety
/// `context` points to a [`Search`].
unsafe extern "C" fn next_mount(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map; all else is read by `probe`.
    unsafe {
        let Search { task, sb, namespace, axis } = context.cast::<Search>().read();
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
        let (best, by) = (fetch(state.add(1)), fetch(state.add(2)));
        let its_namespace = probe_word(base + get(&MOUNT_NS));
        if its_namespace == namespace {
            let mount = base + get(&MOUNT_VFSMOUNT);
            put(&raw mut (*scratch).request.path.mount, mount);
            let weighing = weigh(task, &raw const (*scratch).request.path, 0);
            // A long name was hashed in this very buffer.
            let why = weighing.fixed();
            let answers = why != fixed::OUTSIDE;
            put(state.add(1), if answers { weighing.0 } else { best });
            put(state.add(2), if answers { mount } else { by });
            if answers && (why != 0 || weighing.allows(axis as u16)) {
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
