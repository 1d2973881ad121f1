//! From the kernel's time since boot to the time of day.

use nix::time::{ClockId, clock_gettime};

/// What to add to a time since boot, in ns.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    offset: i64,
}

impl Clock {
    /// Reads both clocks. Called again for each batch: the time of day may be set while the host runs.
    pub fn now() -> Self {
        let read = |clock| {
            clock_gettime(clock)
                .map_or(0, |t| t.tv_sec().saturating_mul(1_000_000_000).saturating_add(t.tv_nsec()))
        };
        Self { offset: read(ClockId::CLOCK_REALTIME).saturating_sub(read(ClockId::CLOCK_BOOTTIME)) }
    }

    /// The next reading, unless it differs by less than a millisecond: then the times of events keep their distances.
    pub fn refreshed(self) -> Self {
        let fresh = Self::now();
        if fresh.offset.abs_diff(self.offset) < 1_000_000 { self } else { fresh }
    }

    /// Microseconds since 1970 of a time in ns since boot.
    pub fn micros(self, since_boot: u64) -> i64 {
        i64::try_from(since_boot).unwrap_or(i64::MAX).saturating_add(self.offset) / 1000
    }
}

/// Nanoseconds since boot, now: the clock of the kernel's records.
pub fn since_boot() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        let part = |number: i64| u64::try_from(number).unwrap_or(0);
        part(time.tv_sec()).saturating_mul(1_000_000_000).saturating_add(part(time.tv_nsec()))
    })
}

/// Microseconds since 1970, now.
pub fn now_micros() -> i64 {
    jiff::Timestamp::now().as_microsecond()
}

/// RFC 3339, UTC, microseconds. A time out of all bounds becomes 1970.
pub fn rfc3339(micros: i64) -> String {
    format!("{:.6}", jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::UNIX_EPOCH))
}

/// Microseconds since 1970 of a time as RFC 3339 has it; nothing where it is none.
pub fn from_rfc3339(text: &str) -> Option<i64> {
    text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_microsecond)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_six_digits_and_a_z() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(1_763_631_399_000_050), "2025-11-20T09:36:39.000050Z");
        assert_eq!(rfc3339(i64::MAX), "1970-01-01T00:00:00.000000Z");
    }

    #[test]
    fn now_since_boot_is_now() {
        let boot = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock");
        let since_boot = u64::try_from(boot.tv_sec() * 1_000_000_000 + boot.tv_nsec()).expect("positive");
        let now = jiff::Timestamp::now().as_microsecond();
        assert!(Clock::now().micros(since_boot).abs_diff(now) < 5_000_000);
        assert!(Clock::now().micros(u64::MAX) > now);
    }
}
