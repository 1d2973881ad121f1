//! What the process may still do once it has its credentials: speak to the internet and over the pipes that it was given. No file
//! but what names are resolved by and certificates are checked with, no program, no other process, no socket that listens.

use nix::sys::resource::{Resource, setrlimit};
use ringfence_sandbox::{
    caps,
    landlock::{self, Access, Hierarchy, Rules},
    resolving, seccomp,
};
use std::io;

/// Bytes of memory that it writes to, beside what messages may take.
const MEMORY: u64 = 512 << 20;

/// Why it cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the process that speaks to the remote server cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory.
    #[error("cannot set the limit of its memory")]
    Limit(#[source] io::Error),
    /// Landlock.
    #[error("the process that speaks to the remote server cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the process that speaks to the remote server cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Keeps others from looking into it, before it has anything that they could find.
///
/// # Errors
/// [`Error`]; the process must then end.
pub(super) fn hide() -> Result<(), Error> {
    Ok(caps::not_dumpable()?)
}

/// Gives up everything but what it needs, for good, before the first thread. `messages`: bytes that messages may take in all.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error.
pub(super) fn enter(messages: usize) -> Result<(), Error> {
    caps::drop_all()?;
    let most = MEMORY.saturating_add(messages as u64);
    setrlimit(Resource::RLIMIT_DATA, most, most).map_err(|errno| Error::Limit(errno.into()))?;
    let read = Access { read: true, ..Access::default() };
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies: resolving::paths().iter().map(|path| Hierarchy::resolved(path, read)).collect(),
        // Servers are at any port.
        tcp: None,
        scope_signals: true,
        scope_abstract: true,
    };
    rules.enforce()?;
    let calls = seccomp::Policy::worker_list()?.signalling_only(std::process::id());
    seccomp::Filter::compile(&calls)?.load()?;
    Ok(())
}
