//! The command as a job of its own: a process group, which no signal to the launcher's group reaches and which reaches
//! nobody else's; a session of its own unless one of its streams is the launcher's terminal.
//!
//! On a terminal the launcher stands between the shell and the command, as a shell would: it gives the foreground to the
//! command's group, takes it back when the command stops or ends, and stops itself, so that the shell notices.

use crate::spawn::Child;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal, killpg, raise},
        signalfd::{SfdFlags, SignalFd},
        termios::tcgetsid,
    },
    unistd::{Pid, getpgrp, getpid, getsid, isatty, setpgid, setsid, tcgetpgrp, tcsetpgrp},
};
use std::{
    cell::Cell,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// What the command has as its standard streams.
#[derive(Debug)]
pub enum Streams {
    /// Those of the launcher.
    Own,
    /// These.
    Given([OwnedFd; 3]),
}

/// How the command relates to the launcher's terminal.
#[derive(Debug)]
pub struct Job {
    /// The launcher's controlling terminal, if one of the command's streams is it.
    terminal: Option<OwnedFd>,
    /// Whether the command has the foreground whenever the launcher's group has it. Otherwise it gets it once it asks: in a
    /// pipeline or a script others of the launcher's group may be reading.
    foreground_at_start: bool,
    /// The command's group was made the foreground.
    gave_foreground: Cell<bool>,
    /// Somebody asked the launcher to stop.
    stopping: Cell<bool>,
}

impl Job {
    /// Looks at the streams that the command will have.
    pub fn new(streams: &Streams) -> Self {
        let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
        let own = [input.as_fd(), output.as_fd(), errors.as_fd()];
        let terminal = match streams {
            Streams::Own => own.into_iter().find(|stream| is_ours(*stream)),
            Streams::Given(_) => None,
        };
        Self {
            foreground_at_start: terminal.is_some()
                && is_terminal(own[0])
                && is_terminal(own[1])
                && getpgrp() == getpid(),
            terminal: terminal.and_then(|stream| stream.try_clone_to_owned().ok()),
            gave_foreground: Cell::new(false),
            stopping: Cell::new(false),
        }
    }

    /// In the child: becomes a job of its own.
    ///
    /// # Errors
    /// None that a child that was just forked can meet.
    pub fn enter(&self) -> nix::Result<()> {
        match self.terminal {
            Some(_) => setpgid(Pid::from_raw(0), Pid::from_raw(0)),
            None => setsid().map(drop),
        }
    }

    /// The child is in its group and about to become the command: gives it the foreground, where it is to have it.
    pub fn begin(&self, child: &Child) {
        if self.foreground_at_start {
            self.give_foreground(child);
        }
    }

    /// The command has ended: the foreground is the launcher's again.
    pub fn end(&self) {
        self.take_foreground();
    }

    /// A signal that is to be passed on reached the launcher; what is to be sent to the command instead of it.
    pub fn passes(&self, signal: Signal, child: &Child) -> Signal {
        match signal {
            Signal::SIGTSTP => {
                self.stopping.set(true);
                // A session of its own has nobody to continue it, so the kernel would not let it be stopped by that.
                if self.terminal.is_none() { Signal::SIGSTOP } else { signal }
            }
            Signal::SIGCONT => {
                self.begin(child);
                signal
            }
            _ => signal,
        }
    }

    /// The command has stopped. Returns when it goes on, or at once where nobody waits for it to stop. All threads of the launcher
    /// stop with it: `before_stop` waits for what is not to be stopped, and what it gives is held until it goes on.
    pub fn stopped<T>(&self, child: &Child, by: Signal, before_stop: impl FnOnce() -> T) {
        let asks = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU) && !self.gave_foreground.get();
        if asks && self.give_foreground(child) {
            self.resume(child);
            return;
        }
        // Without a terminal nobody but who asked the launcher waits for a stop: what the command does to itself stays
        // its own affair.
        if self.terminal.is_none() && !self.stopping.take() {
            return;
        }
        self.stopping.set(false);
        let had_foreground = self.gave_foreground.get();
        self.take_foreground();
        // One of before belongs to the stop of before.
        let was_continued = is_continued();
        let held = before_stop();
        // Who continued this process meanwhile wants no stop any more, which would discard that.
        if was_continued || !is_continued() {
            let _ = raise(Signal::SIGSTOP);
        }
        drop(held);
        if self.foreground_at_start || had_foreground {
            self.give_foreground(child);
        }
        self.resume(child);
    }

    fn resume(&self, child: &Child) {
        let _ = killpg(child.pid(), Signal::SIGCONT);
    }

    /// Makes the command's group the foreground, if the launcher's is.
    fn give_foreground(&self, child: &Child) -> bool {
        let Some(terminal) = &self.terminal else { return false };
        if tcgetpgrp(terminal) == Ok(getpgrp()) {
            self.gave_foreground.set(tcsetpgrp(terminal, child.pid()).is_ok());
        }
        self.gave_foreground.get()
    }

    /// Makes the launcher's group the foreground again. SIGTTOU is blocked, or the kernel would stop us here.
    fn take_foreground(&self) {
        if let Some(terminal) = &self.terminal
            && self.gave_foreground.take()
        {
            let _ = tcsetpgrp(terminal, getpgrp());
        }
    }
}

/// Whether a SIGCONT waits to be read.
fn is_continued() -> bool {
    let signals = SigSet::from_iter([Signal::SIGCONT]);
    SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC).is_ok_and(|descriptor| {
        let mut descriptors = [PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)];
        poll(&mut descriptors, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    })
}

fn is_terminal(stream: BorrowedFd<'_>) -> bool {
    isatty(stream) == Ok(true)
}

/// Whether a stream is the terminal that controls this process.
fn is_ours(stream: BorrowedFd<'_>) -> bool {
    is_terminal(stream) && tcgetsid(stream).is_ok_and(|session| getsid(None) == Ok(session))
}
