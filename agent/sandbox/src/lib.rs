//! What a process gives up for good, and what this kernel offers for that.
//!
//! | file | what |
//! |---|---|
//! | `caps` | capabilities: the smallest set for each role, with reasons |
//! | `landlock` | file hierarchies and TCP ports |
//! | `seccomp`, `seccomp/` | system call filters, compiled from `profiles/seccomp/` or the user's OCI file |
//! | `resolving` | the files by which names are resolved and certificates checked |
//! | `memory` | which process ends when the host's memory runs out |
//! | `host` | what this kernel offers: facts only |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod caps;
pub mod host;
pub mod landlock;
pub mod memory;
pub mod resolving;
pub mod seccomp;
