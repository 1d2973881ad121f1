//! Processes: starting one so that nothing leaks into it, telling who is at a socket's other end, forwarding signals, ending a
//! whole tree.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod handed;
pub mod job;
pub mod peer;
pub mod spawn;
pub mod tree;
pub mod wait;
