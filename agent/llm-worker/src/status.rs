//! What a worker is doing, as the service of one user shows it; and the sums of it.

use super::provider::Usage;
use ringfence_wire::agent::AgentCounts;
use serde::{Deserialize, Serialize};

/// What one worker is doing, as `status` shows it: [`AgentCounts`] without those of a link to the core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerStatus {
    /// Whether a runtime is registered.
    pub runtime: bool,
    /// Whether it works on something.
    pub busy: bool,
    /// Messages that wait.
    pub waiting: u64,
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
    pub conversation_bytes: u64,
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

impl From<AgentCounts> for WorkerStatus {
    fn from(counts: AgentCounts) -> Self {
        Self {
            runtime: counts.runtime,
            busy: counts.busy,
            waiting: counts.waiting,
            turns: counts.turns,
            failed: counts.failed,
            input_tokens: counts.input_tokens,
            output_tokens: counts.output_tokens,
            cache_read_tokens: counts.cache_read_tokens,
            cache_write_tokens: counts.cache_write_tokens,
            conversation_bytes: counts.conversation_bytes,
            slow_peers: counts.slow_peers,
            refused_connections: counts.refused_connections,
            malformed: counts.malformed,
            http_calls: counts.http_calls,
        }
    }
}

/// Counts a turn.
pub(crate) fn count_turn(counts: &mut AgentCounts, has_failed: bool, usage: Usage) {
    counts.turns += 1;
    counts.failed += u64::from(has_failed);
    counts.input_tokens = counts.input_tokens.saturating_add(usage.input_tokens);
    counts.output_tokens = counts.output_tokens.saturating_add(usage.output_tokens);
    counts.cache_read_tokens = counts.cache_read_tokens.saturating_add(usage.cache_read_tokens);
    counts.cache_write_tokens = counts.cache_write_tokens.saturating_add(usage.cache_write_tokens);
}
