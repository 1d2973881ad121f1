//! What an egress worker is started with, and what it may have.

use super::{blocks::Block, retry::Pauses};
use crate::enforcer::FlowSource;
use ringfence_bpf::ContainerId;
use ringfence_supervise::child::Process;
use ringfence_wire::egress::{EgressLine, MOST_ASKING};
use rustix::{
    io::Errno,
    process::{Pid, Resource, Rlimit, getrlimit, prlimit},
};
use std::{io, path::PathBuf, sync::Arc};

/// Bytes of memory that the worker of a user's container may write to, of whose there may be 64; root's may have what
/// `agent/egress` says.
const USER_MEMORY: u64 = 64 << 20;
/// Descriptors of the same: two for each connection, and what else a worker needs.
const USER_DESCRIPTORS: u64 = 4096 + MOST_ASKING as u64;

/// Starts a worker's process under a user id.
pub(crate) type Spawn = Arc<dyn Fn(u32) -> io::Result<Process> + Send + Sync>;

/// What does not change as long as the container may reach names.
pub(super) struct Served {
    /// The container's public id.
    pub(super) container: String,
    /// Its profile's name.
    pub(super) profile: String,
    /// Its addresses.
    pub(super) block: Arc<Block>,
    /// The auditor's socket.
    pub(super) auditor: PathBuf,
    /// Starts workers.
    pub(super) spawn: Spawn,
    /// How long is waited before what failed is tried again.
    pub(super) pauses: Pauses,
}

/// What is known once the container is in the kernel.
#[derive(Clone)]
pub(super) struct Attached {
    /// The kernel's id of the container.
    pub(super) id: ContainerId,
    /// Whose connections are.
    pub(super) flows: Arc<dyn FlowSource>,
    /// The first message on a line to the auditor.
    pub(super) line: EgressLine,
}

/// Limits what a user's worker may have, before it is told anything: it is in the daemon's cgroup, whatever its user's may have.
/// It sees itself that it lives within that.
///
/// # Errors
/// As prlimit(2).
pub(super) fn limit(pid: u32) -> rustix::io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    for (what, most) in [(Resource::Data, USER_MEMORY), (Resource::Nofile, USER_DESCRIPTORS)] {
        // It has what we have, and may not be given more.
        let most = getrlimit(what).maximum.map_or(most, |ours| ours.min(most));
        prlimit(Some(pid), what, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    Ok(())
}
