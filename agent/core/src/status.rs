//! What `ringfence status` shows.

use super::{enforcer::Enforcer, state::State};
use nix::sys::utsname::uname;
use ringfence_bpf::{ContainerId, Coverage};
use ringfence_common::hooks::{Axis, HOOKS, Hook};
use ringfence_policy::Capabilities;
use ringfence_wire::status::{AxisStatus, ContainerStatus, Enforcement, Missing, Status};

/// What does not change while a daemon runs.
#[derive(Debug, Clone)]
pub struct About {
    since_ms: u64,
    kernel: String,
    adopted: bool,
    hooks: Vec<String>,
    missing: Vec<Missing>,
    unknown: Vec<Missing>,
    axes: Vec<AxisStatus>,
}

impl About {
    /// From what was loaded.
    pub fn new(coverage: &Coverage, since_us: i64) -> Self {
        let missing = coverage.missing.iter();
        let missing: Vec<Missing> =
            missing.map(|hook| Missing { hook: hook.name.into(), effect: hook.without.into() }).collect();
        Self {
            since_ms: u64::try_from(since_us / 1000).unwrap_or(0),
            kernel: uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default(),
            adopted: coverage.adopted,
            axes: axes(&coverage.attached, &missing),
            hooks: coverage.attached.iter().map(ToString::to_string).collect(),
            missing,
            unknown: unknown(coverage),
        }
    }

    /// Axes that the kernel holds.
    pub fn held(&self) -> Vec<&str> {
        self.axes
            .iter()
            .filter(|axis| axis.enforcement == Enforcement::Kernel)
            .map(|axis| axis.axis.as_str())
            .collect()
    }
}

/// What the kernel has that the coverage table does not name, and what becomes of it.
fn unknown(coverage: &Coverage) -> Vec<Missing> {
    let hook = |hook: &String| Missing {
        hook: hook.clone(),
        effect: match coverage.refused.contains(hook) {
            true => "not known to this version: refused to governed tasks".to_owned(),
            false => "not known to this version, and cannot be refused".to_owned(),
        },
    };
    let call = |call: &String| Missing {
        hook: format!("__x64_sys_{call}"),
        effect: "not known to this version: refused to commands that have a seccomp list".to_owned(),
    };
    coverage.unknown.hooks.iter().map(hook).chain(coverage.unknown.calls.iter().map(call)).collect()
}

/// An axis is the kernel's only if each of its hooks has a program, or if the table of hooks says which other hook does
/// its work on this kernel.
fn axes(attached: &[&str], missing: &[Missing]) -> Vec<AxisStatus> {
    let is_covered = |hook: &str| {
        attached.contains(&hook) || missing.iter().any(|m| m.hook == hook && !m.effect.is_empty())
    };
    let status = |axis: Axis| {
        let hooks: Vec<&Hook> = HOOKS.iter().filter(|hook| hook.axes.contains(&axis)).collect();
        let held = hooks.iter().filter(|hook| is_covered(hook.name)).count();
        let enforcement = match held {
            0 => Enforcement::None,
            n if n == hooks.len() => Enforcement::Kernel,
            _ => Enforcement::Partial,
        };
        let enforcers = if held > 0 { vec!["ebpf".to_owned()] } else { Vec::new() };
        AxisStatus { axis: axis.name().to_owned(), enforcement, enforcers }
    };
    Axis::ALL.map(status).into()
}

fn names(capabilities: u64) -> Vec<String> {
    Capabilities::from_bits(capabilities).names().into_iter().map(str::to_owned).collect()
}

impl<E: Enforcer> State<E> {
    /// The whole status, counted just now.
    pub fn status(&mut self, about: &About) -> Status {
        self.sweep();
        let whole = about.axes.iter().all(|axis| axis.enforcement == Enforcement::Kernel);
        let enforcement = if whole { Enforcement::Kernel } else { Enforcement::Partial };
        let mut oldest_first: Vec<_> = self.registry.iter().collect();
        oldest_first.sort_by_key(|container| container.record.created);
        let containers = oldest_first.into_iter().map(|container| {
            let record = &container.record;
            ContainerStatus {
                id: record.id.clone(),
                profile: record.profile.clone(),
                file: record.file.display().to_string(),
                mode: record.mode(),
                enforcement: if record.audit_mode { Enforcement::None } else { enforcement.clone() },
                generation: record.generation,
                created_ms: u64::try_from(record.created / 1000).unwrap_or(0),
                uid: record.uid,
                tasks: container.tasks,
                capabilities: self
                    .kernel
                    .capabilities(ContainerId::from_raw(record.kernel_id))
                    .map_or_else(Vec::new, names),
                counts: container.counts,
                reload_error: container.reload_error.clone(),
                egress: container.egress.status(record.egress.as_ref()),
            }
        });
        let unrecorded = self.unknown.keys().map(ToString::to_string).collect();
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            since_ms: about.since_ms,
            kernel: about.kernel.clone(),
            adopted: about.adopted,
            hooks: about.hooks.clone(),
            missing: about.missing.clone(),
            unknown: about.unknown.clone(),
            axes: about.axes.clone(),
            auditor: self.link.status(),
            reload: self.last_reload.clone(),
            containers: containers.collect(),
            unrecorded,
            // Not the state's to know.
            agents: Vec::new(),
            ended: self.ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforcement(attached: &[&str], missing: &[Missing]) -> Vec<Enforcement> {
        axes(attached, missing).into_iter().map(|axis| axis.enforcement).collect()
    }

    #[test]
    fn an_axis_is_the_kernel_s_only_if_every_hook_of_it_is() {
        use Enforcement::{Kernel, None, Partial};
        let all: Vec<&str> = HOOKS.iter().map(|hook| hook.name).collect();
        assert_eq!(enforcement(&all, &[]), [Kernel, Kernel, Kernel, Kernel]);
        assert_eq!(enforcement(&[], &[]), [None, None, None, None]);
        let without: Vec<&str> = all.iter().copied().filter(|hook| *hook != "socket_sendmsg").collect();
        assert_eq!(enforcement(&without, &[]), [Kernel, Kernel, Kernel, Partial]);
        let other = Missing { hook: "socket_sendmsg".into(), effect: "socket_connect sees it".into() };
        assert_eq!(enforcement(&without, &[other]), [Kernel, Kernel, Kernel, Kernel]);
    }
}
