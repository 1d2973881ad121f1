//! `read_file`: a file's text, or some of its lines, streamed.

use crate::{
    error::Error,
    workspace::{Access, Workspace, open_file},
};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Read, Write};

/// Bytes at the start of a file that are looked at for a NUL.
pub(crate) const PROBE: usize = 8 << 10;

/// Bytes that are read at a time.
const CHUNK: usize = 64 << 10;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(crate) fn run(input: &Input, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
    let offset = input.offset.unwrap_or(1);
    if offset == 0 {
        return Err(Error::Range { name: "offset", wanted: "1 or more: lines are counted from 1" });
    }
    if input.limit == Some(0) {
        return Err(Error::Range { name: "limit", wanted: "1 or more" });
    }
    let path = workspace.resolve(&input.path)?;
    workspace.admit(Access::Read, &path)?;
    let (file, metadata) = open_file(&path)?;
    let mut reader = BufReader::with_capacity(CHUNK, file);
    let start = reader.fill_buf().map_err(Error::io("read", &path))?;
    if memchr::memchr(0, &start[..start.len().min(PROBE)]).is_some() {
        return Err(Error::Binary { path, length: metadata.len() });
    }
    if start.is_empty() && offset == 1 {
        return out.write_all(b"[empty file]").map_err(Error::Output);
    }

    let mut lines = Lines { left: offset - 1, done: 0 };
    let skipped = |error| Error::Io { doing: "read", path: path.clone(), source: error };
    while lines.left > 0 {
        workspace.check_time()?;
        let chunk = reader.fill_buf().map_err(skipped)?;
        if chunk.is_empty() {
            return Err(Error::PastEnd { path, lines: lines.done, offset });
        }
        let used = lines.take(chunk);
        reader.consume(used);
    }
    if reader.fill_buf().map_err(skipped)?.is_empty() {
        return Err(Error::PastEnd { path, lines: lines.done, offset });
    }

    let mut lines = Lines { left: input.limit.unwrap_or(u64::MAX), done: 0 };
    while lines.left > 0 {
        workspace.check_time()?;
        let chunk = reader.fill_buf().map_err(skipped)?;
        if chunk.is_empty() {
            return Ok(());
        }
        let used = lines.take(chunk);
        out.write_all(&chunk[..used]).map_err(Error::Output)?;
        reader.consume(used);
    }
    let mut one = [0; 1];
    if reader.read(&mut one).map_err(skipped)? > 0 {
        let next = offset.saturating_add(lines.done);
        write!(out, "[the file goes on at line {next}]").map_err(Error::Output)?;
    }
    Ok(())
}

/// Counts lines down.
struct Lines {
    left: u64,
    done: u64,
}

impl Lines {
    /// How many bytes of `chunk` belong to the lines that are left; counts those that end.
    fn take(&mut self, chunk: &[u8]) -> usize {
        for end in memchr::memchr_iter(b'\n', chunk) {
            self.left -= 1;
            self.done += 1;
            if self.left == 0 {
                return end + 1;
            }
        }
        chunk.len()
    }
}
