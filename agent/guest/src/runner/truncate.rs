//! Long output, cut: bytes first, then lines, on a character's boundary. Pure: bytes in, bytes to show out.

use ringfence_file_tools::output::{rest_of_character, whole_characters};
use ringfence_wire::runner::{Keep, Shape};
use std::collections::VecDeque;

/// Bytes of output's first piece that are enough to judge whether it is text.
const ENOUGH: usize = 32;

/// One output on its way: shows its start as it comes, keeps its end, counts all of it.
#[derive(Debug)]
pub(super) struct Truncator {
    max_bytes: u64,
    max_lines: u64,
    /// What the start may have, in bytes and lines.
    head: (u64, u64),
    name_binary: bool,
    bytes: u64,
    newlines: u64,
    /// All of it ends in a line end.
    whole_lines: bool,
    shown: u64,
    shown_newlines: u64,
    /// The start has all that it may have.
    head_full: bool,
    /// The first bytes of a character that may not have room for the rest of it.
    held: Vec<u8>,
    /// What came after the start, as far as there is room.
    rest: VecDeque<u8>,
    dropped: bool,
    binary: bool,
    ends_line: bool,
}

/// What the remark about a truncated output needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truncation {
    /// Nothing of it is shown from where this was found out.
    pub(super) binary: bool,
    /// Bytes of all of it.
    pub(super) bytes: u64,
    /// Lines of all of it, a last one without an end included.
    pub(super) lines: u64,
    /// What stands before the remark ends in a line end, or is empty.
    pub(super) at_line_start: bool,
}

impl Truncator {
    pub(super) fn new(shape: &Shape) -> Self {
        let head = match shape.keep {
            Keep::Head => (shape.max_bytes, shape.max_lines),
            Keep::Tail => (0, 0),
            Keep::Both => (shape.max_bytes.div_ceil(2), shape.max_lines.div_ceil(2)),
        };
        Self {
            max_bytes: shape.max_bytes,
            max_lines: shape.max_lines,
            head,
            name_binary: shape.name_binary,
            bytes: 0,
            newlines: 0,
            whole_lines: true,
            shown: 0,
            shown_newlines: 0,
            head_full: head.0 == 0,
            held: Vec::new(),
            rest: VecDeque::new(),
            dropped: false,
            binary: false,
            ends_line: true,
        }
    }

    /// Bytes that came so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// It is known that not all of it will be shown.
    pub(super) fn is_over(&self) -> bool {
        self.binary || self.bytes > self.max_bytes || self.lines() > self.max_lines
    }

    /// Takes in a piece; what is to be shown of it now is appended to `out`.
    pub(super) fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        let Some(last) = piece.last() else { return };
        if self.name_binary && !self.is_over() {
            self.binary = is_binary(piece, self.bytes == 0);
        }
        self.bytes += piece.len() as u64;
        self.newlines += piece.iter().filter(|byte| **byte == b'\n').count() as u64;
        self.whole_lines = *last == b'\n';
        if self.binary {
            return;
        }
        let mut left = piece;
        if !self.head_full {
            left = self.start(piece, out);
        }
        if !left.is_empty() {
            self.keep(left);
        }
    }

    /// Shows what still belongs to the start; returns what does not.
    fn start<'a>(&mut self, piece: &'a [u8], out: &mut Vec<u8>) -> &'a [u8] {
        let room = self.head.0 - self.shown - self.held.len() as u64;
        let mut end = piece.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let mut full = (end as u64) == room && end < piece.len();
        let lines = self.head.1 - self.shown_newlines;
        if let Some(nth) = nth_newline(&piece[..end], lines) {
            end = nth + 1;
            full = true;
            self.shown_newlines = self.head.1;
        } else {
            self.shown_newlines += piece[..end].iter().filter(|byte| **byte == b'\n').count() as u64;
        }
        let (mut now, left) = (std::mem::take(&mut self.held), &piece[end..]);
        now.extend_from_slice(&piece[..end]);
        // Only near the end can a character be left without room. It waits for more, or for the end.
        if full || self.shown + now.len() as u64 + 3 >= self.head.0 {
            self.held = now.split_off(whole_characters(&now));
        }
        self.shown += now.len() as u64;
        if let Some(last) = now.last() {
            self.ends_line = *last == b'\n';
        }
        out.append(&mut now);
        // A start of exactly this size may be all there is: only what comes after it fills it.
        if full {
            self.head_full = true;
            let held = std::mem::take(&mut self.held);
            self.keep(&held);
        } else if self.shown + self.held.len() as u64 == self.head.0 {
            self.head_full = self.held.is_empty();
        }
        left
    }

    /// Keeps what may turn out to be the end.
    fn keep(&mut self, piece: &[u8]) {
        let room = usize::try_from(self.max_bytes - self.shown).unwrap_or(usize::MAX);
        let room = if self.head == (self.max_bytes, self.max_lines) { 0 } else { room };
        let piece = if piece.len() > room {
            self.dropped = true;
            &piece[piece.len() - room..]
        } else {
            piece
        };
        let excess = (self.rest.len() + piece.len()).saturating_sub(room);
        self.dropped |= excess > 0;
        self.rest.drain(..excess);
        self.rest.extend(piece);
    }

    /// Ends the output: what is to be shown before the remark, if there is one, and what after it.
    pub(super) fn finish(mut self, before: &mut Vec<u8>, after: &mut Vec<u8>) -> Option<Truncation> {
        let rest = self.rest.make_contiguous();
        if self.name_binary && !self.binary && is_binary(rest, false) {
            self.binary = true;
        }
        if !self.binary && !self.dropped && self.lines() <= self.max_lines {
            // Held and kept bytes are not there at the same time, but in this order if they were.
            before.append(&mut self.held);
            before.extend_from_slice(self.rest.make_contiguous());
            return None;
        }
        if !self.binary {
            let lines = self.max_lines - self.shown_newlines;
            let rest = self.rest.make_contiguous();
            let kept = &rest[rest_of_character(rest)..];
            after.extend_from_slice(last_lines(kept, lines));
        }
        Some(Truncation {
            binary: self.binary,
            bytes: self.bytes,
            lines: self.lines(),
            at_line_start: self.ends_line,
        })
    }

    fn lines(&self) -> u64 {
        self.newlines + u64::from(!self.whole_lines)
    }
}

/// A NUL, or in the first piece much that is no text in UTF-8.
fn is_binary(piece: &[u8], is_first: bool) -> bool {
    if piece.contains(&0) {
        return true;
    }
    if !is_first || piece.len() < ENOUGH {
        return false;
    }
    let mut odd = 0;
    for chunk in piece.utf8_chunks() {
        odd += chunk.invalid().len();
        odd += chunk
            .valid()
            .bytes()
            .filter(|byte| *byte < 0x20 && !b"\t\n\r\x08\x0b\x0c\x1b".contains(byte))
            .count();
    }
    odd * 10 > piece.len() * 3
}

/// Where the `count`th line end is; the first one's number is 1.
fn nth_newline(bytes: &[u8], count: u64) -> Option<usize> {
    let before = usize::try_from(count.checked_sub(1)?).ok()?;
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).nth(before)
}

/// The last lines, a last one without an end included.
fn last_lines(bytes: &[u8], count: u64) -> &[u8] {
    let mut left = count;
    let ends = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    for (at, _) in ends.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
        left = left.saturating_sub(1);
        if left == 0 {
            return &bytes[at + 1..];
        }
    }
    if count == 0 { &[] } else { bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shape(keep: Keep, max_bytes: u64, max_lines: u64) -> Shape {
        Shape {
            truncate: ringfence_wire::runner::Truncate::Each,
            keep,
            max_bytes,
            max_lines,
            name_binary: true,
            spill_dir: "/".into(),
            spill_bytes: 0,
        }
    }

    /// What is shown, with `|` for the remark.
    fn cut(shape: &Shape, pieces: &[&[u8]]) -> (String, Option<Truncation>) {
        let mut truncator = Truncator::new(shape);
        let (mut out, mut after) = (Vec::new(), Vec::new());
        for piece in pieces {
            truncator.push(piece, &mut out);
        }
        let over = truncator.is_over();
        let cut = truncator.finish(&mut out, &mut after);
        assert_eq!(over, cut.is_some());
        if cut.is_some() {
            out.push(b'|');
        }
        out.extend(after);
        (String::from_utf8(out).unwrap(), cut)
    }

    fn shown(keep: Keep, bytes: u64, lines: u64, text: &str) -> String {
        let shape = shape(keep, bytes, lines);
        let whole = cut(&shape, &[text.as_bytes()]).0;
        let single: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
        assert_eq!(cut(&shape, &single).0, whole, "by single bytes");
        whole
    }

    #[test]
    fn what_fits_is_shown_whole() {
        for keep in [Keep::Head, Keep::Tail, Keep::Both] {
            assert_eq!(shown(keep, 4, 9, "abcd"), "abcd");
            assert_eq!(shown(keep, 99, 2, "a\nb\n"), "a\nb\n");
            assert_eq!(shown(keep, 99, 2, "a\nb"), "a\nb");
            assert_eq!(shown(keep, 5, 9, "aaäa"), "aaäa");
            assert_eq!(shown(keep, 4, 9, ""), "");
        }
    }

    #[test]
    fn the_start_is_cut_by_bytes_then_lines() {
        assert_eq!(shown(Keep::Head, 4, 9, "abcde"), "abcd|");
        assert_eq!(shown(Keep::Head, 4, 1, "a\nbcdef"), "a\n|");
        assert_eq!(shown(Keep::Head, 99, 2, "a\nb\nc"), "a\nb\n|");
        assert_eq!(shown(Keep::Head, 3, 9, "aaä"), "aa|");
        assert_eq!(shown(Keep::Head, 6, 9, "aa😀b"), "aa😀|");
        assert_eq!(shown(Keep::Head, 5, 9, "aa😀b"), "aa|");
    }

    #[test]
    fn the_end_and_both() {
        assert_eq!(shown(Keep::Tail, 4, 9, "abcde"), "|bcde");
        assert_eq!(shown(Keep::Tail, 99, 2, "a\nb\nc\n"), "|b\nc\n");
        assert_eq!(shown(Keep::Tail, 3, 9, "a😀bc"), "|bc");
        assert_eq!(shown(Keep::Both, 4, 9, "abcdefgh"), "ab|gh");
        assert_eq!(shown(Keep::Both, 99, 4, "1\n2\n3\n4\n5\n6\n"), "1\n2\n|5\n6\n");
        assert_eq!(shown(Keep::Both, 6, 9, "aaäbcdef"), "aa|cdef");
    }

    #[test]
    fn binary_output_is_named() {
        let head = shape(Keep::Head, 4000, 200);
        let (text, found) = cut(&head, &[b"\x7fELF\0\0\0"]);
        assert_eq!((text.as_str(), found.unwrap().binary, found.unwrap().bytes), ("|", true, 7));
        let (text, found) = cut(&head, &[b"text\n", b"a\0b"]);
        assert_eq!((text.as_str(), found.unwrap().binary), ("text\n|", true));
        let (_, found) = cut(&head, &[&[0x8b; 64]]);
        assert!(found.unwrap().binary);
        assert_eq!(cut(&head, &["grüße, кириллица, 日本\x1b[0m and so on".as_bytes()]).1, None);
        let mut printed = head.clone();
        printed.name_binary = false;
        assert_eq!(cut(&printed, &[b"a\0b"]).1, None);
    }

    fn keeps() -> impl Strategy<Value = Keep> {
        prop_oneof![Just(Keep::Head), Just(Keep::Tail), Just(Keep::Both)]
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            text in "[ab\nä😀]{0,60}", keep in keeps(), bytes in 1u64..40, lines in 1u64..8, size in 1usize..9,
        ) {
            let shape = shape(keep, bytes, lines);
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            let (shown, found) = cut(&shape, &pieces);
            prop_assert_eq!(&shown, &cut(&shape, &[text.as_bytes()]).0);
            let fits = text.len() as u64 <= bytes && text.lines().count() as u64 <= lines;
            prop_assert_eq!(found.is_none(), fits);
            if fits {
                prop_assert_eq!(&shown, &text);
            } else {
                let (start, end) = shown.split_once('|').unwrap();
                prop_assert!(text.starts_with(start) && text.ends_with(end));
                prop_assert!((start.len() + end.len()) as u64 <= bytes);
                prop_assert!(start.matches('\n').count() as u64 <= lines);
            }
        }

        #[test]
        fn any_bytes_that_fit_come_out_as_they_are(
            bytes in prop::collection::vec(any::<u8>(), 0..80), keep in keeps(), size in 1usize..9,
        ) {
            let mut shape = shape(keep, 80, 80);
            shape.name_binary = false;
            let (mut truncator, mut out, mut after) = (Truncator::new(&shape), Vec::new(), Vec::new());
            for piece in bytes.chunks(size) {
                truncator.push(piece, &mut out);
            }
            prop_assert!(truncator.finish(&mut out, &mut after).is_none());
            prop_assert_eq!((out, after), (bytes, Vec::new()));
        }
    }
}
