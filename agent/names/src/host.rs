//! The one spelling of a host's name: lower case, without a final dot. Whoever compares names compares these.

use std::net::Ipv4Addr;

/// Most bytes of a name (RFC 1035 section 2.3.4: 255 on the wire, less the first length and the root's).
pub const MAX_NAME: usize = 253;
/// Most bytes of a label.
const MAX_LABEL: usize = 63;

/// Why bytes are not a host's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAHost {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// Too long.
    #[error("it is longer than {MAX_NAME} bytes")]
    Long,
    /// Two dots, or one at the beginning.
    #[error("it has an empty label")]
    EmptyLabel,
    /// A label that is too long.
    #[error("it has a label of more than {MAX_LABEL} bytes")]
    LongLabel,
    /// A dot at the end: some servers take it for part of the name, others do not.
    #[error("it ends in a dot")]
    FinalDot,
    /// A byte that no name of a host has.
    #[error("it has a byte that is no letter, digit, hyphen or underscore (0x{0:02x})")]
    Byte(u8),
    /// An address, in one of the spellings that `inet_aton` takes.
    #[error("it is an address")]
    Address,
}

/// Reads a host's name: letters, digits, hyphens and underscores between dots, in lower case then.
///
/// # Errors
/// [`NotAHost`]: what it is instead. An IPv4 address is one in every spelling that has a number for a last label
/// (`127.1`, `0x7f.1`, `2130706433`), as in the URL standard: no such name exists in DNS.
pub fn read(bytes: &[u8]) -> Result<String, NotAHost> {
    match bytes {
        [] => return Err(NotAHost::Empty),
        [.., b'.'] if bytes.len() > 1 => return Err(NotAHost::FinalDot),
        _ if bytes.len() > MAX_NAME => return Err(NotAHost::Long),
        _ => {}
    }
    let mut name = String::with_capacity(bytes.len());
    for label in bytes.split(|byte| *byte == b'.') {
        match label.len() {
            0 => return Err(NotAHost::EmptyLabel),
            1..=MAX_LABEL => {}
            _ => return Err(NotAHost::LongLabel),
        }
        if !name.is_empty() {
            name.push('.');
        }
        for byte in label {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => {
                    name.push(char::from(byte.to_ascii_lowercase()));
                }
                other => return Err(NotAHost::Byte(*other)),
            }
        }
    }
    let last = name.rsplit('.').next().unwrap_or_default();
    if is_number(last) || name.parse::<Ipv4Addr>().is_ok() {
        return Err(NotAHost::Address);
    }
    Ok(name)
}

fn is_number(label: &str) -> bool {
    let hex = label.strip_prefix("0x");
    hex.is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
        || label.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::{MAX_NAME, NotAHost, read};
    use proptest::prelude::*;

    #[test]
    fn a_name_has_one_spelling() {
        for (given, name) in [
            ("example.org", "example.org"),
            ("EXAMPLE.Org", "example.org"),
            ("a", "a"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("_dmarc.a-b.example", "_dmarc.a-b.example"),
            ("1.example", "1.example"),
            ("3com", "3com"),
            ("0xg", "0xg"),
        ] {
            assert_eq!(read(given.as_bytes()).as_deref(), Ok(name));
        }
    }

    #[test]
    fn what_two_parsers_could_read_differently_is_no_name() {
        let long = vec!["a".repeat(63); 4].join(".");
        for (given, why) in [
            ("", NotAHost::Empty),
            (".", NotAHost::EmptyLabel),
            ("example.org.", NotAHost::FinalDot),
            ("example.org..", NotAHost::FinalDot),
            (".example.org", NotAHost::EmptyLabel),
            ("example..org", NotAHost::EmptyLabel),
            ("example.org\0", NotAHost::Byte(0)),
            ("example.org\0.evil.example", NotAHost::Byte(0)),
            ("exämple.org", NotAHost::Byte(0xc3)),
            ("a b", NotAHost::Byte(b' ')),
            ("*.example.org", NotAHost::Byte(b'*')),
            ("[::1]", NotAHost::Byte(b'[')),
            ("::1", NotAHost::Byte(b':')),
            ("127.0.0.1", NotAHost::Address),
            ("127.1", NotAHost::Address),
            ("0x7f.1", NotAHost::Address),
            ("a.0x7f", NotAHost::Address),
            ("0x", NotAHost::Address),
            ("2130706433", NotAHost::Address),
            ("999.999", NotAHost::Address),
            (&format!("{}.example", "a".repeat(64)), NotAHost::LongLabel),
            (&long, NotAHost::Long),
        ] {
            assert_eq!(read(given.as_bytes()), Err(why), "{given}");
        }
        assert_eq!(read(&long.as_bytes()[..MAX_NAME]).map(|name| name.len()), Ok(MAX_NAME), "the control");
    }

    proptest! {
        #[test]
        fn what_is_read_is_read_again_as_it_is(bytes in "[a-zA-Z0-9_.-]{0,300}|.{0,40}") {
            if let Ok(name) = read(bytes.as_bytes()) {
                prop_assert_eq!(read(name.as_bytes()), Ok(name.clone()));
                prop_assert!(name.eq_ignore_ascii_case(&bytes) && name.len() <= MAX_NAME);
            }
        }
    }
}
