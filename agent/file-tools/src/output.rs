//! A tool's output, cut to a number of characters: its first part, a mark that says how much is missing, its last part.
//!
//! Bytes may come in any pieces and be anything. What is not UTF-8 becomes U+FFFD, as does NUL, which some providers
//! refuse. Memory is bounded by the number of characters that are kept, not by how much a tool writes.

use std::io;

/// Characters kept of an output by default.
pub const DEFAULT_CHARS: usize = 30_000;

/// Bytes beyond what must be kept at which the tail is cut back.
const SLACK: usize = 64 << 10;

/// Collects an output, keeping no more of it than can be shown.
#[derive(Debug, Clone)]
pub struct Excerpt {
    max: usize,
    /// The first characters, up to `max`.
    head: String,
    head_chars: usize,
    /// What came after, of which at least the last `max` characters are kept.
    tail: String,
    total: u64,
    /// The start of a character whose rest has not come.
    carry: [u8; 4],
    carried: usize,
}

impl Excerpt {
    /// An empty output, of which at most `max` characters will be shown.
    pub fn new(max: usize) -> Self {
        Self {
            max,
            head: String::new(),
            head_chars: 0,
            tail: String::new(),
            total: 0,
            carry: [0; 4],
            carried: 0,
        }
    }

    /// Adds what came next.
    pub fn push(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        while self.carried > 0 {
            let Some((&next, rest)) = bytes.split_first() else { return };
            self.carry[self.carried] = next;
            let carry = self.carry;
            let sequence = &carry[..=self.carried];
            match std::str::from_utf8(sequence) {
                Ok(character) => {
                    self.carried = 0;
                    bytes = rest;
                    self.text(character);
                }
                Err(error) if error.error_len().is_none() => {
                    self.carried += 1;
                    bytes = rest;
                }
                // What was carried is no character, and `next` begins something else.
                Err(_) => {
                    self.carried = 0;
                    self.text("\u{fffd}");
                }
            }
        }
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.text(chunk.valid());
            let invalid = chunk.invalid();
            if invalid.is_empty() {
                continue;
            }
            let is_unfinished = chunks.peek().is_none()
                && std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none());
            if is_unfinished {
                self.carry[..invalid.len()].copy_from_slice(invalid);
                self.carried = invalid.len();
            } else {
                self.text("\u{fffd}");
            }
        }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.total == 0 && self.carried == 0
    }

    /// Whether what was added ends in a line break.
    pub fn ends_a_line(&self) -> bool {
        let last = if self.tail.is_empty() { &self.head } else { &self.tail };
        self.carried == 0 && last.ends_with('\n')
    }

    /// Bytes that are held in memory.
    pub fn held(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    /// The output and, always whole, `suffix`: together at most `max` characters. Of an output that is longer, 2/5 of the
    /// room is for its start and 3/5 for its end, around `[...truncated N characters...]`. Where `max` has not even room
    /// for that mark (about 40 characters), it is all that is shown.
    pub fn finish(mut self, suffix: &str) -> String {
        if self.carried > 0 {
            self.carried = 0;
            self.text("\u{fffd}");
        }
        let room = self.max.saturating_sub(suffix.chars().count());
        if self.total <= room as u64 {
            self.head.push_str(suffix);
            return self.head;
        }
        let mark = |missing: u64| format!("\n[...truncated {missing} characters...]\n");
        // The number that is written has no more digits than the whole's.
        let available = room.saturating_sub(mark(self.total).len());
        let head = available * 2 / 5;
        let tail = available - head;
        let mark = mark(self.total - available as u64);
        let mark = if available == 0 { mark.trim() } else { &mark };
        // Characters after the head's: the tail may have to begin within the head.
        let after = self.total - self.head_chars as u64;
        let from_head = (tail as u64).saturating_sub(after) as usize;
        let from_tail = tail - from_head;
        let mut text = String::with_capacity(self.max.min(self.head.len() + self.tail.len() + mark.len()));
        text.push_str(first(&self.head, head));
        text.push_str(mark);
        text.push_str(last(&self.head, from_head));
        text.push_str(last(&self.tail, from_tail));
        text.push_str(suffix);
        text
    }

    fn text(&mut self, text: &str) {
        if text.contains('\0') {
            self.keep(&text.replace('\0', "\u{fffd}"));
        } else {
            self.keep(text);
        }
    }

    fn keep(&mut self, text: &str) {
        let chars = text.chars().count();
        self.total += chars as u64;
        let room = self.max - self.head_chars;
        let (to_head, to_tail) =
            if chars <= room { (text, "") } else { text.split_at(first(text, room).len()) };
        self.head.push_str(to_head);
        self.head_chars += chars.min(room);
        if to_tail.is_empty() {
            return;
        }
        // Of one large piece only the end can matter.
        self.tail.push_str(if to_tail.len() > SLACK { last(to_tail, self.max) } else { to_tail });
        if self.tail.len() > 4 * self.max + SLACK {
            let cut = self.tail.len() - last(&self.tail, self.max).len();
            self.tail.drain(..cut);
        }
    }
}

impl io::Write for Excerpt {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How many of the bytes are left without a character at the end that is not whole.
pub fn whole_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let length = match bytes[at] {
            0x80..=0xbf => continue,
            0xc2..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0..=0xf4 => 4,
            _ => 1,
        };
        return if length > back { at } else { bytes.len() };
    }
    bytes.len()
}

/// How many of the bytes at the start are the rest of a character.
pub fn rest_of_character(bytes: &[u8]) -> usize {
    bytes.iter().take(3).take_while(|byte| (0x80..=0xbf).contains(*byte)).count()
}

/// The first `count` characters.
fn first(text: &str, count: usize) -> &str {
    text.char_indices().nth(count).map_or(text, |(end, _)| &text[..end])
}

/// The last `count` characters.
fn last(text: &str, count: usize) -> &str {
    match count.checked_sub(1) {
        None => "",
        Some(before) => text.char_indices().nth_back(before).map_or(text, |(start, _)| &text[start..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn excerpt(text: &str, max: usize) -> String {
        let mut excerpt = Excerpt::new(max);
        excerpt.push(text.as_bytes());
        excerpt.finish("")
    }

    #[test]
    fn what_fits_is_not_touched() {
        assert_eq!(excerpt("hello", 5), "hello");
        assert_eq!(excerpt("", 5), "");
        assert_eq!(excerpt("日本語", 3), "日本語");
    }

    #[test]
    fn two_fifths_are_the_start_and_three_fifths_the_end() {
        let text = format!("{}{}", "a".repeat(500), "z".repeat(500));
        let shown = excerpt(&text, 135);
        assert_eq!(shown.chars().count(), 134);
        // The mark has 34 characters, reckoned with a digit more: 100 are left.
        assert_eq!(
            shown,
            format!("{}\n[...truncated 900 characters...]\n{}", "a".repeat(40), "z".repeat(60)),
        );
    }

    #[test]
    fn the_suffix_is_whole_and_counts() {
        let mut excerpt = Excerpt::new(100);
        excerpt.push("é".repeat(1000).as_bytes());
        let shown = excerpt.finish("[exit status 3]");
        assert!(shown.ends_with("é[exit status 3]"));
        assert!(shown.chars().count() <= 100);
    }

    #[test]
    fn where_there_is_no_room_the_mark_is_all() {
        assert_eq!(excerpt(&"x".repeat(50), 10), "[...truncated 50 characters...]");
    }

    #[test]
    fn an_endless_output_takes_no_more_memory_than_what_is_kept() {
        let mut excerpt = Excerpt::new(30_000);
        let piece = "0123456789abcdé\n".repeat(1 << 12);
        for _ in 0..(64 << 20) / piece.len() {
            excerpt.push(piece.as_bytes());
            assert!(excerpt.held() < 1 << 20);
        }
        let shown = excerpt.finish("");
        assert!(shown.chars().count() <= 30_000 && shown.contains("[...truncated 6"));
    }

    /// What is shown, by its definition, from the whole text.
    fn definition(text: &str, max: usize) -> String {
        let chars: Vec<char> = text.chars().collect();
        if chars.len() <= max {
            return text.to_owned();
        }
        let mark = format!("\n[...truncated {} characters...]\n", chars.len());
        let Some(available) = max.checked_sub(mark.len()).filter(|room| *room > 0) else {
            return format!("[...truncated {} characters...]", chars.len());
        };
        let head = available * 2 / 5;
        let start: String = chars[..head].iter().collect();
        let end: String = chars[chars.len() - (available - head)..].iter().collect();
        format!("{start}\n[...truncated {} characters...]\n{end}", chars.len() - available)
    }

    proptest! {
        #[test]
        fn any_text_in_any_pieces_is_cut_by_the_definition(
            text in "(\\PC|[\u{0}-\u{7f}é日🦀\n]){0,400}",
            max in 0_usize..300,
            cuts in prop::collection::vec(0_usize..2000, 0..12),
        ) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut excerpt = Excerpt::new(max);
            for piece in cuts.windows(2) {
                excerpt.push(&text.as_bytes()[piece[0]..piece[1]]);
            }
            let shown = excerpt.finish("");
            prop_assert_eq!(&shown, &definition(&text.replace('\0', "\u{fffd}"), max));
            prop_assert!(shown.chars().count() <= max.max(40));
        }

        #[test]
        fn any_bytes_in_any_pieces_read_as_they_would_whole(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x80_u8..=0xff], 0..200),
            step in 1_usize..7,
        ) {
            let mut excerpt = Excerpt::new(10_000);
            for piece in bytes.chunks(step) {
                excerpt.push(piece);
            }
            let whole = String::from_utf8_lossy(&bytes).replace('\0', "\u{fffd}");
            prop_assert_eq!(excerpt.finish(""), whole);
        }

        #[test]
        fn long_texts_are_cut_by_the_definition_too(piece in "[a-zé日🦀]{1,40}", times in 1_usize..4000, max in 0_usize..2000) {
            let text = piece.repeat(times);
            let mut excerpt = Excerpt::new(max);
            for piece in text.as_bytes().chunks(4093) {
                excerpt.push(piece);
            }
            prop_assert_eq!(excerpt.finish(""), definition(&text, max));
        }
    }
}
