//! The kernel's side of Ringfence: the eBPF programs and maps. The only crate that uses aya.
//!
//! [`Kernel`] is what the core holds: programs and maps, loaded or adopted; containers and their policies; tags of
//! tasks. [`Rings`] are the records that the programs wrote.
//!
//! | file | what |
//! |---|---|
//! | `object`, `globals`, `btf` | the embedded eBPF object; the values of its globals, from the running kernel's BTF |
//! | `load`, `pins`, `permitted` | loading or adopting, what is pinned, whether this process may load at all |
//! | `surface` | what the running kernel has that `coverage.toml` does not name |
//! | `handle`, `policies`, `arrays` | [`Kernel`]; containers and policies in the kernel's arrays |
//! | `table`, `net` | the rule table; the net trie |
//! | `spellings`, `share` | rules under other spellings; each user's share of the tables |
//! | `egress` | where containers' egress workers listen, and whose a connection to one is |
//! | `rewriters` | the programs that send connections there, attached while somebody needs them |
//! | `tasks`, `running` | tags by pidfd; tagging processes that already run |
//! | `rings` | [`Rings`]: denials, allowed events, counts of flooding containers |
//! | `sys` | system calls that no library covers |
//!
//! `unsafe` is allowed here, and in a few single files of other crates: see ARCHITECTURE.md.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod arrays;
mod btf;
mod egress;
mod globals;
mod handle;
mod load;
mod net;
mod object;
pub mod permitted;
mod pins;
mod policies;
mod rewriters;
mod rings;
mod running;
mod share;
mod spellings;
pub mod surface;
mod sys;
mod table;
mod tasks;
#[cfg(test)]
mod tests;

pub use egress::{Flows, Listeners};
pub use handle::Kernel;
pub use load::{Coverage, LoadError};
pub use pins::unpin_all;
pub use policies::{ContainerId, Installed, PolicyError};
pub use rings::{RingError, Rings};
pub use tasks::{Membership, TaskError};
