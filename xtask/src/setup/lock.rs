//! One setup at a time: a lock file in the cache, held while the cache is changed.

use crate::report::say;
use anyhow::{Context, Result};
use ringfence_ebpf_build::cache_dir;
use std::{
    fs::{File, TryLockError},
    thread,
    time::Duration,
};

/// A setup that finds everything there holds the lock for less: nobody needs to hear of it.
const UNSAID: Duration = Duration::from_secs(1);

/// Holds the cache for one process; dropping it (or dying) lets the next in.
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock, and says so if it is taken.
    pub(crate) fn take() -> Result<Lock> {
        let dir = cache_dir();
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create the cache folder {}", dir.display()))?;
        let path = dir.join("lock");
        let file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        let first = file.try_lock();
        if matches!(first, Err(TryLockError::WouldBlock)) {
            thread::sleep(UNSAID);
        }
        match first.or_else(|_| file.try_lock()) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                say("setup: waiting for another setup that is at work");
                file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", path.display()));
            }
        }
        Ok(Lock { _file: file })
    }
}
