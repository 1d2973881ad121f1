//! What of a server's standard error is kept with its session: the beginning and the end, by whole lines, redacted. Pure.
//!
//! The beginning says why a server does not start, the end why it broke off; of one that never stops writing the
//! middle is dropped, and the bytes dropped are counted.

use ringfence_redact as redact;
use std::{borrow::Cow, collections::VecDeque};

/// Bytes that are kept from the beginning on; a piece counts [`EACH`] beside its text.
const FIRST: usize = 1 << 20;
/// Bytes that are kept of the end, where there is more than the beginning.
const LAST: usize = 64 << 10;
/// Bytes of a line that are kept.
const LINE: usize = 8 << 10;
/// Bytes that are looked through for secrets together, at most; the rest of a longer line is not even looked at.
const TOGETHER: usize = 64 << 10;
/// What a piece takes beside its text, bytes: its line in the journal, its row.
pub(crate) const EACH: usize = 128;
/// More than this is not counted: a sum of a few such numbers is still one for every reader of JSON.
const MOST_COUNTED: u64 = 1 << 50;

/// Some of a server's standard error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Lines. The last has no end where the rest of it was left out, or never came.
    pub text: String,
    /// Bytes that were left out between the piece before and this one.
    pub dropped: u64,
}

/// Counts bytes that are left out. The count is due to be reported when it has doubled: reports are few, and never far from
/// the truth.
#[derive(Debug, Default)]
pub struct DropCount {
    total: u64,
    reported: u64,
}

impl DropCount {
    /// So many bytes more.
    pub fn add(&mut self, bytes: u64) {
        self.total = self.total.saturating_add(bytes).min(MOST_COUNTED);
    }

    /// Whether there are twice as many as in the last report.
    pub fn is_due(&self) -> bool {
        self.total > self.reported && self.total / 2 >= self.reported
    }

    /// Those that were not reported yet; they are now.
    pub fn take(&mut self) -> u64 {
        let new = self.total - self.reported;
        self.reported = self.total;
        new
    }
}

/// Takes a server's standard error, and gives what is to be kept of it.
#[derive(Debug, Default)]
pub struct StderrTail {
    /// Secrets stay.
    raw: bool,
    /// What is not to be looked through yet: its last line goes on.
    pending: Vec<u8>,
    /// The line goes on whose beginning was taken.
    skipping: bool,
    /// Bytes of the beginning.
    kept: usize,
    /// The beginning is full.
    full: bool,
    last: VecDeque<String>,
    last_bytes: usize,
    dropped_count: DropCount,
}

impl StderrTail {
    /// One that has taken nothing; `raw` leaves secrets where they are.
    pub fn new(raw: bool) -> Self {
        Self { raw, ..Self::default() }
    }

    /// The next bytes.
    pub fn push(&mut self, mut bytes: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        if self.skipping {
            let end = memchr::memchr(b'\n', bytes);
            let rest = end.map_or(bytes.len(), |at| at + 1);
            self.dropped_count.add(rest as u64);
            self.skipping = end.is_none();
            bytes = &bytes[rest..];
        }
        self.pending.extend_from_slice(bytes);
        let lines = memchr::memrchr(b'\n', &self.pending).map_or(0, |at| at + 1);
        let full = self.pending.len() >= TOGETHER;
        // A key's halves are no secrets by their looks.
        let whole = open_key(&self.pending[..lines]).filter(|_| !full).unwrap_or(lines);
        let whole = if whole == 0 && full {
            self.skipping = true;
            self.pending.len()
        } else {
            whole
        };
        self.keep(whole, &mut pieces);
        if self.dropped_count.is_due() {
            pieces.push(Piece { text: String::new(), dropped: self.dropped_count.take() });
        }
        pieces
    }

    /// There is no more: what is kept of the end.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.keep(self.pending.len(), &mut pieces);
        let text: String = self.last.drain(..).collect();
        let dropped = self.dropped_count.take();
        if !text.is_empty() || dropped > 0 {
            pieces.push(Piece { text, dropped });
        }
        pieces
    }

    /// A piece could not be recorded: it is one of those that are left out.
    pub fn count_lost(&mut self, piece: &Piece) {
        self.dropped_count.add(piece.dropped.saturating_add(piece.text.len() as u64));
    }

    /// Looks through the first so many bytes of what is pending.
    fn keep(&mut self, count: usize, pieces: &mut Vec<Piece>) {
        let bytes: Vec<u8> = self.pending.drain(..count).collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = if self.raw { text } else { Cow::Owned(redact::redact(&text).into_owned()) };
        let mut piece = String::new();
        for line in text.split_inclusive('\n') {
            let (kept, cut) = line.split_at(line.floor_char_boundary(LINE));
            self.full |= self.kept + piece.len() + kept.len() + EACH > FIRST;
            if self.full {
                self.close(&mut piece, pieces);
                self.at_the_end(kept, !cut.is_empty());
            } else {
                piece.push_str(kept);
                if !cut.is_empty() {
                    self.close(&mut piece, pieces);
                }
            }
            self.dropped_count.add(cut.len() as u64);
        }
        self.close(&mut piece, pieces);
    }

    fn close(&mut self, piece: &mut String, pieces: &mut Vec<Piece>) {
        if !piece.is_empty() {
            self.kept += piece.len() + EACH;
            pieces.push(Piece { text: std::mem::take(piece), dropped: self.dropped_count.take() });
        }
    }

    fn at_the_end(&mut self, line: &str, is_cut: bool) {
        let line = line.to_owned() + if is_cut { "\n" } else { "" };
        self.last_bytes += line.len();
        self.last.push_back(line);
        while self.last_bytes > LAST
            && let Some(line) = self.last.pop_front()
        {
            self.last_bytes -= line.len();
            self.dropped_count.add(line.len() as u64);
        }
    }
}

/// Where the line begins with which a private key does that has no end yet.
fn open_key(lines: &[u8]) -> Option<usize> {
    let begun = memchr::memmem::rfind(lines, b"-----BEGIN ")?;
    let ended = memchr::memmem::find(&lines[begun..], b"-----END ").is_some();
    (!ended).then(|| memchr::memrchr(b'\n', &lines[..begun]).map_or(0, |at| at + 1))
}

#[cfg(test)]
mod tests {
    use super::{DropCount, EACH, FIRST, LAST, LINE, MOST_COUNTED, Piece, StderrTail, TOGETHER};

    /// All that is kept of some reads.
    fn kept(reads: &[&[u8]]) -> Vec<Piece> {
        let mut tail = StderrTail::new(false);
        let mut pieces: Vec<Piece> = reads.iter().flat_map(|read| tail.push(read)).collect();
        pieces.extend(tail.finish());
        pieces
    }

    fn text(pieces: &[Piece]) -> String {
        pieces.iter().map(|piece| piece.text.as_str()).collect()
    }

    fn dropped(pieces: &[Piece]) -> u64 {
        pieces.iter().map(|piece| piece.dropped).sum()
    }

    #[test]
    fn whole_lines_are_kept_as_they_come_and_the_last_without_its_end() {
        let pieces = kept(&[b"one\ntw", b"o\n\nthr", b"ee"]);
        let texts: Vec<&str> = pieces.iter().map(|piece| piece.text.as_str()).collect();
        assert_eq!(texts, ["one\n", "two\n\n", "three"]);
        assert_eq!(dropped(&pieces), 0);
        assert!(kept(&[]).is_empty());
    }

    #[test]
    fn a_secret_is_not_kept_by_its_halves() {
        let secret = "sk-0123456789abcdefghij";
        let (first, second) = secret.split_at(12);
        let pieces = kept(&[format!("key {first}").as_bytes(), format!("{second}\n").as_bytes()]);
        assert_eq!(text(&pieces), "key [redacted]\n");
        let key =
            format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", "c2VjcmV0".repeat(8));
        for at in 0..key.len() {
            let (first, second) = key.split_at(at);
            let pieces = kept(&[format!("before\n{first}").as_bytes(), second.as_bytes(), b"after\n"]);
            let text = text(&pieces);
            assert!(!text.contains("c2Vj"), "{at}: {text}");
            assert!(text.starts_with("before\n") && text.ends_with("after\n"), "{at}: {text}");
        }
        let mut raw = StderrTail::new(true);
        assert_eq!(text(&raw.push(format!("{secret}\n").as_bytes())), format!("{secret}\n"), "the control");
    }

    #[test]
    fn a_key_that_never_ends_holds_nothing_up_for_ever() {
        let mut tail = StderrTail::new(false);
        assert!(tail.push(b"-----BEGIN nothing\n").is_empty());
        let line = format!("{}\n", "x".repeat(99));
        let pieces: Vec<Piece> = (0..TOGETHER / 100 + 1).flat_map(|_| tail.push(line.as_bytes())).collect();
        assert!(text(&pieces).starts_with("-----BEGIN nothing\nxxx"));
    }

    #[test]
    fn of_a_long_line_the_beginning_is_kept_and_the_rest_counted() {
        let long = "ä".repeat(LINE);
        let pieces = kept(&[b"a\n", long.as_bytes(), b"\nb\n"]);
        assert_eq!(text(&pieces), format!("a\n{}b\n", "ä".repeat(LINE / 2)));
        assert_eq!(dropped(&pieces), (LINE + 1) as u64);
        let after = pieces.iter().position(|piece| piece.text.starts_with('b')).expect("what follows");
        assert_eq!(dropped(&pieces[..after + 1]), (LINE + 1) as u64, "it is reported where it is missing");

        let endless = vec![b'x'; 5 * TOGETHER];
        let mut reads: Vec<&[u8]> = endless.chunks(8 << 10).collect();
        reads.push(b"\nnext\n");
        let pieces = kept(&reads);
        assert_eq!(text(&pieces), format!("{}next\n", "x".repeat(LINE)));
        assert_eq!(dropped(&pieces), (endless.len() + 1 - LINE) as u64);
    }

    #[test]
    fn beginning_and_end_are_kept_and_the_middle_counted() {
        let lines: Vec<String> = (0..100_000).map(|n| format!("line {n:06} {}\n", "y".repeat(40))).collect();
        let said = lines.concat();
        let reads: Vec<&[u8]> = said.as_bytes().chunks(8 << 10).collect();
        let pieces = kept(&reads);
        let text = text(&pieces);
        assert!(text.len() <= FIRST + LAST && text.len() > FIRST / 2 + LAST / 2, "{}", text.len());
        assert_eq!(text.len() as u64 + dropped(&pieces), said.len() as u64, "nothing is missing uncounted");
        assert!(text.starts_with("line 000000 ") && text.ends_with(&lines[lines.len() - 1]));
        let reported = pieces.iter().filter(|piece| piece.dropped > 0).count();
        assert!(
            (2..30).contains(&reported),
            "it is reported while it goes on, and not each time: {reported}"
        );
    }

    #[test]
    fn short_lines_take_no_more_room_than_long_ones() {
        let reads = vec![b"\n".as_slice(); FIRST];
        let pieces = kept(&reads);
        assert!(pieces.len() * EACH <= FIRST + 100 * EACH, "{} pieces", pieces.len());
        assert_eq!(text(&pieces).len() as u64 + dropped(&pieces), FIRST as u64);
    }

    #[test]
    fn what_cannot_be_recorded_is_counted() {
        let mut tail = StderrTail::new(false);
        let piece = tail.push(b"lost\n").remove(0);
        tail.count_lost(&piece);
        assert_eq!(tail.push(b"kept\n"), [Piece { text: "kept\n".into(), dropped: 5 }]);
    }

    #[test]
    fn counts_stay_numbers() {
        let mut count = DropCount::default();
        assert!(!count.is_due());
        count.add(u64::MAX);
        count.add(u64::MAX);
        assert!(count.is_due());
        assert_eq!(count.take(), MOST_COUNTED);
        assert!(!count.is_due() && count.take() == 0);
    }
}
