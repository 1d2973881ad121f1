//! The interceptor role: one MCP stdio session, every line judged, recorded and forwarded as it came.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod answer;
pub mod follow;
pub mod forward;
pub mod guard;
pub mod held;
pub(crate) mod inlet;
pub mod link;
pub(crate) mod outlet;
pub mod seen;
pub mod session;
pub mod wrap;
