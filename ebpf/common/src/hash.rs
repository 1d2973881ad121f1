//! The keyed hash of paths: a component's hash, and the fold of components from the root down.
//!
//! The eBPF walker computes these from dentries, the agent from the text of a rule; a rule is found when both come
//! to the same 64 bits. The keys are random per boot ([`Keys`]), so that a container cannot choose names that collide.

/// The three secret multipliers of one boot. Odd, random, kept in read-only globals of the eBPF programs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Start of a component's hash.
    pub k0: u64,
    /// Mixes each word of a component.
    pub k1: u64,
    /// Mixes a component into the prefix.
    pub k2: u64,
}

/// 64 x 64 bit multiply, high and low half folded together, from 32-bit halves only (BPF has no 128-bit product).
#[inline(always)]
pub const fn mum(a: u64, b: u64) -> u64 {
    let (al, ah, bl, bh) = (a & 0xffff_ffff, a >> 32, b & 0xffff_ffff, b >> 32);
    let (ll, lh, hl, hh) =
        (al.wrapping_mul(bl), al.wrapping_mul(bh), ah.wrapping_mul(bl), ah.wrapping_mul(bh));
    ll.wrapping_add(hh) ^ lh.wrapping_add(hl).rotate_left(32)
}

/// Hash of one path component (1..=255 bytes). Never 0.
pub fn component(keys: &Keys, name: &[u8]) -> u64 {
    let mut h = keys.k0 ^ name.len() as u64;
    let mut rest = name;
    while !rest.is_empty() {
        let n = if rest.len() < 8 { rest.len() } else { 8 };
        let mut word = [0u8; 8];
        word[..n].copy_from_slice(&rest[..n]);
        h = mum(h ^ u64::from_le_bytes(word), keys.k1);
        rest = &rest[n..];
    }
    h | 1
}

/// The prefix hash one component further down. A policy's seed is the prefix hash of `/`.
#[inline(always)]
pub const fn descend(keys: &Keys, prefix: u64, component: u64) -> u64 {
    mum(prefix ^ component, keys.k2)
}

/// The prefix hash of an absolute path, from a policy's seed.
pub fn path(keys: &Keys, seed: u64, path: &[u8]) -> u64 {
    path.split(|b| *b == b'/')
        .filter(|c| !c.is_empty())
        .fold(seed, |p, c| descend(keys, p, component(keys, c)))
}

/// The seed of `**/NAME` rules: a component alone, wherever it stands, is `descend(name_seed(seed), component)`.
#[inline(always)]
pub const fn name_seed(seed: u64) -> u64 {
    seed ^ 0x6e61_6d65_6e61_6d65
}

/// The seed under which denials and protected places are filed once more, in lower case, for what is on a file system that
/// does not tell case apart: `path(folded_seed(seed), ...)`, `descend(name_seed(folded_seed(seed)), component)`.
#[inline(always)]
pub const fn folded_seed(seed: u64) -> u64 {
    seed ^ 0x666f_6c64_666f_6c64
}

/// The seed of `**/NAME*` rules: the beginning of a component, 1 to 31 bytes of it, is hashed as a [`component`] of its own
/// and filed at `descend(prefix_seed(seed), component)`.
#[inline(always)]
pub const fn prefix_seed(seed: u64) -> u64 {
    seed ^ 0x7072_6566_7072_6566
}

/// The seed of `**/*NAME` rules: the end of a component, alone, is `descend(suffix_seed(seed), component)`.
/// The seed of `**/*NAME` rules: the same of a component's end.
#[inline(always)]
pub const fn suffix_seed(seed: u64) -> u64 {
    seed ^ 0x7375_6666_7375_6666
}

/// Where the mark of the directory with this prefix is filed: see [`crate::policy::marks`].
#[inline(always)]
pub const fn mark(prefix: u64) -> u64 {
    prefix ^ 0x6d61_726b_6d61_726b
}

/// The seed of abstract unix socket names, each one component: `descend(abstract_seed(seed), component)`.
/// Names longer than 255 bytes cannot occur (`sun_path` holds 108).
#[inline(always)]
pub const fn abstract_seed(seed: u64) -> u64 {
    seed ^ 0x6162_7374_7261_6374
}

/// The seed of numbers that `[kernel]` names, one for each of [`crate::policy::named`]: a number is the one component
/// `number(keys, N)`.
#[inline(always)]
pub const fn named_seed(seed: u64, kind: u32) -> u64 {
    seed ^ 0x6e75_6d62_0000_0000 ^ kind as u64
}

/// Hash of a number, by [`Keys::k0`] and [`Keys::k1`]: that of its 8 bytes as a [`component`].
#[inline(always)]
pub const fn number(k0: u64, k1: u64, value: u64) -> u64 {
    mum(k0 ^ 8 ^ value, k1) | 1
}

/// The prefix hash of a number that `[kernel]` names.
pub const fn named(keys: &Keys, seed: u64, kind: u32, value: u64) -> u64 {
    descend(keys, named_seed(seed, kind), number(keys.k0, keys.k1, value))
}
