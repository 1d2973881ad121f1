//! What a worker is doing: for `ringfence status`, and for the core.

use serde::{Deserialize, Serialize};

/// What one worker is doing, as `status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerStatus {
    /// Whether a runtime is registered.
    pub(crate) runtime: bool,
    /// Whether it works on something.
    pub(crate) busy: bool,
    /// Messages that wait.
    pub(crate) waiting: usize,
    /// Turns since the start, failed ones included.
    pub(crate) turns: u64,
    /// Turns that failed.
    pub(crate) failed: u64,
    /// Tokens since the start.
    pub(crate) input_tokens: u64,
    /// Tokens since the start.
    pub(crate) output_tokens: u64,
    /// Tokens since the start.
    pub(crate) cache_read_tokens: u64,
    /// Tokens since the start.
    pub(crate) cache_write_tokens: u64,
    /// Bytes that the provider is sent of the conversation.
    pub(crate) conversation_bytes: usize,
    /// Peers hung up on because they did not read.
    pub(crate) slow_peers: u64,
    /// Connections refused because there were too many.
    pub(crate) refused_connections: u64,
    /// Frames and requests that were none.
    pub(crate) malformed: u64,
    /// HTTP calls since the start; they are counted as turns, too.
    #[serde(default)]
    pub(crate) http_calls: u64,
}
