//! The tools of a server that were called before: a small file for each server beside the journals, a JSON string a line.
//! The journals have it all, but reading them would hold up a session's start.

use std::{
    collections::HashSet,
    io::{Read, Write},
    path::{Path, PathBuf},
};

/// Tools that are remembered for one server. What is called beyond them counts as new each time.
const MOST: usize = 4096;
/// Longest name that is remembered, bytes.
const LONGEST: usize = 256;
/// Bytes of the file that are read.
const MOST_BYTES: u64 = 2 << 20;

/// The tools that were called before.
#[derive(Debug, Default)]
pub struct SeenTools {
    file: Option<PathBuf>,
    tools: HashSet<String>,
}

impl SeenTools {
    /// Those that the file has. One that cannot be read is as good as none: a tool that counts as new has a higher score.
    pub fn read(file: PathBuf) -> Self {
        let mut text = String::new();
        let opened = ringfence_files::read(&file);
        let _ = opened.and_then(|opened| opened.take(MOST_BYTES).read_to_string(&mut text));
        let tools = text.lines().filter_map(|line| serde_json::from_str(line).ok()).take(MOST).collect();
        Self { file: Some(file), tools }
    }

    /// These, and no file.
    #[cfg(test)]
    pub fn of(tools: &[&str]) -> Self {
        Self { file: None, tools: tools.iter().map(|tool| (*tool).to_owned()).collect() }
    }

    /// Whether this is the first call of a tool; remembers it.
    pub fn is_first(&mut self, tool: &str) -> bool {
        if self.tools.contains(tool) {
            return false;
        }
        if self.tools.len() < MOST && tool.len() <= LONGEST {
            self.tools.insert(tool.to_owned());
            if let Some(file) = &self.file {
                // Forgotten at the next start: the tool is new again then.
                let _ = append(file, tool);
            }
        }
        true
    }
}

/// One write(2), so that sessions of one server do not mix their lines.
fn append(file: &Path, tool: &str) -> std::io::Result<()> {
    let line = serde_json::Value::from(tool).to_string() + "\n";
    ringfence_files::append(file)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, MOST, SeenTools};
    use std::fs;

    #[test]
    fn a_tool_is_new_once_over_all_sessions() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("tools");
        let mut seen = SeenTools::read(file.clone());
        assert!(seen.is_first("a\n\"b") && !seen.is_first("a\n\"b") && seen.is_first("c"));
        let mut again = SeenTools::read(file.clone());
        assert!(!again.is_first("a\n\"b") && !again.is_first("c") && again.is_first("d"));
        fs::write(&file, b"\xff\xff").expect("written");
        assert!(SeenTools::read(file).is_first("c"), "what cannot be read is new");
    }

    #[test]
    fn hostile_names_do_not_fill_it() {
        let mut seen = SeenTools::default();
        let long = "x".repeat(LONGEST + 1);
        assert!(seen.is_first(&long) && seen.is_first(&long));
        for n in 0..2 * MOST {
            assert!(seen.is_first(&n.to_string()));
        }
        assert!(!seen.is_first("1") && seen.is_first(&(MOST + 1).to_string()));
        assert_eq!(seen.tools.len(), MOST);
    }
}
