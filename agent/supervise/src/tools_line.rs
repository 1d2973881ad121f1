//! The line that a worker has to the auditor, as its supervisor keeps track of it: one at a time, and not too often.

use std::{
    collections::VecDeque,
    io,
    net::Shutdown,
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

/// So many lines a worker may be given in [`WHILE`]: it needs one, another with each profile, and another when the auditor ends.
const MOST: usize = 6;
const WHILE: Duration = Duration::from_secs(10);

/// The lines that one worker was given. The last ends when this is dropped.
#[derive(Debug, Default)]
pub struct ToolsLines {
    last: Option<UnixStream>,
    given: VecDeque<Instant>,
}

impl ToolsLines {
    /// Ends the line that the worker has: it is to be given another.
    ///
    /// # Errors
    /// It had too many lately, in words.
    pub fn make_room(&mut self) -> Result<(), String> {
        self.given.retain(|at| at.elapsed() < WHILE);
        if self.given.len() >= MOST {
            return Err(format!(
                "it had {MOST} lines to the auditor within {WHILE:?}; it can have another then"
            ));
        }
        self.end();
        Ok(())
    }

    /// Notes the line that it is given.
    ///
    /// # Errors
    /// As dup(2).
    pub fn give(&mut self, line: &UnixStream) -> io::Result<()> {
        self.given.push_back(Instant::now());
        self.last = Some(line.try_clone()?);
        Ok(())
    }

    fn end(&mut self) {
        // The worker has it as well, or whoever it passed that on to.
        if let Some(last) = self.last.take() {
            let _ = last.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for ToolsLines {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_worker_has_one_line_and_not_ever_another() {
        let mut lines = ToolsLines::default();
        let pairs: Vec<_> = (0..MOST).map(|_| UnixStream::pair().expect("a pair")).collect();
        for (line, _) in &pairs {
            lines.make_room().expect("room");
            lines.give(line).expect("noted");
        }
        assert!(lines.make_room().is_err());
        let is_over = |auditor: &UnixStream| {
            auditor.set_nonblocking(true).expect("a flag");
            matches!((&*auditor).read(&mut [0]), Ok(0))
        };
        let over: Vec<bool> = pairs.iter().map(|(_, auditor)| is_over(auditor)).collect();
        assert!(over[..MOST - 1].iter().all(|over| *over) && !over[MOST - 1], "{over:?}");
        lines.given.iter_mut().for_each(|at| *at -= WHILE);
        lines.make_room().expect("later there is room");
        lines.give(&pairs[0].0).expect("noted");
        drop(lines);
        assert!(pairs.iter().all(|(_, auditor)| is_over(auditor)), "the worker ended");
    }
}
