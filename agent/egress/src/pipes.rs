//! Pipes that bytes go through from one socket to another, without a copy in this process.
//!
//! A pipe is taken when there is something to move, and given back when it is empty: connections that rest have none. Where a
//! receiver is slow, what is on its way stays in the pipe; so there is a most, and beyond it bytes are copied ([`crate::flow`]).

use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use std::{
    cell::{Cell, RefCell},
    os::fd::OwnedFd,
};

/// Most pipes, in use and not.
pub(crate) const MOST: usize = 64;
/// Most that wait to be taken.
const MOST_FREE: usize = 8;
/// Bytes that a pipe is asked to have room for. A kernel that gives less is no error.
pub(crate) const SIZE: usize = 256 << 10;

/// All pipes of the worker.
#[derive(Default)]
pub(crate) struct Pipes {
    free: RefCell<Vec<(OwnedFd, OwnedFd)>>,
    used: Cell<usize>,
}

impl Pipes {
    /// An empty one; `None`: there is none now.
    pub(crate) fn take(&self) -> Option<Pipe<'_>> {
        if self.used.get() >= MOST {
            return None;
        }
        let free = self.free.borrow_mut().pop();
        let ends = match free {
            Some(ends) => ends,
            None => {
                let ends = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
                let _ = fcntl_setpipe_size(&ends.1, SIZE);
                ends
            }
        };
        self.used.set(self.used.get() + 1);
        Some(Pipe { of: self, ends: Some(ends), left: 0 })
    }
}

/// A pipe in use.
pub(crate) struct Pipe<'a> {
    of: &'a Pipes,
    ends: Option<(OwnedFd, OwnedFd)>,
    /// Bytes in it.
    pub(crate) left: usize,
}

impl Pipe<'_> {
    /// Where it is read, and where it is written. Both are there until it is dropped.
    pub(crate) fn ends(&self) -> Option<(&OwnedFd, &OwnedFd)> {
        self.ends.as_ref().map(|(read, write)| (read, write))
    }
}

impl Drop for Pipe<'_> {
    fn drop(&mut self) {
        self.of.used.set(self.of.used.get().saturating_sub(1));
        let mut free = self.of.free.borrow_mut();
        // One that is not empty holds another connection's bytes.
        if self.left == 0 && free.len() < MOST_FREE {
            free.extend(self.ends.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_not_empty_is_never_given_to_another() {
        let pipes = Pipes::default();
        let mut pipe = pipes.take().unwrap();
        pipe.left = 1;
        drop(pipe);
        assert!(pipes.free.borrow().is_empty());
        drop(pipes.take().unwrap());
        assert_eq!(pipes.free.borrow().len(), 1, "the control");
    }

    #[test]
    fn there_is_a_most() {
        let pipes = Pipes::default();
        let taken: Vec<_> = std::iter::from_fn(|| pipes.take()).collect();
        assert_eq!(taken.len(), MOST);
        drop(taken);
        assert!(pipes.take().is_some());
        assert_eq!(pipes.free.borrow().len(), MOST_FREE);
    }
}
