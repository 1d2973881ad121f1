//! What JSON's source stands for, and where each of it stands there. Pure.
//!
//! No parser has a say: they differ over lone surrogates, numbers out of range and depth, and what one of them does not
//! read another does.

/// A character, and where its source ends. Each begins where the one before ended.
pub(super) type At = (usize, char);

/// The characters of a text.
pub(super) fn characters(text: &str) -> impl Iterator<Item = At> + Clone {
    text.char_indices().map(|(at, character)| (at + character.len_utf8(), character))
}

/// What characters stand for, up to an escape that is not whole yet. Credentials are ASCII: of other escaped characters it
/// only matters that they are others.
#[derive(Clone)]
pub(super) struct Unescaped<I>(pub(super) I);

impl<I: Iterator<Item = At> + Clone> Iterator for Unescaped<I> {
    type Item = At;

    fn next(&mut self) -> Option<At> {
        let (end, first) = self.0.next()?;
        if first != '\\' {
            return Some((end, first));
        }
        let (end, kind) = self.0.next()?;
        let stands_for = match kind {
            'u' => return self.number(end),
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' | 'f' => ' ',
            // A quote, a slash, a backslash; anything else is no escape at all.
            other => other,
        };
        Some((end, stands_for))
    }
}

impl<I: Iterator<Item = At> + Clone> Unescaped<I> {
    /// The character whose number follows `\u`, which ends at `end`. Where no number does, that is no escape, and what is
    /// behind it stands for itself.
    fn number(&mut self, end: usize) -> Option<At> {
        let (mut ahead, mut number, mut whole) = (self.0.clone(), 0, end);
        for _ in 0..4 {
            let Some((behind, digit)) = ahead.next() else {
                self.0 = ahead;
                return None;
            };
            let Some(digit) = digit.to_digit(16) else { return Some((end, OTHER)) };
            (number, whole) = (number * 16 + digit, behind);
        }
        self.0 = ahead;
        Some((whole, char::from_u32(number).unwrap_or(OTHER)))
    }
}

/// What is no character of a credential's.
const OTHER: char = char::REPLACEMENT_CHARACTER;

/// Finds places of what a source stands for in the source. They are asked for in their order.
pub(super) struct Places<I> {
    characters: I,
    /// How far it is: bytes of what the source stands for, and of the source.
    at: usize,
    source: usize,
}

impl<I: Iterator<Item = At>> Places<I> {
    pub(super) fn new(characters: I) -> Self {
        Self { characters, at: 0, source: 0 }
    }

    /// Where in the source it is; the end of what is whole where it is behind that.
    pub(super) fn of(&mut self, place: usize) -> usize {
        while self.at < place
            && let Some((end, character)) = self.characters.next()
        {
            self.at += character.len_utf8();
            self.source = end;
        }
        self.source
    }
}

/// Where the strings of a document are, without their quotes: keys, too.
pub(super) fn strings(json: &str) -> impl Iterator<Item = (usize, usize)> {
    let bytes = json.as_bytes();
    let mut from = 0;
    std::iter::from_fn(move || {
        let begin = from + memchr::memchr(b'"', bytes.get(from..)?)? + 1;
        let mut end = begin;
        loop {
            end += memchr::memchr2(b'"', b'\\', bytes.get(end..)?)?;
            if bytes[end] == b'"' {
                break;
            }
            // What is escaped ends nothing.
            end += 2;
        }
        from = end + 1;
        Some((begin, end))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(source: &str, times: usize) -> String {
        let once = Unescaped(characters(source));
        if times == 1 {
            once.map(|(_, character)| character).collect()
        } else {
            Unescaped(once).map(|(_, character)| character).collect()
        }
    }

    #[test]
    fn escapes_stand_for_what_a_parser_reads_and_hide_nothing_behind_them() {
        for (source, once) in [
            (r#"a\u0062\/\"\\"#, r#"ab/"\"#),
            (r"\ud800x\ud83e\udd80y", "\u{fffd}x\u{fffd}\u{fffd}y"),
            // Not whole: it is not known yet what they stand for.
            (r"a\", "a"),
            (r"a\u006", "a"),
            // None: what is behind them is itself.
            (r"\uk-secret", "\u{fffd}k-secret"),
            (r"\u00\u006b", "\u{fffd}00k"),
        ] {
            assert_eq!(read(source, 1), once, "{source}");
        }
        assert_eq!(read(r#"{\"a\":\"s\\u006b\"}"#, 2), r#"{"a":"sk"}"#);
    }

    #[test]
    fn a_place_is_found_in_the_source() {
        let source = r"a\u0062c\nd";
        let mut places = Places::new(Unescaped(characters(source)));
        let found = [0, 1, 2, 3, 4, 5, 9].map(|place| places.of(place));
        assert_eq!(found, [0, 1, 7, 8, 10, 11, 11]);
    }

    #[test]
    fn strings_are_found_in_any_document() {
        let json = r#"{"a\"":[1e999,"\\","",{"\ud800":"x"}]}"#;
        let found: Vec<&str> = strings(json).map(|(from, to)| &json[from..to]).collect();
        assert_eq!(found, [r#"a\""#, r"\\", "", r"\ud800", "x"]);
        assert_eq!(strings(r#""cut \"#).count() + strings("\"cut").count() + strings("7").count(), 0);
    }
}
