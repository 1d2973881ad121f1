//! Black-box tests of the dashboard's server, over plain TCP.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test says what it expected")]
#![allow(dead_code, reason = "the other test binary uses the rest")]

mod api;
#[path = "../auditor_support/mod.rs"]
mod auditor_support;
mod crowd;
mod live;
mod rules;
mod support;
mod web;

/// The user's own auditor serves; `dashboard_daemon` runs the same tests with the daemon's.
const DAEMON: bool = false;
