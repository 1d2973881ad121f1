//! The client's end: the server's bytes as they come, and our own lines only between two of the server's.

use std::io::{self, Write};

/// Most bytes of ours that wait for the end of a line of the server's.
const MOST: usize = 1 << 20;

/// The client's end.
#[derive(Debug)]
pub(crate) struct Outlet<C> {
    client: C,
    /// A line of the server's has begun and not ended.
    within: bool,
    /// Lines of ours for after it.
    ours: Vec<u8>,
}

impl<C: Write> Outlet<C> {
    /// Before the first line.
    pub(crate) const fn new(client: C) -> Self {
        Self { client, within: false, ours: Vec::new() }
    }

    /// Writes what the server said: whole lines, or pieces of one.
    ///
    /// # Errors
    /// The client's.
    pub(crate) fn servers(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(last) = bytes.last() else { return Ok(()) };
        self.client.write_all(bytes)?;
        self.within = *last != b'\n';
        if !self.within && !self.ours.is_empty() {
            self.client.write_all(&std::mem::take(&mut self.ours))?;
        }
        self.client.flush()
    }

    /// Writes whole lines of ours, now or behind the server's line. `false`: a line of the server's does not end, and
    /// as much waits for that as may.
    ///
    /// # Errors
    /// The client's.
    pub(crate) fn ours(&mut self, lines: &[u8]) -> io::Result<bool> {
        if !self.within {
            self.client.write_all(lines)?;
            return self.client.flush().map(|()| true);
        }
        let room = self.ours.len() + lines.len() <= MOST;
        if room {
            self.ours.extend_from_slice(lines);
        }
        Ok(room)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Outlet};

    #[test]
    fn ours_stand_between_the_servers_lines_only() {
        let mut outlet = Outlet::new(Vec::new());
        assert!(outlet.ours(b"a\n").expect("memory"));
        for (piece, ours) in [("{\"x", "b\n"), ("yz", "c\n"), ("\"}\n", "d\n"), ("", "e\n"), ("last", "f\n")]
        {
            outlet.servers(piece.as_bytes()).expect("memory");
            assert!(outlet.ours(ours.as_bytes()).expect("memory"));
        }
        assert_eq!(String::from_utf8_lossy(&outlet.client), "a\n{\"xyz\"}\nb\nc\nd\ne\nlast");
    }

    #[test]
    fn what_waits_for_a_line_without_end_is_bounded() {
        let mut outlet = Outlet::new(Vec::new());
        outlet.servers(b"{").expect("memory");
        assert!(outlet.ours(&[b'x'; MOST]).expect("memory"));
        assert!(!outlet.ours(b"\n").expect("memory"));
        outlet.servers(b"\n").expect("memory");
        assert_eq!(outlet.client.len(), MOST + 2);
        assert!(outlet.ours(b"\n").expect("memory"), "and there is room again");
    }
}
