//! `[kernel]` of a profile: its keys as a file has them, the options that they come to, and what those are in a policy and to
//! the eye.
//!
//! To add a key, add its field to [`KernelTable`]; the compiler names the other places: here, and `reload` of the core, where a
//! container that runs may need to start anew for it. What an option does is its reader's: the launcher's, that of `compile`,
//! or that of the programs, for which it is a flag of the policy.

use super::{Capabilities, Partial, Rule, keys::Keys, parse::Parser, schema::CapabilityNames};
use ringfence_common::policy::{FLAG_DEBUG_CALLS, FLAG_SETUID_FILES};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

#[derive(Debug, Default, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(crate) struct KernelTable {
    /// Which system calls are refused: `default`, `strict`, `off`, or an OCI profile's absolute path.
    #[schemars(with = "Option<String>")]
    pub seccomp: Option<Seccomp>,
    /// When Landlock is set. Default: `fallback`.
    pub landlock: Option<LandlockUse>,
    /// What is recorded. Default: `denied`.
    pub audit: Option<AuditLevel>,
    /// What is granted beside the grant. Default: `userland`.
    pub base: Option<Base>,
    /// What may stay open on a host where no enforcer covers it: axes, in part or altogether; `unix`: every unix socket that
    /// file modes allow, where they cannot be told apart; `home`: the home directory, or one above it, as the working directory.
    pub accept_partial: Option<Vec<Partial>>,
    /// The capabilities that processes of the container may use: names, `default` (the set that container engines leave
    /// root, which also applies where nothing is named), `all`.
    #[schemars(with = "Option<CapabilityNames>")]
    pub capabilities: Option<Capabilities>,
    /// Whether files may be given setuid and setgid bits and file capabilities (default: no). Executing such a file gives its
    /// owner's rights, outside of the container, too; installing packages in an image build needs it.
    pub setuid_files: Option<bool>,
    /// Whether the container may make files in `/dev/shm` (POSIX shared memory and semaphores, which Python's multiprocessing
    /// and browsers use), and use those that it made itself, whatever the grant says (default: no). Others' stay closed.
    pub shared_memory: Option<bool>,
    /// Whether a process of one tool call may trace, read and signal those of another, as a debugger in a call of its own
    /// does (default: no). What the other call does from then on is attributed `ambiguous`.
    pub debug_between_calls: Option<bool>,
    /// ioctl commands that are allowed beside those that every container may use: the kernel's name of a command or its
    /// number, or a device below `/dev`, for every command to it.
    #[schemars(with = "Option<Vec<String>>")]
    pub ioctl: Option<Vec<Rule>>,
    /// Socket options that setsockopt(2) is allowed beside those that every container may set: the kernel's name of an
    /// option, or its level and number (`1/36`).
    #[schemars(with = "Option<Vec<String>>")]
    pub socket_options: Option<Vec<Rule>>,
}

impl KernelTable {
    /// A file's keys over those that it inherits.
    pub(crate) fn read(keys: &mut Keys<'_>, parent: Self) -> Self {
        let ioctl = keys.get("ioctl", |p, _, v| Some(p.rules("kernel.ioctl", v, Parser::check_ioctl)));
        let socket_options = keys.get("socket_options", |p, _, v| {
            Some(p.rules("kernel.socket_options", v, Parser::check_socket_option))
        });
        Self {
            seccomp: keys.get("seccomp", Parser::seccomp).or(parent.seccomp),
            landlock: keys.get("landlock", Parser::choice).or(parent.landlock),
            audit: keys.get("audit", Parser::choice).or(parent.audit),
            base: keys.get("base", Parser::choice).or(parent.base),
            accept_partial: keys.get("accept_partial", Parser::partial).or(parent.accept_partial),
            capabilities: keys.get("capabilities", Parser::capabilities).or(parent.capabilities),
            setuid_files: keys.get("setuid_files", Parser::flag).or(parent.setuid_files),
            shared_memory: keys.get("shared_memory", Parser::flag).or(parent.shared_memory),
            debug_between_calls: keys.get("debug_between_calls", Parser::flag).or(parent.debug_between_calls),
            ioctl: ioctl.or(parent.ioctl),
            socket_options: socket_options.or(parent.socket_options),
        }
    }

    /// What the keys come to: the options, the rules of `ioctl`, those of `socket_options`.
    pub(crate) fn finish(self) -> (KernelOptions, Vec<Rule>, Vec<Rule>) {
        let Self {
            seccomp,
            landlock,
            audit,
            base,
            accept_partial,
            capabilities,
            setuid_files,
            shared_memory,
            debug_between_calls,
            ioctl,
            socket_options,
        } = self;
        let options = KernelOptions {
            seccomp: seccomp.unwrap_or_default(),
            landlock: landlock.unwrap_or_default(),
            audit: audit.unwrap_or_default(),
            base: base.unwrap_or_default(),
            accept_partial: accept_partial.unwrap_or_default(),
            capabilities: capabilities.unwrap_or_default(),
            setuid_files: setuid_files.unwrap_or_default(),
            shared_memory: shared_memory.unwrap_or_default(),
            debug_between_calls: debug_between_calls.unwrap_or_default(),
        };
        (options, ioctl.unwrap_or_default(), socket_options.unwrap_or_default())
    }
}

/// `[kernel]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct KernelOptions {
    /// Which system calls are refused.
    pub seccomp: Seccomp,
    /// When Landlock is set.
    pub landlock: LandlockUse,
    /// Which allowed operations are recorded.
    pub audit: AuditLevel,
    /// What is granted beside the grant.
    pub base: Base,
    /// What may stay open where no enforcer holds it.
    pub accept_partial: Vec<Partial>,
    /// What root may do beside an ordinary user.
    pub capabilities: Capabilities,
    /// Whether files may be given setuid and setgid bits and file capabilities.
    pub setuid_files: bool,
    /// Whether it may make files in `/dev/shm`, and use those.
    pub shared_memory: bool,
    /// Whether one tool call's processes may trace, read and signal another's.
    pub debug_between_calls: bool,
}

impl KernelOptions {
    /// Those that the programs look up in the policy's record, as its flags. Each flag allows something: a policy inside
    /// another has only the flags of both.
    pub(crate) fn flags(&self) -> u32 {
        let Self {
            // The launcher's.
            seccomp: _,
            landlock: _,
            accept_partial: _,
            // In the policy by themselves, or as rules.
            audit: _,
            base: _,
            capabilities: _,
            shared_memory: _,
            setuid_files,
            debug_between_calls,
        } = self;
        let flags = [(setuid_files, FLAG_SETUID_FILES), (debug_between_calls, FLAG_DEBUG_CALLS)];
        flags.into_iter().filter(|(set, _)| **set).fold(0, |all, (_, flag)| all | flag)
    }

    /// As text for a terminal; `usable`: the capabilities as the policy has them.
    pub(crate) fn text(&self, usable: Capabilities) -> String {
        let Self {
            seccomp,
            landlock,
            audit,
            base,
            accept_partial,
            capabilities: _,
            setuid_files,
            shared_memory,
            debug_between_calls,
        } = self;
        let mut out = format!(
            "kernel       seccomp {}, landlock {}, audit {}, base {}\n",
            key(seccomp),
            key(landlock),
            key(audit),
            key(base)
        );
        if !accept_partial.is_empty() {
            let axes: Vec<&str> = accept_partial.iter().map(|a| a.name()).collect();
            out += &format!("             accepted without full enforcement: {}\n", axes.join(", "));
        }
        let usual = usable == Capabilities::default();
        let usual = if usual { ", those that container engines leave root" } else { "" };
        out += &format!("capabilities {usable}{usual}\n");
        if *setuid_files {
            out += "             files may be given setuid and setgid bits and file capabilities\n";
        }
        if *debug_between_calls {
            out += "             one tool call may trace, read and signal another's processes, which are then `ambiguous`\n";
        }
        if *shared_memory {
            out += "             the container may create files in /dev/shm, and use those that it created\n";
        }
        out
    }
}

/// An option's value as a profile has it.
fn key(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        Ok(serde_json::Value::Object(map)) => map.values().filter_map(|v| v.as_str()).collect(),
        _ => String::new(),
    }
}

/// `kernel.seccomp`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Seccomp {
    /// The calls that no agent needs.
    #[default]
    Default,
    /// All but the calls that ordinary programs need.
    Strict,
    /// No filter.
    Off,
    /// An OCI profile in JSON, by absolute path.
    File(PathBuf),
}

/// `kernel.landlock`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LandlockUse {
    /// Where the eBPF programs do not enforce.
    #[default]
    Fallback,
    /// Always.
    Always,
    /// Never.
    Off,
}

/// `kernel.audit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub enum AuditLevel {
    /// Denials only.
    #[default]
    #[serde(rename = "denied")]
    Denied,
    /// Also what was executed.
    #[serde(rename = "exec")]
    Exec,
    /// Also what was connected, sent to and bound.
    #[serde(rename = "exec+net")]
    ExecNet,
    /// Everything, each open included.
    #[serde(rename = "all")]
    All,
}

/// `kernel.base`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Base {
    /// What any Linux program needs: the loader, libraries, locale data, `/dev/null` and the like.
    #[default]
    Userland,
    /// Nothing.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_is_shown_and_has_its_own_flag() {
        let off = KernelOptions::default();
        assert_eq!(off.flags(), 0);
        let text = |options: &KernelOptions| options.text(options.capabilities);
        for (on, flag) in [
            (KernelOptions { setuid_files: true, ..off.clone() }, FLAG_SETUID_FILES),
            (KernelOptions { debug_between_calls: true, ..off.clone() }, FLAG_DEBUG_CALLS),
            (KernelOptions { shared_memory: true, ..off.clone() }, 0),
        ] {
            assert_eq!(on.flags(), flag, "{on:?}");
            assert!(text(&on).len() > text(&off).len() && text(&on).starts_with(&text(&off)), "{on:?}");
        }
    }
}
