//! Rules as their author wrote them, each with its place in the file.

use ringfence_grant::{Entry, ExecEntry, ExecError, NetEntry, NetError, PathEntry, PathError, Scope};
use std::{path::Path, sync::Arc};

/// Stands for the working directory at the beginning of a path.
pub(crate) const WORKDIR: &str = "${WORKDIR}";

/// One rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    /// The entry as written.
    pub(crate) text: String,
    /// The file it stands in.
    pub(crate) file: Arc<Path>,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Key path: `grant.fs_read`, `deny.exec`.
    pub(crate) key: &'static str,
}

/// Why a rule cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RuleError<E> {
    /// `${WORKDIR}` elsewhere than at the beginning of a path.
    Workdir,
    /// `${WORKDIR}`, and none is known.
    NoWorkdir,
    /// The entry is none.
    Entry(E),
}

impl Rule {
    /// The id that events show: `fs_read:/srv/app`, `deny.exec:**/ssh`.
    pub(crate) fn id(&self) -> String {
        format!("{}:{}", self.key.strip_prefix("grant.").unwrap_or(self.key), self.text)
    }

    /// Whether it depends on the working directory.
    pub(crate) fn uses_workdir(&self) -> bool {
        self.text.strip_prefix("unix:").unwrap_or(&self.text).starts_with(WORKDIR)
    }

    /// As a path entry.
    pub(crate) fn path(&self, workdir: Option<&Path>) -> Result<PathEntry, RuleError<PathError>> {
        expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As an exec entry.
    pub(crate) fn exec(&self, workdir: Option<&Path>) -> Result<ExecEntry, RuleError<ExecError>> {
        expand(&self.text, workdir)?.parse().map_err(RuleError::Entry)
    }

    /// As a net entry.
    pub(crate) fn net(&self, workdir: Option<&Path>) -> Result<NetEntry, RuleError<NetError>> {
        let text = match self.text.strip_prefix("unix:") {
            Some(path) => format!("unix:{}", expand(path, workdir)?),
            None => self.text.clone(),
        };
        text.parse().map_err(RuleError::Entry)
    }
}

/// Puts the working directory in, its own glob characters escaped.
fn expand<E>(text: &str, workdir: Option<&Path>) -> Result<String, RuleError<E>> {
    let Some(rest) = text.strip_prefix(WORKDIR) else {
        return if text.contains(WORKDIR) { Err(RuleError::Workdir) } else { Ok(text.to_owned()) };
    };
    if rest.contains(WORKDIR) || !(rest.is_empty() || rest.starts_with('/')) {
        return Err(RuleError::Workdir);
    }
    let workdir = workdir.and_then(Path::to_str).ok_or(RuleError::NoWorkdir)?;
    let mut expanded = String::with_capacity(workdir.len() + rest.len());
    for c in workdir.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            expanded.push('\\');
        }
        expanded.push(c);
    }
    expanded.push_str(rest);
    Ok(expanded)
}

/// What one axis grants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum AxisRules {
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
    /// The rules of an axis that is not `"all"`.
    pub(crate) fn listed(&self) -> &[Rule] {
        match self {
            Self::All(_) => &[],
            Self::Only(rules) => rules,
        }
    }

    pub(crate) fn scope<E: Entry>(&self, read: impl Fn(&Rule) -> Option<E>) -> Scope<E> {
        match self {
            Self::All(_) => Scope::All,
            Self::Only(rules) => Scope::only(rules.iter().filter_map(read)),
        }
    }
}

/// The grant's axes that the kernel holds, as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Rules {
    /// `grant.fs_read`.
    pub(crate) fs_read: AxisRules,
    /// `grant.fs_write`.
    pub(crate) fs_write: AxisRules,
    /// `grant.exec`.
    pub(crate) exec: AxisRules,
    /// `grant.net`.
    pub(crate) net: AxisRules,
}

/// `[deny]`, as written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Denials {
    /// `deny.fs_read`.
    pub(crate) fs_read: Vec<Rule>,
    /// `deny.fs_write`.
    pub(crate) fs_write: Vec<Rule>,
    /// `deny.exec`.
    pub(crate) exec: Vec<Rule>,
    /// `deny.net`.
    pub(crate) net: Vec<Rule>,
}
