//! A tool server whose children eBPF governs.
//!
//! The server is forked, and the daemon is asked to put the fork into a container with its next exec. It never execs;
//! everything that it starts is born with the same word and enters the container with an exec of its own, before its first
//! instruction. So all tools of a session are one container, and the server itself is in none.

use crate::{
    core::{
        client::{self, ClientError},
        paths::Paths,
    },
    kernel::spawn::{self, FAILED},
    launch::wait::{self, Signals},
};
use nix::sys::signal::{Signal, kill};
use std::{
    cell::Cell,
    io::{self, Read, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
};

/// Why a server could not be started under the daemon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The daemon.
    #[error(transparent)]
    Core(#[from] ClientError),
    /// The fork.
    #[error(transparent)]
    Spawn(#[from] spawn::Error),
    /// Signals.
    #[error(transparent)]
    Signals(#[from] wait::Error),
    /// The socket between the two.
    #[error("cannot talk to the tool server's process")]
    Talk(#[source] io::Error),
}

/// The enrolment socket, if the daemon listens, and to us; else why not.
///
/// # Errors
/// A daemon that is there and cannot be spoken to: never a reason to do without it.
pub(crate) fn core() -> Result<Result<PathBuf, String>, Error> {
    let socket = Paths::from_env().enroll_socket();
    match client::probe(&socket) {
        Ok(()) => Ok(Ok(socket)),
        Err(error) if error.is_no_daemon() || matches!(error, ClientError::NotPermitted { .. }) => {
            Ok(Err(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Runs `server` in a fork of this process whose children enter a container under `asked`, a profile's name or a grant;
/// returns its exit status. To be called while this process has one thread.
///
/// # Errors
/// [`Error`]; nothing was served.
pub(crate) fn serve(
    socket: &Path,
    asked: &str,
    workdir: &Path,
    server: impl FnOnce(&str) -> u8,
) -> Result<u8, Error> {
    let (ours, mut theirs) = UnixStream::pair().map_err(Error::Talk)?;
    let ours = Cell::new(Some(ours));
    wait::adopt_children()?;
    let signals = Signals::block()?;
    let child = spawn::spawn(None, || {
        drop(ours.take());
        // Without its other half it would not be ended by whoever ends that.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let mut container = String::new();
        // What is said ends with the other end; nothing is said if it is not enrolled.
        let said = theirs.read_to_string(&mut container);
        if said.is_err() || container.is_empty() || signals.unblock().is_err() {
            return FAILED;
        }
        server(&container)
    })?;
    let mut ours = ours.into_inner().ok_or_else(|| Error::Talk(io::ErrorKind::BrokenPipe.into()))?;
    let enrolled = client::enroll(socket, child.as_fd(), asked, Some(workdir), false);
    let said = match enrolled {
        Ok(enrolled) => ours.write_all(enrolled.container.as_bytes()).map_err(Error::Talk),
        Err(error) => Err(error.into()),
    };
    drop(ours);
    if let Err(error) = said {
        let _ = kill(child.pid(), Signal::SIGKILL);
        let _ = signals.wait(&child);
        return Err(error);
    }
    Ok(signals.wait(&child)?)
}
