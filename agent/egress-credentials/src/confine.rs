//! What the process may still do once it runs: speak over what it was given.
//!
//! No capability, no gain by exec, no memory for others to read. Landlock, where the kernel has it, leaves it no file; seccomp leaves
//! the calls of `profiles/seccomp/credentials.toml`, among which none makes a socket, connects one or opens a file. All of it comes
//! before a credential is read, and before a byte that a container or a server chose.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use ringfence_sandbox::{
    caps,
    landlock::{self, Access, Rules},
    memory, seccomp,
};
use std::io;

/// Most bytes of memory that the process writes to: a container that makes it hold more ends its own connections, and nobody else's.
const MEMORY: u64 = 256 << 20;
/// Most descriptors: two for each connection, those that are being handed over, the runtime's own.
const DESCRIPTORS: u64 = 1024;

/// Why the process cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the process that has the container's credentials cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory, its priority, its descriptors.
    #[error("cannot set the resource limits of the process that has the container's credentials")]
    Limit(#[source] io::Error),
    /// Landlock.
    #[error("the process that has the container's credentials cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the process that has the container's credentials cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Keeps others from looking into it.
///
/// # Errors
/// [`Error`]; the process must then end.
pub(crate) fn hide() -> Result<(), Error> {
    // Before /proc/self is root's.
    if let Err(error) = memory::like_any_other() {
        tracing::warn!(
            "cannot write {}, so the kernel ends others before this process when memory runs out: {error}",
            memory::OOM_SCORE
        );
    }
    caps::not_dumpable()?;
    let limit = |errno: nix::Error| Error::Limit(errno.into());
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(limit)
}

/// Gives up everything but what the role needs, for good. How many bytes of memory it may have then.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error, but is said in the log.
pub(crate) fn enter() -> Result<u64, Error> {
    caps::drop_all()?;
    let limit = |errno: nix::Error| Error::Limit(errno.into());
    let (_, memory) = getrlimit(Resource::RLIMIT_DATA).map_err(limit)?;
    let memory = memory.min(MEMORY);
    for (what, most) in [
        (Resource::RLIMIT_DATA, memory),
        (Resource::RLIMIT_NOFILE, DESCRIPTORS),
        // How much it has to do is its container's doing.
        (Resource::RLIMIT_NICE, 0),
    ] {
        let (_, ours) = getrlimit(what).map_err(limit)?;
        setrlimit(what, most.min(ours), most.min(ours)).map_err(limit)?;
    }
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies: Vec::new(),
        // seccomp lets none be connected or bound.
        tcp: None,
        no_bind: false,
        scope_signals: true,
        scope_abstract: true,
    };
    if !rules.enforce()? {
        tracing::warn!(
            "this kernel has no Landlock: that the process with the container's credentials opens no file is seccomp's alone to hold"
        );
    }
    let calls = seccomp::Policy::credentials_list()?.signalling_only(std::process::id());
    seccomp::Filter::compile(&calls)?.load()?;
    Ok(memory)
}
