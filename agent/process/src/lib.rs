//! Processes: starting one so that nothing leaks into it, and what follows until its whole tree has ended.
//!
//! | file | what |
//! |---|---|
//! | `spawn` | fork, and what must happen between fork and exec |
//! | `listen_fds` | descriptors that a service manager passed |
//! | `peer` | who is at a socket's other end, and which process a pidfd names |
//! | `parent` | the parent of a process: what it runs, and what else it started |
//! | `pidfd` | opening a pidfd |
//! | `job` | the command's process group, session and terminal |
//! | `wait` | signals, stops and the exit status, passed between launcher and command |
//! | `tree` | ending every process that descends from this one |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod job;
pub mod listen_fds;
pub mod parent;
pub mod peer;
mod pidfd;
pub mod spawn;
pub mod tree;
pub mod wait;
