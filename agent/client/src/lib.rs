//! Clients of the auditor.
//!
//! `events` asks the query socket, `sessions` the socket for MCP sessions. `places` says where a user's sessions are
//! kept; `ready` checks a database before a session relies on it.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod events;
pub mod places;
pub mod ready;
pub mod sessions;
