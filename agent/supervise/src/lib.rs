//! Supervision of a role's process.
//!
//! `child` is any supervised process: its end of the socket, how it ended, when to start it again. `worker` is an LLM
//! worker's process, which the core and `ringfence agent start` both supervise.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod child;
pub mod tools_line;
pub mod worker;
