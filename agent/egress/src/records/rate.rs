//! How many different things are recorded: whoever makes them up does not fill the record.

use std::time::Instant;

/// So many at once, and in a second from then on.
const BURST: f64 = 128.0;
const PER_SECOND: f64 = 32.0;

/// See the module.
pub(super) struct Rate {
    tokens: f64,
    filled: Instant,
}

impl Rate {
    pub(super) fn new(now: Instant) -> Self {
        Self { tokens: BURST, filled: now }
    }

    /// Whether there may be one more.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        self.filled = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }
}
