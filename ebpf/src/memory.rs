//! Reading and writing memory in the ways that the verifier follows.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::{bpf_loop, bpf_probe_read_kernel};

/// Reads a field through a pointer that the verifier has a type for (a hook's argument, or what was loaded from one).
///
/// # Safety
/// `base` must be such a pointer, or point into memory of the program that holds `offset` + the size of `T` bytes.
/// The verifier checks the rest; a stale pointer reads as 0.
#[inline(always)]
pub unsafe fn load<T: Copy>(base: *const u8, offset: u64) -> T {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(base.add(offset as usize).cast::<T>()) }
}

/// Copies `len` bytes from any kernel address. False: not readable.
///
/// # Safety
/// `to` must be valid for writes of `len` bytes.
#[inline(always)]
pub unsafe fn probe(to: *mut u8, len: u64, from: u64) -> bool {
    // SAFETY: the helper survives any source address; the caller answers for the destination.
    unsafe { bpf_probe_read_kernel(to.cast(), len as u32, from as *const c_void) == 0 }
}

/// Copies a name of `len` bytes (only the low 8 bits count) from any kernel address. False: not readable.
///
/// # Safety
/// `to` must be valid for writes of 255 bytes.
#[inline(always)]
pub unsafe fn probe_name(to: *mut u8, mut len: u64, from: u64) -> bool {
    // SAFETY: one instruction on one register: the verifier must see the bound, and the compiler may not drop it.
    unsafe { core::arch::asm!("{0} &= 255", inout(reg) len, options(pure, nomem, nostack)) };
    // SAFETY: the caller answers for 255 bytes.
    unsafe { bpf_probe_read_kernel(to.cast(), len as u32, from as *const c_void) == 0 }
}

/// One word from any kernel address; 0 where it is not readable.
#[inline(always)]
pub fn probe_word(from: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: 8 bytes of `word`.
    unsafe { probe((&raw mut word).cast(), 8, from) };
    word
}

/// The count of a seqlock; odd (never equal to a settled one) where it is not readable.
#[inline(always)]
pub fn sequence(lock: u64) -> u32 {
    let mut count = 1u32;
    // SAFETY: 4 bytes of `count`.
    if unsafe { probe((&raw mut count).cast(), 4, lock) } { count } else { 1 }
}

/// How often a held lock is looked at again: a few milliseconds, as long as a virtual CPU may be away in the middle of
/// a rename.
const PATIENCE: usize = 1 << 16;

/// The count of a seqlock that nobody holds; odd if it never came to that.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn settled(lock: u64) -> u32 {
    let count = sequence(lock);
    if count & 1 == 0 {
        return count;
    }
    let mut wait = Wait { lock, count: 1 };
    // SAFETY: the context is a `Wait`.
    unsafe {
        repeat(PATIENCE, look_again, (&raw mut wait).cast());
        fetch(&raw const wait.count) as u32
    }
}

#[repr(C)]
struct Wait {
    lock: u64,
    count: u64,
}

/// # Safety
/// `context` points to a [`Wait`].
unsafe extern "C" fn look_again(_step: u64, context: *mut c_void) -> i64 {
    // SAFETY: as above.
    unsafe {
        let wait = context.cast::<Wait>();
        let count = sequence((*wait).lock);
        put(&raw mut (*wait).count, u64::from(count));
        i64::from(count & 1 == 0)
    }
}

/// Reads through memory, so that neither compiler nor verifier know what the value was when it was written.
///
/// # Safety
/// `from` must be valid for reads.
#[inline(always)]
pub unsafe fn fetch<T: Copy>(from: *const T) -> T {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile(from) }
}

/// Writes to memory, here and now.
///
/// # Safety
/// `to` must be valid for writes.
#[inline(always)]
pub unsafe fn put<T: Copy>(to: *mut T, value: T) {
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(to, value) }
}

/// An address that the verifier has a type for, as the number that global functions and `probe` take.
///
/// # Safety
/// `opaque_word` must be valid for reads and writes.
#[inline(always)]
pub unsafe fn number_of(opaque_word: *mut u64, address: u64) -> u64 {
    // SAFETY: as above.
    unsafe {
        put(opaque_word, address);
        fetch(opaque_word)
    }
}

/// `value & 127`, which the compiler may neither drop nor turn into a running pointer.
#[inline(always)]
pub fn mask127(mut value: u64) -> usize {
    // SAFETY: one instruction on one register.
    unsafe { core::arch::asm!("{0} &= 127", inout(reg) value, options(pure, nomem, nostack)) };
    value as usize
}

/// The value, about which the compiler now knows nothing.
#[inline(always)]
pub fn opaque(mut value: u64) -> u64 {
    // SAFETY: one instruction on one register. (None at all would do, but the kernel refuses the debug information
    // of an instruction that is not there.)
    unsafe { core::arch::asm!("{0} = {0}", inout(reg) value, options(pure, nomem, nostack)) };
    value
}

/// Adds to a counter that other CPUs add to as well.
///
/// # Safety
/// `counter` must point at an aligned u64 in a map's value.
#[inline(always)]
pub unsafe fn add(counter: *mut u64, value: u64) {
    // SAFETY: one atomic addition, valid by the caller's promise.
    unsafe {
        core::arch::asm!("lock *(u64 *)({0} + 0) += {1}", in(reg) counter, in(reg) value, options(nostack))
    };
}

/// The same; what it was before.
///
/// # Safety
/// As for [`add`].
#[inline(always)]
pub unsafe fn fetch_add(counter: *mut u64, mut value: u64) -> u64 {
    // SAFETY: one atomic addition, valid by the caller's promise.
    unsafe {
        core::arch::asm!(
            "{1} = atomic_fetch_add((u64 *)({0} + 0), {1})", in(reg) counter, inout(reg) value, options(nostack)
        )
    };
    value
}

/// Puts a value in the place of another, which it returns; other CPUs do that as well.
///
/// # Safety
/// `place` must point at an aligned u64 in a map's value.
#[inline(always)]
pub unsafe fn exchange(place: *mut u64, mut value: u64) -> u64 {
    // SAFETY: one atomic exchange, valid by the caller's promise.
    unsafe {
        core::arch::asm!("{1} = xchg_64({0} + 0, {1})", in(reg) place, inout(reg) value, options(nostack))
    };
    value
}

/// Calls `step` with its number and `context` until it returns 1, at most `times`. The verifier looks at a step once,
/// whatever `times` is; a plain loop it walks through.
///
/// # Safety
/// `context` must be what `step` takes it for.
#[inline(always)]
pub unsafe fn repeat(
    times: usize,
    step: unsafe extern "C" fn(u64, *mut c_void) -> i64,
    context: *mut c_void,
) {
    // SAFETY: the caller's promise; the helper calls nothing but `step`.
    unsafe { bpf_loop(times as u32, step as *mut c_void, context, 0) };
}
