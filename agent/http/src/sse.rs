//! Lines of server-sent events from bytes as they come: what every reader of such a stream needs, whatever it makes of the
//! fields. Pure. <https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation>
//!
//! Ours, because the one library for it has no bound on an event's size. LF, CRLF and CR end a line; a character may be
//! split between two pieces.

/// Most bytes of room for a line that are kept for the next.
const KEPT: usize = 64 << 10;

/// What becomes of the lines.
pub trait Lines {
    /// Why the stream cannot be read on.
    type Error;

    /// Whether a line may have so many bytes, whole or not.
    ///
    /// # Errors
    /// It is too long.
    fn room_for(&self, bytes: usize) -> Result<(), Self::Error>;

    /// A line that is whole, without its end. An empty one ends an event.
    ///
    /// # Errors
    /// As the reader has them.
    fn line(&mut self, line: &[u8]) -> Result<(), Self::Error>;
}

/// A stream, cut into lines.
#[derive(Debug, Default)]
pub struct Cutter {
    /// Bytes that are no whole line yet.
    line: Vec<u8>,
    /// The last byte was a CR: a LF now belongs to it.
    after_cr: bool,
    /// The first line may begin with a byte order mark.
    begun: bool,
}

impl Cutter {
    /// Bytes that it takes in memory.
    pub fn held(&self) -> usize {
        self.line.capacity()
    }

    /// Takes bytes in and hands on each line that is whole.
    ///
    /// # Errors
    /// As [`Lines`] has them; nothing of the stream can be used any more.
    pub fn feed<L: Lines>(&mut self, mut bytes: &[u8], lines: &mut L) -> Result<(), L::Error> {
        // Nothing decides nothing: a CR that waits for its LF still does.
        if !bytes.is_empty() && std::mem::take(&mut self.after_cr) {
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(at) = memchr::memchr2(b'\n', b'\r', bytes) {
            let (ended, rest) = bytes.split_at(at);
            self.extend(ended, lines)?;
            let is_cr = rest.first() == Some(&b'\r');
            bytes = rest.get(1..).unwrap_or_default();
            if is_cr {
                self.after_cr = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let mut line = std::mem::take(&mut self.line);
            let marked = !std::mem::replace(&mut self.begun, true);
            let text = line.strip_prefix(b"\xef\xbb\xbf").filter(|_| marked).unwrap_or(&line);
            lines.line(text)?;
            // A long one is rare, and there are many streams.
            if line.capacity() <= KEPT {
                line.clear();
                self.line = line;
            }
        }
        self.extend(bytes, lines)
    }

    fn extend<L: Lines>(&mut self, bytes: &[u8], lines: &L) -> Result<(), L::Error> {
        // As it would be if the line came in pieces.
        lines.room_for(self.line.len() + bytes.len())?;
        self.line.extend_from_slice(bytes);
        Ok(())
    }
}

/// A line's field and its value. A comment's field is empty.
pub fn field(line: &[u8]) -> (&[u8], &[u8]) {
    let (field, value) = match memchr::memchr(b':', line) {
        Some(at) => (line.get(..at).unwrap_or_default(), line.get(at + 1..).unwrap_or_default()),
        None => (line, &[][..]),
    };
    (field, value.strip_prefix(b" ").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Seen(Vec<String>, usize);

    impl Lines for Seen {
        type Error = usize;

        fn room_for(&self, bytes: usize) -> Result<(), usize> {
            if bytes > self.1 { Err(bytes) } else { Ok(()) }
        }

        fn line(&mut self, line: &[u8]) -> Result<(), usize> {
            self.0.push(String::from_utf8_lossy(line).into_owned());
            Ok(())
        }
    }

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut cutter, mut seen) = (Cutter::default(), Seen(Vec::new(), 1 << 20));
        for piece in pieces {
            cutter.feed(piece, &mut seen).unwrap();
        }
        seen.0
    }

    #[test]
    fn every_end_of_a_line_is_one_wherever_it_is_cut() {
        for end in ["\n", "\r\n", "\r"] {
            let text = ["\u{feff}a: 1", "", "\u{feff}b", "rest"].join(end);
            let expected = ["a: 1", "", "\u{feff}b"];
            for at in 0..=text.len() {
                let (first, second) = text.as_bytes().split_at(at);
                assert_eq!(lines(&[first, b"", second]), expected, "{end:?} {at}");
            }
        }
    }

    #[test]
    fn a_line_is_as_long_as_there_is_room_for_and_no_longer() {
        let feed = |text: &str| Cutter::default().feed(text.as_bytes(), &mut Seen(Vec::new(), 4));
        assert_eq!(feed("1234\n1234"), Ok(()));
        assert_eq!(feed("12345\n"), Err(5));
        assert_eq!(feed("1\n12345"), Err(5));
        let (mut cutter, mut seen) = (Cutter::default(), Seen(Vec::new(), 4));
        assert_eq!(cutter.feed(b"123", &mut seen), Ok(()));
        assert_eq!(cutter.feed(b"45", &mut seen), Err(5));
    }

    #[test]
    fn a_field_is_what_stands_before_the_first_colon() {
        assert_eq!(field(b"data:  x:y"), (&b"data"[..], &b" x:y"[..]));
        assert_eq!(field(b"data"), (&b"data"[..], &b""[..]));
        assert_eq!(field(b": comment"), (&b""[..], &b"comment"[..]));
    }
}
