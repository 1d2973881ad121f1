//! `edit_file`: one exact text replaced by another, in any encoding.

use crate::{
    error::Error,
    replace::{self, Lock},
    workspace::{Access, Workspace, open_file},
};
use memchr::{memchr_iter, memmem};
use serde::Deserialize;
use std::{
    io::{Read, Write},
    path::Path,
};

/// Most bytes of a file that is edited: it is held in memory twice.
const MOST_BYTES: u64 = 32 << 20;

/// Most line numbers that an error names.
const MOST_LINES: usize = 5;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

pub(crate) fn run(input: &Input, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
    if input.old_string.is_empty() {
        return Err(Error::NoEdit("old_string is empty; write_file writes a whole file"));
    }
    if input.old_string == input.new_string {
        return Err(Error::NoEdit("old_string and new_string are the same"));
    }
    let path = workspace.resolve(&input.path)?;
    workspace.admit(Access::Read, &path)?;
    workspace.admit(Access::Write, &path)?;
    // From reading to replacing: two edits of one file in one round must both be there afterwards.
    let _lock = Lock::take(&path, workspace)?;
    let before = read(&path)?;
    let (after, count, line) = edit(&before, input, &path)?;
    let how = replace::replace(&path, &after)?;
    let what = if count == 1 { format!("at line {line}") } else { format!("{count} times") };
    write!(out, "replaced the text {what} in {}{}", path.display(), how.remark()).map_err(Error::Output)
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let (file, metadata) = open_file(path)?;
    let too_large = |length| Error::TooLarge { path: path.to_owned(), length, max: MOST_BYTES };
    if metadata.len() > MOST_BYTES {
        return Err(too_large(metadata.len()));
    }
    let mut bytes = Vec::new();
    // The length is a claim: a file in /proc has none, and any file may grow.
    let read = file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(Error::io("read", path))?;
    if read as u64 > MOST_BYTES { Err(too_large(read as u64)) } else { Ok(bytes) }
}

/// The new content, how many times the text was replaced, and the line of the first.
fn edit(before: &[u8], input: &Input, path: &Path) -> Result<(Vec<u8>, usize, usize), Error> {
    let (old, new) = (input.old_string.as_bytes(), input.new_string.as_bytes());
    let finder = memmem::Finder::new(old);
    let Some(first) = finder.find(before) else {
        return Err(Error::Absent { path: path.to_owned(), hint: hint(before, &input.old_string) });
    };
    if !input.replace_all && finder.find(&before[first + 1..]).is_some() {
        return Err(Error::Ambiguous { path: path.to_owned(), lines: places(before, &finder) });
    }
    let mut after = Vec::with_capacity(before.len() + new.len());
    let (mut count, mut kept) = (0, 0);
    for at in finder.find_iter(before) {
        after.extend_from_slice(&before[kept..at]);
        after.extend_from_slice(new);
        kept = at + old.len();
        count += 1;
    }
    after.extend_from_slice(&before[kept..]);
    Ok((after, count, line_of(before, first)))
}

fn line_of(text: &[u8], at: usize) -> usize {
    memchr_iter(b'\n', &text[..at]).count() + 1
}

/// The first lines where the text begins, overlapping occurrences included.
fn places(text: &[u8], finder: &memmem::Finder<'_>) -> String {
    let mut lines = Vec::new();
    let mut from = 0;
    while let Some(at) = text.get(from..).and_then(|rest| finder.find(rest)) {
        if lines.len() == MOST_LINES {
            lines.push("...".to_owned());
            break;
        }
        lines.push(line_of(text, from + at).to_string());
        from += at + 1;
    }
    lines.join(", ")
}

/// What comes near a text that is not there.
fn hint(text: &[u8], old: &str) -> String {
    let crlf = old.replace("\r\n", "\n").replace('\n', "\r\n");
    if crlf != old && memmem::find(text, crlf.as_bytes()).is_some() {
        return "; with CRLF line ends it does".to_owned();
    }
    let trimmed = old.trim();
    if !trimmed.is_empty()
        && trimmed.len() < old.len()
        && let Some(at) = memmem::find(text, trimmed.as_bytes())
    {
        return format!("; without the white space around it, it does at line {}", line_of(text, at));
    }
    "; read the file and copy the text exactly, white space included".to_owned()
}
