//! The lock that an agent itself has on its login: a directory that it makes, and removes when it is done. One whose time of
//! change is some seconds ago is nobody's any more: whoever holds one renews that time.

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        stat::{Mode, mkdirat},
    },
};
use ringfence_base::error::chain;
use ringfence_credentials::Renewal;
use ringfence_files::Dir;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::AsFd as _, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

/// After how long without a sign of life one is nobody's: longer than agents themselves wait.
const STALE: Duration = Duration::from_secs(20);
/// A time of change that is this far ahead is no sign of life: nobody says that it holds one for so long.
const AHEAD: Duration = Duration::from_secs(600);
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

/// A lock that is ours. Dropped, it is free, if it still is ours: who took it for nobody's has another of its name.
#[derive(Debug)]
pub(crate) struct AgentLock {
    dir: Dir,
    name: OsString,
    /// What was made.
    made: Option<File>,
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
            going_on().map_err(Error::Ending)?;
            match mkdirat(&dir, name.as_os_str(), Mode::S_IRWXU) {
                Ok(()) => {
                    let mut lock = Self { dir, name, made: None };
                    // A sign of life for all of that time at once.
                    let made = lock.made.insert(lock.dir.below(&lock.name).and_then(opened).map_err(io)?);
                    made.set_modified(SystemTime::now() + life).map_err(io)?;
                    return Ok(lock);
                }
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(io(error.into())),
            }
            if is_stale(&dir, &name).map_err(io)? {
                if !remove_stale(&dir, &name).map_err(io)? {
                    return Err(Error::Held(path.to_owned()));
                }
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
        let there = self.dir.below(&self.name).and_then(opened);
        let is_ours = match (&self.made, there) {
            (Some(made), Ok(there)) => is_same(made, &there).unwrap_or(false),
            _ => false,
        };
        if is_ours {
            let _ = self.dir.remove_dir(&self.name);
        }
    }
}

fn opened(dir: Dir) -> io::Result<File> {
    dir.as_fd().try_clone_to_owned().map(File::from)
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

fn is_stale(dir: &Dir, name: &OsStr) -> io::Result<bool> {
    let changed = match dir.below(name).and_then(opened) {
        Ok(file) => file.metadata()?.modified()?,
        // It was let go.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    Ok(match changed.elapsed() {
        Ok(age) => age > STALE,
        // One of the near future is alive.
        Err(ahead) => ahead.duration() > AHEAD,
    })
}

/// Removes one that is nobody's. Under a name of our own first: between the look and the removal another may have removed it and
/// made its own, which is put back. False: that could not be done, and is no time to take one.
fn remove_stale(dir: &Dir, name: &OsStr) -> io::Result<bool> {
    let mut own = name.to_owned();
    own.push(format!(".{}.stale", std::process::id()));
    match dir.rename(name, &own) {
        // It was let go.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        renamed => renamed?,
    }
    if !is_stale(dir, &own).unwrap_or(false) {
        return Ok(put_back(dir, &own, name));
    }
    dir.remove_dir(&own).map(|_| true)
}

/// Gives a lock that is somebody's its name again, unless another has that by now: then two of them believe that they are alone.
fn put_back(dir: &Dir, own: &OsStr, name: &OsStr) -> bool {
    let is_back = dir.rename_new(own, name).is_ok();
    if !is_back {
        let _ = dir.remove_dir(own);
    }
    is_back
}

/// The agent's own locks for as long as it renews: it would send the same token. No signal ends or stops this process while it has
/// one: those of `signals` that come while it waits act once it has none, and whom they only stopped waits again.
pub(crate) fn agent_locks(
    renewal: &Renewal,
    (patience, life): (Duration, Duration),
    signals: &[Signal],
    going_on: impl Fn() -> Result<(), String>,
) -> Result<(Held, Vec<AgentLock>), String> {
    let end = Instant::now() + patience;
    loop {
        let held = Held::new(signals).map_err(|error| error.to_string())?;
        let worth_waiting = || {
            going_on()?;
            if held.is_waiting() { Err("a signal came".to_owned()) } else { Ok(()) }
        };
        let take = |path: &PathBuf| {
            let left = end.saturating_duration_since(Instant::now());
            AgentLock::take(path, life, left, worth_waiting).map_err(|error| chain(&error))
        };
        match renewal.locks.iter().map(take).collect() {
            Ok(locks) => return Ok((held, locks)),
            Err(_) if held.is_waiting() => {}
            Err(why) => return Err(why),
        }
    }
}

/// Signals that would end or stop this process wait until it is dropped: an endpoint does not wait.
pub(crate) struct Held {
    before: SigSet,
    /// Readable as long as one waits that would not without it.
    waiting: SignalFd,
}

impl Held {
    /// These signals.
    ///
    /// # Errors
    /// As signalfd(2).
    pub(crate) fn new(signals: &[Signal]) -> nix::Result<Self> {
        let before = SigSet::thread_get_mask()?;
        let own = signals.iter().copied().filter(|signal| !before.contains(*signal)).collect();
        let waiting = SignalFd::with_flags(&own, SfdFlags::SFD_CLOEXEC)?;
        own.thread_block()?;
        Ok(Self { before, waiting })
    }

    /// Whether one came meanwhile.
    fn is_waiting(&self) -> bool {
        let mut descriptors = [PollFd::new(self.waiting.as_fd(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
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
        for (ahead, is_free) in [(AHEAD / 2, false), (2 * AHEAD, true)] {
            fs::create_dir(&path).unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() + ahead).unwrap();
            assert_eq!(take().is_ok(), is_free, "{ahead:?}");
            let _ = fs::remove_dir(&path);
        }
        fs::create_dir(&path).unwrap();
        let ending = || Err("it ends".to_owned());
        let taken = AgentLock::take(&path, Duration::ZERO, Duration::from_secs(600), ending);
        assert!(matches!(taken, Err(Error::Ending(_))));
        // Nor is one made that is free: nobody would let it go.
        fs::remove_dir(&path).unwrap();
        let taken = AgentLock::take(&path, Duration::ZERO, Duration::from_secs(600), ending);
        assert!(matches!(taken, Err(Error::Ending(_))) && !path.exists());
        // What is no directory is no lock of an agent's, and stays.
        fs::write(&path, "").unwrap();
        assert!(matches!(take(), Err(Error::Io(..))));
        assert!(path.exists());
    }

    #[test]
    fn another_s_lock_of_the_same_name_stays() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("agent.lock");
        let lock = AgentLock::take(&path, Duration::ZERO, Duration::ZERO, || Ok(())).unwrap();
        // Kept under another name, so that the number of what was made is not given out again.
        fs::rename(&path, root.path().join("old")).unwrap();
        fs::create_dir(&path).unwrap();
        drop(lock);
        assert!(path.exists());
        // Nor does a fresh one go that came in place of one that is nobody's.
        let dir = Dir::open(root.path()).unwrap();
        assert!(remove_stale(&dir, OsStr::new("agent.lock")).unwrap() && path.exists());
        File::open(&path).unwrap().set_modified(SystemTime::now() - 2 * STALE).unwrap();
        assert!(remove_stale(&dir, OsStr::new("agent.lock")).unwrap());
        assert!(!path.exists(), "the control");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_that_was_taken_for_nobody_s_is_not_put_in_another_s_place() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let dir = Dir::open(root.path()).unwrap();
        let put_back = || put_back(&dir, OsStr::new("own"), OsStr::new("agent.lock"));
        fs::create_dir(path("own")).unwrap();
        fs::create_dir(path("agent.lock")).unwrap();
        let theirs = fs::metadata(path("agent.lock")).unwrap().ino();
        assert!(!put_back());
        assert_eq!(fs::metadata(path("agent.lock")).unwrap().ino(), theirs);
        assert!(!path("own").exists());
        // The control.
        fs::rename(path("agent.lock"), path("own")).unwrap();
        assert!(put_back());
        assert_eq!(fs::metadata(path("agent.lock")).unwrap().ino(), theirs);
    }
}
