//! What a worker may still do once it runs: write its own log, accept on its socket, call its providers.
//!
//! No capability, no gain by exec, no memory for others to read. Landlock, where the kernel has it, leaves the log's
//! directory, and for reading what names are resolved by; no other file, no program, no signal to others. seccomp
//! leaves the calls of `profiles/seccomp/worker.toml`: no program, no other process, no socket but to the internet and
//! none that listens. All of it comes before the first thread.

use crate::kernel::{
    caps, host,
    landlock::{self, Access, Hierarchy, Rules},
    seccomp,
};
use nix::sys::resource::{Resource, setrlimit};
use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Most bytes of memory that a worker writes to: a container that makes it hold more ends its own worker, and nobody
/// else's. A conversation of 10 MB needs about 50 MB.
const MEMORY: u64 = 1 << 30;

/// How soon the kernel ends this process when memory runs out: 0, and what is above and below, to -1000 for never.
const OOM_SCORE: &str = "/proc/self/oom_score_adj";

/// What the C library reads to resolve a name. Certificates' roots are in the binary.
const RESOLVING: &[&str] = &[
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/etc/ssl",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/etc/pki",
    "/run/systemd/resolve",
    "/usr/lib",
    "/lib",
    "/lib64",
];

/// Why a worker cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Capabilities.
    #[error("the worker cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory, or its priority.
    #[error("the worker cannot bound what it uses of the host")]
    Limit(#[source] io::Error),
    /// Landlock.
    #[error("the worker cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the worker cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Gives up everything but what the role needs, for good.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error, but is said in the log.
pub(crate) fn enter(log: &Path) -> Result<(), Error> {
    // Before /proc/self is root's.
    if let Err(error) = like_any_other_for_memory() {
        tracing::warn!(
            "cannot write {OOM_SCORE}, so the kernel ends others before this worker when memory runs out: {error}"
        );
    }
    caps::drop_all()?;
    caps::not_dumpable()?;
    setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY).map_err(|errno| Error::Limit(errno.into()))?;
    // The unit lets the record's threads go first (`precedence`). How much a worker has to do is its agent's doing.
    setrlimit(Resource::RLIMIT_NICE, 0, 0).map_err(|errno| Error::Limit(errno.into()))?;
    landlocked(log)?;
    seccomp::Filter::compile(&seccomp::Policy::worker_list()?)?.load()?;
    Ok(())
}

/// The same for a user's own service, which has all agents in one process, reads profiles and credentials wherever they are
/// and makes its own sockets: it starts no program and writes nowhere but in `writable`. Commands that print credentials are
/// run by another process (`commands`).
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_user(writable: &[PathBuf]) -> Result<(), Error> {
    caps::drop_all()?;
    caps::not_dumpable()?;
    let abi = host::landlock_abi();
    if abi == 0 {
        tracing::warn!("this kernel has no Landlock: the agents' service may write wherever its user may");
    } else {
        let of = |path: &Path| Hierarchy {
            path: path.to_owned(),
            access: Access { write: true, ..Access::default() },
            exact: false,
            may_be_missing: true,
        };
        let null = Path::new("/dev/null");
        let rules = Rules {
            restricted: Access { write: true, exec: true, ..Access::default() },
            hierarchies: writable.iter().map(PathBuf::as_path).chain([null]).map(of).collect(),
            tcp: None,
            scope_signals: true,
            // The service manager's socket may be one.
            scope_abstract: false,
        };
        if let Some(prepared) = rules.prepare(abi)? {
            prepared.enforce()?;
        }
    }
    seccomp::Filter::compile(&seccomp::Policy::user_list()?)?.load()?;
    Ok(())
}

/// The unit keeps the kernel from choosing the daemon when the host's memory runs out. How much a worker has is its agent's
/// doing: it gives up what it has of that from the daemon. Whoever started the daemon otherwise is not overruled.
fn like_any_other_for_memory() -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).write(true).open(OOM_SCORE)?;
    if io::read_to_string(&file)?.starts_with('-') {
        file.write_all(b"0")?;
    }
    Ok(())
}

fn landlocked(log: &Path) -> Result<(), Error> {
    let abi = host::landlock_abi();
    if abi == 0 {
        tracing::warn!(
            "this kernel has no Landlock: the worker runs without capabilities, but sees the host's files"
        );
        return Ok(());
    }
    // Rules follow no links.
    let allow = |path: &Path, access| Hierarchy {
        path: path.canonicalize().unwrap_or_else(|_| path.to_owned()),
        access,
        exact: false,
        may_be_missing: true,
    };
    let mut hierarchies = vec![allow(log, Access { read: true, write: true, ..Access::default() })];
    let readable = RESOLVING.iter().map(Path::new).chain([Path::new("/dev/urandom"), Path::new("/dev/null")]);
    hierarchies.extend(readable.map(|path| allow(path, Access { read: true, ..Access::default() })));
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies,
        // Providers are where the profile says, at any port.
        tcp: None,
        scope_signals: true,
        scope_abstract: true,
    };
    if let Some(prepared) = rules.prepare(abi)? {
        prepared.enforce()?;
    }
    Ok(())
}
