//! Profiles read again: every container gets the next generation of its policy, or keeps the one it has and says why.

use super::{
    egress::{Change, Egress, Tasks, line_of},
    enforcer::Enforcer,
    enroll::{Compiled, EnrollError, Request, Surroundings, compile, host_root},
    outbox::Update,
    state::{State, manifest},
};
use ringfence_base::{clock::now_micros, error::chain};
use ringfence_bpf::{ContainerId, Installed, PolicyError};
use ringfence_policy::{self as profile, KernelOptions, LandlockUse};
use ringfence_wire::{message::Reloaded, status::ReloadStatus};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::AsFd,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

/// How long processes with credentials may take until they judge by what a reload has told them.
const RULES_TIME: Duration = Duration::from_secs(10);

impl<E: Enforcer> State<E> {
    /// Reads all profiles again. Each container changes as one, or not at all.
    pub fn reload(&mut self) -> Reloaded {
        let mut tasks = Tasks::default();
        self.reopen_names(&mut tasks);
        let mut outcome = Reloaded::default();
        let mut failed: BTreeMap<(String, bool), Vec<String>> = BTreeMap::new();
        let ids: Vec<u64> = self.registry.iter().map(|container| container.record.kernel_id).collect();
        for raw in ids {
            let result = self.reload_one(ContainerId::from_raw(raw), &mut tasks, &mut outcome.notes);
            let Some(container) = self.registry.by_kernel_id_mut(raw) else { continue };
            let id = container.record.id.clone();
            match result {
                Ok(true) => outcome.changed.push(id),
                Ok(false) => {}
                Err(error) => {
                    let text = error.message();
                    container.reload_error = Some(text.clone());
                    let shut = matches!(error, EnrollError::Policy(PolicyError::Shut { .. }));
                    failed.entry((text, shut)).or_default().push(id);
                    continue;
                }
            }
            container.reload_error = None;
        }
        self.wait_for_rules();
        // Those that nobody uses yet: better told now than when somebody needs them.
        for name in self.dirs.names() {
            if let Err(errors) = profile::load(&name, &self.dirs) {
                failed.entry((errors.to_string(), false)).or_default();
            }
        }
        for ((error, shut), ids) in failed {
            let kept = match ids.as_slice() {
                [] => String::new(),
                ids if shut => format!(" (container {})", ids.join(", ")),
                [id] => format!(" (container {id} keeps the policy it has)"),
                _ => format!(" (containers {} keep the policies they have)", ids.join(", ")),
            };
            outcome.errors.push(format!("{error}{kept}"));
        }
        for error in &outcome.errors {
            tracing::error!("{error}");
        }
        for note in &outcome.notes {
            tracing::warn!("{note}");
        }
        tracing::info!(
            "profiles read again: {} containers changed, {} errors",
            outcome.changed.len(),
            outcome.errors.len()
        );
        let at_ms = u64::try_from(now_micros() / 1000).unwrap_or(0);
        self.last_reload = Some(ReloadStatus { at_ms, outcome: outcome.clone() });
        outcome
    }

    /// Returns when no process with credentials judges by rules of before: whoever had them changed may rely on it. All of them have
    /// one deadline, after which they are killed, so that none of them holds this up for longer.
    fn wait_for_rules(&self) {
        let until = Instant::now() + RULES_TIME;
        for container in self.registry.iter() {
            if let Egress::Served(service) = &container.egress
                && let Some(rules) = service.rules()
            {
                rules.in_force_by(until);
            }
        }
    }

    /// Whether the container has a new generation now.
    pub(crate) fn reload_one(
        &mut self,
        id: ContainerId,
        tasks: &mut Tasks,
        notes: &mut Vec<String>,
    ) -> Result<bool, EnrollError> {
        let Some(container) = self.registry.by_kernel_id(id.raw()) else { return Ok(false) };
        let record = &container.record;
        let opened;
        let root = match &container.root {
            Some(root) => root.as_fd(),
            None if record.host_root => {
                opened = host_root().map_err(EnrollError::HostRoot)?;
                opened.as_fd()
            }
            None => return Err(EnrollError::RootLost(record.id.clone())),
        };
        let request = Request {
            asked: record.asked.clone(),
            workdir: record.workdir.clone(),
            audit: record.audit,
            uid: record.uid,
            home: record.home.clone(),
        };
        let outer = self.as_now(&record.outer);
        let surroundings = Surroundings {
            outer: &outer,
            root,
            mounts: record.mounts.as_deref(),
            dirs: &self.dirs,
            history: Some(&record.history),
            past: None,
        };
        let mut compiled = compile(&request, surroundings)?;
        notes.extend(compiled.moved.iter().map(|note| format!("container {}: {note}", record.id)));
        self.grant_bundles(&mut compiled.policy, record.bundle.as_ref(), &record.outer);
        let change = self.change_names(container, &mut compiled.policy, tasks);
        if let Egress::Served(service) = &container.egress
            && record.outer.is_empty()
        {
            let lacking: Vec<String> =
                service.lacks(&compiled.policy.names).iter().map(ToString::to_string).collect();
            if !lacking.is_empty() {
                notes.push(format!(
                    "container {}: requests to {} are refused: their credentials are handed over when a container is started; start it \
                     again",
                    record.id,
                    lacking.join(", ")
                ));
            }
        }
        if let Some(why) = change.is_closed() {
            notes.push(format!("container {}: it reaches none of its names: {why}", record.id));
        }
        let same = container.policy.as_ref() == Some(&compiled.policy);
        if same && self.kernel.generation(id) == Some(record.generation) {
            // A worker that was given up is tried again.
            self.names_changed(id, change, &compiled.policy.names, compiled.policy.audit_mode);
            return Ok(false);
        }
        let line = match &change {
            Change::Opened(service) => Some(line_of(record, service.block())),
            _ => None,
        };
        let change = match line {
            Some(line) => self.redirect_opened(id, change, line),
            None => change,
        };
        let installed = match self.kernel.install(id, &compiled.policy) {
            Ok(installed) => installed,
            Err(error) => {
                if matches!(change, Change::Opened(_)) {
                    self.redirect_nowhere(id);
                }
                if let PolicyError::Shut { generation, .. } = &error {
                    self.shut(id, compiled, *generation);
                }
                return Err(error.into());
            }
        };
        self.names_changed(id, change, &compiled.policy.names, compiled.policy.audit_mode);
        let Some(container) = self.registry.by_kernel_id(id.raw()) else { return Ok(false) };
        let record = &container.record;
        let (generation, interrupted) = (installed.generation, installed.interrupted);
        let manifest = manifest(id, &record.id, record.uid, record.created, &compiled.policy, installed);
        let old = record.generation;
        self.link.send(Update::Manifest(Arc::new(manifest.clone())));
        self.link.send(Update::Ended { container: id.raw(), generation: Some(old) });
        let Some(container) = self.registry.by_kernel_id_mut(id.raw()) else { return Ok(false) };
        let Compiled { name, file, policy, options, fixed, sources, .. } = compiled;
        if interrupted {
            notes.push(format!(
                "container {}: there was no room for its changed profile beside the one in force, so everything was \
                 denied to it for the moment in between",
                container.record.id
            ));
        }
        if let Some(before) = &container.options {
            notes.extend(at_next_start(&container.record.id, before, &options));
        }
        let record = &mut container.record;
        (record.profile, record.file, record.audit_mode) = (name, file, policy.audit_mode);
        (record.generation, record.manifest) = (generation, manifest);
        (record.history.fixed, record.sources) = (fixed, sources);
        record.history.written.add(&policy);
        (container.policy, container.options) = (Some(policy), Some(options));
        let record = record.clone();
        tracing::info!(
            "container {}: generation {generation} of profile {} in force",
            record.id,
            record.profile
        );
        if let Err(error) = self.registry.write(&record) {
            // It is in force all the same; only a restarted core would have to install it again.
            tracing::error!("{}", chain(&error));
        }
        Ok(true)
    }

    /// Notes that a container is denied everything, because its next policy found no room.
    fn shut(&mut self, id: ContainerId, compiled: Compiled, generation: u32) {
        let Some(container) = self.registry.by_kernel_id_mut(id.raw()) else { return };
        let record = &mut container.record;
        let old = record.generation;
        // Its events are told by the rules of none.
        let installed = Installed { generation, slots: Vec::new(), interrupted: true };
        record.manifest = manifest(id, &record.id, record.uid, record.created, &compiled.policy, installed);
        (record.generation, record.audit_mode) = (generation, compiled.policy.audit_mode);
        // So that no later reload takes it for in force.
        container.policy = None;
        let record = record.clone();
        self.link.send(Update::Manifest(Arc::new(record.manifest.clone())));
        self.link.send(Update::Ended { container: id.raw(), generation: Some(old) });
        if let Err(error) = self.registry.write(&record) {
            tracing::error!("{}", chain(&error));
        }
    }

    /// Directories whose files the profiles in use come from, and that of all profiles.
    pub(crate) fn profile_dirs(&self) -> BTreeSet<PathBuf> {
        let files = self.registry.iter().flat_map(|c| c.record.sources.iter().chain([&c.record.file]));
        let used = files.filter_map(|file| file.parent().map(PathBuf::from));
        used.chain([self.dirs.system.clone()]).collect()
    }
}

/// What of a change the launcher's own enforcers cannot follow.
fn at_next_start(id: &str, before: &KernelOptions, now: &KernelOptions) -> Option<String> {
    let KernelOptions {
        seccomp,
        landlock,
        // Those that the programs follow, or that only a start asks for.
        audit: _,
        base: _,
        accept_partial: _,
        capabilities: _,
        setuid_files: _,
        shared_memory: _,
        debug_between_calls: _,
    } = now;
    let mut what = Vec::new();
    if before.seccomp != *seccomp {
        what.push("seccomp");
    }
    if before.landlock != *landlock || *landlock == LandlockUse::Always {
        what.push("Landlock");
    }
    let what = (!what.is_empty()).then(|| what.join(" and "))?;
    Some(format!("container {id}: what changed for {what} takes effect at its next start"))
}
