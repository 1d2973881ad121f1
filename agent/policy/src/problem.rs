//! What can be wrong with a profile: one [`Problem`] each, with file, line, key and a hint; never only the first.

use super::{agents::config::ProviderKind, socket_options::OptionError};
use ringfence_grant::{ExecError, NetError, PathError};
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
    #[error("{0:?} is not a profile's name: letters, digits, `-`, `_` and `.`, not beginning with `.`")]
    Name(String),
    #[error("cannot be read: {reason}")]
    Unreadable { reason: String, kind: io::ErrorKind },
    #[error("is not a regular file")]
    NotAFile,
    #[error("can be written by everyone (mode {0:04o})")]
    WorldWritable(u32),
    #[error("is empty")]
    Empty,
    #[error("has {size} bytes: a profile has at most {most}")]
    TooLarge { size: u64, most: u64 },
    #[error("is not UTF-8")]
    NotUtf8,
    #[error("{0}")]
    Syntax(String),
    #[error("unknown key")]
    UnknownKey { near: Option<String>, known: Vec<String> },
    #[error("{found} where {wanted} is needed")]
    Type { wanted: &'static str, found: &'static str },
    #[error("{value:?} is not one of {}", known.join(", "))]
    Value { value: String, known: Vec<&'static str> },
    #[error("{text:?} is not a capability")]
    Capability { text: String, near: Option<&'static str> },
    #[error("{text:?} is neither an ioctl command nor a device below /dev")]
    Ioctl { text: String, near: Option<&'static str> },
    #[error("{text:?} {error}")]
    SocketOption { text: String, error: OptionError },
    #[error("is missing: a grant names all six axes")]
    MissingAxis { example: &'static str },
    #[error("{text:?}: {error}")]
    Path { text: String, error: PathError },
    #[error("{text:?}: {error}")]
    Exec { text: String, error: ExecError },
    #[error("{text:?}: {error}")]
    Net { text: String, error: NetError },
    #[error("{text:?}: `${{WORKDIR}}` and `${{HOME}}` stand at the beginning of a path only")]
    Workdir { text: String },
    #[error("{text:?} is there already, in line {line}")]
    Duplicate { text: String, line: u32 },
    #[error("{text:?} is a host name: the kernel knows addresses only")]
    HostName { text: String },
    #[error("{0} rules: a profile has at most {1}")]
    TooManyRules(usize, usize),
    #[error("its rules come to {0} places: at most {1}")]
    TooManyPlaces(usize, usize),
    #[error("its rules lead through links to more than {0} bytes of paths")]
    TooMuchFollowed(usize),
    #[error("extends itself: {}", chain.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(" -> "))]
    Loop { chain: Vec<PathBuf> },
    #[error("extends a chain of more than {0} files")]
    TooLongAChain(usize),
    #[error("adds to a list that there is not")]
    NothingToAddTo,
    #[error("the profile it extends cannot be loaded")]
    Parent,
    #[error("{0:?} uses `${{WORKDIR}}`, and there is no working directory")]
    NoWorkdir(String),
    #[error("the working directory {} cannot be used: {why}", dir.display())]
    BadWorkdir { dir: PathBuf, why: &'static str },
    #[error("is empty where a text is needed")]
    EmptyText,
    #[error("{number} is not from {least} to {most}")]
    Range { number: u64, least: u64, most: u64 },
    #[error("`{first}` is given already: a credential has one source")]
    TwoSources { first: String },
    #[error("is not an absolute path")]
    NotAbsolute,
    #[error("is not the name of a variable")]
    NotAVariable,
    #[error("cannot be set here: it has a key of its own, or the conversation fills it in")]
    Reserved,
    #[error("no [llm.*] section: an agent has exactly one")]
    NoLlm,
    #[error("{} [llm.*] sections ({}): an agent has exactly one", .0.len(), .0.join(", "))]
    ManyLlm(Vec<String>),
    #[error("`{key}` is missing{}", registry.as_ref().map_or_else(String::new, |r| format!(", and {} does not have it for `{name}` either", r.display())))]
    MissingKey { key: &'static str, name: String, registry: Option<PathBuf>, near: Option<String> },
    #[error("{url} cannot be used: {why}")]
    Url { url: String, why: &'static str },
    #[error("stands in [{title}] itself, which has sections only")]
    NoSectionName { title: String },
    #[error("has no effect without `http = true`")]
    NoHttp,
    #[error("is not a user id: from 0 to {}", u32::MAX - 1)]
    Uid,
    #[error("the root {} cannot be looked at: {reason}", root.display())]
    Root { root: PathBuf, reason: String },
}

impl Wrong {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NotFound { known, .. } if known.is_empty() => {
                "none is installed: `ringfence install` puts the shipped ones there; a path also works"
                    .to_owned()
            }
            Self::NotFound { known, .. } => format!("there are: {}; a path also works", known.join(", ")),
            Self::Unreadable { kind: io::ErrorKind::PermissionDenied, .. } => {
                "check the permissions of the file and of the directories above it".to_owned()
            }
            Self::WorldWritable(_) => "chmod o-w it, and check that nobody changed it".to_owned(),
            Self::Empty => "a profile that grants nothing still says so: `description = \"...\"`".to_owned(),
            Self::NotUtf8 => {
                "rules can name UTF-8 paths only; a directory above the file can be named instead".to_owned()
            }
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
            Self::MissingAxis { example } => format!("for nothing at all write `{example}`"),
            Self::Path { text, error } | Self::Exec { text, error: ExecError::Path(error) } => {
                path_hint(text, error)?
            }
            Self::Net { text, error: NetError::Unix(error) } => path_hint(text, error)?,
            Self::Exec { text, error: ExecError::Relative } => {
                format!("write the absolute path, `${{WORKDIR}}/{text}`, or the program's bare name")
            }
            Self::Net { error: NetError::Unknown, .. } => {
                "the forms are ip[:port], cidr[:port], [v6]:port, host[:port], unix:/path, unix:@abstract"
                    .to_owned()
            }
            Self::Workdir { .. } => {
                "write `${WORKDIR}` or `${WORKDIR}/below`, `${HOME}` or `${HOME}/below`".to_owned()
            }
            Self::NothingToAddTo => {
                "`extends` a profile that grants this axis, or write `{ only = [...] }`".to_owned()
            }
            Self::Duplicate { .. } => "remove one".to_owned(),
            Self::HostName { text } if text.starts_with("localhost") => {
                "write the addresses: 127.0.0.1 and [::1]".to_owned()
            }
            Self::HostName { .. } => "write its addresses or ranges (`ip[:port]`, `cidr[:port]`)".to_owned(),
            Self::TooManyRules(..) | Self::TooManyPlaces(..) => {
                "name directories instead of files".to_owned()
            }
            Self::TooMuchFollowed(_) => {
                "name the places themselves and not links to them; `readlink -f` says where one leads".to_owned()
            }
            Self::NoWorkdir(_) => "give one with --workdir".to_owned(),
            Self::NoLlm => "an agent without a model is a plain profile; for an agent write `[llm.NAME]`".to_owned(),
            Self::NotAbsolute => "write it from the root, or from `~/`".to_owned(),
            Self::NotAVariable => {
                "it has letters, digits and `_` only; a credential itself does not stand here, and the one that does \
                 should be replaced"
                    .to_owned()
            }
            Self::NoSectionName { title } => {
                format!("a section has a name, which the registry may know: `[{title}.NAME]`")
            }
            Self::MissingKey { near: Some(near), .. } => format!("did you mean `{near}`, which the registry has?"),
            Self::MissingKey { key: "api_key", .. } => {
                "give one of api_key, api_key_env, api_key_file, api_key_credential, api_key_command; a `base_url` may \
                 go without"
                    .to_owned()
            }
            Self::MissingKey { key: "price", .. } => {
                "a cost needs prices: `price = { input = 3.0, output = 15.0 }` for a million tokens".to_owned()
            }
            Self::MissingKey { key: "provider", .. } => {
                let names: Vec<_> = ProviderKind::ALL.iter().map(|kind| format!("`{}`", kind.name())).collect();
                format!("{} (and compatible servers)", names.join(" or "))
            }
            Self::BadWorkdir { .. } => "choose a directory of the work's own".to_owned(),
            _ => return None,
        })
    }
}

fn path_hint(text: &str, error: &PathError) -> Option<String> {
    Some(match error {
        PathError::Relative if text.starts_with('~') || text.starts_with('$') => {
            "`~` and variables are not expanded: write the absolute path, `${HOME}/...`, `${WORKDIR}/...` or `**/NAME`".to_owned()
        }
        PathError::Relative if text.starts_with('*') => {
            "write `/*`, `/**` or `**/NAME`; to deny all that is named so, `**/NAME*` or `**/*NAME`".to_owned()
        }
        PathError::Pattern => {
            "allow the whole name (`**/NAME`) or a directory (`/dir`); `**/NAME*` and `**/*NAME` are for fs_read, fs_write \
             and exec of `[deny]`"
                .to_owned()
        }
        PathError::LongPattern => "a shorter end of the name denies more, and what it should not is granted by its whole name: `**/NAME`".to_owned(),
        PathError::DeniedGlob => {
            "a directory covers all below it; a pattern is one name with one `*`, first or last: `**/*.pem`, `**/.env.*`; a \
             `*?[]{}` that belongs to a name takes a backslash: '/app/\\[id\\]'"
                .to_owned()
        }
        PathError::Relative => {
            format!("write it absolute, or `${{WORKDIR}}/{}`", text.trim_start_matches("./").trim_start_matches("../"))
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
        // An agent's configuration has credentials, which somebody may have written where they do not belong.
        let is_agents = ["llm", "mcp"].iter().any(|table| key.starts_with(table));
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
