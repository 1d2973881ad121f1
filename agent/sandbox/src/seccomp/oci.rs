//! Seccomp profiles in the JSON format of OCI runtimes and Docker.

use super::{
    Error,
    policy::{Action, Arg, Policy, Rule, Test},
    unknown_calls,
};
use caps::{Capability, CapsHashSet};
use libseccomp::ScmpCompareOp;
use nix::errno::Errno;
use serde::Deserialize;
use std::{fs::File, io::Read, path::Path, str::FromStr};

/// What Docker's conditions on rules are compared with.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The running kernel: major, minor.
    pub kernel: (u32, u32),
    /// The capabilities that the command will start with.
    pub capabilities: CapsHashSet,
}

/// Bytes of a file. Docker's own profile has about 15,000.
const LIMIT: u64 = 1 << 20;

/// The whole file. Unknown keys are refused: they may be conditions.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    default_action: String,
    default_errno_ret: Option<i32>,
    /// Calls of other architectures end the process here, whatever the file has.
    #[serde(default, rename = "architectures")]
    _architectures: Vec<String>,
    #[serde(default, rename = "archMap")]
    _arch_map: serde_json::Value,
    #[serde(default)]
    flags: Vec<String>,
    #[serde(default)]
    listener_path: String,
    #[serde(default)]
    listener_metadata: String,
    #[serde(default)]
    syscalls: Vec<Calls>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Calls {
    #[serde(default)]
    names: Vec<String>,
    /// Docker's old spelling.
    #[serde(default)]
    name: Option<String>,
    action: String,
    errno_ret: Option<i32>,
    #[serde(default)]
    args: Option<Vec<Condition>>,
    #[serde(default)]
    comment: String,
    #[serde(default)]
    includes: Option<Filter>,
    #[serde(default)]
    excludes: Option<Filter>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Condition {
    index: u32,
    value: u64,
    #[serde(default)]
    value_two: u64,
    op: String,
}

/// Docker's conditions on a whole rule.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Filter {
    #[serde(default)]
    arches: Vec<String>,
    #[serde(default)]
    caps: Vec<String>,
    #[serde(default)]
    min_kernel: Option<String>,
}

impl Policy {
    /// Reads an OCI or Docker seccomp profile.
    ///
    /// # Errors
    /// [`Error`] names the file, and what of it this launcher cannot do.
    pub fn from_oci(path: &Path, conditions: &Conditions) -> Result<Policy, Error> {
        let read = |source| Error::Read { path: path.into(), source };
        let mut text = String::new();
        File::open(path).map_err(read)?.take(LIMIT + 1).read_to_string(&mut text).map_err(read)?;
        if text.len() as u64 > LIMIT {
            return Err(Error::Large { path: path.into(), limit: LIMIT });
        }
        let profile: Profile =
            serde_json::from_str(&text).map_err(|source| Error::Json { path: path.into(), source })?;
        profile
            .into_policy(path.display().to_string(), conditions)
            .map_err(|what| Error::Unsupported { path: path.into(), what })
    }
}

impl Profile {
    fn into_policy(self, name: String, conditions: &Conditions) -> Result<Policy, String> {
        if !self.listener_path.is_empty() || !self.listener_metadata.is_empty() {
            return Err("listenerPath is not supported: nobody would answer the notifications".into());
        }
        let mut policy = Policy {
            name,
            default: action(&self.default_action, self.default_errno_ret)?,
            rules: Vec::new(),
            notices: Vec::new(),
            log: false,
        };
        for flag in &self.flags {
            match flag.as_str() {
                "SECCOMP_FILTER_FLAG_LOG" => policy.log = true,
                // One thread loads the filter before it has others, and nobody waits for notifications.
                "SECCOMP_FILTER_FLAG_TSYNC" | "SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV" => {}
                _ => return Err(format!("flag {flag} is not supported; remove it")),
            }
        }
        for calls in self.syscalls {
            calls.add_to(&mut policy, conditions)?;
        }
        if !policy.default.permits() {
            let unknown = unknown_calls(&policy.rules);
            if !unknown.is_empty() {
                policy.notices.push(format!(
                    "{}: system calls unknown here stay denied: {}",
                    policy.name,
                    unknown.join(", ")
                ));
            }
        }
        Ok(policy)
    }
}

impl Calls {
    fn add_to(self, policy: &mut Policy, conditions: &Conditions) -> Result<(), String> {
        if let Some(includes) = &self.includes
            && !includes.matches_all(conditions)?
        {
            return Ok(());
        }
        if let Some(excludes) = &self.excludes
            && excludes.matches_any(conditions)?
        {
            return Ok(());
        }
        let action = action(&self.action, self.errno_ret)?;
        let syscalls: Vec<String> = self.names.into_iter().chain(self.name).collect();
        if syscalls.is_empty() {
            return Err("an entry of `syscalls` names no system call".into());
        }
        let args = self.args.unwrap_or_default().into_iter().map(Condition::into_arg);
        let args: Vec<Arg> = args.collect::<Result<_, _>>()?;
        // As runtimes do: conditions on one argument are alternatives, conditions on different ones must all hold.
        let repeated = args.iter().enumerate().any(|(i, arg)| args[..i].iter().any(|a| a.index == arg.index));
        let sets: Vec<Vec<Arg>> =
            if repeated { args.into_iter().map(|arg| vec![arg]).collect() } else { vec![args] };
        for args in sets {
            let (why, syscalls) = (self.comment.clone(), syscalls.clone());
            policy.rules.push(Rule { why, when: None, syscalls, args, action });
        }
        Ok(())
    }
}

impl Condition {
    fn into_arg(self) -> Result<Arg, String> {
        if self.index > 5 {
            return Err(format!("a system call has no argument {}; indexes are 0 to 5", self.index));
        }
        let op =
            ScmpCompareOp::from_str(&self.op).map_err(|_| format!("unknown comparison {:?}", self.op))?;
        let test = match op {
            ScmpCompareOp::MaskedEqual(_) => {
                Test::Oci(ScmpCompareOp::MaskedEqual(self.value), self.value_two)
            }
            op => Test::Oci(op, self.value),
        };
        Ok(Arg { index: self.index, test })
    }
}

impl Filter {
    fn matches_all(&self, conditions: &Conditions) -> Result<bool, String> {
        let arch = self.arches.is_empty() || self.arches.iter().any(|arch| is_this_arch(arch));
        let mut caps = true;
        for name in &self.caps {
            caps &= conditions.holds(name)?;
        }
        let version = match &self.min_kernel {
            Some(version) => conditions.kernel >= parse_kernel(version)?,
            None => true,
        };
        Ok(arch && caps && version)
    }

    fn matches_any(&self, conditions: &Conditions) -> Result<bool, String> {
        let mut any = self.arches.iter().any(|arch| is_this_arch(arch));
        for name in &self.caps {
            any |= conditions.holds(name)?;
        }
        if let Some(version) = &self.min_kernel {
            any |= conditions.kernel >= parse_kernel(version)?;
        }
        Ok(any)
    }
}

fn is_this_arch(arch: &str) -> bool {
    matches!(arch, "amd64" | "x86_64" | "SCMP_ARCH_X86_64")
}

impl Conditions {
    fn holds(&self, name: &str) -> Result<bool, String> {
        let capability = Capability::from_str(name).map_err(|_| format!("unknown capability {name:?}"))?;
        Ok(self.capabilities.contains(&capability))
    }
}

fn parse_kernel(version: &str) -> Result<(u32, u32), String> {
    let parsed =
        version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    parsed.ok_or_else(|| format!("minKernel {version:?} is not MAJOR.MINOR"))
}

fn action(name: &str, errno: Option<i32>) -> Result<Action, String> {
    let errno = errno.unwrap_or(Errno::EPERM as i32);
    if !(0..=4095).contains(&errno) {
        return Err(format!("{errno} is not an error number (0 to 4095)"));
    }
    match name {
        "SCMP_ACT_ALLOW" => Ok(Action::Allow),
        "SCMP_ACT_LOG" => Ok(Action::Log),
        "SCMP_ACT_ERRNO" => Ok(Action::Errno(errno)),
        "SCMP_ACT_TRAP" => Ok(Action::Trap),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => Ok(Action::KillThread),
        "SCMP_ACT_KILL_PROCESS" => Ok(Action::KillProcess),
        "SCMP_ACT_NOTIFY" | "SCMP_ACT_TRACE" => {
            Err(format!("{name} is not supported: nobody would answer; use SCMP_ACT_ERRNO"))
        }
        _ => Err(format!("unknown action {name:?}")),
    }
}
