//! How many there may be of what whoever is governed makes up: records of different things, questions for a person.

use std::time::Instant;

/// See the module.
pub(crate) struct Rate {
    /// So many at once, and in a second from then on.
    burst: f64,
    per_second: f64,
    tokens: f64,
    filled: Instant,
}

impl Rate {
    pub(crate) fn new(burst: f64, per_second: f64, now: Instant) -> Self {
        Self { burst, per_second, tokens: burst, filled: now }
    }

    /// Whether there may be one more.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.burst);
        self.filled = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    /// One of those that were taken does not count.
    pub(crate) fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.burst);
    }
}
