//! The one text of that process which root writes where programs look for whom to trust: it is nothing but one certificate.

use super::MAX_CERTIFICATE;
use serde::{Deserialize, Deserializer, Serialize, de};
use std::borrow::Cow;

const BEGIN: &str = "-----BEGIN CERTIFICATE-----\n";
const END: &str = "-----END CERTIFICATE-----\n";
/// Characters of a line.
const LINE: usize = 64;
/// A DER sequence whose length has two bytes: any certificate longer than 255 bytes.
const SEQUENCE: [u8; 2] = [0x30, 0x82];
/// Bytes before what the length is of.
const HEADER: usize = 4;

/// One certificate, as PEM: one block of lines of 64 characters, its bytes one DER sequence, nothing before it and nothing behind.
/// Whose it is and what it may vouch for is not looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Certificate(String);

/// Why a text is no certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotACertificate {
    /// Too long.
    #[error("it is longer than {MAX_CERTIFICATE} bytes")]
    Long,
    /// Something before or behind it, or nothing of it.
    #[error("it is not one PEM block of a certificate")]
    Block,
    /// Not base64 in lines.
    #[error("it is not base64 in lines of {LINE} characters")]
    Base64,
    /// Not one sequence.
    #[error("its bytes are not one DER sequence")]
    Sequence,
}

impl Certificate {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Certificate {
    type Error = NotACertificate;

    fn try_from(text: String) -> Result<Self, NotACertificate> {
        check(&text).map(|()| Self(text))
    }
}

impl<'de> Deserialize<'de> for Certificate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Cow::<'de, str>::deserialize(deserializer)?.into_owned().try_into().map_err(de::Error::custom)
    }
}

fn check(text: &str) -> Result<(), NotACertificate> {
    if text.len() > MAX_CERTIFICATE {
        return Err(NotACertificate::Long);
    }
    let inside = text.strip_prefix(BEGIN).and_then(|rest| rest.strip_suffix(END));
    let inside = inside.and_then(|inside| inside.strip_suffix('\n')).ok_or(NotACertificate::Block)?;
    let mut lines = inside.split('\n').peekable();
    let mut characters = Vec::with_capacity(inside.len());
    while let Some(line) = lines.next() {
        if line.is_empty() || line.len() > LINE || (line.len() < LINE && lines.peek().is_some()) {
            return Err(NotACertificate::Base64);
        }
        characters.extend_from_slice(line.as_bytes());
    }
    let padding = characters.iter().rev().take_while(|byte| **byte == b'=').count();
    characters.truncate(characters.len() - padding);
    if padding > 2 || (characters.len() + padding) % 4 != 0 {
        return Err(NotACertificate::Base64);
    }
    let digits: Option<Vec<u8>> = characters.iter().map(|byte| digit(*byte)).collect();
    let digits = digits.ok_or(NotACertificate::Base64)?;
    let bytes = digits.len() * 6 / 8;
    let head = digits.first_chunk::<6>().ok_or(NotACertificate::Sequence)?;
    let head = head.iter().fold(0_u64, |whole, digit| whole << 6 | u64::from(*digit));
    let [.., a, b, high, low] = (head >> 4).to_be_bytes();
    if [a, b] != SEQUENCE || usize::from(u16::from_be_bytes([high, low])) + HEADER != bytes {
        return Err(NotACertificate::Sequence);
    }
    Ok(())
}

fn digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sequence of so many bytes, all of them zero: `MIIB` and so on.
    fn pem(bytes: u16) -> String {
        let mut all = vec![0x30, 0x82, (bytes >> 8) as u8, (bytes & 255) as u8];
        all.resize(all.len() + usize::from(bytes), 0);
        let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in all.chunks(3) {
            let whole = group.iter().fold(0_u32, |whole, byte| whole << 8 | u32::from(*byte))
                << (8 * (3 - group.len()));
            for at in 0..4 {
                let digit = alphabet[(whole >> (18 - 6 * at) & 63) as usize];
                text.push(if at <= group.len() { char::from(digit) } else { '=' });
            }
        }
        let lines: Vec<&str> =
            text.as_bytes().chunks(LINE).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("{BEGIN}{}\n{END}", lines.join("\n"))
    }

    fn read(text: &str) -> Result<String, NotACertificate> {
        Certificate::try_from(text.to_owned()).map(|certificate| certificate.as_str().to_owned())
    }

    #[test]
    fn one_certificate_is_one_and_nothing_else() {
        for bytes in 300..310 {
            assert_eq!(read(&pem(bytes)), Ok(pem(bytes)), "{bytes}");
        }
        let one = pem(300);
        for (text, why) in [
            (format!("{one}{one}"), NotACertificate::Base64),
            (format!("{one}\n"), NotACertificate::Block),
            (format!("# trust\n{one}"), NotACertificate::Block),
            (one.replace("CERTIFICATE", "TRUSTED CERTIFICATE"), NotACertificate::Block),
            (one.replace('\n', "\r\n"), NotACertificate::Block),
            (one.replacen("AAAA", "AA\u{e4}", 1), NotACertificate::Base64),
            (one.replacen("AAAA", "AA-_", 1), NotACertificate::Base64),
            (one.replacen("AAAA", "AA==", 1), NotACertificate::Base64),
            (one.replacen("AAAA", "AAA\n", 1), NotACertificate::Base64),
            (one.replacen("MII", "MIA", 1), NotACertificate::Sequence),
            (one.replacen("MIIBLA", "MIIBLQ", 1), NotACertificate::Sequence),
            (format!("{BEGIN}{END}"), NotACertificate::Block),
            (format!("{BEGIN}\n{END}"), NotACertificate::Base64),
            (format!("{BEGIN}MIIB\n{END}"), NotACertificate::Sequence),
            (pem(30_000), NotACertificate::Long),
            (String::new(), NotACertificate::Block),
        ] {
            assert_eq!(read(&text), Err(why), "{text}");
        }
        let said = format!("{:?}", one.replace('\n', "\\n")).replace("\\\\n", "\\n");
        assert!(serde_json::from_str::<Certificate>(&said).is_ok());
        assert!(serde_json::from_str::<Certificate>("\"x\"").is_err());
    }
}
