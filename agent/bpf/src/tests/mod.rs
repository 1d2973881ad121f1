//! Tests of several files at once. Those of `vm` and `vm_records` load the programs, in the guest.

mod moves;
mod vm;
mod vm_records;
