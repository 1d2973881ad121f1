//! The fold of a path's prefixes over the rule table, from the container's root down.
//!
//! A deny at any depth denies. An allow holds for all below it, until a reset (a protected place) takes it back.

use core::ffi::c_void;

use ringfence_common::MAX_COMPONENTS;
use ringfence_common::event::fixed;
use ringfence_common::fold::{Answer, applies, matching};
use ringfence_common::hash::{Keys, descend, folded_seed, mark, name_seed, named_seed, number};
use ringfence_common::moves::{DEPTHS, Reach};
use ringfence_common::policy::{BUCKET_SLOTS, FLAG_NAMES, axis, bucket_of};
use ringfence_common::task::{Scratch, Task, casing};

use crate::decide::Weighing;
use crate::globals::{K0, K1, K2, get};
use crate::memory::{fetch, mask127, put, repeat};
use crate::patterns::patterned;
use crate::storage::TABLE;
use crate::walk::FAST_COMPONENTS;

/// Slot number of "no slot".
pub const NO_SLOT: u64 = u32::MAX as u64;
/// Folds the components in the scratch over the table, from the container's root down; the answer is a [`Weighing`].
/// `further` is 0 for the path itself, else how far below it is what is asked about.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn fold(task: *mut Task, further: u64) -> u64 {
    if task.is_null() {
        return Weighing::refused(fixed::UNREADABLE).0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let fold = (&raw mut (*scratch).name).cast::<Fold>();
        let seed = (*scratch).policy.seed;
        let left = fetch(&raw const (*scratch).count);
        put(&raw mut (*scratch).further, further);
        put(&raw mut (*fold).prefix, seed);
        put(&raw mut (*fold).left, left);
        put(&raw mut (*fold).answer.allow, u64::from((*scratch).policy.initial));
        put(&raw mut (*fold).answer.deny, patterned(scratch));
        put(&raw mut (*fold).folded, folded_seed(seed));
        let mut answer = fetch(&raw const (*fold).answer);
        answer.add(at_prefix(seed, left + further));
        put(&raw mut (*fold).answer, answer);
        let mut context = task;
        repeat(MAX_COMPONENTS, fold_step, (&raw mut context).cast());
        put(&raw mut (*scratch).prefix, fetch(&raw const (*fold).prefix));
        fetch(&raw const (*fold).answer.allow) | fetch(&raw const (*fold).answer.deny) << 16
    }
}

/// What [`fold`] keeps on its way down, in the scratch's name buffer.
#[repr(C)]
struct Fold {
    prefix: u64,
    /// The prefix in lower case, where case is not told apart.
    folded: u64,
    left: u64,
    answer: Answer,
}

/// One component further down.
///
/// # Safety
/// `context` points to a pointer to a tag.
unsafe extern "C" fn fold_step(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map.
    unsafe {
        let task = *context.cast::<*mut Task>();
        let scratch = &raw mut (*task).scratch;
        let fold = (&raw mut (*scratch).name).cast::<Fold>();
        let left = fetch(&raw const (*fold).left);
        if left == 0 {
            return 1;
        }
        let left = left - 1;
        let beyond = left + fetch(&raw const (*scratch).further);
        let k2 = get(&K2);
        let component = fetch((&raw const (*scratch).hashes).cast::<u64>().add(mask127(left)));
        let mut answer = fetch(&raw const (*fold).answer);
        let (seed, names) = ((*scratch).policy.seed, (*scratch).policy.flags & FLAG_NAMES != 0);
        let lower = lower_component(scratch, left);
        if names {
            if lower != 0 {
                answer.add(at_prefix(descend_by(name_seed(folded_seed(seed)), lower, k2), beyond));
            }
            answer.add(at_prefix(descend_by(name_seed(seed), component, k2), beyond));
        }
        // What is filed in lower case denies or takes back; what the same place allows comes after that.
        if lower != 0 {
            let folded = descend_by(fetch(&raw const (*fold).folded), lower, k2);
            answer.add(at_prefix(folded, beyond));
            put(&raw mut (*fold).folded, folded);
        }
        let prefix = descend_by(fetch(&raw const (*fold).prefix), component, k2);
        answer.add(at_prefix(prefix, beyond));
        put(&raw mut (*fold).answer, answer);
        put(&raw mut (*fold).prefix, prefix);
        put(&raw mut (*fold).left, left);
        0
    }
}

/// The hash in lower case of the component with `left` more below it; 0: the walk met no file system that folds case.
///
/// # Safety
/// `scratch` is that of a tag, after a walk.
#[inline(always)]
pub unsafe fn lower_component(scratch: *const Scratch, left: u64) -> u64 {
    // SAFETY: as above; the index is below HASH_WORDS.
    unsafe {
        if fetch(&raw const (*scratch).casing) & casing::FOLDED == 0 {
            return 0;
        }
        fetch((&raw const (*scratch).hashes).cast::<u64>().add(mask127(left + MAX_COMPONENTS as u64)))
    }
}

/// [`fold`] for the path itself and without patterns, as a plain loop: a third of the instructions, and a hundred times the
/// verifier's work.
///
/// # Safety
/// `task` is a tag.
#[inline(always)]
pub unsafe fn fold_fast(task: *mut Task) -> Weighing {
    // SAFETY: as above.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let Some(table) = TABLE.get_ptr(0) else { return Weighing::refused(fixed::UNREADABLE) };
        let at_prefix = |prefix: u64, left: u64| {
            // `table` is the whole table.
            if is_absent(table.cast(), prefix) { 0 } else { slots(prefix, left) }
        };
        let hashes = (&raw const (*scratch).hashes).cast::<u64>();
        let k2 = get(&K2);
        let seed = (*scratch).policy.seed;
        let names = (*scratch).policy.flags & FLAG_NAMES != 0;
        let mut prefix = seed;
        let mut left = fetch(&raw const (*scratch).count);
        let mut answer = Answer { allow: u64::from((*scratch).policy.initial), deny: 0 };
        answer.add(at_prefix(prefix, left));
        let mut step = 0;
        while step < FAST_COMPONENTS {
            if left == 0 {
                break;
            }
            step += 1;
            left -= 1;
            let component = fetch(hashes.add(mask127(left)));
            if names {
                answer.add(at_prefix(descend_by(name_seed(seed), component, k2), left));
            }
            prefix = descend_by(prefix, component, k2);
            answer.add(at_prefix(prefix, left));
        }
        put(&raw mut (*scratch).prefix, prefix);
        put(&raw mut (*scratch).further, 0);
        Weighing(answer.allow | answer.deny << 16)
    }
}

/// [`descend`] with the one key that it needs.
#[inline(always)]
pub fn descend_by(prefix: u64, component: u64, k2: u64) -> u64 {
    descend(&Keys { k0: 0, k1: 0, k2 }, prefix, component)
}

/// What the table says at a prefix with `left` components below it: all slots that apply, in one word.
#[inline(always)]
pub fn at_prefix(prefix: u64, left: u64) -> u64 {
    let Some(table) = TABLE.get_ptr(0) else { return 0 };
    // SAFETY: the value of a map.
    if unsafe { is_absent(table.cast(), prefix) } {
        return 0;
    }
    slots(prefix, left)
}

/// Whether a look at a prefix's bucket shows that there is nothing: it is empty, or holds another prefix and no more.
///
/// # Safety
/// `table` is the whole table.
#[inline(always)]
unsafe fn is_absent(table: *const u64, prefix: u64) -> bool {
    // SAFETY: `bucket_of` is below TABLE_BUCKETS.
    unsafe {
        let bucket = table.add(bucket_of(prefix) * BUCKET_SLOTS);
        let first = fetch(bucket);
        first == 0 || (first ^ prefix << 16 >= 1 << 16 && fetch(bucket.add(1)) == 0)
    }
}

/// The slots of one prefix that apply, or-ed: see [`matching`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn slots(prefix: u64, left: u64) -> u64 {
    let Some(table) = TABLE.get_ptr(0) else { return 0 };
    // SAFETY: `bucket_of` is below TABLE_BUCKETS.
    let bucket = unsafe { table.cast::<u64>().add(bucket_of(prefix) * BUCKET_SLOTS) };
    // SAFETY: the value of a map, of BUCKET_SLOTS words.
    matching(|index| unsafe { fetch(bucket.add(index)) }, prefix, left)
}

/// Folds the components in the scratch for the path itself, a child of it and whatever is further down, with the marks
/// of the path. The path itself comes last, so that [`crate::explain`] goes on from it.
///
/// # Safety
/// `task` is a tag whose scratch has the components.
#[inline(always)]
pub unsafe fn fold_reach(task: *mut Task) -> Reach {
    // SAFETY: as above.
    unsafe {
        let mut reach = Reach::EMPTY;
        let mut further = DEPTHS;
        while further > 0 {
            further -= 1;
            let answer = Weighing(fold(task, further));
            if answer.fixed() != 0 {
                return Reach::refused(answer.fixed());
            }
            reach = reach.with(further, Answer { allow: answer.0 & 0xffff, deny: answer.0 >> 16 });
        }
        reach.marked(at_prefix(mark(fetch(&raw const (*task).scratch.prefix)), 0))
    }
}

/// Whether the policy names a number of one of the kinds in `policy::named`.
///
/// # Safety
/// `task` is a tag whose policy was taken.
#[inline(always)]
pub unsafe fn is_named(task: *mut Task, kind: u32, value: u64) -> bool {
    // SAFETY: as above.
    let seed = unsafe { fetch(&raw const (*task).scratch.policy.seed) };
    let prefix = descend_by(named_seed(seed, kind), number(get(&K0), get(&K1), value), get(&K2));
    at_prefix(prefix, 0) & u64::from(axis::READ) != 0
}

/// The number of the slot at a prefix that applies and has one of the bits in `mask`; [`NO_SLOT`]: none.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn slot_with(prefix: u64, left: u64, mask: u64) -> u64 {
    let number = bucket_of(prefix);
    let Some(table) = TABLE.get_ptr(0) else { return NO_SLOT };
    // SAFETY: `bucket_of` is below TABLE_BUCKETS.
    let bucket = unsafe { table.cast::<u64>().add(number * BUCKET_SLOTS) };
    let mut index = 0;
    while index < BUCKET_SLOTS {
        // SAFETY: the value of a map, of BUCKET_SLOTS words.
        let slot = unsafe { fetch(bucket.add(index)) };
        if slot == 0 {
            break;
        }
        if (slot ^ (prefix << 16)) < 1 << 16 && applies(slot, left) && slot & mask != 0 {
            return (number * BUCKET_SLOTS + index) as u64;
        }
        index += 1;
    }
    NO_SLOT
}
