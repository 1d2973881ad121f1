//! Keys and keyrings: with add_key(2), request_key(2) and keyctl(2) a container uses those that it made itself.
//!
//! The kernel uses keys in a task's name as well (NFS, names of hosts): whatever comes by another call is not judged.
//! Looking for a key that nobody has made starts a program of the host's as root; that is always refused.

use core::ffi::c_void;

use aya_ebpf::EbpfContext as _;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use ringfence_common::MAX_CONTAINERS;
use ringfence_common::event::{fixed, op};
use ringfence_common::policy::MAX_KEYS;
use ringfence_common::task::Task;

use crate::escape::{deny, deny_quietly};
use crate::globals::{KEY_DESCRIPTION, KEY_SERIAL, KEY_TYPE, KEY_TYPE_NAME, KEY_USAGE, get};
use crate::identity::governed;
use crate::memory::{fetch, probe_word, put, repeat};
use crate::objects::{claim, disclaim, is_own};
use crate::storage::KEYS_OF;
use crate::syscall;

const EDQUOT: i32 = -122;
/// `KEY_ALLOC_UID_KEYRING`: a user's keyring, which all of the user's processes share, whoever was first to need it.
const UID_KEYRING: u64 = 0x10;
/// `KEY_NEED_VIEW`. Outside of the three calls it is asked for what /proc/keys lists.
const NEED_VIEW: u32 = 1;
/// `KEYCTL_SESSION_TO_PARENT`: the parent may be outside, and by the time the kernel looks, another one.
const SESSION_TO_PARENT: u32 = 18;
/// `KEYCTL_GET_PERSISTENT`: a keyring that all processes of a user share.
const GET_PERSISTENT: u32 = 22;

const ADD_KEY: u32 = 248;
const REQUEST_KEY: u32 = 249;
const KEYCTL: u32 = 250;
/// The same of the 32-bit table. What either table has at the other's numbers uses no keys.
const ADD_KEY_32: u32 = 286;
const REQUEST_KEY_32: u32 = 287;
const KEYCTL_32: u32 = 288;

/// The beginning of a type's name.
const KEYRING: u64 = u64::from_le_bytes(*b"keyring\0");
const AUTHORISATION: u64 = u64::from_le_bytes(*b".request");

#[inline(always)]
fn is_key_call(number: u32) -> bool {
    matches!(number, ADD_KEY | REQUEST_KEY | KEYCTL | ADD_KEY_32 | REQUEST_KEY_32 | KEYCTL_32)
}

#[inline(always)]
unsafe fn refuse(task: *mut Task, key: u64) -> i32 {
    // SAFETY: `task` is a tag.
    unsafe { deny(task, op::KEY, 0, (probe_word(key + get(&KEY_SERIAL))) as u32, fixed::OTHER_IPC) }
}

/// A key comes into being.
#[lsm(hook = "key_alloc")]
pub fn key_alloc(ctx: LsmContext) -> i32 {
    let key: u64 = ctx.arg(0);
    let task = governed();
    // Whatever was at this address, it is gone.
    disclaim(key);
    if task.is_null() {
        return 0;
    }
    let number = syscall::number();
    if !is_key_call(number) {
        return 0;
    }
    let kind = probe_word(probe_word(probe_word(key + get(&KEY_TYPE)) + get(&KEY_TYPE_NAME)));
    let wanted = matches!(number, REQUEST_KEY | REQUEST_KEY_32) && kind != KEYRING;
    // SAFETY: `task` is a tag.
    unsafe {
        if wanted || kind == AUTHORISATION {
            return refuse(task, key);
        }
        let hidden = probe_word(probe_word(key + get(&KEY_DESCRIPTION))) as u8 == b'.';
        // The kernel's registers of users' keyrings, which it makes when they are first needed.
        if ctx.arg::<u64>(2) & UID_KEYRING != 0 || (kind == KEYRING && hidden) {
            return 0;
        }
        if own(task, key) { 0 } else { EDQUOT }
    }
}

/// Makes a key the container's. False: it has as many as it may have.
#[inline(always)]
unsafe fn own(task: *mut Task, key: u64) -> bool {
    // SAFETY: `task` is a tag; the slots are a map's value.
    unsafe {
        let container = fetch(&raw const (*task).container);
        let index = (container & (MAX_CONTAINERS as u64 - 1)) as u32;
        let Some(slots) = KEYS_OF.get_ptr_mut(index) else { return false };
        // An address stands in one slot at most: that of the key before, if it was the container's too.
        let mut free = Free { slots: slots.cast(), container, key, slot: MAX_KEYS as u64 };
        repeat(MAX_KEYS, is_same, (&raw mut free).cast());
        if fetch(&raw const free.slot) >= MAX_KEYS as u64 {
            repeat(MAX_KEYS, is_free, (&raw mut free).cast());
        }
        let slot = fetch(&raw const free.slot);
        if slot >= MAX_KEYS as u64 {
            return false;
        }
        let slot = slots.cast::<u64>().add((slot as usize & (MAX_KEYS - 1)) * 2);
        let before = fetch(slot);
        // The kernel does not tell of a key's end on every version.
        if before != 0 && before != key && is_own(before, container) {
            disclaim(before);
        }
        put(slot, key);
        put(slot.add(1), probe_word(key + get(&KEY_TYPE)));
        claim(key, container)
    }
}

/// What a free slot is looked for with; `slot` is where it was found.
#[repr(C)]
struct Free {
    slots: *mut u64,
    container: u64,
    key: u64,
    slot: u64,
}

/// Whether a slot has the very address.
///
/// # Safety
/// `context` points to a [`Free`].
unsafe extern "C" fn is_same(step: u64, context: *mut c_void) -> i64 {
    // SAFETY: as above.
    unsafe {
        let free = context.cast::<Free>();
        if fetch((*free).slots.add((step as usize & (MAX_KEYS - 1)) * 2)) != fetch(&raw const (*free).key) {
            return 0;
        }
        put(&raw mut (*free).slot, step);
        1
    }
}

/// Whether the key in a slot is gone: it is somebody else's by now, nothing refers to it, or what is at its address is no
/// key of that type any more.
///
/// # Safety
/// `context` points to a [`Free`].
unsafe extern "C" fn is_free(step: u64, context: *mut c_void) -> i64 {
    // SAFETY: as above.
    unsafe {
        let free = context.cast::<Free>();
        let slot = (*free).slots.add((step as usize & (MAX_KEYS - 1)) * 2);
        let (key, kind) = (fetch(slot), fetch(slot.add(1)));
        if key != 0
            && is_own(key, (*free).container)
            && probe_word(key + get(&KEY_TYPE)) == kind
            && probe_word(key + get(&KEY_USAGE)) as u32 != 0
        {
            return 0;
        }
        put(&raw mut (*free).slot, step);
        1
    }
}

/// A key is looked up, by whatever way.
#[lsm(hook = "key_permission")]
pub fn key_permission(ctx: LsmContext) -> i32 {
    let task = governed();
    if task.is_null() {
        return 0;
    }
    let number = syscall::number();
    let called = is_key_call(number);
    let need: u64 = ctx.arg(2);
    if !called && need as u32 != NEED_VIEW {
        return 0;
    }
    // The first argument is of a type that the verifier lets no program load. Its lowest bit says whether the task
    // possesses the key.
    let key = probe_word(ctx.as_ptr() as u64) & !1;
    // SAFETY: `task` is a tag.
    unsafe {
        let own = is_own(key, fetch(&raw const (*task).container));
        if own && !(called && leads_out(number)) {
            return 0;
        }
        if called { refuse(task, key) } else { deny_quietly(task) }
    }
}

/// Whether keyctl(2) is asked for what would reach others with the container's own keys.
#[inline(always)]
fn leads_out(number: u32) -> bool {
    let option = match number {
        KEYCTL => syscall::first(false),
        KEYCTL_32 => syscall::first(true),
        _ => return false,
    };
    matches!(option, SESSION_TO_PARENT | GET_PERSISTENT)
}
