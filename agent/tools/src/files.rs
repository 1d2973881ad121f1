//! The file tools behind the gate: what each call requires, and the gate's answer to each path.

use crate::spawn::Spawner;
use ringfence_base::error::chain;
use ringfence_file_tools::{
    Error,
    output::Excerpt,
    workspace::{self, Access, AllowAll, Workspace},
};
use ringfence_grant::{
    Grant, PathEntry, Scope,
    gate::{CallFuture, Tool, ToolContext, ToolError},
};
use serde_json::Value;
use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// Characters of a result.
const SHOWN: usize = 100_000;

/// How long one call may take.
const TIME: Duration = Duration::from_secs(60);

/// One of the file tools, in a directory.
pub struct FileTool {
    tool: ringfence_file_tools::Tool,
    dir: PathBuf,
    spawner: Arc<dyn Spawner>,
}

impl std::fmt::Debug for FileTool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileTool").field("tool", &self.tool).field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl FileTool {
    /// All of them. Relative paths start at `dir`, which is absolute.
    pub fn all(dir: &Path, spawner: &Arc<dyn Spawner>) -> impl Iterator<Item = Self> {
        // Where it led when the session began, as for the shell: a link that is turned later moves neither.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let one = move |tool| Self { tool, dir: dir.clone(), spawner: spawner.clone() };
        ringfence_file_tools::Tool::ALL.into_iter().map(one)
    }

    fn wrong(&self, why: impl Into<String>) -> ToolError {
        ToolError::Arguments { tool: self.tool.name().to_owned(), why: why.into() }
    }

    /// The path that a call is about, links resolved.
    fn path(&self, args: &Value) -> Result<PathEntry, ToolError> {
        use ringfence_file_tools::Tool::{ListDirectory, Search};
        let path = match (&args["path"], self.tool) {
            (Value::String(path), _) => path.as_str(),
            (Value::Null, ListDirectory | Search) => ".",
            (Value::Null, _) => return Err(self.wrong("`path` is missing")),
            _ => return Err(self.wrong("`path` is not a string")),
        };
        if path.contains('\0') {
            return Err(self.wrong("`path` has a NUL character"));
        }
        let workspace = Workspace { dir: &self.dir, gate: &AllowAll, deadline: None };
        let resolved = workspace.resolve(path).map_err(|error| self.wrong(chain(&error)))?;
        let text = resolved.to_str().ok_or_else(|| self.wrong("`path` leads to a name that is not UTF-8"))?;
        PathEntry::exact(text).map_err(|error| self.wrong(format!("`path`: {error}")))
    }

    fn access(&self) -> (bool, bool) {
        use ringfence_file_tools::Tool::{EditFile, ListDirectory, ReadFile, Search, WriteFile};
        match self.tool {
            ReadFile | ListDirectory | Search => (true, false),
            WriteFile => (false, true),
            EditFile => (true, true),
        }
    }
}

impl Tool for FileTool {
    fn name(&self) -> &str {
        self.tool.name()
    }

    fn description(&self) -> &str {
        self.tool.description()
    }

    fn schema(&self) -> Value {
        self.tool.parameters()
    }

    /// It follows the links of the path.
    fn authorizing_does_io(&self) -> bool {
        true
    }

    /// The path itself.
    fn required(&self, args: &Value) -> Result<Grant, ToolError> {
        let path = self.path(args)?;
        let (reads, writes) = self.access();
        let scope = |needed: bool| if needed { Scope::only([path.clone()]) } else { Scope::none() };
        Ok(Grant { fs_read: scope(reads), fs_write: scope(writes), ..Grant::bottom() })
    }

    /// What lies below a directory that is searched, the directories that a new file needs, the file that takes its
    /// place: each is asked for on its own.
    fn wanted(&self, _: &Value) -> Result<Grant, ToolError> {
        let (reads, writes) = self.access();
        let scope = |needed: bool| if needed { Scope::All } else { Scope::none() };
        Ok(Grant { fs_read: scope(reads), fs_write: scope(writes), ..Grant::bottom() })
    }

    fn usable(&self, granted: &Grant) -> bool {
        let (reads, writes) = self.access();
        (!reads || !granted.fs_read.is_none()) && (!writes || !granted.fs_write.is_none())
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, args: Value) -> CallFuture<'a> {
        Box::pin(async move {
            ctx.begin();
            let mut done = None;
            let mut work = || {
                let mut out = Excerpt::new(SHOWN);
                let deadline = Some(Instant::now() + TIME);
                let workspace = Workspace { dir: &self.dir, gate: &GateCheck(ctx), deadline };
                let result = self.tool.run(&args, &workspace, &mut out);
                done = Some(result.map(|()| out.finish("")));
            };
            let name = self.tool.name();
            self.spawner.within(ctx.effective(), &mut work).map_err(ToolError::failed(name))?;
            match done {
                Some(Ok(text)) => Ok(Value::String(text)),
                Some(Err(Error::Input { source, .. })) => Err(self.wrong(source.to_string())),
                Some(Err(error)) => Err(ToolError::failed(name)(error)),
                None => Err(ToolError::failed(name)(io::Error::from(io::ErrorKind::Interrupted))),
            }
        })
    }
}

/// Whether a path, links resolved, is in what /proc shows of one process: the server may read there what no tool may,
/// its own environment and its client's first of all.
fn is_of_a_process(path: &Path) -> bool {
    let Ok(below) = path.strip_prefix("/proc") else { return false };
    let first = below.components().next().and_then(|part| part.as_os_str().to_str());
    first.is_some_and(|name| {
        matches!(name, "self" | "thread-self") || name.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Asks the gate about each path.
struct GateCheck<'a>(&'a ToolContext);

impl workspace::Gate for GateCheck<'_> {
    fn admit(&self, access: Access, path: &Path) -> Result<(), String> {
        if self.0.cancel().is_cancelled() {
            return Err(ToolError::Cancelled.to_string());
        }
        if is_of_a_process(path) {
            let why =
                "it is a process's own, and would be opened as this server: name a program that reads it";
            return Err(why.to_owned());
        }
        let decided = match access {
            Access::Read => self.0.check_read(path),
            Access::Write => self.0.check_write(path),
        };
        decided.map_err(|denied| denied.to_string())
    }
}
