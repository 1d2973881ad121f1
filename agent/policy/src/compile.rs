//! A profile to a [`CompiledPolicy`]: rules to places, inside one container's root.

mod builder;

pub(crate) use builder::{Builder, bits, noted};

use super::{
    Profile, Rule, base,
    compiled::CompiledPolicy,
    decide::Decider,
    fixed::{Fixed, History},
    mounts::Mount,
    problem::{At, CompileErrors, LoadErrors, Problem, Wrong},
    protect::Source,
    resolve::Resolver,
    workdir::{self, Workdir},
};
use ringfence_common::policy::axis::WRITE;
use std::path::{Path, PathBuf};

/// Most places, and most address ranges, that a profile's rules may come to.
const MAX_PLACES: usize = 4 * super::extend::MAX_RULES;

/// Most bytes of the paths that a profile's rules lead through by links, and so of what is kept of them for each container: so
/// many, and so many times those of the rules themselves. Links are anybody's to make, and every rule that goes through one
/// follows it.
const FOLLOWED: usize = 1 << 20;
const FOLLOWED_EACH: usize = 16;

/// What a profile is compiled for.
#[derive(Debug, Clone)]
pub struct CompileContext<'a> {
    /// The container's root directory, as this process sees it: `/`, `/proc/PID/root`.
    pub root: &'a Path,
    /// What `${WORKDIR}` stands for, inside that root.
    pub workdir: Option<PathBuf>,
    /// Record denials only, whatever the profile's mode.
    pub audit_override: bool,
    /// What the container's processes see mounted, for where the profile's own files are. None: what this process sees.
    pub mounts: Option<&'a [Mount]>,
    /// The container that runs already, where this is not its first policy.
    pub history: Option<&'a History>,
    /// Where the paths led that earlier containers could turn into links.
    pub past: Option<&'a Fixed>,
}

impl<'a> CompileContext<'a> {
    /// For a container that is yet to be, in a root that this process sees as the container will.
    pub fn new(root: &'a Path, workdir: Option<PathBuf>) -> Self {
        Self { root, workdir, audit_override: false, mounts: None, history: None, past: None }
    }
}

/// A profile, compiled.
#[derive(Debug)]
pub struct Compilation {
    /// The policy.
    pub policy: CompiledPolicy,
    /// What the author should know: programs not found, links not followed.
    pub notes: Vec<String>,
    /// Paths that lead elsewhere than they did when the container was entered, and keep what they meant.
    pub moved: Vec<String>,
    /// Where each path leads, for the container's life.
    pub fixed: Fixed,
    /// Those of them that the container may turn into a link: for the next container that is granted them.
    pub own: Fixed,
}

impl Profile {
    /// Compiles the profile: links resolved, bare names found, base and protected places added.
    ///
    /// # Errors
    /// Everything that stands against it, all at once.
    pub fn compile(&self, ctx: &CompileContext<'_>) -> Result<CompiledPolicy, CompileErrors> {
        compile(self, ctx).map(|done| done.policy)
    }

    /// Compiles the profile; also returns what its author should know, and what is fixed for the container's life.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    pub fn compile_whole(&self, ctx: &CompileContext<'_>) -> Result<Compilation, CompileErrors> {
        compile(self, ctx)
    }
}

fn compile(profile: &Profile, ctx: &CompileContext<'_>) -> Result<Compilation, CompileErrors> {
    let mut problems = profile.refused.clone();
    let mut resolver = Resolver::new(ctx.root).map_err(|e| {
        let what = Wrong::Root { root: ctx.root.to_owned(), reason: e.to_string() };
        LoadErrors::from(Problem::new(At::default(), what))
    })?;
    let (no_history, no_past) = (History::default(), Fixed::default());
    let history = ctx.history.unwrap_or(&no_history);
    let sources = super::protect::sources(profile, ctx);
    let mut fixed = history.fixed.clone();
    let workdir = match ctx.workdir.as_deref().filter(|_| uses_workdir(profile)) {
        None => Workdir::None,
        Some(dir) => workdir::check(&mut resolver, &mut fixed, dir)
            .map_err(|what| LoadErrors::from(Problem::new(At::file(&profile.file), what)))?,
    };
    let outset = Outset {
        workdir: &workdir,
        sources: &sources,
        history,
        past: ctx.past.unwrap_or(&no_past),
        fixed: &fixed,
    };
    // An allow does not follow a link that the container may write, since the container could widen its grant by changing it.
    // What may be written is known only once all links are followed, so there are two passes.
    let room = most_followed(profile);
    let mut first = Builder::new(&mut resolver, outset, None, room);
    first.profile(profile);
    problems.append(&mut first.problems);
    if !problems.is_empty() {
        return Err(LoadErrors(problems));
    }
    let (followed, as_written) = (std::mem::take(&mut first.followed), std::mem::take(&mut first.as_written));
    let done = first.finish(profile, ctx)?;
    // A name is denied in every directory of PATH, and a range is split around another: rules can multiply.
    let most = done.policy.places.len().max(done.policy.nets.len());
    if most > MAX_PLACES {
        let what = Wrong::TooManyPlaces(most, MAX_PLACES);
        return Err(Problem::new(At::file(&profile.file), what).into());
    }
    // What a rule of this profile opens for writing where it stands, before its own links are followed: an earlier
    // container may have made the link there.
    let places = done.policy.places.iter().cloned().chain(as_written).collect();
    let literal = CompiledPolicy { places, ..done.policy.clone() };
    let (now, literal, could) =
        (Decider::new(&done.policy), Decider::new(&literal), history.written.policies());
    let could = could.judge();
    let changeable = |link: &[u8]| now.path(WRITE, link).allowed() || could(link);
    let was_own = |link: &[u8]| literal.path(WRITE, link).allowed();
    let trusted = |link: &Vec<u8>| !changeable(link) && !was_own(link);
    if history.written.is_empty() && followed.iter().all(trusted) {
        let own = own(&done.fixed, was_own);
        return Ok(Compilation { own, ..done });
    }
    let judge = Judge { changeable: &changeable, could: &could, was_own: &was_own };
    let mut second = Builder::new(&mut resolver, outset, Some(judge), room);
    second.profile(profile);
    let done = second.finish(profile, ctx)?;
    Ok(Compilation { own: own(&done.fixed, was_own), ..done })
}

/// The paths of a profile's rules, not the base's, that are the container's to change.
fn own(fixed: &Fixed, changeable: impl Fn(&[u8]) -> bool) -> Fixed {
    let is_base = |path: &[u8]| base::USERLAND.iter().any(|(of_base, _)| of_base.as_bytes() == path);
    fixed.only(|path| changeable(path) && !is_base(path))
}

/// What a pass begins with.
#[derive(Clone, Copy)]
pub(crate) struct Outset<'a> {
    workdir: &'a Workdir,
    /// Where the profile's own files are.
    pub sources: &'a [Source],
    /// The container's, if it runs already.
    pub history: &'a History,
    /// Where paths led for earlier containers.
    pub past: &'a Fixed,
    fixed: &'a Fixed,
}

/// Who could have changed a link.
#[derive(Clone, Copy)]
pub(crate) struct Judge<'a> {
    /// The container, by this policy or an earlier one.
    pub(crate) changeable: &'a dyn Fn(&[u8]) -> bool,
    /// The container, by an earlier policy.
    pub could: &'a dyn Fn(&[u8]) -> bool,
    /// An earlier container that was granted the same, whose link it may be that the profile's own rule is turned by.
    pub(crate) was_own: &'a dyn Fn(&[u8]) -> bool,
}

/// All rules that may name paths.
fn rules(profile: &Profile) -> impl Iterator<Item = &Rule> {
    let axes = [&profile.rules.fs_read, &profile.rules.fs_write, &profile.rules.exec, &profile.rules.net];
    let denials =
        [&profile.denials.fs_read, &profile.denials.fs_write, &profile.denials.exec, &profile.denials.net];
    let allows = axes.into_iter().flat_map(|a| a.listed());
    allows.chain(denials.into_iter().flatten())
}

fn uses_workdir(profile: &Profile) -> bool {
    rules(profile).any(Rule::uses_workdir)
}

/// Most bytes of what one pass over the rules may follow.
fn most_followed(profile: &Profile) -> usize {
    FOLLOWED + FOLLOWED_EACH * rules(profile).map(|rule| rule.text.len()).sum::<usize>()
}
