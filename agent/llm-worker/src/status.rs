//! The sums of what a worker does.

use super::provider::Usage;
use ringfence_wire::agent::WorkerCounts;

/// Counts a turn.
pub(crate) fn count_turn(counts: &mut WorkerCounts, has_failed: bool, usage: Usage) {
    counts.turns += 1;
    counts.failed += u64::from(has_failed);
    counts.input_tokens = counts.input_tokens.saturating_add(usage.input_tokens);
    counts.output_tokens = counts.output_tokens.saturating_add(usage.output_tokens);
    counts.cache_read_tokens = counts.cache_read_tokens.saturating_add(usage.cache_read_tokens);
    counts.cache_write_tokens = counts.cache_write_tokens.saturating_add(usage.cache_write_tokens);
}
