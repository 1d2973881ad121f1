//! What a profile compiles to for the kernel: plain data, no hashes yet. Hashes need the boot's keys:
//! see `table` in `ringfence-bpf`.

use super::Capabilities;
use ringfence_common::policy::axis::READ;
use ringfence_wire::egress::Names;
use serde::{Deserialize, Serialize};
use std::{
    net::Ipv6Addr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Index into [`CompiledPolicy::rules`].
pub type RuleId = u32;

/// A whole policy, ready to be put into the kernel's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledPolicy {
    /// Name of the profile.
    pub profile: String,
    /// Denials are recorded, not enforced.
    pub audit_mode: bool,
    /// Axes allowed before any rule (`ringfence_common::policy::axis`).
    pub initial: u16,
    /// `ringfence_common::policy::RECORD_*`.
    pub record: u32,
    /// Whether internet sockets may be created at all.
    pub inet: bool,
    /// The capabilities that may be used.
    pub capabilities: Capabilities,
    /// What keys of `[kernel]` allow beside the rules: of `ringfence_common::policy::FLAG_*`, those that no rule sets.
    pub flags: u32,
    /// Rules over paths, `**/NAME`, patterns and unix sockets. One entry per place and kind.
    pub places: Vec<PlaceRule>,
    /// Rules over internet addresses, one per prefix and port; verdicts already pushed down from shorter prefixes.
    pub nets: Vec<NetRule>,
    /// Host names, and the addresses that names may lead to. Not in the tables: for the container's egress worker, where
    /// any name is granted.
    pub names: Names,
    /// Every rule as written, for events and `why`. The first rules are the profile's, built-in ones follow.
    pub rules: Vec<RuleSource>,
}

impl CompiledPolicy {
    /// Lets a directory be read, and what is in it, where no rule denies that: one that Ringfence made for the container. It does
    /// nothing where that is so already.
    pub fn grant_read(&mut self, dir: &Path, key: &str) {
        let place = Place::Path(dir.as_os_str().as_bytes().to_vec());
        let has = |rule: &PlaceRule| rule.place == place && rule.kind == Kind::Tree;
        let at = match self.places.iter().position(has) {
            Some(at) => at,
            None => {
                self.places.push(PlaceRule::nothing(place, Kind::Tree));
                self.places.len() - 1
            }
        };
        let Some(rule) = self.places.get_mut(at).filter(|rule| rule.allow & READ == 0) else { return };
        rule.allow |= READ;
        let id = RuleId::try_from(self.rules.len()).unwrap_or(RuleId::MAX);
        if let Some(of_axis) = rule.allow_rules.get_mut(READ.trailing_zeros() as usize) {
            *of_axis = Some(id);
        }
        let text = dir.display().to_string();
        let key = key.to_owned();
        self.rules.push(RuleSource { id: format!("{key}:{text}"), file: None, line: 0, key, text });
    }

    /// One of places alone, for questions.
    pub(crate) fn of_places(initial: u16, places: Vec<PlaceRule>) -> Self {
        Self {
            profile: String::new(),
            audit_mode: false,
            initial,
            record: 0,
            inet: false,
            capabilities: Capabilities::NONE,
            flags: 0,
            places,
            nets: Vec::new(),
            names: Names::default(),
            rules: Vec::new(),
        }
    }
}

/// Where a rule over names applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// An absolute path below the container's root, symlinks resolved, no `.`, `..` or doubled slash. Bytes, not text.
    Path(Vec<u8>),
    /// One component, at any depth, and all below it: `**/NAME`.
    Name(Vec<u8>),
    /// One component that begins so, at any depth, and all below it: `**/NAME*`. Denied only, as a tree.
    Prefix(Vec<u8>),
    /// The same of one that ends so: `**/*NAME`.
    Suffix(Vec<u8>),
    /// An abstract unix socket name, without the `@`.
    Abstract(Vec<u8>),
    /// A number that `[kernel]` names.
    Named {
        /// Of what: one of `ringfence_common::policy::named`.
        kind: u32,
        /// The number.
        value: u64,
    },
}

impl Place {
    /// Whether it is a pattern, and the component one that it means.
    pub(crate) fn is_pattern_of(&self, component: &[u8]) -> bool {
        match self {
            Self::Prefix(name) => component.starts_with(name),
            Self::Suffix(name) => component.ends_with(name),
            Self::Path(_) | Self::Name(_) | Self::Abstract(_) | Self::Named { .. } => false,
        }
    }
}

/// Which paths a [`PlaceRule`] is about, relative to its place (`ringfence_common::policy::bits::KIND_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The place and all below it.
    Tree,
    /// All below it: `/dir/**`.
    Below,
    /// Its direct children: `/dir/*`.
    Children,
    /// Itself only.
    Exact,
}

/// What holds at one place. Bits are `ringfence_common::policy::axis`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceRule {
    /// Where.
    pub place: Place,
    /// Which paths there.
    pub kind: Kind,
    /// Axes allowed.
    pub allow: u16,
    /// Axes denied.
    pub deny: u16,
    /// Axes whose inherited allow ends here (protected places).
    pub reset: u16,
    /// The rule behind each axis bit (index: bit number) that is allowed here.
    pub allow_rules: [Option<RuleId>; 5],
    /// The rule behind each axis bit that is denied here.
    pub deny_rules: [Option<RuleId>; 5],
    /// The built-in rule behind the resets.
    pub reset_rule: Option<RuleId>,
}

impl PlaceRule {
    /// A rule that has no effect yet.
    pub fn nothing(place: Place, kind: Kind) -> Self {
        Self {
            place,
            kind,
            allow: 0,
            deny: 0,
            reset: 0,
            allow_rules: [None; 5],
            deny_rules: [None; 5],
            reset_rule: None,
        }
    }
}

/// One prefix and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetRule {
    /// Network address; v4 as v4-mapped v6; host bits zero.
    pub addr: Ipv6Addr,
    /// Prefix length over the 128 bits (v4: 96 + n).
    pub prefix: u8,
    /// Port; `None`: any.
    pub port: Option<u16>,
    /// Allowed or denied.
    pub allow: bool,
    /// The rule that decides.
    pub rule: RuleId,
}

/// A rule as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSource {
    /// Stable id, shown in events: `fs_read:/srv/app`, `deny.exec:**/ssh`, `base:fs_read:/usr`, `protected:/proc/sys`.
    pub id: String,
    /// Its file; `None` for built-in rules.
    pub file: Option<PathBuf>,
    /// Line, from 1; 0 for built-in rules.
    pub line: u32,
    /// Key path: `grant.fs_read`, `deny.exec`.
    pub key: String,
    /// The entry as written.
    pub text: String,
}
