//! Why a task was not enrolled, in words for the one who asked.

use crate::{
    containers::RegistryError,
    egress::{EgressError, credentials::NotKept},
    quota::QuotaError,
};
use ringfence_base::error::chain;
use ringfence_bpf::{ContainerId, PolicyError, TaskError};
use ringfence_policy::{CompileErrors, LoadErrors};
use ringfence_process::peer::PeerError;
use ringfence_wire::credentials::OtherSecrets;
use std::{io, path::PathBuf};

/// Why a task was not enrolled.
#[derive(Debug, thiserror::Error)]
pub enum EnrollError {
    /// Not exactly one descriptor beside the request.
    #[error("an enrolment needs one pidfd beside the message, and {0} came")]
    Descriptors(usize),
    /// No name at all, or one that cannot be a file's.
    #[error("that is not a profile's name")]
    BadName,
    /// A grant that is none.
    #[error("that is not a grant")]
    Grant(#[source] serde_json::Error),
    /// An address that is not that of a listening socket of loopback which came with it.
    #[error(
        "an endpoint is the address of a listening TCP socket of loopback, which comes beside the message"
    )]
    Endpoint,
    /// A name of a socket for ties that is not that of a listening one which came with it.
    #[error(
        "a run's ties have an abstract unix socket of their own that listens, which comes beside the message"
    )]
    Tie,
    /// An endpoint beside a profile that is for no agent.
    #[error("profile {0} has no [kit], so no endpoint is granted beside it")]
    NoKit(String),
    /// The daemon has another working directory than its client.
    #[error("the profile's path {0} must be absolute")]
    RelativePath(String),
    /// A working directory that is none.
    #[error("the working directory {} must be an absolute path without `..`", .0.display())]
    BadWorkdir(PathBuf),
    /// The peer or the child cannot be told.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Somebody else's child.
    #[error("process {child} is not a child of process {peer}; a launcher enrols its own child only")]
    NotChild {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        peer: u32,
    },
    /// Threads would escape: a pidfd names the first only.
    #[error("process {child} has {threads} threads; it is enrolled while it has one")]
    Threads {
        /// The process to enrol.
        child: u32,
        /// How many.
        threads: u32,
    },
    /// A child that runs as somebody else.
    #[error("process {child} does not run as user {uid}, who asks to enrol it")]
    OtherUser {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        uid: u32,
    },
    /// A child that could come to hold more than who asks: a setuid program, under a profile of a user's choice.
    #[error(
        "process {0} could gain privileges by executing a program; set no_new_privs before it is enrolled (prctl(2), \
         setpriv --no-new-privs), or ask as root"
    )]
    MayGain(u32),
    /// A child that holds more than who asks.
    #[error("process {child} holds {what}, which the process that asks to enrol it does not; ask as root")]
    HoldsMore {
        /// The process to enrol.
        child: u32,
        /// What it holds.
        what: String,
    },
    /// A process that could make system calls that nothing judges.
    #[error(
        "process {child} has a thread without a seccomp filter, and nothing else refuses this kernel's system calls {calls}, which this \
         version of Ringfence does not know; start its container with a seccomp profile (the engines' default is one), or \
         update Ringfence"
    )]
    NoFilter {
        /// The process to enrol.
        child: u32,
        /// Names of the calls.
        calls: String,
    },
    /// Peer and child do not belong together.
    #[error("process {child} and process {peer}, who asks to enrol it, are not in the same container")]
    OtherContainer {
        /// The process to enrol.
        child: u32,
        /// Who asked.
        peer: u32,
    },
    /// Enrolled already.
    #[error("the process already belongs to container {0}")]
    Governed(String),
    /// A container that the registry does not know.
    #[error("container {0} has no record (it was lost or damaged), so nothing can be nested in it")]
    NoRecord(ContainerId),
    /// A path from somebody who is not root.
    #[error("only root may name a profile by its path ({0}); put it into {1} and name it")]
    PathNotRoot(String, PathBuf),
    /// A profile that is not root's alone, asked for by somebody else.
    #[error("profile {name}: {file} can be changed by others than root; chown root and chmod go-w the file and its directory", file = .file.display())]
    NotRoots {
        /// The profile.
        name: String,
        /// The file: the profile's own or one that it extends.
        file: PathBuf,
    },
    /// A file of the profile that the container could have written.
    #[error(
        "profile {name}: the container may write {file}, of which its policy would be made, so it is not read again and the \
         policy in force stays; keep the file where the container may not write, and start the container again",
        file = .file.display()
    )]
    Writable {
        /// The profile.
        name: String,
        /// The file, or a link on the way to it, where the container sees it.
        file: PathBuf,
    },
    /// A file of the profile that has other names.
    #[error(
        "profile {name}: {file} has {names} names (hard links), and by another one the container could write it; make it a \
         file of its own: cp FILE FILE.new && mv FILE.new FILE",
        file = .file.display()
    )]
    Linked {
        /// The profile.
        name: String,
        /// The file.
        file: PathBuf,
        /// How many names it has.
        names: u64,
    },
    /// The mounts of the child cannot be listed.
    #[error("cannot list what process {child} sees mounted")]
    Mounts {
        /// The process.
        child: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Audit mode, asked for by somebody who is not root.
    #[error("only root may ask for audit mode; profile {0} says `mode = \"enforce\"`")]
    AuditNotRoot(String),
    /// The profile is wrong.
    #[error("{0}")]
    Load(LoadErrors),
    /// The profile cannot be compiled for this container.
    #[error("{0}")]
    Compile(CompileErrors),
    /// The child's root directory cannot be opened.
    #[error("cannot open the root directory of process {child}")]
    Root {
        /// The process.
        child: u32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The host's root directory cannot be opened.
    #[error("cannot open the host's root directory")]
    HostRoot(#[source] io::Error),
    /// A nested container with another root.
    #[error(
        "the command's root directory is not that of container {0}, in which it runs; rules would mean other places: start it without chroot"
    )]
    OtherRoot(String),
    /// A root that only an earlier core knew.
    #[error(
        "container {0} has a root directory of its own, which an earlier daemon knew and this one does not; start it again to change its profile"
    )]
    RootLost(String),
    /// A cgroup that cannot be used.
    #[error("cannot take in cgroup {}", .path.display())]
    Cgroup {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Processes cannot be listed.
    #[error("cannot list the processes to take in")]
    Listing(#[source] io::Error),
    /// The first process, the daemon or the auditor.
    #[error("process {0} is the system's first, the daemon or the auditor, and is never put under a profile")]
    OurOwn(u32),
    /// Some are in, some are not.
    #[error("container {id} was made and holds {tasks} threads, but not everything that was asked for")]
    Partly {
        /// Its public id.
        id: String,
        /// Threads that it holds.
        tasks: u64,
        /// What happened.
        #[source]
        source: Box<EnrollError>,
    },
    /// Everything was detached.
    #[error("Ringfence is being uninstalled; nothing is enforced any more")]
    Closed,
    /// What came before the request.
    #[error("{what} cannot be taken from the launcher")]
    Handed {
        /// What it is.
        what: String,
        /// Why.
        #[source]
        source: NotKept,
    },
    /// The launcher read another profile, or is none.
    #[error(
        "the credentials that came are not those of the profile as the daemon reads it; `ringfence run` and `ringfence mcp --profile` of \
         the daemon's own version hand them over, by the profile in /etc/ringfence/profiles (`ringfence reload` reads it again)"
    )]
    OtherCredentials(#[source] OtherSecrets),
    /// Nothing to trust.
    #[error(
        "the certificates that the command's programs trust did not come with the credentials; start it with this version's `ringfence run`"
    )]
    NoTrusted,
    /// In a container.
    #[error(
        "profile {0} has credentials that are put into requests, which a container within another cannot have; start it outside, \
         or without [net.credentials]"
    )]
    NestedCredentials(String),
    /// Of what runs already.
    #[error(
        "profile {0} has credentials that are put into requests, which only whoever starts a command can hand over; start it with \
         `ringfence run`, or take it in under a profile without [net.credentials]"
    )]
    RunningCredentials(String),
    /// The names that it may reach cannot be served.
    #[error(transparent)]
    Egress(#[from] EgressError),
    /// Too many.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// The kernel's tables.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The task's tag.
    #[error(transparent)]
    Task(#[from] TaskError),
    /// The container's record.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// No random bytes for an id.
    #[error("cannot make an id for the container")]
    Random(#[source] io::Error),
}

impl EnrollError {
    /// The whole message for the one who asked.
    pub fn message(&self) -> String {
        chain(self)
    }
}
