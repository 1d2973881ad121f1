//! Bytes as hexadecimal digits.

/// The digits, in lower case.
pub const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Two digits for each byte.
pub fn of(bytes: &[u8]) -> String {
    let digit = |at: u8| char::from(DIGITS[usize::from(at & 0xf)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_byte_has_two_digits() {
        assert_eq!(super::of(&[0, 0x0a, 0xf0, 0xff]), "000af0ff");
        assert_eq!(super::of(&[]), "");
    }
}
