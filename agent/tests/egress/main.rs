//! `ringfence egress-worker`: the real binary, with a core, an auditor, clients and servers that the tests play.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails there"
)]

mod asks;
mod bounds;
mod changed;
mod credentials;
mod crowd;
mod http;
mod life;
mod memory;
mod names;
mod policies;
mod proxy;
mod resolver;
mod servers;
mod support;
mod tls;
