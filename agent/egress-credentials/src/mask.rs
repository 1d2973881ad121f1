//! Credentials in what servers send back: looked for as they are, in hexadecimal digits, and in base64 at each of its three
//! alignments, which is how basic auth has them; each character of these in any of its [spellings](crate::spelling). What is found
//! becomes asterisks, as many as it had bytes: lengths, and the frames of WebSockets, stay what they were. Pure.
//!
//! **What waits, and for how long, does not depend on the credential.** Whoever chooses a part of what a server sends would
//! otherwise guess it character by character: from what waits because it could be a beginning. So as many bytes wait as a whole one
//! may have, whatever they are, until a line ends or the message does. Nor does the work: each byte moves all possible beginnings on
//! at once, as bits of words (Baeza-Yates and Gonnet's algorithm). How many bytes that is goes by a class of lengths, not by the
//! length.
//!
//! **Base64 goes on behind the end of a line**, where it is cut into lines; nothing else that is looked for does. So a line whose end
//! could be such a cut waits, whatever is looked for.

use crate::spelling::{self, is_nothing, meaning};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_credentials::Secret;
use std::collections::BTreeSet;
use zeroize::Zeroizing;

/// What stands in the place of each byte.
const MASKED: u8 = b'*';
/// Rows of beginnings: at least one for each number of bytes that a character is spelled with, and this one's.
const ROWS: usize = (spelling::LONGEST + 1).next_power_of_two();

/// Most characters of all patterns: each takes two bytes of every answer that is under way, and 32 of the process.
const MOST_BITS: usize = 128 << 10;
/// Classes of lengths: what waits tells the class of the longest credential.
const CLASSES: [usize; 5] = [64, 256, 1024, 4096, 16 << 10];
/// So many characters of base64 at the end of a line could be cut there. Who cuts has lines of at least 60.
const CUT: usize = 16;

/// One text that is looked for.
#[derive(PartialEq, Eq)]
struct Pattern {
    /// Of each character the one or two bytes that it may be.
    text: Zeroizing<Vec<[u8; 2]>>,
    /// Ends of lines and spaces may stand between its characters.
    is_cut: bool,
}

/// What is looked for.
pub(crate) struct Mask {
    patterns: Vec<Pattern>,
    /// A bit for each character of each pattern.
    words: usize,
    /// For each byte, the characters that it may be.
    is: Zeroizing<Vec<u64>>,
    /// First characters, and last ones.
    firsts: Vec<u64>,
    ends: Vec<u64>,
    /// Characters behind which ends of lines may stand.
    cuts: Vec<u64>,
    /// The last ones, and whose.
    lasts: Vec<(usize, usize)>,
    /// Most bytes that any of them is found in: by the class of the credentials' lengths alone.
    longest: usize,
}

impl Mask {
    /// For credentials of at least [`ringfence_wire::credentials::SHORTEST`] bytes each. `None`: they are too long together.
    pub(crate) fn all(secrets: &[Secret]) -> Option<Self> {
        let longest = secrets.iter().map(|secret| secret.expose().len()).max().unwrap_or_default();
        let mut patterns: Vec<Pattern> = Vec::new();
        for secret in secrets {
            let secret = secret.expose().as_bytes();
            patterns.extend([as_it_is(secret), hex(secret)]);
            patterns.extend((0..3).map(|alignment| inside_base64(secret, alignment)));
        }
        patterns.sort_by(|a, b| a.text.as_slice().cmp(&b.text).then(a.is_cut.cmp(&b.is_cut)));
        patterns.dedup();
        let bits: usize = patterns.iter().map(|pattern| pattern.text.len()).sum();
        let class = CLASSES.into_iter().find(|class| longest <= *class).unwrap_or(longest);
        (bits <= MOST_BITS).then(|| Self::of(patterns, class * spelling::LONGEST))
    }

    fn of(patterns: Vec<Pattern>, longest: usize) -> Self {
        let words = patterns.iter().map(|pattern| pattern.text.len()).sum::<usize>().div_ceil(64);
        let mut is = Zeroizing::new(vec![0; 256 * words]);
        let [mut firsts, mut ends, mut cuts] = [(); 3].map(|()| vec![0; words]);
        let (mut lasts, mut at) = (Vec::with_capacity(patterns.len()), 0);
        for (number, pattern) in patterns.iter().enumerate() {
            set(&mut firsts, at);
            let last = (at + pattern.text.len()).saturating_sub(1);
            for may_be in pattern.text.iter() {
                for byte in may_be {
                    set(row_mut(&mut is, usize::from(*byte), words), at);
                }
                if pattern.is_cut && at < last {
                    set(&mut cuts, at);
                }
                at += 1;
            }
            set(&mut ends, last);
            lasts.push((last, number));
        }
        Self { patterns, words, is, firsts, ends, cuts, lasts, longest }
    }

    /// How many of the last bytes of a message that goes on wait, if it has so many yet.
    pub(crate) fn waits_of(&self, bytes: u64) -> u64 {
        bytes.min(self.longest.saturating_sub(1) as u64)
    }

    /// Bytes of memory that each answer takes.
    pub(crate) fn memory(&self) -> u64 {
        // The beginnings, and what waits as it came and as it goes.
        (ROWS * self.words * size_of::<u64>() + 2 * self.longest) as u64
    }

    /// Bytes without credentials. `None`: there are none.
    pub(crate) fn masked(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        Pieces::default().all_of(self, bytes)
    }

    /// Where the credential begins that ends with the last of these bytes: the earliest place.
    fn begins(&self, pattern: usize, bytes: &[u8]) -> usize {
        let mut places = vec![bytes.len()];
        let pattern = self.patterns.get(pattern);
        let is_cut = pattern.is_some_and(|pattern| pattern.is_cut);
        let text = pattern.into_iter().flat_map(|pattern| pattern.text.iter().rev());
        for (number, may_be) in text.enumerate() {
            if is_cut && number > 0 {
                places = before_cuts(bytes, places);
            }
            let mut before: Vec<usize> = Vec::with_capacity(places.len());
            for place in places {
                let until = bytes.get(..place).unwrap_or_default();
                let fits = spelled(until).filter(|(byte, _)| may_be.contains(byte));
                before.extend(fits.map(|(_, length)| place - length));
            }
            before.sort_unstable();
            before.dedup();
            places = before;
        }
        // One that is longer than what was kept begins before that.
        places.first().copied().unwrap_or_default()
    }
}

/// What the end of these bytes may spell: a byte, and with how many.
fn spelled(bytes: &[u8]) -> impl Iterator<Item = (u8, usize)> {
    let itself = bytes.last().map(|byte| (*byte, 1));
    let from = bytes.len().saturating_sub(spelling::LONGEST);
    let longer = (from..bytes.len().saturating_sub(1)).filter_map(move |at| {
        let text = bytes.get(at..)?;
        Some((meaning(text)?, text.len()))
    });
    itself.into_iter().chain(longer)
}

/// With how many bytes the end of these may be a cut.
fn cut(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let from = bytes.len().saturating_sub(spelling::LONGEST);
    let texts = (from..bytes.len()).filter_map(move |at| bytes.get(at..));
    texts.filter(|text| is_nothing(text)).map(<[u8]>::len)
}

/// These places, and those before cuts that end at one of them.
fn before_cuts(bytes: &[u8], places: Vec<usize>) -> Vec<usize> {
    let mut all: BTreeSet<usize> = places.iter().copied().collect();
    let mut next = places;
    while let Some(place) = next.pop() {
        for length in cut(bytes.get(..place).unwrap_or_default()) {
            if all.insert(place - length) {
                next.push(place - length);
            }
        }
    }
    all.into_iter().collect()
}

fn set(words: &mut [u64], bit: usize) {
    if let Some(word) = words.get_mut(bit / 64) {
        *word |= 1 << (bit % 64);
    }
}

fn row(rows: &[u64], number: usize, words: usize) -> &[u64] {
    rows.get(number * words..(number + 1) * words).unwrap_or_default()
}

fn row_mut(rows: &mut [u64], number: usize, words: usize) -> &mut [u64] {
    rows.get_mut(number * words..(number + 1) * words).unwrap_or_default()
}

/// Bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    /// What waits, as it came.
    came: Vec<u8>,
    /// The same, as it goes.
    goes: Vec<u8>,
    /// After each of the last bytes, which characters could be that far: row `at % ROWS` is of byte `at`.
    beginnings: Vec<u64>,
    at: usize,
    /// Bytes of this text so far: rows before its beginning are another's, or nobody's.
    seen: usize,
    /// Bytes since one that begins a spelling.
    plain: usize,
    line: Line,
    found: usize,
}

/// The line that a byte is in.
#[derive(Default)]
struct Line {
    /// The last byte.
    last: u8,
    /// Characters of base64 at the end of what there is of it.
    run: usize,
    /// Blanks are behind those.
    is_blank: bool,
    /// Whether its end is the end of all that could have begun in it.
    is_end: bool,
    /// Of what waits, so many bytes are in lines that ended so.
    until: usize,
}

impl Line {
    fn count(&mut self, began: bool) {
        self.run = if began || self.is_blank { 1 } else { self.run + 1 };
        self.is_blank = false;
    }

    /// A byte, the last of so many that wait.
    fn push(&mut self, byte: u8, until: usize) {
        let began = matches!(self.last, b'\n' | b'\r');
        match byte {
            b'\n' if self.last == b'\r' => {}
            // Nobody cuts base64 by an empty line: it ends events.
            b'\n' | b'\r' => self.is_end = self.run < CUT || began,
            // What a cut may have before its line end, and what wide characters are made of.
            b' ' | b'\t' | b'\\' if !began => self.is_blank = true,
            0 => return,
            // Characters as they are, and as they are spelled.
            b'+' | b'/' | b'-' | b'_' | b'=' | b'&' | b'#' | b';' | b'%' => self.count(began),
            _ if byte.is_ascii_alphanumeric() => self.count(began),
            _ => (self.run, self.is_blank) = (0, false),
        }
        self.last = byte;
        if self.is_end && matches!(byte, b'\n' | b'\r') {
            self.until = until;
        }
    }
}

impl Pieces {
    /// What may go out now: all but as many bytes as could be the beginning of a credential.
    pub(crate) fn push(&mut self, mask: &Mask, piece: &[u8]) -> Vec<u8> {
        self.search(mask, piece);
        self.all_but(self.came.len().min(mask.longest.saturating_sub(1)))
    }

    /// The same, and what is before the last end of a line, if base64 is not cut there.
    pub(crate) fn push_lines(&mut self, mask: &Mask, piece: &[u8]) -> Vec<u8> {
        self.search(mask, piece);
        let of_line = self.came.len().saturating_sub(self.line.until);
        self.all_but(of_line.min(mask.longest.saturating_sub(1)))
    }

    /// What waited: nothing is behind it.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        (self.seen, self.line) = (0, Line::default());
        self.all_but(0)
    }

    /// A whole text, without credentials. `None`: there are none.
    pub(crate) fn all_of(&mut self, mask: &Mask, text: &[u8]) -> Option<Vec<u8>> {
        let before = self.found;
        let mut out = self.push(mask, text);
        out.extend(self.finish());
        (self.found > before).then_some(out)
    }

    /// How many bytes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.came.len()
    }

    /// How many credentials were found so far.
    pub(crate) fn found(&self) -> usize {
        self.found
    }

    fn all_but(&mut self, waits: usize) -> Vec<u8> {
        let goes = self.came.len() - waits.min(self.came.len());
        self.line.until = self.line.until.saturating_sub(goes);
        self.came.drain(..goes);
        self.goes.drain(..goes).collect()
    }

    fn search(&mut self, mask: &Mask, piece: &[u8]) {
        self.beginnings.resize(ROWS * mask.words, 0);
        let from = self.came.len();
        self.came.extend_from_slice(piece);
        self.goes.extend_from_slice(piece);
        for (until, byte) in (from + 1..).zip(piece) {
            self.at = (self.at + 1) % ROWS;
            self.line.push(*byte, until);
            self.plain = if spelling::begins(*byte) { 0 } else { self.plain.saturating_add(1) };
            let mut is_end = self.move_on(mask, *byte, 1);
            if is_nothing(&[*byte]) {
                self.keep(mask, 1);
            }
            if self.plain < spelling::LONGEST {
                let came = std::mem::take(&mut self.came);
                let text = came.get(..until).unwrap_or_default();
                for (byte, length) in spelled(text).skip(1) {
                    is_end |= self.move_on(mask, byte, length);
                }
                for length in cut(text).filter(|length| *length > 1) {
                    self.keep(mask, length);
                }
                self.came = came;
            }
            self.seen = self.seen.saturating_add(1);
            if is_end {
                self.hide(mask, until);
            }
        }
    }

    /// The row of the last byte, and what of the one before so many bytes counts: all of it, or nothing of a text that begins here.
    fn rows(&mut self, mask: &Mask, length: usize) -> Option<(&mut [u64], &[u64], u64)> {
        let words = mask.words;
        let [now, before] =
            [self.at, (self.at + ROWS - length) % ROWS].map(|at| at * words..(at + 1) * words);
        let counts = if length <= self.seen { u64::MAX } else { 0 };
        let [now, before] = self.beginnings.get_disjoint_mut([now, before]).ok()?;
        Some((now, before, counts))
    }

    /// Moves on every beginning that stood so many bytes before, by a character that they spell. Whether any is whole now.
    fn move_on(&mut self, mask: &Mask, byte: u8, length: usize) -> bool {
        let Some((now, before, counts)) = self.rows(mask, length) else { return false };
        let is = row(&mask.is, usize::from(byte), mask.words);
        let (mut carried, mut ended) = (0, 0);
        let of_mask = is.iter().zip(&mask.firsts).zip(&mask.ends);
        for ((now, before), ((is, first), end)) in now.iter_mut().zip(before.iter()).zip(of_mask) {
            let before = before & counts;
            let moved = (before << 1 | carried | first) & is;
            carried = before >> 63;
            ended |= moved & end;
            // The byte itself is the first that is looked at.
            *now = if length == 1 { moved } else { *now | moved };
        }
        ended != 0
    }

    /// Leaves every beginning of base64 that stood so many bytes before where it is.
    fn keep(&mut self, mask: &Mask, length: usize) {
        let Some((now, before, counts)) = self.rows(mask, length) else { return };
        for ((now, before), cuts) in now.iter_mut().zip(before.iter()).zip(&mask.cuts) {
            *now |= before & counts & cuts;
        }
    }

    fn hide(&mut self, mask: &Mask, until: usize) {
        let reached = row(&self.beginnings, self.at, mask.words);
        let is_whole = |bit: usize| reached.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1);
        for (_, pattern) in mask.lasts.iter().filter(|(bit, _)| is_whole(*bit)) {
            self.found += 1;
            let from = mask.begins(*pattern, self.came.get(..until).unwrap_or_default());
            if let Some(found) = self.goes.get_mut(from..until) {
                found.fill(MASKED);
            }
        }
    }
}

fn pattern(bytes: impl ExactSizeIterator<Item = [u8; 2]>) -> Pattern {
    // Room for all of it at once: a vector that grows leaves copies behind.
    let mut text = Zeroizing::new(Vec::with_capacity(bytes.len()));
    text.extend(bytes);
    Pattern { text, is_cut: false }
}

fn as_it_is(secret: &[u8]) -> Pattern {
    // Forms have a plus for a space.
    pattern(secret.iter().map(|byte| [*byte, if *byte == b' ' { b'+' } else { *byte }]))
}

fn hex(secret: &[u8]) -> Pattern {
    let digit = |value: u8| {
        let lower = char::from_digit(value.into(), 16).map_or(0, |digit| digit as u8);
        [lower, lower.to_ascii_uppercase()]
    };
    let digits = (0..secret.len() * 2).map(|at| {
        let byte = secret.get(at / 2).copied().unwrap_or_default();
        digit(if at % 2 == 0 { byte >> 4 } else { byte & 15 })
    });
    pattern(digits)
}

/// What base64 makes of a secret `alignment` bytes into a group of three, without the characters that its neighbours have a part in.
fn inside_base64(secret: &[u8], alignment: usize) -> Pattern {
    let mut padded = Zeroizing::new(Vec::with_capacity(alignment + secret.len()));
    padded.resize(alignment, 0);
    padded.extend_from_slice(secret);
    let encoded = Zeroizing::new(STANDARD.encode(&*padded));
    let from = alignment + usize::from(alignment > 0);
    let whole = padded.len() * 8 / 6;
    let inside = encoded.as_bytes().get(from..whole).unwrap_or_default();
    // Both alphabets, mixed as they are.
    let both = inside.iter().map(|byte| match byte {
        b'+' => [b'+', b'-'],
        b'/' => [b'/', b'_'],
        other => [*other; 2],
    });
    Pattern { is_cut: true, ..pattern(both) }
}

#[cfg(test)]
mod tests;
