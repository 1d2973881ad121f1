//! Tools that run on this side of the socket: the seam for MCP.

use super::{
    mcp::{Servers, line::Host},
    message::Block,
    rpc::Tool,
};
use ringfence_credentials::Secret;
use ringfence_policy::agents::registry::Mcp;
use serde_json::value::RawValue;
use std::{path::PathBuf, pin::Pin, sync::Arc};

/// A future that can be stored.
pub(crate) type Later<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A tool of a server.
#[derive(Debug, Clone)]
pub(crate) struct RemoteTool {
    /// The server: the name of its `[mcp.*]` section.
    pub server: String,
    /// The tool as the model sees it.
    pub tool: Arc<Tool>,
}

/// What a remote tool gave back.
#[derive(Debug, Clone)]
pub(crate) struct RemoteResult {
    /// All of its blocks.
    pub content: Vec<Block>,
    /// Whether it failed.
    pub is_error: bool,
}

/// The servers of one agent. Errors are sentences: they are shown to the model or the runtime.
pub(crate) trait RemoteTools: Send + Sync {
    /// The tools of all servers, connecting to them where that was not done yet. A tool that the profile does not
    /// allow may be among them: the turn leaves it out.
    fn list(&self) -> Later<'_, Result<Vec<RemoteTool>, String>>;

    /// Calls one. A failure to call is a result, too: the model is to hear of it.
    fn call<'a>(&'a self, server: &'a str, tool: &'a str, input: &'a RawValue) -> Later<'a, RemoteResult>;

    /// Whether [`Self::list`] may have something else to say than when it was last asked.
    fn is_stale(&self) -> bool;
}

/// The servers of an agent's `[mcp.*]` sections, each with its token; none where there are none.
///
/// # Errors
/// The HTTP client cannot be made.
pub(crate) fn connect(
    sections: Vec<(Mcp, Option<Secret>)>,
    pins: (PathBuf, Host),
) -> Result<Option<Arc<dyn RemoteTools>>, reqwest::Error> {
    if sections.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Servers::new(sections, pins)?)))
}
