//! The launcher is closed to other processes of its user, and leaves no core file, for as long as it holds a refresh token: who
//! looks into its memory then would have what came for one, too, which is in no file yet.
//!
//! Not for its whole life: from a process that is closed so the kernel takes `/proc/self` away, which starting a container needs.

use nix::sys::prctl::{get_dumpable, set_dumpable};
use std::sync::{Mutex, PoisonError};

/// How many hold one, and whether the process was open before the first.
static HOLDERS: Mutex<(usize, bool)> = Mutex::new((0, false));

/// As long as one of these is there, the process is closed.
#[derive(Debug)]
pub(crate) struct Hidden(());

impl Hidden {
    /// Closes the process.
    ///
    /// # Errors
    /// As prctl(2).
    pub(crate) fn new() -> nix::Result<Self> {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.0 == 0 {
            holders.1 = get_dumpable()?;
            set_dumpable(false)?;
        }
        holders.0 += 1;
        Ok(Self(()))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let mut holders = HOLDERS.lock().unwrap_or_else(PoisonError::into_inner);
        holders.0 = holders.0.saturating_sub(1);
        if *holders == (0, true) {
            let _ = set_dumpable(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_closed_until_the_last_holder_is_gone() {
        let (first, second) = (Hidden::new().unwrap(), Hidden::new().unwrap());
        assert!(!get_dumpable().unwrap());
        drop(first);
        assert!(!get_dumpable().unwrap(), "another holds one still");
        // That it is open again is seen from outside: here other tests may hold one.
        drop(second);
    }
}
