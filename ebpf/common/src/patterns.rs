//! Rules over patterns of names, `**/NAME*` and `**/*NAME`: which names a policy's patterns may match.
//!
//! Most names are matched by none. Two bytes of a name, its first or its last two, say so by way of one bit of a mask; only
//! a name that has that bit, or is one byte long, is looked at more closely, at each length that a pattern has.

/// Longest name in a pattern, in bytes.
pub const MAX_PATTERN: usize = 31;

/// What a policy's patterns look like, all together.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    /// Bit [`bit_of`]: the first two bytes of a name with which `**/NAME*` may begin.
    pub heads: u64,
    /// Bit [`bit_of`]: the last two bytes of a name with which `**/*NAME` may end.
    pub tails: u64,
    /// Bit N: there is a `**/NAME*` of N bytes. Bit 32 + N: there is a `**/*NAME` of N bytes.
    pub lengths: u64,
}

/// Which end of a name a pattern is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// `**/NAME*`: names that begin so.
    Head,
    /// `**/*NAME`: names that end so.
    Tail,
}

/// Two bytes of a name, the first in the low half, as a bit of a mask.
#[inline(always)]
pub const fn bit_of(two: u16) -> u64 {
    1 << (((two as u32).wrapping_mul(0x9e37) >> 10) & 63)
}

impl Patterns {
    /// No pattern: matches nothing.
    pub const NONE: Self = Self { heads: 0, tails: 0, lengths: 0 };
    /// Nothing is known of the patterns: every name may be matched, at every length.
    pub const ANY: Self = Self { heads: u64::MAX, tails: u64::MAX, lengths: u64::MAX };

    /// Adds a pattern: 1 to [`MAX_PATTERN`] bytes. Of one byte alone, the other of the two may be any.
    pub fn add(&mut self, end: End, name: &[u8]) {
        debug_assert!(!name.is_empty() && name.len() <= MAX_PATTERN);
        let (mask, length) = match end {
            End::Head => (&mut self.heads, name.len()),
            End::Tail => (&mut self.tails, 32 + name.len()),
        };
        *mask |= match (end, name) {
            (_, [_]) => u64::MAX,
            (End::Head, [first, second, ..]) | (End::Tail, [.., first, second]) => {
                bit_of(u16::from_le_bytes([*first, *second]))
            }
            (_, []) => 0,
        };
        self.lengths |= 1 << length;
    }

    /// Whether a name of two bytes or more that begins and ends so may be matched.
    #[inline(always)]
    pub const fn may_match(&self, head: u16, tail: u16) -> bool {
        self.heads & bit_of(head) | self.tails & bit_of(tail) != 0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;

    fn may_match(patterns: Patterns, name: &[u8]) -> bool {
        let two = |at: usize| u16::from_le_bytes([name[at], name[at + 1]]);
        name.len() == 1 || patterns.may_match(two(0), two(name.len() - 2))
    }

    #[test]
    fn what_a_pattern_matches_passes_and_most_else_does_not() {
        let mut patterns = Patterns::NONE;
        for name in [b".env.".as_slice(), b"id_rsa"] {
            patterns.add(End::Head, name);
        }
        for name in [b".pem".as_slice(), b".key", b".p12"] {
            patterns.add(End::Tail, name);
        }
        assert_eq!(patterns.lengths, 1 << 5 | 1 << 6 | 1 << 36);
        for name in
            [b".env.local".as_slice(), b".env.", b"id_rsa", b"id_rsa.pub", b"a.pem", b".pem", b"x.p12"]
        {
            assert!(may_match(patterns, name), "{}", std::string::String::from_utf8_lossy(name));
        }
        let names = ["home", "src", "main.rs", "target", "usr", "lib", "Cargo.toml", "README.md", "etc"];
        assert!(names.iter().filter(|name| may_match(patterns, name.as_bytes())).count() < 3);
        assert!(!may_match(Patterns::NONE, b"ab") && may_match(Patterns::ANY, b"a"));
    }

    #[test]
    fn a_pattern_of_one_byte_lets_every_name_be_looked_at() {
        for end in [End::Head, End::Tail] {
            let mut patterns = Patterns::NONE;
            patterns.add(end, b"~");
            assert!(may_match(patterns, b"~") && may_match(patterns, b"a~") && may_match(patterns, b"~a"));
        }
    }
}
