//! Which tools a turn offers, and where each of them runs.

use crate::{
    provider::{RequestTemplate, schema},
    remote::RemoteTool,
    rpc::{INVALID_PARAMS, RpcError, Tool},
};
use ringfence_policy::agents::config::ProviderKind;
use std::{collections::BTreeMap, sync::Arc};

/// Where each tool of a turn runs.
#[derive(Default)]
pub(super) struct Toolbox {
    /// By the name that the model sees: its server.
    pub(super) remote: BTreeMap<String, String>,
    /// What stands around the messages that offer them.
    pub(super) template: RequestTemplate,
}

/// Whether the runtime's tools can be offered.
///
/// # Errors
/// What is wrong with one.
pub(super) fn check_tools(tools: &[Tool]) -> Result<(), RpcError> {
    let mut seen = std::collections::BTreeSet::new();
    for tool in tools {
        if tool.name.is_empty() {
            return Err(RpcError::new(INVALID_PARAMS, "a tool without a name"));
        }
        if !seen.insert(&tool.name) {
            return Err(RpcError::new(INVALID_PARAMS, format!("two tools are named {:?}", tool.name)));
        }
        if !tool.parameters.get().starts_with('{') {
            let what = format!("the parameters of the tool {:?} are no JSON Schema object", tool.name);
            return Err(RpcError::new(INVALID_PARAMS, what));
        }
    }
    Ok(())
}

/// The tool with a schema that the provider takes; `None`, and a line in the log, where there is none: it refuses the whole
/// request for the schema of one tool.
pub(super) fn fitted(kind: ProviderKind, remote: RemoteTool) -> Option<RemoteTool> {
    let RemoteTool { server, tool } = remote;
    match schema::accepted(kind, &tool.parameters) {
        Ok(None) => Some(RemoteTool { server, tool }),
        Ok(Some(parameters)) => {
            Some(RemoteTool { server, tool: Arc::new(Tool { parameters, ..Tool::clone(&tool) }) })
        }
        Err(why) => {
            tracing::warn!("[mcp.{server}]: the tool {:?} is left out: {why}", schema::shown(&tool.name));
            None
        }
    }
}

/// Which server each remote tool belongs to. Two of one name are refused: the model could not say which it means.
pub(super) fn merge(
    local: &[Arc<Tool>],
    remote: &[RemoteTool],
) -> Result<BTreeMap<String, String>, RpcError> {
    let mut servers: BTreeMap<String, String> = BTreeMap::new();
    for RemoteTool { server, tool } in remote {
        let other = if local.iter().any(|l| l.name == tool.name) {
            Some("the runtime".to_owned())
        } else {
            servers.insert(tool.name.clone(), server.clone()).map(|other| format!("the MCP server {other:?}"))
        };
        if let Some(other) = other {
            let what = format!(
                "two tools are named {:?}: one of {other}, one of the MCP server {server:?}; leave one out of `tools`",
                tool.name
            );
            return Err(RpcError::new(INVALID_PARAMS, what));
        }
    }
    Ok(servers)
}
