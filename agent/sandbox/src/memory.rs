//! Which process the kernel ends when memory runs out.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
};

/// How soon the kernel ends this process when memory runs out: 0, and what is above and below, to -1000 for never.
pub const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// The unit keeps the kernel from choosing the daemon when the host's memory runs out. How much a worker has is its container's or
/// its agent's doing: it gives up what it has of that from the daemon. Whoever started the daemon otherwise is not overruled.
///
/// # Errors
/// The file cannot be read or written.
pub fn like_any_other() -> io::Result<()> {
    if fs::read_to_string(OOM_SCORE)?.starts_with('-') {
        OpenOptions::new().write(true).open(OOM_SCORE)?.write_all(b"0")?;
    }
    Ok(())
}
