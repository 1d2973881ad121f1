//! Ringfence's eBPF programs: who is governed, what they ask for, what the kernel answers, and the record of it.
//!
//! One LSM program per hook, named like the hook. None of them sleeps. The way through them:
//! `identity` (is this task governed, by which container) -> `decide` (the container's policy; `walk` hashes a path
//! from dentries, the fold looks its prefixes up in the rule table) -> verdict -> `emit` (the record, if any).
//!
//! A program is verified by the kernel once for each way through it, so what many hooks need is a *global* function
//! (`extern "C"`, not inlined), which is verified once and takes only numbers and the task's own memory.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]

mod attributes;
mod calls;
mod capable;
mod casing;
mod decide;
mod egress;
mod emit;
mod enroll;
mod escape;
mod exec;
mod explain;
mod files;
mod fold;
mod globals;
mod groups;
mod identity;
mod ioctl;
mod ipc;
mod keys;
mod memory;
mod mounts;
mod names;
mod net;
mod objects;
mod options;
mod owner;
mod patterns;
mod queues;
mod received;
mod redirect;
mod rewrite;
mod search;
mod setuid;
mod shared;
mod socket;
mod storage;
mod syscall;
mod terminal;
mod text;
mod unix;
mod unknown;
mod walk;

/// The kernel offers most helpers to GPL-compatible programs only; "Dual MIT/GPL" is one of the strings it accepts.
#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // Never linked in: the verifier refuses an object that could get here.
    loop {}
}
