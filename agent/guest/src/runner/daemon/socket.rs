//! The daemon's socket: its file is removed with it.

use super::Error;
use std::{
    fs::{self, Permissions},
    os::unix::{
        fs::{FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

/// Most bytes of a socket's path: 108 with the NUL at its end (unix(7)).
const MOST_PATH: usize = 107;

/// A socket that listens.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    file: (u64, u64),
}

impl Socket {
    pub(super) fn bind(path: &Path) -> Result<Self, Error> {
        let name = || path.display().to_string();
        let failed = |source| Error::Listen { path: name(), source };
        if path.as_os_str().len() > MOST_PATH {
            return Err(Error::LongPath(name()));
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if !meta.file_type().is_socket() => return Err(Error::NoSocket(name())),
            // Somebody's socket of the last time, or of now.
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(Error::Served(name())),
            Ok(_) => fs::remove_file(path).map_err(failed)?,
            Err(_) => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // Every user's shims ask; who may use v1 is decided by who asks.
        fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let meta = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), file: (meta.dev(), meta.ino()) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Not another daemon's that took its place.
        if fs::symlink_metadata(&self.path).is_ok_and(|meta| (meta.dev(), meta.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
