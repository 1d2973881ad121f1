//! What the core knows and decides, behind one lock: the kernel's side, the registry, the link to the auditor.

use super::{
    containers::{Container, Outer, Record, Registry},
    egress::{Egress, EgressError, Opener, Prepared, Service, credentials::FILE},
    enforcer::Enforcer,
    enroll::{Compiled, EnrollError, Request, host_root, same_root},
    link::Handle,
    outbox::Update,
    quota,
    running::{self, Target},
};
use ringfence_base::{clock::now_micros, error::chain, quota::Owners};
use ringfence_bpf::{ContainerId, Installed, PolicyError, TaskError};
use ringfence_common::policy::Counters;
use ringfence_policy::{
    Dirs,
    compiled::CompiledPolicy,
    fixed::{Fixed, History, Written},
    mounts::Mount,
};
use ringfence_process::peer::alive;
use ringfence_wire::{
    audit::{Counted, Manifest},
    egress::EgressLine,
    event::RuleText,
    message::Enrolled,
    status::{Counts, ReloadStatus},
};
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

/// How long a container may be without a live task before it is over.
const IDLE: Duration = Duration::from_secs(2);
/// The same for one that was adopted: a task that an earlier core enrolled may not have exec'd yet.
const IDLE_ADOPTED: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub struct State<E> {
    /// What enforces.
    pub kernel: E,
    /// Containers.
    pub registry: Registry,
    /// Whose subordinate user ids are.
    pub owners: Owners,
    /// The way to the auditor.
    pub link: Handle,
    /// Makes what serves names.
    pub(crate) opener: Opener,
    /// Where profiles are.
    pub dirs: Dirs,
    boot: String,
    /// Containers that the kernel holds and no record describes, and since when they have no task.
    pub unknown: BTreeMap<ContainerId, Option<Instant>>,
    /// What was counted in containers that are over.
    pub ended: Counts,
    pub(crate) last_reload: Option<ReloadStatus>,
    /// Nobody is enrolled any more: everything was detached.
    pub closed: bool,
}

/// What surrounds the task that is enrolled.
#[derive(Debug)]
pub struct TaskContext {
    /// The container that the launcher is in.
    pub inside: Option<ContainerId>,
    /// That container and those around it, outermost first.
    pub outer: Vec<Outer>,
    /// The task's root directory.
    pub root: OwnedFd,
    /// Whether that is the host's.
    pub(crate) host_root: bool,
    /// What the task sees mounted.
    pub mounts: Vec<Mount>,
}

impl<E: Enforcer> State<E> {
    /// Takes over what the kernel and the registry hold; names are served again by [`Self::adopt_names`]. `boot` is this boot's id.
    pub fn adopt(
        kernel: E,
        mut registry: Registry,
        link: Handle,
        opener: Opener,
        dirs: Dirs,
        boot: String,
    ) -> Self {
        let held = kernel.containers();
        let lost: Vec<u64> = registry.iter().map(|container| container.record.kernel_id).collect();
        for id in lost {
            if !held.contains(&ContainerId::from_raw(id)) {
                tracing::warn!("container {id:016x} is not in the kernel any more; its record is dropped");
                registry.remove(id);
            }
        }
        let mut unknown = BTreeMap::new();
        for id in held {
            match registry.by_kernel_id(id.raw()) {
                Some(container) => {
                    link.send(Update::Manifest(Arc::new(container.record.manifest.clone())));
                }
                None => {
                    tracing::warn!(
                        "container {id} has no record; it stays enforced and ends with its last task"
                    );
                    unknown.insert(id, None);
                }
            }
        }
        Self {
            kernel,
            owners: Owners::default(),
            registry,
            link,
            opener,
            dirs,
            boot,
            unknown,
            ended: Counts::default(),
            last_reload: None,
            closed: false,
        }
    }

    /// The containers around a task in container `inside`, outermost first.
    pub fn enclosing(&self, inside: ContainerId) -> Result<Vec<Outer>, EnrollError> {
        let record = &self.registry.by_kernel_id(inside.raw()).ok_or(EnrollError::NoRecord(inside))?.record;
        let own = Outer {
            id: record.id.clone(),
            asked: record.asked.clone(),
            workdir: record.workdir.clone(),
            audit: record.audit,
            home: record.home.clone(),
            history: record.history.clone(),
        };
        Ok(self.as_now(&record.outer).into_iter().chain([own]).collect())
    }

    /// Where the paths led that a user's earlier containers on the host's root could turn into links.
    pub fn link_targets(&self, uid: u32) -> Option<Arc<Fixed>> {
        self.registry.link_targets(uid, self.owners.of(uid))
    }

    /// Containers around one, with what is known of them now, where they still run.
    pub(crate) fn as_now(&self, outer: &[Outer]) -> Vec<Outer> {
        let now = |one: &Outer| {
            let live = self.registry.iter().find(|container| container.record.id == one.id);
            Outer { history: live.map_or(&one.history, |live| &live.record.history).clone(), ..one.clone() }
        };
        outer.iter().map(now).collect()
    }

    /// How many operations of the container with this public id were denied since it began; `None`: it is gone.
    pub(crate) fn denied_in(&self, id: &str) -> Option<Result<u64, PolicyError>> {
        let container = self.registry.iter().find(|container| container.record.id == id)?;
        let counters = self.kernel.counters(ContainerId::from_raw(container.record.kernel_id));
        Some(counters.map(|counters| counters.denied))
    }

    /// Whether a container of this public id is still there.
    pub(crate) fn has_container(&self, id: &str) -> bool {
        self.registry.iter().any(|container| container.record.id == id)
    }

    /// Refuses a nested container whose root is not that of the one around it. The kernel goes on judging paths from
    /// the outer root, so rules whose links were resolved in another one would mean other places.
    pub(crate) fn check_root(&self, inside: ContainerId, root: &OwnedFd) -> Result<(), EnrollError> {
        let enclosing = self.registry.by_kernel_id(inside.raw()).ok_or(EnrollError::NoRecord(inside))?;
        let id = || enclosing.record.id.clone();
        let of_host;
        let outer = match &enclosing.root {
            Some(root) => root,
            None if enclosing.record.host_root => {
                of_host = host_root().map_err(EnrollError::HostRoot)?;
                &of_host
            }
            None => return Err(EnrollError::RootLost(id())),
        };
        match same_root(root, outer) {
            Ok(true) => Ok(()),
            Ok(false) => Err(EnrollError::OtherRoot(id())),
            Err(error) => Err(EnrollError::HostRoot(error)),
        }
    }

    /// An error about a container by the name that people know it by.
    pub fn named(&self, error: EnrollError) -> EnrollError {
        match &error {
            EnrollError::Task(TaskError::Governed(id)) => match self.registry.by_kernel_id(id.raw()) {
                Some(container) => EnrollError::Governed(container.record.label()),
                None => error,
            },
            _ => error,
        }
    }

    /// Whether a user may have one more container.
    pub(crate) fn check_quota(&self, uid: u32) -> Result<(), EnrollError> {
        let of = |uid| self.owners.of(uid);
        Ok(quota::check(of(uid), self.registry.iter().map(|container| of(container.record.uid)))?)
    }

    /// Makes a container and puts the task behind `first` into it, from its next exec on. All or nothing.
    pub fn enroll(
        &mut self,
        request: &Request,
        compiled: Compiled,
        context: TaskContext,
        first: OwnedFd,
    ) -> Result<Enrolled, EnrollError> {
        let inside = context.inside;
        let id = self.create_container(request, compiled, context, &first)?;
        let tagged = match inside {
            None => self.kernel.enroll(first.as_fd(), id),
            Some(outer) => self.kernel.nest(first.as_fd(), outer, id),
        };
        if let Err(error) = tagged {
            self.end(id);
            return Err(error.into());
        }
        let container = self.registry.by_kernel_id_mut(id.raw()).ok_or(EnrollError::NoRecord(id))?;
        container.first = Some(first);
        let Record { id, profile, uid, bundle, .. } = &container.record;
        let mode = container.record.mode();
        tracing::info!("container {id}: profile {profile}, mode {mode}, enrolled by user {uid}");
        let bundle = bundle.as_ref().map(|dir| dir.join(FILE));
        Ok(Enrolled { container: id.clone(), profile: profile.clone(), mode, bundle })
    }

    /// Makes a container and takes in processes that run already, listed anew until a list brings nobody new. If that
    /// fails half way, those that are in stay in.
    pub fn enroll_running(
        &mut self,
        request: &Request,
        compiled: Compiled,
        context: TaskContext,
        target: &Target,
        first: &OwnedFd,
    ) -> Result<Enrolled, EnrollError> {
        let id = self.create_container(request, compiled, context, first)?;
        let mut total = 0;
        let calls = self.kernel.unknown_calls();
        let done = loop {
            let tagged = target.processes().and_then(|processes| {
                let tagged = self.kernel.enroll_running(&processes, id)?;
                // Who was born since the first look. Who is in starts nobody from here on who has fewer filters.
                running::check_filters(&processes, &calls).map(|()| tagged)
            });
            match tagged {
                Ok(0) => break Ok(()),
                Ok(tagged) => total += tagged,
                Err(error) => break Err(error),
            }
        };
        self.sweep();
        let container = self.registry.by_kernel_id(id.raw()).ok_or(EnrollError::NoRecord(id))?;
        let Record { id: public, profile, .. } = &container.record;
        match done {
            Ok(()) if total > 0 => {
                tracing::info!("container {public}: profile {profile}, {total} running threads taken in");
                let mode = container.record.mode();
                Ok(Enrolled { container: public.clone(), profile: profile.clone(), mode, bundle: None })
            }
            // Everybody has ended, or nobody was let in.
            Ok(()) => {
                self.end(id);
                Err(ringfence_process::peer::PeerError::Gone.into())
            }
            Err(error) if container.tasks == 0 => {
                self.end(id);
                Err(error)
            }
            Err(error) => {
                let (id, tasks) = (public.clone(), container.tasks);
                Err(EnrollError::Partly { id, tasks, source: Box::new(error) })
            }
        }
    }

    /// Makes a container that nobody is in yet, with its policy in force and its record written.
    fn create_container(
        &mut self,
        request: &Request,
        compiled: Compiled,
        context: TaskContext,
        first: &OwnedFd,
    ) -> Result<ContainerId, EnrollError> {
        if self.closed {
            return Err(EnrollError::Closed);
        }
        if !alive(first.as_fd()) {
            return Err(ringfence_process::peer::PeerError::Gone.into());
        }
        self.check_quota(request.uid)?;
        let (public, service, bundle) = match compiled.names {
            Some(Prepared { id, bundle, service }) => {
                (self.registry.unless_taken(id).map_err(EnrollError::Random)?, Some(service), bundle)
            }
            // Its policy is that of nobody's names.
            None if !compiled.policy.names.is_empty() => return Err(EgressError::NotPrepared.into()),
            None => (self.registry.new_id().map_err(EnrollError::Random)?, None, None),
        };
        let id = self.kernel.create(self.owners.of(request.uid))?;
        let created = now_micros();
        if let Some(service) = &service {
            let line = EgressLine {
                container: id.raw(),
                public: public.clone(),
                profile: compiled.name.clone(),
                uid: request.uid,
                created,
                block: service.block(),
                within: context.outer.first().map(|outermost| outermost.id.clone()),
            };
            if let Err(error) = self.redirect(id, service, line) {
                self.release(id);
                return Err(error.into());
            }
        }
        let installed = match self.kernel.install(id, &compiled.policy) {
            Ok(installed) => installed,
            Err(error) => {
                self.undo(id, service);
                return Err(error.into());
            }
        };
        let generation = installed.generation;
        let manifest = manifest(id, &public, request.uid, created, &compiled.policy, installed);
        // Before the task is tagged, and so before its first record.
        self.link.send(Update::Manifest(Arc::new(manifest.clone())));
        let mut written = Written::default();
        written.add(&compiled.policy);
        let record = Record {
            format: Record::FORMAT,
            boot: self.boot.clone(),
            kernel_id: id.raw(),
            id: public,
            asked: request.asked.clone(),
            profile: compiled.name,
            file: compiled.file,
            workdir: request.workdir.clone(),
            audit: request.audit,
            audit_mode: compiled.policy.audit_mode,
            generation,
            created,
            uid: request.uid,
            host_root: context.host_root,
            outer: context.outer,
            manifest,
            home: request.home.clone(),
            history: History { fixed: compiled.fixed, written },
            mounts: Some(context.mounts),
            sources: compiled.sources,
            egress: service.as_ref().map(|service| service.record(&compiled.policy.names)),
            elsewhere: compiled.elsewhere,
            bundle: bundle
                .as_ref()
                .map(|bundle| bundle.lock().unwrap_or_else(PoisonError::into_inner).path()),
        };
        for note in &compiled.moved {
            tracing::warn!("container {}: {note}", record.id);
        }
        let container = Container {
            root: Some(context.root),
            policy: Some(compiled.policy),
            options: Some(compiled.options),
            ..Container::from_record(record)
        };
        if let Err(error) = self.registry.add(container) {
            self.undo(id, service);
            self.link.send(Update::Ended { container: id.raw(), generation: None });
            return Err(error.into());
        }
        if let Some(bundle) = bundle {
            bundle.lock().unwrap_or_else(PoisonError::into_inner).keep();
        }
        if let (Some(service), Some(container)) = (service, self.registry.by_kernel_id_mut(id.raw())) {
            container.egress = Egress::Served(service);
        }
        // Before the task is tagged: nothing that it does comes before it.
        if context.host_root {
            self.registry.keep_link_targets(self.owners.of(request.uid), &compiled.own);
        }
        Ok(id)
    }

    /// Looks at every container: tells the auditor which counters moved, ends those without a task.
    pub fn sweep(&mut self) {
        let ids: Vec<u64> = self.registry.iter().map(|container| container.record.kernel_id).collect();
        let (mut moved, mut over) = (Vec::new(), Vec::new());
        for raw in ids {
            let id = ContainerId::from_raw(raw);
            let counters = match self.kernel.counters(id) {
                Ok(counters) => counters,
                Err(error) => {
                    tracing::error!("container {id}: {}", chain(&error));
                    continue;
                }
            };
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            let counts = counts(&counters);
            if counts != container.counts {
                container.counts = counts;
                moved.push(counted(raw, counts));
            }
            container.tasks = counters.tasks;
            if counters.tasks > 0 {
                (container.first, container.idle) = (None, None);
            } else if container.first.as_ref().is_none_or(|first| !alive(first.as_fd())) {
                let adopted = container.policy.is_none();
                let since = *container.idle.get_or_insert_with(Instant::now);
                if since.elapsed() >= if adopted { IDLE_ADOPTED } else { IDLE } {
                    over.push(id);
                }
            }
        }
        if !moved.is_empty() {
            self.link.send(Update::Counters(moved));
        }
        for id in over {
            self.end(id);
        }
        self.sweep_unknown();
        self.redirect_renewed();
        self.retry_names();
    }

    fn sweep_unknown(&mut self) {
        let mut over = Vec::new();
        for (id, idle) in &mut self.unknown {
            match self.kernel.counters(*id) {
                Ok(counters) if counters.tasks > 0 => *idle = None,
                Ok(_) if idle.get_or_insert_with(Instant::now).elapsed() >= IDLE_ADOPTED => over.push(*id),
                Ok(_) => {}
                Err(_) => over.push(*id),
            }
        }
        for id in over {
            self.unknown.remove(&id);
            self.release(id);
        }
    }

    /// Takes back a container that nobody is in and that is in no record.
    fn undo(&mut self, id: ContainerId, service: Option<Service>) {
        if service.is_some() {
            self.redirect_nowhere(id);
        }
        self.release(id);
    }

    /// Forgets a container that has no task any more.
    fn end(&mut self, id: ContainerId) {
        if self.registry.by_kernel_id(id.raw()).is_some_and(|container| container.record.egress.is_some()) {
            self.redirect_nowhere(id);
        }
        let last = self.release(id).map(|counters| counts(&counters));
        if let Some(container) = self.registry.remove(id.raw()) {
            if container.record.bundle.is_some() {
                self.opener.bundles.remove(&container.record.id);
            }
            let counts = last.unwrap_or(container.counts);
            add(&mut self.ended, counts);
            if counts != container.counts {
                self.link.send(Update::Counters(vec![counted(id.raw(), counts)]));
            }
            tracing::info!("container {} ended, {} operations denied", container.record.id, counts.denied);
        }
        self.link.send(Update::Ended { container: id.raw(), generation: None });
    }

    fn release(&mut self, id: ContainerId) -> Option<Counters> {
        match self.kernel.release(id) {
            Ok(counters) => Some(counters),
            Err(error) => {
                tracing::error!("container {id} cannot be released: {}", chain(&error));
                None
            }
        }
    }

    /// Containers with a live or an enrolled task: `ID (PROFILE)`, or the kernel's id where there is no record.
    pub fn live(&mut self) -> Vec<String> {
        self.sweep();
        let known = self.registry.iter().filter(|container| {
            let enrolled = container.first.as_ref().is_some_and(|first| alive(first.as_fd()));
            container.tasks > 0 || enrolled
        });
        let mut live: Vec<String> = known.map(|container| container.record.label()).collect();
        for id in self.unknown.keys() {
            if !matches!(self.kernel.counters(*id), Ok(counters) if counters.tasks == 0) {
                live.push(id.to_string());
            }
        }
        live
    }
}

/// What the ids in a container's events mean.
pub fn manifest(
    id: ContainerId,
    public: &str,
    uid: u32,
    created: i64,
    policy: &CompiledPolicy,
    installed: Installed,
) -> Manifest {
    let rules = policy.rules.iter().map(|rule| RuleText {
        id: rule.id.clone(),
        file: rule.file.as_ref().map(|file| file.display().to_string()),
        line: rule.line,
        key: rule.key.clone(),
        text: rule.text.clone(),
    });
    Manifest {
        container: id.raw(),
        public: public.to_owned(),
        profile: policy.profile.clone(),
        uid,
        created,
        generation: installed.generation,
        rules: rules.collect(),
        slots: installed.slots,
        more: false,
    }
}

fn counts(counters: &Counters) -> Counts {
    Counts {
        denied: counters.denied,
        lost_denied: counters.lost_denied,
        lost_allowed: counters.lost_allowed,
        aggregated: counters.aggregated,
        fork_failed: counters.fork_failed,
    }
}

fn counted(container: u64, counts: Counts) -> Counted {
    Counted {
        container,
        denied: counts.denied,
        lost_denied: counts.lost_denied,
        lost_allowed: counts.lost_allowed,
        aggregated: counts.aggregated,
    }
}

fn add(sum: &mut Counts, more: Counts) {
    sum.denied += more.denied;
    sum.lost_denied += more.lost_denied;
    sum.lost_allowed += more.lost_allowed;
    sum.aggregated += more.aggregated;
    sum.fork_failed += more.fork_failed;
}

#[cfg(test)]
pub mod tests;
