//! Refusals, and the record of every decision.

use super::ResolvedProgram;
use std::{fmt, net::IpAddr, path::Path};

/// One of the axes that have targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Reading files.
    FsRead,
    /// Writing files.
    FsWrite,
    /// Executing programs.
    Exec,
    /// Connecting.
    Net,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FsRead => "read",
            Self::FsWrite => "write",
            Self::Exec => "exec",
            Self::Net => "net",
        })
    }
}

/// Why the gate refused. Written for the model that called and for whoever reads the record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Outside of an axis.
    #[error("denied: {axis} of {target:?} is not within the granted authority")]
    Scope {
        /// The axis.
        axis: Axis,
        /// The target, as the call named it.
        target: String,
    },
    /// A bare name that PATH does not find, or a path where nothing can be executed.
    #[error("denied: exec of {target:?} is not within the granted authority: there is no such program")]
    NoProgram {
        /// The target.
        target: String,
    },
    /// Something that no grant can name: a relative path, `..`, bytes that are no text, port 0.
    #[error("denied: {axis} of {target:?} is not within the granted authority: {why}")]
    Unnameable {
        /// The axis.
        axis: Axis,
        /// The target.
        target: String,
        /// What is wrong with it.
        why: String,
    },
    /// The tool requires all of an axis of which a part is granted.
    #[error("denied: all of {axis} is not within the granted authority")]
    Everything {
        /// The axis.
        axis: Axis,
    },
    /// No calls are left.
    #[error("denied: the {max} granted calls are used up")]
    Budget {
        /// How many were granted.
        max: u64,
    },
    /// The grant was made for other generations.
    #[error("denied: the grant does not hold for generation {generation}")]
    Generation {
        /// The session's generation.
        generation: u64,
    },
    /// The grant holds for no generation: nothing was granted.
    #[error("denied: nothing is granted in this session: the grant holds for no generation")]
    Never,
    /// The tool requires generations that are not granted.
    #[error("denied: the tool requires generations that the grant does not hold for")]
    Generations,
    /// A rule that takes from what is granted.
    #[error("denied: {axis} of {target:?} is forbidden by the rule {rule}")]
    Veto {
        /// The axis.
        axis: Axis,
        /// The target.
        target: String,
        /// The rule.
        rule: String,
    },
    /// A tool's own rule, stricter than the grant.
    #[error("denied: {0}")]
    Rule(String),
}

/// What the gate was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question<'a> {
    /// May this call run?
    Call,
    /// May it execute this?
    Exec(&'a Path),
    /// May it read this?
    Read(&'a Path),
    /// May it write this?
    Write(&'a Path),
    /// May it connect there?
    Net {
        /// The host as it was named.
        host: &'a str,
        /// The address of it that is meant, where that is known.
        addr: Option<IpAddr>,
        /// Port.
        port: u16,
    },
}

/// How the gate decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Yes: it lies within the effective grant.
    Allowed,
    /// No, with the reason.
    Denied(&'a Denied),
    /// Nothing was decided: the arguments make no sense. With the reason.
    Refused(&'a str),
    /// Whoever made the call cancelled it, before it ended. With their reason.
    Cancelled(&'a str),
}

/// One decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision<'a> {
    /// The tool that asked.
    pub tool: &'a str,
    /// What was asked.
    pub question: Question<'a>,
    /// The answer.
    pub outcome: Outcome<'a>,
    /// Calls of the session that were let through so far.
    pub used: u64,
}

/// Takes every decision of a gate, in the thread that asked: it should be quick.
pub trait Record: Send + Sync {
    /// Takes one.
    fn record(&self, decision: &Decision<'_>);
}

impl<F: Fn(&Decision<'_>) + Send + Sync> Record for F {
    fn record(&self, decision: &Decision<'_>) {
        self(decision);
    }
}

/// Rules beside the grant that can only deny: a profile's denies.
pub trait Veto: Send + Sync {
    /// The rule that forbids what the grant allows, if one does. A program comes as the gate found it.
    fn forbids(&self, question: Question<'_>, found: Option<&ResolvedProgram>) -> Option<String>;
}
