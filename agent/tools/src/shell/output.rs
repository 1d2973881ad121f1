//! A command's output, in bounded memory: its start, its end, and how much is missing between them.

use ringfence_file_tools::output::{rest_of_character, whole_characters};
use std::collections::VecDeque;

/// Bytes that are kept of one stream; twice this is what one call shows.
pub(super) const KEPT: usize = 512 * 1024;
/// Of those, the start.
const HEAD: usize = KEPT / 4;

/// One stream.
#[derive(Debug, Default)]
pub(super) struct Capture {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

/// A stream as it is shown.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Captured {
    /// What was not UTF-8 is U+FFFD.
    pub(super) text: String,
    /// Bytes that the command wrote.
    pub(super) total: u64,
    /// Whether a part is missing; the text says where.
    pub(super) truncated: bool,
    /// Whether everything that is shown was UTF-8.
    pub(super) utf8: bool,
}

impl Capture {
    /// Adds what was read.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let (to_head, to_tail) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
        self.head.extend_from_slice(to_head);
        // Of one large piece only the end can matter.
        let to_tail = &to_tail[to_tail.len().saturating_sub(KEPT - HEAD)..];
        let over = (self.tail.len() + to_tail.len()).saturating_sub(KEPT - HEAD);
        self.tail.drain(..over);
        self.tail.extend(to_tail);
    }

    /// Bytes that were added.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// What is to be shown.
    pub(super) fn finish(self) -> Captured {
        let Self { mut head, tail, total } = self;
        let mut tail = Vec::from(tail);
        let missing = total - (head.len() + tail.len()) as u64;
        if missing == 0 {
            head.append(&mut tail);
            let (text, utf8) = text(head);
            return Captured { text, total, truncated: false, utf8 };
        }
        // Characters that the cut went through are missing as a whole.
        let whole = whole_characters(&head);
        let begun = rest_of_character(&tail);
        let missing = missing + (head.len() - whole + begun) as u64;
        head.truncate(whole);
        tail.drain(..begun);
        let ((start, start_utf8), (end, end_utf8)) = (text(head), text(tail));
        let text = format!("{start}\n[...truncated {missing} bytes...]\n{end}");
        Captured { text, total, truncated: true, utf8: start_utf8 && end_utf8 }
    }
}

fn text(bytes: Vec<u8>) -> (String, bool) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, true),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(pieces: &[&[u8]]) -> Captured {
        let mut capture = Capture::default();
        pieces.iter().for_each(|piece| capture.push(piece));
        capture.finish()
    }

    #[test]
    fn what_fits_is_shown_as_it_is() {
        assert_eq!(shown(&[b"a\n", b"", b"b"]).text, "a\nb");
        let whole = "é".repeat(KEPT / 2);
        let all = shown(&[whole.as_bytes()]);
        assert_eq!((all.text == whole, all.truncated, all.utf8), (true, false, true));
        let odd = shown(&[b"a\xff\x00b"]);
        assert_eq!((odd.text.as_str(), odd.utf8), ("a\u{fffd}\0b", false));
    }

    #[test]
    fn too_much_is_cut_in_the_middle_and_said() {
        let (a, z) = ([b'a'; HEAD], [b'z'; KEPT - HEAD]);
        let middle = [b'm'; 5000];
        let cut = shown(&[&a, &middle, &middle, &z]);
        assert!(cut.truncated && cut.utf8);
        assert_eq!(cut.total, (KEPT + 10_000) as u64);
        let (a, z) = ("a".repeat(HEAD), "z".repeat(KEPT - HEAD));
        assert_eq!(cut.text, format!("{a}\n[...truncated 10000 bytes...]\n{z}"));
    }

    #[test]
    fn a_cut_goes_through_no_character() {
        for before in 0..4 {
            let text = format!("{}{}", "x".repeat(before), "日🦀é".repeat(KEPT / 4));
            let cut = shown(&[text.as_bytes()]);
            assert!(cut.truncated && cut.utf8 && !cut.text.contains('\u{fffd}'), "{before}");
            let missing: usize =
                cut.text.split("truncated ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
            let mark = format!("\n[...truncated {missing} bytes...]\n");
            assert_eq!(cut.text.len() - mark.len() + missing, text.len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn pieces_make_no_difference(sizes in prop::collection::vec(0_usize..200_000, 0..12)) {
            let bytes: Vec<u8> = (0..sizes.iter().sum::<usize>()).map(|i| b'!' + (i % 90) as u8).collect();
            let mut capture = Capture::default();
            let mut at = 0;
            for size in sizes {
                capture.push(&bytes[at..at + size]);
                at += size;
                prop_assert!(capture.head.len() + capture.tail.len() <= KEPT);
            }
            prop_assert_eq!(capture.finish(), shown(&[&bytes]));
        }
    }
}
