//! The gate: a tool runs only with a context that was minted from what was granted and what the tool asks for.
//!
//! | what | file |
//! |---|---|
//! | what a tool is, a tool's error | [`Tool`] in `tool.rs` |
//! | tools by name, running one | [`Registry`] in `registry.rs` |
//! | who may run, how often, for which generation | [`Gate`], here |
//! | what a running call may still do | [`ToolContext`] in `context.rs` |
//! | ending a call from outside | [`Cancel`] in `cancel.rs` |
//! | refusals and the record of every decision | [`Denied`], [`Record`] in `decision.rs` |
//!
//! Nothing here touches the machine: what a bare program name finds is asked of a [`Programs`].

mod cancel;
mod context;
mod decision;
mod registry;
mod tool;

pub use cancel::Cancel;
pub use context::ToolContext;
pub use decision::{Axis, Decision, Denied, Outcome, Question, Record, Veto};
pub use registry::{AuthorizedCall, Registry};
pub use tool::{CallFuture, Tool, ToolError};

use crate::{CountBound, Entry, Grant, PathEntry, Reach, Scope};
use serde_json::Value;
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// A program on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedProgram {
    /// Where it is: absolute, its directory without links, its own name as it was requested.
    pub path: PathBuf,
    /// The file it is: [`path`](Self::path) with its last link followed too.
    pub target: PathBuf,
}

/// Finds programs: the gate itself does not look at the machine.
pub trait Programs: Send + Sync {
    /// Looks for a bare name on PATH, or at an absolute path.
    ///
    /// # Errors
    /// There is no such program, or nothing that can be executed.
    fn resolve(&self, program: &Path) -> io::Result<ResolvedProgram>;

    /// What a bare name of a grant means: what PATH finds for it, passing over what whoever holds the grant may have put
    /// there.
    ///
    /// # Errors
    /// As of [`resolve`](Self::resolve).
    fn resolve_granted(&self, name: &str) -> io::Result<ResolvedProgram> {
        self.resolve(Path::new(name))
    }
}

/// No machine to look at: bare names find nothing, and a path is the file it names.
#[derive(Debug, Clone, Copy)]
pub struct NoPrograms;

impl Programs for NoPrograms {
    fn resolve(&self, program: &Path) -> io::Result<ResolvedProgram> {
        if !program.is_absolute() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(ResolvedProgram { path: program.to_owned(), target: program.to_owned() })
    }
}

/// The choke point of one session: counts its calls, knows its generation, records its decisions.
pub struct Gate {
    /// Calls that were let through.
    used: AtomicU64,
    generation: AtomicU64,
    programs: Box<dyn Programs>,
    record: Option<Box<dyn Record>>,
    veto: Option<Box<dyn Veto>>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("used", &self.used)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// The gate of a new session, at generation 0, which records nothing.
    pub fn new(programs: impl Programs + 'static) -> Self {
        Self {
            used: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            programs: Box::new(programs),
            record: None,
            veto: None,
        }
    }

    /// Denies what `veto` forbids, whatever is granted.
    #[must_use]
    pub fn with_veto(mut self, veto: impl Veto + 'static) -> Self {
        self.veto = Some(Box::new(veto));
        self
    }

    /// Hands every decision to `record`.
    #[must_use]
    pub fn with_record(mut self, record: impl Record + 'static) -> Self {
        self.record = Some(Box::new(record));
        self
    }

    /// The session's generation.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Sets the session's generation: grants that do not hold for it are refused from now on. Budgets go on.
    pub fn set_generation(&self, generation: u64) {
        self.generation.store(generation, Ordering::SeqCst);
    }

    /// Calls that were let through in this session.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    /// Mints the context of one call: the only way to one.
    ///
    /// First the generation is looked at, then the budget, then what the tool requires; only a call that passes all is
    /// taken from the budget, so that a denial costs none.
    ///
    /// # Errors
    /// [`ToolError::Denied`]; [`ToolError::Arguments`] where the tool cannot determine what it requires;
    /// [`ToolError::Unsound`] where it requires more than it wants.
    pub fn authorize(
        self: &Arc<Self>,
        tool: &dyn Tool,
        args: &Value,
        granted: &Grant,
    ) -> Result<ToolContext, ToolError> {
        let decided = self.decide(tool, args, granted);
        match &decided {
            Ok(_) => self.record_decision(tool.name(), Question::Call, Outcome::Allowed),
            Err(ToolError::Denied(denied)) => {
                self.record_decision(tool.name(), Question::Call, Outcome::Denied(denied));
            }
            Err(error) => {
                self.record_decision(tool.name(), Question::Call, Outcome::Refused(&error.to_string()))
            }
        }
        Ok(ToolContext::new(decided?, tool.name().to_owned(), self.clone()))
    }

    fn decide(&self, tool: &dyn Tool, args: &Value, granted: &Grant) -> Result<Grant, ToolError> {
        if granted.valid_for_generation.is_none() {
            return Err(Denied::Never.into());
        }
        let generation = self.generation();
        if !granted.valid_for_generation.contains(&generation) {
            return Err(Denied::Generation { generation }.into());
        }
        if let Some(max) = self.exhausted(granted.max_calls) {
            return Err(Denied::Budget { max }.into());
        }
        let required = tool.required(args)?;
        if let Some(denied) = excess(&required, granted) {
            return Err(denied.into());
        }
        let wanted = tool.wanted(args)?;
        if !required.leq(&wanted) {
            return Err(ToolError::Unsound { tool: tool.name().to_owned() });
        }
        self.take_call(granted.max_calls)?;
        Ok(granted.meet(&wanted))
    }

    /// The bound, if it is used up.
    fn exhausted(&self, bound: CountBound) -> Option<u64> {
        match bound {
            CountBound::AtMost(max) if self.used() >= max => Some(max),
            _ => None,
        }
    }

    /// Takes one call from the budget, unless another took the last one meanwhile.
    fn take_call(&self, bound: CountBound) -> Result<(), Denied> {
        let max = match bound {
            CountBound::Unlimited => u64::MAX,
            CountBound::AtMost(max) => max,
        };
        let next = |used: u64| (used < max).then_some(used + 1);
        match self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
            Ok(_) => Ok(()),
            Err(_) => Err(Denied::Budget { max }),
        }
    }

    /// Puts back what a call took that was refused before it did anything.
    fn refund(&self) {
        self.used.fetch_sub(1, Ordering::SeqCst);
    }

    /// The error of a call that was cancelled, which is put on record.
    fn cancelled(&self, tool: &str, reason: &str) -> ToolError {
        self.record_decision(tool, Question::Call, Outcome::Cancelled(reason));
        ToolError::Cancelled
    }

    fn record_decision(&self, tool: &str, question: Question<'_>, outcome: Outcome<'_>) {
        if let Some(record) = &self.record {
            record.record(&Decision { tool, question, outcome, used: self.used() });
        }
    }
}

/// The first thing that is required and not granted, in the order of the axes; `None` where `required` is below
/// `granted`.
pub fn excess(required: &Grant, granted: &Grant) -> Option<Denied> {
    fn first<E: Entry>(
        axis: Axis,
        required: &Scope<E>,
        granted: &Scope<E>,
        shown: impl Fn(&E) -> String,
    ) -> Option<Denied> {
        if required.leq(granted) {
            return None;
        }
        let target = match required {
            Scope::All => return Some(Denied::Everything { axis }),
            Scope::Only(entries) => entries.iter().find(|entry| !granted.contains(entry))?,
        };
        Some(Denied::Scope { axis, target: shown(target) })
    }
    let counted = || match (required.max_calls.leq(granted.max_calls), granted.max_calls) {
        (false, CountBound::AtMost(max)) => Some(Denied::Budget { max }),
        _ => None,
    };
    let generations = || {
        let held = required.valid_for_generation.leq(&granted.valid_for_generation);
        (!held).then_some(Denied::Generations)
    };
    // One path, as a tool asked for it, rather than the entries that mean it together.
    let path = |entry: &PathEntry| match entry.reach() {
        Reach::Exact => entry.anchor().to_owned(),
        _ => entry.to_string(),
    };
    first(Axis::Exec, &required.exec, &granted.exec, ToString::to_string)
        .or_else(|| first(Axis::FsRead, &required.fs_read, &granted.fs_read, path))
        .or_else(|| first(Axis::FsWrite, &required.fs_write, &granted.fs_write, path))
        .or_else(|| first(Axis::Net, &required.net, &granted.net, ToString::to_string))
        .or_else(counted)
        .or_else(generations)
        // What no entry of ours explains is refused all the same.
        .or_else(|| (!required.leq(granted)).then_some(Denied::Everything { axis: Axis::Exec }))
}

#[cfg(test)]
mod tests;
