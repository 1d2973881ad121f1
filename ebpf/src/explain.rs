//! Which rule decided. The fold only keeps the answer; this goes the same way again for what is recorded, and keeps
//! the slots.

use core::ffi::c_void;

use ringfence_common::MAX_COMPONENTS;
use ringfence_common::event::rule;
use ringfence_common::fold::{RULE, reset_axes};
use ringfence_common::hash::{folded_seed, name_seed};
use ringfence_common::policy::{FLAG_NAMES, axis};
use ringfence_common::task::{NAME_WORDS, Task};

use crate::fold::{NO_SLOT, at_prefix, descend_by, lower_component, slot_with};
use crate::globals::{K2, get};
use crate::memory::{fetch, mask127, put, repeat};
use crate::patterns::patterned;

/// What [`explain`] keeps on its way down, in the scratch's name buffer.
#[repr(C)]
struct Deciders {
    axes: u64,
    prefix: u64,
    /// The prefix in lower case.
    folded: u64,
    left: u64,
    /// Slots that decided, or [`NO_SLOT`].
    allow: u64,
    deny: u64,
    reset: u64,
    /// Axes allowed so far.
    allowed: u64,
}

const _: () = assert!(size_of::<Deciders>() <= 8 * NAME_WORDS);

impl Deciders {
    /// # Safety
    /// `this` lies in a tag.
    #[inline(always)]
    unsafe fn look(this: *mut Self, prefix: u64, left: u64) {
        let rule = at_prefix(prefix, left);
        if rule & RULE == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let axes = fetch(&raw const (*this).axes);
            if (rule >> 5) & axes != 0 {
                put(&raw mut (*this).deny, slot_with(prefix, left, axes << 5));
            }
            let allowed = fetch(&raw const (*this).allowed);
            if allowed & reset_axes(rule) != 0 {
                put(&raw mut (*this).reset, slot_with(prefix, left, 0xf << 10));
            }
            put(&raw mut (*this).allowed, (allowed & !reset_axes(rule)) | (rule & axes));
            if rule & axes != 0 {
                put(&raw mut (*this).allow, slot_with(prefix, left, axes));
            }
        }
    }
}

/// One component further down.
///
/// # Safety
/// `context` points to a pointer to a tag.
unsafe extern "C" fn explain_step(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: the tag is the value of a map.
    unsafe {
        let task = *context.cast::<*mut Task>();
        let scratch = &raw mut (*task).scratch;
        let found = (&raw mut (*scratch).name).cast::<Deciders>();
        let left = fetch(&raw const (*found).left);
        if left == 0 {
            return 1;
        }
        let left = left - 1;
        let beyond = left + fetch(&raw const (*scratch).further);
        let k2 = get(&K2);
        let component = fetch((&raw const (*scratch).hashes).cast::<u64>().add(mask127(left)));
        let seed = (*scratch).policy.seed;
        let names = (*scratch).policy.flags & FLAG_NAMES != 0;
        let lower = lower_component(scratch, left);
        if names {
            if lower != 0 {
                Deciders::look(found, descend_by(name_seed(folded_seed(seed)), lower, k2), beyond);
            }
            Deciders::look(found, descend_by(name_seed(seed), component, k2), beyond);
        }
        if lower != 0 {
            let folded = descend_by(fetch(&raw const (*found).folded), lower, k2);
            Deciders::look(found, folded, beyond);
            put(&raw mut (*found).folded, folded);
        }
        let prefix = descend_by(fetch(&raw const (*found).prefix), component, k2);
        Deciders::look(found, prefix, beyond);
        put(&raw mut (*found).prefix, prefix);
        put(&raw mut (*found).left, left);
        0
    }
}

/// Finds the rule behind the answer for the components in the scratch and `request.axes`, and notes it in the
/// request. Only for what is recorded; the answer itself is the fold's.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn explain(task: *mut Task) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let request = &raw mut (*scratch).request;
        let found = (&raw mut (*scratch).name).cast::<Deciders>();
        let axes = u64::from((*request).axes) & axis::ALL as u64;
        let left = fetch(&raw const (*scratch).count);
        put(&raw mut (*found).axes, axes);
        put(&raw mut (*found).prefix, (*scratch).policy.seed);
        put(&raw mut (*found).folded, folded_seed((*scratch).policy.seed));
        put(&raw mut (*found).left, left);
        put(&raw mut (*found).allow, NO_SLOT);
        put(&raw mut (*found).deny, NO_SLOT);
        put(&raw mut (*found).reset, NO_SLOT);
        put(&raw mut (*found).allowed, u64::from((*scratch).policy.initial) & axes);
        let further = fetch(&raw const (*scratch).further);
        Deciders::look(found, (*scratch).policy.seed, left + further);
        let mut context = task;
        repeat(MAX_COMPONENTS, explain_step, (&raw mut context).cast());
        let (allow, deny) = (fetch(&raw const (*found).allow), fetch(&raw const (*found).deny));
        let reset = fetch(&raw const (*found).reset);
        let by_pattern = patterned(scratch) & axes;
        let (kind, number) = if deny != NO_SLOT {
            (rule::SLOT, deny)
        } else if by_pattern != 0 {
            let place = if by_pattern & u64::from(axis::READ) != 0 {
                0
            } else if by_pattern & u64::from(axis::WRITE) != 0 {
                1
            } else {
                2
            };
            (rule::SLOT, fetch((&raw const (*scratch).pattern_slots).cast::<u64>().add(place)))
        } else if fetch(&raw const (*found).allowed) != axes {
            if reset == NO_SLOT { (rule::DEFAULT, 0) } else { (rule::SLOT, reset) }
        } else if allow == NO_SLOT {
            (rule::ALL, 0)
        } else {
            (rule::SLOT, allow)
        };
        (*request).rule_kind = kind;
        (*request).rule = number as u32;
        0
    }
}
