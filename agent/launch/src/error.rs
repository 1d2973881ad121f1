//! Why the launcher did not run the command.

use super::{DEFAULT_PROFILE, credentials, identity};
use ringfence_base::client::ClientError;
use ringfence_policy::{CompileErrors, LoadErrors};
use ringfence_process::spawn;
use ringfence_process::wait;
use ringfence_sandbox::{landlock, seccomp};
use std::{io, path::PathBuf};

/// Why the command was not run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Ringfence cannot run here at all.
    #[error("{0}")]
    Platform(String),
    /// No profile is named, and the default one is not there.
    #[error("no profile is named, and there is no `{DEFAULT_PROFILE}`; {}", known_profiles(.0))]
    NoProfile(Vec<String>),
    /// The profile has errors.
    #[error("the profile cannot be used:\n{0}")]
    Profile(LoadErrors),
    /// The profile cannot be compiled for this host.
    #[error("the profile cannot be enforced here:\n{0}")]
    Compile(CompileErrors),
    /// There is no such directory.
    #[error("cannot use {} as the working directory", path.display())]
    Workdir {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A word of the command has a NUL byte.
    #[error("the command is empty or has a NUL byte")]
    Command,
    /// The user cannot be had.
    #[error(transparent)]
    Identity(#[from] identity::Error),
    /// A seccomp filter cannot be had.
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    /// A Landlock ruleset cannot be had.
    #[error(transparent)]
    Landlock(#[from] landlock::Error),
    /// eBPF does not hold, and what is left is less than the profile says and the user accepted.
    #[error("{0}")]
    Partial(String),
    /// Audit mode without eBPF.
    #[error(
        "{why}; without the eBPF programs audit mode would record nothing and deny nothing. \
         `ringfence doctor` tells what is missing"
    )]
    AuditWithoutEbpf {
        /// Why eBPF does not hold.
        why: String,
    },
    /// Names are granted, and nothing here resolves them.
    #[error(
        "profile `{profile}` grants hosts by name ({names}), which only the daemon can hold, or a proxy where Landlock keeps the \
         command to it (ABI 4, Linux 6.7, and seccomp) and `ringfence run` starts it: {why}\n\
         `ringfence doctor` tells what the daemon needs; or accept that none of these hosts is reached, and what else is not \
         held: --accept-partial {accept}"
    )]
    Names {
        /// The profile's name.
        profile: String,
        /// The first of the entries.
        names: String,
        /// Why there is no daemon.
        why: String,
        /// All that has to be accepted.
        accept: String,
    },
    /// Names are granted, and their proxy does not run.
    #[error("the proxy that reaches hosts by name does not run, and the command was not run: {0}")]
    Proxy(String),
    /// Credentials of the profile's.
    #[error(transparent)]
    Credentials(#[from] credentials::Error),
    /// Credentials, and nobody who puts them in.
    #[error(
        "profile `{profile}` has credentials for {hosts}, which only the daemon puts into requests, outside of the container: {why}\n\
         `ringfence doctor` tells what the daemon needs; or accept that none of these hosts is reached, and what else is not held: \
         --accept-partial {accept}"
    )]
    NoDaemonForCredentials {
        /// The profile's name.
        profile: String,
        /// The hosts.
        hosts: String,
        /// Why there is no daemon.
        why: String,
        /// All that has to be accepted.
        accept: String,
    },
    /// Credentials, and a daemon that says nothing of their certificates.
    #[error("the daemon takes no credentials: do it and this program have the same version? Restart it")]
    OldDaemon,
    /// The core refused.
    #[error("the command was not put in a container, and not run")]
    Enroll(#[source] ClientError),
    /// The child could not be started.
    #[error(transparent)]
    Spawn(#[from] spawn::Error),
    /// Signals or the exit status could not be had.
    #[error(transparent)]
    Wait(#[from] wait::Error),
    /// The command cannot have the streams that it was given.
    #[error("cannot put the command's standard streams in their places")]
    Streams(#[source] nix::Error),
    /// The command cannot be a job of its own.
    #[error("cannot make the command a process group or session of its own")]
    Job(#[source] nix::Error),
    /// The socket to the child failed.
    #[error("cannot talk to the child before it runs the command")]
    Handshake(#[source] io::Error),
}

fn known_profiles(names: &[String]) -> String {
    match names {
        [] => "no profiles are installed; `ringfence install` installs some, --profile FILE.toml names one"
            .into(),
        names => format!("name one with --profile: {}", names.join(", ")),
    }
}
