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
