//! JSON-like text as strings, numbers and brackets.

/// A piece of it.
pub(super) enum Token {
    /// A bracket; whether it is an object's.
    Open(bool),
    Close,
    Comma,
    /// A number that stands alone: where it begins and ends.
    Number {
        start: usize,
        end: usize,
    },
    /// A string: the range between its quotes, and whether a colon follows.
    String {
        start: usize,
        end: usize,
        is_key: bool,
    },
}

/// Walks JSON-like text by its strings and brackets. Quotes and brackets are ASCII, so byte positions are char borders.
pub(super) struct Strings<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Strings<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn next_token(&mut self) -> Option<Token> {
        let bytes = self.text.as_bytes();
        while let Some(byte) = bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'{' | b'[' => return Some(Token::Open(*byte == b'{')),
                b'}' | b']' => return Some(Token::Close),
                b',' => return Some(Token::Comma),
                b'"' => {
                    let start = self.at;
                    let mut end = start;
                    while let Some(found) = memchr::memchr2(b'"', b'\\', bytes.get(end..).unwrap_or_default())
                    {
                        end += found;
                        if bytes.get(end) == Some(&b'"') {
                            break;
                        }
                        end += 2;
                    }
                    // A backslash at the very end skips beyond it; without a quote the string ends with the text.
                    let end = if bytes.get(end) == Some(&b'"') { end } else { bytes.len() };
                    self.at = (end + 1).min(bytes.len());
                    let rest = bytes.get(self.at..).unwrap_or_default();
                    let is_key = rest.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b':');
                    return Some(Token::String { start, end, is_key });
                }
                b'-' | b'0'..=b'9' => {
                    let start = self.at - 1;
                    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-._".contains(byte);
                    let rest = bytes.get(start..).unwrap_or_default();
                    let number =
                        rest.get(..rest.iter().take_while(|byte| is_part(byte)).count()).unwrap_or_default();
                    self.at = start + number.len();
                    // A hyphen of prose is none.
                    if number.iter().any(u8::is_ascii_digit) {
                        return Some(Token::Number { start, end: self.at });
                    }
                }
                _ => {}
            }
        }
        None
    }
}
