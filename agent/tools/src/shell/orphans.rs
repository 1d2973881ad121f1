//! Processes that outlive their call: those that left its process group and lost their parents.
//!
//! A process that becomes the subreaper of its descendants gets them as children when their own parents end, wherever
//! they fled to: another session, another group. Once no call runs, every child that is left is one of those.

use ringfence_process::tree;
use rustix::process::{getpid, set_child_subreaper};
use std::{
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Ends the orphans of a process all of whose children are tools.
#[derive(Debug)]
pub(super) struct Orphans {
    running: Mutex<usize>,
}

/// A call that runs.
pub(super) struct Call<'a>(&'a Orphans);

impl Orphans {
    /// Makes this process the subreaper of its descendants.
    ///
    /// # Errors
    /// As of prctl(2).
    pub(super) fn adopt() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self { running: Mutex::new(0) })
    }

    /// A call begins. Its processes are not taken for orphans until it is dropped.
    pub(super) fn call(&self) -> Call<'_> {
        *self.running() += 1;
        Call(self)
    }

    fn running(&self) -> MutexGuard<'_, usize> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        // Held until the end, so that no call begins meanwhile.
        let mut running = self.0.running();
        *running -= 1;
        if *running == 0 {
            tree::end();
        }
    }
}
