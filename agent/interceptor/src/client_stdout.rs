//! The client's end: the server's bytes as they come, and our own lines only between two of the server's.

use std::io::{self, Write};

/// Most bytes of ours that wait for the end of a line of the server's.
const MOST: usize = 1 << 20;

/// The client's end.
#[derive(Debug)]
pub(crate) struct ClientStdout<C> {
    client: C,
    /// A line of the server's has begun and not ended.
    within: bool,
    /// Lines of ours for after it.
    pending: Vec<u8>,
}

impl<C: Write> ClientStdout<C> {
    /// Before the first line.
    pub(crate) const fn new(client: C) -> Self {
        Self { client, within: false, pending: Vec::new() }
    }

    /// Writes the server's output: whole lines, or pieces of one.
    ///
    /// # Errors
    /// The client's.
    pub(crate) fn write_from_server(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        self.client.write_all(bytes)?;
        self.within = *last != b'\n';
        if !self.within && !self.pending.is_empty() {
            self.client.write_all(&std::mem::take(&mut self.pending))?;
        }
        self.client.flush()
    }

    /// Writes whole lines of ours, now or behind the server's line. `false`: a line of the server's does not end, and
    /// as much waits for that as may.
    ///
    /// # Errors
    /// The client's.
    pub(crate) fn write_own(&mut self, lines: &[u8]) -> io::Result<bool> {
        if !self.within {
            self.client.write_all(lines)?;
            return self.client.flush().map(|()| true);
        }
        let room = self.pending.len() + lines.len() <= MOST;
        if room {
            self.pending.extend_from_slice(lines);
        }
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    use super::{ClientStdout, MOST};

    #[test]
    fn ours_stand_between_the_servers_lines_only() {
        let mut stdout = ClientStdout::new(Vec::new());
        assert!(stdout.write_own(b"a\n").expect("memory"));
        for (piece, ours) in [("{\"x", "b\n"), ("yz", "c\n"), ("\"}\n", "d\n"), ("", "e\n"), ("last", "f\n")]
        {
            stdout.write_from_server(piece.as_bytes()).expect("memory");
            assert!(stdout.write_own(ours.as_bytes()).expect("memory"));
        }
        assert_eq!(String::from_utf8_lossy(&stdout.client), "a\n{\"xyz\"}\nb\nc\nd\ne\nlast");
    }

    #[test]
    fn what_waits_for_a_line_without_end_is_bounded() {
        let mut stdout = ClientStdout::new(Vec::new());
        stdout.write_from_server(b"{").expect("memory");
        assert!(stdout.write_own(&[b'x'; MOST]).expect("memory"));
        assert!(!stdout.write_own(b"\n").expect("memory"));
        stdout.write_from_server(b"\n").expect("memory");
        assert_eq!(stdout.client.len(), MOST + 2);
        assert!(stdout.write_own(b"\n").expect("memory"), "and there is room again");
    }
}
