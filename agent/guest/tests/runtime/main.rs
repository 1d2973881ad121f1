//! The runtime against a scripted daemon over a real socket.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod daemon;
mod flags;
mod link;
mod rounds;
mod shell;
mod tags;
