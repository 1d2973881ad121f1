//! `write_file`: a whole new content, put in place at once.

use crate::{
    error::Error,
    replace::{self, Lock},
    workspace::{Access, Workspace},
};
use serde::Deserialize;
use std::{fs, io::Write, path::Path};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Input {
    path: String,
    content: String,
}

pub(crate) fn run(input: &Input, workspace: &Workspace<'_>, out: &mut dyn Write) -> Result<(), Error> {
    let path = workspace.resolve(&input.path)?;
    workspace.admit(Access::Write, &path)?;
    if let Some(parent) = path.parent() {
        create_directories(parent, workspace)?;
    }
    let _lock = Lock::take(&path, workspace)?;
    let bytes = input.content.as_bytes();
    let how = replace::replace(&path, bytes)?;
    write!(out, "wrote {} bytes to {}{}", bytes.len(), path.display(), how.remark()).map_err(Error::Output)
}

/// Creates what is missing of a directory's path, each part admitted on its own.
fn create_directories(path: &Path, workspace: &Workspace<'_>) -> Result<(), Error> {
    let missing: Vec<&Path> = path.ancestors().take_while(|part| !part.exists()).collect();
    for part in missing.into_iter().rev() {
        workspace.admit(Access::Write, part)?;
        match fs::create_dir(part) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::Io {
                    doing: "create the directory",
                    path: part.to_owned(),
                    source: error,
                });
            }
            _ => {}
        }
    }
    Ok(())
}
