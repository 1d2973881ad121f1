//! Who may have a say about credentials: root or the user, by the profile's files and by what credentials are read from; never what runs
//! under the profile.

use super::{CredentialError, Variable, words};
use crate::{
    AxisRules, Profile, Seccomp, built_in,
    compile::CompileContext,
    compiled::{CompiledPolicy, Place},
    decide::{Decider, Why},
    dirs::{Dirs, is_own},
    problem::{At, CompileErrors, LoadErrors, Problem, Wrong},
    protect,
    resolve::{Resolved, Resolver},
    sets,
};
use ringfence_common::policy::axis::{READ, WRITE};
use ringfence_credentials::Source;
use ringfence_files::Others;
use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// No program is called that, and no pattern of names fits it: for what may be made in a directory.
const ANY_NAME: &str = "\u{1}";

impl Profile {
    /// Whether the daemon finds this file by its name. Others it takes by their path, from root alone.
    pub fn is_by_name(&self, dirs: &Dirs) -> bool {
        self.file.parent() == Some(dirs.system.as_path()) || built_in::has(&self.file)
    }

    /// Refuses credentials of a profile of which any file came with what an agent works on, or could have been written by one: what they
    /// are read from, and whom they are sent to, is for root or the user to say. All files: one that inherits the tables says what else
    /// the container reaches.
    ///
    /// # Errors
    /// The first of such files.
    pub fn require_own_credentials(&self, dirs: &Dirs, workdir: &Path) -> Result<(), LoadErrors> {
        let of_system = [dirs.system.clone(), dirs.system.join(sets::DIR)];
        // Nobody but root changes what is root's, wherever an agent works: no policy lets the files that it is made of be written,
        // and the directory is a protected place.
        let is_roots = |file: &Path| {
            of_system.iter().any(|dir| file.parent() == Some(dir))
                && ringfence_files::is_roots(file, Others::AddNames).unwrap_or(false)
        };
        let is_known = |file: &Path| {
            built_in::has(file)
                || is_roots(file)
                || is_own(file, [Some(dirs.system.clone()), dirs.user.clone()], workdir)
        };
        self.each_file(|file| match is_known(file) {
            true => Ok(()),
            false => Err(CredentialError::Elsewhere(file.to_owned())),
        })
    }

    /// Refuses credentials of a profile that the daemon takes from root alone, for somebody else: nothing is read, and no command run,
    /// for a start that it refuses.
    ///
    /// # Errors
    /// The first of its files that is not root's.
    pub fn require_roots_credentials(&self, dirs: &Dirs) -> Result<(), LoadErrors> {
        self.each_file(|file| {
            let is_open = |of: &&crate::Provenance| of.file == *file && !of.root_only;
            match self.sources.iter().find(is_open) {
                _ if file == self.file && !self.is_by_name(dirs) => {
                    Err(CredentialError::NotByName { file: file.to_owned(), system: dirs.system.clone() })
                }
                Some(open) => Err(CredentialError::NotRoots(open.file.clone())),
                None => Ok(()),
            }
        })
    }

    /// Asks about each file of the profile, if it has credentials. An answer that is none stands where the file has a table, or at the
    /// first table.
    fn each_file(&self, ask: impl Fn(&Path) -> Result<(), CredentialError>) -> Result<(), LoadErrors> {
        let Some(first) = self.credentials.first() else { return Ok(()) };
        let of_tables = self.credentials.iter().map(|one| &one.at.file);
        let files = [&self.file].into_iter().chain(self.sources.iter().map(|of| &of.file)).chain(of_tables);
        for file in files {
            ask(file).map_err(|wrong| {
                let own = self.credentials.iter().find(|one| one.at.file == *file);
                problem(&own.unwrap_or(first).at, wrong)
            })?;
        }
        Ok(())
    }

    /// Refuses credentials that what runs under the profile could put something else in the place of, or read: whose file, whose
    /// command's programs or which of the profile's own files it may write, or a directory or link on the way there; and a systemd
    /// credential that it may read. `variable` is the environment of who starts the container, which is where commands run.
    ///
    /// # Errors
    /// The first of them; the profile cannot be compiled.
    pub fn require_closed_credentials(
        &self,
        ctx: &CompileContext<'_>,
        variable: Variable<'_>,
    ) -> Result<(), CompileErrors> {
        let Some(first) = self.credentials.first() else { return Ok(()) };
        // Without what keeps it from them: it is about what an earlier run could have done.
        let mut bare = Self { credentials: Vec::new(), sources: Vec::new(), ..self.clone() };
        bare.kernel.seccomp = Seccomp::Off;
        let reach = Reach { policy: bare.compile(ctx)?, root: ctx.root };
        for file in protect::files(self) {
            if reach.written([file]).is_some() {
                return Err(problem(&first.at, CredentialError::OwnFile(file.to_owned())));
            }
        }
        let writes = !matches!(&self.rules.fs_write, AxisRules::Only(rules) if rules.is_empty());
        if let Some(linked) = self.sources.iter().find(|source| writes && source.names > 1) {
            let (file, names) = (linked.file.clone(), linked.names);
            return Err(problem(&first.at, CredentialError::Linked { file, names }));
        }
        for one in &self.credentials {
            let home = self.token_home.as_deref();
            let checked = match one.source_of(home) {
                Some(Source::File(path)) => reach.require_unwritten(path),
                Some(Source::Command(words)) => reach.require_unwritten_command(&words, home, variable),
                Some(Source::Credential(name)) => match variable("CREDENTIALS_DIRECTORY") {
                    Some(dir) => {
                        let whole = Reach { policy: self.compile(ctx)?, root: ctx.root };
                        let dir = PathBuf::from(dir);
                        let file = dir.join(name);
                        reach.require_unwritten(file.clone()).and_then(|()| match whole.is_read(&file) {
                            true => Err(CredentialError::Readable(dir)),
                            false => Ok(()),
                        })
                    }
                    None => Ok(()),
                },
                Some(Source::Env(_) | Source::Value(_) | Source::Login(_)) | None => Ok(()),
            };
            checked.map_err(|wrong| problem(&one.at, wrong))?;
        }
        Ok(())
    }
}

fn problem(at: &At, wrong: CredentialError) -> LoadErrors {
    Problem::new(at.clone(), Wrong::Credential(wrong)).into()
}

/// What is reached under a policy, in a root.
struct Reach<'a> {
    policy: CompiledPolicy,
    root: &'a Path,
}

impl Reach<'_> {
    fn require_unwritten(&self, path: PathBuf) -> Result<(), CredentialError> {
        match self.written([&path]) {
            Some(_) => Err(CredentialError::Written(path)),
            None => Ok(()),
        }
    }

    fn require_unwritten_command(
        &self,
        command: &[String],
        home: Option<&Path>,
        variable: Variable<'_>,
    ) -> Result<(), CredentialError> {
        let dirs = words::path_dirs(variable);
        // Whatever the command is: programs run others.
        if let Some(dir) =
            dirs.iter().find(|dir| self.written([&dir.join(ANY_NAME)]).is_some() || self.has_written(dir))
        {
            return Err(CredentialError::PathWritten(dir.clone()));
        }
        let named = words::named(command, &dirs, home, variable);
        // A directory is what is in it: modules, hooks, a `__main__.py`.
        let within = named.iter().filter(|path| self.is_dir(path)).map(|dir| dir.join(ANY_NAME));
        let within: Vec<PathBuf> = within.collect();
        match self.written(named.iter().chain(&within)) {
            Some(place) => {
                let place = match place.ends_with(ANY_NAME) {
                    true => place.parent().map(Path::to_owned).unwrap_or_default(),
                    false => place,
                };
                let program = ringfence_credentials::program(command);
                Err(CredentialError::CommandWritten { program, place })
            }
            None => Ok(()),
        }
    }

    /// The first of what may be written on the way to these paths: the outermost of a path's own, links followed. What is above a
    /// protected place can be neither renamed nor removed; and what is written to a device such as /dev/null is nobody's program.
    fn written(&self, paths: impl IntoIterator<Item = impl AsRef<Path>>) -> Option<PathBuf> {
        let decider = Decider::new(&self.policy);
        let on_the_way = |path: &[u8]| {
            let ends =
                path.iter().enumerate().filter(|(at, byte)| **byte == b'/' && *at > 0).map(|(at, _)| at);
            let mut ends: Vec<usize> = ends.chain([path.len()]).collect();
            ends.reverse();
            let decided =
                ends.into_iter().filter_map(|end| Some((end, decider.path(WRITE, path.get(..end)?))));
            let not_held = decided.take_while(|(_, decision)| decision.why != Why::Protected);
            let end = not_held.filter(|(_, decision)| decision.allowed()).last()?.0;
            path.get(..end).map(|path| PathBuf::from(OsStr::from_bytes(path)))
        };
        paths.into_iter().find_map(|path| {
            let resolved = self.resolved(path.as_ref())?;
            let ways = resolved.before.iter().chain(&resolved.links).chain([&resolved.path]);
            let place = ways.into_iter().find_map(|way| on_the_way(way))?;
            (place != OsStr::from_bytes(&resolved.path) || !self.is_device(&place)).then_some(place)
        })
    }

    /// Whether a rule lets something be written that is in a directory, and not the directory.
    fn has_written(&self, dir: &Path) -> bool {
        let Some(dir) = self.resolved(dir).map(|resolved| resolved.path) else { return false };
        let decider = Decider::new(&self.policy);
        let is_in = |path: &Vec<u8>| {
            Path::new(OsStr::from_bytes(path)).parent() == Some(Path::new(OsStr::from_bytes(&dir)))
        };
        self.policy.places.iter().filter(|rule| rule.allow & WRITE != 0).any(|rule| match &rule.place {
            Place::Path(path) => is_in(path) && decider.path(WRITE, path).allowed(),
            Place::Name(_)
            | Place::Prefix(_)
            | Place::Suffix(_)
            | Place::Abstract(_)
            | Place::Named { .. } => false,
        })
    }

    fn is_dir(&self, path: &Path) -> bool {
        let resolved = self.resolved(path).map(|resolved| resolved.path).unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(&resolved));
        self.root.join(path.strip_prefix("/").unwrap_or(path)).is_dir()
    }

    fn is_device(&self, path: &Path) -> bool {
        let device = || Resolver::new(self.root).ok()?.device(path.to_str()?);
        device().is_some_and(|(_, is_block)| !is_block)
    }

    fn is_read(&self, path: &Path) -> bool {
        let resolved = self.resolved(path);
        resolved.is_some_and(|resolved| Decider::new(&self.policy).path(READ, &resolved.path).allowed())
    }

    /// `None`: there is no such root, which the policy was compiled for.
    fn resolved(&self, path: &Path) -> Option<Resolved> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Some(Resolver::new(self.root).ok()?.resolve(path.as_os_str().as_bytes()))
    }
}
