//! Why the auditor cannot start, or ended early.

use super::{link, sandbox, web};
use ringfence_store as store;
use std::{io, path::PathBuf};

/// Why the auditor cannot start, or ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not started by the daemon.
    #[error(
        "`ringfence auditor` is started by the daemon, with its sockets as standard input and output; use `ringfence daemon`"
    )]
    NotFromDaemon(#[source] Option<io::Error>),
    /// The dashboard.
    #[error(transparent)]
    Web(#[from] web::Error),
    /// Privileges could not be given up.
    #[error(transparent)]
    Sandbox(#[from] sandbox::Error),
    /// The state directory is unusable.
    #[error("cannot use the state directory {}; it must exist and be writable for user {uid}", path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// Who we are.
        uid: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another auditor has it.
    #[error("another auditor uses {}; one that was killed and does not end waits for the file system of a user's journal (root ends such a one by /sys/fs/fuse/connections/*/abort)", path.display())]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The store cannot be opened, and waiting will not help.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A thread could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// The core could not be understood.
    #[error(transparent)]
    Link(#[from] link::LinkError),
    /// Nobody says any more who asks.
    #[error(
        "the daemon's line for questions about peers broke; what came is stored, and the daemon starts another auditor"
    )]
    CutOff,
    /// The last events could not be stored.
    #[error("the audit database could not be written to the end; see the messages above")]
    Lost,
}
