//! What the core needs of the kernel, as a trait: [`Kernel`] in the daemon, a fake in unit tests.

use ringfence_bpf::{ContainerId, Flows, Installed, Kernel, Listeners, Membership, PolicyError, TaskError};
use ringfence_common::policy::Counters;
use ringfence_policy::compiled::CompiledPolicy;
use ringfence_wire::egress::Flow;
use std::{
    io,
    net::SocketAddrV4,
    num::NonZeroU64,
    os::fd::{BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Whose connections are that the kernel sent to an egress worker. It needs no lock of the core's.
pub trait FlowSource: Send + Sync {
    /// Takes out who made the connection that comes from `peer`, if that was a task of this container.
    ///
    /// # Errors
    /// As bpf(2).
    fn take(&self, container: ContainerId, peer: SocketAddrV4) -> io::Result<Option<Flow>>;
}

/// Which containers and policies the kernel holds, and which task belongs to which. Methods and errors are
/// [`Kernel`]'s.
pub trait Enforcer: Send + 'static {
    /// See [`Kernel::create_container`].
    fn create(&mut self, owner: u32) -> Result<ContainerId, PolicyError>;
    /// See [`Kernel::install`].
    fn install(&mut self, id: ContainerId, policy: &CompiledPolicy) -> Result<Installed, PolicyError>;
    /// See [`Kernel::enroll`].
    fn enroll(&self, pidfd: BorrowedFd<'_>, id: ContainerId) -> Result<(), TaskError>;
    /// See [`Kernel::nest`].
    fn nest(&self, pidfd: BorrowedFd<'_>, outer: ContainerId, inner: ContainerId) -> Result<(), TaskError>;
    /// See [`Kernel::enroll_running`].
    fn enroll_running(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<u64, TaskError>;
    /// See [`Kernel::lookup`].
    fn lookup(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Membership>, TaskError>;
    /// See [`Kernel::caller`].
    fn caller(&self, socket: BorrowedFd<'_>) -> Result<Option<ContainerId>, TaskError>;
    /// Where a peer belongs: as [`Self::lookup`] says of its process, but what the kernel kept with the accepted socket goes
    /// first. Before 6.5 a peer's pidfd may be that of another process, which has the number now.
    fn belongs(
        &self,
        socket: BorrowedFd<'_>,
        pidfd: BorrowedFd<'_>,
    ) -> Result<Option<Membership>, TaskError> {
        let process = self.lookup(pidfd)?;
        Ok(match self.caller(socket)? {
            Some(id) if process.is_none_or(|process| process.container != Some(id)) => {
                Some(Membership { container: Some(id), next: None })
            }
            _ => process,
        })
    }
    /// See [`Kernel::tag`].
    fn tag(&self, pidfd: BorrowedFd<'_>, call: NonZeroU64) -> Result<(), TaskError>;
    /// See [`Kernel::call`].
    fn call(&self, pidfd: BorrowedFd<'_>) -> Result<Option<NonZeroU64>, TaskError>;
    /// See [`Kernel::counters`].
    fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError>;
    /// See [`Kernel::release`].
    fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError>;
    /// See [`Kernel::containers`].
    fn containers(&self) -> Vec<ContainerId>;
    /// See [`Kernel::generation`].
    fn generation(&self, id: ContainerId) -> Option<u32>;
    /// See [`Kernel::capabilities`].
    fn capabilities(&self, id: ContainerId) -> Option<u64>;
    /// System calls of the running kernel that the coverage table does not name.
    fn unknown_calls(&self) -> Vec<String>;
    /// See [`Kernel::set_redirect`].
    fn set_redirect(&mut self, id: ContainerId, listeners: Option<&Listeners<'_>>) -> io::Result<()>;
    /// See [`Kernel::flows`].
    fn flows(&self) -> Arc<dyn FlowSource>;
}

impl Enforcer for Kernel {
    fn create(&mut self, owner: u32) -> Result<ContainerId, PolicyError> {
        self.create_container(owner)
    }

    fn install(&mut self, id: ContainerId, policy: &CompiledPolicy) -> Result<Installed, PolicyError> {
        Self::install(self, id, policy)
    }

    fn enroll(&self, pidfd: BorrowedFd<'_>, id: ContainerId) -> Result<(), TaskError> {
        Self::enroll(self, pidfd, id)
    }

    fn nest(&self, pidfd: BorrowedFd<'_>, outer: ContainerId, inner: ContainerId) -> Result<(), TaskError> {
        Self::nest(self, pidfd, outer, inner)
    }

    fn enroll_running(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<u64, TaskError> {
        Self::enroll_running(self, processes, id)
    }

    fn lookup(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Membership>, TaskError> {
        Self::lookup(self, pidfd)
    }

    fn caller(&self, socket: BorrowedFd<'_>) -> Result<Option<ContainerId>, TaskError> {
        Self::caller(self, socket)
    }

    fn tag(&self, pidfd: BorrowedFd<'_>, call: NonZeroU64) -> Result<(), TaskError> {
        Self::tag(self, pidfd, call)
    }

    fn call(&self, pidfd: BorrowedFd<'_>) -> Result<Option<NonZeroU64>, TaskError> {
        Self::call(self, pidfd)
    }

    fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError> {
        Self::counters(self, id)
    }

    fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError> {
        Self::release(self, id)
    }

    fn containers(&self) -> Vec<ContainerId> {
        Self::containers(self)
    }

    fn generation(&self, id: ContainerId) -> Option<u32> {
        Self::generation(self, id)
    }

    fn capabilities(&self, id: ContainerId) -> Option<u64> {
        Self::capabilities(self, id)
    }

    fn unknown_calls(&self) -> Vec<String> {
        self.coverage().unknown.calls.clone()
    }

    fn set_redirect(&mut self, id: ContainerId, listeners: Option<&Listeners<'_>>) -> io::Result<()> {
        Self::set_redirect(self, id, listeners)
    }

    fn flows(&self) -> Arc<dyn FlowSource> {
        Arc::new(Self::flows(self))
    }
}

impl FlowSource for Flows {
    fn take(&self, container: ContainerId, peer: SocketAddrV4) -> io::Result<Option<Flow>> {
        Self::take(self, container, peer)
    }
}
