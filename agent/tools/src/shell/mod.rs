//! The confined shell: what is parsed, what is admitted, what runs.
//!
//! | step | file |
//! |---|---|
//! | the call's arguments: `program` and `args`, or `script` | `arguments` |
//! | a script of the safe subset into words, and a name for all that is refused | `script`, `refusal` |
//! | words into arguments: variables of the allowlist, globs inside of what may be read | `expand`, `glob`, `environment` |
//! | every program and every redirect of the call, before anything runs | `admit`, `paths` |
//! | pipelines with a shell's statuses, bounded output, an end to everything | `run`, `output`, `orphans` |
//!
//! There is no shell behind it: what runs is the argv that was admitted, at the absolute path that was found. What those
//! programs do then is not the gate's to hold but the kernel's, as far as the [`Spawner`] puts the grant on them; each
//! result says so under `enforcement`.

mod admit;
mod arguments;
mod environment;
mod expand;
mod glob;
mod orphans;
mod output;
mod paths;
mod refusal;
mod run;
mod script;

pub use refusal::{Construct, ScriptError};

use crate::spawn::Spawner;
use admit::{AdmitError, Plan};
use arguments::Arguments;
use environment::Environment;
use orphans::Orphans;
use ringfence_grant::{
    Grant,
    gate::{CallFuture, Denied, Tool, ToolContext, ToolError},
};
use run::{End, Outcome, RunContext};
use rustix::event::{EventfdFlags, eventfd};
use serde_json::{Map, Value, json};
use std::{
    ffi::OsStr,
    io,
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

const NAME: &str = "shell";

/// The tool `shell`.
///
/// A call blocks the thread that polls it, for as long as its time limit allows: it has no runtime and no thread of its
/// own.
pub struct Shell {
    dir: PathBuf,
    environment: Environment,
    spawner: Arc<dyn Spawner>,
    orphans: Option<Orphans>,
}

impl std::fmt::Debug for Shell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shell").field("dir", &self.dir).finish_non_exhaustive()
    }
}

impl Shell {
    /// A shell whose relative paths start at `dir`, absolute; whose programs get `path` as their PATH, beside a short list
    /// of this process's own variables; and are started by `spawner`.
    pub fn new(dir: &Path, path: &OsStr, spawner: Arc<dyn Spawner>) -> Self {
        let environment = Environment::new(std::env::vars_os(), path);
        // One that is not there cannot be run in, which each call will report.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        Self { dir, environment, spawner, orphans: None }
    }

    /// Gives the programs one more variable, and scripts `$NAME`.
    #[must_use]
    pub fn with_variable(mut self, name: &str, value: &str) -> Self {
        self.environment.set(name, value);
        self
    }

    /// Ends also what left its call's process group, as soon as no call runs: this process becomes the subreaper of its
    /// descendants, and **kills every child that it has then**. Only for a process that has no other children.
    ///
    /// # Errors
    /// As of prctl(2).
    pub fn ending_orphans(mut self) -> io::Result<Self> {
        self.orphans = Some(Orphans::adopt()?);
        Ok(self)
    }

    fn arguments(&self, args: &Value) -> Result<Arguments, ToolError> {
        arguments::read(args).map_err(wrong)
    }

    fn run(&self, ctx: &ToolContext, args: &Value) -> Result<Value, ToolError> {
        let arguments = self.arguments(args)?;
        let deadline = Instant::now() + arguments.timeout;
        let plan = admit::admit(&arguments, &self.dir, &self.environment, ctx, deadline).map_err(refused)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from);
        let stop = Arc::new(stop.map_err(ToolError::failed(NAME))?);
        let cancelled = Arc::clone(&stop);
        ctx.cancel().on_cancel(move || {
            // It fails only if it was written to more often than 2^64 times.
            let _ = rustix::io::write(cancelled.as_fd(), &1_u64.to_ne_bytes());
        });
        ctx.begin();
        let _call = self.orphans.as_ref().map(Orphans::call);
        let context = RunContext {
            spawner: self.spawner.as_ref(),
            grant: ctx.effective(),
            env: &self.environment.of_process(&plan.dir),
            deadline,
            stop: stop.as_fd(),
        };
        let outcome = self.result(&plan, &context)?;
        let enforcement = self.spawner.enforcement(ctx.effective());
        envelope(outcome, &arguments, serde_json::to_value(enforcement).map_err(ToolError::failed(NAME))?)
    }

    fn result(&self, plan: &Plan, context: &RunContext<'_>) -> Result<Outcome, ToolError> {
        run::run(plan, context).map_err(ToolError::failed(NAME))
    }
}

impl Tool for Shell {
    fn name(&self) -> &str {
        NAME
    }

    fn description(&self) -> &str {
        "Runs one program, or a short script of commands connected by | && || ; without a shell. Programs and files \
         outside of the granted authority are denied before anything runs."
    }

    fn schema(&self) -> Value {
        arguments::schema()
    }

    /// Nothing that is known without I/O: the gate is asked about each program and each file.
    fn required(&self, args: &Value) -> Result<Grant, ToolError> {
        self.arguments(args).map(|_| Grant::bottom())
    }

    /// A script that is none of the subset, and a program by a name that is not granted.
    fn precheck(&self, ctx: &ToolContext, args: &Value) -> Result<(), ToolError> {
        admit::precheck(&self.arguments(args)?, ctx).map_err(refused)
    }

    /// Whatever the programs may need.
    fn wanted(&self, _: &Value) -> Result<Grant, ToolError> {
        Ok(Grant::top())
    }

    fn usable(&self, granted: &Grant) -> bool {
        !granted.exec.is_none()
    }

    fn call<'a>(&'a self, ctx: &'a ToolContext, args: Value) -> CallFuture<'a> {
        Box::pin(async move { self.run(ctx, &args) })
    }
}

fn wrong(why: impl Into<String>) -> ToolError {
    ToolError::Arguments { tool: NAME.into(), why: why.into() }
}

fn refused(error: AdmitError) -> ToolError {
    match error {
        AdmitError::Denied(denied) => denied.into(),
        AdmitError::Script(error @ (ScriptError::Refused { .. } | ScriptError::Word(_))) => {
            Denied::Rule(error.to_string()).into()
        }
        AdmitError::Script(error) => wrong(error.to_string()),
        AdmitError::Path(paths::ResolveError::Proc(_)) => Denied::Rule(error.to_string()).into(),
        AdmitError::Path(_) | AdmitError::Directory(_) | AdmitError::TooMuch(_) => wrong(error.to_string()),
    }
}

fn envelope(outcome: Outcome, arguments: &Arguments, enforcement: Value) -> Result<Value, ToolError> {
    let Outcome { end, stdout, stderr } = outcome;
    let exit_code = match end {
        End::Exited(code) => Some(code),
        End::TimedOut => None,
        End::Stopped => {
            return Err(ToolError::failed(NAME)("it was stopped, and everything that it ran was ended"));
        }
    };
    let mut fields = Map::new();
    fields.insert("exit_code".into(), json!(exit_code));
    fields.insert("timed_out".into(), json!(exit_code.is_none()));
    if exit_code.is_none() {
        fields.insert("timeout_secs".into(), json!(arguments.timeout.as_secs()));
    }
    fields.insert("truncated".into(), json!(stdout.truncated || stderr.truncated));
    for (name, shown) in [("stdout", stdout), ("stderr", stderr)] {
        if shown.truncated {
            fields.insert(format!("{name}_bytes"), json!(shown.total));
        }
        if !shown.utf8 {
            fields.insert(format!("{name}_utf8"), json!(false));
        }
        fields.insert(name.into(), json!(shown.text));
    }
    fields.insert("enforcement".into(), enforcement);
    Ok(Value::Object(fields))
}
