//! Who made what has no path: System V objects and keys are known by their addresses.
//!
//! An address is used again. So every hook that sees an object come into being says whose it is, also for a task that
//! is not governed: what was known of the address before is about another object.

use crate::storage::OBJECTS;

/// Whether the object is one that the container made.
#[inline(always)]
pub fn is_own(address: u64, container: u64) -> bool {
    // SAFETY: one word, read at once.
    unsafe { OBJECTS.get(&address) }.is_some_and(|owner| *owner == container)
}

/// The container that made the object.
#[inline(always)]
pub fn owner(address: u64) -> Option<u64> {
    // SAFETY: as above.
    unsafe { OBJECTS.get(&address) }.copied()
}

/// Notes that the container made the object. False: no room.
#[inline(always)]
pub fn claim(address: u64, container: u64) -> bool {
    OBJECTS.insert(&address, &container, 0).is_ok()
}

/// Nobody governed made the object.
#[inline(always)]
pub fn disclaim(address: u64) {
    let _ = OBJECTS.remove(&address);
}
