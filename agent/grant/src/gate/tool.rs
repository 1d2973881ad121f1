//! What a tool is.

use super::{Denied, ToolContext};
use crate::Grant;
use serde_json::Value;
use std::{error::Error, future::Future, pin::Pin};

/// A running call.
pub type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<Value, ToolError>> + Send + 'a>>;

/// Something that a model can call, and that runs only behind a [`Gate`](super::Gate).
pub trait Tool: Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// What it does, in words for a model.
    fn description(&self) -> &str;

    /// The JSON Schema of its arguments.
    fn schema(&self) -> Value;

    /// Without what this call cannot do anything. Must be granted, or the call is refused before it begins.
    ///
    /// Name what the call needs on top of [`Grant::bottom`]: budget and generation are the gate's.
    ///
    /// # Errors
    /// [`ToolError::Arguments`]
    fn required(&self, args: &Value) -> Result<Grant, ToolError>;

    /// The most that this call may use: its context holds the meet of this and what was granted. What is required, if a
    /// tool does not override it. A tool whose needs show only while it runs, or whose children need more than itself, wants
    /// more than it requires.
    ///
    /// # Errors
    /// [`ToolError::Arguments`]
    fn wanted(&self, args: &Value) -> Result<Grant, ToolError> {
        self.required(args)
    }

    /// Whether [`required`](Self::required) or [`wanted`](Self::wanted) do I/O, which may block: they follow the links of a
    /// path, for example.
    fn authorizing_does_io(&self) -> bool {
        false
    }

    /// Refuses a call that [`call`](Self::call) would refuse on any machine, before it is run. Does no I/O; what it does not
    /// refuse, the call itself judges.
    ///
    /// # Errors
    /// [`ToolError`], as [`call`](Self::call) would have.
    fn precheck(&self, ctx: &ToolContext, args: &Value) -> Result<(), ToolError> {
        let _ = (ctx, args);
        Ok(())
    }

    /// Whether any call could be granted: others are not listed.
    fn usable(&self, granted: &Grant) -> bool {
        let _ = granted;
        true
    }

    /// Runs one call. Everything it does outside of itself it asks `ctx` for first, and it calls
    /// [`ToolContext::begin`] before the first thing that has an effect. When the call is cancelled its future is dropped,
    /// once it waits; one that blocks asks [`ToolContext::cancel`].
    fn call<'a>(&'a self, ctx: &'a ToolContext, args: Value) -> CallFuture<'a>;
}

/// Why a call gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// No tool has that name.
    #[error("there is no tool named {0:?}")]
    Unknown(String),
    /// The gate refused.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Whoever made the call cancelled it: nobody waits for a result.
    #[error("the call was cancelled")]
    Cancelled,
    /// The arguments do not fit the tool's schema.
    #[error("{tool} cannot use these arguments: {why}")]
    Arguments {
        /// The tool.
        tool: String,
        /// What is wrong with them.
        why: String,
    },
    /// A mistake in the tool: it requires more than it wants.
    #[error("{tool} requires more than it wants: it cannot be run")]
    Unsound {
        /// The tool.
        tool: String,
    },
    /// The tool tried, and failed.
    #[error("{tool} failed")]
    Failed {
        /// The tool.
        tool: String,
        /// Why.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ToolError {
    /// For `map_err`: a failure of `tool`.
    pub fn failed<E: Into<Box<dyn Error + Send + Sync>>>(tool: &str) -> impl FnOnce(E) -> Self {
        let tool = tool.to_owned();
        move |source| Self::Failed { tool, source: source.into() }
    }
}
