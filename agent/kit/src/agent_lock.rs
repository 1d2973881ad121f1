//! The lock that an agent itself has on its login: a directory that it makes, and removes when it is done. One whose time of
//! change is some seconds ago is nobody's any more: whoever holds one renews that time.

use nix::{
    errno::Errno,
    sys::stat::{Mode, mkdirat},
};
use ringfence_files::Dir;
use std::{
    ffi::OsString,
    fs::File,
    io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// After how long without a sign of life one is nobody's: longer than agents themselves wait.
const STALE: Duration = Duration::from_secs(20);
/// How often it is looked whether it is free.
const AGAIN: Duration = Duration::from_millis(50);

/// Why there is none.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Somebody else has it.
    #[error("the agent itself is at it ({} is there)", .0.display())]
    Held(PathBuf),
    /// It cannot be made.
    #[error("cannot make {}", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The run ends.
    #[error("{0}")]
    Ending(String),
}

/// A lock that is ours. Dropped, it is free.
#[derive(Debug)]
pub(crate) struct AgentLock {
    dir: Dir,
    name: OsString,
}

impl AgentLock {
    /// Waits no longer than `patience` for a lock and takes it, for `life` at most: from then on others take it for nobody's, also
    /// where this process is gone. `going_on` says whether it is still worth waiting.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn take(
        path: &Path,
        life: Duration,
        patience: Duration,
        going_on: impl Fn() -> Result<(), String>,
    ) -> Result<Self, Error> {
        let io = |source| Error::Io(path.to_owned(), source);
        let (dir, name) = Dir::of(path).map_err(io)?;
        let end = Instant::now() + patience;
        loop {
            match mkdirat(&dir, name.as_os_str(), Mode::S_IRWXU) {
                Ok(()) => {
                    let lock = Self { dir, name };
                    // A sign of life for all of that time at once.
                    let opened = lock.dir.below(&lock.name).and_then(opened);
                    opened.and_then(|file| file.set_modified(SystemTime::now() + life)).map_err(io)?;
                    return Ok(lock);
                }
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(io(error.into())),
            }
            going_on().map_err(Error::Ending)?;
            if is_stale(&dir, &name).map_err(io)? {
                dir.remove_dir(&name).map_err(io)?;
            } else if Instant::now() >= end {
                return Err(Error::Held(path.to_owned()));
            } else {
                thread::sleep(AGAIN);
            }
        }
    }
}

impl Drop for AgentLock {
    fn drop(&mut self) {
        let _ = self.dir.remove_dir(&self.name);
    }
}

fn opened(dir: Dir) -> io::Result<File> {
    dir.as_fd().try_clone_to_owned().map(File::from)
}

fn is_stale(dir: &Dir, name: &OsString) -> io::Result<bool> {
    let changed = match dir.below(name).and_then(opened) {
        Ok(file) => file.metadata()?.modified()?,
        // It was let go.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    // One of the future is alive.
    Ok(changed.elapsed().is_ok_and(|age| age > STALE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn who_has_a_lock_is_alone_until_it_is_let_go_or_has_no_sign_of_life() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.lock");
        let take = || AgentLock::take(&path, Duration::from_secs(60), Duration::ZERO, || Ok(()));
        let lock = take().unwrap();
        assert!(fs::metadata(&path).unwrap().modified().unwrap() > SystemTime::now());
        assert!(matches!(take(), Err(Error::Held(_))));
        drop(lock);
        assert!(!path.exists());
        for (age, is_free) in [(0, false), (2 * STALE.as_secs(), true)] {
            fs::create_dir(&path).unwrap();
            let dir = File::open(&path).unwrap();
            dir.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
            assert_eq!(take().is_ok(), is_free, "{age}");
            let _ = fs::remove_dir(&path);
        }
        fs::create_dir(&path).unwrap();
        let ending = || Err("it ends".to_owned());
        let taken = AgentLock::take(&path, Duration::ZERO, Duration::from_secs(600), ending);
        assert!(matches!(taken, Err(Error::Ending(_))));
        // What is no directory is no lock of an agent's, and stays.
        fs::remove_dir(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(matches!(take(), Err(Error::Io(..))));
        assert!(path.exists());
    }
}
