//! The tool runner, black-box: its binary, its shims, its socket.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod differential;
mod doors;
mod erlang;
mod hostile;
mod limits;
mod lines;
mod pipeline_end;
mod shims;
mod support;
mod terminal;
mod v1;
mod v2;
