//! Black-box tests of the dashboard's server, over plain TCP.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test says what it expected")]

mod api;
mod live;
mod support;
mod web;
