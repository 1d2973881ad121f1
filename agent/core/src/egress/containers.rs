//! Names in the life of a container: enrolment, profiles read again, its end, a restart of the core.
//!
//! The order is always such that less is allowed in between: the kernel is told where to send connections before it lets any go
//! there, and the other way round at the end.

use super::{
    BUNDLE_KEY, Egress, EgressError, EgressRecord, NetNamespace, Opener, PAUSES, Retry, Service, Whose,
    blocks::Block,
    credentials::{self, Bundle, Handed},
    sockets_of,
    tasks::Tasks,
};
use crate::{
    containers::{Container, Outer, Record},
    enforcer::Enforcer,
    enroll::{Compiled, EnrollError},
    server::Server,
    state::State,
};
use ipnet::Ipv4Net;
use ringfence_base::error::chain;
use ringfence_bpf::ContainerId;
use ringfence_common::policy::axis::READ;
use ringfence_policy::{compiled::CompiledPolicy, decide::Decider};
use ringfence_process::peer::{Peer, alive};
use ringfence_wire::{
    credentials::assigned,
    egress::{EgressLine, Names},
};
use std::{
    collections::BTreeSet,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How long workers may take to end when the daemon does.
const STOP_TIME: Duration = Duration::from_secs(4);
/// How often it is looked whether they are to hurry.
const LOOK: Duration = Duration::from_millis(50);
/// How long workers that were killed may take.
const KILLED: Duration = Duration::from_secs(1);
/// Containers whose names are tried to be served again at one look at all containers, which others wait for.
const AT_ONCE: usize = 8;

/// What serves the names of a container that is about to be made.
#[derive(Debug)]
pub struct Prepared {
    /// The public id that the container is to have: its worker was told.
    pub(crate) id: String,
    /// What its programs trust, where it has credentials.
    pub(crate) bundle: Option<Arc<Mutex<Bundle>>>,
    /// Its worker serves.
    pub(crate) service: Service,
}

impl<E: Enforcer> Server<E> {
    /// Has the names served that a compiled profile grants, if it grants any, before anybody is under it: the state is not locked
    /// for that. `first` is who is enrolled first, `peer` who asks for that. `handed`: what came with the request, and the container's
    /// root directory; the profile has to have these very credentials.
    pub(crate) fn serve_names(
        &self,
        compiled: &mut Compiled,
        first: BorrowedFd<'_>,
        peer: &Peer,
        (handed, root): (Handed, BorrowedFd<'_>),
    ) -> Result<(), EnrollError> {
        let Handed { secrets, trusted } = handed;
        let of = secrets.into_iter().map(|(of, sealed)| (of.clone(), (of, sealed)));
        let secrets = assigned(&compiled.credentials, of).map_err(EnrollError::OtherCredentials)?;
        let may = super::may_use_our_network(peer);
        if compiled.policy.names.is_empty() {
            compiled.elsewhere = may.is_err();
            return Ok(());
        }
        may?;
        let (opener, id, owner) = {
            let state = self.state();
            let id = state.registry.new_id().map_err(EnrollError::Random)?;
            (state.opener.clone(), id, state.owners.of(peer.uid))
        };
        let mut service = open(&opener, &id, &compiled.name, &mut compiled.policy, first, owner)?;
        service.wait_until_ready()?;
        let mut bundle = None;
        if !secrets.is_empty() {
            let trusted = trusted.ok_or(EnrollError::NoTrusted)?;
            let made = opener.bundles.make(&id, trusted).map_err(EgressError::Bundle)?;
            let dir = made.path();
            let file = dir.join(credentials::FILE);
            compiled.policy.grant_read(&dir, BUNDLE_KEY);
            if !Decider::new(&compiled.policy).path(READ, file.as_os_str().as_bytes()).allowed() {
                return Err(EgressError::BundleDenied(file).into());
            }
            let made = Arc::new(Mutex::new(made));
            let names = &compiled.policy.names;
            let whose =
                Whose { container: &id, profile: &compiled.name, names, audit: compiled.policy.audit_mode };
            opener.add_credentials(&mut service, whose, secrets, Arc::clone(&made), owner)?;
            if !made.lock().unwrap_or_else(PoisonError::into_inner).is_seen_from(root) {
                return Err(EgressError::BundleUnseen(file).into());
            }
            bundle = Some(made);
        }
        compiled.names = Some(Prepared { id, bundle, service });
        Ok(())
    }
}

/// Has the names of processes that are held served by what was made ready before they were, as [`Server::serve_names`] did.
///
/// # Errors
/// It is not for what they are now.
pub(crate) fn serve_held(
    compiled: &mut Compiled,
    first: BorrowedFd<'_>,
    served: Option<Prepared>,
) -> Result<(), EnrollError> {
    if compiled.policy.names.is_empty() {
        return Ok(());
    }
    let prepared = served.ok_or(EgressError::Changed)?;
    let (block, netns) = prepared.service.place();
    if NetNamespace::of(first)? != netns {
        return Err(EgressError::Changed.into());
    }
    compiled.policy.grant_block(block.net());
    prepared.service.replace(&compiled.policy.names, compiled.policy.audit_mode);
    compiled.names = Some(prepared);
    Ok(())
}

fn open(
    opener: &Opener,
    container: &str,
    profile: &str,
    policy: &mut CompiledPolicy,
    task: BorrowedFd<'_>,
    owner: u32,
) -> Result<Service, EgressError> {
    let block = opener.take_block(owner)?;
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
    /// They cannot be served: its policy is in force all the same, and it reaches none of them.
    Closed {
        /// Its addresses, and where its sockets would be; `None`: it has none.
        place: Option<(Arc<Block>, NetNamespace)>,
        /// Why.
        why: String,
        /// Whether that may change without a word of the operator's.
        again: bool,
    },
    /// It reaches none any more.
    Ended,
}

impl Change {
    fn closed(place: Option<(Arc<Block>, NetNamespace)>, error: &EgressError) -> Self {
        Self::Closed { place, why: chain(error), again: true }
    }

    /// Why the container reaches none of its names, if that is so, and what becomes of it.
    pub(crate) fn is_closed(&self) -> Option<String> {
        let Self::Closed { why, again, .. } = self else { return None };
        let (first, longest) = (PAUSES.first.as_secs(), PAUSES.longest.as_secs());
        Some(match again {
            true => format!(
                "{why}; it is tried again by itself, after {first} s and then after pauses of up to {longest} s"
            ),
            false => why.clone(),
        })
    }
}

impl<E: Enforcer> State<E> {
    /// Tells the kernel where a container's connections go, and the worker whose it is.
    pub(crate) fn redirect(
        &mut self,
        id: ContainerId,
        service: &Service,
        line: EgressLine,
    ) -> Result<(), EgressError> {
        let listeners = service.listeners();
        if let Err(error) = self.kernel.set_redirect(id, Some(&sockets_of(service.block(), &listeners))) {
            self.redirect_nowhere(id);
            return Err(EgressError::Redirect(error));
        }
        service.attach(id, line, self.kernel.flows(), listeners);
        Ok(())
    }

    /// What was opened is redirected to before its policy is in force; where that fails, the names are closed.
    pub(crate) fn redirect_opened(&mut self, id: ContainerId, change: Change, line: EgressLine) -> Change {
        let Change::Opened(service) = change else { return change };
        let line = EgressLine { block: service.block(), ..line };
        match self.redirect(id, &service, line) {
            Ok(()) => Change::Opened(service),
            Err(error) => Change::closed(Some(service.place()), &error),
        }
    }

    /// Tells the kernel of sockets that are in the place of those that a worker of before had: its next one waits for that.
    pub(crate) fn redirect_renewed(&mut self) {
        let renewed = self.registry.iter().filter_map(|container| match &container.egress {
            Egress::Served(service) => Some((container.record.kernel_id, service.renewed()?)),
            _ => None,
        });
        let renewed: Vec<_> = renewed.collect();
        for (raw, listeners) in renewed {
            let id = ContainerId::from_raw(raw);
            // Never the one port of before beside the other that is new.
            self.redirect_nowhere(id);
            let Some(container) = self.registry.by_kernel_id(raw) else { continue };
            let Egress::Served(service) = &container.egress else { continue };
            let told = self.kernel.set_redirect(id, Some(&sockets_of(service.block(), &listeners)));
            match told {
                Ok(()) => service.redirected(listeners),
                Err(error) => {
                    tracing::error!(
                        "container {}: {}",
                        container.record.id,
                        chain(&EgressError::Redirect(error))
                    );
                    self.redirect_nowhere(id);
                }
            }
        }
    }

    /// A container's connections to names are refused from now on.
    pub(crate) fn redirect_nowhere(&mut self, id: ContainerId) {
        if let Err(error) = self.kernel.set_redirect(id, None) {
            tracing::error!("container {id}: its connections to names cannot be sent nowhere: {error}");
        }
    }

    /// Lets a container read what its programs trust, and that of the containers around it, in whose environment it may be.
    pub(crate) fn grant_bundles(&self, policy: &mut CompiledPolicy, own: Option<&PathBuf>, outer: &[Outer]) {
        let around = outer.iter().filter_map(|outer| {
            let live = self.registry.iter().find(|container| container.record.id == outer.id)?;
            live.record.bundle.as_ref()
        });
        own.into_iter().chain(around).for_each(|dir| policy.grant_read(dir, BUNDLE_KEY));
    }

    /// What becomes of a container's names with a policy that was just compiled for it, which is granted the container's block.
    /// Where they are new, everything is there when this returns, and nothing passes yet. Where they cannot be served, the policy
    /// is to be in force nevertheless: it may take something else away.
    pub(crate) fn change_names(
        &self,
        container: &Container,
        policy: &mut CompiledPolicy,
        tasks: &mut Tasks,
    ) -> Change {
        let wants = !policy.names.is_empty();
        match (&container.egress, &container.record.egress) {
            (Egress::None, None) if !wants => Change::Nothing,
            _ if !wants => Change::Ended,
            (Egress::None | Egress::Closed { .. }, None) => self.open_names(container, policy, tasks),
            // It is granted no address that is another's.
            (Egress::Closed { block: None, .. }, Some(_)) => Change::Told,
            (_, Some(EgressRecord { block, names, .. })) => {
                keep_places(&mut policy.names, names);
                policy.grant_block(*block);
                Change::Told
            }
            (Egress::Served(service), None) => {
                policy.grant_block(service.block());
                Change::Told
            }
        }
    }

    fn open_names(&self, container: &Container, policy: &mut CompiledPolicy, tasks: &mut Tasks) -> Change {
        let record = &container.record;
        let owner = self.owners.of(record.uid);
        if record.elsewhere {
            let why = chain(&EgressError::OtherNetwork(record.uid));
            return Change::Closed { place: None, why, again: false };
        }
        // Before anything that takes long: who is given none may ask again and again.
        let block = match self.opener.take_block(owner) {
            Ok(block) => block,
            Err(error) => return Change::closed(None, &error),
        };
        let found;
        let task = match &container.first {
            Some(first) if alive(first.as_fd()) => first.as_fd(),
            _ => match tasks.take(self, record.kernel_id) {
                Ok(Some(task)) => {
                    found = task;
                    found.as_fd()
                }
                Ok(None) => return Change::closed(None, &EgressError::NoTask),
                Err(error) => return Change::closed(None, &error),
            },
        };
        let netns = match NetNamespace::of(task) {
            Ok(netns) => netns,
            Err(error) => {
                return Change::closed(None, &EgressError::Namespace(io::Error::other(error)));
            }
        };
        if owner != 0 && !netns.is_own() {
            let why = chain(&EgressError::OtherNetwork(record.uid));
            return Change::Closed { place: None, why, again: false };
        }
        policy.grant_block(block.net());
        let (names, audit) = (&policy.names, policy.audit_mode);
        let whose = Whose { container: &record.id, profile: &record.profile, names, audit };
        match self.opener.open(whose, Arc::clone(&block), task) {
            Ok(service) => Change::Opened(service),
            Err(error) => Change::closed(Some((block, netns)), &error),
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
            Change::Closed { place, why, again } => {
                let now = Instant::now();
                let before = match std::mem::take(&mut container.egress) {
                    Egress::Closed { why, retry, .. } => Some((why, retry)),
                    _ => None,
                };
                if before.as_ref().is_none_or(|(before, _)| *before != why) {
                    tracing::error!("container {}: {why}", container.record.id);
                }
                let retry = again.then(|| match before {
                    Some((_, Some(mut retry))) => {
                        if retry.is_due(now) {
                            retry.failed(now);
                        }
                        retry
                    }
                    _ => Retry::new(PAUSES, now),
                });
                container.record.egress = place.as_ref().map(|(block, netns)| EgressRecord {
                    block: block.net(),
                    netns: *netns,
                    names: names.clone(),
                });
                let block = place.map(|(block, _)| block);
                container.egress = Egress::Closed { block, why, retry };
            }
            Change::Ended => {
                container.record.egress = None;
                container.egress = Egress::None;
            }
        }
    }

    /// Serves the names of every container that an earlier core left, each at the addresses that it had.
    pub fn adopt_names(&mut self) {
        // Their programs look there for whom to trust, also where nobody has their credentials any more.
        let with_bundle = self.registry.iter().filter(|container| container.record.bundle.is_some());
        let with_bundle: BTreeSet<String> =
            with_bundle.map(|container| container.record.id.clone()).collect();
        self.opener.bundles.keep_only(&with_bundle);
        let mut blocks = Vec::new();
        for container in self.registry.iter() {
            let record = &container.record;
            if let Some(EgressRecord { block, .. }) = &record.egress {
                let taken = self.opener.take_again(*block, self.owners.of(record.uid));
                blocks.push((record.kernel_id, taken.ok_or(EgressError::BlockTaken(*block))));
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
            let retry = block.is_some().then(|| Retry::new(PAUSES, Instant::now()));
            container.egress = Egress::Closed { block, why, retry };
        }
        self.reopen_names(&mut Tasks::default());
    }

    /// Tries again to serve what is closed and has addresses.
    pub(crate) fn reopen_names(&mut self, tasks: &mut Tasks) {
        self.reopen_those(|_| true, usize::MAX, tasks);
    }

    /// Tries again what it is time for.
    pub(crate) fn retry_names(&mut self) {
        let (now, mut tasks) = (Instant::now(), Tasks::default());
        self.reopen_those(|retry| retry.is_due(now), AT_ONCE, &mut tasks);
        self.open_those_due(now, &mut tasks);
    }

    /// Tries again to serve what has no addresses yet. Its policy has to grant them, so that it is compiled anew.
    fn open_those_due(&mut self, now: Instant, tasks: &mut Tasks) {
        let due = self.registry.iter().filter_map(|container| {
            match (&container.egress, &container.record.egress) {
                (Egress::Closed { retry: Some(retry), .. }, None) if retry.is_due(now) => {
                    Some(container.record.kernel_id)
                }
                _ => None,
            }
        });
        let due: Vec<u64> = due.take(AT_ONCE).collect();
        for raw in due {
            let result = self.reload_one(ContainerId::from_raw(raw), tasks, &mut Vec::new());
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            let error = result.err().map(|error| error.message());
            match &mut container.egress {
                Egress::Served(_) if error.is_none() => {
                    tracing::info!("container {}: its names are served now", container.record.id);
                }
                Egress::Closed { retry: Some(retry), .. } if retry.is_due(now) => {
                    retry.failed(Instant::now());
                }
                _ => {}
            }
            if let Some(error) = &error
                && container.reload_error.as_ref() != Some(error)
            {
                tracing::error!("container {}: {error}", container.record.id);
            }
            container.reload_error = error;
        }
    }

    fn reopen_those(&mut self, which: impl Fn(&Retry) -> bool, most: usize, tasks: &mut Tasks) {
        let closed = self.registry.iter().filter_map(|container| {
            match (&container.egress, &container.record.egress) {
                (Egress::Closed { block: Some(_), retry: Some(retry), .. }, Some(_)) if which(retry) => {
                    Some(container.record.kernel_id)
                }
                _ => None,
            }
        });
        let closed: Vec<u64> = closed.take(most).collect();
        for raw in closed {
            let task = tasks.take(self, raw);
            let opened = self.reopen(raw, task);
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            match (opened, &mut container.egress) {
                (Ok(service), egress) => {
                    tracing::info!("container {}: its names are served again", container.record.id);
                    *egress = Egress::Served(service);
                }
                (Err(error), Egress::Closed { why, retry, .. }) => {
                    retry.iter_mut().for_each(|retry| retry.failed(Instant::now()));
                    let now = chain(&error);
                    if *why != now {
                        *why = now;
                        tracing::error!("container {}: {why}", container.record.id);
                    }
                }
                (Err(_), _) => {}
            }
        }
    }

    fn reopen(
        &mut self,
        raw: u64,
        task: Result<Option<OwnedFd>, EgressError>,
    ) -> Result<Service, EgressError> {
        let task = task?.ok_or(EgressError::NoTaskThere)?;
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
        within: record.outer.first().map(|outermost| outermost.id.clone()),
    }
}
