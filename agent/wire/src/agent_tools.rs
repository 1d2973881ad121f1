//! What an agent's worker tells the auditor of the tools of the agent's MCP servers, and what the auditor has pinned of them.
//!
//! A worker reaches no socket. Its supervisor connects for it, says whose tools they are ([`McpRequest::AgentTools`]), and
//! hands the connection over ([`Answer::ToolsLine`]): all that can be said on it is about that agent. The auditor
//! answers [`McpReply::Linked`] or [`McpReply::Failed`] once; from then on each list has one answer with its number, and what
//! is pinned comes with the number 0 whenever somebody decided about it.
//!
//! [`McpRequest::AgentTools`]: crate::mcp::McpRequest::AgentTools
//! [`McpReply::Linked`]: crate::mcp::McpReply::Linked
//! [`McpReply::Failed`]: crate::mcp::McpReply::Failed
//! [`Answer::ToolsLine`]: crate::agent::Answer::ToolsLine

use crate::mcp::PinnedTool;
use serde::{Deserialize, Serialize};

/// Longest [`ToolsSeen`], bytes: one tool with two texts of [`LONGEST_SEEN`], each byte escaped, and some.
pub const MAX_SEEN: usize = 3 << 20;
/// Longest text of a definition, bytes. What takes the place of secrets may be longer than they are: then it is not kept.
pub const LONGEST_SEEN: usize = 512 << 10;
/// How many bytes of definitions go into one [`ToolsSeen`] before the next begins.
pub const SEEN_AT_ONCE: usize = 512 << 10;

/// Tools that a server of an agent's lists, or some of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsSeen {
    /// Of the list, not 0.
    pub number: u64,
    /// Name of the server's section.
    pub server: String,
    /// Where the server is.
    pub address: String,
    /// The tools.
    pub tools: Vec<SeenTool>,
    /// More of the same list follow.
    #[serde(default)]
    pub more: bool,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenTool {
    /// Its name.
    pub name: String,
    /// As its server describes it now.
    pub now: SeenDefinition,
    /// As it was when the worker trusted it, where that differs. It counts where nothing is pinned of the tool: an auditor that was
    /// never told, or whose database is another one, does not trust what was held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trusted: Option<SeenDefinition>,
}

/// A definition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDefinition {
    /// Its hash, as the worker compares it.
    pub sha256: String,
    /// JSON in one spelling, without secrets. None: it is not known, or too long to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// What is pinned of a server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolsPinned {
    /// That of the list which this answers; 0: somebody decided.
    pub number: u64,
    /// Name of the server's section.
    pub server: String,
    /// Each tool that is pinned. One that was listed and is not here found no room.
    pub tools: Vec<PinnedTool>,
}
