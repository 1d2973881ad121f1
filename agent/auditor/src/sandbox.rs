//! What the auditor may still do once it runs: write its state directory, and talk over the sockets it has.
//!
//! No capability, no gain by exec, no memory for others to read. Landlock, where the kernel has it, leaves the state
//! directory and `/dev/urandom` (SQLite's salts); no other file, no program, no TCP port, no unix socket to connect to,
//! no signal to others. seccomp leaves the calls of `profiles/seccomp/auditor.toml`: no program, no new socket, no
//! other process. All of it must come before the first thread: each of these holds for one thread and its children.

use ringfence_sandbox::{
    caps,
    landlock::{self, Access, Hierarchy, Rules},
    seccomp,
};
use std::{collections::BTreeSet, path::Path};

/// Why the auditor cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the auditor cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Landlock.
    #[error("the auditor cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the auditor cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Gives up everything but what the role needs, for good.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error, but is logged.
pub(crate) fn enter(state: &Path) -> Result<(), Error> {
    caps::drop_all()?;
    caps::not_dumpable()?;
    landlocked(state)?;
    seccomp::Filter::compile(&seccomp::Policy::auditor_list()?)?.load()?;
    Ok(())
}

fn landlocked(state: &Path) -> Result<(), Error> {
    let needed =
        |path: &Path, access| Hierarchy { may_be_missing: false, ..Hierarchy::resolved(path, access) };
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies: vec![
            // An administrator may have made the directory a link.
            needed(state, Access { read: true, write: true, ..Access::default() }),
            needed(Path::new("/dev/urandom"), Access { read: true, ..Access::default() }),
        ],
        tcp: Some(BTreeSet::new()),
        scope_signals: true,
        scope_abstract: true,
        ..Rules::default()
    };
    if !rules.enforce()? {
        tracing::warn!("this kernel has no Landlock: the auditor runs without capabilities, but unconfined");
    }
    Ok(())
}
