//! The tool server's role: `ringfence tools`, the tools of `ringfence-leash` behind the gate, as an MCP server over stdio.
//!
//! | what | file |
//! |---|---|
//! | where the session's grant comes from | `source` |
//! | a grant's text, with the name of what is wrong in it | `read` |
//! | paths of a grant as they are on this machine | `place` |
//! | lines in, lines out | `server` |
//! | calls, several at once | `calls` |
//! | every decision of the gate, on record | `record` |
//! | a profile's denies, which the lattice does not have | `veto` |
//! | the kernel behind the gate: Landlock and seccomp; eBPF | `confine`; `pending` |

mod calls;
pub(crate) mod confine;
pub(crate) mod pending;
pub(crate) mod place;
pub(crate) mod read;
mod record;
pub(crate) mod server;
pub(crate) mod source;
pub(crate) mod veto;

pub(crate) use record::Recorder;
