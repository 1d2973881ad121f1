//! Which tool calls are asked for, as everybody who asks says it.

/// Which calls are asked for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct CallFilter {
    /// At least this score.
    pub risk: Option<u8>,
    /// With this policy action, decision or outcome.
    pub verdict: Option<String>,
    /// With this outcome.
    pub outcome: Option<String>,
    /// Of this session.
    pub session: Option<String>,
    /// Of this server.
    pub server: Option<String>,
    /// Whose tool's name has this in it; ASCII letters in either case.
    pub tool: Option<String>,
    /// Older than this call.
    pub before: Option<String>,
    /// Whose server runs in this container: its public id, or the beginning of it.
    pub container: Option<String>,
    /// Only those that were not simply passed.
    pub flagged: bool,
    /// At most so many.
    pub limit: u32,
}
