//! One daemon at a time: a lock on a file in the runtime directory, held as long as the process lives.

use ringfence_files::Dir;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon holds it.
    #[error("a daemon runs already (pid {pid}, lock {}); see `ringfence status`", .path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// Process id that the holder wrote, or `unknown`.
        pid: String,
    },
    /// The file cannot be made or locked.
    #[error("cannot lock {}", .path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The lock; dropped, it is free again.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock on `path` and writes this process's id into it.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process has it.
    pub fn take(path: &Path) -> Result<Self, LockError> {
        let io = |source| LockError::Io { path: path.to_owned(), source };
        let mut file = Dir::of(path).and_then(|(dir, name)| dir.update(&name)).map_err(io)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = (&mut file).take(32).read_to_string(&mut text);
                let pid = text.trim();
                let known = read.is_ok() && !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit());
                let pid = if known { pid } else { "unknown" }.to_owned();
                return Err(LockError::Held { path: path.to_owned(), pid });
            }
            Err(error) => return Err(io(error.into())),
        }
        file.set_len(0).map_err(io)?;
        writeln!(file, "{}", std::process::id()).map_err(io)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_taker_is_told_who_holds_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("daemon.lock");
        let lock = Lock::take(&path).unwrap();
        let error = Lock::take(&path).unwrap_err();
        assert!(error.to_string().contains(&format!("pid {}", std::process::id())), "{error}");
        drop(lock);
        // A program that another test starts has it, too, from its fork to its exec.
        while let Err(error) = Lock::take(&path) {
            assert!(matches!(error, LockError::Held { .. }), "{error}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = Lock::take(Path::new("/nonexistent/daemon.lock")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/daemon.lock"));
    }
}
