//! Everything that touches the kernel: BPF, BTF, seccomp, Landlock, capabilities. The only module with `unsafe`.
//!
//! [`Kernel`] is the whole of eBPF for the core: programs and maps that are loaded or adopted, containers and their
//! policies, tags of tasks. [`Rings`] are the records that the programs wrote.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod arrays;
mod btf;
mod globals;
mod handle;
mod load;
#[cfg(test)]
mod move_laws;
mod net;
mod object;
pub mod permitted;
mod pins;
mod policies;
mod rings;
mod running;
mod share;
mod spellings;
pub mod surface;
mod sys;
mod table;
mod tasks;
#[cfg(test)]
mod vm_record_tests;
#[cfg(test)]
mod vm_tests;

pub use handle::Kernel;
pub use load::{Coverage, LoadError};
pub use pins::unpin_all;
pub use policies::{ContainerId, Installed, PolicyError};
pub use rings::{RingError, Rings};
pub use tasks::{Membership, TaskError};
