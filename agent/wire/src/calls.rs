//! The list of tool calls, whatever carried them: `ringfence events calls`.

use crate::trace::TracedHook;
use serde::{Deserialize, Serialize};

/// Most calls of one answer.
pub const MAX_CALLS: u32 = 1000;

/// Which calls are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallsQuery {
    /// Only those of this agent, and of runs under the profile of that name; then none of MCP sessions.
    #[serde(default)]
    pub agent: Option<String>,
    /// Only the newest so many, at most [`MAX_CALLS`].
    #[serde(default)]
    pub limit: Option<u32>,
}

/// The answer: the newest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallList {
    /// The calls.
    pub calls: Vec<ListedCall>,
    /// There are older ones.
    pub more: bool,
}

/// One tool call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedCall {
    /// When it was asked for: RFC 3339, UTC. Of an MCP call, as its session says, but no later than when its journal was read last.
    pub ts: String,
    /// The agent; of a run, `PROFILE@UID`. `None`: an MCP client's, of which no more is known.
    pub agent: Option<String>,
    /// The container: of a run, or of an MCP server, as its interceptor says. `None`: none.
    pub container: Option<String>,
    /// The MCP session, whose call it is. `None`: none.
    pub mcp_session: Option<String>,
    /// What the agent calls it, the provider's id; of an MCP call, the same where its client says it.
    pub call: Option<String>,
    /// The record's own name for it: `ringfence events trace` takes it, of an MCP call `ringfence mcp calls`.
    pub key: Option<String>,
    /// The tool.
    pub tool: String,
    /// The MCP server that has it.
    pub server: Option<String>,
    /// What it is known by.
    pub by: KnownBy,
    /// What came of it: of an agent's, [`CallResult::of_agent`] of the two that follow.
    pub result: CallResult,
    /// Whether it failed, as the result says that the endpoint saw, or an MCP session. `None`: none came, or it was not looked at.
    pub is_error: Option<bool>,
    /// What a hook of the agent's says of it; `None`: nothing.
    pub hook: Option<TracedHook>,
    /// How sure it is which processes are its.
    pub tie: CallTie,
}

words! {
    /// What a call is known by.
    KnownBy {
        /// The model wanted it, as the agent's worker saw.
        Endpoint = "endpoint",
        /// The same, and a hook of the agent's says that it is over.
        Both = "endpoint+hook",
        /// It passed an interceptor.
        Mcp = "mcp",
    }
}

words! {
    /// What came of a call.
    CallResult {
        /// Its result came without saying that it failed, or its hook says that it did not; and neither says that it did.
        Ok = "ok",
        /// Its result says so, or its hook.
        Failed = "failed",
        /// A rule refused it, or a person did, or nobody decided.
        Denied = "denied",
        /// Nobody answered it yet.
        Waiting = "waiting",
        /// It is over, and nothing says how it ended.
        None = "none",
    }
}

impl CallResult {
    /// What came of an agent's call: it failed where one of the two says so. Both are the agent's own word, and where an API has no
    /// flag for failures, a result that came without saying so says little. `is_error`: what the endpoint saw in its result; `hook`: what the
    /// hook says, if it said anything; `is_over`: nobody waits for a result any more.
    #[must_use]
    pub fn of_agent(is_error: Option<bool>, hook: Option<&TracedHook>, is_over: bool) -> Self {
        match (is_error, hook.and_then(|hook| hook.failed)) {
            (Some(true), _) | (_, Some(true)) => Self::Failed,
            (Some(false), _) | (_, Some(false)) => Self::Ok,
            (None, None) if is_over || hook.is_some() => Self::None,
            (None, None) => Self::Waiting,
        }
    }
}

words! {
    /// How sure it is which processes are a call's.
    CallTie {
        /// A process was tagged for it by name.
        Exact = "exact",
        /// A process was tagged for it, since it runs what no other call says.
        Matched = "matched",
        /// Two processes say that they are the call's.
        Ambiguous = "ambiguous",
        /// None was tagged.
        None = "none",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_failed_where_its_result_says_so_or_its_hook() {
        let hook = |failed| TracedHook { ts: String::new(), failed, session: None };
        let said = [None, Some(hook(None)), Some(hook(Some(false))), Some(hook(Some(true)))];
        for (is_error, is_over, results) in [
            (None, false, ["waiting", "none", "ok", "failed"]),
            (None, true, ["none", "none", "ok", "failed"]),
            (Some(false), true, ["ok", "ok", "ok", "failed"]),
            (Some(true), true, ["failed", "failed", "failed", "failed"]),
        ] {
            let shown = said.each_ref().map(|hook| CallResult::of_agent(is_error, hook.as_ref(), is_over));
            assert_eq!(shown.map(|result| result.to_string()), results, "{is_error:?} {is_over}");
        }
    }
}
