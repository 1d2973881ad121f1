//! Standard output, which may be a closed pipe.

use anyhow::Context;
use std::{
    io::{self, IsTerminal, Write},
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

/// Rows as a table, one line each, every column as wide as its widest cell.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width =
        |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Asks for a yes on the terminal. Without one to ask on, the answer is no.
pub(crate) fn agreed(question: &str) -> io::Result<bool> {
    if !io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
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
