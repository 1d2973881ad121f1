//! Standard output, which may be a closed pipe.

use anyhow::Context;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Prints, and ignores a closed pipe (`| head`).
pub(crate) fn print(text: &str) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(e).context("standard output cannot be written")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// A number and what it counts, whose plural ends in s: `1 session`, `2 sessions`.
pub(crate) fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_every_other_number_plural() {
        let texts = [0, 1, 2, 11].map(|number| counted(number, "session"));
        assert_eq!(texts, ["0 sessions", "1 session", "2 sessions", "11 sessions"]);
    }
}
