//! What to run, and how.

use super::Variable;
use ringfence_policy::{Partial, Profile};
use std::{ffi::OsString, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, sync::Arc};

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Request {
    /// Profile name or path; `None`: `shell`, if it is installed.
    pub profile: Option<String>,
    /// The profile itself, where it was loaded already: in place of the name.
    pub loaded: Option<Box<Profile>>,
    /// Where the command's model is served by who starts it: a profile with a kit grants that, too.
    pub endpoint: Option<Endpoint>,
    /// The user to become first.
    pub user: Option<String>,
    /// Directory to start in, and what `${WORKDIR}` in the profile is; `None`: the current one.
    pub workdir: Option<PathBuf>,
    /// Environment variables beside the allowlist.
    pub variables: Vec<Variable>,
    /// Record what would be denied, deny nothing.
    pub audit: bool,
    /// What may stay open where eBPF does not hold.
    pub accepted: Vec<Partial>,
    /// Where eBPF does not hold, hosts that are granted by name are reached through a proxy of the run. If not, they are closed.
    pub by_proxy: bool,
    /// The command and its arguments.
    pub words: Vec<OsString>,
    /// What of the enforcement is said on standard error.
    pub say: Say,
    /// Pass on the whole environment, not the allowlist.
    pub whole_environment: bool,
}

/// An address of loopback that somebody listens at.
#[derive(Debug, Clone)]
pub struct Endpoint {
    /// The address.
    pub address: SocketAddr,
    /// The socket: whoever has it may have the address granted.
    pub listener: Arc<OwnedFd>,
    /// Where its tool calls are tied to their processes, if anywhere.
    pub tie: Option<Box<Tie>>,
}

/// What ties tool calls to their processes.
#[derive(Debug, Clone)]
pub struct Tie {
    /// Name of an abstract unix socket, without the `@`.
    pub name: String,
    /// The socket: whoever has it may have the name granted.
    pub listener: Arc<OwnedFd>,
    /// The program that speaks there.
    pub program: PathBuf,
}

/// What is said of the enforcement before the command runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    /// Nothing: the caller says it ([`super::Started::lines`]).
    Nothing,
    /// What is closed though it is granted: otherwise nobody finds out why the command fails.
    Closed,
    /// That, and what enforces.
    All,
}
