//! Standard output, which may be a closed pipe.

use anyhow::Context;
use ringfence_base::escape;
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

/// Characters of a cell that somebody else chose.
const CELL: usize = 64;

/// A word that somebody else chose, as a cell among others: escaped, blanks included, and its beginning, where it is long.
pub(crate) fn word(text: &str) -> String {
    let mut shown = escape::line(text).replace(' ', "\\x20");
    if let Some((end, _)) = shown.char_indices().nth(CELL) {
        shown.truncate(end);
        shown.push_str("...");
    }
    shown
}

/// Rows as a table, one line each, every column as wide as its widest cell. No cell looks like two.
pub(crate) fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.as_ref().iter().map(|cell| apart(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A cell as it is shown. One without a text stays that.
fn apart(cell: &str) -> String {
    if cell.trim().is_empty() { String::new() } else { escape::apart(cell) }
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

#[cfg(test)]
mod tests {
    use super::{CELL, table, word};

    #[test]
    fn no_cell_looks_like_two_or_takes_the_room_of_others() {
        assert_eq!([word("Edit"), word("a  ok"), word("\n")], ["Edit", r"a\x20\x20ok", r"\x0a"]);
        assert_eq!(word(&"é".repeat(CELL)), "é".repeat(CELL));
        assert_eq!(word(&"é".repeat(CELL + 1)), "é".repeat(CELL) + "...");
        let rows = [["A", "B", "C"], ["a  x", "", "c"], ["a", "b c", ""]].map(|row| row.map(str::to_owned));
        let said = "A        B    C\na \\x20x       c\na        b c\n";
        assert_eq!(table(&rows), said);
    }
}
