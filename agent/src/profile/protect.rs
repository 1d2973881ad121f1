//! Which protected places a policy needs to have filed.

use super::{
    base,
    compile::{Builder, bits},
    compiled::{CompiledPolicy, Place, RuleId},
    decide::{Decider, Why},
};
use ringfence_common::policy::axis::{READ, UNIX, WRITE};

impl Builder<'_> {
    /// The protected places that a broad allow would reach into. Where none does, the default already denies.
    pub(super) fn protected(&mut self) -> Protected {
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
            let resolved = self.resolver.resolve(path.as_bytes()).path;
            candidates.push((resolved, axes, path));
        }
        let initial = self.initial;
        let view = CompiledPolicy {
            profile: String::new(),
            audit_mode: false,
            initial,
            record: 0,
            inet: false,
            capabilities: super::Capabilities::NONE,
            setuid_files: false,
            places: self.places.values().cloned().collect(),
            nets: Vec::new(),
            rules: Vec::new(),
        };
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
                    Place::Abstract(_) | Place::Named { .. } => false,
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
}

/// What protects a policy's places.
pub(super) struct Protected {
    /// Places, axes and the name of each.
    pub(super) resets: Vec<(Place, u16, String)>,
    /// Paths that a broad allow reaches all the same, the axis and its rule.
    pub(super) given_back: Vec<(Vec<u8>, u16, RuleId)>,
}
