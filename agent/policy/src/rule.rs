//! Rules as their author wrote them, each with its place in the file.

use ringfence_grant::{Denied, Entry, ExecEntry, ExecError, NetEntry, NetError, PathEntry, PathError, Scope};
use std::{path::Path, sync::Arc};

/// Stands for the working directory at the beginning of a path.
pub const WORKDIR: &str = "${WORKDIR}";
/// Stands for the home directory at the beginning of a path.
pub(crate) const HOME: &str = "${HOME}";

/// The key of denies of the net axis.
pub(crate) const DENY_NET: &str = "deny.net";

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The entry as written.
    pub text: String,
    /// Its file.
    pub file: Arc<Path>,
    /// Line, from 1.
    pub line: u32,
    /// Key path: `grant.fs_read`, `deny.exec`.
    pub key: &'static str,
    /// What `${HOME}` stands for.
    pub home: Option<Arc<Path>>,
}

/// Why a rule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleError<E> {
    /// `${WORKDIR}` or `${HOME}` elsewhere than at the beginning of a path.
    Workdir,
    /// `${HOME}`, but the user has none.
    NoHome,
    /// `${WORKDIR}`, but there is none.
    NoWorkdir,
    /// The entry is not valid.
    Entry(E),
}

impl Rule {
    /// The id that events show: `fs_read:/srv/app`, `deny.exec:**/ssh`.
    pub fn id(&self) -> String {
        format!("{}:{}", self.key.strip_prefix("grant.").unwrap_or(self.key), self.text)
    }

    /// Whether it depends on the working directory.
    pub(crate) fn uses_workdir(&self) -> bool {
        self.text.strip_prefix("unix:").unwrap_or(&self.text).starts_with(WORKDIR)
    }

    /// As a path entry.
    pub fn path(&self, workdir: Option<&Path>) -> Result<PathEntry, RuleError<PathError>> {
        self.expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As an exec entry.
    pub fn exec(&self, workdir: Option<&Path>) -> Result<ExecEntry, RuleError<ExecError>> {
        self.expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As what a deny of paths has.
    pub fn denied_path(&self, workdir: Option<&Path>) -> Result<Denied<PathEntry>, RuleError<PathError>> {
        self.expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As what a deny of programs has.
    pub fn denied_exec(&self, workdir: Option<&Path>) -> Result<Denied<ExecEntry>, RuleError<ExecError>> {
        self.expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As a net entry: of a deny, if it stands in one, which can have more.
    pub fn net(&self, workdir: Option<&Path>) -> Result<NetEntry, RuleError<NetError>> {
        let text = match self.text.strip_prefix("unix:") {
            Some(path) => format!("unix:{}", self.expand(path, workdir)?),
            None => self.text.clone(),
        };
        let entry = if self.key == DENY_NET { NetEntry::denied(&text) } else { text.parse() };
        entry.map_err(RuleError::Entry)
    }
}

impl Rule {
    /// Puts the working directory or the home in.
    fn expand<E>(&self, text: &str, workdir: Option<&Path>) -> Result<String, RuleError<E>> {
        let (rest, stands_for) = if let Some(rest) = text.strip_prefix(WORKDIR) {
            (rest, workdir.and_then(Path::to_str).ok_or(RuleError::NoWorkdir))
        } else if let Some(rest) = text.strip_prefix(HOME) {
            (rest, self.home.as_deref().and_then(Path::to_str).ok_or(RuleError::NoHome))
        } else if text.contains(WORKDIR) || text.contains(HOME) {
            return Err(RuleError::Workdir);
        } else {
            return Ok(text.to_owned());
        };
        if rest.contains(WORKDIR) || rest.contains(HOME) || !(rest.is_empty() || rest.starts_with('/')) {
            return Err(RuleError::Workdir);
        }
        Ok(escaped(stands_for?) + rest)
    }
}

/// A path's own glob characters, escaped.
fn escaped(dir: &str) -> String {
    let mut text = String::with_capacity(dir.len());
    for c in dir.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// What one axis grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AxisRules {
    /// `"all"`; the rule is where that is written.
    All(Rule),
    /// `{ only = [...] }`.
    Only(Vec<Rule>),
}

impl Default for AxisRules {
    fn default() -> Self {
        Self::Only(Vec::new())
    }
}

impl AxisRules {
    /// Every rule, the one that says `"all"` too.
    pub(crate) fn each_mut(&mut self) -> &mut [Rule] {
        match self {
            Self::All(rule) => std::slice::from_mut(rule),
            Self::Only(rules) => rules,
        }
    }

    /// The rules of an axis that is not `"all"`.
    pub fn listed(&self) -> &[Rule] {
        match self {
            Self::All(_) => &[],
            Self::Only(rules) => rules,
        }
    }

    /// The axis as the lattice knows it; `read` makes an entry of a rule, or leaves it out.
    pub fn scope<E: Entry>(&self, read: impl Fn(&Rule) -> Option<E>) -> Scope<E> {
        match self {
            Self::All(_) => Scope::All,
            Self::Only(rules) => Scope::only(rules.iter().filter_map(read)),
        }
    }
}

/// The grant's axes that the kernel holds, as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// `grant.fs_read`.
    pub fs_read: AxisRules,
    /// `grant.fs_write`.
    pub fs_write: AxisRules,
    /// `grant.exec`.
    pub exec: AxisRules,
    /// `grant.net`.
    pub net: AxisRules,
}

/// `[deny]`, as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Denials {
    /// `deny.fs_read`.
    pub fs_read: Vec<Rule>,
    /// `deny.fs_write`.
    pub fs_write: Vec<Rule>,
    /// `deny.exec`.
    pub exec: Vec<Rule>,
    /// `deny.net`.
    pub net: Vec<Rule>,
}

/// A list of one file: it replaces the inherited list, or adds to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Listed<T> {
    /// It replaces the inherited list.
    Whole(T),
    /// `{ add = [...] }`, and its place in the file.
    Added(Vec<Rule>, super::problem::At),
}

/// A list that can be added to.
pub(crate) trait Extendable: Sized {
    /// The list with more rules.
    fn with(self, more: Vec<Rule>) -> Self;
    /// The list if nothing is inherited, if that is allowed.
    fn from_added(more: Vec<Rule>) -> Option<Self>;
}

/// Two lists as one. A duplicate stays where it was first.
fn joined(mut rules: Vec<Rule>, more: Vec<Rule>) -> Vec<Rule> {
    for rule in more {
        if rules.iter().all(|there| there.text != rule.text) {
            rules.push(rule);
        }
    }
    rules
}

impl Extendable for AxisRules {
    fn with(self, more: Vec<Rule>) -> Self {
        match self {
            Self::All(rule) => Self::All(rule),
            Self::Only(rules) => Self::Only(joined(rules, more)),
        }
    }

    fn from_added(_: Vec<Rule>) -> Option<Self> {
        None
    }
}

impl Extendable for Vec<Rule> {
    fn with(self, more: Vec<Rule>) -> Self {
        joined(self, more)
    }

    fn from_added(more: Vec<Rule>) -> Option<Self> {
        Some(more)
    }
}

impl<T: Extendable> Listed<T> {
    /// A file's list over that of the file it extends.
    pub(crate) fn over(child: Option<Self>, parent: Option<Self>) -> Option<Self> {
        match (child, parent) {
            (Some(Self::Added(more, _)), Some(Self::Whole(rules))) => Some(Self::Whole(rules.with(more))),
            (Some(Self::Added(more, at)), Some(Self::Added(rules, _))) => {
                Some(Self::Added(joined(rules, more), at))
            }
            (child, parent) => child.or(parent),
        }
    }

    /// The list, or the place of one that adds to nothing.
    pub(crate) fn whole(self) -> Result<T, super::problem::At> {
        match self {
            Self::Whole(rules) => Ok(rules),
            Self::Added(more, at) => T::from_added(more).ok_or(at),
        }
    }
}
