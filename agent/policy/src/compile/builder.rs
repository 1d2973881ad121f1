//! One pass over a profile's rules: the places, address ranges and notes that they come to.

use super::{Compilation, CompileContext, Judge, Outset};
use crate::{
    AuditLevel, AxisRules, Base, Mode, Profile, Rule, base,
    compiled::{CompiledPolicy, Kind, Place, PlaceRule, RuleId, RuleSource},
    fixed::Fixed,
    lead::Followed,
    names::Collected,
    nets::{Nets, Prefix, prefixes},
    parse::place,
    problem::{At, CompileErrors, Problem, Wrong},
    resolve::{PATH_DIRS, Resolver},
    rule::RuleError,
    workdir::Workdir,
};
use ringfence_common::policy::{
    RECORD_EXEC, RECORD_FILE, RECORD_NET, RECORD_OTHER,
    axis::{EXEC, MAP, READ, UNIX, WRITE},
    named,
};
use ringfence_grant::{Denied, End, NamePattern, NetEntry, PathEntry, Reach};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// Collects places and rules.
pub(crate) struct Builder<'a> {
    pub resolver: &'a mut Resolver,
    pub(crate) outset: Outset<'a>,
    /// From the first pass: links that the container could have changed are not followed.
    pub judge: Option<Judge<'a>>,
    pub places: BTreeMap<(Place, Kind), PlaceRule>,
    nets: Nets,
    names: Collected,
    pub rules: Vec<RuleSource>,
    pub initial: u16,
    pub followed: Vec<Vec<u8>>,
    /// What rules open for writing at places from which links lead on.
    pub(super) as_written: Vec<PlaceRule>,
    notes: Vec<String>,
    pub moved: Vec<String>,
    pub fixed: Fixed,
    /// Bytes that may still be followed; none: it was too much.
    pub room: usize,
    /// Bytes that might be at the beginning.
    most: usize,
    pub(super) problems: Vec<Problem>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(
        resolver: &'a mut Resolver,
        outset: Outset<'a>,
        judge: Option<Judge<'a>>,
        most: usize,
    ) -> Self {
        Self {
            resolver,
            outset,
            judge,
            room: most,
            most,
            places: BTreeMap::new(),
            nets: Nets::default(),
            names: Collected::default(),
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

    pub(super) fn profile(&mut self, profile: &Profile) {
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
        self.deny_credentials(profile);
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
            let everywhere = Prefix { port: None, addr: 0, len: 0 };
            self.nets.allow(everywhere, id);
            self.names.every_address();
            self.put_allow(Place::Path(b"/".to_vec()), Kind::Tree, UNIX, id);
        }
        for rule in axis.listed() {
            let id = self.source(rule);
            match self.granted(rule, Rule::net) {
                Some(NetEntry::Inet { net, port }) => {
                    prefixes(net, port).into_iter().for_each(|p| self.nets.allow(p, id));
                    self.names.address(net, port, true);
                }
                Some(NetEntry::Unix(entry)) => self.allow(rule, &entry, UNIX, id),
                Some(NetEntry::Abstract(name)) => {
                    self.put_allow(Place::Abstract(name.into_bytes()), Kind::Exact, UNIX, id);
                }
                Some(NetEntry::Host { host, port, tcp }) => {
                    if host.host() == "localhost" || host.host().ends_with(".localhost") {
                        self.note(
                            rule,
                            "programs look this name up by themselves, as loopback: grant 127.0.0.1 and [::1]",
                        );
                    }
                    self.names.host((&host, port, tcp), true, id);
                }
                None => {}
            }
        }
    }

    fn deny_net(&mut self, rule: &Rule) {
        let id = self.source(rule);
        match self.denied(rule, Rule::net) {
            Some(NetEntry::Inet { net, port }) => {
                prefixes(net, port).into_iter().for_each(|p| self.nets.deny(p, id));
                self.names.address(net, port, false);
            }
            Some(NetEntry::Unix(entry)) => self.deny(&entry, UNIX, id),
            Some(NetEntry::Abstract(name)) => {
                self.put_deny(Place::Abstract(name.into_bytes()), Kind::Exact, UNIX, id);
            }
            Some(NetEntry::Host { host, port, tcp }) => self.names.host((&host, port, tcp), false, id),
            None => {}
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

    pub(super) fn finish(
        mut self,
        profile: &Profile,
        ctx: &CompileContext<'_>,
    ) -> Result<Compilation, CompileErrors> {
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
        let mut policy = CompiledPolicy {
            profile: profile.name.clone(),
            audit_mode: profile.mode == Mode::Audit || ctx.audit_override,
            initial: self.initial,
            record: record(profile.kernel.audit),
            inet,
            capabilities: profile.kernel.capabilities,
            flags: profile.kernel.flags(),
            places: self.places.into_values().collect(),
            nets,
            names: self.names.finish(profile),
            rules: self.rules,
        };
        if policy.grants_all() {
            // There is nothing that is not granted.
            policy.names.options.ask = None;
        }
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
