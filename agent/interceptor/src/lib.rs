//! The interceptor role: one MCP stdio session, every line judged, recorded and forwarded unchanged.
//!
//! | file | what |
//! |---|---|
//! | `forward` | the process: starts the server, runs both directions, ends in the right order |
//! | `session` | what happens to each line. No threads, no processes |
//! | `ending` | how long a server may take to end, and what is said about that |
//! | `guard` | two processes around the server, which end it and all it started with the interceptor |
//! | `server_stdin`, `client_stdout` | the pipe to the server, and whether it is read; the pipe to the client |
//! | `judged` | a tool call and what was decided about it |
//! | `held` | calls that wait for a person, bounded in bytes |
//! | `identity` | what tells that a server, and a call, is the same as before |
//! | `outstanding` | ids of the client's requests that the server did not answer yet |
//! | `pins` | the server's tools as they are pinned, and what becomes of lists of tools |
//! | `answer` | messages that the interceptor makes itself |
//! | `link` | the link to the auditor; starts a user's auditor if none runs |
//! | `rule_file` | what changes of the rule file do to the rules in force |
//! | `seen` | which of a server's tools were called before |
//! | `tool_names` | what the names of tools say, read once |
//! | `starter` | which process the interceptor works for |
//! | `wrap` | `ringfence mcp wrap`: a client's configuration with Ringfence before each stdio server |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod answer;
pub(crate) mod client_stdout;
mod ending;
pub mod forward;
pub mod guard;
pub mod held;
pub mod identity;
pub mod judged;
pub mod link;
pub(crate) mod outstanding;
pub mod pins;
pub mod rule_file;
pub mod seen;
pub(crate) mod server_stdin;
pub mod session;
pub mod starter;
mod tool_names;
pub mod wrap;
