//! What the core reports: `ringfence status`.

use crate::{agent::AgentCounts, egress::EgressCounts, message::Reloaded};
use serde::{Deserialize, Serialize};

words! {
    /// How much the kernel holds.
    Enforcement {
        /// All of it.
        Kernel = "kernel",
        /// Some of it.
        Partial = "partial",
        /// Nothing.
        None = "none",
    }
}

words! {
    /// Whether denials are enforced.
    Mode {
        /// They are.
        Enforce = "enforce",
        /// They are recorded only.
        Audit = "audit",
    }
}

words! {
    /// How an agent's worker fares.
    AgentState {
        /// It was started, and does not serve yet.
        Starting = "starting",
        /// It serves.
        Running = "running",
        /// It ended, and is started again after a pause.
        Waiting = "waiting",
        /// It was stopped by hand.
        Stopped = "stopped",
        /// It ended again and again, and was given up.
        Quarantined = "quarantined",
        /// It cannot be started.
        Failed = "failed",
    }
}

/// What `ringfence status` shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// When this daemon began, milliseconds since 1970 UTC.
    pub since_ms: u64,
    /// Release of the running kernel.
    pub kernel: String,
    /// Whether the programs were there already, from an earlier daemon.
    pub adopted: bool,
    /// Hooks that a program is attached to.
    pub hooks: Vec<String>,
    /// Hooks that this kernel lacks, with what that means.
    pub missing: Vec<Missing>,
    /// Hooks and system calls of this kernel that this version does not know, with what becomes of them.
    #[serde(default)]
    pub unknown: Vec<Missing>,
    /// What holds each axis, for every container.
    pub axes: Vec<AxisStatus>,
    /// The auditor.
    pub auditor: AuditorProcess,
    /// The last time profiles were read again.
    pub reload: Option<ReloadStatus>,
    /// Every container with a live task, oldest first.
    pub containers: Vec<ContainerStatus>,
    /// Containers in the kernel that no record describes: the kernel's ids. They stay enforced until their end.
    pub unrecorded: Vec<String>,
    /// Every agent whose profile has an `[llm.*]`, by name.
    #[serde(default)]
    pub agents: Vec<AgentProcess>,
    /// What was counted in containers that ended since this daemon began, all together.
    pub ended: Counts,
}

/// One agent's LLM worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProcess {
    /// The profile's name.
    pub name: String,
    /// How it fares.
    pub state: AgentState,
    /// Process id, while there is a process.
    pub pid: Option<u32>,
    /// User id of the worker.
    pub uid: Option<u32>,
    /// Its socket.
    pub socket: String,
    /// The provider's protocol and the model.
    pub model: Option<String>,
    /// How often it was started again.
    pub restarts: u64,
    /// Why it ended the last time, if it did.
    pub last_exit: Option<String>,
    /// What is wrong with its profile; while it runs, the one before is in force.
    pub error: Option<String>,
    /// What the worker says of itself.
    pub counts: AgentCounts,
}

/// A hook that this kernel does not have, or one (or a system call) that this version does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// Name of the hook; of a system call, its entry function's (`__x64_sys_NAME`).
    pub hook: String,
    /// What that means.
    pub effect: String,
}

/// What holds one axis of the grant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AxisStatus {
    /// `fs_read`, `fs_write`, `exec`, `net`.
    pub axis: String,
    /// `kernel` where every hook that the axis needs is attached, `partial` where one is missing, else `none`.
    pub enforcement: Enforcement,
    /// The enforcers: `ebpf`.
    pub enforcers: Vec<String>,
}

/// How the auditor does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditorProcess {
    /// Whether it runs.
    pub running: bool,
    /// Its process id.
    pub pid: Option<u32>,
    /// How often it was started again.
    pub restarts: u64,
    /// Why it ended the last time, if it did.
    pub last_exit: Option<String>,
    /// Records sent to it, ever.
    pub records: u64,
    /// Records sent that it has not acknowledged.
    pub unacknowledged: u64,
}

/// The last reload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadStatus {
    /// When, milliseconds since 1970 UTC.
    pub at_ms: u64,
    /// What it did.
    #[serde(flatten)]
    pub outcome: Reloaded,
}

/// One container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContainerStatus {
    /// Public id: 12 hex digits.
    pub id: String,
    /// Name of the profile.
    pub profile: String,
    /// File of the profile.
    pub file: String,
    /// Whether denials are enforced.
    pub mode: Mode,
    /// Whether the kernel holds all its axes; `none` in audit mode.
    pub enforcement: Enforcement,
    /// Generation of its policy.
    pub generation: u32,
    /// When it was enrolled, milliseconds since 1970 UTC.
    pub created_ms: u64,
    /// Who enrolled it: user id.
    pub uid: u32,
    /// Live tasks (threads).
    pub tasks: u64,
    /// Names of the capabilities that the kernel leaves it; `all`: every one.
    pub capabilities: Vec<String>,
    /// What was counted.
    pub counts: Counts,
    /// Why its profile's last change is not in force, if so.
    pub reload_error: Option<String>,
    /// What serves the names that it may reach, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<EgressProcess>,
}

/// A container's egress worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressProcess {
    /// How it fares. While it does not run, the container reaches no name.
    pub state: AgentState,
    /// The container's own addresses, a /24, each of which stands for a name.
    pub block: String,
    /// Process id, while there is a process.
    pub pid: Option<u32>,
    /// User id of the worker.
    pub uid: u32,
    /// How often it was started again.
    pub restarts: u64,
    /// Why it ended the last time, if it did.
    pub last_exit: Option<String>,
    /// What is wrong: in the worker's own words while it runs.
    pub error: Option<String>,
    /// Seconds until it is tried again by itself; none: nothing waits to be tried, or it would be in vain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_s: Option<u64>,
    /// What the worker says of itself, since it began.
    pub counts: EgressCounts,
}

/// What a container's programs counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Operations denied, recorded or not. What audit mode would have denied was done, and is not counted here.
    pub denied: u64,
    /// Denials that are in no event, since the kernel had no room for them.
    pub lost_denied: u64,
    /// Other operations that should have been recorded and are in no event: allowed, or in audit mode.
    pub lost_allowed: u64,
    /// Operations folded into events with `repeats`.
    pub aggregated: u64,
    /// Forks refused because the child could not be tagged.
    pub fork_failed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_words_and_those_of_other_versions_are_kept() {
        let json = r#"["starting","running","waiting","stopped","quarantined","failed","asleep"]"#;
        let states: Vec<AgentState> = serde_json::from_str(json).unwrap();
        assert_eq!((&states[1], &states[6]), (&AgentState::Running, &AgentState::Other("asleep".into())));
        assert_eq!(serde_json::to_string(&states).unwrap(), json);
        let shown: Vec<String> = states.iter().map(ToString::to_string).collect();
        assert_eq!(serde_json::to_string(&shown).unwrap(), json);
        let json = r#"["kernel","partial","none"]"#;
        let enforcement: Vec<Enforcement> = serde_json::from_str(json).unwrap();
        assert_eq!(enforcement, [Enforcement::Kernel, Enforcement::Partial, Enforcement::None]);
        assert_eq!(serde_json::to_string(&enforcement).unwrap(), json);
        assert_eq!(serde_json::to_string(&[Mode::Enforce, Mode::Audit]).unwrap(), r#"["enforce","audit"]"#);
    }
}
