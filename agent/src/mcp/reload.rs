//! The rule file, watched: a change that tightens takes effect at once; one that loosens anything waits until a person
//! confirms it, unless only root can have made it.
//!
//! An agent that may write the user's files could otherwise switch off the rule that is in its way.

use super::rules::{self, Action, Rule, Written};
use ringfence_wire::mcp::RuleFile;
use std::{
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest rule file that is read, bytes.
pub(crate) const LONGEST: u64 = 1 << 20;

/// What identifies one state of a file.
type Stamp = (i64, i64, u64, u64);

/// A rule file: what of it is in force, and what was last read from it.
#[derive(Debug)]
pub(crate) struct Watch {
    file: PathBuf,
    stamp: Option<Stamp>,
    /// The text in force.
    text: String,
    /// The last text that could be read, and whether nobody but root can have written it.
    seen: (String, bool),
}

/// What became of a changed file.
#[derive(Debug)]
pub(crate) enum Change {
    /// These rules are in force from now on.
    Taken(Vec<Rule>),
    /// It loosens something: the old rules stay until somebody confirms. The text says what.
    Held(String),
    /// It is again what is in force.
    Back,
    /// It cannot be read; the old rules stay.
    Refused(String),
}

impl Watch {
    /// Watches `file`; `text` is in force, which is the file's or, where there is none, another's.
    ///
    /// # Errors
    /// Where `text` holds no rules.
    pub(crate) fn new(file: PathBuf, text: String) -> Result<Self, rules::Error> {
        let stamp = stamp(&file);
        rules::parse(&text)?;
        let trusted = stamp.is_some() && only_roots(&file);
        // Written since it was read: that is seen at the first look.
        let stamp = stamp.filter(|_| read(&file).is_ok_and(|now| now == text));
        Ok(Self { file, stamp, seen: (text.clone(), trusted), text })
    }

    /// The file as it was last read, for the auditor.
    pub(crate) fn offer(&self) -> RuleFile {
        let (text, trusted) = self.seen.clone();
        RuleFile { path: self.file.display().to_string(), text, trusted }
    }

    /// Looks at the file; what is new since the last look.
    pub(crate) fn look(&mut self) -> Option<Change> {
        let now = stamp(&self.file);
        if now == self.stamp {
            return None;
        }
        self.stamp = now;
        let named = self.file.display().to_string();
        let refused =
            |why: String| Some(Change::Refused(format!("{named}: {why}; the rules that were in force stay")));
        // Asked before it is read: what is written after that is another state of the file.
        let trusted = only_roots(&self.file);
        let text = match read(&self.file) {
            Ok(text) => text,
            Err(why) => return refused(why),
        };
        let rules = match rules::parse(&text) {
            Ok(rules) => rules,
            Err(error) => return refused(error.to_string()),
        };
        self.seen = (text.clone(), trusted);
        if text == self.text {
            return Some(Change::Back);
        }
        if !trusted && let Some(rule) = loosens(&self.text, &text) {
            return Some(Change::Held(self.held(&rule)));
        }
        self.text = text;
        Some(Change::Taken(rules))
    }

    /// Whether this is the file.
    pub(crate) fn is_of(&self, path: &str) -> bool {
        path == self.file.display().to_string()
    }

    /// The auditor says what is in force. The rules, where they are others than before.
    ///
    /// # Errors
    /// What is wrong with that text; what was in force stays.
    pub(crate) fn ordered(&mut self, text: &str) -> Result<Option<Vec<Rule>>, rules::Error> {
        if text == self.text {
            return Ok(None);
        }
        let rules = rules::parse(text)?;
        text.clone_into(&mut self.text);
        Ok(Some(rules))
    }

    /// The words for a change that waits.
    pub(crate) fn held(&self, rule: &str) -> String {
        format!(
            "{} loosens the rule {rule:?}: the old rules stay in force until a person confirms it, by `ringfence rules confirm` or in the dashboard",
            self.file.display()
        )
    }
}

/// Reads a rule file.
///
/// # Errors
/// What the system says, or that it is too long to be one.
pub(crate) fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = fs::File::open(file).map_err(|e| e.to_string())?;
    opened.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err(format!("longer than {LONGEST} bytes; a rule file holds rules only"));
    }
    Ok(text)
}

fn stamp(file: &Path) -> Option<Stamp> {
    fs::metadata(file).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len(), m.ino()))
}

/// Whether nobody but root can have written the file, or put another one in its place.
fn only_roots(file: &Path) -> bool {
    let Ok(file) = fs::canonicalize(file) else { return false };
    file.ancestors().all(|part| fs::metadata(part).is_ok_and(|m| m.uid() == 0 && m.mode() & 0o022 == 0))
}

/// The first rule that `new` makes looser than `old`, or a word for a text that cannot be compared. `None`: every call
/// is judged at least as strictly as before.
pub(crate) fn loosens(old: &str, new: &str) -> Option<String> {
    match (rules::read(old), rules::read(new)) {
        (Ok(old), Ok(new)) => loosened(&old, &new).map(str::to_owned),
        _ => Some("(a text that cannot be compared)".to_owned()),
    }
}

/// What changed, line by line, as `diff -u` shows it.
pub(crate) fn difference(old: &str, new: &str) -> String {
    similar::TextDiff::configure()
        .timeout(Duration::from_millis(200))
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(2)
        .header("in force", "waits")
        .to_string()
}

/// The first rule of `old` that no rule of `new` covers: as wide in every condition, as strict in its action. As the
/// strictest of all matching rules wins, rules that cover all old ones judge no call more mildly; a change that is no
/// loosening and yet not covered rule by rule counts as one.
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
    use super::{Change, Watch, loosened, loosens};
    use crate::mcp::{
        risk,
        rules::{self, SHIPPED},
    };
    use proptest::{prelude::Strategy, prop_assert, sample::select};
    use serde_json::json;
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
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(watch.look().is_none());
        write(&format!("{SHIPPED}\n  - {{name: more, tool_pattern: 'x*', action: block}}\n"));
        assert!(matches!(watch.look(), Some(Change::Taken(rules)) if rules.len() == 7));
        assert!(watch.look().is_none());
        let strict = watch.offer();
        write("rules: []");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
        assert_eq!(watch.offer().text, "rules: []");
        assert!(!watch.offer().trusted);
        write(&strict.text);
        assert!(matches!(watch.look(), Some(Change::Back)));
        assert!(watch.is_of(&strict.path) && !watch.is_of("/elsewhere/rules.yaml"));
        let confirmed = watch.ordered("rules: []").expect("rules");
        assert!(confirmed.is_some_and(|rules| rules.is_empty()));
        assert!(watch.ordered("rules: 3").is_err());
        write("rules: [] # the same");
        assert!(matches!(watch.look(), Some(Change::Taken(_))));
        write("rules: 3 # broken");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
        fs::remove_file(&file).expect("removed");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
        // One that was written between the reading and the watch is noticed.
        write("rules: []");
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
        assert!(watch.look().is_none());
        fs::remove_file(&file).expect("removed");
        // And one that was not there at the start, when it comes.
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(watch.look().is_none());
        write("rules: []");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
    }

    #[test]
    fn only_roots_own_files_in_its_own_directories_are_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        fs::write(&file, SHIPPED).expect("written");
        assert!(!super::only_roots(&file), "everybody can put another one into the temporary directory");
        assert!(super::only_roots("/etc/passwd".as_ref()));
    }

    fn rule() -> impl Strategy<Value = String> {
        let maybe = |values: &'static [&'static str]| proptest::option::of(select(values));
        (
            maybe(&["delete_*", "*_x", "read_*,delete_*", "*"]),
            maybe(&["fs", "db*"]),
            proptest::option::of(proptest::sample::subsequence(vec!["read", "write", "delete"], 1..3)),
            select(&[0u8, 20, 50, 90][..]),
            select(&["flag", "pause", "block"][..]),
            proptest::bool::weighted(0.9),
        )
            .prop_map(|(tools, servers, operations, score, action, enabled)| {
                let mut text = format!("action: {action}, min_risk_score: {score}, enabled: {enabled}");
                for (key, value) in [("tool_pattern", tools), ("server_pattern", servers)] {
                    text.extend(value.map(|value| format!(", {key}: '{value}'")));
                }
                text.extend(operations.map(|list| format!(", operation_types: [{}]", list.join(", "))));
                text
            })
    }

    fn file() -> impl Strategy<Value = String> {
        proptest::collection::vec(rule(), 0..4).prop_map(|rules| {
            let named = rules.iter().enumerate().map(|(n, rule)| format!("  - {{name: r{n}, {rule}}}\n"));
            if rules.is_empty() {
                "rules: []".to_owned()
            } else {
                "rules:\n".to_owned() + &named.collect::<String>()
            }
        })
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
        #[test]
        fn what_loosens_nothing_judges_no_call_more_mildly(old in file(), new in file()) {
            if loosens(&old, &new).is_none() {
                let (old, new) = (rules::parse(&old).expect("rules"), rules::parse(&new).expect("rules"));
                for server in ["fs", "db1", "other"] {
                    for tool in ["read_x", "delete_x", "delete_it", "write_x", "odd"] {
                        for arguments in [json!({}), json!({"sql": "DELETE FROM t"}), json!({"password": 1})] {
                            let risk = risk::assess(tool, &arguments, false);
                            let action = |rules| rules::judge(rules, server, tool, &risk).action;
                            prop_assert!(action(&new) >= action(&old), "{server} {tool} {arguments}");
                        }
                    }
                }
            }
        }
    }
}
