//! Names in the life of a container: enrolment, profiles read again, its end, a restart of the core.
//!
//! The order is always such that less is allowed in between: the kernel is told where to send connections before it lets any go
//! there, and the other way round at the end.

use super::{Egress, EgressError, EgressRecord, NetNamespace, Opener, Service, Whose};
use crate::{
    containers::{Container, Record},
    enforcer::Enforcer,
    enroll::{Compiled, EnrollError},
    server::Server,
    state::State,
};
use ipnet::Ipv4Net;
use ringfence_base::error::chain;
use ringfence_bpf::ContainerId;
use ringfence_policy::compiled::CompiledPolicy;
use ringfence_process::peer::alive;
use ringfence_wire::egress::{EgressLine, Names};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

/// How long workers may take to end when the daemon does.
const STOP_TIME: Duration = Duration::from_secs(4);
/// How often it is looked whether they are to hurry.
const LOOK: Duration = Duration::from_millis(50);
/// How long workers that were killed may take.
const KILLED: Duration = Duration::from_secs(1);

/// What serves the names of a container that is about to be made.
#[derive(Debug)]
pub struct Prepared {
    /// The public id that the container is to have: its worker was told.
    pub(crate) id: String,
    /// Its worker serves.
    pub(crate) service: Service,
}

impl<E: Enforcer> Server<E> {
    /// Has the names served that a compiled profile grants, if it grants any, before anybody is under it: the state is not locked
    /// for that. `first` is who is enrolled first.
    pub(crate) fn serve_names(
        &self,
        compiled: &mut Compiled,
        first: BorrowedFd<'_>,
        uid: u32,
    ) -> Result<(), EnrollError> {
        if compiled.policy.names.rules.is_empty() {
            return Ok(());
        }
        let (opener, id, for_root) = {
            let state = self.state();
            let id = state.registry.new_id().map_err(EnrollError::Random)?;
            (state.opener.clone(), id, state.owners.of(uid) == 0)
        };
        let service = open(&opener, &id, &compiled.name, &mut compiled.policy, first, for_root)?;
        service.wait_until_ready()?;
        compiled.names = Some(Prepared { id, service });
        Ok(())
    }
}

fn open(
    opener: &Opener,
    container: &str,
    profile: &str,
    policy: &mut CompiledPolicy,
    task: BorrowedFd<'_>,
    for_root: bool,
) -> Result<Service, EgressError> {
    let block = opener.take_block(for_root)?;
    policy.grant_block(block.net());
    let whose = Whose { container, profile, names: &policy.names, audit: policy.audit_mode };
    opener.open(whose, block, task)
}

/// What is to become of a container's names when its changed policy is in force.
#[derive(Debug)]
pub(crate) enum Change {
    /// It reached none, and reaches none.
    Nothing,
    /// They are served by what serves them.
    Told,
    /// They are served by this from now on.
    Opened(Service),
    /// It reaches none any more.
    Ended,
}

impl<E: Enforcer> State<E> {
    /// Tells the kernel where a container's connections go, and the worker whose it is.
    pub(crate) fn redirect(
        &mut self,
        id: ContainerId,
        service: &Service,
        line: EgressLine,
    ) -> Result<(), EgressError> {
        if let Err(error) = self.kernel.set_redirect(id, Some(&service.sockets())) {
            self.redirect_nowhere(id);
            return Err(EgressError::Redirect(error));
        }
        service.attach(id, line, self.kernel.flows());
        Ok(())
    }

    /// A container's connections to names are refused from now on.
    pub(crate) fn redirect_nowhere(&mut self, id: ContainerId) {
        if let Err(error) = self.kernel.set_redirect(id, None) {
            tracing::error!("container {id}: its connections to names cannot be sent nowhere: {error}");
        }
    }

    /// What becomes of a container's names with a policy that was just compiled for it, which is granted the container's block.
    /// Where they are new, everything is there when this returns, and nothing passes yet.
    pub(crate) fn change_names(
        &self,
        container: &Container,
        policy: &mut CompiledPolicy,
    ) -> Result<Change, EgressError> {
        let record = &container.record;
        let wants = !policy.names.rules.is_empty();
        match (&container.egress, &record.egress) {
            (Egress::None, None) if !wants => Ok(Change::Nothing),
            (Egress::None, None) => {
                let found;
                let task = match &container.first {
                    Some(first) if alive(first.as_fd()) => first.as_fd(),
                    _ => {
                        found = live_tasks(&self.kernel, [(record.kernel_id, None)].into())
                            .remove(&record.kernel_id)
                            .ok_or(EgressError::NoTask)?;
                        found.as_fd()
                    }
                };
                let for_root = self.owners.of(record.uid) == 0;
                let service = open(&self.opener, &record.id, &record.profile, policy, task, for_root)?;
                Ok(Change::Opened(service))
            }
            _ if !wants => Ok(Change::Ended),
            // It is granted no address that is another's.
            (Egress::Closed { block: None, .. }, _) => Ok(Change::Told),
            (_, Some(EgressRecord { block, names, .. })) => {
                keep_places(&mut policy.names, names);
                policy.grant_block(*block);
                Ok(Change::Told)
            }
            (Egress::Served(service), None) => {
                policy.grant_block(service.block());
                Ok(Change::Told)
            }
            (Egress::Closed { .. }, None) => Ok(Change::Told),
        }
    }

    /// The policy that [`Self::change_names`] was asked for is in force.
    pub(crate) fn names_changed(&mut self, id: ContainerId, change: Change, names: &Names, audit: bool) {
        if matches!(change, Change::Ended) {
            // Not before: until then the kernel would have let go what nobody judges.
            self.redirect_nowhere(id);
        }
        let Some(container) = self.registry.by_kernel_id_mut(id.raw()) else { return };
        match change {
            Change::Nothing => {}
            Change::Told => {
                if let Egress::Served(service) = &container.egress {
                    service.replace(names, audit);
                }
                if let Some(record) = &mut container.record.egress {
                    record.names.clone_from(names);
                }
            }
            Change::Opened(service) => {
                container.record.egress = Some(service.record(names));
                container.egress = Egress::Served(service);
            }
            Change::Ended => {
                container.record.egress = None;
                container.egress = Egress::None;
            }
        }
    }

    /// Serves the names of every container that an earlier core left, each at the addresses that it had.
    pub fn adopt_names(&mut self) {
        let mut blocks = Vec::new();
        for container in self.registry.iter() {
            let record = &container.record;
            if let Some(EgressRecord { block, .. }) = &record.egress {
                blocks.push((
                    record.kernel_id,
                    self.opener.take_again(*block).ok_or(EgressError::BlockTaken(*block)),
                ));
            }
        }
        // Nobody serves what an earlier core's entries name, whoever has those ports now. It may have been killed before it could
        // say in a record that there was one.
        for id in self.kernel.containers() {
            self.redirect_nowhere(id);
        }
        for (raw, block) in blocks {
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            let (block, why) = match block {
                Ok(block) => (Some(block), "its egress worker was not started yet".to_owned()),
                Err(error) => (None, chain(&error)),
            };
            container.egress = Egress::Closed { block, why };
        }
        self.reopen_names();
    }

    /// Tries again to serve what is closed.
    pub(crate) fn reopen_names(&mut self) {
        let closed = self.registry.iter().filter_map(|container| {
            match (&container.egress, &container.record.egress) {
                (Egress::Closed { block: Some(_), .. }, Some(record)) => {
                    Some((container.record.kernel_id, Some(record.netns)))
                }
                _ => None,
            }
        });
        let closed: BTreeMap<u64, Option<NetNamespace>> = closed.collect();
        if closed.is_empty() {
            return;
        }
        let mut tasks = live_tasks(&self.kernel, closed.clone());
        for raw in closed.into_keys() {
            let opened = self.reopen(raw, tasks.remove(&raw));
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            match (opened, &mut container.egress) {
                (Ok(service), egress) => {
                    tracing::info!("container {}: its names are served again", container.record.id);
                    *egress = Egress::Served(service);
                }
                (Err(error), Egress::Closed { why, .. }) => {
                    *why = chain(&error);
                    tracing::error!("container {}: {why}", container.record.id);
                }
                (Err(_), _) => {}
            }
        }
    }

    fn reopen(&mut self, raw: u64, task: Option<OwnedFd>) -> Result<Service, EgressError> {
        let task = task.ok_or(EgressError::NoTask)?;
        let found = self.registry.by_kernel_id(raw).map(|container| (&container.egress, &container.record));
        let Some((Egress::Closed { block: Some(block), .. }, record)) = found else {
            return Err(EgressError::NoTask);
        };
        let Some(EgressRecord { names, block: net, .. }) = &record.egress else {
            return Err(EgressError::NoTask);
        };
        let whose =
            Whose { container: &record.id, profile: &record.profile, names, audit: record.audit_mode };
        let service = self.opener.open(whose, block.clone(), task.as_fd())?;
        let line = line_of(record, *net);
        self.redirect(ContainerId::from_raw(raw), &service, line)?;
        Ok(service)
    }

    /// Ends all workers, because the daemon ends: enforcement stays, so that no container reaches any name until the next daemon.
    /// Once `hurries` says so, which is asked meanwhile, they are killed.
    pub fn stop_names(&mut self, hurries: impl Fn() -> bool) {
        let served: Vec<u64> = self
            .registry
            .iter()
            .filter(|container| matches!(container.egress, Egress::Served(_)))
            .map(|container| container.record.kernel_id)
            .collect();
        // First, so that whoever gets a port next is sent nothing.
        for raw in &served {
            self.redirect_nowhere(ContainerId::from_raw(*raw));
        }
        let mut left = Vec::new();
        for raw in served {
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            if let Egress::Served(service) = std::mem::take(&mut container.egress) {
                left.push(service.stop());
            }
        }
        let (mut until, mut is_cut) = (Instant::now() + STOP_TIME, false);
        while let Some(one) = left.last() {
            if one.is_over_by(until.min(Instant::now() + LOOK)) {
                left.pop();
                continue;
            }
            if Instant::now() >= until || (!is_cut && hurries()) {
                if is_cut {
                    return;
                }
                is_cut = true;
                left.iter().for_each(super::Stopping::kill);
                until = Instant::now() + KILLED;
            }
        }
    }
}

/// Leaves each exact name at the address that it had, as programs may have it still. Where that is its address anyway, nothing is
/// said of it: a profile that did not change makes the same policy.
fn keep_places(names: &mut Names, earlier: &Names) {
    let own: Vec<String> = names.exact().into_iter().map(str::to_owned).collect();
    names.keep_places(earlier);
    if names.exact() == own {
        names.places.clear();
    }
}

/// The first message on a line to the auditor.
pub(crate) fn line_of(record: &Record, block: Ipv4Net) -> EgressLine {
    EgressLine {
        container: record.kernel_id,
        public: record.id.clone(),
        profile: record.profile.clone(),
        uid: record.uid,
        created: record.created,
        block,
    }
}

/// A live task of each of these containers, in the network namespace beside it where one is given.
fn live_tasks(
    kernel: &impl Enforcer,
    mut wanted: BTreeMap<u64, Option<NetNamespace>>,
) -> BTreeMap<u64, OwnedFd> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return found };
    let pids = entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    for pid in pids {
        if wanted.is_empty() {
            break;
        }
        let Ok(task) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        let Ok(Some(member)) = kernel.lookup(task.as_fd()) else { continue };
        let Some(raw) = member.container.or(member.next).map(ContainerId::raw) else { continue };
        let is_there = match wanted.get(&raw) {
            None => false,
            Some(None) => true,
            Some(Some(netns)) => NetNamespace::of(task.as_fd()).is_ok_and(|its| its == *netns),
        };
        if is_there {
            wanted.remove(&raw);
            found.insert(raw, task);
        }
    }
    found
}
