//! `ringfence profile`: checks, shows and explains profiles, without a daemon and without changing anything.

use super::{exit::Exit, output::print};
use crate::{
    kernel::host,
    launch::plan::{self, Enforcers},
    profile::{
        self, Compilation, CompileContext, Dirs, LandlockUse, LoadErrors, Problem, Profile, Seccomp,
        compiled::CompiledPolicy,
        decide::{Decider, Decision, Why},
        problem::ProblemJson,
        show,
    },
};
use anyhow::{Context, bail};
use ringfence_common::policy::axis::{EXEC, READ, UNIX, WRITE};
use ringfence_grant::{NamePattern, NetEntry};
use serde_json::json;
use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Stands for the working directory where none is given and none is needed.
const ANY_WORKDIR: &str = "/workdir";

/// Checks, shows and explains profiles.
///
/// A profile is a path, or a name that is looked up in /etc/ringfence/profiles and then in ~/.config/ringfence/agents. No daemon
/// is needed, and nothing is changed.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence profile check
  ringfence profile show coder
  ringfence profile explain coder exec git")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Reads and compiles profiles, and reports all errors.
    #[command(
        after_help = "Exit status:\n  0  all profiles can be used\n  1  one or more cannot\n\nExample:\n  ringfence profile check ./coder.toml"
    )]
    Check {
        /// Names or paths [default: every installed profile].
        profiles: Vec<String>,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Prints what a profile grants.
    ///
    /// The output includes what the profile extends, the base rules and the protected places, with symbolic links resolved.
    #[command(after_help = "Example:\n  ringfence profile show ./coder.toml --workdir /srv/project")]
    Show {
        /// Name or path.
        profile: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Tells which rule decides one access, and why.
    #[command(
        after_help = "Examples:\n  ringfence profile explain coder read ~/.ssh/id_rsa\n  ringfence profile explain coder exec git\n  \
                      ringfence profile explain coder net 10.0.0.1:443\n  ringfence profile explain coder net unix:/run/docker.sock"
    )]
    Explain {
        /// Name or path.
        profile: String,
        /// The kind of access.
        #[arg(value_enum)]
        access: Access,
        /// A path; for exec also a bare name; for net ip:port, [v6]:port, unix:/path or unix:@name.
        target: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Prints the JSON Schema of a profile.
    #[command(after_help = "Example:\n  ringfence profile schema > profile.schema.json")]
    Schema,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Access {
    Exec,
    Read,
    Write,
    Net,
}

#[derive(Debug, clap::Args)]
struct PlaceArgs {
    /// What `${WORKDIR}` stands for [default: the current directory].
    #[arg(long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// The container's root directory.
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// One JSON object per profile and line.
    #[arg(long)]
    json: bool,
}

impl PlaceArgs {
    fn context(&self, workdir: Option<PathBuf>) -> CompileContext<'_> {
        CompileContext::new(&self.root, workdir)
    }

    /// What was given, or the current directory.
    fn here(&self) -> Option<PathBuf> {
        match &self.workdir {
            Some(dir) => std::path::absolute(dir).ok(),
            None => env::current_dir().ok(),
        }
    }
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dirs = Dirs::from_env();
    match &args.command {
        Command::Check { profiles, place } => check(profiles, place, &dirs),
        Command::Show { profile, place } => {
            let profile = profile::load(profile, &dirs)?;
            let Compilation { policy, notes, .. } = profile.compile_whole(&place.context(place.here()))?;
            let notices: Vec<String> = profile.notices.iter().cloned().chain(notes).collect();
            let text = if place.json {
                format!("{}\n", show::json(&profile, &policy, place.here().as_deref(), &notices)?)
            } else {
                show::text(&profile, &policy, &notices)
            };
            print(&text)
        }
        Command::Explain { profile, access, target, place } => {
            let profile = profile::load(profile, &dirs)?;
            let policy = profile.compile(&place.context(place.here()))?;
            let mut answer = explain(&policy, *access, target, place)?;
            answer.on_this_host = not_held(&profile, &policy, answer.axis(), place.here().as_deref());
            print(&if place.json { answer.json(&profile, &policy) } else { answer.text(&profile, &policy) })
        }
        Command::Schema => {
            let schema = serde_json::to_string_pretty(&profile::schema::schema())?;
            print(&format!("{schema}\n"))
        }
    }
}

fn check(names: &[String], place: &PlaceArgs, dirs: &Dirs) -> anyhow::Result<ExitCode> {
    let names = if names.is_empty() { dirs.names() } else { names.to_vec() };
    if names.is_empty() {
        bail!("no profile is installed in {}: name a file to check", dirs.system.display());
    }
    let workdir = place.workdir.as_ref().and_then(|dir| std::path::absolute(dir).ok());
    let workdir = workdir.unwrap_or_else(|| PathBuf::from(ANY_WORKDIR));
    let mut failed = false;
    let mut out = String::new();
    for name in &names {
        let loaded = profile::load(name, dirs);
        let checked = loaded.and_then(|profile| {
            let mut done = profile.compile_whole(&place.context(Some(workdir.clone())))?;
            let given = place.workdir.as_ref().map(|_| workdir.as_path());
            done.notes.extend(profile::remarks::remarks(&profile, &done.policy, &place.root, given));
            Ok((profile, done.notes))
        });
        match checked {
            Ok((profile, notes)) => {
                let notices: Vec<&String> = profile.notices.iter().chain(&notes).collect();
                if place.json {
                    let line = json!({ "profile": name, "file": profile.file, "ok": true, "errors": [], "notices": notices });
                    out += &format!("{line}\n");
                } else {
                    out += &format!("{}: ok ({})\n", profile.name, profile.file.display());
                    notices.iter().for_each(|n| out += &format!("    note: {n}\n"));
                }
            }
            Err(LoadErrors(problems)) => {
                failed = true;
                if place.json {
                    let errors: Vec<ProblemJson> = problems.iter().map(ProblemJson::from).collect();
                    let file = problems.first().map(|p: &Problem| p.at.file.clone());
                    let line = json!({ "profile": name, "file": file, "ok": false, "errors": errors, "notices": [] });
                    out += &format!("{line}\n");
                } else {
                    let count = problems.len();
                    eprintln!(
                        "{}\n{name}: {count} error{}",
                        LoadErrors(problems),
                        if count == 1 { "" } else { "s" }
                    );
                }
            }
        }
    }
    print(&out)?;
    Ok(if failed { Exit::Failure } else { Exit::Success }.into())
}

/// What was asked, and what the policy says.
struct Answer {
    access: Access,
    target: String,
    /// The target as the kernel sees it.
    seen: String,
    decision: Decision,
    /// What this host leaves open of the axis, if eBPF does not hold it here.
    on_this_host: Option<String>,
}

/// What stays open of an axis where the kernel runs no eBPF programs for us.
fn not_held(
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
    };
    let home = env::var_os("HOME").map(PathBuf::from);
    let homes: Vec<&Path> = home.as_deref().into_iter().chain(workdir).collect();
    let plan = plan::without_ebpf(policy, &homes, enforcers);
    let held = plan.parts.iter().find(|held| held.part.name() == axis && !held.gaps.is_empty())?;
    Some(format!(
        "this host's kernel has no `bpf` in its LSM list, so it would not hold this in full: {held}"
    ))
}

fn explain(
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
        on_this_host: None,
    };
    let path = |axis, path: &str| -> anyhow::Result<Answer> {
        let seen = profile::resolved(&place.root, &absolute(path)?)
            .with_context(|| format!("{} cannot be looked at", place.root.display()))?;
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
                Ok(NetEntry::Host { .. }) => {
                    bail!(
                        "{target:?} is a host name, and the kernel knows addresses only: ask for one of its addresses"
                    )
                }
                Ok(_) => bail!("{target:?}: one address and one port are needed: 10.0.0.1:443, [::1]:443"),
                Err(error) => bail!("{target:?}: {error}"),
            },
        },
    }
}

fn absolute(path: &str) -> anyhow::Result<PathBuf> {
    std::path::absolute(Path::new(path)).with_context(|| format!("{path:?} is no path"))
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

    fn axis(&self) -> &'static str {
        match self.access {
            Access::Exec => "exec",
            Access::Read => "fs_read",
            Access::Write => "fs_write",
            Access::Net => "net",
        }
    }

    /// Whether the target is denied because the profile is made of it.
    fn is_source(&self, policy: &CompiledPolicy) -> bool {
        self.decision.why == Why::Denied && self.rule(policy).starts_with("source:")
    }

    fn why(&self, policy: &CompiledPolicy) -> &'static str {
        match self.decision.why {
            Why::Denied if self.is_source(policy) => {
                "the profile is made of this file: a container never writes what its own policy comes from"
            }
            Why::Denied => "a deny rule applies, and a deny at any depth beats every allow",
            Why::Allowed => "this is the longest rule that allows it, and no deny applies",
            Why::All => "the axis is \"all\", and no rule is against it",
            Why::Protected => {
                "the place is protected: a rule above it does not reach in, one that names it does"
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
                Some("to let the container write there, keep the profile elsewhere".to_owned())
            }
            Why::Denied => Some(match self.pattern(policy) {
                Some(component) => format!(
                    "to allow it, add \"**/{component}\" to grant.{}: a name that is granted whole is out of a pattern's reach",
                    self.axis()
                ),
                None => "to allow it, remove or narrow that rule".to_owned(),
            }),
            Why::Allowed | Why::All => None,
        }
    }

    /// The component that the rule means, if it is a pattern.
    fn pattern(&self, policy: &CompiledPolicy) -> Option<&str> {
        let rule = self.decision.rule.and_then(|id| policy.rules.get(id as usize))?;
        let pattern: NamePattern = rule.text.parse().ok()?;
        self.seen.rsplit('/').find(|component| pattern.matches(component))
    }

    fn text(&self, profile: &Profile, policy: &CompiledPolicy) -> String {
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
        if let Some(open) = &self.on_this_host {
            text += &format!("  host:    {open}\n");
        }
        if policy.audit_mode {
            text += "  note:    mode = \"audit\": it is recorded, not denied\n";
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

    fn json(&self, profile: &Profile, policy: &CompiledPolicy) -> String {
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
            "host": self.on_this_host,
        });
        format!("{line}\n")
    }
}
