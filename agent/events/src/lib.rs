//! Kernel records decoded, described, explained and tied to calls. Pure: no I/O.

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod attribute;
pub mod decode;
pub mod explain;
pub mod manifests;
pub mod present;
pub mod report;
#[cfg(any(test, feature = "test-support"))]
pub mod samples;
