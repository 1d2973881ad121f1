//! Everything that touches the kernel: BPF, BTF, seccomp, Landlock, capabilities. The only module with `unsafe`.
//!
//! [`Kernel`] is the whole of eBPF for the core: programs and maps that are loaded or adopted, containers and their
//! policies, tags of tasks. [`Rings`] are the records that the programs wrote.

mod arrays;
mod btf;
pub(crate) mod caps;
mod globals;
pub(crate) mod handed;
mod handle;
pub(crate) mod host;
pub(crate) mod landlock;
mod load;
#[cfg(test)]
mod move_laws;
mod net;
mod object;
mod pins;
mod policies;
mod rings;
mod running;
pub(crate) mod seccomp;
mod share;
pub(crate) mod spawn;
mod spellings;
pub(crate) mod surface;
mod sys;
mod table;
mod tasks;
#[cfg(test)]
mod vm_record_tests;
#[cfg(test)]
mod vm_tests;

pub(crate) use handle::Kernel;
pub(crate) use load::{Coverage, LoadError};
pub(crate) use pins::unpin_all;
pub(crate) use policies::{ContainerId, Installed, PolicyError};
pub(crate) use rings::{RingError, Rings};
pub(crate) use tasks::{Membership, TaskError};
