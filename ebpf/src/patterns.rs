//! Denials of names by how they begin or end: `**/NAME*`, `**/*NAME`.
//!
//! A walk shows each component's ends to the policy's masks ([`ringfence_common::patterns`]); what they do not rule out is
//! looked up at each length that a pattern has. A component that a rule allows by its whole name (`**/NAME`) is spared on
//! that axis.

use ringfence_common::MAX_CONTAINERS;
use ringfence_common::hash::{folded_seed, mum, name_seed, prefix_seed, suffix_seed};
use ringfence_common::patterns::{MAX_PATTERN, Patterns};
use ringfence_common::policy::{FLAG_PATTERNS, axis, bits};
use ringfence_common::task::{Scratch, Task, casing};

use crate::fold::{at_prefix, descend_by, slot_with};
use crate::globals::{K0, K1, K2, get};
use crate::memory::{fetch, load, number_of, probe, probe_name, put};
use crate::storage::{CONTAINERS, POLICIES};

/// Where the bytes of a name that a pattern is compared with stand in the scratch's name buffer: behind any name.
const PART: usize = 32;

/// Whether the policy has patterns.
///
/// # Safety
/// `scratch` is that of a tag whose policy was taken.
#[inline(always)]
pub unsafe fn has_patterns(scratch: *const Scratch) -> bool {
    // SAFETY: as above.
    unsafe { (*scratch).policy.flags & FLAG_PATTERNS != 0 }
}

/// The axes that patterns deny to the walk's components.
///
/// # Safety
/// `scratch` is that of a tag, after a walk.
#[inline(always)]
pub unsafe fn patterned(scratch: *const Scratch) -> u64 {
    // SAFETY: as above.
    unsafe { if has_patterns(scratch) { fetch(&raw const (*scratch).patterned) } else { 0 } }
}

/// Forgets what an earlier walk found, and gets the policy's patterns.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn begin_patterns(task: *mut Task) -> u32 {
    if task.is_null() {
        return 0;
    }
    // SAFETY: `task` and what the arrays return are values of maps.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        put(&raw mut (*scratch).patterned, 0);
        let container = fetch(&raw const (*scratch).container);
        let mut patterns = Patterns::ANY;
        if let Some(entry) = CONTAINERS.get_ptr((container & (MAX_CONTAINERS as u64 - 1)) as u32)
            && let Some(policy) = POLICIES.get_ptr(fetch(&raw const (*entry).policy) as u32)
            // Unless another policy came in force since this one was taken.
            && fetch(&raw const (*policy).seed) == (*scratch).policy.seed
        {
            patterns = (*policy).patterns;
        }
        put(&raw mut (*scratch).policy.patterns, patterns);
        0
    }
}

/// Looks at a short name: its whole words stand at `base + at`.
///
/// # Safety
/// `task` is a tag whose policy has patterns; 32 bytes at `base + at` are readable; `name` is the name's address.
#[inline(always)]
pub unsafe fn see_short(task: *mut Task, base: *const u8, at: u64, name: u64, len: u64, component: u64) {
    // SAFETY: as above; no word beyond the fourth is read.
    unsafe {
        let first: u64 = load(base, at);
        let (before, last): (u64, u64) = if len <= 8 {
            (0, first)
        } else if len <= 16 {
            (first, load(base, at + 8))
        } else if len <= 24 {
            (load(base, at + 8), load(base, at + 16))
        } else {
            (load(base, at + 16), load(base, at + 24))
        };
        // The last eight bytes of the name, of which the upper two count.
        let shift = (len.wrapping_neg() << 3) & 63;
        let end = last << shift | (before >> 1) >> (63 - shift);
        let patterns = &raw const (*task).scratch.policy.patterns;
        if len == 1 || (*patterns).may_match(first as u16, (end >> 48) as u16) {
            match_patterns(task, name, len, component);
        }
    }
}

/// Looks at the name in the scratch's buffer.
///
/// # Safety
/// `task` is a tag whose policy has patterns.
#[inline(always)]
pub unsafe fn see_buffer(task: *mut Task, len: u64, component: u64) {
    // SAFETY: as above.
    unsafe {
        let buffer =
            number_of(&raw mut (*task).scratch.opaque_word, (&raw const (*task).scratch.name) as u64);
        match_patterns(task, buffer, len, component);
    }
}

/// Looks up the beginnings and ends of the name at `name` that have the length of a pattern, and adds what they are denied
/// to the scratch. `component` is the hash of the whole name.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn match_patterns(task: *mut Task, name: u64, len: u64, component: u64) -> u32 {
    if task.is_null() || len > 255 {
        return 0;
    }
    // SAFETY: `task` is the value of a map.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let exact = (*scratch).policy.seed;
        let folded = fetch(&raw const (*scratch).casing) & casing::FOLDED != 0;
        let seed = if folded { folded_seed(exact) } else { exact };
        let patterns = &raw const (*scratch).policy.patterns;
        if len > 1 && !(*patterns).may_match(two(scratch, name), two(scratch, name + len - 2)) {
            return 0;
        }
        let lengths = fetch(&raw const (*patterns).lengths);
        let spared = at_prefix(descend_by(name_seed(exact), component, get(&K2)), 0) & u64::from(axis::ALL);
        let mut n = 1u64;
        while n <= MAX_PATTERN as u64 {
            if n > len {
                break;
            }
            if lengths >> n & 1 != 0 {
                compare(task, prefix_seed(seed), name, n, spared);
            }
            if lengths >> (32 + n) & 1 != 0 {
                compare(task, suffix_seed(seed), name + len - n, n, spared);
            }
            n += 1;
        }
        0
    }
}

/// The two bytes at an address.
#[inline(always)]
unsafe fn two(scratch: *mut Scratch, from: u64) -> u16 {
    // SAFETY: the scratch of a tag.
    unsafe {
        let opaque_word = &raw mut (*scratch).opaque_word;
        put(opaque_word, 0);
        probe(opaque_word.cast(), 2, from);
        fetch(opaque_word) as u16
    }
}

/// Looks up the `n` bytes at `from`, at most 31. What cannot be read is not what is there any more: the walk will be tried
/// again. A function of its own, which the verifier looks at once and not for each length.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn compare(task: *mut Task, seed: u64, from: u64, n: u64, spared: u64) -> u32 {
    if task.is_null() || n > MAX_PATTERN as u64 {
        return 0;
    }
    // SAFETY: `task` is the value of a map; its name buffer has 64 bytes behind the longest name.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let part = (&raw mut (*scratch).name).cast::<u64>().add(PART);
        if !probe_part(part, n, from) {
            return 0;
        }
        let k1 = get(&K1);
        let mut hash = get(&K0) ^ n;
        let mut index = 0;
        while index * 8 < n {
            let mut word = fetch(part.add(index as usize));
            if n - index * 8 < 8 {
                word &= (1 << ((n & 7) * 8)) - 1;
            }
            hash = mum(hash ^ word, k1);
            index += 1;
        }
        let prefix = descend_by(seed, hash | 1, get(&K2));
        let denied = at_prefix(prefix, 0) >> bits::DENY_SHIFT & u64::from(axis::ALL) & !spared;
        if denied == 0 {
            return 0;
        }
        put(&raw mut (*scratch).patterned, fetch(&raw const (*scratch).patterned) | denied);
        let slot = slot_with(prefix, 0, denied << bits::DENY_SHIFT);
        for (place, axes) in [axis::READ, axis::WRITE, axis::EXEC].into_iter().enumerate() {
            if denied & u64::from(axes) != 0 {
                put((&raw mut (*scratch).pattern_slots).cast::<u64>().add(place), slot);
            }
        }
        0
    }
}

/// Copies `n` bytes, at most 31, to where 64 are.
#[inline(always)]
unsafe fn probe_part(part: *mut u64, mut n: u64, from: u64) -> bool {
    // SAFETY: one instruction on one register: the verifier must see the bound.
    unsafe { core::arch::asm!("{0} &= 31", inout(reg) n, options(pure, nomem, nostack)) };
    // SAFETY: the caller's promise.
    unsafe { probe_name(part.cast(), n, from) }
}
