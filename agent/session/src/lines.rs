//! Lines from a pipe: split at `\n` only, of any length up to a limit, memory given back after a long one.

use std::io::{self, Read};

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;
/// A buffer that grew beyond this is given back after its line.
const KEPT: usize = 1 << 20;

/// What came next.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<'a> {
    /// A line with its `\n`, or the last one without.
    Line(&'a [u8]),
    /// The first bytes of a line that is longer than the limit; [`Lines::rest`] has the others.
    Overlong(&'a [u8]),
    /// Nothing more.
    End,
}

/// Reads lines of at most `limit` bytes.
#[derive(Debug)]
pub struct Lines<R> {
    input: R,
    limit: usize,
    /// Room for what is read; what was read stands in `start..end`. The rest is left as it is: clearing it for every
    /// read would cost more than the read.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes from `start` on that were given out.
    used: usize,
}

impl<R: Read> Lines<R> {
    /// Lines of `input`, each at most `limit` bytes with its end.
    pub fn new(input: R, limit: usize) -> Self {
        Self { input, limit, buffer: vec![0; CHUNK], start: 0, end: 0, used: 0 }
    }

    /// The next line. Blocks.
    ///
    /// # Errors
    /// The input's.
    pub fn next_line(&mut self) -> io::Result<Taken<'_>> {
        self.drop_used();
        let mut searched = 0;
        loop {
            if let Some(at) = memchr::memchr(b'\n', &self.rest_of_buffer()[searched..]) {
                self.used = searched + at + 1;
                return Ok(if self.used > self.limit {
                    self.used = self.limit;
                    Taken::Overlong(self.given())
                } else {
                    Taken::Line(self.given())
                });
            }
            searched = self.end - self.start;
            if searched >= self.limit {
                self.used = self.limit;
                return Ok(Taken::Overlong(self.given()));
            }
            if self.fill()? == 0 {
                self.used = searched;
                return Ok(if self.used == 0 { Taken::End } else { Taken::Line(self.given()) });
            }
        }
    }

    /// The next line, and with it the whole lines behind it that have come already, up to [`CHUNK`] bytes. Blocks for the
    /// first of them only.
    ///
    /// # Errors
    /// The input's.
    pub fn next_lines(&mut self) -> io::Result<Taken<'_>> {
        // The first line decides what comes; `given` is asked anew, as the borrow ends with the match.
        if !matches!(self.next_line()?, Taken::Line(_)) {
            return Ok(match self.used {
                0 => Taken::End,
                _ => Taken::Overlong(self.given()),
            });
        }
        while self.used < CHUNK {
            let behind = &self.rest_of_buffer()[self.used..];
            match memchr::memchr(b'\n', behind) {
                Some(at) if at < self.limit => self.used += at + 1,
                _ => break,
            }
        }
        Ok(Taken::Line(self.given()))
    }

    /// The rest of an overlong line, piece by piece, its `\n` included.
    ///
    /// # Errors
    /// The input's, or the first of `each`.
    pub fn rest(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        loop {
            self.drop_used();
            if let Some(at) = memchr::memchr(b'\n', self.rest_of_buffer()) {
                self.used = at + 1;
                return each(self.given());
            }
            self.used = self.end - self.start;
            each(self.given())?;
            self.drop_used();
            if self.fill()? == 0 {
                return Ok(());
            }
        }
    }

    /// What was read and not given out.
    fn rest_of_buffer(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// What is given out now.
    fn given(&self) -> &[u8] {
        &self.buffer[self.start..self.start + self.used]
    }

    /// What was given out is done with; memory that a long line needed is given back.
    fn drop_used(&mut self) {
        self.start += self.used;
        self.used = 0;
        let left = self.end - self.start;
        if left == 0 || self.buffer.len() > KEPT && left < CHUNK {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, left);
            if self.buffer.len() > KEPT {
                self.buffer.truncate(2 * CHUNK);
                self.buffer.shrink_to_fit();
            }
        }
    }

    /// Reads once; how many bytes came.
    fn fill(&mut self) -> io::Result<usize> {
        if self.buffer.len() - self.end < CHUNK / 4 && self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.buffer.len() - self.end < CHUNK / 4 {
            // Twice as much each time: a line of many chunks is copied a few times only.
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                outcome => {
                    let came = outcome?;
                    self.end += came;
                    return Ok(came);
                }
            }
        }
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

    #[test]
    fn lines_that_came_together_are_given_together() {
        let bytes = b"one\ntwo\n\nlonger than that\nlast\nunended";
        let mut lines = Lines::new(&bytes[..], 10);
        assert_eq!(lines.next_lines().expect("memory"), Taken::Line(b"one\ntwo\n\n"));
        assert_eq!(lines.next_lines().expect("memory"), Taken::Overlong(b"longer tha"));
        lines.rest(|_| Ok(())).expect("memory");
        assert_eq!(lines.next_lines().expect("memory"), Taken::Line(b"last\n"));
        assert_eq!(lines.next_lines().expect("memory"), Taken::Line(b"unended"));
        assert_eq!(lines.next_lines().expect("memory"), Taken::End);
        let mut lines = Lines::new(Slow(bytes, 4), 10);
        assert_eq!(lines.next_lines().expect("memory"), Taken::Line(b"one\n"), "nobody waits for the next");
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
        assert!(lines.buffer.capacity() <= 1 << 20);
    }
}
