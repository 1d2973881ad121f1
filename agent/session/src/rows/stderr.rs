//! A server's standard error, from its session's journal to rows. Pure.
//!
//! The interceptor keeps no more than it may, but a journal is its owner's file: it is bounded here again.

use super::ingest::Row;
use crate::stderr::{DropCount, EACH};

/// Longest text of a row, bytes.
const LONGEST: usize = 128 << 10;
/// Bytes of all rows of a session; a row counts [`EACH`] beside its text.
const MOST: usize = 2 << 20;

/// The rows of one session so far.
#[derive(Debug, Default)]
pub struct Stderr {
    number: u32,
    bytes: usize,
    dropped_count: DropCount,
}

impl Stderr {
    /// The row of an entry, if it makes one.
    pub fn piece(&mut self, at: i64, mut text: String, dropped: u64) -> Option<Row> {
        self.dropped_count.add(dropped);
        let room = MOST.saturating_sub(self.bytes + EACH).min(LONGEST);
        let cut = text.len().saturating_sub(text.floor_char_boundary(room));
        text.truncate(text.len() - cut);
        let row = if text.is_empty() {
            self.dropped_count.add(cut as u64);
            self.dropped_count.is_due().then(|| self.row(at, text))
        } else {
            let row = self.row(at, text);
            self.dropped_count.add(cut as u64);
            Some(row)
        };
        if let Some(Row::Stderr { text, .. }) = &row {
            self.bytes += text.len() + EACH;
        }
        row
    }

    /// What was left out and not reported yet, at the session's end.
    pub fn end(&mut self, at: i64) -> Option<Row> {
        match self.row(at, String::new()) {
            Row::Stderr { dropped: 0, .. } => None,
            row => Some(row),
        }
    }

    fn row(&mut self, at: i64, text: String) -> Row {
        self.number += 1;
        Row::Stderr { number: self.number, at, text, dropped: self.dropped_count.take() }
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, MOST, Row, Stderr};

    fn of(row: Option<Row>) -> Option<(u32, usize, u64)> {
        row.map(|row| match row {
            Row::Stderr { number, text, dropped, .. } => (number, text.len(), dropped),
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn entries_are_rows_and_what_was_left_out_stands_before_the_next() {
        let mut stderr = Stderr::default();
        assert_eq!(of(stderr.piece(1, "one\n".into(), 0)), Some((1, 4, 0)));
        assert_eq!(of(stderr.piece(2, String::new(), 700)), Some((2, 0, 700)));
        assert_eq!(of(stderr.piece(3, "end\n".into(), 50)), Some((3, 4, 50)));
        assert_eq!(of(stderr.piece(4, String::new(), 0)), None);
        assert_eq!(of(stderr.end(5)), None);
    }

    #[test]
    fn a_journal_of_somebody_else_makes_no_more_rows_than_ours() {
        let mut stderr = Stderr::default();
        assert_eq!(of(stderr.piece(1, "ä".repeat(LONGEST), 3)), Some((1, LONGEST, 3)));
        let (mut rows, mut bytes, mut dropped) = (1, LONGEST, 3);
        let mut count = |row: Option<Row>| {
            if let Some((_, more, gone)) = of(row) {
                (rows, bytes, dropped) = (rows + 1, bytes + more, dropped + gone);
            }
        };
        for _ in 0..200_000 {
            count(stderr.piece(1, "x".repeat(100), 0));
        }
        count(stderr.end(1));
        assert!(bytes <= MOST && bytes > MOST / 4 && rows < MOST / 128 + 40, "{rows} rows, {bytes} bytes");
        assert_eq!(bytes as u64 + dropped, 2 * LONGEST as u64 + 3 + 200_000 * 100);
    }
}
