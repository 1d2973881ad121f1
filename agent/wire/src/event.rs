//! An event as everyone but the kernel sees it: the JSON of `ringfence events`, of the store's answers and of the API.

use crate::egress::{EgressCause, EgressOutcome, NameOutcome};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};

/// One thing the kernel saw a governed task do. The keys, their order and their formats are a promise to users:
/// `docs/events.md`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When: RFC 3339, UTC, microseconds.
    pub ts: String,
    /// Number of the event in this host's store, counting up.
    pub id: u64,
    /// The container's public id: 12 hex digits.
    pub container: String,
    /// Name of the profile that judged.
    pub profile: String,
    /// What came of it.
    pub verdict: Verdict,
    /// One of the operations of `docs/events.md`.
    pub op: String,
    /// What it was done to: the key `path` or, for sockets, `addr`.
    #[serde(flatten)]
    pub target: Target,
    /// Details, each `word` or `key=value`.
    pub flags: Vec<String>,
    /// Thread id, in the host's pid namespace, as all ids here.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// Process id of the parent.
    pub ppid: u32,
    /// `tgid:start`, the start in ns since boot: names one process, even after its pid was used again.
    pub exec_id: String,
    /// Path of the executable, escaped as `path`.
    pub exe: String,
    /// User id, in the host's user namespace.
    pub uid: u32,
    /// Id of the rule that decided, `default` (no rule allows it), `all` (the axis's scope is `all`) or `fixed:NAME`.
    pub rule: String,
    /// The tool call it belongs to.
    pub tool_call: Option<String>,
    /// How sure `tool_call` is.
    pub attribution: Certainty,
    /// Where it is `ambiguous`: the calls that it may belong to, oldest first; none of them, perhaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<String>,
    /// How many times this happened, where a container flooded and like events were folded into one.
    pub repeats: u32,
    /// The host that was asked for; of a kernel's event, the one that the address stands for in that container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What came of a connection by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
    /// What was asked of a name, and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<Question>,
}

/// A connection by name, as the container's egress worker tells of it when it is over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// What became of it.
    pub outcome: EgressOutcome,
    /// Why it did not just pass.
    pub cause: Option<EgressCause>,
    /// The same in words, escaped as paths are.
    pub reason: Option<String>,
    /// The address of the container's block that was connected to, where the kernel said so.
    pub address: Option<Ipv4Addr>,
    /// The server's address, where it was dialled.
    pub dialled: Option<SocketAddr>,
    /// It began with a ClientHello.
    pub tls: bool,
    /// Bytes to the server.
    pub sent: u64,
    /// Bytes from the server.
    pub received: u64,
    /// From its beginning to its end, µs.
    pub duration_us: u64,
}

/// A question for a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What was asked of it: `A`, `AAAA`, `TXT`.
    pub kind: String,
    /// What was answered.
    pub outcome: NameOutcome,
    /// The address of the container's block that stands for the name from then on.
    pub address: Option<Ipv4Addr>,
}

words! {
    /// How sure it is that an event belongs to a tool call.
    Certainty {
        /// The kernel's tag says so.
        Exact = "exact",
        /// No other call was in flight in the process's life.
        Sole = "sole",
        /// It fits one outstanding call by what was asked and by nothing stronger: its text or its path.
        Matched = "matched",
        /// It may be another's, or nobody's.
        Ambiguous = "ambiguous",
        /// It belongs to none.
        None = "none",
    }
}

/// What came of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Done.
    Allowed,
    /// Refused.
    Denied,
    /// Done, since the profile is in audit mode; `enforce` would have refused it.
    WouldDeny,
}

impl Verdict {
    /// The word used in JSON and tables.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::WouldDeny => "would_deny",
        }
    }
}

/// What an operation was done to. `None` where there is nothing to name (a user namespace, an unnamed socket).
///
/// Text is lossless: valid, visible UTF-8 as it is; a backslash as `\\`; any other byte as `\xNN`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// A path below the container's root.
    Path(Option<String>),
    /// `1.2.3.4:80`, `[::1]:80`, `unix:/path`, `unix:@abstract`.
    Addr(Option<String>),
}

/// Why an event got its verdict, and what would change it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// The event.
    pub event: Event,
    /// Generation of the policy that judged.
    pub generation: u32,
    /// The rule that decided, as its author wrote it; `None` for `default`, `all` and `fixed:...`.
    pub rule: Option<RuleText>,
    /// One or two sentences: what decided and why.
    pub reason: String,
    /// One or two sentences: what to do to allow it (or, for an allowed event, to deny it).
    pub advice: String,
    /// TOML to put into the profile; `None` if no line can allow it.
    pub line: Option<String>,
}

/// A rule as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RuleText {
    /// Stable id: `fs_read:/srv/app`, `deny.exec:**/ssh`, `base:fs_read:/usr`.
    pub id: String,
    /// File it stands in; `None` for built-in rules.
    pub file: Option<String>,
    /// Line, from 1; 0 for built-in rules.
    pub line: u32,
    /// Key path: `grant.fs_read`, `deny.exec`.
    pub key: String,
    /// The entry as written.
    pub text: String,
}
