//! What of a client's line can be repaired: half of a surrogate pair, written as an escape. Pure.
//!
//! JavaScript cuts texts between UTF-16 units, and `"🎉".slice(0, 1)` is `"\ud83c"` in JSON. No character is meant by that,
//! and parsers differ: some refuse the whole line, some put U+FFFD there, as every decoder of UTF-16 does. So does this.

/// Longest text of an escape: `\ud83c`.
const ESCAPE: usize = 6;
/// What stands for a half that has no other: as long as the half, so that everything keeps its place.
const REPLACEMENT: &[u8; ESCAPE] = b"\\ufffd";

/// The line with U+FFFD, escaped, for each half of a pair that stands alone, and how many those were. `None` where there
/// are none. The line need not be JSON.
pub fn lone_surrogates(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let (mut repaired, mut many, mut at) = (None::<Vec<u8>>, 0u32, 0);
    while let Some(found) = memchr::memchr(b'\\', line.get(at..)?) {
        at += found;
        let half = match unit(line, at) {
            Some(0xd800..=0xdbff) => match unit(line, at + ESCAPE) {
                Some(0xdc00..=0xdfff) => {
                    at += 2 * ESCAPE;
                    continue;
                }
                _ => true,
            },
            Some(0xdc00..=0xdfff) => true,
            // Whatever else is escaped, and a backslash itself.
            _ => false,
        };
        if !half {
            at += 2;
            continue;
        }
        repaired.get_or_insert_with(|| line.to_vec()).get_mut(at..at + ESCAPE)?.copy_from_slice(REPLACEMENT);
        many = many.saturating_add(1);
        at += ESCAPE;
    }
    repaired.map(|repaired| (repaired, many))
}

/// The UTF-16 unit that is escaped here, if one is.
fn unit(line: &[u8], at: usize) -> Option<u16> {
    let digits = line.get(at..at + ESCAPE)?.strip_prefix(b"\\u")?;
    let digits = std::str::from_utf8(digits).ok().filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::lone_surrogates;

    fn repaired(line: &str) -> Option<(String, u32)> {
        let (line, many) = lone_surrogates(line.as_bytes())?;
        Some((String::from_utf8(line).expect("text"), many))
    }

    #[test]
    fn halves_are_replaced_and_pairs_are_not() {
        let cases = [
            (r#""\ud83c""#, r#""\ufffd""#, 1),
            (r#""\uDFFF!""#, r#""\ufffd!""#, 1),
            (r#""\ud83c\ud83c\udf89""#, r#""\ufffd\ud83c\udf89""#, 1),
            (r#""\ud83c\udf89\udf89\n\ud83c\n""#, r#""\ud83c\udf89\ufffd\n\ufffd\n""#, 2),
            (r#""\\\ud83c""#, r#""\\\ufffd""#, 1),
            (r#"["\ud83c","\udf89"]"#, r#"["\ufffd","\ufffd"]"#, 2),
        ];
        for (line, expected, many) in cases {
            assert_eq!(repaired(line), Some((expected.to_owned(), many)), "{line}");
        }
        for line in [r#""\ud83c\udf89""#, r#""\\ud83c""#, r#""\u00e9""#, r#""\ud83"#, r#""\ud8zz""#, "\\", ""]
        {
            assert_eq!(repaired(line), None, "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_repaired_is_what_a_decoder_of_utf_16_makes_of_it(units: Vec<u16>) {
            let escaped: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
            let line = format!("\"{escaped}\"");
            let text = lone_surrogates(line.as_bytes()).map_or(line.into_bytes(), |(line, _)| line);
            let read: String = serde_json::from_slice(&text).expect("JSON");
            proptest::prop_assert_eq!(read, String::from_utf16_lossy(&units));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::sample::select(b"\\ud8c0\"".to_vec()), 0..40)) {
            if let Some((repaired, _)) = lone_surrogates(&bytes) {
                proptest::prop_assert_eq!(repaired.len(), bytes.len());
            }
        }
    }
}
