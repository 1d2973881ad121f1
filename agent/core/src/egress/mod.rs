//! Outbound names: for each container that may reach any, a block of addresses, sockets in its network namespace, and an egress
//! worker of its own that serves them.
//!
//! | file | what |
//! |---|---|
//! | `blocks` | which container has which addresses |
//! | `listeners` | a worker's sockets; entering a network namespace |
//! | `tasks` | in which task's network namespace that is |
//! | `worker` | what a worker is started with, and what it may have |
//! | `supervisor` | one worker's thread: starts it, answers it, starts it again; `supervisor/session` says what is said with one |
//! | `credentials` | the thread of the process that has a container's credentials: the same; `credentials/session` links it with the worker |
//! | `credentials/secrets`, `credentials/bundle` | what a launcher hands over, kept unread; the certificates that programs trust |
//! | `retry` | when something is tried again that failed |
//! | `containers` | names in the life of a container: enrolment, reload, end, a restart of the core |
//!
//! What holds is the kernel: a connection to a block that is not redirected is refused. So a worker that is missing, and a core
//! that is, close what they should serve.
//!
//! A worker parses what containers and servers say. The core parses none of that: a worker's questions are numbers.

pub(crate) mod blocks;
mod containers;
pub(crate) mod credentials;
mod listeners;
mod retry;
mod supervisor;
mod tasks;
#[cfg(test)]
pub(crate) mod tests;
mod uploads;
mod worker;

use crate::{enforcer::FlowSource, enroll::EnrollError, privileges::Privileges};
use blocks::{Block, Blocks};
pub use containers::Prepared;
pub(crate) use containers::{Change, line_of, serve_held};
use credentials::{Bounds, Bundle, Bundles, Credentials, Kept, Sealed};
use ipnet::Ipv4Net;
use listeners::Listeners;
pub use listeners::NetNamespace;
pub use retry::Retry;
use retry::{PAUSES, Pauses};
use ringfence_base::{clock::now_micros, paths::Paths};
use ringfence_bpf::{self as bpf, ContainerId};
use ringfence_process::peer::Peer;
use ringfence_sandbox::caps;
use ringfence_supervise::worker::spawn_role;
use ringfence_wire::{
    credentials::SecretFor,
    egress::{EgressLine, Names},
    status::EgressProcess,
};
use serde::{Deserialize, Serialize};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};
use supervisor::Supervisor;
pub(crate) use tasks::Tasks;
use worker::{Attached, Served, Spawn};

/// The roles' subcommands.
const ROLE: &str = "egress-worker";
const CREDENTIALS_ROLE: &str = "egress-credentials";
/// What lets a container's programs read the certificates that they trust.
const BUNDLE_KEY: &str = "net.credentials";
/// What a worker logs unless the core's environment says.
const QUIET: (&str, &str) = ("RUST_LOG", "warn");
/// How long a worker may take until it serves: whoever enrols waits.
const READY: Duration = Duration::from_secs(20);
/// How long the processes of a container that is over may take to end, before they are killed.
const END_TIME: Duration = Duration::from_secs(8);
/// A supervisor's thread parses short messages.
const STACK: usize = 256 << 10;

/// Why a container's names cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// No block.
    #[error(
        "the profile grants names, and all blocks of 198.18.0.0/15 that there are for containers of this user are in use, one for each \
         container with names; end some, or grant addresses instead (a container that runs already gets one by itself, once there is one)"
    )]
    NoBlock,
    /// The container's network namespace.
    #[error(
        "cannot enter the network namespace of the container, to listen there for its egress worker (a unit of systemd's needs \
         CAP_SYS_ADMIN and RestrictNamespaces=net for that, as the one has that `ringfence install` writes)"
    )]
    Namespace(#[source] io::Error),
    /// The sockets.
    #[error("cannot listen on loopback in the network namespace of the container, for its egress worker")]
    Listen(#[source] io::Error),
    /// No thread, no event descriptor.
    #[error(
        "cannot supervise the container's egress worker: the daemon has no thread or no event descriptor left"
    )]
    Thread(#[source] io::Error),
    /// The worker.
    #[error("the egress worker of the container does not serve: {0}")]
    Worker(String),
    /// The process with the credentials.
    #[error("the process with the container's credentials does not serve: {0}")]
    Credentials(String),
    /// So many that it could have no more.
    #[error("the user's containers have as many processes with credentials as they may (16); end some")]
    TooManyCredentials,
    /// The certificates for its programs.
    #[error("cannot put the certificates in place that the container's programs are to trust")]
    Bundle(#[source] io::Error),
    /// They are nowhere in its root.
    #[error(
        "the container does not see {}, where its programs would find the certificates that they are to trust (it has another root          directory or /run): start it without", .0.display()
    )]
    BundleUnseen(PathBuf),
    /// A deny.
    #[error(
        "the profile denies reading {}, where the container's programs find the certificates that they are to trust: take that out          of `deny.fs_read`, or the profile's credentials", .0.display()
    )]
    BundleDenied(PathBuf),
    /// The kernel's tables.
    #[error("cannot tell the kernel where the container's egress worker listens")]
    Redirect(#[source] io::Error),
    /// Nobody whose namespace could be entered.
    #[error(
        "no live task of the container was found, in whose network namespace its egress worker could serve it"
    )]
    NoTask,
    /// Nobody who is where they were.
    #[error(
        "no live task of the container was found in the network namespace that its egress worker served; if it has left that for good, \
         start it again"
    )]
    NoTaskThere,
    /// They could not be looked for.
    #[error(
        "the container's tasks, in whose network namespace its egress worker serves it, cannot be looked for"
    )]
    Tasks(#[source] io::Error),
    /// A mistake of ours, which is refused.
    #[error("the profile grants names, and nothing was made ready that serves them; please report this")]
    NotPrepared,
    /// The worker would reach what whoever asks does not.
    #[error(
        "the profile grants names, and user {0}, who asks for it without the rights to enter another, is in another network namespace than the daemon: an egress worker \
         would use the daemon's network for it; start the container from the host's own network namespace or as root, or grant \
         addresses instead"
    )]
    OtherNetwork(u32),
    /// What runs already is not what it was.
    #[error(
        "the processes or their profile changed while their egress worker was started, so that it would serve something else; try again"
    )]
    Changed,
    /// The block is somebody else's.
    #[error("the container's addresses {0} are in use by another one, so it reaches no name; start it again")]
    BlockTaken(Ipv4Net),
}

/// Whether whoever enrols may have names served over the daemon's network, in which its containers' workers are: who is not in it,
/// and could not enter it, would reach what is out of reach for it.
pub(crate) fn may_use_our_network(peer: &Peer) -> Result<(), EnrollError> {
    if NetNamespace::of(peer.pidfd.as_fd())?.is_own() {
        return Ok(());
    }
    let privileges = Privileges::of(peer.pidfd.as_fd())?;
    // Root in a container of another engine's has less, and is no administrator.
    if peer.uid == 0 && !privileges.elsewhere && privileges.capabilities & caps::ENTERING.bitmask() != 0 {
        return Ok(());
    }
    Err(EgressError::OtherNetwork(peer.uid).into())
}

/// What a container's record keeps of its names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressRecord {
    /// Its addresses.
    pub(crate) block: Ipv4Net,
    /// Where its sockets are.
    pub(crate) netns: NetNamespace,
    /// What it may reach: a restarted core serves it before it has read the profile.
    pub(crate) names: Names,
}

/// How a container's names are served.
#[derive(Debug, Default)]
pub enum Egress {
    /// It may reach none.
    #[default]
    None,
    /// By a worker.
    Served(Service),
    /// Not at all, although it should: nothing passes. The block stays its own.
    Closed {
        /// Its addresses; `None`: another container has them.
        block: Option<Arc<Block>>,
        /// Why.
        why: String,
        /// When it is tried again; `None`: that would be in vain.
        retry: Option<Retry>,
    },
}

impl Egress {
    /// For `ringfence status`.
    pub(crate) fn status(&self, record: Option<&EgressRecord>) -> Option<EgressProcess> {
        use ringfence_wire::status::AgentState;
        match self {
            Self::None => None,
            Self::Served(service) => {
                let mut status = service.supervisor.status();
                let trouble = service.credentials.as_ref().and_then(|credentials| credentials.trouble());
                let lacks = record.map_or_else(Vec::new, |record| service.lacks(&record.names));
                let lacks: Vec<String> = lacks.iter().map(ToString::to_string).collect();
                let lacks = (!lacks.is_empty()).then(|| {
                    format!(
                        "requests to {} are refused: no credential was handed over for them",
                        lacks.join(", ")
                    )
                });
                // None hides another.
                let wrong: Vec<String> =
                    [status.error.take(), trouble, lacks].into_iter().flatten().collect();
                status.error = (!wrong.is_empty()).then(|| wrong.join("; "));
                Some(status)
            }
            Self::Closed { block, why, retry } => Some(EgressProcess {
                state: AgentState::Failed,
                block: record.map_or_else(String::new, |record| record.block.to_string()),
                pid: None,
                uid: block.as_ref().map_or(0, |block| block.uid()),
                restarts: 0,
                last_exit: None,
                error: Some(why.clone()),
                retry_s: retry.as_ref().map(|retry| retry.seconds(Instant::now())),
                counts: Default::default(),
            }),
        }
    }
}

/// Makes what serves names.
#[derive(Clone)]
pub struct Opener {
    blocks: Blocks,
    auditor: PathBuf,
    spawn: Spawn,
    spawn_credentials: Spawn,
    pauses: Pauses,
    pub(crate) bundles: Bundles,
    pub(crate) bounds: Bounds,
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opener").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

/// Whose names are to be served.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whose<'a> {
    /// Public id of the container.
    pub(crate) container: &'a str,
    /// Name of its profile.
    pub(crate) profile: &'a str,
    /// What it may reach.
    pub(crate) names: &'a Names,
    /// Denials are recorded, not enforced.
    pub(crate) audit: bool,
}

impl Opener {
    /// Workers are this very binary; their lines go to the auditor's socket.
    pub fn new(paths: &Paths) -> Self {
        let start = usize::try_from(now_micros()).unwrap_or(0);
        let spawn = |uid| spawn_role(ROLE, Some(uid), [QUIET]);
        let (blocks, spawn) = (Blocks::new(start), Arc::new(spawn));
        let spawn_credentials = Arc::new(|uid| spawn_role(CREDENTIALS_ROLE, Some(uid), [QUIET]));
        Self {
            blocks,
            auditor: paths.mcp_socket(),
            spawn,
            spawn_credentials,
            pauses: PAUSES,
            bundles: Bundles::new(paths.bundles()),
            bounds: Bounds::default(),
        }
    }

    /// A block that nobody has, for a container of `owner`'s.
    ///
    /// # Errors
    /// [`EgressError::NoBlock`].
    pub(crate) fn take_block(&self, owner: u32) -> Result<Arc<Block>, EgressError> {
        self.blocks.take(owner).ok_or(EgressError::NoBlock)
    }

    /// The block that a container of an earlier daemon's has.
    pub(crate) fn take_again(&self, net: Ipv4Net, owner: u32) -> Option<Arc<Block>> {
        self.blocks.take_again(net, owner)
    }

    /// Listens where the task behind a pidfd is, and starts a worker; whether that serves, [`Service::wait_until_ready`] says.
    ///
    /// # Errors
    /// [`EgressError`]: then nothing is left.
    pub(crate) fn open(
        &self,
        whose: Whose<'_>,
        block: Arc<Block>,
        task: BorrowedFd<'_>,
    ) -> Result<Service, EgressError> {
        let served = Served {
            container: whose.container.to_owned(),
            profile: whose.profile.to_owned(),
            block,
            auditor: self.auditor.clone(),
            spawn: Arc::clone(&self.spawn),
            pauses: self.pauses,
        };
        let supervisor = Supervisor::new(served, Listeners::open(task)?, whose.names.clone(), whose.audit)
            .map_err(EgressError::Thread)?;
        let supervisor = Arc::new(supervisor);
        let of_thread = Arc::clone(&supervisor);
        thread::Builder::new()
            .name("egress".into())
            .stack_size(STACK)
            .spawn(move || of_thread.run())
            .map_err(EgressError::Thread)?;
        Ok(Service { supervisor, credentials: None })
    }

    /// Starts the process with a container's credentials beside its worker, and waits until it serves, and its certificate is where
    /// the container's programs find it: the bundle's file. `owner`: whose container it is.
    ///
    /// # Errors
    /// [`EgressError`]: the container is not to be.
    pub(crate) fn add_credentials(
        &self,
        service: &mut Service,
        whose: Whose<'_>,
        secrets: Vec<(SecretFor, Sealed)>,
        bundle: Arc<Mutex<Bundle>>,
        owner: u32,
    ) -> Result<(), EgressError> {
        let lease = self.bounds.processes.take(owner).ok_or(EgressError::TooManyCredentials)?;
        let block = Arc::clone(&service.supervisor.served.block);
        let kept = Kept {
            container: whose.container.to_owned(),
            profile: whose.profile.to_owned(),
            uid: block.credentials_uid(),
            is_root_s: block.is_root_s(),
            _block: block,
            spawn: Arc::clone(&self.spawn_credentials),
            pauses: self.pauses,
            secrets,
            bundle,
            _lease: lease,
        };
        let hosts = whose.names.credentials.clone();
        let credentials =
            Credentials::new(kept, Arc::clone(&service.supervisor), hosts).map_err(EgressError::Thread)?;
        let credentials = Arc::new(credentials);
        let of_thread = Arc::clone(&credentials);
        thread::Builder::new()
            .name("credentials".into())
            .stack_size(STACK)
            .spawn(move || of_thread.run())
            .map_err(EgressError::Thread)?;
        service.credentials.insert(credentials).wait_until_ready(READY)
    }
}

/// What serves one container's names: its block, its sockets, the supervisor of its worker. All of that ends when this is dropped,
/// the worker a little later.
#[derive(Debug)]
pub struct Service {
    supervisor: Arc<Supervisor>,
    /// Of a container that has any.
    credentials: Option<Arc<Credentials>>,
}

impl Service {
    /// Its container's addresses.
    pub(crate) fn block(&self) -> Ipv4Net {
        self.supervisor.served.block.net()
    }

    /// Its sockets.
    pub(crate) fn listeners(&self) -> Arc<Listeners> {
        self.supervisor.listeners()
    }

    /// Its sockets, if the kernel is to be told of them: it knows others.
    pub(crate) fn renewed(&self) -> Option<Arc<Listeners>> {
        self.supervisor.renewed()
    }

    /// The kernel knows these sockets.
    pub(crate) fn redirected(&self, listeners: Arc<Listeners>) {
        self.supervisor.redirected(listeners);
    }

    /// Its addresses, and where it serves them.
    pub(crate) fn place(&self) -> (Arc<Block>, NetNamespace) {
        (Arc::clone(&self.supervisor.served.block), self.supervisor.listeners().netns())
    }

    /// What a record keeps of it.
    pub(crate) fn record(&self, names: &Names) -> EgressRecord {
        let netns = self.supervisor.listeners().netns();
        EgressRecord { block: self.block(), netns, names: names.clone() }
    }

    /// Waits until its worker serves.
    ///
    /// # Errors
    /// [`EgressError::Worker`].
    pub(crate) fn wait_until_ready(&self) -> Result<(), EgressError> {
        self.supervisor.wait_until_ready(READY)
    }

    /// The kernel knows its sockets, these: whose connections are can be asked, and told to the auditor.
    pub(crate) fn attach(
        &self,
        id: ContainerId,
        line: EgressLine,
        flows: Arc<dyn FlowSource>,
        listeners: Arc<Listeners>,
    ) {
        self.supervisor.attach(Attached { id, flows, line }, listeners);
    }

    /// What may be reached from now on.
    pub(crate) fn replace(&self, names: &Names, audit: bool) {
        // First, so that nothing is handed over for a rule that is no more.
        if let Some(credentials) = &self.credentials {
            credentials.replace(&names.credentials);
        }
        self.supervisor.replace(names, audit);
    }

    /// What sees to it that its process with credentials judges by what [`Self::replace`] was told.
    pub(crate) fn rules(&self) -> Option<Rules> {
        self.credentials.clone().map(Rules)
    }

    /// Hosts that have a credential by these names, and none that was handed over when the container was started.
    pub(crate) fn lacks(&self, names: &Names) -> Vec<SecretFor> {
        match &self.credentials {
            Some(credentials) => credentials.lacks(&names.credentials),
            None => names.credentials.iter().map(SecretFor::from).collect(),
        }
    }

    /// Its worker is to end; what waits for that is returned.
    pub(crate) fn stop(&self) -> Stopping {
        if let Some(credentials) = &self.credentials {
            credentials.stop();
        }
        self.supervisor.stop();
        Stopping(Arc::clone(&self.supervisor), self.credentials.clone())
    }
}

/// What the kernel needs to know of a container's sockets.
pub(crate) fn sockets_of(block: Ipv4Net, listeners: &Listeners) -> bpf::Listeners<'_> {
    bpf::Listeners {
        block: block.network(),
        tcp: listeners.tcp.as_fd(),
        dns_udp: listeners.dns.0.as_fd(),
        dns_tcp: listeners.dns.1.as_fd(),
        dns6: listeners.dns6.as_ref().map(|(udp, tcp)| [udp.as_fd(), tcp.as_fd()]),
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let stopping = self.stop();
        if self.credentials.is_some() {
            stopping.end_by(END_TIME);
        }
    }
}

/// Rules that a process with credentials was told.
pub(crate) struct Rules(Arc<Credentials>);

impl Rules {
    /// They are in force when this returns, at `until` at the latest, if need be because nobody is left that has others.
    pub(crate) fn in_force_by(&self, until: Instant) {
        self.0.in_force_by(until);
    }
}

/// A worker that was told to end.
pub(crate) struct Stopping(Arc<Supervisor>, Option<Arc<Credentials>>);

impl Stopping {
    /// Waits for it until `until`: whether it has ended.
    pub(crate) fn is_over_by(&self, until: Instant) -> bool {
        self.0.is_over_by(until) && self.1.as_ref().is_none_or(|credentials| credentials.is_over_by(until))
    }

    /// Has a thread of its own see to it that both end in time: those that talk with them may be held up by what they do.
    fn end_by(self, within: Duration) {
        let of_thread = Self(Arc::clone(&self.0), self.1.clone());
        let watching = thread::Builder::new().name("ending".into()).stack_size(STACK).spawn(move || {
            if !of_thread.is_over_by(Instant::now() + within) {
                of_thread.kill();
            }
        });
        if let Err(error) = watching {
            tracing::error!("no thread to wait for a container's processes, which are killed: {error}");
            self.kill();
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&self) {
        self.0.kill();
        if let Some(credentials) = &self.1 {
            credentials.kill();
        }
    }
}
