//! Credentials in what servers send back: looked for as they are, as hexadecimal digits, and in base64 at each of its three
//! alignments, which is how basic auth has them; each byte of these in any of its [spellings](spelling). What is found becomes
//! asterisks, as many as it had bytes: lengths, and the frames of WebSockets, stay what they were. Pure.
//!
//! Who reads an answer may have chosen its end, and sees when which bytes come. So how much waits for what is behind it follows from
//! lengths alone, and from line ends, which no credential has; never from whether it could be a credential's beginning.

mod spelling;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ringfence_credentials::Secret;
use spelling::{BEGINNINGS, WIDEST, spelled};
use zeroize::Zeroizing;

/// What stands in the place of each byte.
const MASKED: u8 = b'*';
/// No credential, in whatever spelling, goes beyond it.
const LINE_END: u8 = b'\n';

/// Bytes in the place of each of which another may stand, too: digits in capitals, base64's other alphabet.
struct Pattern {
    bytes: Zeroizing<Vec<(u8, u8)>>,
    /// Most bytes that it is found as.
    widest: usize,
}

/// What is looked for.
pub(crate) struct Mask {
    patterns: Vec<Pattern>,
    /// What any of them can begin with.
    beginnings: [bool; 256],
    /// Most bytes that one of them is found as.
    widest: usize,
}

impl Mask {
    /// For all credentials of a container, each of at least [`ringfence_wire::credentials::SHORTEST`] bytes.
    pub(crate) fn new<'s>(secrets: impl IntoIterator<Item = &'s Secret>) -> Self {
        let mut patterns = Vec::new();
        for secret in secrets {
            let secret = secret.expose().as_bytes();
            patterns.push(Pattern::new(secret.len(), secret.iter().map(|byte| (*byte, *byte))));
            let digits = secret.iter().flat_map(|byte| [byte >> 4, byte & 15]);
            let digits =
                digits.map(|digit| char::from_digit(digit.into(), 16).map_or(0, |digit| digit as u8));
            patterns.push(Pattern::new(
                secret.len() * 2,
                digits.map(|digit| (digit, digit.to_ascii_uppercase())),
            ));
            for alignment in 0..3 {
                let encoded = inside_base64(secret, alignment);
                patterns
                    .push(Pattern::new(encoded.len(), encoded.iter().map(|byte| (*byte, url_safe(*byte)))));
            }
        }
        let mut beginnings = [false; 256];
        let firsts = patterns
            .iter()
            .filter_map(|pattern| pattern.bytes.first())
            .flat_map(|(one, other)| [*one, *other]);
        for byte in firsts.chain(BEGINNINGS) {
            if let Some(is_one) = beginnings.get_mut(usize::from(byte)) {
                *is_one = true;
            }
        }
        let widest = patterns.iter().map(|pattern| pattern.widest).max().unwrap_or_default();
        Self { patterns, beginnings, widest }
    }

    /// Bytes without credentials. `None`: there are none.
    pub(crate) fn masked(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut covered = vec![false; bytes.len()];
        self.cover(bytes, &mut covered);
        covered.contains(&true).then(|| without(bytes, &covered))
    }

    /// Marks the bytes of credentials: of all of them, where they overlap.
    fn cover(&self, bytes: &[u8], covered: &mut [bool]) {
        let begins = |byte: &u8| self.beginnings.get(usize::from(*byte)).copied().unwrap_or_default();
        for (from, _) in bytes.iter().enumerate().filter(|(_, byte)| begins(byte)) {
            let text = bytes.get(from..).unwrap_or_default();
            for length in self.patterns.iter().filter_map(|pattern| pattern.found_in(text)) {
                if let Some(found) = covered.get_mut(from..from + length) {
                    found.fill(true);
                }
            }
        }
    }
}

impl Pattern {
    /// Of so many bytes: a vector that grows leaves copies behind.
    fn new(length: usize, bytes: impl Iterator<Item = (u8, u8)>) -> Self {
        let mut all = Zeroizing::new(Vec::with_capacity(length));
        all.extend(bytes);
        Self { widest: all.len() * WIDEST, bytes: all }
    }

    /// The most bytes at the beginning of a text that are it.
    fn found_in(&self, text: &[u8]) -> Option<usize> {
        // Where the bytes so far can end: a byte of an escape may be one of the credential's own.
        let (mut ends, mut next) = (Vec::new(), Vec::new());
        for (at, (one, other)) in self.bytes.iter().enumerate() {
            // Nothing is allocated for a text that does not even begin so.
            let before: &[usize] = if at == 0 { &[0] } else { &ends };
            for end in before {
                let rest = text.get(*end..).unwrap_or_default();
                spelled(*one, rest, |length| next.push(end + length));
                if other != one {
                    spelled(*other, rest, |length| next.push(end + length));
                }
            }
            if next.is_empty() {
                return None;
            }
            next.sort_unstable();
            next.dedup();
            ends.clear();
            std::mem::swap(&mut ends, &mut next);
        }
        ends.last().copied()
    }
}

/// Bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    held: Vec<u8>,
    /// Which of them are a credential's.
    covered: Vec<bool>,
}

impl Pieces {
    /// What may go out now: up to the last line's end, and what is too far back for a credential that is not whole yet.
    pub(crate) fn push(&mut self, mask: &Mask, piece: &[u8]) -> Vec<u8> {
        self.held.extend_from_slice(piece);
        let line = self.held.iter().rposition(|byte| *byte == LINE_END).map_or(0, |at| at + 1);
        let waits = mask.widest.saturating_sub(1);
        // It is searched when so much more has come as waits anyway: a server may send a byte at a time.
        let far = self.held.len() - waits.min(self.held.len());
        let count = line.max(if far >= waits { far } else { 0 });
        self.take(mask, count)
    }

    /// What waited: nothing is behind it.
    pub(crate) fn finish(&mut self, mask: &Mask) -> Vec<u8> {
        self.take(mask, self.held.len())
    }

    /// How many bytes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.held.len()
    }

    fn take(&mut self, mask: &Mask, count: usize) -> Vec<u8> {
        if count == 0 {
            return Vec::new();
        }
        self.covered.resize(self.held.len(), false);
        mask.cover(&self.held, &mut self.covered);
        let out = without(self.held.get(..count).unwrap_or_default(), &self.covered);
        self.held.drain(..count);
        self.covered.drain(..count);
        out
    }
}

fn without(bytes: &[u8], covered: &[bool]) -> Vec<u8> {
    bytes.iter().zip(covered).map(|(byte, covered)| if *covered { MASKED } else { *byte }).collect()
}

/// What base64 makes of a secret `alignment` bytes into a group of three, without the characters that its neighbours have a part in.
fn inside_base64(secret: &[u8], alignment: usize) -> Zeroizing<Vec<u8>> {
    let mut padded = Zeroizing::new(vec![0; alignment]);
    padded.extend_from_slice(secret);
    let encoded = Zeroizing::new(STANDARD.encode(&*padded));
    let from = alignment + usize::from(alignment > 0);
    let whole = padded.len() * 8 / 6;
    Zeroizing::new(encoded.as_bytes().get(from..whole).unwrap_or_default().to_vec())
}

/// The same in base64's other alphabet.
fn url_safe(byte: u8) -> u8 {
    match byte {
        b'+' => b'-',
        b'/' => b'_',
        same => same,
    }
}

#[cfg(test)]
mod tests;
