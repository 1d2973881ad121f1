//! The rule file, watched: a change that tightens takes effect at once; one that loosens anything does not, unless only
//! root can have made it.
//!
//! An agent that may write the user's files could otherwise switch off the rule that is in its way.

use super::rules::{self, Action, Rule, Written};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Longest rule file that is read, bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// What identifies one state of a file.
type Stamp = (i64, i64, u64, u64);

/// A rule file and what was last read from it.
#[derive(Debug)]
pub(crate) struct Watch {
    file: PathBuf,
    stamp: Option<Stamp>,
    written: Vec<Written>,
}

/// What became of a changed file.
#[derive(Debug)]
pub(crate) enum Change {
    /// These rules are in force from now on.
    Taken(Vec<Rule>),
    /// It loosens something; the old rules stay for this session. The text says what.
    Held(String),
    /// It cannot be read; the old rules stay.
    Refused(String),
}

impl Watch {
    /// Watches `file`, whose rules in force are `written`.
    pub(crate) fn new(file: PathBuf, written: Vec<Written>) -> Self {
        let stamp = stamp(&file);
        Self { file, stamp, written }
    }

    /// Looks at the file; what is new since the last look.
    pub(crate) fn look(&mut self) -> Option<Change> {
        let now = stamp(&self.file);
        if now == self.stamp {
            return None;
        }
        self.stamp = now;
        let named = self.file.display().to_string();
        let read = read(&self.file).and_then(|text| {
            let written = rules::read(&text).map_err(|e| e.to_string())?;
            let rules = rules::parse(&text).map_err(|e| e.to_string())?;
            Ok((written, rules))
        });
        let (written, rules) = match read {
            Ok(read) => read,
            Err(why) => {
                return Some(Change::Refused(format!("{named}: {why}; the rules that were in force stay")));
            }
        };
        if let Some(rule) = loosened(&self.written, &written)
            && !only_roots(&self.file)
        {
            return Some(Change::Held(format!(
                "{named} loosens the rule {rule:?}: the old rules stay in force until the client starts the server again"
            )));
        }
        self.written = written;
        Some(Change::Taken(rules))
    }
}

/// Reads a rule file.
///
/// # Errors
/// What the system says, or that it is too long to be one.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    match fs::metadata(file) {
        Ok(found) if found.len() > LONGEST => {
            Err(format!("longer than {LONGEST} bytes; a rule file holds rules only"))
        }
        Ok(_) => fs::read_to_string(file).map_err(|e| e.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    fs::metadata(file).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len(), m.ino()))
}

/// Whether root owns the file and nobody else may write it.
fn only_roots(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|m| m.uid() == 0 && m.mode() & 0o022 == 0)
}

/// The first rule of `old` that no rule of `new` covers: as wide in every condition, as strict in its action.
fn loosened<'a>(old: &'a [Written], new: &[Written]) -> Option<&'a str> {
    let covers = |new: &Written, old: &Written| {
        let wider = |new: &Option<String>, old: &Option<String>| new.is_none() || new == old;
        let operations = match (&new.operation_types, &old.operation_types) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(new), Some(old)) => old.iter().all(|operation| new.contains(operation)),
        };
        new.enabled
            && new.action >= old.action
            && new.min_risk_score <= old.min_risk_score
            && wider(&new.tool_pattern, &old.tool_pattern)
            && wider(&new.server_pattern, &old.server_pattern)
            && operations
    };
    old.iter()
        .filter(|old| old.enabled && old.action > Action::Pass)
        .find(|old| !new.iter().any(|new| covers(new, old)))
        .map(|old| old.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::{Change, Watch, loosened};
    use crate::mcp::rules::{self, SHIPPED};
    use std::fs;

    #[test]
    fn only_what_covers_every_old_rule_is_no_looser() {
        let old = rules::read(SHIPPED).expect("rules");
        assert_eq!(loosened(&old, &old), None);
        let with = |from: &str, to: &str| {
            let new = rules::read(&SHIPPED.replacen(from, to, 1)).expect("rules");
            loosened(&old, &new).map(str::to_owned)
        };
        assert_eq!(with("action: pause", "action: block"), None);
        assert_eq!(with("min_risk_score: 80", "min_risk_score: 10"), None);
        assert_eq!(with("action: pause", "action: flag"), Some("pause_deletes".into()));
        assert_eq!(with("min_risk_score: 80", "min_risk_score: 90"), Some("block_bulk_destructive".into()));
        assert_eq!(with("\"send_*,post_*\"", "\"send_*\""), Some("flag_external_messages".into()));
        assert_eq!(with("[write, delete, execute]", "[write]"), Some("pause_sql_mutations".into()));
        let off = SHIPPED.replacen("action: pause", "action: pause\n    enabled: false", 1);
        assert_eq!(loosened(&old, &rules::read(&off).expect("rules")), Some("pause_deletes"));
    }

    #[test]
    fn a_changed_file_is_taken_held_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        // Others may write it, so that it does not count as root's where root runs the tests.
        let write = |text: &str| {
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("mode");
        };
        write(SHIPPED);
        let mut watch = Watch::new(file.clone(), rules::read(SHIPPED).expect("rules"));
        assert!(watch.look().is_none());
        write(&format!("{SHIPPED}\n  - {{name: more, tool_pattern: 'x*', action: block}}\n"));
        assert!(matches!(watch.look(), Some(Change::Taken(rules)) if rules.len() == 7));
        assert!(watch.look().is_none());
        write("rules: []");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
        write("rules: 3 # broken");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
        fs::remove_file(&file).expect("removed");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
    }
}
