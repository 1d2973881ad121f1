//! What can be wrong with a profile: one [`Problem`] each, with file, line, key and a hint; never only the first.

use super::{agents::config::ProviderKind, credentials::CredentialError, socket_options::OptionError};
use ringfence_grant::{ExecError, HostError, NetError, PathError};
use ringfence_redact::misplaced::shown;
use serde::Serialize;
use std::{
    fmt, io,
    path::{Path, PathBuf},
};

/// Where a problem is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct At {
    /// The file.
    pub file: PathBuf,
    /// Line from 1; 0: the file as a whole.
    pub line: u32,
    /// Key path (`grant.fs_read`); empty: none.
    pub key: String,
}

impl At {
    /// A file as a whole.
    pub fn file(file: &Path) -> Self {
        Self { file: file.to_owned(), line: 0, key: String::new() }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub at: At,
    /// What.
    pub what: Wrong,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what it is about")]
pub enum Wrong {
    #[error("no profile named {name:?} in {}", dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(" or "))]
    NotFound { name: String, dirs: Vec<PathBuf>, known: Vec<String> },
    #[error(
        "{0:?} is not a profile's name: use letters, digits, `-`, `_` and `.`, and do not begin with `.`"
    )]
    Name(String),
    #[error("cannot be read: {reason}")]
    Unreadable { reason: String, kind: io::ErrorKind },
    #[error("is not a regular file")]
    NotAFile,
    #[error("can be written by everyone (mode {0:04o})")]
    WorldWritable(u32),
    #[error("is empty")]
    Empty,
    #[error("has {size} bytes; a profile may have at most {most}")]
    TooLarge { size: u64, most: u64 },
    #[error("is not UTF-8")]
    NotUtf8,
    #[error("{0}")]
    Syntax(String),
    #[error("unknown key")]
    UnknownKey { near: Option<String>, known: Vec<String> },
    #[error("expected {wanted}, found {found}")]
    Type { wanted: &'static str, found: &'static str },
    #[error("{value:?} is not one of {}", known.join(", "))]
    Value { value: String, known: Vec<&'static str> },
    #[error("{text:?} is not a capability")]
    Capability { text: String, near: Option<&'static str> },
    #[error("{text:?} is neither an ioctl command nor a device below /dev")]
    Ioctl { text: String, near: Option<&'static str> },
    #[error("{text:?} {error}")]
    SocketOption { text: String, error: OptionError },
    #[error("is missing: a grant has to name all six axes")]
    MissingAxis { example: &'static str },
    #[error("{text:?}: {error}")]
    Path { text: String, error: PathError },
    #[error("{text:?}: {error}")]
    Exec { text: String, error: ExecError },
    #[error("{text:?}: {error}")]
    Net { text: String, error: NetError },
    #[error("{text:?}: `${{WORKDIR}}` and `${{HOME}}` may only begin a path")]
    Workdir { text: String },
    #[error("{text:?} is a duplicate of line {line}")]
    Duplicate { text: String, line: u32 },
    #[error("{text:?} is a host name, but net = \"all\" grants every address, whatever it is called")]
    HostName { text: String },
    #[error("is one host name more than {0}, which is what a container has addresses for")]
    TooManyExactNames(usize),
    #[error("is one entry of host names more than {0}")]
    TooManyNames(usize),
    #[error("no set of hosts is named {name:?}")]
    NoSet { name: String, known: Vec<&'static str> },
    #[error("the set {0:?} cannot be read")]
    UnreadableSet(String),
    #[error("is no host name, and a set has nothing else")]
    NotAHost,
    #[error("{0:?} is not a size")]
    Size(String),
    #[error(transparent)]
    Credential(CredentialError),
    #[error("has {0} rules; a profile may have at most {1}")]
    TooManyRules(usize, usize),
    #[error("its rules expand to {0} paths; at most {1} are possible")]
    TooManyPlaces(usize, usize),
    #[error("its rules follow links through more than {0} bytes of paths")]
    TooMuchFollowed(usize),
    #[error("extends itself: {}", chain.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" -> "))]
    Loop { chain: Vec<PathBuf> },
    #[error("extends more than {0} files, one after the other")]
    TooLongAChain(usize),
    #[error("adds to a list that it does not inherit")]
    NothingToAddTo,
    #[error("the profile it extends cannot be loaded")]
    Parent,
    #[error("{0:?} uses `${{WORKDIR}}`, but there is no working directory")]
    NoWorkdir(String),
    #[error("the working directory {} cannot be used: {why}", dir.display())]
    BadWorkdir { dir: PathBuf, why: &'static str },
    #[error("must not be empty")]
    EmptyText,
    #[error("{number} is out of range: {least} to {most}")]
    Range { number: u64, least: u64, most: u64 },
    #[error("`{first}` is given, too, but a credential has one source")]
    TwoSources { first: String },
    #[error("is not an absolute path")]
    NotAbsolute,
    #[error("is not the name of an environment variable")]
    NotAVariable,
    #[error("is not a path below the home directory")]
    NotBelowHome,
    #[error("is not the name of a file")]
    NotAFileName,
    #[error("has files, but there is no directory for them")]
    NoState,
    #[error("has no `{0}`")]
    Lacks(&'static str),
    #[error("is not a JSON pointer")]
    NotAPointer,
    #[error("has a login with ChatGPT, and the provider is {0}")]
    NotChatGpt(&'static str),
    #[error("limits an answer's tokens, and ChatGPT takes no such limit")]
    NoLimitAtChatGpt,
    #[error("renews a login, which only a profile of root's, of your own agents or of the binary may")]
    RenewalElsewhere,
    #[error("would count each run by itself: a kit's runs have no day in common")]
    PerRun,
    #[error("cannot stand beside a [kit], whose model is served by `ringfence run`")]
    KitAndLlm,
    #[error("is no profile of an agent that `ringfence run` serves: it has no [kit]")]
    NoKit,
    #[error("is missing: a kit says which protocol its agent speaks")]
    NoProvider,
    #[error("cannot be set here: it has its own key, or the worker fills it in")]
    Reserved,
    #[error("no [llm.*] section: an agent has exactly one")]
    NoLlm,
    #[error("{} [llm.*] sections ({}): an agent has exactly one", .0.len(), .0.join(", "))]
    ManyLlm(Vec<String>),
    #[error("`{key}` is missing{}", registry.as_ref().map_or_else(String::new, |r| format!(", and {} does not have it for `{name}` either", r.display())))]
    MissingKey { key: &'static str, name: String, registry: Option<PathBuf>, near: Option<String> },
    #[error("{url} cannot be used: {why}")]
    Url { url: String, why: &'static str },
    #[error("is directly in [{title}], which may only have sections")]
    NoSectionName { title: String },
    #[error("has no effect without `http = true`")]
    NoHttp,
    #[error("is not a user id: from 0 to {}", u32::MAX - 1)]
    Uid,
    #[error("cannot open the root {}: {reason}", root.display())]
    Root { root: PathBuf, reason: String },
}

impl Wrong {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound { known, .. } if known.is_empty() => {
                "none is installed: `ringfence install` installs the shipped ones; a path also works".to_owned()
            }
            Self::NotFound { known, .. } => format!("there are: {}; a path also works", known.join(", ")),
            Self::Unreadable { kind: io::ErrorKind::PermissionDenied, .. } => {
                "check the permissions of the file and of the directories above it".to_owned()
            }
            Self::WorldWritable(_) => "run `chmod o-w` on it, and check that nobody has changed it".to_owned(),
            Self::Empty => "a profile that grants nothing needs a key, too: `description = \"...\"`".to_owned(),
            Self::NotUtf8 => "rules can name only UTF-8 paths; name a directory above the file instead".to_owned(),
            Self::UnknownKey { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::UnknownKey { known, .. } => format!("known here: {}", known.join(", ")),
            Self::Capability { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::Capability { near: None, .. } => {
                "capabilities(7) names them (`NET_ADMIN`, with or without `CAP_`); `default` is the set of container \
                 engines, `all` is every one"
                    .to_owned()
            }
            Self::Ioctl { near: Some(near), .. } => format!("did you mean `{near}`?"),
            Self::Ioctl { near: None, .. } => {
                "write the kernel's name of the command, its number (`0x5412`), or a device, for all of its commands"
                    .to_owned()
            }
            Self::SocketOption { error, .. } => error.hint()?,
            Self::MissingAxis { example } => format!("to grant nothing, write `{example}`"),
            Self::Path { text, error } | Self::Exec { text, error: ExecError::Path(error) } => {
                path_hint(text, error)?
            }
            Self::Exec { text, error: ExecError::Relative } => {
                format!("write the absolute path, `${{WORKDIR}}/{text}`, or the program's bare name")
            }
            Self::Net { text, error } => net_hint(text, error)?,
            Self::Workdir { .. } => {
                "write `${WORKDIR}` or `${WORKDIR}/below`, `${HOME}` or `${HOME}/below`".to_owned()
            }
            Self::NothingToAddTo => {
                "extend a profile that grants this axis, or write `{ only = [...] }`".to_owned()
            }
            Self::Duplicate { .. } => "remove one".to_owned(),
            Self::HostName { .. } => {
                "deny its addresses, or grant what is needed in place of \"all\": `net = { only = [...] }`".to_owned()
            }
            Self::TooManyExactNames(_) | Self::TooManyNames(_) => {
                "`*.example.org` is one entry for every name below example.org; each host of a set counts".to_owned()
            }
            Self::NoSet { known, .. } => {
                format!("there are: {}; others are files sets/NAME.toml, in the directory of the profile", known.join(", "))
            }
            Self::NotAHost => "write addresses and sockets into the profile itself".to_owned(),
            Self::Credential(error) => error.hint()?,
            Self::Size(_) => "write a number of bytes, or one with a unit: `\"500kB\"`, `\"1MB\"`, `\"2GiB\"`".to_owned(),
            Self::TooManyRules(..) | Self::TooManyPlaces(..) => {
                "name directories instead of files".to_owned()
            }
            Self::TooMuchFollowed(_) => {
                "name the targets instead of links to them; `readlink -f` prints a link's target".to_owned()
            }
            Self::NoWorkdir(_) => "give one with --workdir".to_owned(),
            Self::NoLlm => "a profile without a model is not an agent's; for an agent add `[llm.NAME]`".to_owned(),
            Self::RenewalElsewhere => {
                "leave `renew` out, or move the profile to ~/.config/ringfence/agents: a refresh token goes where it says".to_owned()
            }
            Self::PerRun => "leave it out; `turns_per_minute` holds for each run".to_owned(),
            Self::KitAndLlm => "keys of the kit's model go into [llm.NAME] of your registry, under the profile's name".to_owned(),
            Self::NoKit => "extend the profile `agent`, and see docs/coding-agents.md for what a [kit] says".to_owned(),
            Self::NotBelowHome => "write it as `${HOME}/` and what comes behind, without `..`".to_owned(),
            Self::NotAFileName => "files are in `kit.state` itself: a name has no `/`".to_owned(),
            Self::NoState => "add `state = \"${HOME}/.ringfence/NAME\"`".to_owned(),
            Self::NotAPointer => "write the keys on the way, each after a `/`: `/tokens/access`".to_owned(),
            Self::NotChatGpt(_) => "leave `chatgpt_account` out, or write `provider = \"openai\"`".to_owned(),
            Self::NoLimitAtChatGpt => "leave it out, or give an API key in the place of the login".to_owned(),
            Self::NoProvider => "add `provider = \"anthropic\"` or another of docs/llm.md".to_owned(),
            Self::NotAbsolute => "write the path from `/` or from `~/`".to_owned(),
            Self::NotAVariable => {
                "a name has only letters, digits and `_`; if this is the credential itself, move it elsewhere and replace it"
                    .to_owned()
            }
            Self::NoSectionName { title } => {
                format!("write `[{title}.NAME]`, with a name that may be in the registry")
            }
            Self::MissingKey { near: Some(near), .. } => format!("did you mean `{near}`, which the registry has?"),
            Self::MissingKey { key: "api_key", .. } => {
                "give one of api_key, api_key_env, api_key_file, api_key_credential, api_key_command; with a `base_url` \
                 the key is optional"
                    .to_owned()
            }
            Self::MissingKey { key: "price", .. } => {
                "a limit on cost needs prices for a million tokens: `price = { input = 3.0, output = 15.0 }`".to_owned()
            }
            Self::MissingKey { key: "provider", .. } => {
                let names: Vec<_> = ProviderKind::ALL.iter().map(|kind| format!("`{}`", kind.name())).collect();
                format!("write {} (or compatible servers)", names.join(" or "))
            }
            Self::BadWorkdir { .. } => "choose a directory for this work alone".to_owned(),
            _ => return None,
        })
    }
}

fn net_hint(text: &str, error: &NetError) -> Option<String> {
    Some(match error {
        NetError::Unix(error) => return path_hint(text, error),
        NetError::Host(HostError::Unknown) => {
            "write ip[:port], cidr[:port], [v6]:port, host[:port], *.host[:port], tcp:host:port, set:NAME, unix:/path or \
             unix:@abstract"
                .to_owned()
        }
        NetError::Host(HostError::Suffix(suffix)) => {
            format!("name the domains that are meant: `*.example.{suffix}`, `example.{suffix}`")
        }
        NetError::Host(HostError::Star) => "write `*.` and a domain, or each name".to_owned(),
        NetError::TcpAddress => "leave `tcp:` out".to_owned(),
        _ => return None,
    })
}

fn path_hint(text: &str, error: &PathError) -> Option<String> {
    Some(match error {
        PathError::Relative if text.starts_with('~') || text.starts_with('$') => {
            "`~` and variables are not expanded: write the absolute path, `${HOME}/...`, `${WORKDIR}/...` or `**/NAME`".to_owned()
        }
        PathError::Relative if text.starts_with('*') => {
            "write `/*`, `/**` or `**/NAME`; to deny every such name, `**/NAME*` or `**/*NAME`".to_owned()
        }
        PathError::Pattern => {
            "allow the whole name (`**/NAME`) or a directory (`/dir`); `**/NAME*` and `**/*NAME` are for fs_read, fs_write \
             and exec of `[deny]`"
                .to_owned()
        }
        PathError::LongPattern => "a shorter pattern denies more; grant by its full name what it should not deny: `**/NAME`".to_owned(),
        PathError::DeniedGlob => {
            "a directory covers all below it; a pattern is one name with one `*`, first or last: `**/*.pem`, `**/.env.*`; a \
             `*?[]{}` that belongs to a name takes a backslash: '/app/\\[id\\]'"
                .to_owned()
        }
        PathError::Relative => {
            format!("write the absolute path, or `${{WORKDIR}}/{}`", text.trim_start_matches("./").trim_start_matches("../"))
        }
        PathError::Glob => {
            "a directory covers all below it; a `*?[]{}` that belongs to a name takes a backslash: '/app/\\[id\\]'".to_owned()
        }
        PathError::Dots => "write the path without `.` and `..`".to_owned(),
        PathError::Control => "rules cannot name such files; name the directory above".to_owned(),
        _ => return None,
    })
}

impl Problem {
    /// What is wrong, and where.
    pub fn new(at: At, what: Wrong) -> Self {
        Self { at, what }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let At { file, line, key } = &self.at;
        if !file.as_os_str().is_empty() {
            write!(f, "{}:", file.display())?;
            if *line > 0 {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        // An agent's configuration has credentials, which may be in the wrong place.
        let is_agents = ["llm", "mcp", "net.credentials"].iter().any(|table| key.starts_with(table));
        let what = self.what.to_string();
        let is_secret = is_agents || matches!(self.what, Wrong::Syntax(_) | Wrong::UnknownKey { .. });
        if !key.is_empty() {
            write!(f, "{}: ", if is_secret { shown(key) } else { key.into() })?;
        }
        f.write_str(&if is_secret { shown(&what) } else { what.into() })?;
        match self.what.hint() {
            Some(hint) => write!(f, "\n    hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// A problem for machines.
#[derive(Debug, Serialize)]
pub struct ProblemJson {
    file: String,
    line: u32,
    key: String,
    error: String,
    hint: Option<String>,
}

impl From<&Problem> for ProblemJson {
    fn from(problem: &Problem) -> Self {
        Self {
            file: problem.at.file.display().to_string(),
            line: problem.at.line,
            key: problem.at.key.clone(),
            error: problem.what.to_string(),
            hint: problem.what.hint(),
        }
    }
}

/// Everything that is wrong with a profile. Never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadErrors(pub Vec<Problem>);

/// Everything that kept a profile from being compiled for the kernel. Never empty.
pub type CompileErrors = LoadErrors;

/// How many problems are printed; the rest is counted.
const SHOWN: usize = 50;

impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.0.iter().take(SHOWN).enumerate() {
            write!(f, "{}{problem}", if i > 0 { "\n" } else { "" })?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more @ 1..) => write!(f, "\nand {more} more"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for LoadErrors {}

impl From<Problem> for LoadErrors {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}
