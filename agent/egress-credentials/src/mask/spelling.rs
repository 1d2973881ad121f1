//! The spellings of one byte: as it is, percent-encoded, escaped as in JSON and programs, as an entity of HTML. Pure.

/// Most bytes of one spelling.
pub(super) const WIDEST: usize = 10;
/// Backslashes of one escape: JSON within JSON within JSON.
const BACKSLASHES: usize = 3;
/// Digits of an entity, zeros before it included.
const DIGITS: usize = 6;

/// Names of HTML's for what is neither a letter nor a digit.
const NAMED: [(u8, &str); 33] = [
    (b'"', "quot"),
    (b'"', "QUOT"),
    (b'&', "amp"),
    (b'&', "AMP"),
    (b'\'', "apos"),
    (b'<', "lt"),
    (b'<', "LT"),
    (b'>', "gt"),
    (b'>', "GT"),
    (b'!', "excl"),
    (b'#', "num"),
    (b'$', "dollar"),
    (b'%', "percnt"),
    (b'(', "lpar"),
    (b')', "rpar"),
    (b'*', "ast"),
    (b'+', "plus"),
    (b',', "comma"),
    (b'.', "period"),
    (b'/', "sol"),
    (b':', "colon"),
    (b';', "semi"),
    (b'=', "equals"),
    (b'?', "quest"),
    (b'@', "commat"),
    (b'[', "lsqb"),
    (b'\\', "bsol"),
    (b']', "rsqb"),
    (b'^', "Hat"),
    (b'_', "lowbar"),
    (b'{', "lcub"),
    (b'|', "verbar"),
    (b'}', "rcub"),
];

/// The bytes that a spelling of some other byte begins with.
pub(super) const BEGINNINGS: [u8; 4] = [b'%', b'\\', b'&', b'+'];

/// Calls for each spelling of `byte` that `text` begins with: how many bytes it has, at most [`WIDEST`].
pub(super) fn spelled(byte: u8, text: &[u8], mut each: impl FnMut(usize)) {
    let Some((first, rest)) = text.split_first() else { return };
    if *first == byte {
        each(1);
    }
    match first {
        b'+' if byte == b' ' => each(1),
        b'%' => {
            if is_hex(byte, rest) {
                each(3);
            }
            // Twice.
            if rest.strip_prefix(b"25").is_some_and(|rest| is_hex(byte, rest)) {
                each(5);
            }
        }
        b'\\' => {
            let slashes = 1 + rest.iter().take(BACKSLASHES - 1).take_while(|byte| **byte == b'\\').count();
            for before in 1..=slashes {
                escaped(byte, text.get(before..).unwrap_or_default(), |length| each(before + length));
            }
        }
        b'&' => {
            if let Some(length) = entity(byte, rest) {
                each(1 + length);
            }
        }
        _ => {}
    }
}

/// What is behind backslashes.
fn escaped(byte: u8, text: &[u8], mut each: impl FnMut(usize)) {
    match text {
        [b'u' | b'U', b'0', b'0', digits @ ..] if is_hex(byte, digits) => each(5),
        [b'x' | b'X', digits @ ..] if is_hex(byte, digits) => each(3),
        [same, ..] if *same == byte && !byte.is_ascii_alphanumeric() => each(1),
        _ => {}
    }
}

/// What is behind `&`, with its semicolon.
fn entity(byte: u8, text: &[u8]) -> Option<usize> {
    let end = text.iter().take(WIDEST - 1).position(|byte| *byte == b';')?;
    let name = str::from_utf8(text.get(..end)?).ok()?;
    let is_it = match name.strip_prefix('#') {
        None => NAMED.contains(&(byte, name)),
        Some(digits) => {
            let (digits, radix) = match digits.strip_prefix(['x', 'X']) {
                Some(digits) => (digits, 16),
                None => (digits, 10),
            };
            let is_number =
                (1..=DIGITS).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
            is_number && u32::from_str_radix(digits, radix).is_ok_and(|number| number == u32::from(byte))
        }
    };
    is_it.then_some(end + 1)
}

/// Whether a text begins with a byte's two hexadecimal digits.
fn is_hex(byte: u8, text: &[u8]) -> bool {
    let Some([high, low]) = text.first_chunk::<2>() else { return false };
    let digit = |digit: u8| char::from(digit).to_digit(16);
    digit(*high) == Some(u32::from(byte >> 4)) && digit(*low) == Some(u32::from(byte & 15))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(byte: u8, text: &str) -> Vec<usize> {
        let mut all = Vec::new();
        spelled(byte, text.as_bytes(), |length| all.push(length));
        all
    }

    #[test]
    fn each_spelling_is_one_and_none_is_wider_than_it_may_be() {
        for text in [
            "+",
            "%2B",
            "%2b",
            "%252B",
            "\\u002B",
            "\\u002b",
            "\\\\\\u002b",
            "\\x2b",
            "\\+",
            "\\\\+",
            "&#43;",
            "&#043;",
            "&#x2B;",
            "&#x00002b;",
            "&plus;",
        ] {
            assert_eq!(lengths(b'+', text), [text.len()], "{text}");
            assert_eq!(lengths(b'+', &format!("{text}xyz")), [text.len()], "{text}");
            assert_eq!(lengths(b'-', text), Vec::<usize>::new(), "{text}");
            assert!(text.len() <= WIDEST, "{text}");
        }
        for text in
            ["", "%2", "%2G", "\\u102B", "\\u002", "&#43", "&#;", "&#x;", "&#x000002b;", "&plu;", "&", "\\"]
        {
            assert_eq!(lengths(b'+', text), Vec::<usize>::new(), "{text}");
        }
        assert_eq!(lengths(b'%', "%25"), [1, 3]);
        assert_eq!(lengths(b'\\', "\\\\"), [1, 2]);
        assert_eq!(lengths(b' ', "+"), [1]);
        assert_eq!(lengths(b'n', "\\n"), Vec::<usize>::new(), "a line's end");
        assert!(NAMED.iter().all(|(_, name)| name.len() + 2 <= WIDEST));
    }
}
