//! Which protected places a policy needs to have filed.

use super::{
    Profile, Seccomp, base,
    compile::{Builder, CompileContext, bits},
    compiled::{CompiledPolicy, Kind, Place, RuleId},
    decide::{Decider, Why},
    mounts::{self, Mount},
    resolve::Resolver,
};
use ringfence_common::policy::axis::{READ, UNIX, WRITE};
use std::{ffi::OsStr, os::unix::ffi::OsStrExt, path::Path};

/// A file that a policy is made of, or a link on the way to one, where the container sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// Where.
    pub path: Vec<u8>,
    /// It is a link: what it is replaced by would lead elsewhere.
    link: bool,
}

/// The profile's own files, as this process names them.
pub(crate) fn files(profile: &Profile) -> impl Iterator<Item = &Path> {
    let seccomp = match &profile.kernel.seccomp {
        Seccomp::File(path) => Some(path.as_path()),
        Seccomp::Default | Seccomp::Strict | Seccomp::Off => None,
    };
    profile.sources.iter().map(|source| source.file.as_path()).chain(seccomp)
}

/// The files that a profile is made of and the links on the way to them, as a container with these mounts sees them.
/// Without mounts: as this process does.
pub fn source_places(profile: &Profile, theirs: Option<&[Mount]>) -> Vec<Source> {
    let Ok(mut resolver) = Resolver::new(Path::new("/")) else { return Vec::new() };
    let own = theirs.and_then(|_| mounts::of("self").ok());
    let mut found = Vec::new();
    for file in files(profile) {
        let resolved = resolver.resolve(file.as_os_str().as_bytes());
        let links = resolved.links.into_iter().map(|link| (link, true));
        for (path, link) in links.chain([(resolved.path, false)]) {
            match (theirs, &own) {
                (Some(theirs), Some(own)) => {
                    let seen = mounts::seen_at(Path::new(OsStr::from_bytes(&path)), own, theirs);
                    found.extend(seen.into_iter().map(|path| Source { path, link }));
                }
                _ => found.push(Source { path, link }),
            }
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The same for a context. Another root that is not a container's has none of them.
pub(crate) fn sources(profile: &Profile, ctx: &CompileContext<'_>) -> Vec<Source> {
    match ctx.mounts {
        None if ctx.root != Path::new("/") => Vec::new(),
        mounts => source_places(profile, mounts),
    }
}

impl Builder<'_> {
    /// The protected places that a broad allow would reach into. Where none does, the default already denies.
    pub(crate) fn protected(&mut self) -> Protected {
        let mut candidates: Vec<(Vec<u8>, u16, String)> = Vec::new();
        let devices =
            base::DEVICES.iter().map(|d| (*d).to_owned()).chain(self.resolver.disks_and_terminals());
        let devices = devices.map(|d| (d, READ | WRITE));
        let own = [
            ("RINGFENCE_RUNTIME_DIR", READ | WRITE | UNIX),
            ("RINGFENCE_STATE_DIR", READ | WRITE),
            ("RINGFENCE_CONFIG_DIR", WRITE),
        ];
        let own = own.into_iter().filter_map(|(name, axes)| Some((std::env::var(name).ok()?, axes)));
        let own = own.filter(|(dir, _)| dir.starts_with('/') && dir.len() > 1);
        for (path, axes) in
            base::PROTECTED.iter().map(|(p, a)| ((*p).to_owned(), *a)).chain(devices).chain(own)
        {
            for place in self.ends(path.as_bytes()) {
                candidates.push((place, axes, path.clone()));
            }
        }
        let initial = self.initial;
        let view = self.so_far();
        let decider = Decider::new(&view);
        let reaches = |axis: u16, path: &[u8]| decider.inherited(axis, path).why != Why::Default;
        let mut out = Protected { resets: Vec::new(), given_back: Vec::new() };
        for (path, axes, text) in candidates {
            let axes =
                bits(axes).map(|b| 1 << b).filter(|axis| reaches(*axis, &path)).fold(0, |all, a| all | a);
            if axes != 0 {
                out.resets.push((Place::Path(path), axes, text));
            }
        }
        let broad_sockets = view.places.iter().any(|r| {
            r.allow & UNIX != 0
                && match &r.place {
                    Place::Path(path) => self.resolver.is_directory(path),
                    Place::Name(_) => true,
                    Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => false,
                }
        });
        if broad_sockets {
            let names = base::PROTECTED_SOCKETS.iter();
            out.resets.extend(names.map(|n| (Place::Name((*n).into()), UNIX, format!("**/{n}"))));
        }
        for path in base::SHARED_MEMORY {
            let path = self.resolver.resolve(path.as_bytes()).path;
            for axis in [READ, WRITE] {
                let above = decider.inherited(axis, b"/dev");
                match above.rule {
                    Some(id) if above.allowed() => out.given_back.push((path.clone(), axis, id)),
                    _ if initial & axis != 0 => {
                        let id = self
                            .rules
                            .iter()
                            .position(|r| r.text == "all" && r.key.ends_with(base::bit_name(axis)));
                        let id = id.and_then(|id| RuleId::try_from(id).ok());
                        out.given_back.extend(id.map(|id| (path.clone(), axis, id)));
                    }
                    _ => {}
                }
            }
        }
        out
    }

    /// The places as they are now, for questions.
    fn so_far(&self) -> CompiledPolicy {
        CompiledPolicy::of_places(self.initial, self.places.values().cloned().collect())
    }

    /// Denies writing to the files that the policy is made of, wherever a grant could reach them or a directory above
    /// them. A deny, not a protected place: no rule can give it back. The directories above are marked with it, as above
    /// any denied path: they may be written in, and neither renamed nor, with something in them, removed.
    pub(crate) fn deny_sources(&mut self) {
        let view = self.so_far();
        let decider = Decider::new(&view);
        let allowed = |path: &[u8]| decider.path(WRITE, path).allowed();
        let reached = |path: &[u8]| {
            let ends = path.iter().enumerate().filter(|(at, b)| **b == b'/' && *at > 0).map(|(at, _)| at);
            ends.chain([path.len()]).any(|end| allowed(&path[..end]))
        };
        for Source { path, link } in self.outset.sources {
            if reached(path) {
                let text = String::from_utf8_lossy(path).into_owned();
                let id = self.built_in(format!("source:{text}"), &text);
                let kind = if *link { Kind::Exact } else { Kind::Tree };
                self.put_deny(Place::Path(path.clone()), kind, WRITE, id);
            }
        }
    }
}

/// What protects a policy's places.
pub(crate) struct Protected {
    /// Places, axes and the name of each.
    pub resets: Vec<(Place, u16, String)>,
    /// Paths that a broad allow reaches all the same, the axis and its rule.
    pub(crate) given_back: Vec<(Vec<u8>, u16, RuleId)>,
}
