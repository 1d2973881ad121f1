//! /etc/hosts, as the C library reads it.

use std::{fs::File, io::Read, net::IpAddr};

/// Bytes of it that are read.
const MOST: u64 = 4 << 20;

/// What is in it; nothing where there is none.
pub(crate) fn read() -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(file) = File::open("/etc/hosts") {
        // What was read before an error counts.
        let _ = file.take(MOST).read_to_end(&mut text);
    }
    text
}

/// The addresses of a name in such a file, in its order.
pub(crate) fn find(text: &[u8], name: &str) -> Vec<IpAddr> {
    let of_line = |line: &[u8]| {
        let line = std::str::from_utf8(line.split(|byte| *byte == b'#').next()?).ok()?;
        let mut words = line.split_ascii_whitespace();
        let addr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(addr)
    };
    text.split(|byte| *byte == b'\n').filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_addresses_of_its_lines() {
        let text = b"# 10.0.0.9 a.example\n10.0.0.1\tA.example b.example # a comment c.example\r\n\
            10.0.0.2  a.example\nfe80::1%eth0 a.example\nno.address a.example\n::1 a.example\xff\n::1 a.example";
        let all = |name| find(text, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(all("a.example"), ["10.0.0.1", "10.0.0.2", "::1"]);
        assert_eq!(all("b.example"), ["10.0.0.1"]);
        for none in ["c.example", "example", "a", "10.0.0.1", "no.address"] {
            assert!(all(none).is_empty(), "{none}");
        }
    }
}
