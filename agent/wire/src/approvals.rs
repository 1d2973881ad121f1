//! Approvals that stand: a person's answer to more than one call.

use crate::tool_call::Named;
use serde::{Deserialize, Serialize};

/// How long an approval may stand that is bound to no session, microseconds: eight hours. One that names no time stands so
/// long.
pub const LONGEST_STANDING: i64 = 8 * 3_600 * 1_000_000;

/// Most approvals of one user that stand, subordinate ids included.
pub const MOST_APPROVALS: u64 = 100;

/// Which later calls an approval answers, beside the one that it was given for: calls of the same tool of the same server, of
/// the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalScope {
    /// Those with the same arguments.
    Arguments,
    /// Those of the same session.
    Session,
    /// All of them.
    Tool,
    /// Not of a tool: connections of the same container to the same host and port, until the container ends.
    Container,
}

impl Named for ApprovalScope {
    const ALL: &'static [Self] = &[Self::Arguments, Self::Session, Self::Tool, Self::Container];

    fn name(self) -> &'static str {
        match self {
            Self::Arguments => "arguments",
            Self::Session => "session",
            Self::Tool => "tool",
            Self::Container => "container",
        }
    }
}

/// What somebody asks for who approves more than one call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Which calls.
    pub scope: ApprovalScope,
    /// Until when: microseconds since 1970. None: until the session's or the container's end, or for [`LONGEST_STANDING`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<i64>,
}

/// What an interceptor says of a call that waits, by which a later one is told to be the same: it alone has the call as it
/// came. Both are hex SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Of all that the call asks for: its params but for `_meta`, secrets included.
    pub arguments: String,
    /// Of the server: its name, profile, address and command, where that is started and its environment, the files that it names,
    /// and what the server calls itself. All of it as it was while the server started.
    pub server: String,
    /// Whether that changed meanwhile: no other session has the same, and an approval answers calls of this one alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
}

impl Fingerprint {
    /// Whether both are what they are said to be, and no other text.
    pub fn is_whole(&self) -> bool {
        let is_hash = |text: &str| {
            text.len() == 64
                && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        };
        is_hash(&self.arguments) && is_hash(&self.server)
    }
}
