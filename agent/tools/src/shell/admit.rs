//! Admission: a call's request becomes what will run, all of it or nothing.

use super::{
    arguments::{Arguments, Command},
    environment::Environment,
    expand::{ExpandError, Expander, Listing},
    paths::{self, NULL, OpenMode, ResolveError},
    refusal::ScriptError,
    script::{self, Target, When},
};
use ringfence_base::error::chain;
use ringfence_grant::gate::{Denied, ResolvedProgram, ToolContext};
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Instant,
};

/// Why nothing runs.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdmitError {
    /// The grant does not allow it.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The script is outside of the subset.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// A path leads nowhere.
    #[error("{}", chain(.0))]
    Path(#[from] ResolveError),
    /// The directory to run in is none.
    #[error("`cwd` is not a directory: {}", .0.display())]
    Directory(PathBuf),
    /// More words than a call may have, or more paths to look at than its time is enough for.
    #[error("{0}")]
    TooMuch(String),
}

/// What will run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// The directory that everything runs in.
    pub(super) dir: PathBuf,
    /// In their order.
    pub(super) pipelines: Vec<Pipeline>,
}

/// Stages that run at the same time, each reading what the one before it writes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Pipeline {
    /// Whether it runs at all.
    pub(super) when: When,
    /// At least one.
    pub(super) stages: Vec<Stage>,
}

/// One program as it will be started.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stage {
    /// The program: absolute, as the gate found it.
    pub(super) program: PathBuf,
    /// Its name as it was written.
    pub(super) name: OsString,
    /// Its arguments after that.
    pub(super) args: Vec<OsString>,
    /// In their order.
    pub(super) redirects: Vec<Redirect>,
}

/// Where a standard descriptor goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Redirect {
    /// 0, 1 or 2.
    pub(super) fd: usize,
    /// Where to.
    pub(super) to: RedirectTarget,
}

/// What a redirect leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RedirectTarget {
    /// A file that was admitted.
    File {
        /// Absolute, without links.
        path: PathBuf,
        /// As it was written, for messages.
        written: OsString,
        /// How it is opened.
        mode: OpenMode,
    },
    /// What that descriptor is at this point.
    Same(usize),
}

/// What decides what is granted.
pub(super) trait Authority {
    /// May this be executed?
    fn exec(&self, program: &Path) -> Result<ResolvedProgram, Denied>;
    /// Is this bare name denied, whatever file it is?
    fn rule_out(&self, program: &str) -> Result<(), Denied>;
    /// May this be read?
    fn read(&self, path: &Path) -> Result<(), Denied>;
    /// May this be written?
    fn write(&self, path: &Path) -> Result<(), Denied>;
    /// Would reading this be granted? Nothing is recorded.
    fn could_read(&self, path: &Path) -> bool;
}

impl Authority for ToolContext {
    fn exec(&self, program: &Path) -> Result<ResolvedProgram, Denied> {
        self.check_exec(program)
    }

    fn rule_out(&self, program: &str) -> Result<(), Denied> {
        self.rule_out_exec(program)
    }

    fn read(&self, path: &Path) -> Result<(), Denied> {
        self.check_read(path)
    }

    fn write(&self, path: &Path) -> Result<(), Denied> {
        self.check_write(path)
    }

    fn could_read(&self, path: &Path) -> bool {
        self.could_read(path)
    }
}

struct Globs<'a, A>(&'a A);

impl<A: Authority> Listing for Globs<'_, A> {
    type Denied = Denied;

    fn check_named(&self, dir: &Path) -> Result<(), Denied> {
        self.0.read(dir)
    }

    fn may_list(&self, dir: &Path) -> bool {
        self.0.could_read(dir)
    }
}

/// Admits a call, whole, before `deadline`. Relative paths start at its `cwd`, and that one at `home`.
///
/// # Errors
/// [`AdmitError`]; nothing was started, opened or changed.
pub(super) fn admit(
    arguments: &Arguments,
    home: &Path,
    environment: &Environment,
    authority: &impl Authority,
    deadline: Instant,
) -> Result<Plan, AdmitError> {
    let script = match &arguments.command {
        Command::Script(text) => Some(script::parse(text)?),
        Command::Program(..) => None,
    };
    let dir = directory(arguments.cwd.as_deref(), home, authority)?;
    let pipelines = match (&arguments.command, script) {
        (Command::Program(program, args), _) => {
            let args = args.iter().map(OsString::from).collect();
            let stage = stage(program.into(), args, vec![], &dir, authority)?;
            vec![Pipeline { when: When::Always, stages: vec![stage] }]
        }
        (_, script) => pipelines(script.unwrap_or_default(), &dir, environment, authority, deadline)?,
    };
    Ok(Plan { dir, pipelines })
}

/// What no look at the machine could change: a script outside of the subset, a program by a name that is not granted.
///
/// # Errors
/// [`AdmitError`], which [`admit`] would have, unless it has another.
pub(super) fn precheck(arguments: &Arguments, authority: &impl Authority) -> Result<(), AdmitError> {
    let text = match &arguments.command {
        Command::Program(program, _) => return Ok(authority.rule_out(program)?),
        Command::Script(text) => text,
    };
    for command in script::parse(text)?.pipelines.iter().flat_map(|pipeline| &pipeline.commands) {
        if let Some(name) = command.words.first().and_then(script::Word::text) {
            authority.rule_out(&name)?;
        }
    }
    Ok(())
}

/// Another directory than the tool's own must be granted for reading: without that, not even its existence is revealed.
fn directory(cwd: Option<&str>, home: &Path, authority: &impl Authority) -> Result<PathBuf, AdmitError> {
    let Some(cwd) = cwd else { return Ok(home.to_owned()) };
    let dir = paths::resolve(home, Path::new(cwd))?;
    if dir != home {
        authority.read(&dir)?;
    }
    if dir.is_dir() { Ok(dir) } else { Err(AdmitError::Directory(dir)) }
}

fn pipelines(
    script: script::Script,
    dir: &Path,
    environment: &Environment,
    authority: &impl Authority,
    deadline: Instant,
) -> Result<Vec<Pipeline>, AdmitError> {
    let globs = Globs(authority);
    let mut expander = Expander::new(environment, dir, &globs, deadline);
    let mut admitted = Vec::with_capacity(script.pipelines.len());
    for pipeline in script.pipelines {
        let mut stages = Vec::with_capacity(pipeline.commands.len());
        for command in pipeline.commands {
            let mut words = Vec::new();
            for word in &command.words {
                expander.word(word, &mut words).map_err(expanded)?;
            }
            let mut redirects = Vec::new();
            for script::Redirect { fd, to } in &command.redirects {
                let to = redirect_target(to, &mut expander, dir, authority)?;
                redirects.push(Redirect { fd: *fd, to });
            }
            let mut words = words.into_iter();
            // The reader takes no program that could come to nothing; an empty name finds nothing.
            let name = words.next().unwrap_or_default();
            stages.push(stage(name, words.collect(), redirects, dir, authority)?);
        }
        admitted.push(Pipeline { when: pipeline.when, stages });
    }
    Ok(admitted)
}

fn stage(
    name: OsString,
    args: Vec<OsString>,
    redirects: Vec<Redirect>,
    dir: &Path,
    authority: &impl Authority,
) -> Result<Stage, AdmitError> {
    let written = Path::new(&name);
    let relative = written.is_relative() && written.as_os_str().as_encoded_bytes().contains(&b'/');
    let found = if relative { authority.exec(&dir.join(written))? } else { authority.exec(written)? };
    Ok(Stage { program: found.path, name, args, redirects })
}

fn redirect_target<A: Authority>(
    target: &Target,
    expander: &mut Expander<'_, Globs<'_, A>>,
    dir: &Path,
    authority: &A,
) -> Result<RedirectTarget, AdmitError> {
    let (word, mode) = match target {
        Target::Same(fd) => return Ok(RedirectTarget::Same(*fd)),
        Target::Read(word) => (word, OpenMode::Read),
        Target::Write(word) => (word, OpenMode::Write),
        Target::Append(word) => (word, OpenMode::Append),
    };
    let written = expander.one(word).map_err(expanded)?;
    let path = paths::resolve(dir, Path::new(&written))?;
    match mode {
        _ if path == Path::new(NULL) => {}
        OpenMode::Read => authority.read(&path)?,
        OpenMode::Write | OpenMode::Append => authority.write(&path)?,
    }
    Ok(RedirectTarget::File { path, written, mode })
}

fn expanded(error: ExpandError<Denied>) -> AdmitError {
    match error {
        ExpandError::Denied(denied) => denied.into(),
        ExpandError::Refused(construct) => ScriptError::Word(construct).into(),
        ExpandError::TooMuch | ExpandError::TimedOut => AdmitError::TooMuch(error.to_string()),
    }
}
