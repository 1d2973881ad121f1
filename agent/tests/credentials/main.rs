//! `ringfence egress-credentials`: the real binary, with a core, an egress worker and servers that the tests play, and real clients.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails there")]

mod clients;
mod git;
mod life;
mod reflected;
mod requests;
mod revoked;
mod site;
mod support;
