//! How texts write a character: percent-encoded, escaped in JSON, JavaScript and C, as an entity of HTML, in UTF-16, each also
//! once more around itself. Pure, and the same work whatever is looked for.

/// Most bytes that one character is known in.
pub(crate) const LONGEST: usize = 10;
/// What names an ASCII character that is no letter and no digit, in HTML.
const ENTITIES: [(&[u8], u8); 41] = [
    (b"Hat", b'^'),
    (b"NewLine", b'\n'),
    (b"Tab", b'\t'),
    (b"amp", b'&'),
    (b"apos", b'\''),
    (b"ast", b'*'),
    (b"bsol", b'\\'),
    (b"colon", b':'),
    (b"comma", b','),
    (b"commat", b'@'),
    (b"dollar", b'$'),
    (b"equals", b'='),
    (b"excl", b'!'),
    (b"grave", b'`'),
    (b"gt", b'>'),
    (b"GT", b'>'),
    (b"lbrace", b'{'),
    (b"lbrack", b'['),
    (b"lcub", b'{'),
    (b"lowbar", b'_'),
    (b"lpar", b'('),
    (b"lsqb", b'['),
    (b"lt", b'<'),
    (b"LT", b'<'),
    (b"midast", b'*'),
    (b"num", b'#'),
    (b"percnt", b'%'),
    (b"period", b'.'),
    (b"plus", b'+'),
    (b"quest", b'?'),
    (b"quot", b'"'),
    (b"QUOT", b'"'),
    (b"rbrace", b'}'),
    (b"rbrack", b']'),
    (b"rcub", b'}'),
    (b"rpar", b')'),
    (b"rsqb", b']'),
    (b"semi", b';'),
    (b"sol", b'/'),
    (b"verbar", b'|'),
    (b"vert", b'|'),
];

/// Whether a byte begins a spelling, or is a part of a wide character.
pub(crate) fn begins(byte: u8) -> bool {
    matches!(byte, b'%' | b'\\' | b'&' | b'=' | 0)
}

/// The one byte that all of a text spells, if it spells one. Of at least two bytes: one byte spells itself.
pub(crate) fn meaning(text: &[u8]) -> Option<u8> {
    match text {
        [b'%', ..] => percent(text),
        // Quoted-printable.
        [b'=', high, low] => hex(&[*high, *low]),
        [b'\\', ..] => escaped(text),
        [b'&', ..] => entity(text),
        // UTF-16 and UTF-32, of either order.
        [0, byte] | [byte, 0] | [0, 0, 0, byte] | [byte, 0, 0, 0] => Some(*byte),
        _ => None,
    }
}

/// Whether a text stands for nothing where base64 is cut into lines: their ends, in any spelling, quoted-printable's soft ones, and
/// what lines begin with.
pub(crate) fn is_nothing(text: &[u8]) -> bool {
    let is_blank = |byte: u8| matches!(byte, b'\n' | b'\r' | b'\t' | b' ');
    match text {
        [byte] => is_blank(*byte),
        [b'=', b'\n'] | [b'=', b'\r', b'\n'] => true,
        [slashes @ .., b'n' | b'r' | b't'] if slashes.iter().all(|byte| *byte == b'\\') => true,
        _ => meaning(text).is_some_and(is_blank),
    }
}

/// `%2B`, `%252B`, `%5Cu002B`.
fn percent(text: &[u8]) -> Option<u8> {
    let mut rest = text.get(1..)?;
    while let Some(behind) = rest.strip_prefix(b"25")
        && !behind.is_empty()
    {
        rest = behind;
    }
    match rest {
        [_, _] => hex(rest),
        [b'5', b'C' | b'c', behind @ ..] => behind_backslash(behind),
        _ => None,
    }
}

/// `\"`, `\u002B`, `\x2b`, `\053`, `\u{2b}`, with any number of backslashes.
fn escaped(text: &[u8]) -> Option<u8> {
    let slashes = text.iter().take_while(|byte| **byte == b'\\').count();
    // A backslash that is spelled so is the last of them.
    behind_backslash(text.get(slashes.min(text.len() - 1)..)?)
}

fn behind_backslash(text: &[u8]) -> Option<u8> {
    match text {
        [byte] => Some(*byte),
        [b'x' | b'X', high, low] | [b'u' | b'U', b'0', b'0', high, low] => hex(&[*high, *low]),
        [b'u' | b'x', b'{', digits @ .., b'}'] => hex(digits),
        [b'0'..=b'3', _, _] => number(text, 8),
        _ => None,
    }
}

/// `&quot;`, `&#43;`, `&#x2B;`, `&amp;#43;`; a number also without its semicolon.
fn entity(text: &[u8]) -> Option<u8> {
    let mut rest = text.get(1..)?;
    while let Some(behind) = rest.strip_prefix(b"amp;")
        && !behind.is_empty()
    {
        rest = behind;
    }
    let (name, is_closed) = rest.strip_suffix(b";").map_or((rest, false), |name| (name, true));
    match name {
        [b'#', b'x' | b'X', digits @ ..] => hex(digits),
        [b'#', digits @ ..] => number(digits, 10),
        _ if is_closed => ENTITIES.iter().find(|(of, _)| *of == name).map(|(_, byte)| *byte),
        _ => None,
    }
}

fn hex(digits: &[u8]) -> Option<u8> {
    number(digits, 16)
}

fn number(digits: &[u8], radix: u32) -> Option<u8> {
    let mut digits = digits.iter();
    let digit = |byte: &u8| char::from(*byte).to_digit(radix);
    let first = digit(digits.next()?)?;
    let value = digits.try_fold(first, |value, byte| value.checked_mul(radix)?.checked_add(digit(byte)?))?;
    value.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entity_is_longer_than_what_is_looked_at() {
        for (name, byte) in ENTITIES {
            let text = [b"&", name, b";"].concat();
            assert_eq!(meaning(&text), Some(byte));
            assert!(text.len() <= LONGEST, "{}", String::from_utf8_lossy(&text));
        }
        assert_eq!(ENTITIES.iter().map(|(name, _)| name.len() + 2).max(), Some(9));
    }

    #[test]
    fn ends_of_lines_stand_for_nothing_and_letters_do_not() {
        for text in [
            "\n",
            "\r",
            " ",
            "\t",
            "=\r\n",
            "=\n",
            "\\n",
            "\\\\r",
            "\\\n",
            "%0A",
            "%250d",
            "&#10;",
            "&NewLine;",
            "\\u000a",
            "\n\0",
        ] {
            assert!(is_nothing(text.as_bytes()), "{text:?}");
        }
        for text in ["", "n", "a", "=", "\\a", "%41", "\\\\", "nn", "=a"] {
            assert!(!is_nothing(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn every_spelling_of_a_plus_is_one_and_others_are_none() {
        for text in [
            "%2B",
            "%2b",
            "%252B",
            "%25252b",
            "=2B",
            "\\+",
            "\\\\+",
            "\\x2b",
            "\\u002B",
            "\\\\u002b",
            "\\053",
            "\\u{2b}",
            "%5Cu002B",
            "%5C+",
            "&plus;",
            "&#43;",
            "&#x2B;",
            "&#X2b;",
            "&#043;",
            "&#x002b;",
            "&#43",
            "&#x2B",
            "&amp;#43;",
            "&amp;plus;",
            "\0+",
            "+\0",
            "\0\0\0+",
            "+\0\0\0",
        ] {
            assert_eq!(meaning(text.as_bytes()), Some(b'+'), "{text:?}");
        }
        for text in [
            "%2", "%+2", "%%2B", "\\u012B", "\\u2B", "&plus", "&#;", "&;", "&#x;", "&#299;", "=+2", "a+",
            "%25",
        ] {
            assert_ne!(meaning(text.as_bytes()), Some(b'+'), "{text:?}");
        }
        for (text, byte) in [
            ("\\\\", b'\\'),
            ("\\\\\\\\", b'\\'),
            ("%25", b'%'),
            ("%2525", b'%'),
            ("&amp;", b'&'),
            ("&amp;amp;", b'&'),
        ] {
            assert_eq!(meaning(text.as_bytes()), Some(byte), "{text:?}");
        }
    }
}
