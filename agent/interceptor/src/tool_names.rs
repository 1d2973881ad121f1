//! What the names of a session's tools say. A name is read once, not with each call.

use ringfence_session::risk::ToolName;
use std::{collections::HashMap, sync::Arc};

/// Names that are kept: far more than a server has tools. The client chooses what it calls, so there is a limit.
const MOST: usize = 1024;
/// Longest name that is kept, bytes.
const LONGEST: usize = 256;

/// Those that were read.
#[derive(Debug, Default)]
pub(crate) struct ToolNames(HashMap<String, Arc<ToolName>>);

impl ToolNames {
    /// What this tool's name says.
    pub(crate) fn of(&mut self, tool: &str) -> Arc<ToolName> {
        if let Some(known) = self.0.get(tool) {
            return Arc::clone(known);
        }
        let name = Arc::new(ToolName::of(tool));
        if self.0.len() < MOST && tool.len() <= LONGEST {
            self.0.insert(tool.to_owned(), Arc::clone(&name));
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_once_and_no_more_are_kept_than_there_is_room_for() {
        let mut names = ToolNames::default();
        assert!(Arc::ptr_eq(&names.of("get_echo"), &names.of("get_echo")));
        let long = "x".repeat(LONGEST + 1);
        assert!(!Arc::ptr_eq(&names.of(&long), &names.of(&long)));
        for number in 0..MOST {
            names.of(&format!("tool_{number}"));
        }
        assert_eq!(names.0.len(), MOST);
        assert!(!Arc::ptr_eq(&names.of("one_more"), &names.of("one_more")));
    }
}
