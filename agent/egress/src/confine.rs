//! What an egress worker may still do once it runs: serve the sockets it was given, resolve names, dial servers.
//!
//! No capability, no gain by exec, no memory for others to read. Landlock, where the kernel has it, leaves it for reading what
//! names are resolved by, and as that is replaced in /etc, whatever its user may read there, unless that is root; no other file,
//! nothing to write, no program, no signal to others. seccomp leaves the calls of `profiles/seccomp/egress.toml`, and files are
//! opened to read. All of it comes before the first thread, and before a byte that a container or a server chose is read.

use nix::{
    sys::resource::{Resource, getrlimit, setrlimit},
    unistd::geteuid,
};
use ringfence_sandbox::{
    caps,
    landlock::{self, Access, Hierarchy, Rules},
    memory, resolving, seccomp,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Most bytes of memory that a worker writes to: a container that makes it hold more ends its own worker, and nobody else's. What
/// is kept of what clients and servers say takes half of it at most (`share.rs`), and ten thousand connections that rest a tenth.
const MEMORY: u64 = 512 << 20;

/// Why a worker cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the egress worker cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory, its priority, its descriptors.
    #[error("cannot set the resource limits of the egress worker")]
    Limit(#[source] io::Error),
    /// Landlock.
    #[error("the egress worker cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the egress worker cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Keeps others from looking into a worker.
///
/// # Errors
/// [`Error`]; the process must then end.
pub(crate) fn hide() -> Result<(), Error> {
    // Before /proc/self is root's.
    if let Err(error) = memory::like_any_other() {
        tracing::warn!(
            "cannot write {}, so the kernel ends others before this worker when memory runs out: {error}",
            memory::OOM_SCORE
        );
    }
    caps::not_dumpable()?;
    Ok(())
}

/// What a worker may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// Bytes of memory that it writes to.
    pub(crate) memory: u64,
    /// Descriptors that it may have open, which is as many as it may raise that to.
    pub(crate) descriptors: u64,
}

/// Gives up everything but what the role needs, for good. What it is left with: the core may have left it less memory than a
/// worker has at most.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error, but is said in the log.
pub(crate) fn enter() -> Result<Limits, Error> {
    caps::drop_all()?;
    let limit = |errno: nix::Error| Error::Limit(errno.into());
    let (_, most) = getrlimit(Resource::RLIMIT_DATA).map_err(limit)?;
    let memory = most.min(MEMORY);
    setrlimit(Resource::RLIMIT_DATA, memory, memory).map_err(limit)?;
    // How much a worker has to do is its container's doing.
    setrlimit(Resource::RLIMIT_NICE, 0, 0).map_err(limit)?;
    let (_, descriptors) = getrlimit(Resource::RLIMIT_NOFILE).map_err(limit)?;
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, descriptors).map_err(limit)?;
    landlocked()?;
    let calls = seccomp::Policy::egress_list()?.signalling_only(std::process::id()).opening_to_read_only();
    seccomp::Filter::compile(&calls)?.load()?;
    Ok(Limits { memory, descriptors })
}

/// Where files are that are replaced, and not written, by whoever configures the host's network. A rule is of the file that there was,
/// so that the next one could not be read: the C library would ask a nameserver that there is not. Where this is root, who reads
/// everything in /etc, a rule for all of it would be too much: there, a run is started again.
fn replaced(is_root: bool) -> Vec<PathBuf> {
    let dirs = ["/etc/resolv.conf", "/etc/hosts"].iter().filter_map(|path| {
        let path = Path::new(path).canonicalize().ok()?;
        path.parent().map(Path::to_owned)
    });
    // A link may lead anywhere, as into somebody's home.
    let is_public = |dir: &PathBuf| {
        let is_below_run = dir.starts_with("/run") && dir.as_path() != Path::new("/run");
        is_below_run || dir.as_path() == Path::new("/etc") && !is_root
    };
    dirs.filter(is_public).collect()
}

fn landlocked() -> Result<(), Error> {
    let read = Access { read: true, ..Access::default() };
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies: resolving::names()
            .iter()
            .chain(&replaced(geteuid().is_root()))
            .map(|path| Hierarchy::resolved(path, read))
            .collect(),
        // Servers are at any port that the profile says. seccomp lets no internet socket be bound.
        tcp: None,
        scope_signals: true,
        scope_abstract: true,
        ..Rules::default()
    };
    if !rules.enforce()? {
        tracing::warn!(
            "this kernel has no Landlock: the egress worker runs without capabilities, but sees the host's files"
        );
    }
    Ok(())
}
