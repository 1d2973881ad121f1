//! The tool server's role: `ringfence tools`, the tools of `ringfence-tools` behind the gate, as an MCP server over stdio.
//!
//! | what | file |
//! |---|---|
//! | where the session's grant comes from | `source` |
//! | a grant's text, with the name of what is wrong in it | `parse` |
//! | the links in a grant's paths, followed | `links` |
//! | lines in, lines out; what a line comes to | `server`; `dispatch` |
//! | calls, several at once | `calls` |
//! | every decision of the gate, on record | `record` |
//! | a profile's denies, which the lattice does not have | `veto` |
//! | the processes around the server: nothing outlives it | `guard` |
//! | HTML, read outside of the server | `reader` |
//! | the kernel behind the gate: Landlock and seccomp; eBPF | `confine`; `enroll` |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

mod calls;
pub mod confine;
mod dispatch;
pub mod enroll;
pub mod guard;
pub mod links;
pub mod parse;
pub mod reader;
mod record;
pub mod server;
pub mod source;
pub mod veto;

pub use record::Recorder;
