//! A profile to a [`CompiledPolicy`]: rules to places, inside one container's root.

use super::{
    AuditLevel, AxisRules, Base, Mode, Profile, Rule, base,
    compiled::{CompiledPolicy, Kind, Place, PlaceRule, RuleId, RuleSource},
    decide::Decider,
    fixed::{Fixed, History},
    lead::Followed,
    mounts::Mount,
    nets::{Nets, prefixes},
    parse::place,
    problem::{At, CompileErrors, LoadErrors, Problem, Wrong},
    protect::Source,
    resolve::{PATH_DIRS, Resolver},
    rule::RuleError,
    workdir::{self, Workdir},
};
use ringfence_common::policy::{
    RECORD_EXEC, RECORD_FILE, RECORD_NET, RECORD_OTHER,
    axis::{EXEC, MAP, READ, UNIX, WRITE},
    named,
};
use ringfence_grant::{Denied, End, NamePattern, NetEntry, PathEntry, Reach};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

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

/// Collects places and rules.
pub(crate) struct Builder<'a> {
    pub resolver: &'a mut Resolver,
    pub(crate) outset: Outset<'a>,
    /// From the first pass: links that the container could have changed are not followed.
    pub judge: Option<Judge<'a>>,
    pub places: BTreeMap<(Place, Kind), PlaceRule>,
    nets: Nets,
    pub rules: Vec<RuleSource>,
    pub initial: u16,
    pub followed: Vec<Vec<u8>>,
    /// What rules open for writing at places from which links lead on.
    as_written: Vec<PlaceRule>,
    notes: Vec<String>,
    pub moved: Vec<String>,
    pub fixed: Fixed,
    /// Bytes that may still be followed; none: it was too much.
    pub room: usize,
    /// Bytes that might be at the beginning.
    most: usize,
    problems: Vec<Problem>,
}

impl<'a> Builder<'a> {
    fn new(resolver: &'a mut Resolver, outset: Outset<'a>, judge: Option<Judge<'a>>, most: usize) -> Self {
        Self {
            resolver,
            outset,
            judge,
            room: most,
            most,
            places: BTreeMap::new(),
            nets: Nets::default(),
            rules: Vec::new(),
            initial: 0,
            followed: Vec::new(),
            as_written: Vec::new(),
            notes: Vec::new(),
            moved: Vec::new(),
            fixed: outset.fixed.clone(),
            problems: Vec::new(),
        }
    }

    fn profile(&mut self, profile: &Profile) {
        let (rules, deny) = (&profile.rules, &profile.denials);
        for (axis, bits) in [(&rules.fs_read, READ), (&rules.fs_write, WRITE), (&rules.exec, EXEC | MAP)] {
            if let AxisRules::All(rule) = axis {
                self.source(rule);
                self.initial |= bits;
            }
        }
        for (rules, bits) in [(rules.fs_read.listed(), READ), (rules.fs_write.listed(), WRITE)] {
            for rule in rules {
                let id = self.source(rule);
                if let Some(entry) = self.granted(rule, Rule::path) {
                    self.allow(rule, &entry, bits, id);
                }
            }
        }
        for rule in rules.exec.listed() {
            self.allow_exec(rule);
        }
        self.net(&rules.net);
        for (rules, bits) in [(&deny.fs_read, READ), (&deny.fs_write, WRITE)] {
            for rule in rules {
                let id = self.source(rule);
                match self.denied(rule, Rule::denied_path) {
                    Some(Denied::Entry(entry)) => self.deny(&entry, bits, id),
                    Some(Denied::Pattern(pattern)) => self.deny_pattern(&pattern, bits, id),
                    None => {}
                }
            }
        }
        for rule in &deny.exec {
            self.deny_exec(rule);
        }
        for rule in &deny.net {
            self.deny_net(rule);
        }
        self.commands(&profile.ioctl);
        self.socket_options(&profile.socket_options);
        if profile.kernel.shared_memory {
            self.shared_memory();
        }
        if profile.kernel.base == Base::Userland {
            self.userland();
        }
    }

    pub(crate) fn source(&mut self, rule: &Rule) -> RuleId {
        self.push(RuleSource {
            id: rule.id(),
            file: Some(rule.file.to_path_buf()),
            line: rule.line,
            key: rule.key.to_owned(),
            text: rule.text.clone(),
        })
    }

    pub(crate) fn built_in(&mut self, id: String, text: &str) -> RuleId {
        let key = id.split(':').next().unwrap_or_default().to_owned();
        self.push(RuleSource { id, file: None, line: 0, key, text: text.to_owned() })
    }

    fn push(&mut self, source: RuleSource) -> RuleId {
        self.rules.push(source);
        // The number of rules is bounded by the loader.
        RuleId::try_from(self.rules.len() - 1).unwrap_or(RuleId::MAX)
    }

    /// An allow's entry; none if there is no working directory that it may mean.
    fn granted<E, X>(
        &mut self,
        rule: &Rule,
        read: impl Fn(&Rule, Option<&Path>) -> Result<E, RuleError<X>>,
    ) -> Option<E> {
        let why = match self.outset.workdir {
            Workdir::None => Some("there is no working directory"),
            Workdir::Closed(_, why) => Some(*why),
            Workdir::Dir(_) => None,
        };
        if let Some(why) = why.filter(|_| rule.uses_workdir()) {
            self.note(rule, &format!("{why}: nothing is granted"));
            return None;
        }
        self.denied(rule, read)
    }

    /// A deny's entry: it holds for any working directory, and cannot do without one.
    fn denied<E, X>(
        &mut self,
        rule: &Rule,
        read: impl Fn(&Rule, Option<&Path>) -> Result<E, RuleError<X>>,
    ) -> Option<E> {
        let workdir = match self.outset.workdir {
            Workdir::None => None,
            Workdir::Dir(dir) | Workdir::Closed(dir, _) => Some(dir.as_path()),
        };
        let result = read(rule, workdir);
        // The loader has reported all other errors in an entry.
        if matches!(result, Err(RuleError::NoWorkdir)) {
            self.problems.push(Problem::new(place(rule), Wrong::NoWorkdir(rule.text.clone())));
        } else if matches!(result, Err(RuleError::NoHome)) {
            self.note(rule, "the user has no home directory, so the rule has no effect");
        }
        result.ok()
    }

    fn at(&mut self, place: Place, kind: Kind) -> &mut PlaceRule {
        self.places
            .entry((place, kind))
            .or_insert_with_key(|(place, kind)| PlaceRule::nothing(place.clone(), *kind))
    }

    pub(crate) fn put_allow(&mut self, place: Place, kind: Kind, axes: u16, id: RuleId) {
        let rule = self.at(place, kind);
        rule.allow |= axes;
        for bit in bits(axes) {
            rule.allow_rules[bit].get_or_insert(id);
        }
    }

    pub(crate) fn put_deny(&mut self, place: Place, kind: Kind, axes: u16, id: RuleId) {
        let rule = self.at(place, kind);
        rule.deny |= axes;
        for bit in bits(axes) {
            rule.deny_rules[bit].get_or_insert(id);
        }
    }

    fn allow(&mut self, rule: &Rule, entry: &PathEntry, axes: u16, id: RuleId) {
        if let Some(name) = entry.names().next() {
            return self.put_allow(Place::Name(name.into()), Kind::Tree, axes, id);
        }
        let (anchor, kind) = (entry.anchor().as_bytes(), kind_of(entry.reach()));
        let resolved = match self.follow(anchor, Some(rule)) {
            Followed::To(resolved) => resolved,
            Followed::NotBy(link) => {
                let link = String::from_utf8_lossy(&link).into_owned();
                self.note(
                    rule,
                    &format!("{link} is a link that the container may change: it is not followed"),
                );
                return self.put_allow(Place::Path(anchor.into()), kind, axes, id);
            }
        };
        if resolved.path.starts_with(b"/proc/self/") || resolved.path == b"/proc/self" {
            self.note(rule, "the kernel sees /proc/PID, never /proc/self, so the rule matches nothing");
        }
        if axes & WRITE != 0 {
            let written = resolved.before.iter().map(|path| PlaceRule {
                allow: WRITE,
                ..PlaceRule::nothing(Place::Path(path.clone()), kind)
            });
            self.as_written.extend(written);
        }
        self.followed.extend(resolved.links);
        self.put_allow(Place::Path(resolved.path), kind, axes, id);
    }

    fn allow_exec(&mut self, rule: &Rule) {
        let id = self.source(rule);
        let Some(entry) = self.granted(rule, Rule::exec) else { return };
        let Some(name) = entry.programs().next() else {
            return self.allow(rule, entry.paths(), EXEC | MAP, id);
        };
        match self.program(name, rule) {
            Ok(found) => self.put_allow(Place::Path(found), Kind::Tree, EXEC | MAP, id),
            Err(why) => self.note(rule, why),
        }
    }

    pub(crate) fn note(&mut self, rule: &Rule, text: &str) {
        self.notes.push(noted(rule, text));
    }

    /// A deny holds at the resolved path and at each form before a link was followed, so that a link turned into a
    /// directory is no way around it; and where the path led when the container was entered, if that is elsewhere.
    fn deny(&mut self, entry: &PathEntry, axes: u16, id: RuleId) {
        if let Some(name) = entry.names().next() {
            return self.put_deny(Place::Name(name.into()), Kind::Tree, axes, id);
        }
        for path in self.every_form(entry.anchor().as_bytes()) {
            self.put_deny(Place::Path(path), kind_of(entry.reach()), axes, id);
        }
    }

    fn deny_pattern(&mut self, pattern: &NamePattern, axes: u16, id: RuleId) {
        let name = pattern.name().into();
        let place = match pattern.end() {
            End::Begins => Place::Prefix(name),
            End::Ends => Place::Suffix(name),
        };
        self.put_deny(place, Kind::Tree, axes, id);
    }

    fn deny_exec(&mut self, rule: &Rule) {
        let id = self.source(rule);
        let entry = match self.denied(rule, Rule::denied_exec) {
            Some(Denied::Entry(entry)) => entry,
            Some(Denied::Pattern(pattern)) => return self.deny_pattern(&pattern, EXEC | MAP, id),
            None => return,
        };
        let Some(name) = entry.programs().next() else {
            return self.deny(entry.paths(), EXEC | MAP, id);
        };
        // In every directory, found or not: it may be installed later.
        for dir in PATH_DIRS {
            for path in self.every_form(format!("{dir}/{name}").as_bytes()) {
                self.put_deny(Place::Path(path), Kind::Tree, EXEC | MAP, id);
            }
        }
    }

    fn net(&mut self, axis: &AxisRules) {
        if let AxisRules::All(rule) = axis {
            let id = self.source(rule);
            // Every address; every socket with a path, as a rule at `/` that protected places can end. Not abstract
            // sockets: nothing says whose they are.
            let everywhere = super::nets::Prefix { port: None, addr: 0, len: 0 };
            self.nets.allow(everywhere, id);
            self.put_allow(Place::Path(b"/".to_vec()), Kind::Tree, UNIX, id);
        }
        for rule in axis.listed() {
            let id = self.source(rule);
            match self.granted(rule, Rule::net) {
                Some(NetEntry::Inet { net, port }) => {
                    prefixes(net, port).into_iter().for_each(|p| self.nets.allow(p, id));
                }
                Some(NetEntry::Unix(entry)) => self.allow(rule, &entry, UNIX, id),
                Some(NetEntry::Abstract(name)) => {
                    self.put_allow(Place::Abstract(name.into_bytes()), Kind::Exact, UNIX, id);
                }
                // A host name is among the profile's refused rules; compilation has failed already.
                Some(NetEntry::Host { .. }) | None => {}
            }
        }
    }

    fn deny_net(&mut self, rule: &Rule) {
        let id = self.source(rule);
        match self.denied(rule, Rule::net) {
            Some(NetEntry::Inet { net, port }) => {
                prefixes(net, port).into_iter().for_each(|p| self.nets.deny(p, id));
            }
            Some(NetEntry::Unix(entry)) => self.deny(&entry, UNIX, id),
            Some(NetEntry::Abstract(name)) => {
                self.put_deny(Place::Abstract(name.into_bytes()), Kind::Exact, UNIX, id);
            }
            Some(NetEntry::Host { .. }) | None => {}
        }
    }

    fn userland(&mut self) {
        let mut filed: BTreeSet<(u16, Vec<u8>)> = BTreeSet::new();
        for (path, axes) in base::USERLAND {
            let resolved = match self.follow(path.as_bytes(), None) {
                Followed::To(resolved) => resolved,
                Followed::NotBy(_) => continue,
            };
            if !resolved.exists {
                continue;
            }
            self.followed.extend(resolved.links);
            for bit in bits(*axes).map(|bit| 1 << bit) {
                // `/bin` is in `/usr` on most systems: one place is enough.
                let above = resolved.path.iter().enumerate().filter(|(_, b)| **b == b'/');
                let covered =
                    above.map(|(at, _)| resolved.path[..at].to_vec()).any(|p| filed.contains(&(bit, p)));
                if covered || !filed.insert((bit, resolved.path.clone())) {
                    continue;
                }
                let id = self.built_in(format!("base:{}:{path}", base::bit_name(bit)), path);
                self.put_allow(Place::Path(resolved.path.clone()), Kind::Tree, bit, id);
            }
        }
    }

    /// Files the file system at `/dev/shm`. Where nothing is mounted there, it is a directory among the host's others.
    fn shared_memory(&mut self) {
        match self.resolver.mounted(base::POSIX_SHARED_MEMORY) {
            Some(value) => {
                let id = self.built_in("kernel:shared_memory".to_owned(), base::POSIX_SHARED_MEMORY);
                let place = Place::Named { kind: named::SHARED_MEMORY, value };
                self.put_allow(place, Kind::Exact, READ, id);
            }
            None => self.notes.push(format!(
                "kernel.shared_memory: nothing is mounted at {}, so the container cannot create files there",
                base::POSIX_SHARED_MEMORY
            )),
        }
    }

    fn finish(mut self, profile: &Profile, ctx: &CompileContext<'_>) -> Result<Compilation, CompileErrors> {
        let protected = self.protected();
        // Beside what it follows now a container keeps what it followed before its profile was changed.
        if self.room == 0 || self.resolver.is_full() || self.fixed.followed() > 2 * self.most {
            let what = Wrong::TooMuchFollowed(self.most);
            return Err(Problem::new(At::file(&profile.file), what).into());
        }
        for (place, axes, text) in protected.resets {
            let id = self.built_in(format!("protected:{text}"), &text);
            let rule = self.at(place, Kind::Tree);
            rule.reset |= axes;
            rule.reset_rule.get_or_insert(id);
        }
        for (path, bit, id) in protected.given_back {
            self.put_allow(Place::Path(path), Kind::Tree, bit, id);
        }
        self.deny_sources();
        let (nets, inet) = self.nets.finish();
        let policy = CompiledPolicy {
            profile: profile.name.clone(),
            audit_mode: profile.mode == Mode::Audit || ctx.audit_override,
            initial: self.initial,
            record: record(profile.kernel.audit),
            inet,
            capabilities: profile.kernel.capabilities,
            flags: profile.kernel.flags(),
            places: self.places.into_values().collect(),
            nets,
            rules: self.rules,
        };
        let (notes, moved, fixed) = (self.notes, self.moved, self.fixed);
        Ok(Compilation { policy, notes, moved, fixed, own: Fixed::default() })
    }
}

/// A remark about a rule, with its place.
pub(crate) fn noted(rule: &Rule, text: &str) -> String {
    format!("{}:{}: {}: {:?}: {text}", rule.file.display(), rule.line, rule.key, rule.text)
}

pub(crate) fn bits(axes: u16) -> impl Iterator<Item = usize> {
    (0..5).filter(move |bit| axes & 1 << bit != 0)
}

fn kind_of(reach: Reach) -> Kind {
    match reach {
        Reach::Tree => Kind::Tree,
        Reach::Below => Kind::Below,
        Reach::Children => Kind::Children,
        Reach::Exact => Kind::Exact,
    }
}

fn record(level: AuditLevel) -> u32 {
    match level {
        AuditLevel::Denied => 0,
        AuditLevel::Exec => RECORD_EXEC,
        AuditLevel::ExecNet => RECORD_EXEC | RECORD_NET,
        AuditLevel::All => RECORD_EXEC | RECORD_NET | RECORD_FILE | RECORD_OTHER,
    }
}
