//! What a worker is doing: for `ringfence status`, and for the core.

use ringfence_wire::agent::AgentCounts;
use serde::{Deserialize, Serialize};

/// What one worker is doing, as `status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Whether a runtime is registered.
    pub runtime: bool,
    /// Whether it works on something.
    pub busy: bool,
    /// Messages that wait.
    pub waiting: usize,
    /// Turns since the start, failed ones included.
    pub turns: u64,
    /// Turns that failed.
    pub failed: u64,
    /// Tokens since the start.
    pub input_tokens: u64,
    /// Tokens since the start.
    pub output_tokens: u64,
    /// Tokens since the start.
    pub cache_read_tokens: u64,
    /// Tokens since the start.
    pub cache_write_tokens: u64,
    /// Bytes that the provider is sent of the conversation.
    pub conversation_bytes: usize,
    /// Peers hung up on because they did not read.
    pub slow_peers: u64,
    /// Connections refused because there were too many.
    pub refused_connections: u64,
    /// Frames and requests that were none.
    pub malformed: u64,
    /// HTTP calls since the start; they are counted as turns, too.
    #[serde(default)]
    pub http_calls: u64,
}

impl WorkerStatus {
    /// As a worker's supervisor is told it.
    pub fn counts(&self) -> AgentCounts {
        AgentCounts {
            runtime: self.runtime,
            busy: self.busy,
            waiting: self.waiting as u64,
            turns: self.turns,
            failed: self.failed,
            input_tokens: self.input_tokens,
            output_tokens: self.output_tokens,
            cache_read_tokens: self.cache_read_tokens,
            cache_write_tokens: self.cache_write_tokens,
            conversation_bytes: self.conversation_bytes as u64,
            slow_peers: self.slow_peers,
            refused_connections: self.refused_connections,
            malformed: self.malformed,
            http_calls: self.http_calls,
            // Of its link to the core, which counts those itself.
            tags: 0,
            refused_tags: 0,
            refused_peers: 0,
            lost_reports: 0,
        }
    }
}

impl From<AgentCounts> for WorkerStatus {
    fn from(counts: AgentCounts) -> Self {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            runtime: counts.runtime,
            busy: counts.busy,
            waiting: size(counts.waiting),
            turns: counts.turns,
            failed: counts.failed,
            input_tokens: counts.input_tokens,
            output_tokens: counts.output_tokens,
            cache_read_tokens: counts.cache_read_tokens,
            cache_write_tokens: counts.cache_write_tokens,
            conversation_bytes: size(counts.conversation_bytes),
            slow_peers: counts.slow_peers,
            refused_connections: counts.refused_connections,
            malformed: counts.malformed,
            http_calls: counts.http_calls,
        }
    }
}
