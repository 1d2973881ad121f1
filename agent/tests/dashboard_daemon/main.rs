//! The tests of `dashboard` once more, with the daemon's auditor instead of the user's own; and what only it has: several
//! users. A stand-in plays the core, so neither root nor eBPF is needed.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test says what it expected")]

#[path = "../dashboard/api.rs"]
mod api;
#[path = "../auditor_support/mod.rs"]
mod auditor_support;
#[path = "../dashboard/crowd.rs"]
mod crowd;
mod forty;
#[path = "../dashboard/live.rs"]
mod live;
#[path = "../dashboard/rules.rs"]
mod rules;
#[path = "../dashboard/support.rs"]
mod support;
mod tied;
mod users;
#[path = "../dashboard/web.rs"]
mod web;

const DAEMON: bool = true;
