//! Profiles: TOML to a validated [`Profile`], and from there to what each enforcer needs.
//!
//! | file | step |
//! |---|---|
//! | `dirs`, `source` | a name or path to a file's bytes and who could have written them |
//! | `tables`, `sections` | every table of a profile, and of an agent in it: its keys, documented, read and inherited |
//! | `kit` | `[kit]`: what `ringfence run` adds for an agent |
//! | `built_in` | the profiles of known agents, which are in the binary |
//! | `kernel` | all of `[kernel]`: its keys, the options that they come to, those that the programs look up |
//! | `keys`, `parse` | the keys of one file, and their values; every mistake with its line |
//! | `extend` | the chain of `extends` to one [`Profile`] |
//! | `schema` | the JSON Schema |
//! | `commands`, `socket_options`, `capabilities` | keys of `[kernel]`: ioctls, socket options, capabilities |
//! | `rule`, `problem`, `remarks` | rules as written; what is wrong with a profile; what is odd about it |
//! | `resolve`, `workdir`, `home`, `base`, `protect` | `${WORKDIR}`, `${HOME}`, built-in rules, protected places |
//! | `compile`, `compiled` | rules to [`compiled::CompiledPolicy`], inside a container's root |
//! | `nets` | net rules to prefixes |
//! | `credentials` | `[net.credentials]`: credentials that are put into requests on the host |
//! | `names`, `sets` | host names, and the addresses that stand for them in a container; sets of hosts |
//! | `fixed`, `lead`, `mounts` | where paths lead, for a container's life; where its profile's own files are |
//! | `casing` | names on file systems that fold case |
//! | `decide`, `show` | how a policy decides about a path or address, as the kernel does; a compiled profile as text |
//! | `nest` | a policy inside another: what both allow |
//! | `agents/` | agents: the registry and a profile's sections to one configuration |

// A path may be somebody else's by the time it is used: files by descriptor (`ringfence-files`). Tests set their scenes.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// Where nobody reads standard output any more (`| head`), `println!` panics.
#![cfg_attr(not(test), deny(clippy::print_stdout))]

pub mod agents;
mod base;
pub mod built_in;
mod capabilities;
pub mod casing;
mod commands;
mod compile;
pub mod compiled;
mod credentials;
pub mod decide;
mod dirs;
mod extend;
pub mod fixed;
pub mod home;
mod kernel;
mod keys;
pub mod kit;
mod lead;
pub mod mounts;
mod names;
mod nest;
mod nets;
mod parse;
pub mod problem;
mod protect;
pub mod remarks;
mod resolve;
mod rule;
pub mod schema;
pub mod sections;
mod sets;
pub mod show;
mod socket_options;
mod source;
mod tables;
#[cfg(test)]
mod tests;
mod workdir;

pub use capabilities::Capabilities;
pub use compile::{Compilation, CompileContext};
pub use credentials::{CredentialError, ToolCredential, Variable};
pub use dirs::{Dirs, is_in_reach, is_name, is_own};
pub use kernel::{AuditLevel, Base, KernelOptions, LandlockUse, Seccomp};
pub use nest::meet as meet_policies;
pub use problem::{CompileErrors, LoadErrors, Problem};
pub use protect::source_places;
pub use rule::{AxisRules, Denials, Rule, Rules, WORKDIR};
pub use sets::DIR as SETS_DIR;
pub use source::Provenance;

use ringfence_grant::{CountBound, Grant, Scope};
use ringfence_wire::egress::NameOptions;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{
    fmt, io,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

/// Stands for the file of a rule that comes with a run.
pub const OF_RUN: &str = "(run)";

/// Loads a profile: by name from `dirs`, or from a path (a text with a slash).
///
/// # Errors
/// Everything that is wrong with the file and those it extends, all at once.
pub fn load(name_or_path: &str, dirs: &Dirs) -> Result<Profile, LoadErrors> {
    extend::load(&dirs.find(name_or_path)?, &dirs.system)
}

/// The profile that a grant alone is, for the kernel: host names left out, which denies them.
///
/// # Errors
/// An entry that no profile can have, such as an intersection.
pub fn of_grant(grant: &Grant) -> Result<Profile, LoadErrors> {
    extend::of_grant(grant)
}

/// Reads a registry: its `[llm.*]` and `[mcp.*]`.
///
/// # Errors
/// Everything that is wrong with it.
pub fn registry(
    file: &Path,
) -> Result<(Vec<sections::LlmSection>, Vec<sections::McpSection>, Provenance), LoadErrors> {
    let (text, provenance) = source::read(file)?;
    let text = zeroize::Zeroizing::new(text);
    let parsed = keys::parse(file, &text, |keys| {
        let llm = keys.sections("llm", sections::LlmSection::read);
        (llm, keys.sections("mcp", sections::McpSection::read))
    });
    if !parsed.problems.is_empty() {
        return Err(LoadErrors(parsed.problems));
    }
    let (llm, mcp) = parsed.table;
    Ok((llm.unwrap_or_default(), mcp.unwrap_or_default(), provenance))
}

/// An absolute path in a root with its links resolved: the form in which the kernel sees it.
///
/// # Errors
/// The root cannot be looked at.
pub fn resolved(root: &Path, path: &Path) -> io::Result<Vec<u8>> {
    Ok(resolve::Resolver::new(root)?.resolve(path.as_os_str().as_bytes()).path)
}

/// What PATH finds for a bare name in a root, links resolved.
///
/// # Errors
/// The root cannot be looked at.
pub fn program(root: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    Ok(resolve::Resolver::new(root)?.program(name).map(|found| found.path))
}

/// A profile: valid, with everything it `extends` taken in. Paths in it are not resolved yet.
#[derive(Debug, Clone)]
pub struct Profile {
    /// The file's stem.
    pub name: String,
    /// The file.
    pub file: PathBuf,
    /// What it is for.
    pub description: Option<String>,
    /// Whether it is enforced.
    pub mode: Mode,
    /// The containers it is meant for. Not used yet.
    pub matches: Match,
    /// What is granted, rule by rule as written.
    pub rules: Rules,
    /// What is denied at any depth, rule by rule as written.
    pub denials: Denials,
    /// How often tools may be called. Not the kernel's.
    pub max_calls: CountBound,
    /// Which generations of a session it holds for. Not the kernel's.
    pub valid_for_generation: Scope<u64>,
    /// How the kernel is to enforce it.
    pub kernel: KernelOptions,
    /// `[net]`: how what is granted by name is reached.
    pub net_options: NameOptions,
    /// `[net.credentials]`: what is put into requests on the host.
    pub credentials: Vec<ToolCredential>,
    /// What `~` is in their files: the home of who starts the container.
    pub token_home: Option<PathBuf>,
    /// `kernel.ioctl`: what is allowed beside the commands that every container may use, as written.
    pub ioctl: Vec<Rule>,
    /// `kernel.socket_options`: the same for setsockopt(2).
    pub socket_options: Vec<Rule>,
    /// The file, then those it extends.
    pub sources: Vec<Provenance>,
    /// The agent's model: `[llm.*]`, as this file or the one it extends has it.
    pub llm: Vec<sections::LlmSection>,
    /// The agent's MCP servers: `[mcp.*]`.
    pub mcp: Vec<sections::McpSection>,
    /// `[limits]`.
    pub limits: sections::LimitsSection,
    /// Who may read the agent's log beside its owner.
    pub log_reader: Option<sections::Located<u64>>,
    /// Who may use the agent's socket beside its owner.
    pub socket_owner: Option<sections::Located<u64>>,
    /// Whether the provider's own API is served.
    pub http: Option<bool>,
    /// On this port of loopback, too.
    pub http_port: Option<sections::Located<u64>>,
    /// What `ringfence run` adds for the agent that it is for.
    pub kit: Option<kit::Kit>,
    /// Whether there is a `[grant]`.
    pub has_grant: bool,
    /// What its author should know but need not change.
    pub notices: Vec<String>,
    /// What the kernel's compiler refuses although tools could hold it.
    pub refused: Vec<Problem>,
}

impl Profile {
    /// Whether it denies anything beside what it does not grant.
    pub fn has_denials(&self) -> bool {
        let Denials { fs_read, fs_write, exec, net } = &self.denials;
        [fs_read, fs_write, exec, net].into_iter().any(|rules| !rules.is_empty())
    }

    /// Grants an address beside what the profile grants: that of the endpoint of one run.
    pub fn grant_endpoint(&mut self, address: SocketAddr) {
        if let AxisRules::Only(rules) = &mut self.rules.net {
            rules.push(Rule {
                text: address.to_string(),
                file: Path::new(OF_RUN).into(),
                line: 1,
                key: "grant.net",
                home: None,
            });
        }
    }

    /// Grants what ties a run's tool calls to their processes: an abstract unix socket of this name, and the program that speaks there,
    /// if it is where a rule can name it.
    pub fn grant_tie(&mut self, socket: &str, program: Option<&Path>) {
        let of_run =
            |key, text: String| Rule { text, file: Path::new(OF_RUN).into(), line: 1, key, home: None };
        if let AxisRules::Only(rules) = &mut self.rules.net {
            rules.push(of_run("grant.net", format!("unix:@{socket}")));
        }
        let Some(program) = program.and_then(Path::to_str).filter(|path| is_nameable(path)) else { return };
        for (rules, key) in [(&mut self.rules.fs_read, "grant.fs_read"), (&mut self.rules.exec, "grant.exec")]
        {
            if let AxisRules::Only(rules) = rules {
                rules.push(of_run(key, program.to_owned()));
            }
        }
    }

    /// The profile with a home that `${HOME}` stands for.
    pub fn at_home(mut self, home: Option<&Path>) -> Self {
        let home: Option<Arc<Path>> = home.map(Arc::from);
        let (rules, deny) = (&mut self.rules, &mut self.denials);
        let allows = [&mut rules.fs_read, &mut rules.fs_write, &mut rules.exec, &mut rules.net];
        let allows = allows.into_iter().flat_map(AxisRules::each_mut);
        let denies = [&mut deny.fs_read, &mut deny.fs_write, &mut deny.exec, &mut deny.net];
        for rule in allows.chain(denies.into_iter().flatten()) {
            rule.home.clone_from(&home);
        }
        self
    }

    /// The grant as the lattice has it, with `${WORKDIR}` replaced. Denies are not part of it, nor is `base`.
    /// An entry that cannot be read (a `${WORKDIR}` without a working directory) grants nothing.
    pub fn grant(&self, workdir: Option<&Path>) -> Grant {
        Grant {
            fs_read: self.rules.fs_read.scope(|r| r.path(workdir).ok()),
            fs_write: self.rules.fs_write.scope(|r| r.path(workdir).ok()),
            exec: self.rules.exec.scope(|r| r.exec(workdir).ok()),
            net: self.rules.net.scope(|r| r.net(workdir).ok()),
            max_calls: self.max_calls,
            valid_for_generation: self.valid_for_generation.clone(),
        }
    }
}

/// Whether a rule of this text is the very path, and nothing that a rule says otherwise.
fn is_nameable(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    path.starts_with('/')
        && path.bytes().all(is_plain)
        && !Path::new(path).components().any(|part| part == Component::ParentDir)
}

/// Whether a profile is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// What is not granted is denied.
    #[default]
    Enforce,
    /// What is not granted is recorded as `would_deny` and allowed.
    Audit,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Enforce => "enforce",
            Self::Audit => "audit",
        })
    }
}

/// `[match]`: for container runtimes. Read and checked, not used yet.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Match {
    /// Image names.
    pub image: Vec<String>,
    /// Labels, `key=value`.
    pub label: Vec<String>,
    /// Container names.
    pub name: Vec<String>,
}

/// An axis that an enforcer holds or does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Reading files.
    FsRead,
    /// Writing and changing files.
    FsWrite,
    /// Executing files.
    Exec,
    /// The network and unix sockets.
    Net,
}

impl Axis {
    /// All of them, in the order they are shown.
    pub const ALL: [Self; 4] = [Self::FsRead, Self::FsWrite, Self::Exec, Self::Net];

    /// The name in profiles and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::FsRead => "fs_read",
            Self::FsWrite => "fs_write",
            Self::Exec => "exec",
            Self::Net => "net",
        }
    }
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What may stay open on a host where the eBPF programs do not enforce, once that is accepted: an axis, in part or
/// altogether, and three gaps that are accepted by their own names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// Reading files.
    FsRead,
    /// Writing and changing files.
    FsWrite,
    /// Executing files.
    Exec,
    /// The network.
    Net,
    /// What leads past the run's proxy, by which hosts are reached that are granted by name: without this, none of them is.
    Names,
    /// Every unix socket that file modes allow, where sockets cannot be told apart: a process that listens there acts outside.
    Unix,
    /// The home directory, or one above it, as the working directory.
    Home,
}

impl Partial {
    /// All of them, in the order they are shown.
    pub const ALL: [Self; 7] =
        [Self::FsRead, Self::FsWrite, Self::Exec, Self::Net, Self::Names, Self::Unix, Self::Home];

    /// The name in profiles and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::FsRead => Axis::FsRead.name(),
            Self::FsWrite => Axis::FsWrite.name(),
            Self::Exec => Axis::Exec.name(),
            Self::Net => Axis::Net.name(),
            Self::Names => "names",
            Self::Unix => "unix",
            Self::Home => "home",
        }
    }

    /// The axis that it is part of; `None`: of those of files, all.
    pub fn axis(self) -> Option<Axis> {
        match self {
            Self::FsRead => Some(Axis::FsRead),
            Self::FsWrite => Some(Axis::FsWrite),
            Self::Exec => Some(Axis::Exec),
            Self::Net | Self::Names | Self::Unix => Some(Axis::Net),
            Self::Home => None,
        }
    }
}

impl fmt::Display for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names nothing that can be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be accepted: one of fs_read, fs_write, exec, net, unix, home")]
pub struct NotPartial(String);

impl FromStr for Partial {
    type Err = NotPartial;

    fn from_str(text: &str) -> Result<Self, NotPartial> {
        Self::ALL.into_iter().find(|part| part.name() == text).ok_or_else(|| NotPartial(text.to_owned()))
    }
}
