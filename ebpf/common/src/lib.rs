//! What the eBPF programs and the host agent agree on: the ABI of the pinned maps and of the event records,
//! and the hashes that both sides compute.
//!
//! Everything is fixed width and `repr(C)`; no enum or bool crosses the boundary. A change of a layout here is a
//! change of [`ABI_VERSION`].
#![no_std]

pub mod egress;
pub mod enroll;
pub mod event;
pub mod fields;
pub mod fold;
pub mod hash;
pub mod hooks;
pub mod ioctls;
pub mod moves;
pub mod net;
pub mod options;
pub mod patterns;
pub mod policy;
pub mod syscalls;
pub mod task;
pub mod unlisted;

/// Version of everything in this crate that ends up in a pinned map or a ring record.
pub const ABI_VERSION: u32 = 5;

/// Most path components (below the container's root) that are looked at; a deeper path is refused.
pub const MAX_COMPONENTS: usize = 64;
/// Most bytes of a path, slashes included; a longer path is refused.
pub const MAX_PATH: usize = 4096;
/// Most containers at once: the size of the container array. A power of two.
pub const MAX_CONTAINERS: usize = 4096;
/// Most policies at once: a container's present one and, during a reload, its next.
pub const MAX_POLICIES: usize = 2 * MAX_CONTAINERS;
