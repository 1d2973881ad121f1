//! Standard output, where nobody may read it any more.

use anyhow::Context;
use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Prints, and minds nobody who reads no further (`| head`).
pub(crate) fn print(text: &str) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(e).context("standard output cannot be written")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}
