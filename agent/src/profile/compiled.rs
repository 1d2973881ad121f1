//! What a profile compiles to for the kernel: plain data, no hashes yet (those need the boot's keys, see
//! `kernel::table`).

use super::Capabilities;
use serde::{Deserialize, Serialize};
use std::{net::Ipv6Addr, path::PathBuf};

/// Index into [`CompiledPolicy::rules`].
pub(crate) type RuleId = u32;

/// A whole policy, ready to be put into the kernel's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CompiledPolicy {
    /// Name of the profile.
    pub(crate) profile: String,
    /// Denials are recorded, not enforced.
    pub(crate) audit_mode: bool,
    /// Axes allowed before any rule (`ringfence_common::policy::axis`).
    pub(crate) initial: u16,
    /// `ringfence_common::policy::RECORD_*`.
    pub(crate) record: u32,
    /// Whether internet sockets may be created at all.
    pub(crate) inet: bool,
    /// The capabilities that may be used.
    pub(crate) capabilities: Capabilities,
    /// Whether files may be given setuid and setgid bits and file capabilities.
    pub(crate) setuid_files: bool,
    /// Whether one tool call's processes may trace, read and signal another's.
    pub(crate) debug_between_calls: bool,
    /// Rules over paths, `**/NAME`, patterns and unix sockets. One entry per place and kind.
    pub(crate) places: Vec<PlaceRule>,
    /// Rules over internet addresses, one per prefix and port; verdicts already pushed down from shorter prefixes.
    pub(crate) nets: Vec<NetRule>,
    /// Every rule as written, for events and `why`. The first rules are the profile's, built-in ones follow.
    pub(crate) rules: Vec<RuleSource>,
}

/// Where a rule over names applies.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
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
pub(crate) enum Kind {
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
pub(crate) struct PlaceRule {
    /// Where.
    pub(crate) place: Place,
    /// Which paths there.
    pub(crate) kind: Kind,
    /// Axes allowed.
    pub(crate) allow: u16,
    /// Axes denied.
    pub(crate) deny: u16,
    /// Axes whose inherited allow ends here (protected places).
    pub(crate) reset: u16,
    /// The rule behind each axis bit (index: bit number) that is allowed here.
    pub(crate) allow_rules: [Option<RuleId>; 5],
    /// The rule behind each axis bit that is denied here.
    pub(crate) deny_rules: [Option<RuleId>; 5],
    /// The built-in rule behind the resets.
    pub(crate) reset_rule: Option<RuleId>,
}

impl PlaceRule {
    /// A rule that says nothing yet.
    pub(crate) fn nothing(place: Place, kind: Kind) -> Self {
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
pub(crate) struct NetRule {
    /// Network address; v4 as v4-mapped v6; host bits zero.
    pub(crate) addr: Ipv6Addr,
    /// Prefix length over the 128 bits (v4: 96 + n).
    pub(crate) prefix: u8,
    /// Port; `None`: any.
    pub(crate) port: Option<u16>,
    /// Allowed or denied.
    pub(crate) allow: bool,
    /// The rule that decides.
    pub(crate) rule: RuleId,
}

/// A rule as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleSource {
    /// Stable id, shown in events: `fs_read:/srv/app`, `deny.exec:**/ssh`, `base:fs_read:/usr`, `protected:/proc/sys`.
    pub(crate) id: String,
    /// File it stands in; `None` for built-in rules.
    pub(crate) file: Option<PathBuf>,
    /// Line, from 1; 0 for built-in rules.
    pub(crate) line: u32,
    /// Key path: `grant.fs_read`, `deny.exec`.
    pub(crate) key: String,
    /// The entry as written.
    pub(crate) text: String,
}
