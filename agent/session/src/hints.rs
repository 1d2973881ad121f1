//! What a server says of its own tools: the annotations of its answers to `tools/list`. Pure.

use memchr::memmem::Finder;
use ringfence_wire::tool_call::Operation;
use serde::Deserialize;
use std::{borrow::Cow, collections::HashMap, sync::LazyLock};

/// Tools that are remembered of one session.
const MOST: usize = 1024;
/// Longest name that is remembered, bytes.
const LONGEST: usize = 256;

/// The annotations of one tool, as far as they can make a call graver: what a server says to its credit counts nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hints {
    /// `destructiveHint: true`
    pub destructive: bool,
    /// `readOnlyHint: false`
    pub writes: bool,
    /// `openWorldHint: true`
    pub open_world: bool,
}

impl Hints {
    /// The operation, no milder than what the server says, and points that it adds.
    pub(crate) fn raise(self, operation: Operation) -> (Operation, u32) {
        let mild = matches!(operation, Operation::Unknown | Operation::Read);
        if self.destructive && mild {
            // Nothing else tells what it destroys.
            return (Operation::Delete, 0);
        }
        let operation = if self.writes && mild { Operation::Write } else { operation };
        let changes = !matches!(operation, Operation::Unknown | Operation::Read);
        let destructive = self.destructive && operation != Operation::Delete;
        let points = match changes {
            true if destructive => 20,
            true if self.open_world => 5,
            _ => 0,
        };
        (operation, points)
    }

    fn with(self, other: Self) -> Self {
        Self {
            destructive: self.destructive || other.destructive,
            writes: self.writes || other.writes,
            open_world: self.open_world || other.open_world,
        }
    }
}

/// What a server said of its tools in one session. What was said once stays: a later list takes nothing back.
#[derive(Debug, Default)]
pub struct ToolHints {
    tools: HashMap<String, Hints>,
}

/// An answer to `tools/list`.
#[derive(Debug, Deserialize)]
struct Listed<'a> {
    #[serde(borrow)]
    result: Tools<'a>,
}

#[derive(Debug, Deserialize)]
struct Tools<'a> {
    #[serde(borrow)]
    tools: Vec<Tool<'a>>,
}

#[derive(Debug, Deserialize)]
struct Tool<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    annotations: Option<Annotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Annotations {
    destructive_hint: Option<bool>,
    read_only_hint: Option<bool>,
    open_world_hint: Option<bool>,
}

/// Whether a line of the server's can be one that [`ToolHints::take`] takes: one search, for all that are none.
pub fn may_be_list(line: &[u8]) -> bool {
    // Made once: making it takes longer than searching a short line.
    static ANNOTATIONS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"annotations\""));
    ANNOTATIONS.find(line).is_some()
}

impl ToolHints {
    /// Takes a line of the server's, if it is an answer to `tools/list`.
    pub fn take(&mut self, line: &[u8]) {
        // What does not parse is not a list that a client could use either.
        let Ok(Listed { result: Tools { tools } }) = serde_json::from_slice(line) else { return };
        for Tool { name, annotations } in tools {
            let Annotations { destructive_hint, read_only_hint, open_world_hint } =
                annotations.unwrap_or_default();
            let hints = Hints {
                destructive: destructive_hint == Some(true),
                writes: read_only_hint == Some(false),
                open_world: open_world_hint == Some(true),
            };
            if hints == Hints::default() || name.len() > LONGEST {
                continue;
            }
            if let Some(known) = self.tools.get_mut(name.as_ref()) {
                *known = known.with(hints);
            } else if self.tools.len() < MOST {
                self.tools.insert(name.into_owned(), hints);
            }
        }
    }

    /// What was said of a tool.
    pub fn of(&self, tool: &str) -> Hints {
        self.tools.get(tool).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::{Hints, MOST, ToolHints, may_be_list};
    use ringfence_wire::tool_call::Operation;

    #[test]
    fn what_a_server_says_raises_and_never_lowers() {
        let destructive = Hints { destructive: true, ..Hints::default() };
        let writes = Hints { writes: true, ..Hints::default() };
        let open = Hints { open_world: true, ..Hints::default() };
        assert_eq!(destructive.raise(Operation::Unknown), (Operation::Delete, 0));
        assert_eq!(destructive.raise(Operation::Write), (Operation::Write, 20));
        assert_eq!(destructive.raise(Operation::Delete), (Operation::Delete, 0));
        assert_eq!(writes.raise(Operation::Read), (Operation::Write, 0));
        assert_eq!(writes.raise(Operation::Execute), (Operation::Execute, 0));
        assert_eq!(open.raise(Operation::Read), (Operation::Read, 0));
        assert_eq!(open.raise(Operation::Write), (Operation::Write, 5));
        for operation in [Operation::Unknown, Operation::Read, Operation::Write, Operation::Execute] {
            assert_eq!(Hints::default().raise(operation), (operation, 0));
        }
    }

    #[test]
    fn lists_are_read_and_what_was_said_stays() {
        let mut hints = ToolHints::default();
        hints.take(br#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"a","annotations":{"destructiveHint":true}},{"name":"b","annotations":{"readOnlyHint":true}},{"name":"c"}]}}"#);
        assert!(
            hints.of("a").destructive
                && hints.of("b") == Hints::default()
                && hints.of("c") == Hints::default()
        );
        hints.take(br#"{"id":2,"result":{"tools":[{"name":"a","annotations":{"destructiveHint":false,"readOnlyHint":true}}]}}"#);
        assert!(hints.of("a").destructive, "nothing is taken back");
        hints.take(br#"{"id":3,"result":{"content":[],"annotations":1}}"#);
        hints.take(b"\"annotations\"");
        assert!(may_be_list(b"{\"annotations\":{}}") && !may_be_list(b"{\"result\":{}}"));
    }

    #[test]
    fn hostile_lists_do_not_fill_it() {
        let mut hints = ToolHints::default();
        for at in 0..2 * MOST {
            let line = format!(
                "{{\"result\":{{\"tools\":[{{\"name\":\"{at}\",\"annotations\":{{\"destructiveHint\":true}}}}]}}}}"
            );
            hints.take(line.as_bytes());
        }
        let long = format!(
            "{{\"result\":{{\"tools\":[{{\"name\":\"{}\",\"annotations\":{{\"destructiveHint\":true}}}}]}}}}",
            "x".repeat(300)
        );
        hints.take(long.as_bytes());
        assert_eq!(hints.tools.len(), MOST);
    }
}
