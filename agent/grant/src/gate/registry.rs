//! Tools by name, behind one gate.

use super::{Gate, NoPrograms, Tool, ToolError};
use crate::Grant;
use serde_json::Value;
use std::{collections::BTreeMap, fmt, sync::Arc};

/// Tools by name, behind one gate: one session.
pub struct Registry {
    gate: Arc<Gate>,
    tools: BTreeMap<String, Box<dyn Tool>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(Gate::new(NoPrograms))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("gate", &self.gate).field("tools", &self.tools.keys()).finish()
    }
}

impl Registry {
    /// No tools yet.
    pub fn new(gate: Gate) -> Self {
        Self { gate: Arc::new(gate), tools: BTreeMap::new() }
    }

    /// Adds a tool; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.insert(tool.name().to_owned(), Box::new(tool));
        self
    }

    /// Every tool, by name.
    pub fn tools(&self) -> impl Iterator<Item = &dyn Tool> {
        self.tools.values().map(Box::as_ref)
    }

    /// The session's gate.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Runs a tool, if `granted` gives what the call requires. The budget is counted over all calls of this registry.
    ///
    /// # Errors
    /// [`ToolError`]
    pub async fn dispatch(&self, name: &str, args: Value, granted: &Grant) -> Result<Value, ToolError> {
        let tool = self.tools.get(name).ok_or_else(|| ToolError::Unknown(name.to_owned()))?;
        let context = self.gate.authorize(tool.as_ref(), &args, granted)?;
        let result = tool.call(&context, args).await;
        context.settle(&result);
        result
    }
}
