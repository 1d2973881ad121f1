//! The interceptor role: one MCP stdio session, every line judged, recorded and forwarded unchanged.
//!
//! | file | what |
//! |---|---|
//! | `forward` | the process: starts the server, runs both directions, ends in the right order |
//! | `session` | what happens to each line. No threads, no processes |
//! | `guard` | two processes around the server, which end it and all it started with the interceptor |
//! | `inlet`, `outlet` | the server's standard input; the client's end |
//! | `held` | calls that wait for a person, bounded in bytes |
//! | `answer` | messages that the interceptor makes itself |
//! | `link` | the link to the auditor; starts a user's auditor if none runs |
//! | `follow` | what changes of the rule file do to the rules in force |
//! | `seen` | which of a server's tools were called before |
//! | `wrap` | `ringfence mcp wrap`: a client's configuration with Ringfence before each stdio server |

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
