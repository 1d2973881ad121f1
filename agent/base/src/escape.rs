//! Names from hostile ground as text: lossless, one line, nothing a terminal would obey, no two names alike.
//!
//! Visible UTF-8 stays as it is; a backslash becomes `\\`; every byte of anything else becomes `\xNN`: bytes that are
//! not UTF-8, control characters, and characters that take no room of their own or turn the text around (combining
//! marks, joiners, direction marks, fillers), and a space at either end of a name.

use std::fmt::Write as _;

/// Characters that `char::escape_debug` takes for visible, but that draw nothing.
const BLANK: &[char] = &['\u{115f}', '\u{1160}', '\u{2800}', '\u{3164}', '\u{ffa0}'];

/// One name (a path's component, an abstract socket's name) as text. A slash inside it is escaped too: it separates
/// nothing.
pub fn name(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c != '/' && visible(c) => out.push(c),
                c => push_bytes(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        push_bytes(&mut out, chunk.invalid());
    }
    if out.ends_with(' ') {
        out.truncate(out.len() - 1);
        out.push_str("\\x20");
    }
    if out.starts_with(' ') {
        out.replace_range(..1, "\\x20");
    }
    out
}

/// Text that Ringfence itself did not write (a rule, a profile's name) for a terminal: control characters escaped,
/// the rest, backslashes included, left alone.
pub fn line(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if visible(c) || c == '\\' {
            out.push(c);
        } else {
            push_bytes(&mut out, c.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    out
}

/// The same of a text that is shown between others, two blanks from each: a blank that follows another is `\\x20`, so that no text
/// looks like several. What [`name`] wrote stays what it is.
pub fn apart(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            ' ' if out.is_empty() || out.ends_with(' ') => out.push_str("\\x20"),
            c => out.push(c),
        }
    }
    if out.ends_with(' ') {
        out.truncate(out.len() - 1);
        out.push_str("\\x20");
    }
    out
}

/// A text as a basic string of TOML, in double quotes whatever is in it: no text chooses its quotes, or ends them.
pub fn toml(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The bytes that [`name`] made a text from; `None` if it made no such text.
pub fn bytes(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&b, tail)) = rest.split_first() {
        rest = tail;
        if b != b'\\' {
            out.push(b);
            continue;
        }
        rest = match rest {
            [b'\\', tail @ ..] => {
                out.push(b'\\');
                tail
            }
            [b'x', high, low, tail @ ..] => {
                let digit = |b: u8| char::from(b).to_digit(16);
                out.push((digit(*high)? * 16 + digit(*low)?) as u8);
                tail
            }
            _ => return None,
        };
    }
    Some(out)
}

fn visible(c: char) -> bool {
    match c {
        '\'' | '"' => true,
        c => c.escape_debug().len() == 1 && !BLANK.contains(&c),
    }
}

fn push_bytes(out: &mut String, bytes: &[u8]) {
    for b in bytes {
        // Writing to a String cannot fail.
        let _ = write!(out, "\\x{b:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_visible_stays() {
        for text in ["plain", "with space", "über", "文件", "it's \"quoted\"", "a*b?[c]", "$HOME", "😀"]
        {
            assert_eq!(name(text.as_bytes()), text);
        }
    }

    #[test]
    fn what_is_not_is_escaped() {
        assert_eq!(name(b"a\nb"), r"a\x0ab");
        assert_eq!(name(b"\x1b[31mred"), r"\x1b[31mred");
        assert_eq!(name(b"\xff\xfe"), r"\xff\xfe");
        assert_eq!(name(b"back\\slash"), r"back\\slash");
        assert_eq!(name(b"memfd:a/b"), r"memfd:a\x2fb");
        assert_eq!(name("gpj.\u{202e}exe".as_bytes()), r"gpj.\xe2\x80\xaeexe");
        assert_eq!(name("a\u{200b}b".as_bytes()), r"a\xe2\x80\x8bb");
        assert_eq!(name("e\u{301}".as_bytes()), r"e\xcc\x81");
        assert_eq!(name("x\u{fe0f}".as_bytes()), r"x\xef\xb8\x8f");
        assert_eq!(name("x\u{3164}".as_bytes()), r"x\xe3\x85\xa4");
        assert_eq!(name(b"ls "), r"ls\x20");
        assert_eq!(name(b" "), r"\x20");
        assert_eq!(name(b"  "), r"\x20\x20");
        assert_eq!(line("a\tb\\"), r"a\x09b\");
        assert_eq!(line("a\u{a0}\u{2003}\u{3000}b"), r"a\xc2\xa0\xe2\x80\x83\xe3\x80\x80b", "the only blank");
    }

    #[test]
    fn a_text_ends_neither_its_quotes_nor_its_column() {
        assert_eq!(toml("/a b"), "\"/a b\"");
        assert_eq!(toml("/a\". [Ringfence] '\\ \n"), r#""/a\". [Ringfence] '\\ \u000A""#);
        assert_eq!(apart("a b"), "a b");
        assert_eq!(apart("a  b   c "), r"a \x20b \x20 c\x20");
        assert_eq!([apart(" "), apart("  "), apart(" a")], [r"\x20", r"\x20\x20", r"\x20a"]);
    }

    proptest! {
        #[test]
        fn every_name_comes_back(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            let text = name(&raw);
            prop_assert_eq!(bytes(&text), Some(raw));
            prop_assert!(text.chars().all(|c| !c.is_control() && c != '/'));
        }

        #[test]
        fn a_name_comes_back_from_between_others(raw in proptest::collection::vec(prop_oneof![Just(b' '), any::<u8>()], 0..300)) {
            let text = apart(&name(&raw));
            prop_assert_eq!(bytes(&text), Some(raw));
            prop_assert!(!text.contains("  "));
        }

        #[test]
        fn every_text_comes_back(raw in "\\PC*|[\\\\x0-9a-f /]*") {
            prop_assert_eq!(bytes(&name(raw.as_bytes())), Some(raw.clone().into_bytes()));
        }
    }
}
