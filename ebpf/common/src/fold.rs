//! What the slots of the rule table come to for one path: the part of the fold that programs and agent share.

use crate::policy::{BUCKET_SLOTS, axis, bits};

/// What a fold keeps of a slot: allow, deny and reset.
pub const RULE: u64 = 0x3fff;

/// Whether a slot's kind covers a path that goes on for `left` components below its prefix.
#[inline(always)]
pub const fn applies(slot: u64, left: u64) -> bool {
    let kind = slot & bits::KIND_MASK as u64;
    if kind == bits::KIND_TREE as u64 {
        true
    } else if kind == bits::KIND_BELOW as u64 {
        left > 0
    } else if kind == bits::KIND_CHILDREN as u64 {
        left == 1
    } else {
        left == 0
    }
}

/// The slots of one prefix that apply to a path that goes on for `left` components, or-ed: their
/// [`RULE`] bits. `slot_at` reads a slot of the prefix's bucket.
#[inline(always)]
pub fn matching(slot_at: impl Fn(usize) -> u64, prefix: u64, left: u64) -> u64 {
    let mut found = 0;
    let mut index = 0;
    while index < BUCKET_SLOTS {
        let slot = slot_at(index);
        if slot == 0 {
            break;
        }
        if (slot ^ (prefix << 16)) < 1 << 16 && applies(slot, left) {
            found |= slot & RULE;
        }
        index += 1;
    }
    found
}

/// The axes that a slot's reset bits take back.
#[inline(always)]
pub const fn reset_axes(rule: u64) -> u64 {
    let resets = rule >> 10;
    (resets & 3) | (resets & 4) | (resets & 4) << 1 | (resets & 8) << 1
}

/// The answer so far, on the way from the root down: axes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Allowed, until a reset takes it back.
    pub allow: u64,
    /// Denied, for good.
    pub deny: u64,
}

impl Answer {
    /// Adds what one prefix says.
    #[inline(always)]
    pub const fn add(&mut self, rule: u64) {
        if rule != 0 {
            self.allow = (self.allow & !reset_axes(rule)) | (rule & axis::ALL as u64);
            self.deny |= (rule >> bits::DENY_SHIFT) & axis::ALL as u64;
        }
    }
}
