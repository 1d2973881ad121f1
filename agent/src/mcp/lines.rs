//! Lines from a pipe: split at `\n` only, of any length up to a limit, memory given back after a long one.

use std::io::{self, Read};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// A buffer that grew beyond this is given back after its line.
const KEPT: usize = 1 << 20;

/// What came next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken<'a> {
    /// A line with its `\n`, or the last one without.
    Line(&'a [u8]),
    /// The first bytes of a line that is longer than the limit; [`Lines::rest`] has the others.
    Overlong(&'a [u8]),
    /// Nothing more.
    End,
}

/// Reads lines of at most `limit` bytes.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    limit: usize,
    buffer: Vec<u8>,
    /// Bytes at the front that were given out.
    used: usize,
}

impl<R: Read> Lines<R> {
    /// Lines of `input`, each at most `limit` bytes with its end.
    pub(crate) fn new(input: R, limit: usize) -> Self {
        Self { input, limit, buffer: Vec::with_capacity(CHUNK), used: 0 }
    }

    /// The next line. Blocks.
    ///
    /// # Errors
    /// The input's.
    pub(crate) fn next_line(&mut self) -> io::Result<Taken<'_>> {
        self.buffer.drain(..self.used);
        self.used = 0;
        if self.buffer.capacity() > KEPT && self.buffer.len() < CHUNK {
            self.buffer.shrink_to(CHUNK);
        }
        let mut searched = 0;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.buffer[searched..]) {
                self.used = searched + at + 1;
                return Ok(if self.used > self.limit {
                    self.used = self.limit;
                    Taken::Overlong(&self.buffer[..self.limit])
                } else {
                    Taken::Line(&self.buffer[..self.used])
                });
            }
            searched = self.buffer.len();
            if searched >= self.limit {
                self.used = self.limit;
                return Ok(Taken::Overlong(&self.buffer[..self.limit]));
            }
            if self.fill()? == 0 {
                self.used = self.buffer.len();
                return Ok(if self.used == 0 { Taken::End } else { Taken::Line(&self.buffer) });
            }
        }
    }

    /// The rest of an overlong line, piece by piece, its `\n` included.
    ///
    /// # Errors
    /// The input's, or the first of `each`.
    pub(crate) fn rest(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        loop {
            self.buffer.drain(..self.used);
            self.used = 0;
            if let Some(at) = memchr::memchr(b'\n', &self.buffer) {
                self.used = at + 1;
                return each(&self.buffer[..self.used]);
            }
            self.used = self.buffer.len();
            each(&self.buffer)?;
            self.buffer.clear();
            self.used = 0;
            self.buffer.shrink_to(CHUNK);
            if self.fill()? == 0 {
                return Ok(());
            }
        }
    }

    /// Reads once; how many bytes came.
    fn fill(&mut self) -> io::Result<usize> {
        let length = self.buffer.len();
        self.buffer.resize(length + CHUNK, 0);
        let outcome = loop {
            match self.input.read(&mut self.buffer[length..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => break outcome,
            }
        };
        self.buffer.truncate(length + outcome.as_ref().copied().unwrap_or(0));
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::{Lines, Taken};
    use std::io::{self, Read};

    /// Gives out its bytes in pieces of `step`.
    struct Slow<'a>(&'a [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let n = self.1.min(self.0.len()).min(into.len());
            into[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_is_lost_or_changed(bytes in proptest::collection::vec(proptest::sample::select(vec![b'\n', b'\r', b'a', 0xe2]), 0..60), step in 1usize..9, limit in 1usize..20) {
            let mut lines = Lines::new(Slow(&bytes, step), limit);
            let mut all = Vec::new();
            loop {
                let overlong = match lines.next_line().expect("memory") {
                    Taken::End => break,
                    Taken::Line(line) => {
                        proptest::prop_assert!(line.len() <= limit);
                        proptest::prop_assert!(!line[..line.len() - 1].contains(&b'\n'));
                        all.extend_from_slice(line);
                        false
                    }
                    Taken::Overlong(start) => {
                        all.extend_from_slice(start);
                        true
                    }
                };
                if overlong {
                    lines.rest(|piece| { all.extend_from_slice(piece); Ok(()) }).expect("memory");
                }
            }
            proptest::prop_assert_eq!(all, bytes);
        }
    }

    #[test]
    fn a_long_line_does_not_keep_its_memory() {
        let mut bytes = vec![b'x'; 8 << 20];
        bytes.extend_from_slice(b"\nshort\n");
        let mut lines = Lines::new(&bytes[..], 64 << 20);
        assert!(matches!(lines.next_line(), Ok(Taken::Line(line)) if line.len() == (8 << 20) + 1));
        assert_eq!(lines.next_line().expect("memory"), Taken::Line(b"short\n"));
        assert!(lines.buffer.capacity() < 1 << 20);
    }
}
