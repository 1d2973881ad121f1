//! Which tool calls are asked for, as everybody who asks says it.

/// Which calls are asked for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct CallFilter {
    /// At least this score.
    pub(crate) risk: Option<u8>,
    /// With this policy action or outcome.
    pub(crate) verdict: Option<String>,
    /// Of this session.
    pub(crate) session: Option<String>,
    /// Of this server.
    pub(crate) server: Option<String>,
    /// Whose tool's name has this in it; ASCII letters in either case.
    pub(crate) tool: Option<String>,
    /// Older than this call.
    pub(crate) before: Option<String>,
    /// Whose server runs in this container: its public id, or the beginning of it.
    pub(crate) container: Option<String>,
    /// Only those that were not simply passed.
    pub(crate) flagged: bool,
    /// At most so many.
    pub(crate) limit: u32,
}
