//! The one search that every text costs: for what is in every secret or before it, whatever the case of its letters.
//!
//! Four bytes at a time are looked up in a table of bits that fits a processor's first cache. Few texts have four bytes of
//! a keyword without the keyword, so that the rest is seldom done.

use crate::{forms, names, rules, shapes};
use std::sync::LazyLock;

/// What a keyword in a text may be the beginning or a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// The name of a secret.
    Name,
    /// A token of this shape, of [`shapes::SHAPES`].
    Shape(usize),
    /// What this rule matches, of [`rules::RULES`].
    Rule(usize),
    /// What is known by its form.
    Form(forms::Form),
    /// A reason to look into JSON: behind an escape may be any of the others.
    Escape,
}

/// A keyword at a place.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    /// Byte at which the keyword begins.
    pub(crate) at: usize,
    /// Bytes of the keyword.
    pub(crate) len: usize,
    pub(crate) what: What,
}

/// Escapes that stand for ASCII characters: `\u0070`, and `:\/\/` in addresses; and a member of keys in JSON.
const ESCAPES: [&str; 3] = ["\\u00", ":\\/\\", "\"kty\""];

/// Bytes that are looked up together.
const GRAM: usize = 4;
/// Bits of the first table, as a power of two.
const BITS: u32 = 16;
/// Chains of entries, as a power of two.
const CHAINS: u32 = 12;
/// The same as words.
const WORDS: usize = 1 << (BITS - u64::BITS.trailing_zeros());
type Bits = [u64; WORDS];
/// No entry.
const NONE: u16 = u16::MAX;

struct Keyword {
    text: &'static str,
    what: What,
}

/// Where a chain goes on.
struct Entry {
    /// With letters of one case.
    gram: u32,
    keyword: u16,
    next: u16,
}

struct Index {
    keywords: Vec<Keyword>,
    bits: Box<Bits>,
    /// The same by another hash, for the few that the first lets through by chance.
    others: Box<Bits>,
    chains: Vec<u16>,
    entries: Vec<Entry>,
}

static INDEX: LazyLock<Index> = LazyLock::new(Index::new);

/// Makes the index, which takes a fraction of a millisecond.
pub(crate) fn prepare() {
    LazyLock::force(&INDEX);
}

/// Four bytes as a number, letters of either case as one.
fn folded(gram: [u8; GRAM]) -> u32 {
    u32::from_le_bytes(gram) | 0x2020_2020
}

fn hash(gram: u32, bits: u32) -> usize {
    // A constant of Fibonacci hashing.
    (gram.wrapping_mul(0x9E37_79B1) >> (u32::BITS - bits)) as usize
}

fn other_hash(gram: u32) -> usize {
    (gram.wrapping_mul(0x85EB_CA6B) >> (u32::BITS - BITS)) as usize
}

fn bit(bits: &Bits, bit: usize) -> u64 {
    bits.get(bit / 64).map_or(0, |bits| bits >> (bit % 64) & 1)
}

impl Index {
    fn new() -> Self {
        let names = names::ROOTS.iter().map(|text| Keyword { text, what: What::Name });
        let shapes = shapes::SHAPES
            .iter()
            .enumerate()
            .map(|(index, shape)| Keyword { text: shape.begins, what: What::Shape(index) });
        let rules = rules::RULES.iter().enumerate().flat_map(|(index, rule)| {
            rule.keywords.iter().map(move |text| Keyword { text, what: What::Rule(index) })
        });
        let forms = forms::KEYWORDS.iter().map(|(text, form)| Keyword { text, what: What::Form(*form) });
        let escapes = ESCAPES.iter().map(|text| Keyword { text, what: What::Escape });
        let mut index = Self {
            keywords: names.chain(shapes).chain(rules).chain(forms).chain(escapes).collect(),
            bits: Box::new([0; WORDS]),
            others: Box::new([0; WORDS]),
            chains: vec![NONE; 1 << CHAINS],
            entries: Vec::new(),
        };
        for number in 0..index.keywords.len() {
            let text = index.keywords.get(number).map_or(&[][..], |keyword| keyword.text.as_bytes());
            match *text {
                [a, b, c, d, ..] => index.add([a, b, c, d], number),
                // Anything may follow; what differs in the folded bit only is one.
                [a, b, c] => {
                    (0..=u8::MAX).filter(|d| d & 0x20 != 0).for_each(|d| index.add([a, b, c, d], number))
                }
                _ => {}
            }
        }
        index
    }

    fn add(&mut self, gram: [u8; GRAM], keyword: usize) {
        let gram = folded(gram);
        for (bits, bit) in [(&mut self.bits, hash(gram, BITS)), (&mut self.others, other_hash(gram))] {
            if let Some(bits) = bits.get_mut(bit / 64) {
                *bits |= 1 << (bit % 64);
            }
        }
        let (Ok(entry), Ok(keyword)) = (u16::try_from(self.entries.len()), u16::try_from(keyword)) else {
            return;
        };
        if let Some(head) = self.chains.get_mut(hash(gram, CHAINS)) {
            self.entries.push(Entry { gram, keyword, next: *head });
            *head = entry;
        }
    }

    fn may_begin(&self, gram: u32) -> bool {
        bit(&self.bits, hash(gram, BITS)) & bit(&self.others, other_hash(gram)) == 1
    }

    /// How many bytes from the first may be left out, because none of them begins anything. Four are looked at together: a
    /// branch for each would take as long as the rest.
    fn leap(&self, bytes: &[u8]) -> usize {
        let (fours, _) = bytes.as_chunks::<GRAM>();
        let Some((first, rest)) = fours.split_first() else { return 0 };
        let (mut four, mut at) = (folded(*first), 0);
        for next in rest {
            let next = folded(*next);
            let eight = u64::from(four) | u64::from(next) << 32;
            let look = |shift: u32| bit(&self.bits, hash((eight >> shift) as u32, BITS));
            if look(0) | look(8) | look(16) | look(24) != 0
                && let Some(found) =
                    [0, 8, 16, 24].into_iter().position(|shift| self.may_begin((eight >> shift) as u32))
            {
                return at + found;
            }
            four = next;
            at += GRAM;
        }
        at
    }
}

/// Every keyword in a text, from the left.
pub(crate) struct Hits<'t> {
    index: &'static Index,
    bytes: &'t [u8],
    /// Where the search goes on.
    at: usize,
    /// The bytes that may begin one, before `at`, and what is left of their chain.
    gram: u32,
    chain: u16,
}

/// The keywords of a text.
pub(crate) fn hits(text: &str) -> Hits<'_> {
    Hits { index: &INDEX, bytes: text.as_bytes(), at: 0, gram: 0, chain: NONE }
}

impl Iterator for Hits<'_> {
    type Item = Hit;

    fn next(&mut self) -> Option<Hit> {
        loop {
            while let Some(entry) = self.index.entries.get(usize::from(self.chain)) {
                self.chain = entry.next;
                let at = self.at - 1;
                if entry.gram == self.gram
                    && let Some(keyword) = self.index.keywords.get(usize::from(entry.keyword))
                    && self
                        .bytes
                        .get(at..at + keyword.text.len())
                        .is_some_and(|found| found.eq_ignore_ascii_case(keyword.text.as_bytes()))
                {
                    return Some(Hit { at, len: keyword.text.len(), what: keyword.what });
                }
            }
            self.at += self.index.leap(self.bytes.get(self.at..)?);
            let rest = self.bytes.get(self.at..)?;
            let gram = |window: &[u8]| match *window {
                [a, b, c, d] => folded([a, b, c, d]),
                [a, b, c] => folded([a, b, c, 0]),
                _ => 0,
            };
            let found = rest.windows(GRAM).position(|window| self.index.may_begin(gram(window)));
            // A keyword of three bytes may be the end.
            let end = rest.len().saturating_sub(GRAM - 1);
            let found = found.or_else(|| {
                rest.get(end..)
                    .filter(|end| end.len() == GRAM - 1 && self.index.may_begin(gram(end)))
                    .map(|_| end)
            });
            let Some(found) = found else {
                self.at = self.bytes.len();
                return None;
            };
            self.gram = rest.get(found..(found + GRAM).min(rest.len())).map_or(0, gram);
            self.chain = self.index.chains.get(hash(self.gram, CHAINS)).copied().unwrap_or(NONE);
            self.at += found + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slowly(text: &str) -> Vec<(usize, &'static str)> {
        let lower = text.to_ascii_lowercase();
        let mut found: Vec<_> = INDEX
            .keywords
            .iter()
            .flat_map(|keyword| {
                let folded = keyword.text.to_ascii_lowercase();
                (0..lower.len())
                    .filter(|at| lower.as_bytes()[*at..].starts_with(folded.as_bytes()))
                    .map(|at| (at, keyword.text))
                    .collect::<Vec<_>>()
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn quickly(text: &str) -> Vec<(usize, &'static str)> {
        let keyword = |hit: &Hit| {
            let matches = |keyword: &&Keyword| keyword.what == hit.what && keyword.text.len() == hit.len;
            let at = &text.as_bytes()[hit.at..hit.at + hit.len];
            let matches =
                |keyword: &&Keyword| matches(keyword) && at.eq_ignore_ascii_case(keyword.text.as_bytes());
            INDEX.keywords.iter().find(matches).map_or("", |keyword| keyword.text)
        };
        let mut found: Vec<_> = hits(text).map(|hit| (hit.at, keyword(&hit))).collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn every_keyword_is_found_wherever_it_stands() {
        for keyword in &INDEX.keywords {
            assert!(keyword.text.len() >= 3 && keyword.text.is_ascii(), "{}", keyword.text);
            for text in [
                keyword.text.to_owned(),
                keyword.text.to_uppercase(),
                format!("é{}", keyword.text),
                format!("{} ", keyword.text),
            ] {
                assert!(hits(&text).any(|hit| hit.what == keyword.what), "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_found_is_what_is_there(parts in prop::collection::vec(prop_oneof!["(?i)(pass|tok|token|key|sk-|eyj|://|pin|basic )", ".{0,4}", "[a-z -]{0,3}"], 0..8)) {
            let text = parts.concat();
            prop_assert_eq!(quickly(&text), slowly(&text), "{}", text);
        }
    }
}
