//! The grant: six axes of authority that form a meet-semilattice, and the gate that holds tools to it. Pure: no I/O, no
//! clock, no environment.
//!
//! A [`Grant`] says what may be read, written, executed and connected to, how many calls may be made, and for which
//! generations of a session it holds. Two grants [`meet`](Grant::meet) in the greatest grant below both, so authority
//! that is handed on can only shrink.
//!
//! A set of entries is ordered entry by entry: `a` is below `b` if each entry of `a` lies within one entry of `b`.
//! That is what the laws (see `tests/laws.rs`) hold for. It is never looser than the sets of paths and addresses
//! that the entries mean; where several entries only together cover another, it is tighter.

mod denied;
mod exec;
pub mod gate;
mod host;
mod net;
mod path;
mod scope;

pub use denied::{Denied, End, MAX_PATTERN, NamePattern};
pub use exec::{ExecEntry, ExecError};
pub use host::{HostError, HostPattern};
pub use net::{NetEntry, NetError};
pub use path::{MAX_COMPONENTS, MAX_PATH, PathEntry, PathError, Reach, parent, prefixes};
pub use scope::{CountBound, Entries, Entry, Scope};

use serde::{Deserialize, Serialize};

/// The authority a profile gives. All six axes are required when it is parsed; an unknown field is an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// What may be opened for reading.
    pub fs_read: Scope<PathEntry>,
    /// What may be written, created, removed, renamed, or have its attributes changed.
    pub fs_write: Scope<PathEntry>,
    /// What may be executed.
    pub exec: Scope<ExecEntry>,
    /// What may be connected or sent to, and bound.
    pub net: Scope<NetEntry>,
    /// How many tool calls may be made.
    pub max_calls: CountBound,
    /// The generations of a session that the grant holds for.
    pub valid_for_generation: Scope<u64>,
}

impl Grant {
    /// Everything.
    pub fn top() -> Self {
        Self {
            fs_read: Scope::All,
            fs_write: Scope::All,
            exec: Scope::All,
            net: Scope::All,
            max_calls: CountBound::Unlimited,
            valid_for_generation: Scope::All,
        }
    }

    /// Nothing: what holds where no grant is given.
    pub fn bottom() -> Self {
        Self {
            fs_read: Scope::none(),
            fs_write: Scope::none(),
            exec: Scope::none(),
            net: Scope::none(),
            max_calls: CountBound::AtMost(0),
            valid_for_generation: Scope::none(),
        }
    }

    /// The greatest grant below both.
    #[must_use]
    pub fn meet(&self, other: &Self) -> Self {
        Self {
            fs_read: self.fs_read.meet(&other.fs_read),
            fs_write: self.fs_write.meet(&other.fs_write),
            exec: self.exec.meet(&other.exec),
            net: self.net.meet(&other.net),
            max_calls: self.max_calls.meet(other.max_calls),
            valid_for_generation: self.valid_for_generation.meet(&other.valid_for_generation),
        }
    }

    /// Whether this grant gives nothing that `other` does not give.
    pub fn leq(&self, other: &Self) -> bool {
        self.fs_read.leq(&other.fs_read)
            && self.fs_write.leq(&other.fs_write)
            && self.exec.leq(&other.exec)
            && self.net.leq(&other.net)
            && self.max_calls.leq(other.max_calls)
            && self.valid_for_generation.leq(&other.valid_for_generation)
    }
}
