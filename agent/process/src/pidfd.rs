//! Opening a pidfd, which `nix` has no call for.

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{io, os::fd::OwnedFd};

/// A pidfd of the process that has this id now.
///
/// # Errors
/// As of pidfd_open(2); ESRCH also where the number is no process id.
pub(crate) fn open(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}
