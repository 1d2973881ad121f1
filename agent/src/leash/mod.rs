//! The tool server's role: `ringfence tools`, the tools of `ringfence-leash` behind the gate, as an MCP server over stdio.
//!
//! | what | file |
//! |---|---|
//! | where the session's grant comes from | `source` |
//! | a grant's text, with the name of what is wrong in it | `read` |
//! | paths of a grant as they are on this machine | `place` |
//! | lines in, lines out; what a line comes to | `server`; `work` |
//! | calls, several at once | `calls` |
//! | every decision of the gate, on record | `record` |
//! | a profile's denies, which the lattice does not have | `veto` |
//! | the processes around the server: nothing outlives it | `guard` |
//! | HTML, read outside of the server | `reader` |
//! | the kernel behind the gate: Landlock and seccomp; eBPF | `confine`; `pending` |

mod calls;
pub(crate) mod confine;
pub(crate) mod guard;
pub(crate) mod pending;
pub(crate) mod place;
pub(crate) mod read;
pub(crate) mod reader;
mod record;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod veto;
mod work;

pub(crate) use record::Recorder;
