//! Lists of words that every word of a call is looked for in. Most words are in none, which their length and first letter
//! tell without looking at the list.

/// Some words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WordList {
    words: &'static [&'static str],
    /// A bit for each length that a word has, the last for all longer ones.
    lengths: u32,
    /// A bit for each value of the first byte's low five bits that a word has: for letters, a bit each.
    firsts: u32,
}

impl WordList {
    /// A list of these words, none of which is empty.
    pub(crate) const fn of(words: &'static [&'static str]) -> Self {
        let (mut lengths, mut firsts, mut at) = (0, 0, 0);
        while at < words.len() {
            let word = words[at].as_bytes();
            lengths |= length_bit(word);
            firsts |= first_bit(word[0]);
            at += 1;
        }
        Self { words, lengths, firsts }
    }

    /// Whether the word is in it.
    pub(crate) fn contains(self, word: &str) -> bool {
        let bytes = word.as_bytes();
        let Some(&first) = bytes.first() else { return false };
        self.lengths & length_bit(bytes) != 0
            && self.firsts & first_bit(first) != 0
            // The first bytes tell most of them apart, without a call that compares memory.
            && self.words.iter().any(|known| {
                known.len() == word.len() && known.as_bytes().first() == Some(&first) && *known == word
            })
    }
}

const fn length_bit(word: &[u8]) -> u32 {
    1 << if word.len() < 31 { word.len() } else { 31 }
}

const fn first_bit(byte: u8) -> u32 {
    1 << (byte & 31)
}

#[cfg(test)]
mod tests {
    use super::WordList;
    use proptest::prelude::*;

    const WORDS: &[&str] =
        &["a", "run", "rm", "delete", "über", "a_word_of_more_than_thirty_one_letters", "1st"];
    const LIST: WordList = WordList::of(WORDS);

    #[test]
    fn has_its_words_and_no_other() {
        WORDS.iter().for_each(|word| assert!(LIST.contains(word), "{word}"));
        for other in ["", "b", "rum", "runs", "Delete", "a_word_of_more_than_thirty_one_lettersx", "qst"] {
            assert!(!LIST.contains(other), "{other}");
        }
        assert!(!WordList::of(&[]).contains("run"));
    }

    proptest! {
        #[test]
        fn answers_as_a_search_does(word in "[a-drmu1ü]{0,3}|delet[de]|.{0,40}") {
            prop_assert_eq!(LIST.contains(&word), WORDS.contains(&word.as_str()));
        }
    }
}
