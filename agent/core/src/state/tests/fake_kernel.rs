//! What enforces, as a table in memory.

use crate::enforcer::{Enforcer, FlowSource};
use ringfence_bpf::{ContainerId, Installed, Listeners, Membership, PolicyError, TaskError};
use ringfence_common::policy::Counters;
use ringfence_policy::compiled::CompiledPolicy;
use ringfence_process::peer::{Process, alive};
use ringfence_wire::egress::Flow;
use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    num::NonZeroU64,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Mutex},
};

/// The kernel's side, in memory, and its dials for the test.
#[derive(Debug, Clone, Default)]
pub(crate) struct FakeKernel(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    next: u64,
    pub containers: BTreeMap<u64, (u32, Option<CompiledPolicy>)>,
    pub counters: HashMap<u64, Counters>,
    pub tags: HashMap<u32, Membership>,
    pub calls: HashMap<u32, u64>,
    pub full: bool,
    pub unknown_calls: Vec<String>,
    /// The container that every connection came from.
    pub caller: Option<ContainerId>,
    /// Where each container's connections go: its block, the port of its worker.
    pub redirects: BTreeMap<u64, (Ipv4Addr, u16)>,
    /// Who made each connection, by its container and its source port.
    pub flows: HashMap<(u64, u16), Flow>,
    /// What there is instead of an answer whose a process is.
    pub no_lookups: Option<i32>,
    /// The kernel takes no redirect.
    pub no_redirects: bool,
    /// What was asked of it that lets connections go, or no more, in order.
    pub log: Vec<String>,
    /// A process and its connection, which ends that process: before it is said that another one was tagged.
    pub ends_at_tag: Option<(UnixStream, OwnedFd)>,
}

impl FakeKernel {
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap())
    }
}

fn pid(pidfd: BorrowedFd<'_>) -> Result<u32, TaskError> {
    Process::of(pidfd).map(|process| process.pid).map_err(|_| TaskError::Gone)
}

impl Enforcer for FakeKernel {
    fn create(&mut self, _owner: u32) -> Result<ContainerId, PolicyError> {
        self.with(|inner| {
            inner.next += 1;
            let raw = inner.next << 12 | inner.next;
            inner.containers.insert(raw, (0, None));
            Ok(ContainerId::from_raw(raw))
        })
    }

    fn install(&mut self, id: ContainerId, policy: &CompiledPolicy) -> Result<Installed, PolicyError> {
        self.with(|inner| {
            if inner.full {
                return Err(PolicyError::TooManyPolicies);
            }
            let held = inner.containers.get_mut(&id.raw()).ok_or(PolicyError::NoContainer(id))?;
            *held = (held.0 + 1, Some(policy.clone()));
            let names = policy.names.rules.len();
            inner.log.push(format!("install {names}"));
            Ok(Installed { generation: held.0, slots: Vec::new(), interrupted: false })
        })
    }

    fn enroll(&self, pidfd: BorrowedFd<'_>, id: ContainerId) -> Result<(), TaskError> {
        let pid = pid(pidfd)?;
        self.with(|inner| match inner.tags.get(&pid) {
            Some(_) => Err(TaskError::Governed(id)),
            None => {
                inner.tags.insert(pid, Membership { container: None, next: Some(id) });
                inner.log.push("enroll".into());
                Ok(())
            }
        })
    }

    fn nest(
        &self,
        pidfd: BorrowedFd<'_>,
        outer: ContainerId,
        inner_id: ContainerId,
    ) -> Result<(), TaskError> {
        let pid = pid(pidfd)?;
        self.with(|inner| match inner.tags.get_mut(&pid) {
            Some(tag) if tag.container == Some(outer) => {
                tag.next = Some(inner_id);
                Ok(())
            }
            _ => Err(TaskError::NotInside(outer)),
        })
    }

    fn enroll_running(&mut self, processes: &[OwnedFd], id: ContainerId) -> Result<u64, TaskError> {
        let pids: Vec<u32> = processes.iter().filter_map(|process| pid(process.as_fd()).ok()).collect();
        self.with(|inner| {
            let mut tagged = 0;
            for pid in pids {
                let member = Membership { container: Some(id), next: None };
                match inner.tags.insert(pid, member) {
                    None => tagged += 1,
                    Some(before) if before == member => {}
                    Some(before) => {
                        inner.tags.insert(pid, before);
                        return Err(TaskError::Elsewhere(1));
                    }
                }
            }
            inner.counters.entry(id.raw()).or_default().tasks += tagged;
            Ok(tagged)
        })
    }

    fn lookup(&self, pidfd: BorrowedFd<'_>) -> Result<Option<Membership>, TaskError> {
        let pid = pid(pidfd)?;
        self.with(|inner| match inner.no_lookups {
            Some(errno) => {
                Err(TaskError::Kernel { what: "read", source: io::Error::from_raw_os_error(errno) })
            }
            None => Ok(inner.tags.get(&pid).copied()),
        })
    }

    fn caller(&self, _: BorrowedFd<'_>) -> Result<Option<ContainerId>, TaskError> {
        Ok(self.with(|inner| inner.caller))
    }

    fn tag(&self, pidfd: BorrowedFd<'_>, call: NonZeroU64) -> Result<(), TaskError> {
        let pid = pid(pidfd)?;
        let ends = self.with(|inner| match inner.calls.entry(pid) {
            Entry::Occupied(_) => Err(TaskError::Tagged),
            Entry::Vacant(free) => {
                free.insert(call.get());
                Ok(inner.ends_at_tag.take())
            }
        })?;
        if let Some((connection, process)) = ends {
            connection.shutdown(std::net::Shutdown::Both).unwrap();
            while alive(process.as_fd()) {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn call(&self, pidfd: BorrowedFd<'_>) -> Result<Option<NonZeroU64>, TaskError> {
        let pid = pid(pidfd)?;
        Ok(self.with(|inner| inner.calls.get(&pid).copied().and_then(NonZeroU64::new)))
    }

    fn counters(&self, id: ContainerId) -> Result<Counters, PolicyError> {
        self.with(|inner| {
            inner.containers.get(&id.raw()).ok_or(PolicyError::NoContainer(id))?;
            Ok(inner.counters.get(&id.raw()).copied().unwrap_or_default())
        })
    }

    fn release(&mut self, id: ContainerId) -> Result<Counters, PolicyError> {
        let counters = self.counters(id)?;
        self.with(|inner| inner.containers.remove(&id.raw()));
        Ok(counters)
    }

    fn containers(&self) -> Vec<ContainerId> {
        self.with(|inner| inner.containers.keys().map(|raw| ContainerId::from_raw(*raw)).collect())
    }

    fn capabilities(&self, _: ContainerId) -> Option<u64> {
        Some(0)
    }

    fn unknown_calls(&self) -> Vec<String> {
        self.with(|inner| inner.unknown_calls.clone())
    }

    fn generation(&self, id: ContainerId) -> Option<u32> {
        self.with(|inner| inner.containers.get(&id.raw()).map(|held| held.0))
    }

    fn set_redirect(&mut self, id: ContainerId, listeners: Option<&Listeners<'_>>) -> io::Result<()> {
        self.with(|inner| {
            inner.redirects.remove(&id.raw());
            let Some(listeners) = listeners else {
                inner.log.push("redirect nowhere".into());
                return Ok(());
            };
            if inner.no_redirects {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let port = SocketAddr::try_from(rustix::net::getsockname(listeners.tcp)?).unwrap().port();
            inner.redirects.insert(id.raw(), (listeners.block, port));
            inner.log.push("redirect".into());
            Ok(())
        })
    }

    fn flows(&self) -> Arc<dyn FlowSource> {
        Arc::new(self.clone())
    }
}

impl FlowSource for FakeKernel {
    fn take(&self, container: ContainerId, peer: SocketAddrV4) -> io::Result<Option<Flow>> {
        assert!(peer.ip().is_loopback());
        Ok(self.with(|inner| inner.flows.remove(&(container.raw(), peer.port()))))
    }
}
