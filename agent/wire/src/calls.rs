//! The list of tool calls, whatever carried them: `ringfence events calls`.

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
    /// When it was asked for; of one that only a hook tells, when it was over: RFC 3339, UTC.
    pub ts: String,
    /// The agent; of a run, `PROFILE@UID`. `None`: an MCP client's, of which no more is known.
    pub agent: Option<String>,
    /// The container: of a run, or of an MCP server, as its interceptor says. `None`: none.
    pub container: Option<String>,
    /// The MCP session, whose call it is. `None`: none.
    pub mcp_session: Option<String>,
    /// The agent's session, as its hook says.
    pub session: Option<String>,
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
    /// What came of it.
    pub result: CallResult,
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
        /// A hook of the agent's, and nothing else.
        Hook = "hook",
        /// It passed an interceptor.
        Mcp = "mcp",
    }
}

words! {
    /// What came of a call.
    CallResult {
        /// Its result came, or its hook says that it is over, and neither says that it failed.
        Ok = "ok",
        /// One of them says so.
        Failed = "failed",
        /// A rule refused it, or a person did, or nobody decided.
        Denied = "denied",
        /// Nobody answered it yet.
        Waiting = "waiting",
        /// It is over, and nothing says how it ended.
        None = "none",
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
