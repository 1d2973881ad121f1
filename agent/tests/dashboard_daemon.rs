//! The tests of `dashboard` once more, with the daemon's auditor instead of the user's own; and what only it has: several
//! users. A stand-in plays the core, so neither root nor eBPF is needed.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test says what it expected")]

mod auditor_support;
mod dashboard {
    mod api;
    pub(crate) mod crowd;
    mod live;
    pub(crate) mod support;
    mod web;
}
mod dashboard_daemon {
    mod forty;
    mod tied;
    mod users;
}

const DAEMON: bool = true;
