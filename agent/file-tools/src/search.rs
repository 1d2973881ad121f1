//! `search`: lines that match a regular expression, in one file or below a directory.
//!
//! The engine is linear in the text's length: no pattern makes it run away.

use crate::{
    error::Error,
    list,
    read::PROBE,
    workspace::{Access, Workspace, open_file},
};
use regex_lite::{Regex, RegexBuilder};
use serde::Deserialize;
use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

/// Most matching lines that a call may request.
pub(crate) const MOST_RESULTS: usize = 2_000;

/// Matching lines by default.
const RESULTS: usize = 200;

/// Characters of a matching line that are shown.
const LINE_SHOWN: usize = 400;

/// Bytes of a line that are searched; what is beyond is another line to the search.
const LINE_SEARCHED: u64 = 1 << 20;

/// Directories within directories.
const DEEPEST: usize = 128;

/// Bytes that a compiled pattern may take.
const PATTERN_SIZE: usize = 1 << 20;

/// Most characters of a pattern.
const PATTERN_LENGTH: usize = 10_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    max_results: Option<usize>,
}

pub(crate) fn run(input: &Input, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
    let most = input.max_results.unwrap_or(RESULTS);
    if !(1..=MOST_RESULTS).contains(&most) {
        return Err(Error::Range { name: "max_results", wanted: "from 1 to 2000" });
    }
    let mut search = Search {
        pattern: compile("pattern", &input.pattern, input.ignore_case)?,
        names: input.glob.as_deref().map(glob).transpose()?,
        workspace,
        out,
        left: most,
        files: 0,
        binary: 0,
        unreadable: 0,
        deep: 0,
    };
    let path = workspace.resolve(input.path.as_deref().unwrap_or("."))?;
    workspace.admit(Access::Read, &path)?;
    let is_directory = fs::metadata(&path).map_err(Error::io("look at", &path))?.is_dir();
    let ended = if is_directory {
        search.below(&path)
    } else {
        // Named on its own, it is searched whatever its name, and what is wrong with it is an error.
        let shown = PathBuf::from(input.path.as_deref().unwrap_or("."));
        search.file(&path, &shown)
    };
    match ended {
        Ok(()) => {}
        // What was found so far is still worth having.
        Err(Error::TimedOut) => {
            writeln!(search.out, "[the time is over: the search is not complete]").map_err(Error::Output)?
        }
        Err(error) => return Err(error),
    }
    search.summary(most)
}

fn compile(name: &'static str, pattern: &str, ignore_case: bool) -> Result<Regex, Error> {
    if pattern.chars().count() > PATTERN_LENGTH {
        return Err(Error::Range { name, wanted: "at most 10000 characters" });
    }
    RegexBuilder::new(pattern)
        .case_insensitive(ignore_case)
        .size_limit(PATTERN_SIZE)
        .build()
        .map_err(|source| Error::Pattern { name, source })
}

/// A file name pattern with `*` and `?` as a regular expression.
fn glob(glob: &str) -> Result<Regex, Error> {
    let mut pattern = String::from("^");
    let mut one = [0; 4];
    for character in glob.chars() {
        match character {
            '*' => pattern.push_str("(?s:.*)"),
            '?' => pattern.push_str("(?s:.)"),
            _ => pattern.push_str(&regex_lite::escape(character.encode_utf8(&mut one))),
        }
    }
    pattern.push('$');
    compile("glob", &pattern, false)
}

struct Search<'a> {
    pattern: Regex,
    names: Option<Regex>,
    workspace: &'a Workspace<'a>,
    out: &'a mut dyn Write,
    /// Lines that may still be shown.
    left: usize,
    files: u64,
    binary: u64,
    unreadable: u64,
    deep: u64,
}

impl Search<'_> {
    /// Searches every file below `top`, in the order of names. Links are not followed.
    fn below(&mut self, top: &Path) -> Result<(), Error> {
        // A stack of what is left of each directory on the way, so that depth costs no stack of ours.
        let mut open = vec![(PathBuf::new(), list::names(top, self.workspace)?.0.into_iter())];
        while let Some((directory, names)) = open.last_mut() {
            let Some(name) = names.next() else {
                open.pop();
                continue;
            };
            self.workspace.check_time()?;
            if self.left == 0 {
                return Ok(());
            }
            let shown = directory.join(&name);
            let path = top.join(&shown);
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                self.unreadable += 1;
                continue;
            };
            if metadata.is_dir() {
                if name == ".git" {
                    continue;
                }
                if open.len() == DEEPEST {
                    self.deep += 1;
                    continue;
                }
                match self
                    .workspace
                    .admit(Access::Read, &path)
                    .and_then(|()| list::names(&path, self.workspace))
                {
                    Ok((names, _)) => open.push((shown, names.into_iter())),
                    Err(Error::TimedOut) => return Err(Error::TimedOut),
                    Err(_) => self.unreadable += 1,
                }
            } else if metadata.is_file() && self.wants(&name.to_string_lossy()) {
                match self.workspace.admit(Access::Read, &path).and_then(|()| self.file(&path, &shown)) {
                    Ok(()) => {}
                    Err(error @ (Error::TimedOut | Error::Output(_))) => return Err(error),
                    Err(Error::Binary { .. }) => self.binary += 1,
                    Err(_) => self.unreadable += 1,
                }
            }
        }
        Ok(())
    }

    fn wants(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.is_match(name))
    }

    fn file(&mut self, path: &Path, shown: &Path) -> Result<(), Error> {
        let (file, metadata) = open_file(path)?;
        let mut reader = BufReader::with_capacity(64 << 10, file);
        let start = reader.fill_buf().map_err(Error::io("read", path))?;
        if memchr::memchr(0, &start[..start.len().min(PROBE)]).is_some() {
            return Err(Error::Binary { path: path.to_owned(), length: metadata.len() });
        }
        self.files += 1;
        let mut line = Vec::new();
        let mut number = 1_u64;
        let mut since_check = 0;
        loop {
            line.clear();
            let read = reader
                .by_ref()
                .take(LINE_SEARCHED)
                .read_until(b'\n', &mut line)
                .map_err(Error::io("read", path))?;
            if read == 0 || self.left == 0 {
                return Ok(());
            }
            since_check += read;
            if since_check > 1 << 20 {
                since_check = 0;
                self.workspace.check_time()?;
            }
            let is_whole = line.last() == Some(&b'\n');
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches(['\n', '\r']);
            if self.pattern.is_match(text) {
                self.left -= 1;
                let short: String = text.chars().take(LINE_SHOWN).collect();
                let more = if short.len() < text.len() { "..." } else { "" };
                writeln!(self.out, "{}:{number}: {short}{more}", shown.display()).map_err(Error::Output)?;
            }
            number += u64::from(is_whole);
        }
    }

    /// The last line: what a reader should know about what is not above it.
    fn summary(&mut self, most: usize) -> Result<(), Error> {
        let mut parts = Vec::new();
        if self.left == most {
            parts.push(format!("no line matches in {} files", self.files));
        } else if self.left == 0 {
            parts.push(format!("stopped after {most} lines; there may be more"));
        }
        for (count, what) in [
            (self.binary, "binary files were left out"),
            (self.unreadable, "files or directories could not be read"),
            (self.deep, "directories are nested too deep"),
        ] {
            if count > 0 {
                parts.push(format!("{count} {what}"));
            }
        }
        if parts.is_empty() {
            return Ok(());
        }
        write!(self.out, "[{}]", parts.join("; ")).map_err(Error::Output)
    }
}
