//! Where a tool works: the directory that relative paths start from, the gate, the deadline; and opening files safely.

use crate::error::Error;
use rustix::fs::OFlags;
use std::{
    fs::{self, File, FileType, Metadata, OpenOptions},
    io,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Instant,
};

/// What a tool is about to do to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read a file, or list a directory.
    Read,
    /// Create a file or directory, or replace a file's content.
    Write,
}

/// Who may refuse a tool a path. It is asked before the path is opened, with links resolved.
///
/// A path can be changed between the answer and the open, by another process: what must hold against that is the
/// kernel's grant, not this.
pub trait Gate {
    /// Admits or refuses.
    ///
    /// # Errors
    /// The reason, as the end of a sentence.
    fn admit(&self, access: Access, path: &Path) -> Result<(), String>;
}

/// The gate of a runtime in a container: the container is the boundary, and the kernel holds it.
#[derive(Debug, Clone, Copy)]
pub struct AllowAll;

impl Gate for AllowAll {
    fn admit(&self, _: Access, _: &Path) -> Result<(), String> {
        Ok(())
    }
}

/// Where, under which gate and until when a tool works.
#[derive(Clone, Copy)]
pub struct Workspace<'a> {
    /// Relative paths start here. Absolute.
    pub dir: &'a Path,
    /// Asked about every path.
    pub gate: &'a dyn Gate,
    /// After this a tool gives up; checked between steps, not within a system call.
    pub deadline: Option<Instant>,
}

impl std::fmt::Debug for Workspace<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Workspace")
            .field("dir", &self.dir)
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl Workspace<'_> {
    /// The path with links resolved; parts that do not exist yet stay as they are.
    ///
    /// # Errors
    /// [`Error::Io`] where it leads through what is no directory, or may not be looked at.
    pub fn resolve(&self, path: &str) -> Result<PathBuf, Error> {
        let whole = self.dir.join(path);
        let mut missing = Vec::new();
        let mut existing = whole.as_path();
        loop {
            match fs::canonicalize(existing) {
                Ok(mut resolved) => {
                    resolved.extend(missing.iter().rev());
                    return Ok(resolved);
                }
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::Io { doing: "find", path: whole.clone(), source: error });
                }
                Err(error) => {
                    // `..` below something missing has no meaning.
                    let (Some(name), Some(parent)) = (existing.file_name(), existing.parent()) else {
                        return Err(Error::Io { doing: "find", path: whole.clone(), source: error });
                    };
                    missing.push(name);
                    existing = parent;
                }
            }
        }
    }

    /// Asks the gate.
    pub(crate) fn admit(&self, access: Access, path: &Path) -> Result<(), Error> {
        self.gate.admit(access, path).map_err(|reason| Error::Refused { path: path.to_owned(), reason })
    }

    /// Fails once the deadline has passed.
    pub(crate) fn check_time(&self) -> Result<(), Error> {
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Error::TimedOut),
            _ => Ok(()),
        }
    }
}

/// Opens a regular file for reading. Never waits for a pipe's other end, never follows a link put there since the path
/// was resolved.
pub(crate) fn open_file(path: &Path) -> Result<(File, Metadata), Error> {
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY;
    let file =
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path).map_err(|source| {
            match fs::symlink_metadata(path).map(|metadata| metadata.file_type()) {
                // A socket cannot be opened at all; name it rather than ENXIO.
                Ok(kind) if kind.is_socket() => Error::NotAFile { path: path.to_owned(), kind: "socket" },
                _ => Error::Io { doing: "open", path: path.to_owned(), source },
            }
        })?;
    let metadata = file.metadata().map_err(Error::io("look at", path))?;
    regular(path, metadata.file_type())?;
    Ok((file, metadata))
}

/// Refuses everything but regular files.
pub(crate) fn regular(path: &Path, kind: FileType) -> Result<(), Error> {
    if kind.is_file() {
        return Ok(());
    }
    let kind = if kind.is_dir() {
        "directory"
    } else if kind.is_fifo() {
        "named pipe"
    } else if kind.is_socket() {
        "socket"
    } else if kind.is_symlink() {
        "symbolic link"
    } else {
        "device"
    };
    Err(Error::NotAFile { path: path.to_owned(), kind })
}
