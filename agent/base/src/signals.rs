//! Signals that somebody may send to all processes of a run at once: by a terminal's keys, its end, or a supervisor.

use nix::sys::signal::Signal;

/// Those that would end or stop one, and that it can hold back for as long as it does what cannot be done twice.
pub const OF_A_RUN: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
];
