//! `list_directory`: names, kinds and sizes, sorted.

use crate::{
    error::Error,
    workspace::{Access, Workspace},
};
use serde::Deserialize;
use std::{
    ffi::OsString,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

/// Most entries that are shown.
const MOST_SHOWN: usize = 2_000;

/// Most entries that are read, to be sorted: beyond that the listing is partial, and its last line reports it.
const MOST_READ: usize = 100_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    path: Option<String>,
}

pub(crate) fn run(input: &Input, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
    let path = workspace.resolve(input.path.as_deref().unwrap_or("."))?;
    workspace.admit(Access::Read, &path)?;
    let (names, complete) = names(&path, workspace)?;
    if names.is_empty() {
        return out.write_all(b"[empty directory]").map_err(Error::Output);
    }
    for name in names.iter().take(MOST_SHOWN) {
        workspace.check_time()?;
        writeln!(out, "{}", line(&path.join(name), &name.to_string_lossy())).map_err(Error::Output)?;
    }
    let hidden = names.len().saturating_sub(MOST_SHOWN);
    let more = if complete { "" } else { " at least" };
    if hidden > 0 {
        write!(out, "[and{more} {hidden} more]").map_err(Error::Output)?;
    }
    Ok(())
}

/// The names in a directory, sorted, and whether they are all.
pub(crate) fn names(path: &Path, workspace: &Workspace<'_>) -> Result<(Vec<OsString>, bool), Error> {
    let entries = fs::read_dir(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotADirectory => Error::NotADirectory { path: path.to_owned() },
        _ => Error::Io { doing: "list", path: path.to_owned(), source },
    })?;
    let mut names = Vec::new();
    for entry in entries {
        if names.len() == MOST_READ {
            names.sort_unstable();
            return Ok((names, false));
        }
        if names.len() % 1024 == 0 {
            workspace.check_time()?;
        }
        names.push(entry.map_err(Error::io("list", path))?.file_name());
    }
    names.sort_unstable();
    Ok((names, true))
}

/// One entry; what cannot be looked at is shown by its name alone. A line break in a name does not make two lines.
fn line(path: &PathBuf, name: &str) -> String {
    let name = name.replace(['\n', '\r'], "\u{fffd}");
    let Ok(metadata) = fs::symlink_metadata(path) else { return name };
    let kind = metadata.file_type();
    if kind.is_dir() {
        format!("{name}/")
    } else if kind.is_symlink() {
        let target = fs::read_link(path).unwrap_or_default();
        format!("{name} -> {}", target.to_string_lossy().replace(['\n', '\r'], "\u{fffd}"))
    } else if kind.is_file() {
        format!("{name} ({} bytes)", metadata.len())
    } else {
        format!("{name} (special file)")
    }
}
