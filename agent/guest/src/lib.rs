//! What lives in the container: the runtime that drives the agent's loop, and the runner of its tools.
//!
//! This is hostile ground: whatever a model makes its tools do, they do as the same user as this code. So nothing here
//! holds a key, decides a policy or knows who the provider is; the daemon at the other end of the socket and the kernel do.
//!
//! | what | file |
//! |---|---|
//! | the agent's loop, its tools, its connection | [`runtime`] |
//! | a unix socket on the container's own loopback | [`bridge`] |
//! | a tool's shell says which call it runs | [`tie`] |
//! | the answer to a coding agent's own hooks | [`hook`] |
//! | a container's tools, known to one daemon, with output that is bounded | [`runner`] |
//! | signals as a descriptor; waiting for descriptors | `signals` |
//! | fork, and leaving without exit handlers, what a process was started with: the only `unsafe` | `sys` |

pub mod bridge;
pub mod hook;
pub mod runner;
pub mod runtime;
mod signals;
mod sys;
pub mod tie;

/// Closes this process, and its forks until they become other programs, to others of the same user: no core dump, no
/// ptrace(2), no /proc/PID/mem. Tools run as that user, and whoever acts as the runtime chooses what the record ties to a call;
/// whoever acts as the tool runner, what is cut, refused and logged. What they become is open again: exec(2) sees to that.
///
/// # Errors
/// prctl(2)'s, which no supported kernel gives for these arguments.
pub fn close_to_others() -> std::io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}
