//! How fast what an unprivileged process sends is read: its sender waits, and not the daemon.

use std::time::{Duration, Instant};

/// So many messages at once, and so many in a second from then on.
#[derive(Debug)]
pub(crate) struct Pace {
    burst: u32,
    per_second: u32,
    /// What may come at once now.
    left: u32,
    /// Up to when that was filled up.
    filled: Instant,
}

impl Pace {
    /// `burst` and `per_second` are at least 1.
    pub(crate) fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        Self { burst, per_second: per_second.max(1), left: burst, filled: now }
    }

    /// One came: how long until the next is read.
    pub(crate) fn step(&mut self, now: Instant) -> Duration {
        let each = Duration::from_secs(1) / self.per_second;
        let steps = now.saturating_duration_since(self.filled).as_nanos() / each.as_nanos().max(1);
        let steps = u32::try_from(steps).unwrap_or(u32::MAX);
        if steps >= self.burst {
            (self.left, self.filled) = (self.burst, now);
        } else {
            self.left = (self.left + steps).min(self.burst);
            self.filled += each * steps;
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 { each } else { Duration::ZERO }
    }
}
