//! Black-box tests of `ringfence mcp`: what server and client receive, byte for byte, and what is on record.

#![cfg(target_os = "linux")]
#![expect(clippy::expect_used, clippy::panic, reason = "a test says what it expected")]

mod approvals;
mod authorization_server;
mod ctrl_c;
mod eras;
mod exceptions;
mod export;
mod faults;
mod flags;
mod hostile;
mod http_server;
mod lifecycle;
mod listen;
mod mistakes;
mod notify;
mod oauth;
mod outcomes;
mod pins;
mod profile;
mod remote;
mod remote_faults;
mod sizes;
mod standing;
mod stderr;
mod support;
mod wrap;
