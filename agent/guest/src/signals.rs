//! Signals as a descriptor to wait for, which rustix has no call for; and waiting for descriptors.

pub(crate) use nix::sys::signal::Signal;
use nix::sys::{
    signal::SigSet,
    signalfd::{SfdFlags, SignalFd},
};
use rustix::{
    event::{PollFd, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// Waits until something happens to one of them, a signal comes, or `most` is over; `None`: for ever.
///
/// # Errors
/// poll(2)'s.
pub(crate) fn wait_for(watched: &mut [PollFd<'_>], most: Option<Duration>) -> io::Result<()> {
    let timeout = most.and_then(|most| Timespec::try_from(most).ok());
    match poll(watched, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Signals that do not interrupt this thread, but can be waited for.
#[derive(Debug)]
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks these signals. The descriptor is readable once one of them has come.
    ///
    /// # Errors
    /// No descriptors are left.
    pub(crate) fn block(signals: &[Signal]) -> io::Result<Self> {
        let set: SigSet = signals.iter().copied().collect();
        set.thread_block()?;
        Ok(Self(SignalFd::with_flags(&set, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?))
    }

    /// The next signal that has come, if one has.
    pub(crate) fn next(&self) -> io::Result<Option<Signal>> {
        let received = self.0.read_signal()?;
        Ok(received.and_then(|signal| Signal::try_from(signal.ssi_signo.cast_signed()).ok()))
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A signal's name, as people know it.
pub(crate) fn name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}
