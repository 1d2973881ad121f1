//! From a dentry and a mount up to the container's root, leaving the hash of each component in the task's scratch.
//!
//! The walk reads dentries while they may be renamed and mounts while they may be moved. RCU keeps what it reads
//! alive; that it read one moment and not a mixture of two is known from the sequence counts of `rename_lock` and
//! `mount_lock`, which the callers in `decide` compare before and after.
//!
//! It ends well only at the root that was saved when the container was entered. Any other top (another mount
//! namespace, a detached tree, a file system of the kernel's own) is [`fixed::OUTSIDE`].

use core::ffi::c_void;
use core::mem::MaybeUninit;

use ringfence_common::event::fixed;
use ringfence_common::hash::mum;
use ringfence_common::task::{Scratch, Task, casing};
use ringfence_common::{MAX_COMPONENTS, MAX_PATH};

use crate::casing::{casing_of, lower_hash};
use crate::globals::{
    DENTRY_LEN, DENTRY_NAME, DENTRY_PARENT, DENTRY_SHORT, K0, K1, MOUNT_PARENT, MOUNT_VFSMOUNT,
    VFSMOUNT_ROOT, get,
};
use crate::memory::{fetch, load, mask127, number_of, probe, probe_name, probe_word, put, repeat};
use crate::patterns::{begin_patterns, has_patterns, match_patterns, see_buffer, see_short};

/// Steps of a walk: components and crossings of mounts.
pub const STEPS: usize = 96;
/// Bytes of a dentry that are read in one go, from `d_parent` on; they hold the name, if it is a short one.
pub const WINDOW: usize = 64;
/// Longest name that is hashed where it stands in the dentry, plus one.
const SHORT: u64 = 32;

/// Most components of the fast walk. So few of them cannot be more bytes than a path may have, so it need not count.
pub const FAST_COMPONENTS: usize = 15;
const _: () = assert!(FAST_COMPONENTS * 256 <= MAX_PATH && FAST_COMPONENTS <= MAX_COMPONENTS);

/// Walks from a dentry and a mount that the verifier knows, with plain loads, which cost half of what probing costs.
/// False: this is not one of the paths that it is for (below the container's root mount's root, without another mount
/// in between, and not deep), or something is wrong; [`walk`] will tell.
///
/// # Safety
/// `task` is a tag; `dentry` and `mount` belong together and come from a hook's argument.
#[inline(always)]
pub unsafe fn walk_typed(task: *mut Task, dentry: *const u8, mount: *const u8) -> bool {
    // SAFETY: `task` is the value of a map; dentries are read through pointers that the verifier has types for.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let (parent_at, len_at) = (get(&DENTRY_PARENT), get(&DENTRY_LEN));
        let (name_at, short_at) = (get(&DENTRY_NAME), get(&DENTRY_SHORT));
        let on_root_mount = mount as u64 == (*task).root_mount;
        let stop: u64 = if on_root_mount { (*task).root_dentry } else { load(mount, get(&VFSMOUNT_ROOT)) };
        let hashes = (&raw mut (*scratch).hashes).cast::<u64>();
        let mut at = dentry;
        let mut count = 0usize;
        let mut arrived = false;
        while count <= FAST_COMPONENTS {
            if at as u64 == stop {
                arrived = true;
                break;
            }
            let len = u64::from(load::<u32>(at, len_at));
            let name: u64 = load(at, name_at);
            let hash = if name == at.add(short_at as usize) as u64 && len < SHORT {
                short_hash(at, short_at, len)
            } else {
                // Some kernels let the verifier know the name's pointer as one; it must be a number.
                long_hash(task, number_of(&raw mut (*scratch).opaque_word, name), len)
            };
            if hash == 0 {
                return false;
            }
            put(hashes.add(count), hash);
            at = load(at, parent_at);
            count += 1;
        }
        // Through memory, or the verifier carries one state for each number of components into all that follows.
        put(&raw mut (*scratch).count, count as u64);
        if !arrived || count > FAST_COMPONENTS {
            return false;
        }
        if on_root_mount {
            return true;
        }
        if has_patterns(scratch) {
            begin_patterns(task);
        }
        put(&raw mut (*scratch).mount, mount as u64);
        put(&raw mut (*scratch).dentry, at as u64);
        put(&raw mut (*scratch).mount_root, at as u64);
        // At most a name of 255 bytes and a slash each; on from here they are counted.
        put(&raw mut (*scratch).bytes, count as u64 * 256);
        walk_on(task) == 0 && fetch(&raw const (*scratch).count) <= FAST_COMPONENTS as u64
    }
}

/// Shows the components that [`walk_typed`] found to the policy's patterns: a loop of its own, so that who has no patterns
/// does not pay for them at each component.
///
/// # Safety
/// As [`walk_typed`], which has just found the way.
#[inline(always)]
pub unsafe fn see_typed(task: *mut Task, dentry: *const u8, mount: *const u8) {
    // SAFETY: as there.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let on_root_mount = mount as u64 == (*task).root_mount;
        let stop: u64 = if on_root_mount {
            // Otherwise the walk has begun, further up.
            begin_patterns(task);
            (*task).root_dentry
        } else {
            load(mount, get(&VFSMOUNT_ROOT))
        };
        let (len_at, name_at, short_at) = (get(&DENTRY_LEN), get(&DENTRY_NAME), get(&DENTRY_SHORT));
        let hashes = (&raw const (*scratch).hashes).cast::<u64>();
        let mut at = dentry;
        let mut count = 0usize;
        while count < FAST_COMPONENTS {
            if at as u64 == stop {
                break;
            }
            let len = u64::from(load::<u32>(at, len_at));
            let name: u64 = load(at, name_at);
            let short = name == at.add(short_at as usize) as u64 && len < SHORT;
            let name = number_of(&raw mut (*scratch).opaque_word, name);
            let component = fetch(hashes.add(count));
            if short {
                see_short(task, at, short_at, name, len, component);
            } else {
                match_patterns(task, name, len, component);
            }
            at = load(at, get(&DENTRY_PARENT));
            count += 1;
        }
    }
}

#[inline(always)]
unsafe fn within_limits(scratch: *mut Scratch) -> u32 {
    // SAFETY: the caller's tag.
    let (count, bytes) = unsafe { (fetch(&raw const (*scratch).count), fetch(&raw const (*scratch).bytes)) };
    if count > MAX_COMPONENTS as u64 || bytes > MAX_PATH as u64 { fixed::TOO_LONG } else { 0 }
}

/// Walks from `scratch.start`, whatever it is, with reads that cannot fault. Returns 0, or one of [`fixed`]:
/// [`fixed::CASE`] if there is a file system on the way that folds case and `folded` does not say so yet.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn walk(task: *mut Task, folded: u64) -> u32 {
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let mount = fetch(&raw const (*scratch).start.mount);
        put(&raw mut (*scratch).count, 0);
        put(&raw mut (*scratch).bytes, 0);
        put(&raw mut (*scratch).mount, mount);
        put(&raw mut (*scratch).dentry, fetch(&raw const (*scratch).start.dentry));
        put(&raw mut (*scratch).mount_root, probe_word(mount + get(&VFSMOUNT_ROOT)));
        let here = if mount == (*task).plain_mount { 0 } else { casing_of(mount) };
        let folded = if here == 0 { folded } else { casing::FOLDED };
        put(&raw mut (*scratch).casing, folded | here);
        if has_patterns(scratch) {
            begin_patterns(task);
        }
        walk_on(task)
    }
}

/// Walks on from where the scratch stands. Returns 0, or one of [`fixed`].
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn walk_on(task: *mut Task) -> u32 {
    if task.is_null() {
        return fixed::UNREADABLE;
    }
    // SAFETY: `task` is the value of a map, and the callback's context.
    unsafe {
        put(&raw mut (*task).scratch.outcome, u64::from(fixed::TOO_LONG));
        let mut context = task;
        repeat(STEPS, walk_step, (&raw mut context).cast());
        fetch(&raw const (*task).scratch.outcome) as u32
    }
}

/// Notes how the walk ended, and ends it.
#[inline(always)]
unsafe fn end(scratch: *mut Scratch, outcome: u32) -> i64 {
    // SAFETY: the caller's tag.
    unsafe { put(&raw mut (*scratch).outcome, u64::from(outcome)) };
    1
}

/// One step of the walk. All that it knows is in the scratch, so that the verifier sees one step and not every number
/// of them.
///
/// # Safety
/// `context` points to a pointer to a tag.
unsafe extern "C" fn walk_step(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map; all else is read by `probe`.
    unsafe {
        let task = *context.cast::<*mut Task>();
        let scratch = &raw mut (*task).scratch;
        let dentry = fetch(&raw const (*scratch).dentry);
        let mount = fetch(&raw const (*scratch).mount);
        if dentry == (*task).root_dentry && mount == (*task).root_mount {
            return end(scratch, within_limits(scratch));
        }
        if dentry == fetch(&raw const (*scratch).mount_root) {
            let Some((upper, point)) = cross(mount) else { return end(scratch, fixed::OUTSIDE) };
            let here = if upper == (*task).plain_mount { 0 } else { casing_of(upper) };
            let folded = fetch(&raw const (*scratch).casing) & casing::FOLDED;
            if here != 0 && folded == 0 {
                return end(scratch, fixed::CASE);
            }
            put(&raw mut (*scratch).casing, folded | here);
            put(&raw mut (*scratch).mount, upper);
            put(&raw mut (*scratch).dentry, point);
            put(&raw mut (*scratch).mount_root, probe_word(upper + get(&VFSMOUNT_ROOT)));
            return 0;
        }
        let count = fetch(&raw const (*scratch).count);
        if count >= MAX_COMPONENTS as u64 {
            return end(scratch, fixed::TOO_LONG);
        }
        let parent_at = get(&DENTRY_PARENT);
        let window = (&raw mut (*scratch).window).cast::<u8>();
        if !probe(window, WINDOW as u64, dentry + parent_at) {
            return end(scratch, fixed::UNREADABLE);
        }
        let parent: u64 = load(window, 0);
        if parent == dentry {
            return end(scratch, fixed::OUTSIDE);
        }
        let len = u64::from(load::<u32>(window, get(&DENTRY_LEN) - parent_at));
        let name: u64 = load(window, get(&DENTRY_NAME) - parent_at);
        let short_at = get(&DENTRY_SHORT);
        let folded = fetch(&raw const (*scratch).casing) & casing::FOLDED != 0;
        let short = name == dentry + short_at && len < SHORT && !folded;
        let hash =
            if short { short_hash(window, short_at - parent_at, len) } else { long_hash(task, name, len) };
        if hash == 0 {
            return end(scratch, fixed::UNREADABLE);
        }
        let hashes = (&raw mut (*scratch).hashes).cast::<u64>();
        if folded {
            let lower = lower_hash(task, len);
            if lower == 0 {
                return end(scratch, fixed::CASE);
            }
            put(hashes.add(mask127(count + MAX_COMPONENTS as u64)), lower);
        }
        if has_patterns(scratch) {
            if folded {
                see_buffer(task, len, hash);
            } else {
                match_patterns(task, name, len, hash);
            }
        }
        put(hashes.add(mask127(count)), hash);
        put(&raw mut (*scratch).count, count + 1);
        put(&raw mut (*scratch).bytes, fetch(&raw const (*scratch).bytes) + len + 1);
        put(&raw mut (*scratch).dentry, parent);
        0
    }
}

/// From a mount's root to the place that it is mounted on: the mount above and the dentry there. None at a top.
#[inline(always)]
pub fn cross(mount: u64) -> Option<(u64, u64)> {
    let base = mount - get(&MOUNT_VFSMOUNT);
    let mut pair = MaybeUninit::<[u64; 2]>::uninit();
    let pair = pair.as_mut_ptr().cast::<u8>();
    // SAFETY: `mnt_mountpoint` follows `mnt_parent` (the agent checks), so 16 bytes are both.
    unsafe {
        if !probe(pair, 16, base + get(&MOUNT_PARENT)) {
            return None;
        }
        let upper: u64 = load(pair, 0);
        if upper == base {
            return None;
        }
        Some((upper + get(&MOUNT_VFSMOUNT), load(pair, 8)))
    }
}

/// The hash of a name of less than 32 bytes, whole words from where it stands.
///
/// # Safety
/// 32 bytes at `base + at` are readable.
#[inline(always)]
unsafe fn short_hash(base: *const u8, at: u64, len: u64) -> u64 {
    // SAFETY: as above; no word beyond the fourth is read.
    unsafe {
        let k1 = get(&K1);
        // The bytes of the last word that belong to the name: without a branch, each of which doubles the states.
        let last = u64::MAX >> ((len.wrapping_neg() << 3) & 63);
        let start = get(&K0) ^ len;
        let first: u64 = load(base, at);
        if len <= 8 {
            return mum(start ^ (first & last), k1) | 1;
        }
        let hash = mum(start ^ first, k1);
        let second: u64 = load(base, at + 8);
        if len <= 16 {
            return mum(hash ^ (second & last), k1) | 1;
        }
        let hash = mum(hash ^ second, k1);
        let third: u64 = load(base, at + 16);
        if len <= 24 {
            return mum(hash ^ (third & last), k1) | 1;
        }
        let hash = mum(hash ^ third, k1);
        let fourth: u64 = load(base, at + 24);
        mum(hash ^ (fourth & last), k1) | 1
    }
}

/// The hash of any name, copied into the scratch first; 0: not a name, or not readable.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn long_hash(task: *mut Task, name: u64, len: u64) -> u64 {
    if task.is_null() || len == 0 || len > 255 {
        return 0;
    }
    // SAFETY: `task` is the value of a map; its name buffer holds more than 255 bytes.
    unsafe {
        let buffer = (&raw mut (*task).scratch.name).cast::<u64>();
        if !probe_name(buffer.cast(), len, name) {
            return 0;
        }
        let k1 = get(&K1);
        let mut hash = get(&K0) ^ len;
        let mut index = 0u64;
        while index < 32 {
            let done = index * 8;
            if done >= len {
                break;
            }
            let mut word = fetch(buffer.add(index as usize));
            if len - done < 8 {
                word &= (1 << (((len - done) & 7) * 8)) - 1;
            }
            hash = mum(hash ^ word, k1);
            index += 1;
        }
        hash | 1
    }
}
