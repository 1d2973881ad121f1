//! Tools by name, behind one gate.

use super::{Cancel, Gate, NoPrograms, Tool, ToolContext, ToolError};
use crate::Grant;
use serde_json::Value;
use std::{collections::BTreeMap, fmt, future::poll_fn, sync::Arc, task::Poll};

/// Tools by name, behind one gate: one session.
pub struct Registry {
    gate: Arc<Gate>,
    tools: BTreeMap<String, Arc<dyn Tool>>,
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
        self.tools.insert(tool.name().to_owned(), Arc::new(tool));
        self
    }

    /// Every tool, by name.
    pub fn tools(&self) -> impl Iterator<Item = &dyn Tool> {
        self.tools.values().map(Arc::as_ref)
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
        self.authorize(name, args, granted, Cancel::default())?.run().await
    }

    /// Whether [`authorize`](Self::authorize) of such a call does no I/O.
    pub fn authorizes_without_io(&self, name: &str) -> bool {
        self.tools.get(name).is_none_or(|tool| !tool.authorizing_does_io())
    }

    /// The first part of [`dispatch`](Self::dispatch): all that is decided before the tool runs. What it gives can be run by
    /// another thread.
    ///
    /// # Errors
    /// [`ToolError`]; with [`ToolError::Cancelled`], nothing was decided.
    pub fn authorize(
        &self,
        name: &str,
        args: Value,
        granted: &Grant,
        cancel: Cancel,
    ) -> Result<AuthorizedCall, ToolError> {
        let tool = self.tools.get(name).ok_or_else(|| ToolError::Unknown(name.to_owned()))?.clone();
        if cancel.is_cancelled() {
            return Err(self.gate.cancelled(name, &cancel.end().unwrap_or_default()));
        }
        let context = self.gate.authorize(tool.as_ref(), &args, granted)?.cancelled_by(cancel);
        let precheck = tool.precheck(&context, &args);
        context.settle(&precheck);
        precheck?;
        Ok(AuthorizedCall { tool, context, args })
    }
}

/// A call that the gate let through, and that did not run yet. It counts against the budget.
#[must_use = "a call that is not run is counted all the same"]
pub struct AuthorizedCall {
    tool: Arc<dyn Tool>,
    context: ToolContext,
    args: Value,
}

impl fmt::Debug for AuthorizedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizedCall").field("context", &self.context).finish_non_exhaustive()
    }
}

impl AuthorizedCall {
    /// Runs it to its end, or until it is cancelled; not at all, if it was before.
    ///
    /// # Errors
    /// [`ToolError`]
    pub async fn run(self) -> Result<Value, ToolError> {
        let Self { tool, context, args } = self;
        let cancel = context.cancel();
        let mut call = tool.call(&context, args);
        let done = poll_fn(|cx| match cancel.poll_cancelled(cx.waker()) {
            true => Poll::Ready(None),
            false => call.as_mut().poll(cx).map(Some),
        });
        let done = done.await;
        drop(call);
        // Here it ends: whoever cancels it from here on comes too late.
        let result = match (cancel.end(), done) {
            (None, Some(result)) => result,
            (reason, _) => Err(context.gate().cancelled(tool.name(), &reason.unwrap_or_default())),
        };
        context.settle(&result);
        result
    }
}
