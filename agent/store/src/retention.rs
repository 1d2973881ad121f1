//! How long the record is kept, and how much of it: the one place that says so.

/// Microseconds of a day.
const DAY: i64 = 24 * 3_600 * 1_000_000;

/// What retention keeps: events of containers, rows of agents, MCP sessions and their ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Age of the oldest event that is kept, and of the oldest end of a session: µs.
    pub age: i64,
    /// Bytes that events may take, as their containers' accounts have it.
    pub event_bytes: u64,
    /// A container over this share of `event_bytes`, as 1/n, loses its own oldest events first.
    pub container_share: u64,
    /// Bytes that journals of sessions and their rows may take together.
    pub session_bytes: u64,
    /// A session is never removed sooner after its end, µs: its interceptor may have lost its link only, and the present
    /// intent may hold its calls.
    pub grace: i64,
    /// Entries of a ledger before it is folded.
    pub ledger_entries: usize,
}

impl Default for Retention {
    /// 30 days; 1 GiB of events, a quarter of it for one container; 2 GiB of sessions, of which the rows take about as much as
    /// all events may; a minute; 10,000 entries of a ledger, 4 MB.
    fn default() -> Self {
        Self {
            age: 30 * DAY,
            event_bytes: 1 << 30,
            container_share: 4,
            session_bytes: 2 << 30,
            grace: 60_000_000,
            ledger_entries: 10_000,
        }
    }
}

impl Retention {
    /// The same, for so many days.
    pub fn with_days(self, days: u32) -> Self {
        Self { age: i64::from(days) * DAY, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_says_what_is_kept() {
        let Retention { age, event_bytes, container_share, session_bytes, grace: _, ledger_entries: _ } =
            Retention::default();
        let days = format!("{} days", age / DAY);
        let gib = |bytes: u64| format!("{} GiB", bytes >> 30);
        let (events, sessions) = (gib(event_bytes), gib(session_bytes));
        for (page, text, all) in [
            ("mcp.md", include_str!("../../../docs/mcp.md"), vec![&days, &sessions]),
            ("events.md", include_str!("../../../docs/events.md"), vec![&days, &events]),
            ("operate.md", include_str!("../../../docs/operate.md"), vec![&days, &events, &sessions]),
            ("llm.md", include_str!("../../../docs/llm.md"), vec![&days]),
        ] {
            for said in all {
                assert!(text.contains(said.as_str()), "docs/{page} does not say {said}");
            }
        }
        assert_eq!(container_share, 4, "docs/events.md says a quarter");
    }
}
