//! A tool server whose children eBPF governs.
//!
//! The daemon is asked to put the server's process, a fork, into a container with its next exec. It never execs;
//! everything that it starts is born with the same word and enters the container with an exec of its own, before its first
//! instruction. So all tools of a session are one container, and the server itself is in none.

use ringfence_base::{
    client::{self, ClientError},
    paths::Paths,
};
use std::{
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

/// The enrolment socket, if the daemon listens, and to us; else why not.
///
/// # Errors
/// A daemon that is there and cannot be spoken to: never a reason to do without it.
pub fn socket() -> Result<Result<PathBuf, String>, ClientError> {
    let socket = Paths::from_env().enroll_socket();
    match client::probe(&socket) {
        Ok(()) => Ok(Ok(socket)),
        Err(error) if error.is_no_daemon() || matches!(error, ClientError::NotPermitted { .. }) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Has the children of `server`, a child of this process with one thread, enter a container under `asked`, a profile's
/// name or a grant; its public id.
///
/// # Errors
/// [`ClientError`]; the server must not begin.
pub fn enroll(
    socket: &Path,
    server: BorrowedFd<'_>,
    asked: &str,
    workdir: &Path,
) -> Result<String, ClientError> {
    Ok(client::enroll(socket, server, asked, Some(workdir), false, client::Beside::default())?.container)
}
