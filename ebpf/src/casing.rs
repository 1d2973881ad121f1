//! File systems that do not tell case apart: another spelling of a name is the same file there, and a dentry has the
//! spelling that was looked up first, whoever did that.
//!
//! Once a walk has come by such a file system, each component is hashed once more in lower case, by which denials and
//! protected places are filed a second time. Grants are not: a file is granted under the spelling of the rule alone. What
//! equals a name in other ways than by the case of ASCII letters is refused there: a letter outside ASCII, of which some
//! fold to one inside; on foreign file systems also the marks of short names, streams and ends that are cut off.

use ringfence_common::hash::mum;
use ringfence_common::task::{Task, casing};

use crate::globals::{DENTRY_FLAGS, K0, K1, SB_ENCODING, SB_MAGIC, SB_ROOT, VFSMOUNT_SB, get};
use crate::memory::{fetch, load, probe, probe_word, put};

/// `DCACHE_OP_HASH` and `DCACHE_OP_COMPARE`: names are not compared byte by byte. (Below /proc/sys, too, but not at the
/// root of procfs.)
const COMPARES: u32 = 3;

/// File systems whose server or disk folds case, whatever their mount says: `CIFS_SUPER_MAGIC`, `SMB2_SUPER_MAGIC`,
/// ntfs3, the NTFS driver before it, vboxsf.
const FOREIGN: [u64; 5] = [0xff53_4d42, 0xfe53_4d42, 0x7366_746e, 0x5346_544e, 0x786f_4256];

/// Names of which every byte has this bit clear are ASCII.
const HIGH: u64 = 0x8080_8080_8080_8080;
const ONES: u64 = 0x0101_0101_0101_0101;

/// How a file system compares names, by what its super block says: bits of [`casing`], 0 if byte by byte.
#[inline(always)]
fn kind(encoding: u64, magic: u64, root_flags: u32) -> u64 {
    if encoding != 0 {
        casing::HERE
    } else if root_flags & COMPARES != 0 || FOREIGN.contains(&magic) {
        casing::HERE | casing::FOREIGN
    } else {
        0
    }
}

/// Whether the names on a mount that the verifier has a type for can be judged as they are.
///
/// # Safety
/// `mount` comes from a hook's argument or from the current task.
#[inline(always)]
pub unsafe fn is_plain(mount: *const u8) -> bool {
    // SAFETY: typed loads.
    unsafe {
        let sb: *const u8 = load(mount, get(&VFSMOUNT_SB));
        let root: *const u8 = load(sb, get(&SB_ROOT));
        let encoding = if get(&SB_ENCODING) == 0 { 0 } else { load(sb, get(&SB_ENCODING)) };
        kind(encoding, load(sb, get(&SB_MAGIC)), load(root, get(&DENTRY_FLAGS))) == 0
    }
}

/// How the names on any mount are compared.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn casing_of(mount: u64) -> u64 {
    let sb = probe_word(mount + get(&VFSMOUNT_SB));
    let mut flags = COMPARES;
    // SAFETY: 4 bytes of `flags`, which says "folds" where it cannot be read.
    unsafe { probe((&raw mut flags).cast(), 4, probe_word(sb + get(&SB_ROOT)) + get(&DENTRY_FLAGS)) };
    let encoding = if get(&SB_ENCODING) == 0 { 0 } else { probe_word(sb + get(&SB_ENCODING)) };
    kind(encoding, probe_word(sb + get(&SB_MAGIC)), flags)
}

/// The word with its ASCII capitals as small letters: bit 7 of each byte becomes "is a capital", bit 5 makes it small.
#[inline(always)]
const fn lower(word: u64) -> u64 {
    let low = word & !HIGH;
    let from_a = low + ONES * (0x80 - b'A' as u64);
    let beyond_z = low + ONES * (0x7f - b'Z' as u64);
    word | ((from_a ^ beyond_z) & !word & HIGH) >> 2
}

/// Not 0 if a byte of the word is `byte`.
#[inline(always)]
const fn has(word: u64, byte: u8) -> u64 {
    let word = word ^ (ONES * byte as u64);
    word.wrapping_sub(ONES) & !word & HIGH
}

/// Turns the name in the scratch's buffer into lower case; its hash, or 0 if it may be another spelling of a name from
/// which it differs in more than case.
///
/// # Safety
/// `task` is a tag or null.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn lower_hash(task: *mut Task, len: u64) -> u64 {
    if task.is_null() || len == 0 || len > 255 {
        return 0;
    }
    // SAFETY: `task` is the value of a map; its name buffer holds more than 255 bytes.
    unsafe {
        let scratch = &raw mut (*task).scratch;
        let here = fetch(&raw const (*scratch).casing);
        let buffer = (&raw mut (*scratch).name).cast::<u64>();
        let k1 = get(&K1);
        let (mut hash, mut strange, mut last) = (get(&K0) ^ len, 0, 0);
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
            strange |= word & HIGH;
            if here & casing::FOREIGN != 0 {
                strange |= has(word, b'~') | has(word, b':');
                last = word >> (((len - 1) & 7) * 8) & 0xff;
            }
            let word = lower(word);
            put(buffer.add(index as usize), word);
            hash = mum(hash ^ word, k1);
            index += 1;
        }
        if here & casing::HERE != 0 && (strange != 0 || last == u64::from(b'.') || last == u64::from(b' ')) {
            return 0;
        }
        hash | 1
    }
}
