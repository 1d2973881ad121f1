//! The child's life before exec: it becomes the user, waits for the word, confines itself.

use crate::{
    Error, FAILED, Launch,
    command::Command,
    confine::{self, Confinement},
};
use nix::{
    sys::{
        prctl::set_pdeathsig,
        signal::Signal,
        socket::{MsgFlags, send},
    },
    unistd,
};
use ringfence_base::error::chain;
use ringfence_process::{
    job::{Job, Streams},
    wait,
};
use ringfence_sandbox::caps;
use std::{
    ffi::OsString,
    io::{self, Read, Write},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
};

/// What the child says once it has become the user; anything else is the status of a failure.
pub(crate) const READY: u8 = 1;

impl Launch<'_> {
    /// The child's life before exec.
    pub(super) fn in_child(
        &self,
        mut socket: UnixStream,
        (signals, job): (&wait::Signals, &Job),
        confinement: Confinement,
        streams: Streams,
        command: &Command,
    ) -> u8 {
        let Ok(word) = socket.try_clone() else { return FAILED };
        let not_run = |status: u8, reason: &str| {
            eprintln!("ringfence: {reason}");
            // Whoever only waits does not listen, and must not make this a death by SIGPIPE.
            let said = [&[status], reason.as_bytes()].concat();
            let _ = send(word.as_raw_fd(), &said, MsgFlags::MSG_NOSIGNAL);
            status
        };
        let failed = |error: &dyn std::error::Error| not_run(FAILED, &chain(error));
        if let Err(errno) = job.enter() {
            return failed(&Error::Job(errno));
        }
        if let Some(identity) = self.identity.as_ref().filter(|identity| !identity.is_current())
            && let Err(error) = caps::become_user(identity.uid, identity.gid, &identity.groups)
        {
            return failed(&error);
        }
        // Who serves its model, or hosts by name, is gone then, and whoever takes that address would be believed.
        if (self.request.endpoint.is_some() || self.is_proxied)
            && let Err(errno) = set_pdeathsig(Signal::SIGKILL)
        {
            return failed(&Error::Job(errno));
        }
        // The daemon enrols nobody for a user who could still gain privileges.
        if let Err(error) = caps::no_new_privs() {
            return failed(&error);
        }
        if socket.write_all(&[READY]).is_err() {
            return FAILED;
        }
        let Ok((confine, bundle)) = hear_go(&mut socket) else { return FAILED };
        if let Err(error) = std::env::set_current_dir(self.workdir) {
            return failed(&Error::Workdir { path: self.workdir.to_owned(), source: error });
        }
        if let Streams::Given(streams) = streams
            && let Err(errno) = take_streams(&streams)
        {
            return failed(&Error::Streams(errno));
        }
        if let Err(error) = confine::plain(signals) {
            return failed(&error);
        }
        if confine && let Err(error) = confinement.enforce() {
            return failed(&error);
        }
        let trusting = bundle.map(|bundle| {
            let named = if self.request.whole_environment { &[][..] } else { &self.request.variables };
            self.environment.clone().trusting(&bundle, named)
        });
        let not_started = command.exec(trusting.as_ref().unwrap_or(self.environment));
        not_run(not_started.status, &not_started.to_string())
    }
}

/// What the child is told: whether it confines itself, and the file with the certificates that its programs are to trust.
pub(crate) fn go(confine: bool, bundle: Option<&Path>) -> Vec<u8> {
    let path = bundle.map_or(&[][..], |path| path.as_os_str().as_bytes());
    // No path is longer than the kernel's.
    let length = u16::try_from(path.len()).unwrap_or(0);
    let path = path.get(..length.into()).unwrap_or_default();
    [&[u8::from(confine)][..], &length.to_be_bytes(), path].concat()
}

fn hear_go(socket: &mut UnixStream) -> io::Result<(bool, Option<PathBuf>)> {
    let mut head = [0; 3];
    socket.read_exact(&mut head)?;
    let [confine, high, low] = head;
    let mut path = vec![0; u16::from_be_bytes([high, low]).into()];
    socket.read_exact(&mut path)?;
    Ok((confine == 1, (!path.is_empty()).then(|| OsString::from_vec(path).into())))
}

/// Puts descriptors where a command looks for its streams.
fn take_streams([input, output, errors]: &[OwnedFd; 3]) -> nix::Result<()> {
    unistd::dup2_stdin(input)?;
    unistd::dup2_stdout(output)?;
    unistd::dup2_stderr(errors)
}
