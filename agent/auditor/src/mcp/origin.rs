//! Whose word a session's journal is about its server's tools. Pure.

use ringfence_session::rows::ingest::{Row, ToolsRow};
use ringfence_store::CONTAINED;

/// Whose word a session's journal is about its server's tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// Of an interceptor that is linked now.
    Linked,
    /// The same, out of a container: what an agent in it says pins nothing for others.
    Contained,
    /// Of nobody any more: it is on record, and nothing is pinned by it. Anybody may have written it since, an agent in a
    /// container too, and it says only of a session that was linked which server it has.
    Past,
}

impl Origin {
    /// A row as it counts.
    pub(super) fn apply(self, row: &mut Row) {
        match row {
            Row::Server { key: Some(key), .. } if self == Self::Contained => key.insert_str(0, CONTAINED),
            Row::Server { key, .. } if self == Self::Past => *key = None,
            Row::Tools(row) => row.counts = self != Self::Past,
            _ => {}
        }
    }
}

/// Whether other sessions of a server should hear of what this one was listed.
pub(super) fn is_news(row: &ToolsRow) -> bool {
    row.counts && row.tools.iter().any(|tool| tool.definition.is_some() || tool.held.is_some())
}
