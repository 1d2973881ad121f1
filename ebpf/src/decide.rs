//! What a container's policy says of a path: walk, fold, and again if renames or mounts ran beside.
//!
//! What it comes to, or why a path has no answer, is a [`Weighing`], one word, so that global functions can return it.

use ringfence_common::MAX_CONTAINERS;
use ringfence_common::event::fixed;
use ringfence_common::moves::Reach;
use ringfence_common::policy::Policy;
use ringfence_common::task::{Place, Task, casing};

use crate::casing::is_plain;
use crate::fold::{fold, fold_fast, fold_reach};
use crate::globals::{MOUNT_LOCK, MOUNT_NS, MOUNT_VFSMOUNT, RENAME_LOCK, get};
use crate::identity::counters;
use crate::memory::{add, fetch, probe_word, put, sequence, settled};
use crate::patterns::{has_patterns, patterned};
use crate::storage::{CONTAINERS, POLICIES};
use crate::walk::{see_typed, walk, walk_typed};

/// How often a walk is tried that a rename or mount ran beside.
const TRIES: u32 = 16;
/// `MNT_NS_INTERNAL`, `ERR_PTR(-EINVAL)`: the namespace of mounts that only the kernel itself uses.
pub const INTERNAL_NS: u64 = -22i64 as u64;

/// What the policy says of a path: allowed axes (bits 0..16), denied axes (16..32), or why it cannot say
/// (32..64, one of [`fixed`]).
#[derive(Clone, Copy)]
pub struct Weighing(pub u64);

impl Weighing {
    /// No answer, for one of [`fixed`]'s reasons.
    #[inline(always)]
    pub const fn refused(why: u32) -> Self {
        Self((why as u64) << 32)
    }

    /// Why there is no answer; 0: there is one.
    #[inline(always)]
    pub const fn fixed(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether all of `axes` are allowed and none denied.
    #[inline(always)]
    pub const fn allows(self, axes: u16) -> bool {
        let axes = axes as u64;
        self.0 >> 32 == 0 && self.0 & axes == axes && (self.0 >> 16) & axes == 0
    }
}

/// Takes the policy of `container` for what follows. False: there is none, which is a denial.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn take_policy(task: *mut Task, container: u64) -> bool {
    // SAFETY: `task` and what the arrays return are values of maps. The policy's number is one word, so it is of one
    // generation; the record behind it does not change while we may be reading it (the agent waits for RCU).
    unsafe {
        let scratch = &raw mut (*task).scratch;
        put(&raw mut (*scratch).container, container);
        let index = (container & (MAX_CONTAINERS as u64 - 1)) as u32;
        if let Some(entry) = CONTAINERS.get_ptr(index)
            && fetch(&raw const (*entry).id) == container
            && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
        {
            // Word by word: three of them. The fourth, the capabilities, one hook reads where it is; the patterns, a walk.
            let (from, to) = (policy.cast::<u64>(), (&raw mut (*scratch).policy).cast::<u64>());
            let seed = fetch(from);
            put(to, seed);
            put(to.add(1), fetch(from.add(1)));
            put(to.add(2), fetch(from.add(2)));
            return seed != 0;
        }
        // Nothing is allowed, audited or recorded by a policy that is not there.
        put(&raw mut (*scratch).policy, Policy::NONE);
        false
    }
}

/// Weighs a place that the verifier has types for: the fast way, for the hooks that matter most.
///
/// # Safety
/// `task` is a tag whose policy was taken; `dentry` and `mount` belong together and come from a hook's argument.
#[inline(always)]
pub unsafe fn weigh_typed(task: *mut Task, dentry: *const u8, mount: *const u8) -> Weighing {
    // SAFETY: as above.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        put(&raw mut (*scratch).renames, u64::from(sequence(get(&RENAME_LOCK))));
        put(&raw mut (*scratch).casing, 0);
        // The container's root mount does not move: files on it need no look at the mounts. What was seen is in
        // memory and not in a variable, so that the verifier follows one way through the fold and not one for
        // each way to it.
        let plain = if mount as u64 == (*task).plain_mount {
            put(&raw mut (*scratch).mounts, 0);
            true
        } else {
            put(&raw mut (*scratch).mounts, u64::from(sequence(get(&MOUNT_LOCK))));
            is_plain(mount)
        };
        if plain && walk_typed(task, dentry, mount) {
            let mut weighing = fold_fast(task);
            if has_patterns(scratch) {
                see_typed(task, dentry, mount);
                weighing.0 |= patterned(scratch) << 16;
            }
            let (renames, mounts) =
                (fetch(&raw const (*scratch).renames), fetch(&raw const (*scratch).mounts));
            if (renames | mounts) & 1 == 0
                && (mounts == 0 || mounts == u64::from(sequence(get(&MOUNT_LOCK))))
                && renames == u64::from(sequence(get(&RENAME_LOCK)))
            {
                return weighing;
            }
        }
        // Again and slowly: for a race, a name that came out mixed, or a path that has no answer.
        put(&raw mut (*scratch).start.dentry, dentry as u64);
        put(&raw mut (*scratch).start.mount, mount as u64);
        Weighing(weigh_start(task, 0))
    }
}

/// Weighs a place.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn weigh(task: *mut Task, place: *const Place, further: u64) -> Weighing {
    // SAFETY: as above; `place` lies in the tag.
    unsafe {
        put(&raw mut (*task).scratch.start.dentry, fetch(&raw const (*place).dentry));
        put(&raw mut (*task).scratch.start.mount, fetch(&raw const (*place).mount));
        Weighing(weigh_start(task, further))
    }
}

/// What holds at a place and below it, as a [`Reach`].
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn reach(task: *mut Task, place: *const Place) -> Reach {
    // SAFETY: as above; `place` lies in the tag.
    unsafe {
        put(&raw mut (*task).scratch.start.dentry, fetch(&raw const (*place).dentry));
        put(&raw mut (*task).scratch.start.mount, fetch(&raw const (*place).mount));
        Reach(reach_start(task))
    }
}

/// Weighs the place in `scratch.start`, as a [`Weighing`]. See [`fold`] for `further`.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn weigh_start(task: *mut Task, further: u64) -> u64 {
    if task.is_null() {
        return Weighing::refused(fixed::UNREADABLE).0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe { settle_walk(task, || fold(task, further)) }
}

/// What holds at the place in `scratch.start` and below it, as a [`Reach`].
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn reach_start(task: *mut Task) -> u64 {
    if task.is_null() {
        return Reach::refused(fixed::UNREADABLE).0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe { settle_walk(task, || fold_reach(task).0) }
}

/// Walks from `scratch.start` and answers with what `fold` makes of it, until no rename or mount ran beside; or why there
/// is no answer, in the upper half, where [`Weighing`] and [`Reach`] both have it.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
unsafe fn settle_walk(task: *mut Task, fold: impl Fn() -> u64) -> u64 {
    // SAFETY: `task` is the value of a map.
    unsafe {
        let mut tries = 0;
        while tries < TRIES {
            tries += 1;
            let renames = settled(get(&RENAME_LOCK));
            let mounts = settled(get(&MOUNT_LOCK));
            let mut why = walk(task, 0);
            if why == fixed::CASE && fetch(&raw const (*task).scratch.casing) & casing::FOLDED == 0 {
                why = walk(task, casing::FOLDED);
            }
            let answer = if why == 0 { fold() } else { Weighing::refused(why).0 };
            if (renames | mounts) & 1 == 0
                && mounts == sequence(get(&MOUNT_LOCK))
                && renames == sequence(get(&RENAME_LOCK))
            {
                if why == fixed::OUTSIDE && is_internal(fetch(&raw const (*task).scratch.start.mount)) {
                    return Weighing::refused(fixed::INTERNAL).0;
                }
                return answer;
            }
            if let Some(counters) = counters((*task).scratch.container) {
                add(&raw mut (*counters).retried, 1);
            }
        }
        Weighing::refused(fixed::RACED).0
    }
}

/// Whether a mount is one of the kernel's own, that no path leads to: pipes, memfds, the layers below an overlay.
#[inline(always)]
fn is_internal(mount: u64) -> bool {
    probe_word(mount - get(&MOUNT_VFSMOUNT) + get(&MOUNT_NS)) == INTERNAL_NS
}
