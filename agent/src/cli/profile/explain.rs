//! `ringfence profile explain`: which rule decides one access, and what would change that.

use super::{Access, PlaceArgs};
use anyhow::{Context, bail};
use ringfence_common::policy::axis::{EXEC, READ, UNIX, WRITE};
use ringfence_grant::{HostPattern, NamePattern, NetEntry};
use ringfence_launch::plan::{self, Enforcers};
use ringfence_policy::{
    self as profile, LandlockUse, Partial, Profile, Seccomp,
    compiled::CompiledPolicy,
    decide::{Decider, Decision, Why},
    show,
};
use ringfence_sandbox::host;
use serde_json::json;
use std::{
    env,
    path::{Path, PathBuf},
};

/// The access that was asked about, and the policy's decision.
pub(super) struct Answer {
    access: Access,
    target: String,
    /// The target as the kernel sees it.
    seen: String,
    decision: Decision,
    /// What a client of a host that is granted by name has to say.
    said: Option<&'static str>,
    /// What this host leaves open of the axis, if eBPF is not available here.
    pub(super) on_this_host: Option<String>,
}

/// What is said to a host that is granted by name.
const SAID: &str =
    "the client has to name the host, by TLS or HTTP/1.1; without `tcp:` nothing else is let through";
const SAID_FREELY: &str = "`tcp:`: what the client says is not looked at";
/// What is said where a person is asked.
const SAID_ASKED: &str = "`ask = true`: a connection that names the host by TLS or HTTP/1.1 waits for a person, who may let it go on";

/// What this host leaves open of an axis if its kernel cannot run the eBPF programs.
pub(super) fn not_held(
    profile: &Profile,
    policy: &CompiledPolicy,
    axis: &str,
    workdir: Option<&Path>,
) -> Option<String> {
    if host::lsm_list().has("bpf") != Some(false) {
        return None;
    }
    let enforcers = Enforcers {
        landlock_abi: if profile.kernel.landlock == LandlockUse::Off { 0 } else { host::landlock_abi() },
        seccomp: profile.kernel.seccomp != Seccomp::Off && host::seccomp(),
        open_unix: false,
        // Whichever port a run's would have.
        proxy: Some(0),
    };
    let home = env::var_os("HOME").map(PathBuf::from);
    let homes: Vec<&Path> = home.as_deref().into_iter().chain(workdir).collect();
    let plan = plan::without_ebpf(policy, &homes, enforcers);
    let is_of = |part: Partial| part.name() == axis || part == Partial::Names && axis == Partial::Net.name();
    let held = plan.parts.iter().find(|held| is_of(held.part) && !held.gaps.is_empty())?;
    Some(format!(
        "this host's kernel has no `bpf` in its LSM list, so it would enforce this in part only: {held}"
    ))
}

pub(super) fn explain(
    policy: &CompiledPolicy,
    access: Access,
    target: &str,
    place: &PlaceArgs,
) -> anyhow::Result<Answer> {
    let decider = Decider::new(policy);
    let answer = |seen: String, decision| Answer {
        access,
        target: target.to_owned(),
        seen,
        decision,
        said: None,
        on_this_host: None,
    };
    let path = |axis, path: &str| -> anyhow::Result<Answer> {
        let seen = profile::resolved(&place.root, &absolute(path)?)
            .with_context(|| format!("cannot open the root {}", place.root.display()))?;
        let decision = decider.path(axis, &seen);
        Ok(answer(String::from_utf8_lossy(&seen).into_owned(), decision))
    };
    match access {
        Access::Read => path(READ, target),
        Access::Write => path(WRITE, target),
        Access::Exec if target.contains('/') => path(EXEC, target),
        Access::Exec => {
            if let Some(found) = profile::program(&place.root, target)? {
                return Ok(answer(String::from_utf8_lossy(&found).into_owned(), decider.path(EXEC, &found)));
            }
            // Not installed: where it would be.
            path(EXEC, &format!("/usr/bin/{target}"))
        }
        Access::Net => match target.strip_prefix("unix:") {
            Some(name) if name.starts_with('@') => {
                let decision = decider.abstract_socket(UNIX, &name.as_bytes()[1..]);
                Ok(answer(target.to_owned(), decision))
            }
            Some(socket) => path(UNIX, socket).map(|a| Answer { seen: format!("unix:{}", a.seen), ..a }),
            None => match target.parse() {
                Ok(NetEntry::Inet { net, port: Some(port) }) if net.prefix_len() == net.max_prefix_len() => {
                    let decision = decider.address(net.addr(), port);
                    Ok(answer(std::net::SocketAddr::new(net.addr(), port).to_string(), decision))
                }
                Ok(NetEntry::Host { host: HostPattern::Exact(host), port: Some(port), tcp }) => {
                    let decision = decider.host(&host, port, tcp);
                    let seen = format!("{}{host}:{port}", if tcp { "tcp:" } else { "" });
                    let by = policy.names.granted(&host, port).filter(|_| decision.why == Why::Allowed);
                    let asked = decision.why == Why::Default && !tcp && policy.names.asks(&host);
                    let said = by.map(|rule| if rule.tcp { SAID_FREELY } else { SAID });
                    Ok(Answer { said: said.or(asked.then_some(SAID_ASKED)), ..answer(seen, decision) })
                }
                Ok(_) => bail!(
                    "{target:?}: write one address or host and one port: 10.0.0.1:443, [::1]:443, example.org:443"
                ),
                Err(error) => bail!("{target:?}: {error}"),
            },
        },
    }
}

fn absolute(path: &str) -> anyhow::Result<PathBuf> {
    std::path::absolute(Path::new(path)).with_context(|| format!("{path:?} is not a path"))
}

impl Answer {
    fn verdict(&self, policy: &CompiledPolicy) -> &'static str {
        match (self.decision.allowed(), policy.audit_mode) {
            (true, _) => "allowed",
            (false, false) => "denied",
            (false, true) => "would_deny",
        }
    }

    fn access(&self) -> &'static str {
        match self.access {
            Access::Exec => "exec",
            Access::Read => "read",
            Access::Write => "write",
            Access::Net => "net",
        }
    }

    pub(super) fn axis(&self) -> &'static str {
        match self.access {
            Access::Exec => "exec",
            Access::Read => "fs_read",
            Access::Write => "fs_write",
            Access::Net => "net",
        }
    }

    /// Whether the target is denied because it is one of the profile's own files.
    fn is_source(&self, policy: &CompiledPolicy) -> bool {
        self.decision.why == Why::Denied && self.rule(policy).starts_with("source:")
    }

    fn why(&self, policy: &CompiledPolicy) -> &'static str {
        match self.decision.why {
            Why::Denied if self.is_source(policy) => {
                "this is one of the profile's own files, and a container never writes the source of its policy"
            }
            Why::Denied => "a deny rule applies, and a deny at any depth beats every allow",
            Why::Allowed => "this is the longest rule that allows it, and no deny applies",
            Why::All => "the axis is \"all\", and no deny applies",
            Why::Protected => {
                "the place is protected: only a rule that names it or something below it applies, not one for a directory above"
            }
            Why::Default => "no rule allows it",
        }
    }

    /// What to change for the other answer.
    fn change(&self, policy: &CompiledPolicy) -> Option<String> {
        match self.decision.why {
            Why::Default | Why::Protected => {
                Some(format!("to allow it, add {:?} to grant.{}", self.seen, self.axis()))
            }
            Why::Denied if self.is_source(policy) => {
                Some("to let the container write there, move the profile elsewhere".to_owned())
            }
            Why::Denied => Some(match self.pattern(policy) {
                Some(component) => format!(
                    "to allow it, add \"**/{component}\" to grant.{}: a pattern does not deny a name that is granted in full",
                    self.axis()
                ),
                None => "to allow it, remove or narrow that rule".to_owned(),
            }),
            Why::Allowed | Why::All => None,
        }
    }

    /// The component that the rule matches, if the rule is a pattern.
    fn pattern(&self, policy: &CompiledPolicy) -> Option<&str> {
        let rule = self.decision.rule.and_then(|id| policy.rules.get(id as usize))?;
        let pattern: NamePattern = rule.text.parse().ok()?;
        self.seen.rsplit('/').find(|component| pattern.matches(component))
    }

    pub(super) fn text(&self, profile: &Profile, policy: &CompiledPolicy) -> String {
        let mut text =
            format!("{}: {} {}\n", self.verdict(policy), self.access(), show::printable(&self.target));
        if self.seen != self.target {
            text += &format!("  seen as: {}\n", show::printable(&self.seen));
        }
        if let Some(rule) = self.decision.rule.and_then(|id| policy.rules.get(id as usize)) {
            text += &format!("  rule:    {}\n", show::printable(&rule.id));
            match &rule.file {
                Some(file) => {
                    text += &format!("  where:   {}:{} ({})\n", file.display(), rule.line, rule.key)
                }
                None => text += "  where:   built in\n",
            }
        } else {
            text += &format!("  rule:    {}\n", self.rule(policy));
        }
        text += &format!("  why:     {}\n", self.why(policy));
        if let Some(change) = self.change(policy) {
            text += &format!("  change:  {change} ({})\n", profile.file.display());
        }
        if let Some(said) = self.said {
            text += &format!("  client:  {said}\n");
        }
        if let Some(open) = &self.on_this_host {
            text += &format!("  host:    {open}\n");
        }
        if policy.audit_mode {
            text += "  note:    mode = \"audit\": the kernel records it and does not deny it\n";
        }
        text
    }

    fn rule(&self, policy: &CompiledPolicy) -> String {
        match self.decision.rule.and_then(|id| policy.rules.get(id as usize)) {
            Some(rule) => rule.id.clone(),
            None if self.decision.why == Why::All => format!("{}:all", self.axis()),
            None => "default".to_owned(),
        }
    }

    pub(super) fn json(&self, profile: &Profile, policy: &CompiledPolicy) -> String {
        let rule = self.decision.rule.and_then(|id| policy.rules.get(id as usize));
        let line = json!({
            "profile": profile.name,
            "access": self.access(),
            "target": self.target,
            "seen": self.seen,
            "verdict": self.verdict(policy),
            "rule": self.rule(policy),
            "file": rule.and_then(|r| r.file.as_ref()),
            "line": rule.map(|r| r.line).filter(|l| *l > 0),
            "why": self.why(policy),
            "change": self.change(policy),
            "client": self.said,
            "host": self.on_this_host,
        });
        format!("{line}\n")
    }
}
