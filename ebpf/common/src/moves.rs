//! Whether a file or directory may have another name: what the rules say of both names, compared.
//!
//! A rule may be about a path itself, its children or all below it, so what a directory's place gives to its descendants
//! is known from three answers: for itself, for a child, and for whatever is further down. Rules by name (`**/NAME`) say
//! the same of a descendant at both places, and the fold that leads down to it is monotone: who begins with no more ends
//! with no more. Rules by path *below* a place are not in the three answers; of those, the marks on the directories
//! above them tell: see [`crate::policy::marks`].

use crate::event::fixed;
use crate::fold::Answer;
use crate::policy::{axis, marks};

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFIFO: u32 = 0o010_000;
/// A directory's file type.
pub const S_IFDIR: u32 = 0o040_000;

/// Bits of one answer: allow, then deny.
const STEP: u64 = 10;
/// Answers that are kept: for the place itself, a child of it, and anything further down.
pub const DEPTHS: u64 = 3;
/// The allow bits of every answer.
const ALLOWS: u64 = 0x1f | 0x1f << STEP | 0x1f << (2 * STEP);
const DENIES: u64 = (marks::DENIES_BELOW as u64) << (DEPTHS * STEP);
const GRANTS: u64 = (marks::GRANTS_BELOW as u64) << (DEPTHS * STEP);

/// What the rules say of a place and of what is, or would be, below it. One word, so that global functions can return it:
/// three answers of [`STEP`] bits and the two marks, or, from bit 32 on, why there is no answer (one of [`fixed`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach(pub u64);

impl Reach {
    /// Nothing yet.
    pub const EMPTY: Self = Self(0);

    /// No answer, for one of [`fixed`]'s reasons.
    #[inline(always)]
    pub const fn refused(why: u32) -> Self {
        Self((why as u64) << 32)
    }

    /// Why there is no answer; 0: there is one.
    #[inline(always)]
    pub const fn fixed(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// With the answer for what is `depth` components below the place (2: or more).
    #[inline(always)]
    pub const fn with(self, depth: u64, answer: Answer) -> Self {
        let all = axis::ALL as u64;
        Self(self.0 | ((answer.allow & all) | (answer.deny & all) << 5) << (depth * STEP))
    }

    /// With the bits of the place's mark, or 0: see [`marks`].
    #[inline(always)]
    pub const fn marked(self, mark: u64) -> Self {
        Self(self.0 | (mark & (marks::DENIES_BELOW | marks::GRANTS_BELOW) as u64) << (DEPTHS * STEP))
    }

    /// The axes that the place itself is denied.
    #[inline(always)]
    pub const fn denied(self) -> u16 {
        (self.0 >> 5) as u16 & axis::ALL
    }

    /// Whether all of `axes` are allowed to the place itself and none denied.
    #[inline(always)]
    pub const fn allows(self, axes: u16) -> bool {
        self.fixed() == 0 && self.0 as u16 & axes == axes && self.denied() & axes == 0
    }

    /// The axes that `new` gives where this did not: to the place itself or, `below`, to something in it. A denial that
    /// is left behind counts where it was the only thing in the way later on.
    #[inline(always)]
    const fn gains(self, new: Self, below: bool) -> u16 {
        let gained = ((new.0 & !self.0) | self.0 >> 5) & !(new.0 >> 5) & ALLOWS;
        let deeper = if below { gained >> STEP | gained >> (2 * STEP) } else { 0 };
        (gained | deeper) as u16 & axis::ALL
    }
}

/// The axes that mean something for a file of this type (`st_mode`): no rule is needed to follow a link, nobody connects
/// to a regular file.
#[inline(always)]
const fn meant(mode: u32) -> u16 {
    match mode & S_IFMT {
        S_IFREG => axis::READ | axis::WRITE | axis::EXEC | axis::MAP,
        S_IFLNK => axis::WRITE,
        S_IFIFO => axis::READ | axis::WRITE,
        _ => axis::ALL,
    }
}

/// Why what is of this type and at the place `old` may not have the name `new`, which may be written, as may the old one:
/// 0 (it may), [`fixed::PINNED`] or [`fixed::WIDENS`]; in the second word, the axes that it would gain.
#[inline(always)]
pub const fn objection(old: Reach, new: Reach, mode: u32) -> (u32, u16) {
    let directory = mode & S_IFMT == S_IFDIR;
    let gained = old.gains(new, directory) & meant(mode);
    if directory && old.0 & DENIES != 0 {
        (fixed::PINNED, 0)
    } else if gained != 0 || (directory && new.0 & GRANTS != 0) {
        (fixed::WIDENS, gained)
    } else {
        (0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::axis::{EXEC, READ, UNIX, WRITE};

    fn reach(answers: [(u16, u16); 3]) -> Reach {
        (0..).zip(answers).fold(Reach::EMPTY, |reach, (depth, (allow, deny))| {
            reach.with(depth, Answer { allow: allow.into(), deny: deny.into() })
        })
    }

    #[test]
    fn each_depth_counts_for_a_directory_and_only_the_first_for_a_file() {
        let plain = reach([(WRITE, 0); 3]);
        for depth in 0..3 {
            let mut answers = [(WRITE, 0); 3];
            answers[depth].0 |= EXEC;
            let wide = reach(answers);
            assert_eq!(objection(plain, wide, S_IFDIR), (fixed::WIDENS, EXEC), "{depth}");
            assert_eq!(objection(wide, plain, S_IFDIR), (0, 0), "{depth}");
            assert_eq!(objection(plain, wide, S_IFREG).0 == 0, depth > 0, "{depth}");
            answers[depth] = (WRITE, READ);
            assert_eq!(objection(reach(answers), plain, S_IFDIR), (fixed::WIDENS, READ), "{depth}");
            assert_eq!(objection(plain, reach(answers), S_IFDIR), (0, 0), "{depth}");
        }
    }

    #[test]
    fn a_denial_that_goes_along_is_none_that_is_shed() {
        let old = reach([(READ | WRITE, READ); 3]);
        let new = reach([(READ | WRITE | EXEC, READ | EXEC); 3]);
        assert_eq!(objection(old, new, S_IFDIR), (0, 0));
    }

    #[test]
    fn only_what_a_type_of_file_can_use_counts() {
        let (old, sockets) = (reach([(WRITE, 0); 3]), reach([(WRITE | UNIX, 0); 3]));
        let (socket, device) = (0o140_000, 0o020_000);
        for (mode, refused) in
            [(S_IFREG, false), (S_IFLNK, false), (S_IFIFO, false), (socket, true), (device, true)]
        {
            assert_eq!(objection(old, sockets, mode).0 != 0, refused, "{mode:o}");
        }
        let programs = reach([(WRITE | EXEC, 0); 3]);
        assert_eq!(objection(old, programs, S_IFREG), (fixed::WIDENS, EXEC));
        assert_eq!(objection(old, programs, S_IFLNK), (0, 0));
    }

    #[test]
    fn marks_hold_directories_and_nothing_else() {
        let place = reach([(WRITE, 0); 3]);
        let denies = place.marked(marks::DENIES_BELOW.into());
        let grants = place.marked(marks::GRANTS_BELOW.into());
        assert_eq!(objection(denies, place, S_IFDIR).0, fixed::PINNED);
        assert_eq!(objection(place, denies, S_IFDIR).0, 0);
        assert_eq!(objection(place, grants, S_IFDIR).0, fixed::WIDENS);
        assert_eq!(objection(grants, place, S_IFDIR).0, 0);
        assert_eq!(objection(denies, grants, S_IFREG).0, 0);
    }
}
