//! Reads the corpus (`corpus/README.md`), makes its values, and counts what the redactor does with them.

#![allow(clippy::expect_used, reason = "tests")]

use ringfence_redact::redact;
use std::collections::BTreeMap;

/// Secrets, as the rules were written for.
pub(crate) const SECRETS: &str = include_str!("../../corpus/secrets.txt");
/// Secrets that were written when the rules were done.
pub(crate) const LATER: &str = include_str!("../../corpus/later.txt");
/// What is none.
pub(crate) const LOOKALIKES: &str = include_str!("../../corpus/lookalikes.txt");

/// A text of the corpus, with what was made for it.
#[derive(Debug)]
pub(crate) struct Text {
    /// Which kind it is of.
    pub(crate) kind: String,
    /// As it is found.
    pub(crate) text: String,
    /// Its secrets.
    pub(crate) secrets: Vec<String>,
}

/// The texts of a file, their values made from a seed.
///
/// # Panics
/// The file is written wrongly.
pub(crate) fn texts(file: &str, seed: u64) -> Vec<Text> {
    let mut made = Made(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let mut texts = Vec::new();
    for part in format!("\n{file}").split("\n## ").skip(1) {
        let (kind, part) = part.split_once('\n').expect("a kind");
        for template in part.trim_end().split("\n---\n") {
            let mut secrets = Vec::new();
            let mut text = String::new();
            for (index, piece) in template.split(['«', '»']).enumerate() {
                let piece = made.fill(piece);
                if index % 2 == 1 {
                    secrets.push(piece.clone());
                }
                text.push_str(&piece);
            }
            texts.push(Text { kind: kind.to_owned(), text, secrets });
        }
    }
    texts
}

/// Makes characters from a seed (xorshift).
struct Made(u64);

impl Made {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).expect("31 bits") % below
    }

    fn of(&mut self, characters: &str, count: usize) -> String {
        let characters: Vec<char> = characters.chars().collect();
        (0..count).map(|_| characters[self.next(characters.len())]).collect()
    }

    /// A template with what its braces ask for.
    fn fill(&mut self, template: &str) -> String {
        const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
        const UPPER: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        const DIGITS: &str = "0123456789";
        let mut out = String::new();
        let mut rest = template;
        while let Some(at) = rest.find('{') {
            out.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let mut depth = 1;
            let end = rest.find(|c| {
                depth += i32::from(c == '{') - i32::from(c == '}');
                depth == 0
            });
            let asked = end.map_or("", |end| &rest[..end]);
            let (kind, count) = asked.split_at(asked.len().min(1));
            let value = match (kind, count.parse()) {
                ("=", _) => Some(base64(&self.fill(count))),
                ("U", _) if count.is_empty() => {
                    Some([8, 4, 4, 4, 12].map(|count| self.of("0123456789abcdef", count)).join("-"))
                }
                ("a", Ok(count)) => Some(self.of(&[LOWER, UPPER, DIGITS].concat(), count)),
                ("h", Ok(count)) => Some(self.of("0123456789abcdef", count)),
                ("b", Ok(count)) => Some(self.of(&[LOWER, UPPER, DIGITS, "+/"].concat(), count)),
                ("w", Ok(count)) => Some(self.of(&[LOWER, UPPER, DIGITS, "-_"].concat(), count)),
                ("u", Ok(count)) => Some(self.of(&[UPPER, "234567"].concat(), count)),
                ("l", Ok(count)) => Some(self.of(LOWER, count)),
                ("d", Ok(count)) => Some(self.of(DIGITS, count)),
                ("p", Ok(count)) => {
                    let count: usize = count;
                    Some(
                        self.of(LOWER, 1)
                            + &self.of(&[LOWER, UPPER, DIGITS, "!@#%^*_+~-"].concat(), count - 1),
                    )
                }
                _ => None,
            };
            match value {
                Some(value) => {
                    out.push_str(&value);
                    rest = end.map_or("", |end| &rest[end + 1..]);
                }
                // A brace of the text.
                None => out.push('{'),
            }
        }
        out + rest
    }
}

fn base64(text: &str) -> String {
    const CHARACTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in text.as_bytes().chunks(3) {
        let bits = three
            .iter()
            .enumerate()
            .fold(0_usize, |bits, (at, byte)| bits | usize::from(*byte) << (16 - 8 * at));
        for at in 0..4 {
            let is_there = at <= three.len();
            out.push(if is_there { char::from(CHARACTERS[bits >> (18 - 6 * at) & 63]) } else { '=' });
        }
    }
    out
}

/// How many of a kind there are, and how many were taken for the other.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Count {
    /// All.
    pub(crate) all: usize,
    /// Secrets that stayed, or look-alikes that went.
    pub(crate) wrong: usize,
}

/// By kind, and the texts that are wrong as they were and as they are.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Each kind's.
    pub(crate) kinds: BTreeMap<String, Count>,
    /// What went wrong.
    pub(crate) wrong: Vec<(String, String, String)>,
}

impl Counts {
    /// Of all kinds.
    pub(crate) fn total(&self) -> Count {
        self.kinds.values().fold(Count::default(), |sum, count| Count {
            all: sum.all + count.all,
            wrong: sum.wrong + count.wrong,
        })
    }

    /// The share that is wrong.
    pub(crate) fn share(&self) -> f64 {
        let Count { all, wrong } = self.total();
        wrong as f64 / all.max(1) as f64
    }

    fn add(&mut self, text: &Text, all: usize, wrong: usize, redacted: &str) {
        let count = self.kinds.entry(text.kind.clone()).or_default();
        count.all += all;
        count.wrong += wrong;
        if wrong > 0 {
            self.wrong.push((text.kind.clone(), text.text.clone(), redacted.to_owned()));
        }
    }
}

/// Counts secrets of a file that stay. One goes if no longer piece of it is left than a third.
pub(crate) fn missed(file: &str, seed: u64) -> Counts {
    let mut counts = Counts::default();
    for text in texts(file, seed) {
        let redacted = redact(&text.text);
        let stays = text.secrets.iter().filter(|secret| is_left(secret, &redacted)).count();
        counts.add(&text, text.secrets.len(), stays, &redacted);
    }
    counts
}

fn is_left(secret: &str, redacted: &str) -> bool {
    // The mark has letters, too.
    let redacted = redacted.replace("[redacted]", " ");
    let characters: Vec<char> = secret.chars().collect();
    let piece = (characters.len() / 3 + 1).max(3).min(characters.len());
    characters.windows(piece).any(|piece| redacted.contains(&piece.iter().collect::<String>()))
}

/// Counts look-alikes of a file in which something was taken for a secret.
pub(crate) fn mistaken(file: &str, seed: u64) -> Counts {
    let mut counts = Counts::default();
    for text in texts(file, seed) {
        let redacted = redact(&text.text);
        counts.add(&text, 1, usize::from(redacted != text.text), &redacted);
    }
    counts
}
