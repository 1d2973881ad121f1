//! Why a file tool could not do what it was asked for: written for the model that called it.

use std::{io, path::PathBuf};

/// Why a file tool failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input does not fit the tool's schema.
    #[error("{tool} cannot use this input")]
    Input {
        /// The tool's name.
        tool: &'static str,
        /// What is wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The gate refused the path.
    #[error("{} is refused: {reason}", path.display())]
    Refused {
        /// The path, links resolved.
        path: PathBuf,
        /// The gate's reason.
        reason: String,
    },
    /// A system call on a path failed.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// What was tried: a verb, "open".
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Not a regular file: directories are listed, devices, sockets and pipes are not touched.
    #[error("{} is a {kind}, not a regular file", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// Not a directory.
    #[error("{} is not a directory; read_file reads files", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// A symbolic link that leads nowhere: writing through it would create a file somewhere else.
    #[error("{} is a symbolic link to nothing; remove the link, or write to where it points", path.display())]
    Dangling {
        /// The link.
        path: PathBuf,
    },
    /// A file that has a NUL byte near its start.
    #[error("{} is a binary file of {length} bytes; it is not shown as text", path.display())]
    Binary {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: u64,
    },
    /// A file over what the tool holds in memory.
    #[error("{} has {length} bytes; edit_file takes files of up to {max}", path.display())]
    TooLarge {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: u64,
        /// The limit in bytes.
        max: u64,
    },
    /// The first line asked for is behind the last one.
    #[error("{} ends at line {lines}; there is no line {offset}", path.display())]
    PastEnd {
        /// The path.
        path: PathBuf,
        /// Lines that it has.
        lines: u64,
        /// The first line that was asked for.
        offset: u64,
    },
    /// A parameter outside of its range.
    #[error("`{name}` must be {wanted}")]
    Range {
        /// The parameter.
        name: &'static str,
        /// What it may be.
        wanted: &'static str,
    },
    /// The text to replace is not in the file.
    #[error("the text in old_string does not occur in {}{hint}", path.display())]
    Absent {
        /// The path.
        path: PathBuf,
        /// What comes near, as the end of the sentence.
        hint: String,
    },
    /// The text to replace is there more than once.
    #[error(
        "the text in old_string occurs more than once in {}, at lines {lines}; give more of its surroundings, or set replace_all",
        path.display()
    )]
    Ambiguous {
        /// The path.
        path: PathBuf,
        /// The first few line numbers.
        lines: String,
    },
    /// Old and new text are the same, or there is no old text.
    #[error("{0}")]
    NoEdit(&'static str),
    /// Somebody else keeps the directory locked.
    #[error("{} is locked by another process; try again", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Not a regular expression.
    #[error("`{name}` is not a pattern that can be searched for")]
    Pattern {
        /// The parameter.
        name: &'static str,
        /// Where it is wrong.
        #[source]
        source: regex_lite::Error,
    },
    /// The time is over.
    #[error("the time for this call is over")]
    TimedOut,
    /// The result could not be handed on.
    #[error("the result could not be written")]
    Output(#[source] io::Error),
}

impl Error {
    /// For `map_err`: an I/O error with what was done to what.
    pub(crate) fn io(doing: &'static str, path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}
