//! The person's terminal while the guest has it: raw, and its size passed on.

use anyhow::{Context, Result};
use rustix::termios::{self, OptionalActions, Termios};
use std::io::IsTerminal;

/// Whether standard input, output and error are all a person's terminal.
pub(crate) fn is_whole() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && std::io::stderr().is_terminal()
}

/// Rows and columns.
pub(crate) fn size() -> (u16, u16) {
    termios::tcgetwinsize(std::io::stdout()).map_or((24, 80), |size| (size.ws_row, size.ws_col))
}

/// A terminal in raw mode, as it was again when dropped: keys such as Ctrl-C go to the guest.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    /// Makes standard input's terminal raw.
    pub(crate) fn enter() -> Result<Raw> {
        let before = termios::tcgetattr(std::io::stdin()).context("cannot read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &raw)
            .context("cannot make the terminal raw")?;
        Ok(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}
