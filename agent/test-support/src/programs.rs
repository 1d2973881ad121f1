//! Programs that a test makes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// A file that can be executed. Another process writes it: of a file that is open here for writing, what the tests beside
/// start just now has a copy until it execs, and until then nobody can run it ("text file busy").
pub fn executable(path: &Path, content: &[u8]) {
    let mut writer = Command::new("sh");
    writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut writer = writer.spawn().unwrap();
    writer.stdin.take().unwrap().write_all(content).unwrap();
    assert!(writer.wait().unwrap().success());
}
